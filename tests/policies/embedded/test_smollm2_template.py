"""The chat template of the embedded model: compact, whole, and growing only at its end."""

from __future__ import annotations

import json
from typing import Any

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from sdk.policies.models.smollm2 import TEMPLATE

SOURCE = TEMPLATE.read_text()
SYSTEM = "<|im_start|>system\nYou are a helpful assistant."
HOW = (
    'To use a tool, answer with <tool_call>{"name":...,"arguments":{...}}</tool_call>. '
    "Otherwise answer the user.<|im_end|>\n"
)


def render(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None, **options: Any) -> str:
    texts, _ = render_jinja_template([messages], tools=tools, chat_template=SOURCE, **options)
    return str(texts[0])


def tool(name: str, description: str = "", parameters: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters or {}}}


def line(properties: dict[str, Any], **schema: Any) -> str:
    """How a tool `f` with these arguments is shown."""
    text = render([], [tool("f", "Do it.", {"type": "object", "properties": properties, **schema})])
    return text.split("\nTools:\n- ")[1].split("\nTo use")[0]


def test_a_conversation_with_calls_renders_to_exactly_this() -> None:
    parameters = {"type": "object", "properties": {"id": {"type": "string"}, "n": {"type": "integer"}}}
    messages = [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": "Let me look.",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "get", "arguments": {"id": "é", "n": 3}}},
                {"id": "b", "type": "function", "function": {"name": "now", "arguments": {}}},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "shipped"},
        {"role": "tool", "tool_call_id": "b", "content": "noon"},
        {"role": "assistant", "content": "It is shipped."},
    ]
    tools = [tool("get", "Read\n an order.", {**parameters, "required": ["id"]}), tool("now")]
    assert render(messages, tools, add_generation_prompt=True) == (
        SYSTEM + "\nTools:\n- get(id: string, n?: integer): Read an order.\n- now()\n" + HOW + "<|im_start|>user\nHi"
        '<|im_end|>\n<|im_start|>assistant\nLet me look.\n<tool_call>{"name":"get","arguments":{"id":"é","n":3}}'
        '</tool_call>\n<tool_call>{"name":"now","arguments":{}}</tool_call><|im_end|>\n<|im_start|>tool\nshipped'
        "<|im_end|>\n<|im_start|>tool\nnoon<|im_end|>\n<|im_start|>assistant\nIt is shipped.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_without_tools_there_is_only_the_system_message() -> None:
    assert render([{"role": "system", "content": "Be brief."}]) == "<|im_start|>system\nBe brief.<|im_end|>\n"
    assert render([{"role": "user", "content": "Hi"}], []) == SYSTEM + "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"


def test_a_call_alone_has_no_needless_whitespace() -> None:
    call = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, {}]}}}],
    }
    assert render([call]).endswith(
        '<|im_start|>assistant\n<tool_call>{"name":"f","arguments":{"a":[1,{}]}}</tool_call><|im_end|>\n'
    )


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ({"type": "string", "description": "the\n id"}, "string (the id)"),
        ({"enum": ["open", "closed", 3]}, '"open"|"closed"|3'),
        ({"const": "a"}, '"a"'),
        ({"type": "integer", "default": 10, "minimum": 1}, "integer = 10 minimum=1"),
        ({"type": "array", "items": {"type": "string"}, "maxItems": 3}, "array[string] maxItems=3"),
        ({"type": "array"}, "array"),
        ({"type": ["string", "null"]}, "string|null"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}, "string|null"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "object of number"),
        ({"type": "object", "properties": {"b": {"type": "boolean"}}, "required": ["b"]}, "{b: boolean}"),
        ({"type": "object", "properties": {"b": {"type": "boolean"}}, "required": None}, "{b?: boolean}"),
        ({"$ref": "#/$defs/Node"}, "{next?: Node} (a node)"),
        ({"type": "string", "pattern": "^A-"}, 'string pattern="^A-"'),
        ({"type": "object", "properties": {"items": {"type": "string"}}}, "{items?: string}"),
        ({}, "any"),
        (True, "any"),
    ],
)
def test_every_kind_of_argument_is_shown(schema: Any, shown: str) -> None:
    node = {"type": "object", "description": "a node", "properties": {"next": {"$ref": "#/$defs/Node"}}}
    assert line({"a": schema}, **{"$defs": {"Node": node}}) == f"f(a?: {shown}): Do it."


def test_references_that_double_with_each_level_are_refused_and_not_followed_for_hours() -> None:
    twice = [{"$ref": f"#/$defs/D{level + 1}"} for level in range(60)]
    defs = {f"D{level}": {"type": "object", "properties": {"a": to, "b": to}} for level, to in enumerate(twice)}
    with pytest.raises(jinja2.TemplateError, match="more than 20000 parts"):
        line({"a": {"$ref": "#/$defs/D0"}}, **{"$defs": defs})


def test_choices_beside_the_arguments_are_shown() -> None:
    text = line({"a": {"type": "string"}, "b": {"type": "string"}}, anyOf=[{"required": ["a"]}, {"required": ["b"]}])
    assert text == 'f(a?: string, b?: string) anyOf=[{"required":["a"]},{"required":["b"]}]: Do it.'


def test_only_what_the_assistant_says_is_marked_for_training() -> None:
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes?"},
        {"role": "tool", "content": "x"},
        {"role": "assistant", "content": "Bye."},
    ]
    texts, spans = render_jinja_template([messages], chat_template=SOURCE, return_assistant_tokens_mask=True)
    assert [texts[0][a:b] for a, b in spans[0]] == ["Yes?<|im_end|>", "Bye.<|im_end|>"]


text = st.text(max_size=12)
calls = st.lists(
    st.fixed_dictionaries(
        {"function": st.fixed_dictionaries({"name": text, "arguments": st.dictionaries(text, st.integers() | text)})}
    ),
    max_size=2,
)
message = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "tool", "system"]), "content": text}),
    st.fixed_dictionaries({"role": st.just("assistant"), "content": text, "tool_calls": calls}),
)


@settings(max_examples=60, deadline=None)
@given(messages=st.lists(message, min_size=1, max_size=6), with_tools=st.booleans())
def test_more_messages_only_append(messages: list[dict[str, Any]], with_tools: bool) -> None:
    tools = [tool("f")] if with_tools else None
    whole = render(messages, tools)
    for count in range(1, len(messages)):
        assert whole.startswith(render(messages[:count], tools))
    if messages[-1]["role"] == "assistant":
        before = render(messages[:-1], tools, add_generation_prompt=True) if len(messages) > 1 else ""
        assert whole.startswith(before)


@settings(max_examples=60, deadline=None)
@given(
    arguments=st.dictionaries(text, st.recursive(st.none() | st.booleans() | text, lambda x: st.lists(x), max_leaves=5))
)
def test_calls_are_json_that_reads_back(arguments: dict[str, Any]) -> None:
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
    block = render([call]).split("<tool_call>", 1)[1].rsplit("</tool_call>", 1)[0]
    assert json.loads(block) == {"name": "f", "arguments": arguments}
