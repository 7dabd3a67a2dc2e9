"""Calls are held to the tools and their schemas: in rollouts that train (`rollouts.strict_tools`), where the loss has
the probabilities of the same distribution, and where the model is measured and served. The model begins each reply as
a call, and goes on nearly at random."""

from __future__ import annotations

import asyncio
import contextlib
import json
from functools import partial
from pathlib import Path
from typing import Any, Literal

import anyio
import httpx
import jsonschema
import openai
import pytest
import torch
from calling_model import save_caller
from heard import Heard
from test_reference_and_correction import trainer_for
from test_training_runs import NO_MODEL, TINY, StopAt

import sdk
from mcp_bridge import connect
from mcp_bridge.records import Tool
from sdk.policies.embedded import EmbeddedEngine
from sdk.policies.grammar import ReplyGrammars
from sdk.policies.model_source import grammars_of_calls
from sdk.policies.models import load_model, save_model
from sdk.policies.protocol import Sampling
from sdk.policies.rendering import make_renderer
from sdk.policies.token_agent import TokenAgent
from sdk.records import Message, Rollout, Task, TokenRow, ToolCall, Verdict
from sdk.rollouts.branching import branch_id
from sdk.traces import RunFolder
from sdk.trainer.batch import Batch, BatchStats, TrainRow, build_batch
from sdk.trainer.config import TrainConfig
from sdk.trainer.grpo import RolloutTrainer
from sdk.trainer.micro_batches import Plan, collate_batch

STRICT: dict[str, Any] = {
    **TINY,
    "rollouts.strict_tools": True,
    "evaluation.strict_tools": False,
    "warm_start.max_steps": 0,
    "grpo.max_steps": 2,
    "limits": {"max_turns": 2, "max_turn_tokens": 150, "max_tokens": 300},
}
QUESTIONS = [f"Paint door {n}." for n in range(8)]


def paint(color: Literal["red", "green"], coats: Literal[1, 2, 3]) -> str:
    """Paint the door."""
    return f"{coats} coats of {color}"


def painted_red(rollout: sdk.Rollout) -> bool:
    return any(record.call.arguments.get("color") == "red" for record in rollout.calls)


@pytest.fixture(scope="module")
def tools() -> list[Tool]:
    async def listed() -> list[Tool]:
        async with connect([paint]) as source:
            return list(source.tools)

    return anyio.run(listed)


@pytest.fixture(scope="module")
def caller_dir(tiny_model_dir: Path, tools: list[Tool], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "caller"
    return save_caller(load_model(str(tiny_model_dir)), tools, QUESTIONS[0], folder)


def valid(call: ToolCall, tools: list[Tool]) -> bool:
    [schema] = [tool.input_schema for tool in tools if tool.name == call.name] or [None]
    return (
        call.error is None and schema is not None and jsonschema.Draft202012Validator(schema).is_valid(call.arguments)
    )


def rollouts_of(folder: Path, tools: list[Tool], *, strict: bool) -> list[Rollout]:
    """Six conversations of two turns each with the model in `folder`."""
    loaded = load_model(str(folder))
    renderer = make_renderer(loaded.tokenizer, family=loaded.family)

    async def play(agent: TokenAgent, seed: int) -> Rollout:
        sampling = Sampling(max_tokens=150, strict_tools=strict)
        talk = agent.start(tools, sampling=sampling, seed=seed)
        messages: list[Message] = []
        for question in (QUESTIONS[seed % 2], "Again."):
            reply = await talk.reply([Message(role="user", content=question)])
            messages.append(reply.message)
            if reply.stop_reason == "length":
                break
        return Rollout(
            id=f"r{seed}",
            task=Task(prompt="p"),
            messages=messages,
            rows=talk.rows(),
            verdict=Verdict(score=seed),
            turns=len(messages),
            stop_reason="token_limit" if reply.stop_reason == "length" else "answered",
        )

    async def all_of_them() -> list[Rollout]:
        with EmbeddedEngine(loaded.model) as engine:
            grammars = ReplyGrammars.of(renderer, loaded.tokenizer, vocabulary=engine.vocabulary)
            agent = TokenAgent(engine, renderer, grammars=grammars)
            return await asyncio.gather(*(play(agent, seed) for seed in range(6)))

    return asyncio.run(all_of_them())


@pytest.fixture(scope="module")
def strict_rollouts(caller_dir: Path, tools: list[Tool]) -> list[Rollout]:
    return rollouts_of(caller_dir, tools, strict=True)


def calls_of(rollouts: list[Rollout]) -> list[ToolCall]:
    """But for one that the limit of its turn cut off."""
    found = []
    for rollout in rollouts:
        calls = [call for message in rollout.messages for call in message.tool_calls]
        found += calls[:-1] if rollout.stop_reason == "token_limit" else calls
    return found


def test_every_call_is_valid_with_it_and_not_without(
    caller_dir: Path, tools: list[Tool], strict_rollouts: list[Rollout]
) -> None:
    called = calls_of(strict_rollouts)
    assert len(called) >= 6
    assert all(valid(call, tools) for call in called)
    assert len({json.dumps(call.arguments) for call in called}) > 2, "what is left to choose is sampled"
    free = rollouts_of(caller_dir, tools, strict=False)
    assert not any(valid(call, tools) for call in calls_of(free))
    assert not any(row.allowed for rollout in free for row in rollout.rows)


def test_only_sampled_tokens_have_masks_and_equal_masks_are_one_object(strict_rollouts: list[Rollout]) -> None:
    rows = [row for rollout in strict_rollouts for row in rollout.rows]
    for row in rows:
        assert [mask is not None for mask in row.allowed] == row.sampled
        assert not all(row.sampled)
    masks = [mask for row in rows for mask in row.allowed if mask is not None]
    assert len(set(map(id, masks))) == len(set(masks)) < len(masks) / 2
    for row in rows:
        for token, mask in zip(row.completion_ids, row.allowed, strict=True):
            assert mask is None or mask[token // 8] >> token % 8 & 1


def test_masks_are_in_no_file_and_a_copy_has_them(strict_rollouts: list[Rollout]) -> None:
    row = strict_rollouts[0].rows[0]
    assert "allowed" not in row.model_dump()
    assert "allowed" not in json.loads(row.model_dump_json())
    assert row.copied().allowed == row.allowed
    assert row.copied().allowed is not row.allowed


def parts_of(rows: list[TokenRow], advantages: list[float]) -> list[dict[str, torch.Tensor]]:
    count = sum(sum(row.sampled) for row in rows)
    group = [TrainRow(row, advantage) for row, advantage in zip(rows, advantages, strict=True)]
    batch = Batch([group], BatchStats(scored_tokens=count, scored_rows=len(rows)))
    ((part,),) = collate_batch(batch, Plan(), loss_type="dapo", pad_id=0, device="cpu")
    return [part]


def largest_gap(trainer: RolloutTrainer, parts: list[dict[str, torch.Tensor]]) -> float:
    """Between the log-probabilities of trainer and sampler, in nats; the loss has had its backward pass."""
    trainer._figures.clear()
    trainer.model.zero_grad()
    trainer.compute_loss(trainer.model, {"parts": parts}).backward()
    return max(gap for gap, _ in trainer._figures["sampler_gap/max"])


@pytest.mark.parametrize("options", [{}, {"lora.r": 4}, {"grpo.beta": 0.1, "grpo.entropy_coef": 0.1}])
def test_trainer_and_sampler_find_the_same_probabilities_and_others_without_the_masks(
    caller_dir: Path, tmp_path: Path, strict_rollouts: list[Rollout], options: dict[str, Any]
) -> None:
    trainer = trainer_for(caller_dir, tmp_path, **options)
    trainer.model.train()
    rows = [rollout.rows[0] for rollout in strict_rollouts]
    advantages = [1.0, -1.0, 0.5, -0.5, 2.0, -2.0]
    parts = parts_of(rows, advantages)
    assert largest_gap(trainer, parts) < 1e-3
    gradients = [weight.grad for weight in trainer.model.parameters() if weight.grad is not None]
    assert all(bool(one.isfinite().all()) for one in gradients)
    assert any(bool(one.any()) for one in gradients)
    if trainer._reference is not None:
        sampled = parts[0]["tool_mask"].bool() & parts[0]["completion_mask"].bool()
        gap = parts[0]["ref_per_token_logps"] - parts[0]["old_per_token_logps"]
        assert gap[sampled].abs().max() < 1e-3
    bare = [row.model_copy(update={"allowed": []}) for row in rows]
    assert largest_gap(trainer, parts_of(bare, advantages)) > 1


def test_a_branch_keeps_the_masks_of_the_turns_it_trains(strict_rollouts: list[Rollout]) -> None:
    first, second = strict_rollouts[0], strict_rollouts[2]
    branch = second.model_copy(update={"id": branch_id(first.id, 1, 0)})
    ((*rows,),) = build_batch([[first, branch]], TrainConfig.of({"grpo.scale_rewards": "none"})).groups
    assert rows
    for row in rows:
        assert len(row.tokens.allowed) == len(row.tokens.completion_ids)
        assert all(mask is not None for mask, own in zip(row.tokens.allowed, row.tokens.sampled, strict=True) if own)


@pytest.fixture(scope="module")
def run(caller_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> sdk.TrainResult:
    folder = tmp_path_factory.mktemp("runs") / "run"
    return sdk.train([paint], QUESTIONS, painted_red, str(caller_dir), folder, STRICT)


def test_a_run_samples_valid_calls_and_trains_what_it_sampled(run: sdk.TrainResult, tools: list[Tool]) -> None:
    folder = RunFolder.open_to_read(run.run_dir)
    rollouts = folder.read_rollouts("grpo")
    assert len(rollouts) == 16
    assert all(valid(call, tools) for call in calls_of(rollouts))
    assert sum(bool(rollout.calls) for rollout in rollouts) > 8
    lines = [line for line in folder.read_metrics() if line["stage"] == "grpo"]
    assert any(line["groups_with_signal"] for line in lines)
    assert max(line["sampler_gap/max"] for line in lines if "sampler_gap/max" in line) < 1e-3


def test_measurements_and_the_saved_model_are_not_constrained_by_it(run: sdk.TrainResult, tools: list[Tool]) -> None:
    folder = RunFolder.open_to_read(run.run_dir)
    measured = folder.read_rollouts("untrained")
    assert measured
    assert not any(valid(call, tools) for call in calls_of(measured))
    assert "strict_tools" not in str(run.report)


@pytest.fixture(scope="module")
def measured_strictly(caller_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> sdk.TrainResult:
    """By default."""
    changes = {
        "rollouts.strict_tools": False,
        "evaluation.strict_tools": None,
        "evaluation.validation": 2,
        "evaluation.max_served": 2,
    }
    folder = tmp_path_factory.mktemp("runs") / "door"
    return sdk.train([paint], QUESTIONS, painted_red, str(caller_dir), folder, {**STRICT, **changes})


def test_a_training_measures_valid_calls_and_trains_on_what_the_model_writes(
    measured_strictly: sdk.TrainResult, tools: list[Tool]
) -> None:
    folder = RunFolder.open_to_read(measured_strictly.run_dir)
    free = calls_of(folder.read_rollouts("grpo"))
    stages = [stage for stage in folder.rollout_stages() if not stage.startswith("grpo")]
    assert {"untrained", "after_grpo", "validation_untrained", "served"} <= set(stages)
    for calls in (calls_of(folder.read_rollouts(stage)) for stage in stages):
        assert calls
        assert all(valid(call, tools) for call in calls)
    assert not any(valid(call, tools) for call in free)
    assert "Calls were held to the tools and their schemas (strict_tools)." in str(measured_strictly.report)


def test_a_model_is_served_as_it_was_measured_unless_it_is_asked_otherwise(
    measured_strictly: sdk.TrainResult, tools: list[Tool]
) -> None:
    for given, held in ((None, True), (False, False)):
        with sdk.serve(measured_strictly.run_dir, port=0, strict_tools=given) as server:
            calls = measured([paint], (f"{server.url}/v1", server.model_name))
            [listed] = httpx.get(f"{server.url}/v1/models", timeout=None).json()["data"]
        assert (
            held == any(valid(call, tools) for call in calls) == (bool(calls) and all(valid(c, tools) for c in calls))
        )
        assert (server.defaults.strict_tools, listed["default_sampling"]["strict_tools"]) == (held, held)


def test_evaluations_and_single_rollouts_of_such_a_model_are_held_too(
    measured_strictly: sdk.TrainResult, caller_dir: Path, tools: list[Tool]
) -> None:
    held = measured([paint], measured_strictly.run_dir)
    assert held
    assert all(valid(call, tools) for call in held)
    assert not any(valid(call, tools) for call in measured([paint], measured_strictly.run_dir, strict_tools=False))
    alone = sdk.rollout([paint], QUESTIONS[0], model=measured_strictly.run_dir, limits=STRICT["limits"])
    assert alone.calls
    assert all(valid(record.call, tools) for record in alone.calls)
    policies = {"before": str(caller_dir), "after": measured_strictly.run_dir}
    report = sdk.evaluate([paint], QUESTIONS[:2], painted_red, models=policies, limits=STRICT["limits"])
    assert "Calls of after were held to the tools and their schemas (strict_tools)." in str(report)


@pytest.mark.parametrize("given", [None, False])
def test_such_a_model_teaches_as_it_was_measured_unless_it_is_asked_otherwise(
    measured_strictly: sdk.TrainResult, tools: list[Tool], given: bool | None, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {"prompts": QUESTIONS, "verifier": lambda rollout: 1.0, "limits": STRICT["limits"]}
    asked |= {"model": measured_strictly.run_dir, "samples": 2, "to": tmp_path / "d.jsonl", "licence": "mit"}
    # Its calls as it writes them cannot be read, so that there is nothing to teach.
    unread = pytest.raises(sdk.ConfigError, match="have a call that cannot be read")
    with contextlib.nullcontext() if given is None else unread:
        sdk.distill(tools=[paint], strict_tools=given, **asked)
    calls = calls_of(RunFolder.open_to_read(tmp_path / "d.jsonl.work").read_rollouts("distill"))
    assert (given is None) == any(valid(call, tools) for call in calls)
    assert (given is None) == (bool(calls) and all(valid(call, tools) for call in calls))


def test_a_tool_that_is_sent_by_its_name_alone_may_have_arguments(measured_strictly: sdk.TrainResult) -> None:
    with sdk.serve(measured_strictly.run_dir, port=0) as server:
        calls = measured([paint], (f"{server.url}/v1", server.model_name), tool_prompts="names")
    assert {call.name for call in calls} == {"paint"}
    assert any(call.arguments for call in calls)


async def test_a_run_that_goes_on_is_measured_as_it_began(
    caller_dir: Path, tools: list[Tool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_here(*_: object, **__: object) -> ReplyGrammars:
        raise sdk.ConfigError("evaluation.strict_tools is true, and not here")

    config = {**STRICT, "rollouts.strict_tools": False, "evaluation.strict_tools": None}
    call = partial(sdk.train_async, [paint], QUESTIONS, painted_red, str(caller_dir), tmp_path / "run", config)
    with anyio.CancelScope() as scope, monkeypatch.context() as patched:
        patched.setattr("sdk.trainer.learner.grammars_of_calls", none_here)
        progress = StopAt(scope, "GRPO", 1)
        await call(progress=progress)
    assert scope.cancelled_caught
    assert "evaluation.strict_tools is off: not here" in progress.said
    result = await call()
    measured = RunFolder.open_to_read(result.run_dir).read_rollouts("after_grpo")
    assert measured
    assert not any(valid(call, tools) for call in calls_of(measured))
    with sdk.serve(result.run_dir, port=0) as server:
        assert not server.defaults.strict_tools


def test_success_by_a_grammar_alone_is_no_reason_to_search_no_demonstrations(caller_dir: Path, tmp_path: Path) -> None:
    def painted(rollout: sdk.Rollout) -> bool:
        return any("coats of" in record.result.text for record in rollout.calls)

    heard = Heard()
    options = {"rollouts.strict_tools": False, "evaluation.strict_tools": None, "warm_start.max_steps": None}
    config = {**STRICT, **options, "evaluation.validation": 2, "grpo.max_steps": 1}
    sdk.train([paint], QUESTIONS, painted, str(caller_dir), tmp_path / "run", config, progress=heard)
    folder = RunFolder.open_to_read(tmp_path / "run")
    assert any(painted(rollout) for rollout in folder.read_rollouts("untrained"))
    assert not any(painted(rollout) for rollout in folder.read_rollouts("first_tries"))
    assert not any("no demonstration is searched" in line for line in heard.lines)


def test_a_tool_without_a_valid_schema_is_no_error_of_a_client_that_did_not_ask(
    measured_strictly: sdk.TrainResult,
) -> None:
    named = {"name": "paint", "parameters": {"type": "object", "properties": {"color": {"pattern": "(?=r)red"}}}}
    with (
        sdk.serve(measured_strictly.run_dir, port=0) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client,
    ):
        asked: Any = [{"role": "user", "content": QUESTIONS[0]}]
        reply = client.chat.completions.create(
            model=server.model_name, messages=asked, tools=[{"type": "function", "function": named}]
        )
    assert reply.choices[0].message.tool_calls[0].function.name == "paint"


async def test_a_run_that_was_stopped_samples_the_step_again_and_trains_what_it_sampled(
    caller_dir: Path, tools: list[Tool], tmp_path: Path
) -> None:
    config = {**STRICT, "grpo.max_steps": 3, "off_policy.max_off_policy_steps": 1}
    call = partial(sdk.train_async, [paint], QUESTIONS, painted_red, str(caller_dir), tmp_path / "run", config)
    with anyio.CancelScope() as scope:
        await call(progress=StopAt(scope, "GRPO", 1))
    assert scope.cancelled_caught
    result = await call()
    folder = RunFolder.open_to_read(result.run_dir)
    rollouts = folder.read_rollouts("grpo")
    assert sorted(rollout.step for rollout in rollouts) == [0] * 8 + [1] * 8 + [2] * 8
    assert all(valid(call, tools) for call in calls_of(rollouts))
    lines = [line for line in folder.read_metrics() if line["stage"] == "grpo"]
    assert [line["step"] for line in lines] == [0, 1, 2]
    # Rollouts of weights one step old are as far from the trainer as that step was; those of the step itself are not.
    assert lines[0].get("sampler_gap/max", 0.0) < 1e-3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"engine": "vllm", "vllm": {"in_flight": True}}, "vllm.in_flight are true.* set one of them to false"),
        ({"engine": "vllm", "grpo.temperature": 2.5}, "grpo.temperature is 2.5, and vLLM takes at most 2"),
        ({"batching.shared_prefix": False}, "batching.shared_prefix is false.* set batching.shared_prefix to true"),
        ({"rollouts.strict_tools": 2}, "rollouts.strict_tools is 2"),
    ],
)
def test_what_it_cannot_go_with_is_refused_before_a_model_is_loaded(
    options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(sdk.ConfigError, match=words):
        sdk.train([paint], QUESTIONS, painted_red, NO_MODEL, tmp_path / "run", {**STRICT, **options})


def test_a_model_whose_calls_are_not_json_is_refused_where_valid_calls_are_asked_for(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    loaded = load_model(str(tiny_model_dir))
    said = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}"
        "<call {{ c.function.name }}/>{% endfor %}<|im_end|>{% endfor %}{% for t in tools or [] %}{{ t.function.name }}"
        "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
    )
    loaded.tokenizer.chat_template = said
    other = save_model(loaded.model, loaded.tokenizer, tmp_path / "other")
    with pytest.raises(
        sdk.ConfigError, match=r"writes calls in a form of which no grammar can be made.* set it to false"
    ):
        sdk.train([paint], QUESTIONS, painted_red, str(other), tmp_path / "run", STRICT)
    with pytest.raises(sdk.ModelError, match=r"no grammar can be made of the calls of 'other'; set it to false"):
        sdk.serve(other, port=0, strict_tools=True)


def test_replies_that_would_not_end_in_vllm_are_refused_before_a_server_is_started(
    caller_dir: Path, tmp_path: Path
) -> None:
    loaded = load_model(str(caller_dir))
    loaded.tokenizer.eos_token = "<|endoftext|>"
    other = save_model(loaded.model, loaded.tokenizer, tmp_path / "other")
    config = {**STRICT, "engine": "vllm", "vllm": {"urls": ["http://127.0.0.1:9"]}}
    with pytest.raises(
        sdk.ConfigError, match=r"ends replies with another token than '<\|endoftext\|>'.* engine to embedded"
    ):
        sdk.train([paint], QUESTIONS, painted_red, str(other), tmp_path / "run", config)


def test_by_default_nothing_is_asked_of_servers_that_may_not_follow_grammars(caller_dir: Path, tmp_path: Path) -> None:
    heard = Heard()
    options = {"rollouts.strict_tools": False, "evaluation.strict_tools": None}
    config = {**STRICT, **options, "engine": "vllm", "vllm": {"urls": ["http://127.0.0.1:9"]}}
    with pytest.raises(sdk.ToolbakeError, match=r"127\.0\.0\.1:9"):
        sdk.train([paint], QUESTIONS, painted_red, str(caller_dir), tmp_path / "run", config, progress=heard)
    assert "evaluation.strict_tools is off: vLLM servers that run already may not follow grammars" in heard.lines


def test_a_sampler_that_follows_another_grammar_is_told_how_to_follow_ours(caller_dir: Path, tools: list[Tool]) -> None:
    loaded = load_model(str(caller_dir))
    grammar = grammars_of_calls(loaded, in_vllm=True).calls(tools)
    spelt_otherwise = loaded.tokenizer.convert_tokens_to_ids(["<", "too", "l", "_", "ca", "ll", ">"])
    with pytest.raises(
        ValueError, match=r"place 1 of a reply is not allowed.* start vLLM with --structured-outputs-config"
    ):
        grammar.allowed_along(spelt_otherwise)


def test_an_agent_without_grammars_refuses_strict_tools(tools: list[Tool], tiny_model_dir: Path) -> None:
    loaded = load_model(str(tiny_model_dir))
    with EmbeddedEngine(loaded.model) as engine:
        agent = TokenAgent(engine, make_renderer(loaded.tokenizer, family=loaded.family), "desk")
        with pytest.raises(sdk.ConfigError, match="strict_tools is true, which 'desk' cannot sample"):
            agent.start(tools, sampling=Sampling(strict_tools=True), seed=0)


def measured(tools_given: Any, model: Any, **options: Any) -> list[ToolCall]:
    """The calls of an evaluation of four tasks."""
    kept: list[Rollout] = []

    async def verify(rollout: Rollout) -> float:
        kept.append(rollout)
        return float(painted_red(rollout))

    limits = {"max_turns": 2, "max_turn_tokens": 150, "max_tokens": 300}
    sdk.evaluate(tools_given, QUESTIONS[:4], verify, model=model, limits=limits, **options)
    return calls_of(kept)


def test_evaluations_are_held_to_valid_calls_also_behind_an_endpoint(caller_dir: Path, tools: list[Tool]) -> None:
    free = measured([paint], str(caller_dir))
    assert not any(valid(call, tools) for call in free)
    held = measured([paint], str(caller_dir), strict_tools=True)
    assert held
    assert all(valid(call, tools) for call in held)
    server = sdk.serve(caller_dir, port=0)
    try:
        served = measured([paint], (f"{server.url}/v1", server.model_name), strict_tools=True)
    finally:
        server.close()
    assert [(call.name, call.arguments) for call in served] == [(call.name, call.arguments) for call in held]


def test_an_evaluation_that_was_held_to_valid_calls_is_another_run(caller_dir: Path, tmp_path: Path) -> None:
    how: dict[str, Any] = {"model": str(caller_dir), "limits": STRICT["limits"], "output_dir": tmp_path / "run"}
    report = sdk.evaluate([paint], QUESTIONS[:1], painted_red, strict_tools=True, **how)
    assert "strict_tools" in str(report)
    with pytest.raises(sdk.ToolbakeError, match="strict_tools"):
        sdk.evaluate([paint], QUESTIONS[:1], painted_red, **how)


def test_agents_that_may_not_know_of_valid_calls_are_refused_before_there_is_a_folder(tmp_path: Path) -> None:
    class Own:
        name = "own"

        def start(self, tools: Any, *, sampling: Any, seed: int) -> Any:
            raise AssertionError("not started")

    with pytest.raises(sdk.ToolbakeError, match="strict_tools is true, and the agent 'own' may not know it"):
        sdk.evaluate([paint], QUESTIONS[:1], painted_red, model=Own(), strict_tools=True, output_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
