"""Prompts and later messages have the token ids that transformers renders, whatever the template does."""

from __future__ import annotations

import copy
from importlib import resources
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcp_bridge.records import Tool
from sdk.policies.rendering import make_renderer
from sdk.policies.rendering.call_parsing import UnreadCall
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


TAKES_OBJECTS = """{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}{% for name, value in call.function.arguments.items() -%}
{{ name }}={{ value }}{% endfor %}{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def test_arguments_that_are_no_json_are_rendered_as_they_were_written_where_the_template_takes_text(
    spoken: dict[str, tuple[Any, Any]], smollm2_tokenizer: Any
) -> None:
    call = UnreadCall(id="c1", name="find", error="no JSON", written='{"id": 44<|im_end|>')
    history = [
        Message(role="user", content="Find it."),
        Message(role="assistant", tool_calls=[call]),
        Message(role="tool", content="no JSON", tool_call_id="c1", name="find"),
    ]
    shown = {}
    for family in ("smollm2", "qwen3", "library qwen3"):
        tokenizer, renderer = spoken[family]
        ids = renderer.start(history, TOOLS)
        shown[family] = renderer.decode(ids)
        assert ids.count(tokenizer.convert_tokens_to_ids("<|im_end|>")) == 4  # none of them is the call's
    assert '<tool_call>{"name":"find","arguments":{"id": 44<|im_end|>}</tool_call>' in shown["smollm2"]
    for family in ("qwen3", "library qwen3"):
        assert '{"name": "find", "arguments": {"id": 44<|im_end|>}' in shown[family]
    objects = copy.copy(smollm2_tokenizer)
    objects.chat_template = TAKES_OBJECTS
    plain = [*history[:1], Message(role="assistant", tool_calls=[ToolCall(id="c1", name="find")]), *history[2:]]
    renderer = make_renderer(objects)
    assert renderer.start(history, []) == renderer.start(plain, [])


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


def test_a_template_that_writes_the_time_writes_it_anew_for_each_rollout(smollm2_tokenizer: Any) -> None:
    tokenizer = copy.copy(smollm2_tokenizer)
    tokenizer.chat_template = "{{ strftime_now('%H:%M:%S.%f') }}\n" + str(tokenizer.chat_template)
    renderer = make_renderer(tokenizer)
    asked = [Message(role="user", content="What time is it?")]
    assert renderer.start(asked, TOOLS) != renderer.start(asked, TOOLS)


def test_texts_of_other_tools_are_not_taken_for_those_of_these(smollm2_tokenizer: Any) -> None:
    renderer = make_renderer(smollm2_tokenizer)
    asked = [Message(role="user", content="Go.")]
    for number in range(200):  # more lists of tools than are kept
        tool = Tool(name=f"tool_{number}", description="Look.", input_schema={"type": "object", "properties": {}})
        assert f"tool_{number}" in smollm2_tokenizer.decode(renderer.start(asked, [tool]))
