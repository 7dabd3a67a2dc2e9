"""The embedded model behind the endpoint: real tokens, real chat template, real engine."""

import json
import re
import shutil
from typing import Literal

import openai
import pydantic
import pytest

from sdk.errors import ConfigError
from sdk.evidence.saved_weights import files_digest
from sdk.policies.models.loading import load_tokenizer
from sdk.policies.models.smollm2 import embedded_folder
from sdk.serving import serve
from sdk.serving.vllm_server import serve_with_vllm

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Orders.",
            "parameters": {"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]},
        },
    }
    for name in ("get_order", "cancel_order")
]
USER = [{"role": "user", "content": "Where is order 4417?"}]


@pytest.fixture(scope="module")
def client():
    with serve(None, port=0, model_name="base") as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            yield client


def ask(client, **options):
    return client.chat.completions.create(**{"model": "base", "messages": USER, "max_tokens": 24, **options})


def test_it_answers_and_a_stream_says_the_same_for_the_same_seed(client):
    options = {"seed": 7, "temperature": 1.0}
    whole = ask(client, **options)
    stream = list(ask(client, stream=True, **options))
    text = whole.choices[0].message.content
    assert text.strip()
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "".join(pieces) == text
    assert len(pieces) > 5
    assert ask(client, seed=8).choices[0].message.content != text
    assert 0 < whole.usage.completion_tokens <= 24


def test_its_prompt_grows_with_the_tools(client):
    plain, with_tools = ask(client, max_tokens=1), ask(client, max_tokens=1, tools=TOOLS)
    assert with_tools.usage.prompt_tokens > plain.usage.prompt_tokens + 50


def test_usage_tells_what_of_the_prompt_was_not_computed(client):
    messages = [{"role": "user", "content": "Where is order 5151, which I have waited for since the first of May?"}]
    first, again = (ask(client, messages=messages, max_tokens=1).usage for _ in range(2))
    assert first.prompt_tokens_details.cached_tokens < first.prompt_tokens - 5
    assert again.prompt_tokens_details.cached_tokens == again.prompt_tokens - 1


def test_its_fingerprint_is_the_digest_of_its_weights(client):
    digest = files_digest([embedded_folder() / "model.safetensors"])
    assert ask(client, max_tokens=1).system_fingerprint == f"fp_{digest[:16]}"


STRICT = [
    {
        "type": "function",
        "function": {
            "name": name,
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {"order_id": {"type": "string", "pattern": "^[0-9]{4}$"}, "force": {"type": "boolean"}},
                "required": ["order_id", "force"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("get_order", "cancel_order")
]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "cancel_order"}}])
@pytest.mark.parametrize("temperature", [0, 1.5])
def test_a_call_that_is_asked_for_holds_against_its_schema_even_from_a_model_never_trained_for_it(
    client, choice, temperature
):
    options = {"temperature": temperature, "seed": 5, "n": 4, "max_tokens": 64, "parallel_tool_calls": False}
    reply = ask(client, tools=STRICT, tool_choice=choice, **options)
    for one in reply.choices:
        assert one.finish_reason == "tool_calls"
        for call in one.message.tool_calls:
            assert call.function.name in (
                ["cancel_order"] if isinstance(choice, dict) else ["get_order", "cancel_order"]
            )
            arguments = json.loads(call.function.arguments)
            assert re.fullmatch("[0-9]{4}", arguments["order_id"])
            assert isinstance(arguments["force"], bool)
        assert len(one.message.tool_calls) == 1 or choice == "required"  # which may be several
    assert not reply.toolbake.get("invalid_calls")


def test_an_answer_has_the_form_that_was_asked_for_whole_and_streamed(client):
    class Order(pydantic.BaseModel):
        number: Literal[4417, 4418]
        state: Literal["new", "sent"]

    options = {"model": "base", "messages": USER, "max_tokens": 64, "seed": 1, "response_format": Order}
    said = client.chat.completions.parse(**options).choices[0].message
    assert isinstance(said.parsed, Order)
    with client.chat.completions.stream(**options) as stream:
        assert stream.get_final_completion().choices[0].message.content == said.content


def test_tools_that_its_template_does_not_take_are_named_and_not_the_messages(client):
    function = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"description": 5}}}}
    with pytest.raises(openai.BadRequestError, match="does not take these tools: the chat template of") as caught:
        ask(client, tools=[{"type": "function", "function": function}])
    assert caught.value.param == "tools"


def test_a_conversation_longer_than_its_context_is_refused(client):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, messages=[{"role": "user", "content": "order " * 9000}])
    assert caught.value.code == "context_length_exceeded"


def test_a_model_whose_tokenizer_takes_no_grammars_is_served_without_them(tiny_model_folder, tmp_path, caplog):
    folder = shutil.copytree(tiny_model_folder, tmp_path / "model")
    described = json.loads((folder / "tokenizer.json").read_text())
    described["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": False}
    (folder / "tokenizer.json").write_text(json.dumps(described))
    with serve(folder, port=0, model_name="base") as server:
        assert "response_format and tool_choice are refused: grammars cannot be used" in caplog.text
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            assert ask(client, max_tokens=3).usage.completion_tokens == 3
            with pytest.raises(openai.BadRequestError, match="logprobs needs the text of tokens"):
                ask(client, logprobs=True)
            with pytest.raises(openai.BadRequestError, match="response_format needs grammars"):
                ask(client, response_format={"type": "json_object"})


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_spell_the_answer_and_name_the_likeliest_tokens_first(client, stream):
    options = {"temperature": 0, "logprobs": True, "top_logprobs": 4, "max_tokens": 200}
    messages = [{"role": "user", "content": "Say: é 👩 yes."}]
    if stream:
        with client.chat.completions.stream(model="base", messages=messages, **options) as events:
            reply = events.get_final_completion()
    else:
        reply = ask(client, messages=messages, **options)
        assert len(reply.choices[0].logprobs.content) == reply.usage.completion_tokens
    choice = reply.choices[0]
    content = choice.logprobs.content
    assert b"".join(bytes(one.bytes) for one in content).decode() == choice.message.content + "<|im_end|>"
    for one in content:
        assert len(one.top_logprobs) == 4
        assert one.token == one.top_logprobs[0].token
        assert one.logprob == one.top_logprobs[0].logprob <= 0
        assert [other.logprob for other in one.top_logprobs] == sorted(
            (other.logprob for other in one.top_logprobs), reverse=True
        )
    assert ask(client, max_tokens=1).choices[0].logprobs is None


def test_a_stop_token_of_the_client_ends_the_answer_and_is_no_part_of_it(client):
    options = {"temperature": 0, "max_tokens": 12}
    whole = ask(client, logprobs=True, **options)
    fourth = whole.choices[0].logprobs.content[3].token
    tokenizer = load_tokenizer().tokenizer
    (token,) = tokenizer.encode(fourth, add_special_tokens=False)
    for stream in (False, True):
        reply = ask(client, stream=stream, extra_body={"stop_token_ids": [token]}, **options)
        if stream:
            chunks = list(reply)
            said, finish = (
                "".join(c.choices[0].delta.content or "" for c in chunks),
                chunks[-1].choices[0].finish_reason,
            )
        else:
            said, finish = reply.choices[0].message.content, reply.choices[0].finish_reason
            assert reply.usage.completion_tokens <= 4
        assert finish == "stop"
        assert whole.choices[0].message.content.startswith(said + fourth)


def test_a_bias_and_penalties_of_a_request_change_its_answer(client):
    options = {"temperature": 0, "max_tokens": 12}
    plain = ask(client, **options).choices[0].message.content
    (token,) = load_tokenizer().tokenizer.encode(" banana", add_special_tokens=False)
    biased = ask(client, logit_bias={str(token): 100}, **options).choices[0].message.content
    assert biased.split() == ["banana"] * 12
    penalized = ask(client, logit_bias={str(token): 12}, frequency_penalty=2, presence_penalty=2, **options)
    assert 0 < penalized.choices[0].message.content.count("banana") < 12
    assert plain != biased


def test_in_bfloat16_it_gives_nearly_the_same_probabilities_and_not_the_same(client):
    options = {"temperature": 0, "logprobs": True, "max_tokens": 8}
    with serve(None, port=0, model_name="base", dtype="bfloat16") as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as short:
            ours, theirs = (ask(one, **options).choices[0].logprobs.content[0] for one in (client, short))
    assert ours.token == theirs.token
    assert 0 < abs(ours.logprob - theirs.logprob) < 0.2


@pytest.mark.parametrize("start", [serve, serve_with_vllm])
def test_a_number_format_that_no_engine_computes_in_is_refused(start):
    with pytest.raises(ConfigError, match="dtype is 'int8'; give one of auto, float32, bfloat16"):
        start(None, port=0, dtype="int8")
