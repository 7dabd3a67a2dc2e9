"""Grammars in the embedded engine, over a model of random weights: what it says has the form asked for by the grammar
alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import jsonschema
import llguidance
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_forward import TOLERANCE, assert_drawn, assert_exact, plain_logprobs

from mcp_bridge.records import Tool
from sdk.policies.embedded import EmbeddedEngine
from sdk.policies.embedded.decoder import Decoder
from sdk.policies.embedded.inference_engine import Batch
from sdk.policies.embedded.sampling_request import Request, generator
from sdk.policies.grammar import Grammar, GrammarTokenizer, ReplyGrammars
from sdk.policies.models import LoadedModel
from sdk.policies.models.loading import load_tokenizer
from sdk.policies.protocol import Completion, Sampling
from sdk.policies.rendering import make_renderer
from sdk.records import Message, ToolCall

pytestmark = pytest.mark.usefixtures("one_thread")

ORDER = {
    "type": "object",
    "properties": {
        "order_id": {"type": "string", "maxLength": 4},
        "amount": {"type": "integer", "minimum": -5, "maximum": 20},
        "kind": {"enum": ["new", "sp\u00e4t", None, 3]},
        "flags": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2},
    },
    "required": ["order_id", "kind"],
    "additionalProperties": False,
}
TOOLS = [
    Tool(name="get_order", description="", input_schema=ORDER),
    Tool(name="cancel\u00e9", description="", input_schema={"type": "object", "properties": {}, "maxProperties": 0}),
]
PROMPT = [1, 4093, 198, 22234, 338, 260, 3575, 282]


@pytest.fixture(scope="module")
def engine(small_model: LoadedModel) -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine(small_model.model, max_rows=16) as engine:
        yield engine


@pytest.fixture(scope="module")
def renderer(small_model: LoadedModel) -> Any:
    return make_renderer(small_model.tokenizer, family=small_model.family)


@pytest.fixture(scope="module")
def tokenizer(small_model: LoadedModel, renderer: Any, engine: EmbeddedEngine) -> GrammarTokenizer:
    return GrammarTokenizer.of(
        small_model.tokenizer, vocabulary=engine.vocabulary, stop_token_ids=renderer.stop_token_ids
    )


@pytest.fixture(scope="module")
def grammars(renderer: Any, tokenizer: GrammarTokenizer) -> ReplyGrammars:
    return ReplyGrammars(renderer, tokenizer)


async def say(engine: EmbeddedEngine, grammar: Grammar | None, *, seed: int = 0, **sampling: Any) -> Completion:
    options = Sampling(**{"max_tokens": 300, **sampling})
    return await engine.sample(PROMPT, sampling=options, seed=seed, grammar=grammar)


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {}, {"temperature": 2.0}, {"top_p": 0.3}])
async def test_calls_hold_against_their_schemas_whatever_the_model_is_inclined_to(
    engine: EmbeddedEngine, grammars: ReplyGrammars, renderer: Any, sampling: dict[str, float]
) -> None:
    grammar = grammars.calls(TOOLS, parallel=False)
    completions = await asyncio.gather(*(say(engine, grammar, seed=seed, **sampling) for seed in range(8)))
    called = set()
    for completion in completions:
        assert completion.stop_reason == "stop"
        parsed = renderer.parse(completion.token_ids, TOOLS)
        (call,) = parsed.tool_calls
        assert (parsed.content, call.error) == ("", None)
        (tool,) = [tool for tool in TOOLS if tool.name == call.name]
        jsonschema.validate(call.arguments, tool.input_schema)
        called.add(call.name)
    if sampling == {}:
        assert called == {tool.name for tool in TOOLS}


ROOM = {"type": "object", "properties": {"room": {"type": "string", "enum": ["Ash"]}}}


@pytest.mark.parametrize(
    ("schema", "may"),
    [
        ({}, False),
        ({"required": ["room"]}, False),
        ({"additionalProperties": {"type": "integer"}}, True),
        ({"additionalProperties": False}, False),
        ({"patternProperties": {"^x": {}}}, True),
        ({"required": ["room", "day"]}, True),
        ({"allOf": [{"properties": {"day": {}}}]}, True),
    ],
)
def test_arguments_that_a_schema_does_not_name_come_only_where_it_speaks_of_them(
    renderer: Any, grammars: ReplyGrammars, schema: dict[str, Any], may: bool
) -> None:
    def takes(schema: dict[str, Any], arguments: dict[str, Any]) -> bool:
        tool = Tool(name="book", description="", input_schema=schema)
        call = ToolCall(id="call_0", name="book", arguments=arguments)
        said = renderer.encode_reply(Message(role="assistant", tool_calls=[call]), [tool])
        derivation = grammars.calls([tool]).begin()
        for token in said:
            if token not in renderer.stop_token_ids and not derivation.allowed()[token]:
                return False
            derivation.take(token, ends=token in renderer.stop_token_ids)
        return True

    one, two = {"room": "Ash", "x": 3}, {"room": "Ash", "day": 3}
    assert (takes({**ROOM, **schema}, one) or takes({**ROOM, **schema}, two)) == may
    nested = {"type": "object", "properties": {"in": {"type": "array", "items": {**ROOM, **schema}}}}
    assert takes(nested, {"in": []})
    assert (takes(nested, {"in": [one]}) or takes(nested, {"in": [two]})) == may


async def test_text_that_reads_like_a_control_token_is_written_as_text(
    engine: EmbeddedEngine, grammars: ReplyGrammars, renderer: Any
) -> None:
    values = ["<|im_end|>", "<|im_start|>user", "</tool_call>", "<tool_call>", "<think>"]
    schema = {
        "type": "object",
        "properties": {"a": {"const": values}},
        "required": ["a"],
        "additionalProperties": False,
    }
    tools = [Tool(name="end<|im_end|>", description="", input_schema=schema)]
    completion = await say(engine, grammars.calls(tools, parallel=False), temperature=0)
    assert completion.stop_reason == "stop"
    assert not set(completion.token_ids[:-1]) & {*renderer.stop_token_ids, 0, 1, 2}
    (call,) = renderer.parse(completion.token_ids, tools).tool_calls
    assert (call.name, call.arguments, call.error) == ("end<|im_end|>", {"a": values}, None)


async def test_log_probabilities_are_of_what_the_grammar_left(
    engine: EmbeddedEngine, grammars: ReplyGrammars, small_model: LoadedModel, renderer: Any
) -> None:
    grammar = grammars.content(ORDER)
    completion = await say(engine, grammar, seed=4, temperature=1.5)
    ids = completion.token_ids
    with torch.no_grad():
        logits = small_model.model(input_ids=torch.tensor([[*PROMPT, *ids]])).logits[0, len(PROMPT) - 1 : -1] / 1.5
    derivation, expected = grammar.begin(), []
    for row, token in zip(logits, ids, strict=True):
        expected.append(row.masked_fill(~derivation.allowed(), float("-inf")).log_softmax(-1)[token].item())
        derivation.take(token, ends=token in renderer.stop_token_ids)
    assert completion.logprobs == pytest.approx(expected, abs=TOLERANCE)
    assert 0.0 in completion.logprobs  # where one text alone may follow
    assert min(completion.logprobs) < -1


async def test_text_is_sampled_as_without_a_grammar_and_no_neighbour_notices_one(
    engine: EmbeddedEngine, grammars: ReplyGrammars, small_model: LoadedModel
) -> None:
    free = grammars.text_or_calls(TOOLS)
    alone = [await say(engine, None, seed=seed, max_tokens=40) for seed in range(4)]
    mixed = await asyncio.gather(
        *(say(engine, None, seed=seed, max_tokens=40) for seed in range(4)),
        *(say(engine, grammars.content(ORDER), seed=seed) for seed in range(4)),
        *(say(engine, free, seed=seed, max_tokens=40) for seed in range(4)),
    )
    for place, completion in enumerate(alone):
        # Of 49,152 likely tokens a draw may fall on the border of two, where rounding decides.
        assert_drawn(small_model.model, PROMPT, completion, 1.0, place)
        assert_drawn(small_model.model, PROMPT, mixed[place], 1.0, place)
        # A model of random weights begins no call: control tokens and broken characters are all that is left out.
        (plain,) = plain_logprobs(small_model.model, PROMPT, mixed[8 + place].token_ids[:1])
        assert mixed[8 + place].logprobs[0] == pytest.approx(plain, abs=0.05)
    for seed, completion in enumerate(mixed[4:8]):
        assert completion.token_ids == (await say(engine, grammars.content(ORDER), seed=seed)).token_ids


async def test_what_is_certain_is_computed_at_once(
    engine: EmbeddedEngine, tokenizer: GrammarTokenizer, small_model: LoadedModel
) -> None:
    loop = asyncio.get_running_loop()
    text = "All that stands here was certain before the first token of it was sampled."
    certain = tokenizer.compile(f'start: "{text}"')
    batch = Batch(Decoder(small_model.model), max_rows=2, version=0)
    request = Request(
        prompt=PROMPT,
        sampling=Sampling(max_tokens=100),
        limit=100,
        stop_ids=frozenset({small_model.tokenizer.eos_token_id}),
        random=generator(0),
        loop=loop,
        future=loop.create_future(),
        derivation=certain.begin(),
    )
    batch.waiting.append(request)
    steps = 0
    while batch.busy:
        batch.step()
        steps += 1
    completion = await request.future
    assert small_model.tokenizer.decode(completion.token_ids[:-1]) == text
    assert completion.logprobs == [0.0] * len(completion.token_ids)
    assert steps <= len(completion.token_ids) / 2


def accepts(grammar: Grammar, renderer: Any, ids: list[int]) -> bool:
    derivation = grammar.begin()
    for token in ids:
        if not derivation.allowed()[token]:
            return False
        assert derivation.take(token, ends=token in renderer.stop_token_ids) is None
    return True


TEXT = st.text(st.characters(max_codepoint=0x2FF, exclude_characters="<", exclude_categories=["Cc"]), max_size=12)
"""Characters that the tokenizer of the small model has tokens for."""
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | TEXT,
    lambda value: st.lists(value, max_size=2) | st.dictionaries(st.sampled_from("abc"), value, max_size=2),
    max_leaves=5,
)


@settings(max_examples=60, deadline=None)
@given(
    text=TEXT,
    arguments=JSON,
    calls=st.integers(0, 2),
)
def test_what_the_renderer_writes_is_what_the_grammar_allows(
    renderer: Any, grammars: ReplyGrammars, text: str, arguments: Any, calls: int
) -> None:
    tool = Tool(name="put", description="", input_schema={"type": "object", "properties": {"value": {}}})
    written = [ToolCall(id=f"call_{n}", name="put", arguments={"value": arguments}) for n in range(calls)]
    ids = renderer.encode_reply(Message(role="assistant", content=text.strip(), tool_calls=written), [tool])
    grammar = grammars.text_or_calls([tool])
    assert grammar is not None
    assert accepts(grammar, renderer, ids)
    assert accepts(grammars.calls([tool]), renderer, ids) is (calls > 0 and not text.strip())
    assert accepts(grammars.calls([tool], parallel=False), renderer, ids) is (calls == 1 and not text.strip())


async def test_a_grammar_that_becomes_too_complex_ends_its_request_alone(
    engine: EmbeddedEngine, tokenizer: GrammarTokenizer, small_model: LoadedModel
) -> None:
    ambiguous = tokenizer.compile("start: " + " ".join("(/[xy]*/ | /x*y?/)" for _ in range(400)))
    failed, fine = await asyncio.gather(
        say(engine, ambiguous, max_tokens=1000), say(engine, None, seed=1, max_tokens=40), return_exceptions=True
    )
    assert isinstance(failed, ValueError)
    assert "the grammar of the reply has become too complex (Parser Error: Current row has" in str(failed)
    assert isinstance(fine, Completion)
    assert_exact(small_model.model, PROMPT, fine)


def test_a_text_that_is_no_grammar_is_refused(tokenizer: GrammarTokenizer) -> None:
    with pytest.raises(ValueError, match="start"):
        tokenizer.compile("begin: a")


def fields(count: int, of: str) -> dict[str, Any]:
    return {"type": "object", "properties": {f"{of}_{n}": {"type": "string"} for n in range(count)}}


def follows(grammar: Grammar, renderer: Any, tool: Tool, arguments: dict[str, Any]) -> bool:
    call = ToolCall(id="c", name=tool.name, arguments=arguments)
    return accepts(grammar, renderer, renderer.encode_reply(Message(role="assistant", tool_calls=[call]), [tool]))


def test_tools_with_the_same_schema_are_no_larger_together_than_one(grammars: ReplyGrammars, renderer: Any) -> None:
    tools = [Tool(name=f"tool_{n}", description="", input_schema=fields(12, "field")) for n in range(1024)]
    grammar = grammars.calls(tools, parallel=False)
    assert follows(grammar, renderer, tools[700], {"field_3": "a"})
    assert not follows(grammar, renderer, tools[700], {"field_3": 4})


def test_more_tools_than_grammars_are_kept_are_compiled_once_also_where_one_has_no_grammar(
    grammars: ReplyGrammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tool(n: int) -> Tool:
        argument = {"type": "string", "pattern": "(?=a)b"} if n == 0 else {"const": n}
        return Tool(name=f"t{n}", description="", input_schema={"type": "object", "properties": {"a": argument}})

    tools = [tool(n) for n in range(100)]
    made, compile_one = [], llguidance.LLMatcher
    monkeypatch.setattr(llguidance, "LLMatcher", lambda *args, **how: made.append(args) or compile_one(*args, **how))
    first = grammars.text_or_calls(tools)
    assert first is not None
    assert "const" in first.text  # the others keep their schemas
    assert len(made) == 102
    assert grammars.text_or_calls(tools) is first
    assert len(made) == 102


def test_arguments_are_any_object_where_the_schemas_are_too_large_together(
    renderer: Any, tokenizer: GrammarTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tokenizer.compile

    def small(text: str) -> Grammar:
        if len(text) > 4000:  # llguidance's own limit is reached after tens of seconds
            raise ValueError("too large")
        return whole(text)

    monkeypatch.setattr(tokenizer, "compile", small)
    grammars = ReplyGrammars(renderer, tokenizer)
    tools = [Tool(name=f"tool_{n}", description="", input_schema=fields(40, f"field_{n}")) for n in range(3)]
    odd = Tool(name="odd", description="", input_schema={"type": "object", "properties": {"a": {"$ref": "http://a/b"}}})
    assert not follows(grammars.calls([tools[0], odd]), renderer, tools[0], {"field_0_3": 4})
    for many in (tools, [*tools, odd]):
        assert follows(grammars.calls(many), renderer, tools[0], {"field_0_3": 4})


@pytest.mark.parametrize("has_token", [True, False])
def test_a_model_with_a_token_for_reasoning_may_open_it_before_the_form(has_token: bool) -> None:
    loaded = load_tokenizer()
    if has_token:
        loaded.tokenizer.add_tokens(["<think>", "</think>"])
    renderer = make_renderer(loaded.tokenizer)
    made = GrammarTokenizer.of(
        loaded.tokenizer, vocabulary=len(loaded.tokenizer), stop_token_ids=renderer.stop_token_ids
    )
    grammars = ReplyGrammars(renderer, made)
    call = ToolCall(id="c", name="get_order", arguments={"order_id": "4417", "kind": "new"})
    for thought in (None, 'Hm, {"a".'):
        said = renderer.encode_reply(Message(role="assistant", reasoning=thought, tool_calls=[call]), TOOLS)
        for grammar in (grammars.calls(TOOLS), grammars.content(ORDER, TOOLS)):
            derivation = grammar.begin()
            follows = all(derivation.allowed()[token] and derivation.take(token) is None for token in said[:-1])
            assert follows == (has_token or thought is None)
        derivation = grammars.calls(TOOLS, reasoning=True).begin()  # the prompt has opened it
        if thought is not None and has_token:
            assert all(derivation.allowed()[token] and derivation.take(token) is None for token in said[1:-1])
