"""Calls written by a model are read as JSON, and what is wrong with them is said."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdk.policies.rendering.call_parsing import format_calls, parse_tagged_reply, read_arguments, readable_part
from sdk.records import ToolCall


def test_several_calls_with_junk_between_are_all_read_and_the_text_before_them_is_the_content() -> None:
    reply = parse_tagged_reply(
        'I look.\n<tool_call>{"name": "a", "arguments": {"x": 1}}</tool_call> and\n'
        '<tool_call>\n{"name": "b"}\n</tool_call> done'
    )
    assert reply.content == "I look."
    assert [(c.name, c.arguments, c.error) for c in reply.tool_calls] == [("a", {"x": 1}, None), ("b", {}, None)]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("<tool_call>", "not closed"),
        ('<tool_call>{"name": "a"', "not closed"),
        ('<tool_call>{"name": "a", "arguments": {}}', "not closed"),
        ("<tool_call>{'name': 'a'}</tool_call>", "not valid JSON .*at character 1"),
        ("<tool_call>__import__('os')</tool_call>", "not valid JSON"),
        ("<tool_call></tool_call>", "not valid JSON"),
        ('<tool_call>{"arguments": {}}</tool_call>', 'no "name"'),
        ('<tool_call>{"name": 3}</tool_call>', 'no "name"'),
        ('<tool_call>["a"]</tool_call>', "must be a JSON object, not an array"),
        ('<tool_call>{"name": "a", "arguments": "x"}</tool_call>', "must be a JSON object, not a string"),
        ('<tool_call>{"name": "a", "arguments": null}</tool_call>', "must be a JSON object, not null"),
        ('<tool_call>{"name": "a", "parameters": {}}</tool_call>', "unknown keys.*parameters"),
        ('<tool_call>{"name": "a", "arguments": {"x": NaN}}</tool_call>', "NaN is not a JSON value"),
        ('<tool_call>{"name": "a", "arguments": {"x": 1e999}}</tool_call>', "1e999 is out of range"),
        ('<tool_call>{"name": "a", "arguments": {"x": "\\ud800"}}</tool_call>', "surrogate"),
        ('<tool_call>{"name": "a"} {"name": "b"}</tool_call>', "text stands between"),
        ('<tool_call>{"name": "a", "arguments": {"x": ' + "[" * 100 + "]" * 100 + "}}</tool_call>", "nested"),
        ("<tool_call>" + "[" * 100_000, "not closed"),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", "nested too deeply"),
    ],
)
def test_a_malformed_call_says_what_is_wrong(text: str, complaint: str) -> None:
    reply = parse_tagged_reply("First. " + text)
    assert reply.content == "First."
    assert len(reply.tool_calls) == 1
    assert reply.tool_calls[0].arguments == {}
    with pytest.raises(ValueError, match=complaint):
        raise ValueError(reply.tool_calls[0].error)
    assert len(reply.tool_calls[0].error or "") < 500


def test_an_unclosed_call_does_not_swallow_the_one_after_it() -> None:
    reply = parse_tagged_reply('<tool_call>{"name": "a"\n<tool_call>{"name": "b"}</tool_call>')
    assert [(c.name, c.error is None) for c in reply.tool_calls] == [("", False), ("b", True)]


def test_the_closing_tag_inside_a_string_does_not_end_the_call() -> None:
    reply = parse_tagged_reply('<tool_call>{"name": "a", "arguments": {"x": "</tool_call><tool_call>"}}</tool_call>')
    assert [c.arguments for c in reply.tool_calls] == [{"x": "</tool_call><tool_call>"}]


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"a": 1}}</tool_call', '{"a": 1}'),
        ('{"a": 1}\n}\n<', '{"a": 1}'),
        ('{"a": 1}</tool', '{"a": 1}'),
        ('{"a": 1</', '{"a": 1'),
        ('{"a": "x</tool', '{"a": "x</tool'),
    ],
)
def test_a_call_that_was_cut_off_in_its_closing_tag_has_the_arguments_before_it(written: str, arguments: str) -> None:
    assert readable_part(f'<tool_call>{{"name": "f", "arguments": {written}') == ("f", arguments)


def test_calls_considered_in_the_reasoning_are_not_made() -> None:
    thought = '<tool_call>{"name": "a"}</tool_call>'
    reply = parse_tagged_reply(f"<think>\n{thought}\n</think>\n\nNo.")
    assert (reply.content, reply.reasoning, reply.tool_calls) == ("No.", thought, [])
    assert parse_tagged_reply(f"<think>{thought}").tool_calls == []
    assert parse_tagged_reply(f"{thought}</think>Yes", reasoning_open=True).reasoning == thought


@given(st.text())
def test_any_text_is_read_without_an_exception(text: str) -> None:
    reply = parse_tagged_reply(text + "<tool_call>" + text)
    assert all(call.error for call in reply.tool_calls if not call.name)


names = st.text(min_size=1, max_size=10)
arguments = st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.text() | st.lists(st.booleans()))


@given(st.lists(st.builds(lambda n, a: ToolCall(id="", name=n, arguments=a), names, arguments), min_size=1))
def test_calls_written_are_the_calls_read(calls: list[ToolCall]) -> None:
    assert parse_tagged_reply(format_calls("Now:", calls)).tool_calls == calls


@pytest.mark.parametrize(
    ("text", "expected"),
    [(None, {}), ("", {}), ("  ", {}), ('{"a": 1}', {"a": 1}), (json.dumps({"é": [None]}), {"é": [None]})],
)
def test_arguments_given_as_a_string_are_read(text: str | None, expected: object) -> None:
    assert read_arguments(text) == (expected, None)
