"""The endpoint as OpenAI's own client sees it, over a real socket."""

import json
import socket
import threading
from contextlib import contextmanager

import anyio
import httpx
import openai
import pytest
from fake_policy import TOKENIZER, BrokenPolicy, FakePolicy, HangingPolicy, running

from sdk.policies.grammar import ReplyGrammars
from sdk.policies.protocol import Sampling
from sdk.policies.rendering.call_parsing import parse_tagged_reply
from sdk.policies.scripted import END_TOKEN, ByteRenderer

USER = [{"role": "user", "content": "Where is order 4417?"}]
TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": {"order_id": {"type": "integer"}}}},
    }
    for name in ("get_order", "cancel_order")
]
CALL = '<tool_call>{"name": "get_order", "arguments": {"order_id": 4417, "note": "é\\n"}}</tool_call>'


def talk(prompt, seed):
    return f"Seed {seed % 1000}: the order has been shipped.\n\nAnything else, é?"


@contextmanager
def serving(say=talk, api_key=None, policy=None, **options):
    policy = policy or FakePolicy(say)
    with running(policy, api_key, **options) as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key=api_key or "none", max_retries=0) as client:
            client.policy = policy
            client.server = server
            yield client


@pytest.fixture(scope="module")
def client():
    with serving() as client:
        yield client


def ask(client, **options):
    return client.chat.completions.create(**{"model": "desk", "messages": USER, "seed": 3, **options})


def joined(stream):
    """The message that a stream's deltas add up to, by choice, and the stream's chunks."""
    messages, chunks = {}, list(stream)
    for chunk in chunks:
        for choice in chunk.choices:
            message = messages.setdefault(choice.index, {"content": "", "calls": {}, "finish": None, "role": None})
            message["role"] = choice.delta.role or message["role"]
            message["content"] += choice.delta.content or ""
            message["finish"] = choice.finish_reason or message["finish"]
            for call in choice.delta.tool_calls or []:
                built = message["calls"].setdefault(call.index, {"id": "", "name": "", "arguments": ""})
                built["id"] += call.id or ""
                built["name"] += call.function.name or ""
                built["arguments"] += call.function.arguments or ""
    return messages, chunks


def test_a_plain_answer_has_content_usage_and_a_finish_reason(client):
    reply = ask(client)
    assert reply.object == "chat.completion"
    assert reply.model == "desk"
    choice = reply.choices[0]
    assert choice.message.content.startswith("Seed ")
    assert (choice.finish_reason, choice.message.role, choice.message.tool_calls) == ("stop", "assistant", None)
    # One token is one byte: the text, and the token that ends the turn.
    assert reply.usage.completion_tokens == len(choice.message.content.encode()) + 1
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


async def test_the_async_client_gets_the_same_as_the_sync_one(client):
    expected = ask(client).choices[0].message.content
    async with openai.AsyncOpenAI(base_url=str(client.base_url), api_key="none", max_retries=0) as other:
        reply = await other.chat.completions.create(model="desk", messages=USER, seed=3)
        assert reply.choices[0].message.content == expected
        stream = await other.chat.completions.create(model="desk", messages=USER, seed=3, stream=True)
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(pieces) == expected
    assert len(pieces) > 5


def test_a_stream_adds_up_to_the_whole_answer_for_the_same_seed(client):
    whole = ask(client)
    messages, chunks = joined(ask(client, stream=True))
    assert messages[0]["content"] == whole.choices[0].message.content
    assert (messages[0]["role"], messages[0]["finish"]) == ("assistant", "stop")
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.object == "chat.completion.chunk" and chunk.usage is None for chunk in chunks)


def test_a_stream_ends_with_usage_where_it_is_asked_for_and_with_done(client):
    whole = ask(client)
    _, chunks = joined(ask(client, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert all(chunk.usage is None for chunk in chunks[:-1])
    body = {"model": "desk", "messages": USER, "stream": True}
    raw = httpx.post(f"{client.server.url}/v1/chat/completions", json=body)
    assert raw.headers["content-type"].startswith("text/event-stream")
    assert raw.text.endswith("data: [DONE]\n\n")


def test_seeds_decide_and_n_answers_differ(client):
    first, second = (ask(client, n=3) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in second.choices]
    assert len(set(texts)) == 3
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert texts[0] == ask(client).choices[0].message.content
    assert ask(client, seed=4).choices[0].message.content != texts[0]
    messages, _ = joined(ask(client, n=3, stream=True))
    assert [messages[index]["content"] for index in range(3)] == texts


def test_sampling_parameters_reach_the_policy():
    with serving(defaults=Sampling(max_tokens=77)) as client:
        ask(client, temperature=0.25, top_p=0.5, max_tokens=9)
        ask(client, max_completion_tokens=8, temperature=0)
        ask(client, temperature=1e-40)
        ask(client)
        seen = [(s.temperature, s.top_p, s.max_tokens) for s in client.policy.samplings]
    assert seen == [(0.25, 0.5, 9), (0, 1.0, 8), (0, 1.0, 77), (1.0, 1.0, 77)]


def test_an_answer_that_was_cut_says_length(client):
    reply = ask(client, max_tokens=5)
    assert (reply.choices[0].finish_reason, reply.usage.completion_tokens) == ("length", 5)
    assert len(reply.choices[0].message.content.encode()) == 5


def test_stop_strings_cut_the_answer_before_them(client):
    whole = ask(client).choices[0].message.content
    reply = ask(client, stop=[" shipped", "order"])
    assert reply.choices[0].message.content == whole[: whole.index("order")]
    assert reply.choices[0].finish_reason == "stop"
    assert ask(client, stop="\n\n").choices[0].message.content == whole.split("\n\n")[0]
    assert ask(client, stop=["nowhere"]).choices[0].message.content == whole


def test_tool_calls_come_back_in_openais_form_streamed_or_not():
    with serving(lambda prompt, seed: f"I look. {CALL}{CALL}") as client:
        choice = ask(client, tools=TOOLS).choices[0]
        messages, chunks = joined(ask(client, tools=TOOLS, stream=True))
        assert "get_order" in client.policy.prompts[0]
        alone = ask(client, tools=TOOLS, parallel_tool_calls=False).choices[0]
    assert choice.finish_reason == messages[0]["finish"] == "tool_calls"
    assert choice.message.content == messages[0]["content"] == "I look."
    calls = choice.message.tool_calls
    assert [call.function.name for call in calls] == ["get_order", "get_order"]
    assert json.loads(calls[0].function.arguments) == {"order_id": 4417, "note": "é\n"}
    assert len({call.id for call in calls}) == 2
    streamed = messages[0]["calls"]
    assert [streamed[i]["arguments"] for i in range(2)] == [call.function.arguments for call in calls]
    assert [streamed[i]["name"] for i in range(2)] == ["get_order", "get_order"]
    assert all(streamed[i]["id"].startswith("call_") for i in range(2))
    assert any(c.choices and c.choices[0].delta.tool_calls and not c.choices[0].delta.tool_calls[0].id for c in chunks)
    assert len(alone.message.tool_calls) == 1


def test_a_conversation_with_calls_and_results_is_rendered_for_the_policy():
    history = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Where is"}, {"type": "text", "text": "4417?"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "get_order", "arguments": '{"order_id": 4417}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "shipped"},
    ]
    with serving() as client:
        ask(client, messages=history, tools=TOOLS)
        (prompt,) = client.policy.prompts
    assert prompt.endswith(
        "<system>Be brief.<end><user>Where is\n4417?<end>"
        '<assistant><tool_call>{"name": "get_order", "arguments": {"order_id": 4417}}</tool_call><end>'
        "<tool>shipped<end><assistant>"
    )


@pytest.mark.parametrize("levels", [300, 900, 5000])
def test_a_call_that_is_nested_too_deeply_is_shown_as_a_mistake_and_the_conversation_goes_on(levels):
    arguments = '{"a":' * levels + "1" + "}" * levels
    call = {"id": "c1", "type": "function", "function": {"name": "get_order", "arguments": arguments}}
    history = [
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "refused"},
    ]
    with serving() as client:
        client.policy.context_tokens = 50_000
        assert ask(client, messages=history, tools=TOOLS)
        assert arguments in client.policy.prompts[0]


@pytest.mark.parametrize("arguments", ['{"order_id": 44', "[4417]", "order 4417"])
def test_the_model_reads_its_own_mistake_in_a_history_as_it_wrote_it(arguments):
    call = {"id": "c1", "type": "function", "function": {"name": "get_order", "arguments": arguments}}
    history = [
        *USER,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "?"},
    ]
    with serving() as client:
        ask(client, messages=history, tools=TOOLS)
        (prompt,) = client.policy.prompts
    assert f'<tool_call>{{"name": "get_order", "arguments": {arguments}}}</tool_call><end>' in prompt


def test_fields_of_a_history_that_add_nothing_are_fine_and_reasoning_has_two_names():
    empty = {"refusal": None, "annotations": [], "audio": None, "function_call": None, "colour": ""}
    history = [
        *USER,
        {"role": "assistant", "content": None, "reasoning": "I think.", **empty},
        {
            "role": "assistant",
            "content": "Yes.",
            "reasoning_content": "Why?",
            "provider_specific_fields": {"refusal": None, "reasoning_content": "Why?"},
        },
        {"role": "tool", "tool_call_id": "c1", "name": "get_order", "content": "shipped"},
    ]
    with serving() as client:
        reply = ask(client, messages=history)
        (prompt,) = client.policy.prompts
    assert "<assistant><think>I think.</think><end>" in prompt
    assert "<assistant><think>Why?</think>Yes.<end>" in prompt
    assert "refusal" not in reply.choices[0].message.model_fields_set


ONE_CALL = '{"name": "get_order", "arguments": %s}'


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        (f"<tool_call>{ONE_CALL % '{oops}'}</tool_call>", "{oops}"),
        (f"<tool_call>{ONE_CALL % '{}'} too much</tool_call>", "{}} too much"),
        ('<tool_call>{"name": "get_order", "arguments": {"order_id": 44', '{"order_id": 44'),
    ],
)
def test_a_call_that_did_not_parse_has_its_name_and_the_arguments_as_they_were_written(written, arguments, stream):
    with serving(lambda prompt, seed: f"I look.{written}") as client:
        reply = ask(client, tools=TOOLS, stream=stream)
        if stream:
            messages, chunks = joined(reply)
            (call,), content = messages[0]["calls"].values(), messages[0]["content"]
            name, text, note = call["name"], call["arguments"], chunks[-1].toolbake
        else:
            (call,), content = reply.choices[0].message.tool_calls, reply.choices[0].message.content
            name, text, note = call.function.name, call.function.arguments, reply.toolbake
    assert (name, text, content) == ("get_order", arguments, "I look.")
    with pytest.raises(ValueError, match=r"Expecting|Extra data"):
        json.loads(text)
    ((where),) = note["invalid_calls"]
    assert (where["choice"], where["call"]) == (0, 0)
    assert "the call is not" in where["problem"] or "text stands between" in where["problem"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_was_cut_off_says_length(stream):
    whole = f"I look.<tool_call>{ONE_CALL % json.dumps({'order_id': 4417})}</tool_call>"
    seen = {}
    with serving(lambda prompt, seed: whole) as client:
        for cut in range(1, len(whole)):
            reply = ask(client, tools=TOOLS, max_tokens=cut, stream=stream)
            if stream:
                said = joined(reply)[0][0]
                content, finish = said["content"], said["finish"]
                calls = [(call["name"], call["arguments"]) for call in said["calls"].values()]
            else:
                message, finish = reply.choices[0].message, reply.choices[0].finish_reason
                content = message.content
                calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or []]
            assert finish == "length"
            assert all(name == "get_order" and arguments for name, arguments in calls)
            seen[whole[:cut]] = (content, calls)
    assert seen['I look.<tool_call>{"name": "get_or'] == ('I look.<tool_call>{"name": "get_or', [])
    for cut in range(len(whole) - len("</tool_call>"), len(whole)):
        assert seen[whole[:cut]] == ("I look.", [("get_order", '{"order_id": 4417}')])
    assert seen[whole.partition("4417")[0]] == ("I look.", [("get_order", '{"order_id":')])


@pytest.mark.parametrize(
    "written", ["<tool_call>get_order</tool_call>", '<tool_call>{"name": "get_order", "order_id": 1}</tool_call>']
)
def test_a_call_without_a_name_or_arguments_is_text_beside_the_calls_that_are_whole(written):
    with serving(lambda prompt, seed: f"So: {CALL}{written}") as client:
        choice = ask(client, tools=TOOLS).choices[0]
    assert choice.message.content == f"So:\n{written}"
    assert [call.function.name for call in choice.message.tool_calls] == ["get_order"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("Wrap it in <tool_call></tool_call> tags, then send it.\n\nThat is all.\n", None),
        ("Write <tool_call> before it, é.", None),
        ('{"city": "<tool_call> first"}', "json_object"),
    ],
)
def test_an_answer_that_names_the_tags_and_makes_no_call_comes_back_as_it_was_written(text, form, stream):
    options = {"tools": TOOLS, **({"response_format": {"type": form}} if form else {})}
    with serving(lambda prompt, seed: text) as client:
        reply = ask(client, stream=stream, **options)
        if stream:
            said = joined(reply)[0][0]
            found = said["content"], said["calls"] or None, said["finish"]
        else:
            choice = reply.choices[0]
            found = choice.message.content, choice.message.tool_calls, choice.finish_reason
    assert found == (text, None, "stop")


NOT_IT = {"not": {"const": 4417}}
"""No grammar can be made of this."""


def strict_tools(**parameters):
    properties = {"order_id": {"type": "integer", **parameters}, "note": {"type": "string"}}
    schema = {"type": "object", "properties": properties, "required": ["order_id"]}
    return [{"type": "function", "function": {"name": "get_order", "parameters": schema, "strict": True}}]


@pytest.mark.parametrize("stream", [False, True])
def test_calls_of_a_strict_tool_are_held_against_its_schema(stream):
    def ask_with(tools):
        reply = ask(client, tools=tools, stream=stream)
        if stream:
            messages, chunks = joined(reply)
            return next(iter(messages[0]["calls"].values()))["arguments"], getattr(chunks[-1], "toolbake", {})
        return reply.choices[0].message.tool_calls[0].function.arguments, reply.toolbake

    with serving(lambda prompt, seed: CALL) as client:
        arguments, note = ask_with(strict_tools())
        assert (json.loads(arguments)["order_id"], "invalid_calls" in note) == (4417, False)
        arguments, note = ask_with(strict_tools(**NOT_IT))
        ((invalid),) = note["invalid_calls"]
        assert json.loads(arguments)["order_id"] == 4417
        assert "arguments.order_id do not hold against the schema of get_order, which is strict" in invalid["problem"]
        named = {"type": "function", "function": {"name": "get_order"}}
        with pytest.raises(openai.UnprocessableEntityError, match="do not hold against the schema"):
            ask(client, tools=strict_tools(**NOT_IT), tool_choice=named)


def test_a_strict_pattern_cannot_keep_the_server_busy():
    slow = {"name": "get_order", "arguments": {"order_id": "a" * 64 + "!"}}
    with serving(lambda prompt, seed: f"<tool_call>{json.dumps(slow)}</tool_call>") as client:
        tools = strict_tools()
        tools[0]["function"]["parameters"]["properties"]["order_id"] = {"type": "string", "pattern": "^(?=(a+)+$)"}
        reply = ask(client, tools=tools)
    assert "does not match" in reply.toolbake["invalid_calls"][0]["problem"]


@pytest.mark.parametrize(
    "options",
    [{}, {"tools": TOOLS, "tool_choice": "none"}, {"tools": strict_tools(), "tool_choice": "none"}],
    ids=["none given", "forbidden", "strict and forbidden"],
)
def test_without_tools_there_are_no_calls_and_no_text_is_lost(options):
    with serving(lambda prompt, seed: f"So: {CALL}") as client:
        choice = ask(client, **options).choices[0]
        assert "cancel_order" not in client.policy.prompts[0]
    assert (choice.message.tool_calls, choice.finish_reason) == (None, "stop")
    assert choice.message.content.startswith("So:")
    assert '"order_id": 4417' in choice.message.content


@pytest.mark.parametrize("call", ['{"name": "a", "arguments": {}}', "{...}"])
@pytest.mark.parametrize("stream", [False, True])
def test_without_tools_what_looks_like_a_call_is_said_as_it_was_written(call, stream):
    text = f"Write <tool_call>{call}</tool_call> to call.\nThen read the result."
    with serving(lambda prompt, seed: text) as client:
        reply = ask(client, stream=stream)
        said = joined(reply)[0][0]["content"] if stream else reply.choices[0].message.content
    assert said == text


CANCEL = '<tool_call>{"name": "cancel_order", "arguments": {"order_id": 1}}</tool_call>'


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("options", [{}, {"tools": TOOLS}])
def test_a_stop_string_ends_the_sampling(stream, options):
    with serving(lambda prompt, seed: f"One. STOP {'two ' * 500}") as client:
        reply = ask(client, stop="STOP", stream=stream, **options)
        if stream:
            messages, _ = joined(reply)
            said, finish = messages[0]["content"], messages[0]["finish"]
        else:
            said, finish = reply.choices[0].message.content, reply.choices[0].finish_reason
            assert reply.usage.completion_tokens < 40
    assert (said, finish) == ("One. ", "stop")


@pytest.mark.parametrize("stream", [False, True])
def test_white_space_before_a_call_may_be_a_stop_string(stream):
    with serving(lambda prompt, seed: f"Let me look.\n\n{CALL}") as client:
        reply = ask(client, stop=["\n\n"], stream=stream, tools=TOOLS)
        if stream:
            (found,) = joined(reply)[0].values()
            assert (found["content"], found["calls"], found["finish"]) == ("Let me look.", {}, "stop")
        else:
            (choice,) = reply.choices
            said = (choice.message.content, choice.message.tool_calls, choice.finish_reason)
            assert said == ("Let me look.", None, "stop")
            assert reply.usage.completion_tokens == len("Let me look.\n\n")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "cancel_order"}}])
@pytest.mark.parametrize("stream", [False, True])
def test_a_required_or_named_call_is_forced(choice, stream):
    with serving(lambda prompt, seed: CANCEL) as client:
        reply = ask(client, tools=TOOLS, tool_choice=choice, stream=stream)
        if stream:
            (call,) = joined(reply)[0][0]["calls"].values()
            name, arguments = call["name"], call["arguments"]
        else:
            (call,) = reply.choices[0].message.tool_calls
            name, arguments = call.function.name, call.function.arguments
            assert reply.choices[0].finish_reason == "tool_calls"
    assert (name, json.loads(arguments)) == ("cancel_order", {"order_id": 1})


@pytest.mark.parametrize("required", [None, 5, [{}]])
def test_a_call_is_forced_of_a_tool_whose_required_names_are_null_or_no_names(required):
    parameters = {"type": "object", "properties": {}, "required": required}
    tools = [{"type": "function", "function": {"name": "cancel_order", "parameters": parameters}}]
    with serving(lambda prompt, seed: '<tool_call>{"name": "cancel_order", "arguments": {}}</tool_call>') as client:
        (call,) = ask(client, tools=tools, tool_choice="required").choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments) == ("cancel_order", "{}")


class _OtherRenderer(ByteRenderer):
    """Writes arguments as no JSON object, so that the form of its calls is not known."""

    def encode_reply(self, message, tools):
        calls = [
            call.model_copy(update={"arguments": {"text": json.dumps(call.arguments)}}) for call in message.tool_calls
        ]
        return super().encode_reply(message.model_copy(update={"tool_calls": calls}), tools)


@pytest.mark.parametrize("rest", ["oops", 'no_such_tool", "arguments": {}}</tool_call>'])
def test_a_call_asked_for_in_a_form_that_is_not_known_is_begun_and_an_error_where_it_goes_astray(rest):
    renderer = _OtherRenderer()
    others = {"renderer": renderer, "grammars": ReplyGrammars(renderer, TOKENIZER)}
    with serving(lambda prompt, seed: f'<tool_call>{{"name": "{rest}', **others) as client:
        with pytest.raises(openai.UnprocessableEntityError, match="tool_choice asks for a call") as caught:
            ask(client, tools=TOOLS, tool_choice="required")
        assert (caught.value.code, caught.value.param) == ("tool_choice_not_met", "tool_choice")
        client.policy.say = lambda prompt, seed: CANCEL
        (call,) = ask(client, tools=TOOLS, tool_choice="required").choices[0].message.tool_calls
    assert call.function.name == "cancel_order"


CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def json_schema(schema, strict=True):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": strict}}


@pytest.mark.parametrize("form", [json_schema(CITY), {"type": "json_object"}, json_schema(CITY, strict=False)])
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_in_the_form_that_was_asked_for_is_given_whole_or_streamed(form, stream):
    with serving(lambda prompt, seed: '{"city": "Rome"}') as client:
        reply = ask(client, response_format=form, stream=stream)
        said = joined(reply)[0][0]["content"] if stream else reply.choices[0].message.content
    assert json.loads(said) == {"city": "Rome"}


@pytest.mark.parametrize("text", ['{"city": "Rome"}', CANCEL])
def test_with_tools_and_a_form_the_model_calls_or_answers_in_that_form(text):
    with serving(lambda prompt, seed: text) as client:
        message = ask(client, response_format=json_schema(CITY), tools=TOOLS).choices[0].message
    assert (message.content, len(message.tool_calls or [])) == ((text, 0) if text != CANCEL else (None, 1))


def test_what_a_grammar_cannot_express_of_a_strict_form_is_an_error_where_the_answer_does_not_hold():
    schema = {"type": "object", "properties": {"order_id": {"type": "integer", **NOT_IT}}, "required": ["order_id"]}
    with serving(lambda prompt, seed: '{"order_id": 4417}') as client:
        with pytest.raises(openai.UnprocessableEntityError, match=r"the answer\.order_id do not hold") as caught:
            ask(client, response_format=json_schema(schema))
        assert (caught.value.code, caught.value.param) == ("response_format_not_met", "response_format")
        assert ask(client, response_format=json_schema(schema, strict=False)).choices[0].finish_reason == "stop"


def test_an_answer_of_a_strict_form_that_is_nested_too_deeply_to_be_read_is_an_error_of_the_model():
    lists = {"type": "array", "items": {"$ref": "#"}}
    with serving(lambda prompt, seed: "[" * 1500 + "]" * 1500) as client:
        with pytest.raises(openai.UnprocessableEntityError, match="nested too deeply") as caught:
            ask(client, response_format=json_schema(lists), max_tokens=3500)
        assert (caught.value.code, caught.value.param) == ("response_format_not_met", "response_format")


class _Thinking(ByteRenderer):
    """Its prompts have opened the reasoning."""

    def parse(self, completion_ids, tools, *, prompt_ids=()):
        ids = [token for token in completion_ids if token != END_TOKEN]
        return parse_tagged_reply(self.decode(ids), reasoning_open=True)


def test_reasoning_that_the_prompt_has_opened_comes_before_what_is_asked_for():
    renderer = _Thinking()
    others = {"renderer": renderer, "grammars": ReplyGrammars(renderer, TOKENIZER)}
    with serving(lambda prompt, seed: 'Hm, {"a".</think>\n{"city": "Rome"}', **others) as client:
        message = ask(client, response_format=json_schema(CITY)).choices[0].message
        assert (message.reasoning_content, json.loads(message.content)) == ('Hm, {"a".', {"city": "Rome"})
        client.policy.say = lambda prompt, seed: f"Hm.</think>{CANCEL}"
        message = ask(client, tools=TOOLS, tool_choice="required").choices[0].message
        assert (message.reasoning_content, len(message.tool_calls)) == ("Hm.", 1)


def test_a_policy_without_grammars_refuses_what_needs_one():
    with serving(lambda prompt, seed: CALL, grammars=None) as client:
        for options, param in (
            ({"response_format": {"type": "json_object"}}, "response_format"),
            ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
        ):
            with pytest.raises(openai.BadRequestError, match="needs grammars") as caught:
                ask(client, **options)
            assert caught.value.param == param
        assert "invalid_calls" in ask(client, tools=strict_tools(maximum=9)).toolbake


@pytest.mark.parametrize(
    ("options", "param", "message"),
    [
        ({"extra_body": {"topp": 5}}, "topp", "topp is not supported; did you mean top_p"),
        (
            {"reasoning_effort": "low"},
            "reasoning_effort",
            r"reasoning_effort is not supported here; leave it out \(or send",
        ),
        ({"service_tier": "flex"}, "service_tier", r'or send "auto" or "default"\)'),
        ({"top_logprobs": 2}, "top_logprobs", "only with logprobs: true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "top_logprobs is 21"),
        ({"frequency_penalty": 2.5}, "frequency_penalty", "frequency_penalty is 2.5"),
        ({"presence_penalty": -3}, "presence_penalty", "presence_penalty is -3"),
        ({"logit_bias": {"5": 101}}, "logit_bias", "is 101"),
        ({"logit_bias": {"262": 1}}, "logit_bias", "not a token id; those of this model are 0 to 261"),
        ({"logit_bias": {"é": 1}}, "logit_bias", "has the key 'é'"),
        ({"logit_bias": {"5": 1, "05": 1}}, "logit_bias", "has token 5 twice"),
        ({"extra_body": {"stop_token_ids": [-1]}}, "stop_token_ids", "stop_token_ids has -1"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {"$schema": 5}}}]},
            "tools",
            "tool 'f' is strict, but its input schema is not a valid JSON Schema: 5 is not of type 'string'",
        ),
        ({"response_format": {"type": "yaml"}}, "response_format.type", "yaml"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "json_schema is missing"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": {"$ref": "http://a.b"}},
                }
            },
            "response_format",
            "no answer can be sampled by the schema: failed to compile JSON schema: Resource 'http://a.b",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "objekt"}}}},
            "response_format",
            "schema: failed to compile JSON schema: Invalid type: objekt; send a simpler one$",
        ),
        (
            {"response_format": json_schema({"type": "x"})},
            "response_format",
            "the schema of response_format is not a valid JSON Schema",
        ),
        ({"store": True}, "store", "not supported here"),
        ({"temperature": 3}, "temperature", "temperature is 3"),
        ({"temperature": -1}, "temperature", "temperature is -1"),
        ({"top_p": 0}, "top_p", "top_p is 0"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens is 0"),
        ({"max_tokens": "5"}, "max_tokens", 'max_tokens is "5"'),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens", "differ"),
        ({"n": 17}, "n", "n is 17"),
        ({"seed": 1.5}, "seed", "seed is 1.5"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "stop is .*: list should have at most 4 items"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.type", 'tool_choice.type is "allowed_tools"'),
        ({"stop": ""}, "stop", "empty string"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "only with stream"),
        ({"messages": []}, "messages", "messages"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages.0.role", "'robot'; choose from system"),
        ({"messages": [{"role": "user"}]}, "messages.0.content", "has no content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages.0.content.0",
            "only text is supported",
        ),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.tool_call_id", "without tool_call_id"),
        ({"messages": [{"role": "user", "content": "a", "colour": "red"}]}, "messages.0.colour", "not supported"),
        ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
        ({"tools": TOOLS, "tool_choice": "always"}, "tool_choice", "tool_choice"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "fly"}}},
            "tool_choice",
            "the tools are get_order, cancel_order",
        ),
        ({"tools": [*TOOLS, TOOLS[0]]}, "tools", "two tools have the name 'get_order'"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "strict": True, "parameters": {"type": "x"}}}]},
            "tools",
            "tool 'a' is strict, but its input schema is not a valid JSON Schema",
        ),
        ({"messages": [{"role": "assistant", "content": "a", "audio": {"id": "b"}}]}, "messages.0.audio", "not supp"),
        (
            {"messages": [{"role": "assistant", "function_call": {"name": "fly", "arguments": "{}"}}]},
            "messages.0.function_call",
            "not supported",
        ),
        ({"messages": [{"role": "assistant", "refusal": ["No."]}]}, "messages.0.refusal", "is not a string"),
        ({"messages": [{"role": "assistant", "thinking_blocks": "hm"}]}, "messages.0.thinking_blocks", "not a list"),
        ({"messages": [{"role": "user", "content": "a", "refusal": "No."}]}, "messages.0.refusal", "not supported"),
        (
            {"messages": [{"role": "tool", "tool_call_id": "a"}]},
            "messages.0.content",
            "has no content",
        ),
        (
            {"messages": [{"role": "assistant", "content": "a", "reasoning": "b", "reasoning_content": "c"}]},
            "messages.0",
            "two reasonings that differ",
        ),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0.content", "has no content"),
    ],
)
def test_what_would_have_no_effect_or_makes_no_sense_is_refused_by_name(client, options, param, message):
    with pytest.raises(openai.BadRequestError, match=message) as caught:
        ask(client, **options)
    assert caught.value.param.startswith(param)
    assert caught.value.type == "invalid_request_error"


def test_what_clients_send_back_beside_the_words_of_a_message_changes_nothing():
    call = {"id": "c1", "type": "function", "function": {"name": "get_order", "arguments": "{}"}}
    plain = [
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": None, "reasoning_content": "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": ""},
        {"role": "assistant", "content": "I cannot say."},
        *USER,
    ]
    labels = {"id": "msg_1", "status": "completed", "provider_specific_fields": {"citations": ["b"]}}
    cached = {"type": "text", "cache_control": {"type": "ephemeral"}}
    thoughts = [
        {"type": "thinking", "thinking": "I look.", "signature": "x"},
        {"type": "redacted_thinking", "data": "y"},
    ]
    echoed = [
        {"role": "user", "content": [{**cached, "text": "Where?"}], "cache_control": {"type": "ephemeral"}},
        {"role": "assistant", "content": None, "thinking_blocks": thoughts, "tool_calls": [call], **labels},
        {"role": "tool", "tool_call_id": "c1", "content": None, "is_error": True},
        {"role": "assistant", "content": None, "refusal": "I cannot say.", "annotations": [{"type": "url_citation"}]},
        *USER,
    ]
    in_parts = [*echoed[:3], {"role": "assistant", "content": [{"type": "refusal", "refusal": "I cannot say."}]}, *USER]
    with serving() as client:
        for messages in (plain, echoed, in_parts):
            ask(client, messages=messages, tools=TOOLS)
        first, *others = client.policy.prompts
    assert "I cannot say." in first
    assert others == [first, first]


def test_parameters_that_ask_for_nothing_are_fine(client):
    reply = ask(
        client,
        frequency_penalty=0,
        presence_penalty=0.0,
        logprobs=False,
        logit_bias={},
        response_format={"type": "text"},
        user="someone",
        store=False,
        metadata={"a": "b"},
        tool_choice="auto",
        parallel_tool_calls=True,
        stop=None,
        verbosity="medium",
        reasoning_effort=None,
        extra_body={"web_search_options": None, "min_p": 0.0, "repetition_penalty": 1.0, "ignore_eos": False},
    )
    assert reply.choices
    for top_k in (-1, 0):
        assert ask(client, extra_body={"top_k": top_k}).choices
    for off in (False, None):
        assert list(ask(client, stream=True, stream_options={"include_usage": True, "include_obfuscation": off}))
    for options in (
        {"verbosity": "low"},
        {"stream": True, "stream_options": {"include_obfuscation": True}},
        {"extra_body": {"top_k": 5}},
        {"extra_body": {"repetition_penalty": 1.1}},
        {"extra_body": {"ignore_eos": 0}},
    ):
        with pytest.raises(openai.BadRequestError):
            ask(client, **options)


def test_a_function_may_have_marks_that_are_off_and_no_others(client):
    marked = {**TOOLS[0]["function"], "requires_confirmation": False, "external_execution": None}
    assert ask(client, tools=[{"type": "function", "function": marked}]).choices
    for value in (True, 0):
        with pytest.raises(openai.BadRequestError, match=r"tools.0.function.external_execution is .*not permitted"):
            ask(client, tools=[{"type": "function", "function": {**marked, "external_execution": value}}])


def test_a_prompt_over_the_context_is_told_apart(client):
    with pytest.raises(openai.BadRequestError, match="the context holds 4096 tokens") as caught:
        ask(client, messages=[{"role": "user", "content": "a" * 5000}])
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="4090 new ones are asked for") as caught:
        ask(client, max_tokens=4090)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="or lower max_completion_tokens"):
        ask(client, max_completion_tokens=4090)


def test_another_model_does_not_exist(client):
    with pytest.raises(openai.NotFoundError, match="'gpt-5' does not exist; this endpoint serves 'desk'") as caught:
        ask(client, model="gpt-5")
    assert caught.value.code == "model_not_found"
    assert [model.id for model in client.models.list()] == ["desk"]
    assert client.models.retrieve("desk").id == "desk"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-5")


def test_a_key_is_asked_for_everywhere_but_at_the_health_check():
    with serving(api_key="s3cret") as client:
        assert ask(client).choices
        assert client.models.list().data
        for key in ("wrong", "s3cre", "s3cret2", "schlüssel".encode().decode("latin-1")):
            headers = {"authorization": f"Bearer {key}".encode("latin-1", "replace")}
            reply = httpx.post(f"{client.server.url}/v1/chat/completions", json={}, headers=headers)
            assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key")
            assert "s3cret" not in reply.text
        assert httpx.get(f"{client.server.url}/v1/models").status_code == 401
        assert httpx.get(f"{client.server.url}/health").json() == {"status": "ok", "model": "desk"}
        with openai.OpenAI(base_url=client.base_url, api_key="wrong", max_retries=0) as stranger:
            with pytest.raises(openai.AuthenticationError, match="missing or wrong"):
                ask(stranger)


def test_bodies_that_are_no_request_get_openais_form(client):
    url = f"{client.server.url}/v1/chat/completions"
    json_type = {"content-type": "application/json"}
    for content, headers, status, message in [
        (b"{oops", json_type, 400, "not JSON"),
        (b"[1]", json_type, 400, "the body is an array; send an object"),
        (b"null", json_type, 400, "the body is null; send an object"),
        (b"", json_type, 400, "the body is empty; send an object"),
        (b'{"model": "\xff"}', json_type, 400, "the body is not UTF-8: invalid start byte at byte 11"),
        (b'{"model": "desk"}', json_type, 400, "messages: field required"),
        (b'{"model": "desk", "messages": [], "temperature": NaN}', json_type, 400, "NaN"),
        (b'{"model": "desk", "messages": [], "metadata": {"a": 1e999}}', json_type, 400, "1e999 is out of range"),
        (b'{"model": "desk", "messages": [{"role": "user", "content": "a\\ud800"}]}', json_type, 400, "surrogate"),
        (b'{"model": "desk", "messages": [{"role": ["user"], "content": "a"}]}', json_type, 400, "messages.0.role"),
        (b"{}", {"content-type": "text/plain"}, 415, "send application/json"),
        (b"\x1f\x8b", json_type | {"content-encoding": "gzip"}, 415, "the content encoding is gzip; send the body as"),
        (b"[" * 100_000, json_type, 400, "not JSON"),
        (b" " * (17 * 2**20), json_type, 413, "shorter conversation"),
    ]:
        reply = httpx.post(url, content=content, headers=headers)
        assert reply.status_code == status, reply.text
        assert message in reply.json()["error"]["message"]
        assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
    with socket.create_connection(("127.0.0.1", httpx.URL(client.server.url).port), timeout=30) as announced:
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        announced.sendall(f"{head}content-length: 99999999\r\nexpect: 100-continue\r\n\r\n".encode())
        assert b" 413 " in announced.recv(100), "refused before it is sent"
    assert httpx.get(url).json()["error"]["message"].startswith("GET /v1/chat/completions: method not allowed")
    assert httpx.post(f"{client.server.url}/v1/completions", json={}).status_code == 404


def test_a_broken_engine_is_a_server_error_streamed_or_not():
    with serving(policy=BrokenPolicy(None)) as client:
        for stream in (False, True):
            with pytest.raises(openai.InternalServerError, match="out of memory") as caught:
                ask(client, stream=stream)
            assert caught.value.type == "server_error"


def test_an_engine_that_has_ended_is_not_healthy():
    policy = FakePolicy(talk)
    with running(policy) as server:
        assert httpx.get(f"{server.url}/health").status_code == 200
        policy.alive = False
        assert httpx.get(f"{server.url}/health").status_code == 503


def test_an_error_nobody_thought_of_says_no_more_than_its_kind(caplog):
    def fails(prompt, seed):
        raise KeyError("/secret/path")

    with serving(fails) as client:
        with pytest.raises(openai.InternalServerError, match="its log says more") as caught:
            ask(client)
    assert "/secret/path" not in str(caught.value)
    assert "/secret/path" in caplog.text


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_cancels_its_request(stream):
    policy = HangingPolicy()
    with running(policy) as server:
        body = {"model": "desk", "messages": USER, "stream": stream, "n": 2}

        async def leave():
            async with httpx.AsyncClient() as http, anyio.create_task_group() as group:
                group.start_soon(lambda: http.post(f"{server.url}/v1/chat/completions", json=body, timeout=None))
                await anyio.to_thread.run_sync(policy.asked.wait)
                group.cancel_scope.cancel()

        anyio.run(leave)
        assert policy.cancelled.wait(20)


def test_many_requests_are_answered_at_once():
    together = threading.Barrier(4)

    class Meeting(FakePolicy):
        async def sample(self, prompt_ids, **options):
            await anyio.to_thread.run_sync(together.wait, 30)
            return await super().sample(prompt_ids, **options)

    said = []

    async def ask(client):
        reply = await client.chat.completions.create(model="desk", messages=USER)
        said.append(reply.choices[0].message.content)

    async def ask_all(url):
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            async with anyio.create_task_group() as group:
                for _ in range(4):
                    group.start_soon(ask, client)

    with running(Meeting(talk)) as server:
        anyio.run(ask_all, f"{server.url}/v1")
    assert len(said) == 4
    assert all(said)
