"""A stream of any model family says early what its complete answer says, however the text is cut into tokens."""

from __future__ import annotations

import copy
import re
from importlib import resources
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from renderers import config_from_name, create_renderer
from renderers.base import MODEL_RENDERER_MAP

from mcp_bridge.records import Tool
from sdk.errors import ModelError
from sdk.policies.models.loading import load_tokenizer
from sdk.policies.rendering import ChatRenderer, make_renderer
from sdk.records import Message, ToolCall
from sdk.serving.chat_request import ChatRequest
from sdk.serving.settled_replies import settled_reply
from sdk.serving.tool_calls import ClientSchemas, calls_as_text, written_calls

TEMPLATES = ["qwen3", "qwen2_5", "llama3_1", "phi3"]
"""Read by the model's own template, as TRL has it."""
HAND_WRITTEN = sorted({*MODEL_RENDERER_MAP.values()} - {"gpt-oss"})
"""Read by the library's renderers; that of gpt-oss fetches its tokens from the network."""
SAFE = [*sorted({*HAND_WRITTEN} - {"gemma4"}), *(f"template of {name}" for name in TEMPLATES)]
"""The library's reader of gemma4 leaves the name of the channel in reasoning that text after a call follows."""
MARKS = ["<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
"""Control tokens of the templates."""
TOOL = Tool(
    name="get_order",
    description="Read an order.",
    input_schema={"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]},
)
CALL = ToolCall(id="functions.get_order:0", name="get_order", arguments={"order_id": "4417"})
REQUEST = ChatRequest(model="any", messages=[{"role": "user", "content": "Where is order 4417?"}])
ASK = Message(role="user", content="Where is order 4417?")


texts = st.lists(
    st.sampled_from(
        ["An order", " left", "<", "é", "👩", "\n", "\n\n", " ", "[1]", "{", "}", " < 2", "|", "STOP", "word."]
    ),
    max_size=8,
).map("".join)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """One that has the marks of all families; its words are the embedded model's."""
    made = copy.deepcopy(load_tokenizer().tokenizer)
    made.unk_token = None
    made.add_tokens(MARKS, special_tokens=True)
    for family in HAND_WRITTEN:
        while missing := missing_mark(made, family):
            made.add_tokens([missing], special_tokens=True)
    return made


@pytest.fixture(scope="module")
def renderers(tokenizer: Any) -> dict[str, ChatRenderer]:
    """Of all families."""
    made = {family: make_renderer(tokenizer, family=family) for family in HAND_WRITTEN}
    for name in TEMPLATES:
        templated = copy.copy(tokenizer)
        templated.chat_template = resources.files("trl").joinpath(f"chat_templates/{name}.jinja").read_text()
        made[f"template of {name}"] = make_renderer(templated)
    return made


def missing_mark(tokenizer: Any, family: str) -> str | None:
    """A token that the family's renderer needs and does not find."""
    try:
        create_renderer(tokenizer, config_from_name(family))
    except (ValueError, AssertionError) as error:
        known = tokenizer.get_vocab()
        return next(name for name in re.findall("'([^']+)'", str(error)) if name not in known)
    return None


def spelt(tokenizer: Any, ids: list[int], cuts: list[bool]) -> list[int]:
    """The same text, where some of its words are cut into the tokens of their bytes; marks stay whole."""
    marks, out = tokenizer.added_tokens_decoder, []
    for place, token in enumerate(ids):
        whole = token in marks or not cuts[place % len(cuts)]
        out += [token] if whole else tokenizer.convert_tokens_to_ids(list(tokenizer.convert_ids_to_tokens(token)))
    return out


@pytest.mark.parametrize("family", SAFE)
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    said=texts,
    thought=st.none() | texts,
    called=st.booleans(),
    with_tools=st.booleans(),
    cuts=st.lists(st.booleans(), min_size=1, max_size=5),
    cut_off=st.floats(0, 1),
)
def test_what_a_stream_says_is_not_taken_back(
    tokenizer: Any,
    renderers: dict[str, ChatRenderer],
    family: str,
    said: str,
    thought: str | None,
    called: bool,
    with_tools: bool,
    cuts: list[bool],
    cut_off: float,
) -> None:
    renderer, tools = renderers[family], [TOOL] if with_tools else []
    try:
        prompt = renderer.start([ASK], tools)
        reply = Message(role="assistant", content=said, reasoning=thought, tool_calls=[CALL] if called else [])
        ids = spelt(tokenizer, renderer.encode_reply(reply, [TOOL]), cuts)
    except ModelError:
        return  # of this family no such prompt or no such reply is known
    ids = ids[: round(len(ids) * (1 - cut_off / 2))]
    parsed = renderer.parse(ids, tools, prompt_ids=prompt)
    content, _ = written_calls(parsed if tools else calls_as_text(parsed), ClientSchemas({}))
    settled = settled_reply(renderer, prompt, REQUEST, tools)
    for token in ids:
        settled.hear(token)
        assert content.startswith(settled.content)
        assert (parsed.reasoning or "").startswith(settled.reasoning)


@pytest.mark.parametrize("family", HAND_WRITTEN)
def test_a_hand_written_family_says_its_text_with_each_token(
    tokenizer: Any, renderers: dict[str, ChatRenderer], family: str
) -> None:
    renderer = renderers[family]
    prompt = renderer.start([ASK], [TOOL])
    text = "The order has left the house this morning, and comes on Monday if the roads are clear and nobody is ill."
    try:
        ids = renderer.encode_reply(Message(role="assistant", content=text, reasoning=""), [TOOL])
    except ModelError:  # of this family no whole reply is known
        ids = tokenizer.encode(text, add_special_tokens=False)
    settled, heard = settled_reply(renderer, prompt, REQUEST, [TOOL]), []
    for token in ids:
        settled.hear(token)
        heard.append(settled.reasoning + settled.content)  # some take it for reasoning, without a mark
    late = heard.index(next(one for one in heard if "roads are clear" in one))
    assert " clear" in tokenizer.decode(ids[late])
