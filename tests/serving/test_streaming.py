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
from sdk.serving.generation import SettledReply, before_stops

USER = [{"role": "user", "content": "Where is order 4417?"}]
SAID = "The order has left, é, and comes tomorrow."

MARKS = ("<tool_call>", '{"name": "f", "arguments": {}}', "</tool_call>", "<think>", "</think>", "<tool_", "<", "STOP")
TEXTS = ("a", "é", " ", "\n", "\n" * 15, "👩", "word ")
REPLIES = st.lists(st.sampled_from(MARKS + TEXTS), max_size=12)


@given(REPLIES.map("".join), st.lists(st.sampled_from(["STOP", "a", "ord w", "\n\n"]), max_size=2))
def test_what_was_said_is_the_beginning_of_the_whole_answer(text, stops):
    ids = [*text.encode(), END_TOKEN]
    whole = RENDERER.parse(ids, [])
    content = whole.content[: min([whole.content.find(s) for s in stops if s in whole.content], default=None)]
    settled = SettledReply(lambda ids: RENDERER.parse(ids, []), stops)
    for token in ids:
        settled.hear(token)
        assert content.startswith(settled.content)
        assert (whole.reasoning or "").startswith(settled.reasoning)


def test_what_may_become_a_stop_string_waits():
    assert before_stops("one two st", ["stop"]) == "one two "
    assert before_stops("one two stone", ["stop"]) == "one two stone"
    assert before_stops("one stop two s", ["stop"]) == "one "
    assert before_stops("ab", ["abc", "b"]) == ""


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


def test_content_that_may_be_a_call_without_marks_waits_where_there_are_tools():
    settled = SettledReply(lambda ids: RENDERER.parse(ids, []), [], with_tools=True)
    for token in b'{"name": "get_order", "parameters": {}} and more':
        settled.hear(token)
    assert settled.content == ""


def test_a_client_that_leaves_in_the_midst_cancels_its_request(asked):
    policy = Pausing()
    stream = asked(policy)
    first_said(stream)
    stream.close()
    assert policy.cancelled.wait(20)
