"""What is filled into a conversation rendered before is what transformers renders, whatever the template does."""

from __future__ import annotations

import copy
import itertools
from importlib import resources
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcp_bridge.records import Tool
from sdk.policies.rendering import make_renderer
from sdk.policies.rendering.plain_text import PlainTextCodec
from sdk.policies.rendering.template_text import Shell, TemplateText
from sdk.records import Message, ToolCall

FAMILIES = ["qwen3", "qwen2_5", "llama3_1", "phi3"]
MARKS = [
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<|end|>"),
    *("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|user|>", "<|assistant|>", "<|system|>"),
]
TOOLS = [
    Tool(name=name, description="Look.", input_schema={"type": "object", "properties": {"id": {"type": "string"}}})
    for name in ("find", "refund")
]
# No control tokens: those are kept apart from the template's own, which transformers does not do.
texts = st.sampled_from(
    ["", " ", " padded\n", "a\n\nb", '{"a": "\\"b"}', "שלום 🦊", "{{ x }}", "/no_think", "x</s", "[]"]
) | st.text(st.characters(max_codepoint=0x2FF, min_codepoint=0x20, exclude_characters="<|>"), max_size=20)
systems = st.none() | texts
parts = st.lists(texts, min_size=1, max_size=3)


@pytest.fixture(scope="module")
def spoken(smollm2_tokenizer: Any) -> dict[str, tuple[Any, Any]]:
    """By family: a tokenizer with its template and control tokens (its words are another model's), and a renderer."""
    made = {"smollm2": (smollm2_tokenizer, make_renderer(smollm2_tokenizer))}
    marked = copy.deepcopy(smollm2_tokenizer)
    marked.add_tokens(MARKS[:6])
    marked.add_special_tokens({"additional_special_tokens": MARKS[6:]})
    for name in FAMILIES:
        tokenizer = copy.copy(marked)
        tokenizer.chat_template = resources.files("trl").joinpath(f"chat_templates/{name}.jinja").read_text()
        made[name] = (tokenizer, make_renderer(tokenizer))
    library = copy.copy(made["qwen3"][0])
    library.unk_token = None
    made["library qwen3"] = (library, make_renderer(library, family="qwen3"))
    return made


def rendered(tokenizer: Any, messages: list[Message], tools: list[Tool], *, prompt: bool = True) -> str:
    plain = [message.as_openai() for message in messages]
    shown = [tool.as_openai() for tool in tools] or None
    text = tokenizer.apply_chat_template(plain, tools=shown, add_generation_prompt=prompt, tokenize=False)
    return str(text)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    system=systems, said=texts, with_tools=st.booleans(), heard=parts, family=st.sampled_from([*FAMILIES, "smollm2"])
)
def test_prompts_and_later_messages_have_the_ids_of_a_full_rendering(
    spoken: Any, system: str | None, said: str, with_tools: bool, heard: list[str], family: str
) -> None:
    tokenizer, renderer = spoken[family]
    tools = TOOLS if with_tools and renderer._tools_problem is None else []
    opening = [] if system is None else [Message(role="system", content=system)]
    opening.append(Message(role="user", content=said))
    prompt = renderer.start(opening, tools)
    assert prompt == tokenizer.encode(rendered(tokenizer, opening, tools), add_special_tokens=False)
    heard_next = [Message(role="user", content=heard[0])]
    if tools:  # tool messages as a template with tools renders them
        heard_next = [
            Message(role="tool", content=text, tool_call_id=f"call_{n}", name="find") for n, text in enumerate(heard)
        ]
    end = renderer.stop_token_ids[0]
    added = renderer.extend([1], [7, end], heard_next, tools)
    assert (added is not None) or family == "qwen3"
    if added is not None:
        ask, turn = Message(role="user", content="Ask"), Message(role="assistant", content="Said")
        made = [ToolCall(id=m.tool_call_id or "", name="find") for m in heard_next if m.role == "tool"]
        whole = rendered(tokenizer, [ask, turn.model_copy(update={"tool_calls": made}), *heard_next], tools)
        mark = tokenizer.convert_ids_to_tokens(end)
        behind = whole[whole.index(mark, whole.index("Said")) + len(mark) :]
        assert added[3:] == tokenizer.encode(behind, add_special_tokens=False)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(system=systems, said=texts, heard=parts)
def test_a_hand_written_family_agrees_with_its_template_turn_after_turn(
    spoken: Any, system: str | None, said: str, heard: list[str]
) -> None:
    tokenizer, renderer = spoken["library qwen3"]
    opening = [] if system is None else [Message(role="system", content=system)]
    opening.append(Message(role="user", content=said))
    prompt = renderer.start(opening, TOOLS)
    assert prompt == tokenizer.encode(rendered(tokenizer, opening, TOOLS), add_special_tokens=False)
    results = [Message(role="tool", content=text, tool_call_id=f"c{n}", name="find") for n, text in enumerate(heard)]
    reply = tokenizer.encode("Said<|im_end|>", add_special_tokens=False)
    extended = renderer.extend(prompt, reply, results, TOOLS)
    ask, turn = Message(role="user", content="Ask"), Message(role="assistant", content="Said")
    whole = rendered(tokenizer, [ask, turn, *results], TOOLS)
    behind = whole[whole.index("<|im_end|>", whole.index("Said")) + len("<|im_end|>") :]
    assert extended == [*prompt, *reply, *tokenizer.encode(behind, add_special_tokens=False)]


LOOKS = [
    "{{ c | upper }}",
    "{{ c[:2] }}",
    "{{ c.split(',')[0] }}",
    "{{ c | length }}",
    "{{ c.replace('h', 'j') }}",
    "{{ 'hat' | replace('h', c) | length }}",
    "{{ 'hat'.replace('h', c) | length }}",
    "{{ 'yes' if c in 'hide' else 'no' }}",
    "{{ 'yes' if c not in ['hi', 'b'] else 'no' }}",
    "{{ 'yes' if 'i' in c else 'no' }}",
    "{{ 'yes' if (c ~ 'x') == 'hix' else 'no' }}",
    "{{ 'yes' if ('x' + c) == 'xhi' else 'no' }}",
    "{{ 'yes' if '%s' % c == 'hi' else 'no' }}",
    "{{ 'yes' if '{}'.format(c) == 'hi' else 'no' }}",
    "{% set x %}{{ c }}{% endset %}{{ 'yes' if x == 'hi' else 'no' }}",
    "{% set x %}{{ c }}!{% endset %}{{ 'yes' if x == 'hi!' else 'no' }}",
    "{% macro f(x) %}{{ x }}{% endmacro %}{{ 'yes' if f(c) == 'hi' else 'no' }}",
    "{% macro f(x) %}<{{ x }}{% endmacro %}{{ f(c) | trim }}",
    "{% for x in c %}{{ x }}-{% endfor %}",
    "{{ m | tojson }}",
    "{{ c | tojson }}",
    "{{ c | tojson(indent=2) }}",
    "{{ m }}",
    "{{ 'yes' if c is upper else 'no' }}",
    "{{ 'yes' if c > 'c' else 'no' }}",
    "{{ {'hi': 1}.get(c, 2) }}",
    "{{ {'hi': 1}[c] }}",
    "{{ [c, c] | join('-') | length }}",
    "{{ [c] | map('upper') | first }}",
    "{{ c * 2 }}",
    "{{ 'yes' if c else 'no' }}",
    "{{ 'yes' if c.strip() else 'no' }}",
    "{{ 'yes' if c | trim == 'hi' else 'no' }}",
    "{{ c.strip('h') }}",
    "{{ 'yes' if c.startswith('h') and not c.endswith('i') else 'no' }}",
    "{{ 'yes' if c.startswith('i', 1) else 'no' }}",
    "{{ 'yes' if c == 'hi' else 'no' }}",
    "{{ 'yes' if 'hi' != c else 'no' }}",
    "{{ 'yes' if c is string and c is iterable and c is not mapping and c is not none else 'no' }}",
    "{% set n = namespace(x=c) %}{{ n.x or 'nothing' }}",
    "{{ c | default('none', true) }}",
    "{{ c | safe | upper }}",
    "{{ messages | map(attribute='content') | join }}",
    "{{ messages | selectattr('content', 'equalto', 'hi') | list | length }}",
    "{% generation %}{{ c }}{% endgeneration %}",
]


KEPT_FORMS = "{{ c | trim }}", "{{ c if c else 'nothing' }}", "{{ 'yes' if c.startswith('h') else c | tojson }}"


@pytest.fixture(scope="module")
def codec(smollm2_tokenizer: Any) -> PlainTextCodec:
    return PlainTextCodec(smollm2_tokenizer)


def with_look(look: str) -> str:
    return "{% for m in messages %}{% set c = m.content %}" + look + "\n{% endfor %}{{ messages[-1].content }}"


@pytest.mark.parametrize("look", LOOKS)
def test_a_template_that_looks_at_a_text_is_followed(with_template: Any, codec: PlainTextCodec, look: str) -> None:
    tokenizer = with_template(with_look(look))
    forms = TemplateText(tokenizer, codec, "this model", {})
    for first, second in itertools.product(["hi", "b", "", " hi ", "hit", "i", "HI"], repeat=2):
        messages = [Message(role="user", content=text) for text in (first, second)]
        assert forms.behind(Shell(), messages, []) == rendered(tokenizer, messages, []), (first, second)


@pytest.mark.parametrize("look", KEPT_FORMS)
def test_what_only_places_texts_or_asks_for_a_marker_is_run_once_for_each_answer(
    with_template: Any, codec: PlainTextCodec, look: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = with_template(with_look(look))
    forms = TemplateText(tokenizer, codec, "this model", {})
    for text in ("hi", "", "b", " hit"):
        forms.behind(Shell(), [Message(role="user", content=text)], [])
    expected = [rendered(tokenizer, [Message(role="user", content=f"{n} new")], []) for n in range(9)]
    monkeypatch.setattr(type(tokenizer), "apply_chat_template", None)
    found = [forms.behind(Shell(), [Message(role="user", content=f"{n} new")], []) for n in range(9)]
    assert found == expected
    assert not forms.skipped


@pytest.mark.parametrize(
    ("look", "why"), [("{{ c | upper }}", "upper"), ("{{ strftime_now('%H%M%S%f') }}", "the clock")]
)
def test_what_cannot_be_foreseen_is_rendered_each_time_and_told(
    with_template: Any, codec: PlainTextCodec, look: str, why: str
) -> None:
    forms = TemplateText(with_template(with_look(look)), codec, "this model", {})
    shown = [forms.behind(Shell(), [Message(role="user", content="hi")], []) for _ in range(3)]
    assert why in forms.skipped["user"]
    assert len(set(shown)) == (3 if why == "the clock" else 1)
