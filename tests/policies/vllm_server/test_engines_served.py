"""Both engines behind an endpoint, with the same requests: `toolbake serve` with the embedded one, and with the oldest
and the newest vLLM that are supported.

vLLM serves an exported model and is started by the command line that its README prints: it is plain vLLM, too.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import openai
import pytest
import torch
from calling_model import save_caller
from framework_agents import told_by
from frameworks.clients import FRAMEWORKS, PLACE, STRUCTURED
from typer.testing import CliRunner

from sdk.cli.app import app
from sdk.errors import ConfigError
from sdk.exporting import export
from sdk.exporting.exported_folder import MARKER
from sdk.policies.models import LoadedModel, save_model
from sdk.policies.protocol import Sampling
from sdk.policies.vllm.server_command import VllmBuild
from sdk.records import Tool
from sdk.serving.vllm_server import PARSERS, serve_with_vllm

pytestmark = pytest.mark.timeout(1200)

KEY = "k-4417"
MEASURED = Sampling(temperature=0, max_tokens=96)
ASK: list[Any] = [{"role": "user", "content": "Where is order 4417?"}]
SCHEMA = {
    "type": "object",
    "properties": {"order_id": {"enum": ["4417", "4418"]}},
    "required": ["order_id"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "function": {"name": "get_order", "description": "Read it.", "parameters": SCHEMA}}
STRICT: Any = {**TOOL, "function": {**TOOL["function"], "strict": True}}
"""vLLM 0.32 holds arguments to the schema only where a tool asks for it."""


@pytest.fixture(scope="module")
def tuned(small_model: LoadedModel) -> LoadedModel:
    """The small model with another head, which never takes a token that is only white space: vLLM's grammars allow any
    number of them within JSON, and a model of random weights does not come to an end there."""
    tokenizer = small_model.tokenizer
    model = copy.deepcopy(small_model.model)
    blank = [number for number in range(len(tokenizer)) if not tokenizer.decode([number]).strip()]
    with torch.no_grad():
        head = model.get_input_embeddings().weight.detach().clone()
        head[:, 0] = 0.0
        head[blank, 0] = -50.0  # the first number of each state is positive: layers do not write to it
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(head)
        model.get_input_embeddings().weight[:, 0] = 1.0
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[0] = 0.0
            layer.mlp.down_proj.weight[0] = 0.0
    return replace(small_model, model=model)


@pytest.fixture(scope="module")
def exported(tuned: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The export of a tuned model."""
    folder = tmp_path_factory.mktemp("runs")
    saved = save_model(tuned.model, tuned.tokenizer, folder / "desk", family="template", sampling=MEASURED)
    return export(saved, "vllm", folder / "out")


LOGGED = ("--logging-config.formatter=json", "--disable-access-log-for-endpoints=/health,/metrics")
"""As docs/serving.md has them."""
HANDED_ON = ("--max-logprobs=3", "--logits-processors=scripted_answers:ScriptedAnswers", *LOGGED)
"""Answers to the agents of frameworks are scripted, as random weights make no calls. Other requests are the model's."""
TESTS = Path(__file__).parents[2]


@dataclass
class Served:
    """A server that runs in a process of its own."""

    url: str
    process: subprocess.Popen[str]
    log: Path | None
    """vLLM's."""

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=KEY, max_retries=0)

    def ask(self, messages: list[Any] = ASK, **options: Any) -> Any:
        with self.client() as client:
            return client.chat.completions.create(model="model", messages=messages, **options)


@contextmanager
def serving(folder: Path, engine: str, environment: dict[str, str], *more: str) -> Iterator[Served]:
    words = ["serve", str(folder / "model"), "--engine", engine, "--port", "0", "--api-key-env", "DESK_KEY", *more]
    process = subprocess.Popen(
        [sys.executable, "-m", "toolbake", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment, "DESK_KEY": KEY},
        # A shell's background command ignores Ctrl-C, and what it starts does, too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        said = process.stdout.readline()
        assert " is served at " in said, process.communicate()[1]
        told = next(process.stderr) + (next(process.stderr) if engine == "vllm" else "")
        logs = [Path(log) for log in re.findall(r"^starting vLLM .*: (/.*\.log)$", told, re.MULTILINE)]
        assert len(logs) == (engine == "vllm"), told
        yield Served(said.split(" is served at ")[1].split("/v1")[0], process, *(logs or [None]))
    finally:
        process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=120)[1]
    assert process.returncode == 0, errors
    assert not any(log.exists() for log in logs)


def by_vllm_of(python: Path, exported: Path) -> AbstractContextManager[Served]:
    environment = {"TOOLBAKE_VLLM_PYTHON": str(python), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    environment["VLLM_CPU_KVCACHE_SPACE"] = "1"
    scripts = [
        Path(__file__).parent / "in_vllm",
        TESTS / "frameworks",
        *os.environ.get("PYTHONPATH", "").split(os.pathsep),
    ]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, map(str, scripts)))
    return serving(exported, "vllm", environment, *(f"--vllm-arg={one}" for one in HANDED_ON))


@pytest.fixture(scope="module")
def by_vllm(vllm_python: Path, exported: Path) -> Iterator[Served]:
    with by_vllm_of(vllm_python, exported) as served:
        yield served


@pytest.fixture(scope="module")
def by_the_newest_vllm(newest_vllm_python: Path, exported: Path) -> Iterator[Served]:
    with by_vllm_of(newest_vllm_python, exported) as served:
        yield served


@pytest.fixture(scope="module")
def by_the_embedded_engine(exported: Path) -> Iterator[Served]:
    with serving(exported, "embedded", {}) as served:
        yield served


@pytest.fixture(params=["by_the_embedded_engine", "by_vllm", "by_the_newest_vllm"])
def served(request: pytest.FixtureRequest) -> Served:
    server: Served = request.getfixturevalue(request.param)
    return server


def measured_answer(loaded: LoadedModel, messages: list[Any], **options: Any) -> tuple[str, int, int]:
    """The greedy answer of transformers, and the tokens of the prompt and of the answer."""
    prompt = loaded.tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True, **options
    )
    with torch.no_grad():
        ids = loaded.model.generate(**prompt, max_new_tokens=MEASURED.max_tokens, do_sample=False)
    length = prompt["input_ids"].shape[1]
    answer = ids[0, length:]
    return loaded.tokenizer.decode(answer, skip_special_tokens=True), length, len(answer)


def test_a_request_that_sets_nothing_gets_the_measured_answer(served: Served, tuned: LoadedModel) -> None:
    reply = served.ask()
    text, prompt, answer = measured_answer(tuned, ASK)
    assert reply.choices[0].message.content == text
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (prompt, answer)


def test_tools_calls_and_results_are_rendered_as_in_training(served: Served, tuned: LoadedModel) -> None:
    call = {"name": "get_order", "arguments": json.dumps({"order_id": "4417"})}
    history = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "c1", "content": "shipped"},
    ]
    reply = served.ask(history, tools=[TOOL])
    parsed = {**call, "arguments": {"order_id": "4417"}}
    history[1] = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": parsed}]}
    text, prompt, _ = measured_answer(tuned, history, tools=[TOOL])
    assert reply.choices[0].message.content == text
    assert reply.usage.prompt_tokens == prompt


def test_the_prompt_shows_no_tools_where_none_may_be_called(served: Served, tuned: LoadedModel) -> None:
    reply = served.ask(tools=[TOOL], tool_choice="none")
    text, prompt, _ = measured_answer(tuned, ASK)
    assert (reply.choices[0].message.content, reply.usage.prompt_tokens) == (text, prompt)


def test_text_parts_of_a_message_are_joined_by_line_ends(served: Served, tuned: LoadedModel) -> None:
    parts = [{"type": "text", "text": text} for text in ("Order 4417:", "where is it?")]
    reply = served.ask([{"role": "user", "content": parts}])
    text, prompt, _ = measured_answer(tuned, [{"role": "user", "content": "Order 4417:\nwhere is it?"}])
    assert (reply.choices[0].message.content, reply.usage.prompt_tokens) == (text, prompt)


def test_the_model_is_not_shown_that_a_tool_is_strict(served: Served) -> None:
    # vLLM 0.24 showed it: https://github.com/vllm-project/vllm/issues/52741
    plain, strict = (served.ask(tools=[tool], max_tokens=2).usage.prompt_tokens for tool in (TOOL, STRICT))
    assert strict == plain


def test_vllm_leaves_refusals_and_arguments_that_are_no_object_out_of_a_history(by_vllm: Served) -> None:
    def prompt_tokens(arguments: str, **refusal: str) -> int:
        call = {"id": "c1", "type": "function", "function": {"name": "get_order", "arguments": arguments}}
        said = {"role": "assistant", "content": "Wait.", "tool_calls": [call], **refusal}
        history = [*ASK, said, {"role": "tool", "tool_call_id": "c1", "content": "shipped"}]
        tokens: int = by_vllm.ask(history, tools=[TOOL], max_tokens=2).usage.prompt_tokens
        return tokens

    empty = prompt_tokens("{}")
    assert (
        prompt_tokens("[4417, 4418]") == prompt_tokens("{order") == prompt_tokens("{}", refusal="I will not.") == empty
    )
    assert prompt_tokens('{"order_id": "4417"}') > empty


def test_a_stream_has_the_same_answer(served: Served) -> None:
    whole = served.ask().choices[0]
    with served.client() as client:
        stream = client.chat.completions.create(model="model", messages=ASK, stream=True)
        chunks = [chunk.choices[0] for chunk in stream if chunk.choices]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == whole.message.content
    assert chunks[-1].finish_reason == whole.finish_reason


def test_a_required_call_is_one_of_the_tools_with_valid_arguments(served: Served, tuned: LoadedModel) -> None:
    # The most likely token is the end wherever the form allows it: random weights call again and again.
    end = {str(tuned.tokenizer.eos_token_id): 100}
    (call,) = served.ask(tools=[STRICT], tool_choice="required", logit_bias=end).choices[0].message.tool_calls
    assert call.function.name == "get_order"
    jsonschema.validate(json.loads(call.function.arguments), SCHEMA)


def test_a_named_call_has_valid_arguments(served: Served) -> None:
    named = {"type": "function", "function": {"name": "get_order"}}
    (call,) = served.ask(tools=[STRICT], tool_choice=named).choices[0].message.tool_calls
    assert call.function.name == "get_order"
    jsonschema.validate(json.loads(call.function.arguments), SCHEMA)


def test_an_answer_has_the_form_of_a_schema(served: Served) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "order", "schema": SCHEMA}}
    jsonschema.validate(json.loads(served.ask(response_format=wanted).choices[0].message.content), SCHEMA)


def test_an_answer_is_an_object_where_that_is_asked_for(served: Served) -> None:
    text = served.ask(response_format={"type": "json_object"}, max_tokens=400).choices[0].message.content
    assert isinstance(json.loads(text), dict)


@pytest.fixture(scope="module")
def talkative(tuned: LoadedModel) -> list[Any]:
    """A request whose answer is not over after a few tokens, as most of a model of random weights are."""
    asked = ([{"role": "user", "content": f"Where is order {number}?"}] for number in range(4400, 4500))
    return next(messages for messages in asked if measured_answer(tuned, messages)[2] > 24)


Change = Callable[[torch.Tensor, list[int]], torch.Tensor]


def greedy_with(loaded: LoadedModel, messages: list[Any], count: int, change: Change = lambda logits, _: logits) -> str:
    """`count` tokens of the answer, each the likeliest after `change(logits, tokens so far)`."""
    prompt = loaded.tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    said: list[int] = []
    with torch.no_grad():
        for _ in range(count):
            logits = loaded.model(torch.tensor([prompt + said])).logits[0, -1].float()
            said.append(int(change(logits, said).argmax()))
    text: str = loaded.tokenizer.decode(said, skip_special_tokens=True)
    return text


def test_penalties_and_biases_are_those_of_the_openai_api(
    served: Served, tuned: LoadedModel, talkative: list[Any]
) -> None:
    def penalised(logits: torch.Tensor, said: list[int]) -> torch.Tensor:
        counts = torch.zeros_like(logits)
        for token in said:
            counts[token] += 1
        return logits - 1.5 * counts - 0.5 * (counts > 0)

    likeliest = tuned.tokenizer.encode(greedy_with(tuned, talkative, 1))[0]

    def biased(logits: torch.Tensor, _: list[int]) -> torch.Tensor:
        return logits.index_add(0, torch.tensor([likeliest]), torch.tensor([-100.0]))

    plain = greedy_with(tuned, talkative, 12)
    asked: list[tuple[dict[str, Any], Change]] = [
        ({"frequency_penalty": 1.5, "presence_penalty": 0.5}, penalised),
        ({"logit_bias": {str(likeliest): -100}}, biased),
    ]
    for options, change in asked:
        wanted = greedy_with(tuned, talkative, 12, change)
        assert wanted != plain
        assert served.ask(talkative, max_tokens=12, **options).choices[0].message.content == wanted


def test_log_probabilities_are_those_of_the_model(served: Served, tuned: LoadedModel, talkative: list[Any]) -> None:
    found = served.ask(talkative, max_tokens=3, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    prompt = tuned.tokenizer.apply_chat_template(talkative, add_generation_prompt=True)["input_ids"]
    with torch.no_grad():
        first = torch.log_softmax(tuned.model(torch.tensor([prompt])).logits[0, -1].float(), dim=-1).topk(3)
    assert len(found) == 3
    told = found[0].top_logprobs
    assert [one.token for one in told] == [tuned.tokenizer.decode([token]) for token in first.indices.tolist()]
    assert [one.logprob for one in told] == pytest.approx(first.values.tolist(), abs=0.02)
    assert found[0].logprob == pytest.approx(first.values[0].item(), abs=0.02)


def test_a_stop_string_ends_the_answer_before_it(served: Served, talkative: list[Any]) -> None:
    whole = served.ask(talkative).choices[0].message.content
    stop = whole[len(whole) // 2 :][:4]
    reply = served.ask(talkative, stop=[stop]).choices[0]
    assert reply.message.content == whole[: whole.index(stop)]
    assert reply.finish_reason == "stop"


def test_the_same_seed_gives_the_same_answer(served: Served, talkative: list[Any]) -> None:
    one, same = (served.ask(talkative, temperature=1.0, seed=7).choices[0].message.content for _ in range(2))
    assert one == same


def test_the_responses_api_gives_the_measured_answer_and_calls(served: Served, tuned: LoadedModel) -> None:
    text, _, tokens = measured_answer(tuned, ASK)
    tool: Any = {"type": "function", **STRICT["function"]}
    named: Any = {"type": "function", "name": "get_order"}
    with served.client() as client:
        reply: Any = client.responses.create(
            model="model", input=ASK[0]["content"], max_output_tokens=MEASURED.max_tokens
        )
        assert (reply.output_text, reply.usage.output_tokens) == (text, tokens)
        called = client.responses.create(model="model", input=ASK, tools=[tool], tool_choice=named)
    (call,) = [item for item in called.output if item.type == "function_call"]
    jsonschema.validate(json.loads(call.arguments), SCHEMA)


def test_a_streamed_call_is_the_whole_call(served: Served, tuned: LoadedModel) -> None:
    named: Any = {"type": "function", "function": {"name": "get_order"}}
    (whole,) = served.ask(tools=[STRICT], tool_choice=named).choices[0].message.tool_calls
    with served.client() as client:
        stream = client.chat.completions.create(
            model="model", messages=ASK, tools=[STRICT], tool_choice=named, stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        chunks: list[Any] = list(stream)
    parts = [part for chunk in chunks if chunk.choices for part in chunk.choices[0].delta.tool_calls or []]
    assert [part.function.name for part in parts if part.function.name] == ["get_order"]
    streamed = "".join(part.function.arguments or "" for part in parts)
    assert json.loads(streamed) == json.loads(whole.function.arguments)  # vLLM writes whole calls anew
    assert chunks[-1].usage.completion_tokens > 0


def test_an_answer_names_the_weights_by_their_digest(served: Served, exported: Path) -> None:
    digest = json.loads((exported / MARKER).read_text())["weights"]
    assert served.ask(max_tokens=2).system_fingerprint == f"fp_{digest[:16]}"


def test_a_request_may_ask_for_another_sampling(served: Served, tuned: LoadedModel) -> None:
    greedy = served.ask().choices[0].message.content
    sampled = {served.ask(temperature=1.0, seed=seed).choices[0].message.content for seed in (1, 2)}
    assert len(sampled | {greedy}) == 3
    assert served.ask(max_tokens=2).usage.completion_tokens == 2
    longer, unending = MEASURED.max_tokens + 9, {str(tuned.tokenizer.eos_token_id): -100}
    assert served.ask(max_tokens=longer, logit_bias=unending).usage.completion_tokens == longer


def test_the_model_is_listed_and_another_is_an_error(served: Served) -> None:
    with served.client() as client:
        assert [model.id for model in client.models.list()] == ["model"]
        with pytest.raises(openai.NotFoundError, match="other"):
            client.chat.completions.create(model="other", messages=ASK)


def test_clients_need_the_key_and_nobody_can_change_the_weights(served: Served) -> None:
    assert httpx.get(f"{served.url}/v1/models", timeout=None).status_code == 401
    assert httpx.get(f"{served.url}/health", timeout=None).status_code == 200
    for path in ("pause", "update_weight_version", "v1/load_lora_adapter"):
        refused = httpx.post(f"{served.url}/{path}", headers={"Authorization": f"Bearer {KEY}"}, json={}, timeout=None)
        assert refused.status_code == 404, path
    # Of vLLM's own paths `/invocations` does the same as `/v1`.
    body = {"model": "model", "messages": ASK, "max_tokens": 2}
    for path, asked in (("invocations", body), ("tokenize", {"model": "model", "prompt": "a"})):
        assert httpx.post(f"{served.url}/{path}", json=asked, timeout=None).status_code in (401, 404), path


def test_the_readme_of_an_export_has_the_command_line_that_runs(by_vllm: Served, exported: Path) -> None:
    lines = (exported / "README.md").read_text().splitlines()
    printed = next(shlex.split(line) for line in lines if line.startswith("python -m vllm."))
    (engine,) = [
        words
        for place in Path("/proc").glob("[0-9]*")
        if (words := arguments_of(place)) and printed[2] in words and str(exported / "model") in words
    ]
    ran = engine[engine.index(printed[2]) :]
    port = by_vllm.url.rpartition(":")[2]
    changed = {"model": str(exported / "model"), "desk": "model", "8000": port}
    expected = [changed.get(word, word) for word in printed[2:]]
    assert ran[: len(expected)] == expected
    assert (ran[len(expected)], tuple(ran[-len(HANDED_ON) :])) == ("--enable-request-id-headers", HANDED_ON)


def arguments_of(place: Path) -> list[str]:
    try:
        return (place / "cmdline").read_text().split("\0")[:-1]
    except OSError:
        return []


TOOLS = """
def get_order(order_id: str) -> str:
    return "shipped"

def even_letters(rollout):
    return sum(map(ord, rollout.answer)) % 2 == 0
"""


def test_the_check_of_a_readme_measures_the_server(served: Served, exported: Path, tmp_path: Path) -> None:
    (tmp_path / "measured.py").write_text(TOOLS)
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps({"prompt": f"Where is order {n}?"}) + "\n" for n in "12"))
    lines = (exported / "README.md").read_text().splitlines()
    words = next(shlex.split(line) for line in lines if line.startswith("toolbake evaluate"))
    given = {"TOOLS": f"{tmp_path}/measured.py:get_order", "TASKS": str(tmp_path / "tasks.jsonl"), "desk": "model"}
    given |= {"VERIFIER": f"{tmp_path}/measured.py:even_letters", "http://127.0.0.1:8000/v1": f"{served.url}/v1"}
    command = [given.get(word, word) for word in words[1:]]
    key = ["--api-key-env", "DESK_KEY", "--json", "--quiet"]
    told = CliRunner().invoke(app, [*command, *key], env={"DESK_KEY": KEY})
    assert told.exit_code == 0, told.stderr
    (condition,) = json.loads(told.stdout)["conditions"].values()
    assert (condition["rollouts"], condition["unscored"]) == (2, 0)


def test_an_answer_has_the_id_that_its_request_gave(served: Served) -> None:
    with served.client() as client:
        asked = client.chat.completions.with_raw_response.create(
            model="model", messages=ASK, extra_headers={"X-Request-Id": "desk-7"}
        )
    assert asked.headers["X-Request-Id"] == "desk-7"


def test_vllm_has_the_arguments_that_are_handed_on(by_vllm: Served) -> None:
    assert len(by_vllm.ask(logprobs=True, top_logprobs=3).choices[0].logprobs.content[0].top_logprobs) == 3
    with pytest.raises(openai.BadRequestError, match="logprobs"):
        by_vllm.ask(logprobs=True, top_logprobs=4)


@pytest.fixture(scope="module")
def told_by_vllm(by_vllm: Served) -> tuple[dict[str, Any], dict[str, Any]]:
    return told_by(by_vllm.url, by_vllm.url, DESK_MODEL="model", DESK_KEY=KEY)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_an_agent_of_a_framework_calls_its_tools_at_vllm(
    name: str, told_by_vllm: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    said = ["It has been shipped."] * 2
    assert told_by_vllm[0][name] == {"answers": said, "called": ["4417", "4418"]}


@pytest.mark.parametrize("name", STRUCTURED)
def test_an_answer_of_vllm_has_the_form_of_the_class_that_a_framework_asks_for(
    name: str, told_by_vllm: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    found = told_by_vllm[1][name]
    assert "answers" in found, found["error"]
    assert found["answers"] == [PLACE] * len(found["answers"])
    assert found["answers"]


def test_vllm_is_refused_where_it_would_serve_something_else(
    vllm_python: Path, small_model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLBAKE_VLLM_PYTHON", str(vllm_python))
    folder = save_model(
        small_model.model, small_model.tokenizer, tmp_path / "names", family="template", tool_prompt="names"
    )
    with pytest.raises(ConfigError, match="show names only of clients' tools, and vLLM shows them in full"):
        serve_with_vllm(folder, port=0)
    with pytest.raises(ConfigError, match="there is no key"):
        serve_with_vllm(folder, host="0.0.0.0", port=0)
    with pytest.raises(ConfigError, match="drain_seconds is -1"):
        serve_with_vllm(folder, port=0, drain_seconds=-1)
    for argument in (
        "--host=0.0.0.0",
        "--ho",
        "--api_key=none",
        "--ssl-cert-reqs=2",
        "--ssl-c=cert.pem",
        "--grpc",
        "--tool-strict-level=auto",
    ):
        with pytest.raises(ConfigError, match=f"'{argument}' is not handed on to vLLM: the host, the port, the key"):
            serve_with_vllm(folder, port=0, arguments=(argument,))
    for argument in ("0.0.0.0", "-O--host=0.0.0.0", "--override-generation-config.x", "--", "-tp=2"):
        with pytest.raises(ConfigError, match="write it as --NAME or --NAME=VALUE"):
            serve_with_vllm(folder, port=0, arguments=(argument,))
    older = VllmBuild(str(vllm_python), "vllm", "0.30.2", cpu=False)
    with monkeypatch.context() as patched:
        patched.setattr("sdk.serving.vllm_server.find_vllm", lambda _: older)
        with pytest.raises(ConfigError, match=r"vLLM 0\.30\.2 .* as strict_tools asks: .* 0\.31 or .*no-strict-tools"):
            serve_with_vllm(folder, port=0, tool_prompt="full", strict_tools=True)
    other = copy.deepcopy(small_model.tokenizer)
    other.eos_token = "<|endoftext|>"
    endless = save_model(small_model.model, other, tmp_path / "endless", family="template")
    with pytest.raises(ConfigError, match="no reply of 'endless' that is held to a grammar would end: its template"):
        serve_with_vllm(endless, port=0, strict_tools=True)
    told = CliRunner().invoke(app, ["serve", str(folder), "--engine", "embedded", "--vllm-arg=--dtype=float32"])
    assert "--vllm-arg does nothing for the embedded engine; take it out" in " ".join(told.stderr.split())


def test_without_vllm_the_engine_is_refused_before_the_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLBAKE_VLLM_PYTHON", sys.executable)
    told = CliRunner().invoke(app, ["serve", "no-such-model", "--engine", "vllm"])
    assert told.exit_code == 1
    assert "has no vLLM; name the Python of an environment that has it in TOOLBAKE_VLLM_PYTHON" in " ".join(
        told.stderr.split()
    )


@pytest.mark.parametrize("server", ["by_vllm", "by_the_newest_vllm"])
def test_vllm_logs_json_and_no_health_where_it_is_told_as_documented(
    server: str, request: pytest.FixtureRequest
) -> None:
    documented = (TESTS.parent / "docs" / "serving.md").read_text()
    assert all(f"--vllm-arg={option}" in documented for option in LOGGED)
    served: Served = request.getfixturevalue(server)
    served.ask(max_tokens=1)
    httpx.get(f"{served.url}/health")
    assert served.log is not None
    lines = served.log.read_text().splitlines()
    assert [json.loads(line) for line in lines if "/v1/chat/completions" in line and "POST" in line]
    assert not any("GET /health" in line for line in lines)


def test_the_parsers_that_are_named_are_vllms(vllm_python: Path) -> None:
    packages = next((vllm_python.parents[1] / "lib").glob("python3*")) / "site-packages" / "vllm"
    calls, reasoning = ((packages / name / "__init__.py").read_text() for name in ("tool_parsers", "reasoning"))
    for call_parser, reasoning_parser in PARSERS.values():
        assert f'"{call_parser}": (' in calls
        assert reasoning_parser is None or f'"{reasoning_parser}": (' in reasoning


def test_answers_in_flight_are_completed_when_vllm_is_told_to_end(by_vllm: Served, tuned: LoadedModel) -> None:
    # The last test of this file: the server ends with it.
    unending = {str(tuned.tokenizer.eos_token_id): -100}
    with by_vllm.client() as client:
        stream = client.chat.completions.create(
            model="model", messages=ASK, n=16, temperature=1.0, logit_bias=unending, stream=True
        )
        chunks = [next(stream)]
        by_vllm.process.send_signal(signal.SIGTERM)
        chunks += stream
    ended = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason]
    assert ended == ["length"] * 16
    assert by_vllm.process.wait(120) == 0


def test_calls_of_a_model_that_was_measured_with_valid_ones_are_valid_without_the_client_asking(
    vllm_python: Path, small_model: LoadedModel, tmp_path: Path
) -> None:
    function = TOOL["function"]
    shown = Tool(name=function["name"], description=function["description"], input_schema=function["parameters"])
    loaded = replace(small_model, model=copy.deepcopy(small_model.model))
    sampling = replace(MEASURED, strict_tools=True)
    saved = save_caller(loaded, [shown], ASK[0]["content"], tmp_path / "desk", sampling=sampling)
    exported = export(saved, "vllm", tmp_path / "out")
    # Where vLLM's grammars allow blanks, a model of random weights writes nothing else.
    blank = [number for number in range(len(loaded.tokenizer)) if not loaded.tokenizer.decode([number]).strip()]
    odd: Any = {**TOOL, "function": {"name": "get_order", "parameters": {"$ref": "#/$defs/nowhere"}}}
    for starting in (serving(exported, "embedded", {}), by_vllm_of(vllm_python, exported)):
        with starting as served:
            reply = served.ask(tools=[TOOL], logit_bias={str(number): -100 for number in blank})
            with pytest.raises(openai.BadRequestError) if served.log is not None else nullcontext():
                served.ask(tools=[odd], max_tokens=2)
        (call,) = reply.choices[0].message.tool_calls
        assert call.function.name == "get_order"
        jsonschema.validate(json.loads(call.function.arguments), SCHEMA)
