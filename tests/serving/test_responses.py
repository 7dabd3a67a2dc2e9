"""OpenAI's Responses API as OpenAI's own client sees it, over a real socket."""

import json

import httpx
import openai
import pytest
from fake_policy import BrokenPolicy, FakePolicy, running
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

QUESTION = "Where is order 4417?"
TOOL = {
    "type": "function",
    "name": "get_order",
    "description": "Read an order.",
    "parameters": {"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]},
    "strict": True,
}
CALL = '<tool_call>{"name": "get_order", "arguments": {"order_id": "4417"}}</tool_call>'


class Place(BaseModel):
    city: str
    orders: int


def say(prompt: str, seed: int) -> str:
    asked = prompt.rpartition("<user>")[2]
    if '"city"' in prompt or "a place" in asked:
        return '{"city": "Rome", "orders": 3}'
    if "<tool>" in asked or '"name": "get_order"' not in prompt:
        return "<think>I know it.</think>It has been shipped."
    return f"<think>I look.</think>One moment.{CALL}"


@pytest.fixture(scope="module")
def client():
    policy = FakePolicy(say)
    with running(policy) as server, openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        client.policy, client.url = policy, server.url
        yield client


def ask(client, **options):
    return client.responses.create(**{"model": "desk", "input": QUESTION, **options})


def kinds(response):
    return [item.type for item in response.output]


def test_an_answer_has_reasoning_text_and_usage(client):
    response = ask(client, instructions="Be brief.", metadata={"desk": "7"}, temperature=0.5)
    assert (response.object, response.status, response.model) == ("response", "completed", "desk")
    assert kinds(response) == ["reasoning", "message"]
    assert response.output_text == "It has been shipped."
    assert response.output[0].content[0].text == "I know it."
    assert (response.instructions, response.metadata, response.temperature) == ("Be brief.", {"desk": "7"}, 0.5)
    # One token is one byte: the answer, and the token that ends the turn.
    assert response.usage.output_tokens == len("<think>I know it.</think>It has been shipped.") + 1
    assert response.usage.output_tokens_details.reasoning_tokens in range(len("I know it."), 30)
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


def test_the_prompt_is_that_of_the_same_chat_request(client):
    first = ask(client, instructions="Be brief.", tools=[TOOL])
    assert kinds(first) == ["reasoning", "message", "function_call"]
    call = first.output[2]
    assert (call.name, json.loads(call.arguments), call.status) == ("get_order", {"order_id": "4417"}, "completed")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "shipped"}
    items = [{"role": "user", "content": QUESTION}, *to_jsonable_python(first.output), result]
    second = ask(client, input=items, instructions="Be brief.", tools=[TOOL])
    assert second.output_text == "It has been shipped."
    function = {name: value for name, value in TOOL.items() if name != "type"}
    tools = [{"type": "function", "function": function}]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]
    chat = client.chat.completions.create(model="desk", messages=messages, tools=tools)
    (asked,) = chat.choices[0].message.tool_calls
    said = to_jsonable_python(chat.choices[0].message)
    said["tool_calls"][0]["id"] = call.call_id
    assert (asked.function.name, asked.function.arguments) == (call.name, call.arguments)
    messages += [said, {"role": "tool", "tool_call_id": call.call_id, "content": "shipped"}]
    client.chat.completions.create(model="desk", messages=messages, tools=tools)
    assert client.policy.prompts[-1] == client.policy.prompts[-3]
    assert client.policy.prompts[-2] == client.policy.prompts[-4]


def test_text_after_a_call_is_of_the_same_answer_where_the_call_has_no_result_yet():
    """The text is that of a second call, which could not be read. Items come in the order that they were written in."""
    with running(FakePolicy(lambda prompt, seed: f"{CALL}<tool_call>oops")) as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as other:
            tools = [{**TOOL, "strict": False}]
            whole, streamed = ask(other, tools=tools), list(ask(other, tools=tools, stream=True))[-1].response
    assert kinds(whole) == kinds(streamed) == ["function_call", "message"]
    prompts = []
    for response in (whole, streamed):
        (call,) = [item for item in response.output if item.type == "function_call"]
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "shipped"}
        items = [{"role": "user", "content": QUESTION}, *to_jsonable_python(response.output), result]
        policy = FakePolicy(lambda prompt, seed: "It has been shipped.")
        with running(policy) as server:
            with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as other:
                ask(other, input=items, tools=tools)
        prompts += policy.prompts
    assert prompts[0] == prompts[1]
    assert prompts[0].endswith(f"<assistant><tool_call>oops\n{CALL}<end><tool>shipped<end><assistant>")


@pytest.mark.parametrize("tools", [[], [TOOL]])
def test_a_stream_is_the_whole_answer_event_by_event(client, tools):
    whole = ask(client, tools=tools)
    with client.responses.stream(model="desk", input=QUESTION, tools=tools) as stream:
        events = list(stream)
        streamed = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == "response.completed"
    assert kinds(streamed) == kinds(whole)
    assert streamed.output_text == whole.output_text
    assert streamed.usage == whole.usage
    for kind in ("reasoning_text", "output_text"):
        deltas = [event.delta for event in events if event.type == f"response.{kind}.delta"]
        (done,) = [event.text for event in events if event.type == f"response.{kind}.done"]
        assert "".join(deltas) == done
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [item.status for item in done] == ["completed"] * len(whole.output)
    assert sorted(item.id for item in done) == sorted(item.id for item in streamed.output)


@pytest.mark.parametrize("end", ["", "<tool_call>oops"])
def test_each_item_of_a_stream_is_done_before_the_next_one_begins(end):
    """Text after calls is that of a call that could not be read, and comes as a message of its own."""
    second = CALL.replace("4417", "4418")
    policy = FakePolicy(lambda prompt, seed: f"<think>I look.</think>One moment.{CALL}{second}{end}")
    with running(policy) as server, openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as other:
        tools = [{**TOOL, "strict": False}]
        whole = ask(other, tools=tools)
        with other.responses.stream(model="desk", input=QUESTION, tools=tools) as stream:
            events = list(stream)
            streamed = stream.get_final_response()
        items = [{"role": "user", "content": QUESTION}]
        for response in (whole, streamed):
            calls = [item for item in response.output if item.type == "function_call"]
            results = [{"type": "function_call_output", "call_id": call.call_id, "output": "shipped"} for call in calls]
            ask(other, input=[*items, *to_jsonable_python(response.output), *results], tools=tools)
    assert policy.prompts[-1] == policy.prompts[-2]
    assert kinds(streamed) == ["reasoning", "message", "function_call", "function_call", *["message"] * bool(end)]
    assert streamed.output_text == whole.output_text == f"One moment.{end and chr(10)}{end}"
    assert [item.status for item in streamed.output] == ["completed"] * len(streamed.output)
    places = [event.output_index for event in events if hasattr(event, "output_index")]
    assert places == sorted(places)
    for place in range(len(streamed.output)):
        of_item = [event.type for event in events if getattr(event, "output_index", None) == place]
        assert (of_item[0], of_item[-1]) == ("response.output_item.added", "response.output_item.done")


def test_text_format_holds_the_answer_to_a_class(client):
    assert client.responses.parse(model="desk", input="Name a place.", text_format=Place).output_parsed == Place(
        city="Rome", orders=3
    )
    with client.responses.stream(model="desk", input="Name a place.", text_format=Place) as stream:
        assert stream.get_final_response().output_parsed == Place(city="Rome", orders=3)
    assert json.loads(ask(client, input="Name a place.", text={"format": {"type": "json_object"}}).output_text)


def test_a_required_or_named_tool_is_called(client):
    for choice in ("required", {"type": "function", "name": "get_order"}):
        with running(FakePolicy(lambda prompt, seed: CALL)) as server:
            with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as other:
                response = ask(other, tools=[TOOL], tool_choice=choice)
        assert kinds(response) == ["function_call"]
        assert response.tool_choice == choice or response.tool_choice.name == "get_order"


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_the_limit_cut_is_incomplete(client, stream):
    answer = ask(client, max_output_tokens=35, stream=stream)
    last = list(answer)[-1] if stream else None
    assert last is None or last.type == "response.incomplete"
    response = answer if last is None else last.response
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.output[-1].status == "incomplete"
    assert response.output_text == "It has bee"


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "keeps no conversations"),
        ({"conversation": {"id": "conv_1"}}, "conversation", "keeps no conversations"),
        ({"store": True}, "store", r"leave it out \(or send false\)"),
        ({"background": True}, "background", "not supported"),
        ({"prompt": {"id": "p"}}, "prompt", r"leave it out \(or send null\)"),
        ({"truncation": "auto"}, "truncation", 'send "disabled"'),
        ({"reasoning": {"effort": "low"}}, "reasoning", "as it was trained"),
        ({"include": ["message.output_text.logprobs"]}, "include.0", "reasoning.encrypted_content"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", "'function'"),
        ({"tools": [TOOL, TOOL]}, "tools", "two tools have the name 'get_order'"),
        ({"tool_choice": {"type": "function", "name": "x"}, "tools": [TOOL]}, "tool_choice", "names 'x'"),
        ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format", "lacks name or schema"),
        (
            {"text": {"format": {"type": "json_object", "schema": {"type": "object"}, "name": "x"}}},
            "text.format",
            "has name, schema, which need the type json_schema",
        ),
        ({"text": {"format": {"type": "text", "strict": True}}}, "text.format", "has strict, which need"),
        ({"max_output_tokens": 5000}, "input", "lower max_output_tokens"),
        ({"extra_body": {"top_k": 3}}, "top_k", "is not supported"),
        ({"input": 5}, "input", "must be a string, or a list"),
        ({"input": []}, "input", "1 to 10000 items"),
        (
            {"input": [{"role": "user", "content": "x"}] * 10_000, "instructions": "x"},
            "input",
            "input and instructions are 10001 messages, at most 10000",
        ),
        ({"input": ["x"]}, "input.0", "not an object"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0.type", "'item_reference'; there are message"),
        ({"input": [{"role": "user"}]}, "input.0.content", "is missing"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input.0.role", "'robot'; choose from"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0", "only text"),
        ({"input": [{"type": "function_call", "name": "x", "arguments": "{}"}]}, "input.0.call_id", "missing"),
        ({"input": [{"type": "function_call_output", "call_id": "x"}]}, "input.0.output", "missing"),
    ],
)
def test_what_is_not_supported_is_refused_by_its_name(client, fields, param, message):
    with pytest.raises(openai.BadRequestError, match=message) as caught:
        ask(client, **fields)
    assert caught.value.param == param


def test_a_message_of_a_chat_answer_is_read_and_calls_in_it_are_not_lost_in_silence(client):
    said = openai.types.chat.ChatCompletionMessage(role="assistant", content="hello").model_dump()
    asked = {"role": "user", "content": "And now?"}
    assert ask(client, input=[asked, said, said, asked]).status == "completed"
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    call = {"id": "c", "type": "function", "function": {"name": "g", "arguments": "{}"}}
    for calls in ([call], 5):
        with pytest.raises(openai.BadRequestError, match=r"input\.2\.tool_calls .*function_call") as refused:
            ask(client, input=[asked, thought, {**said, "tool_calls": calls}])
        assert refused.value.param == "input.2.tool_calls"


def test_what_asks_for_nothing_is_accepted(client):
    response = ask(
        client,
        store=False,
        reasoning={"effort": None},
        include=["reasoning.encrypted_content"],
        truncation="disabled",
        user="x",
        text={"format": {"type": "text"}},
        extra_body={"previous_response_id": None, "background": False, "safety_identifier": "x"},
    )
    assert response.output_text == "It has been shipped."


def test_a_failure_in_the_midst_ends_the_stream_with_a_failed_response(client):
    class Breaks(FakePolicy):
        async def sample(self, prompt_ids, *, on_token, **options):
            for token in b"The order has left, and comes tomorrow.":
                on_token(token)
            return await BrokenPolicy.sample(self, prompt_ids, **options)

    with running(Breaks(say)) as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as other:
            last = list(ask(other, stream=True))[-1]
    assert last.type == "response.failed"
    assert (last.response.status, last.response.error.code) == ("failed", "engine_failed")
    assert "out of memory" in last.response.error.message


def test_the_key_the_model_and_the_media_type_are_checked_as_for_chat(client):
    with running(FakePolicy(say), "secret") as server:
        body = {"model": "desk", "input": "x"}
        assert httpx.post(f"{server.url}/v1/responses", json=body).status_code == 401
    assert httpx.post(f"{client.url}/v1/responses", json={**body, "model": "other"}).status_code == 404
    assert httpx.post(f"{client.url}/v1/responses", content=json.dumps(body)).status_code == 415
