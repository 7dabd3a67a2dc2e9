"""A stream runs beside the policy, and says nothing that the complete answer would take back."""

import threading
from contextlib import ExitStack

import anyio
import openai
import pytest
from fake_policy import RENDERER, FakePolicy, running
from hypothesis import given
from hypothesis import strategies as st

from sdk.errors import PolicyFailure
from sdk.policies.scripted import END_TOKEN
from sdk.serving.settled_replies import ComparedReply, GrowingText, TaggedReply, before_marks
from sdk.serving.tool_calls import ClientSchemas, calls_as_text, go_on_from, written_calls

USER = [{"role": "user", "content": "Where is order 4417?"}]
SAID = "The order has left, é, and comes tomorrow."

MARKS = ("<tool_call>", '{"name": "f", "arguments": {}}', "</tool_call>", "<think>", "</think>", "<tool_", "<", "STOP")
TEXTS = ("a", "é", " ", "\n", "\n" * 15, "👩", "word ")
REPLIES = st.lists(st.sampled_from(MARKS + TEXTS), max_size=12)
PARTS = (
    '{"name": "f", "arguments": ',
    '{"a": ',
    '"x',
    '"',
    "\\",
    "1",
    "[",
    "]",
    "{",
    "}",
    "}}",
    ' "arguments": ',
    ",",
    " ",
)
CALLS = st.lists(st.sampled_from(MARKS + TEXTS[:4] + PARTS), max_size=16) | st.lists(
    st.sampled_from(PARTS + MARKS[:3] + ("</tool_call>",)), max_size=10
).map(lambda parts: ["<tool_call>", '{"name": "f", "arguments": {"a": ', *parts])


def read_in_full(text, tools, stops=()):
    said = RENDERER.parse([*text.encode(), END_TOKEN], [])
    content, calls = written_calls(said if tools else calls_as_text(said), ClientSchemas({}))
    return said.reasoning or "", content[: min([content.find(s) for s in stops if s in content], default=None)], calls


BYTES = [*"é€😀a\ufffd".encode(), 0xC3, 0xE2, 0xF0, 0x82, 0xFF]


@given(st.lists(st.sampled_from(BYTES) | st.text("é€😀a\ufffd", max_size=3).map(str.encode), max_size=20))
def test_bytes_that_are_no_character_are_told_as_they_come_and_characters_when_they_are_whole(parts):
    said = b"".join(bytes([part]) if isinstance(part, int) else part for part in parts)
    growing, told = GrowingText(lambda ids: bytes(ids).decode(errors="replace")), ""
    for place, byte in enumerate(said, start=1):
        told += growing.take(byte)
        until_now = said[:place].decode(errors="replace")
        assert said.decode(errors="replace").startswith(told)
        assert len(until_now) - len(told) <= 3, "no more is held back than may belong to one character"


@given(REPLIES.map("".join), st.lists(st.sampled_from(["STOP", "a", "ord w", "\n\n"]), max_size=2), st.booleans())
def test_what_was_said_is_the_beginning_of_the_whole_answer(text, stops, tools):
    reasoning, content, _ = read_in_full(text, tools, stops)
    tagged = TaggedReply(RENDERER.tagged_text, stops, most_calls=None if tools else 0)
    compared = ComparedReply(lambda ids: RENDERER.parse(ids, []), RENDERER.decode, stops, with_tools=tools)
    for token in [*text.encode(), END_TOKEN]:
        for settled in (tagged, compared):
            settled.hear(token)
            assert content.startswith(settled.content)
            assert reasoning.startswith(settled.reasoning)


@given(CALLS.map("".join))
def test_what_was_said_of_calls_is_the_beginning_of_them(text):
    reasoning, content, _ = read_in_full(text, tools=True)
    settled = TaggedReply(RENDERER.tagged_text, [])
    for token in [*text.encode(), END_TOKEN]:
        settled.hear(token)
        said = RENDERER.parse([*text.encode(), END_TOKEN], [])
        whole = written_calls(said, ClientSchemas({}), settled.calls)[1]
        assert go_on_from(settled.calls, whole)
        assert content.startswith(settled.content)
        assert reasoning.startswith(settled.reasoning)


def heard(text, **how):
    """What is known after each of its bytes."""
    settled = TaggedReply(RENDERER.tagged_text, how.pop("stops", []), **how)
    for token in text.encode():
        settled.hear(token)
        yield settled


def test_text_is_heard_with_its_last_token_where_it_cannot_become_a_mark():
    text = "The order has left. It costs 1 < 2 euros."
    for read, settled in enumerate(heard(text, most_calls=0), 1):
        assert settled.content == text[:read]
    for read, settled in enumerate(heard(text), 1):
        assert settled.content == text[:read].removesuffix("<").rstrip()


def test_a_call_is_heard_by_its_name_and_then_by_its_arguments_as_they_are_written():
    text = (
        'One moment.\n<tool_call>{"name": "get_order", "arguments": {"order_id": "4417", "why": [1, {}]}}</tool_call>'
    )
    begun, end = text.index("{", text.index('"arguments"')), text.index("}}<")
    for read, settled in enumerate(heard(text), 1):
        if read <= begun:
            assert not settled.calls
            continue
        (call,) = settled.calls
        assert call.name == "get_order"
        assert call.arguments == text[begun : min(read, end + 1)].rstrip()


def test_arguments_that_hold_a_mark_wait_until_it_is_clear_whose_it_is():
    text = '<tool_call>{"name": "f", "arguments": {"a": "x</tool_call>y"}}</tool_call>'
    assert [call.arguments for call in list(heard(text))[-1].calls] == ['{"a": "x']
    assert [call.arguments for call in read_in_full(text, tools=True)[2]] == ['{"a": "x</tool_call>y"}']


def test_a_second_call_is_heard_after_the_first_unless_only_one_may_be_made():
    block = '<tool_call>{{"name": "{}", "arguments": {{}}}}</tool_call>'
    text = block.format("f") + "\n" + block.format("g")
    assert [call.name for call in list(heard(text))[-1].calls] == ["f", "g"]
    assert [call.name for call in list(heard(text, most_calls=1))[-1].calls] == ["f"]


def test_what_may_become_a_stop_string_waits():
    assert before_marks("one two st", ["stop"]) == "one two "
    assert before_marks("one two stone", ["stop"]) == "one two stone"
    assert before_marks("one stop two s", ["stop"]) == "one "
    assert before_marks("ab", ["abc", "b"]) == ""


def first_said(stream):
    return next(chunk.choices[0].delta.content for chunk in stream if chunk.choices[0].delta.content)


class Pausing(FakePolicy):
    """Says some of its answer and goes on when it may."""

    def __init__(self, then=lambda: None):
        super().__init__(lambda prompt, seed: SAID)
        self.may_go_on, self.cancelled, self.then = threading.Event(), threading.Event(), then

    async def sample(self, prompt_ids, *, on_token=None, **options):
        for token in SAID.encode()[:25]:
            on_token(token)
        try:
            await anyio.to_thread.run_sync(self.may_go_on.wait, abandon_on_cancel=True)
        except anyio.get_cancelled_exc_class():
            self.cancelled.set()
            raise
        self.then()
        heard = 0

        def rest(token):
            nonlocal heard
            heard += 1
            if heard > 25:
                on_token(token)

        return await super().sample(prompt_ids, on_token=rest, **options)


@pytest.fixture
def asked():
    """Asks a policy and gives the stream."""
    with ExitStack() as stack:

        def ask(policy):
            server = stack.enter_context(running(policy))
            client = stack.enter_context(openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0))
            return client.chat.completions.create(model="desk", messages=USER, stream=True)

        yield ask


def test_the_beginning_is_heard_while_the_policy_has_not_finished(asked):
    policy = Pausing()
    stream = asked(policy)
    begun = first_said(stream)
    policy.may_go_on.set()
    assert begun
    assert len(begun) < 25
    assert begun + "".join(chunk.choices[0].delta.content or "" for chunk in stream) == SAID


@pytest.mark.parametrize(
    ("error", "said"),
    [(PolicyFailure("out of memory"), "out of memory"), (KeyError("x"), "KeyError; its log says more")],
)
def test_what_breaks_in_the_midst_ends_the_stream_with_an_error(asked, error, said):
    def fail():
        raise error

    policy = Pausing(then=fail)
    stream = asked(policy)
    first_said(stream)
    policy.may_go_on.set()
    with pytest.raises(openai.APIError, match=said):
        list(stream)


def test_content_that_may_be_a_call_without_marks_waits():
    for with_tools in (True, False):
        settled = ComparedReply(lambda ids: RENDERER.parse(ids, []), RENDERER.decode, ["STOP"], with_tools=with_tools)
        for token in b'{"name": "get_order", "parameters": {}} STOP and more':
            settled.hear(token)
        assert (settled.content, settled.stopped) == ("", not with_tools), "a stop string in a call ends nothing"


def test_a_client_that_leaves_in_the_midst_cancels_its_request(asked):
    policy = Pausing()
    stream = asked(policy)
    first_said(stream)
    stream.close()
    assert policy.cancelled.wait(20)
