"""The model behind an agent of the user's is trained: on the tokens that it sampled for it, once each."""

import itertools
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

import sdk
from mcp_bridge import connect
from sdk.agents import host_of, program_of
from sdk.policies.scripted import ByteRenderer
from sdk.records import TokenRow
from sdk.rollouts.run_context import RunContext
from sdk.traces import RunFolder
from sdk.trainer.demonstrations import replay_demonstrations, rows_by_agent
from sdk.verifiers import answer_match

QUICK = {
    "probes.tasks": 0,  # the verifier of these tests is a coin
    "warm_start.max_steps": 1,
    "grpo.max_steps": 2,
    "grpo.prompts_per_step": 2,
    "grpo.num_generations": 4,
    "evaluation.heldout": 2,
    "evaluation.max_served": 0,
    "evaluation.validation": 0,
    "rollouts.retries": 1,
    "limits": {"max_turns": 4, "max_turn_tokens": 6, "max_tokens": 24},
}
SHOWN = [{"role": "assistant", "content": "Two."}] * 3  # the agent asks three times
TASKS = [{"prompt": f"What is {n} + 1?", "demonstration": SHOWN} for n in range(8)]


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def even_letters(rollout: sdk.Rollout) -> bool:
    """About half of a random model's rollouts pass, so that groups have a signal."""
    return sum(map(ord, rollout.answer)) % 2 == 0


def ask(endpoint: sdk.AgentEndpoint, *messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    # One token fewer than the limit: an answer that is cut there does not end the rollout.
    body = {"model": endpoint.model, "messages": messages, "max_tokens": 5, **more}
    answer = httpx.post(f"{endpoint.base_url}/chat/completions", json=body, headers=endpoint.mcp_headers, timeout=60)
    message: dict[str, Any] = answer.raise_for_status().json()["choices"][0]["message"]
    return message


ATTEMPTS = itertools.count()
FIRST_OF_GRPO = 2 + 6 + 2
"""Attempts before: the held-out tasks, the demonstrations, and the held-out tasks again."""
ANSWERS: list[str] = []


def forgetful_agent(task: sdk.Task, endpoint: sdk.AgentEndpoint) -> str:
    """Asks twice in one conversation, then begins a new one with what it remembers. Crashes once, in the training."""
    question = {"role": "user", "content": task.opening()[0].content}
    first = ask(endpoint, question)
    if next(ATTEMPTS) == FIRST_OF_GRPO:
        raise ConnectionError("the agent's own database is gone")
    second = ask(endpoint, question, first, {"role": "user", "content": "Are you sure?"})
    third = ask(endpoint, {"role": "user", "content": f"You said {second['content']}. Now say it briefly."})
    ANSWERS.append(third["content"])
    return str(third["content"])


def train(model: Path, folder: Path, agent: Any = forgetful_agent, **more: Any) -> sdk.TrainResult:
    return sdk.train([add], TASKS, even_letters, str(model), folder, {**QUICK, **more}, agent=agent)


@pytest.mark.timeout(300)
def test_the_tokens_sampled_for_an_agent_are_trained_once_also_where_it_forgets(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    result = train(tiny_model_dir, tmp_path / "run")
    assert ANSWERS.count("Two.") == 6, "the warm start learns what the agent was told in place of its model's messages"
    folder = RunFolder.open_to_read(result.run_dir)
    rollouts = folder.read_rollouts("grpo")
    assert len(rollouts) == 16
    assert all(rollout.scored and len(rollout.rows) == 2 for rollout in rollouts)
    assert [sum(row.sampled) > 0 for rollout in rollouts for row in rollout.rows] == [True] * 32
    lines = [line for line in folder.read_metrics() if line["stage"] == "grpo"]
    sampled = sum(sum(row.sampled) for rollout in rollouts for row in rollout.rows)
    assert sum(line["sampled_tokens"] for line in lines) == sampled == sum(r.sampled_tokens for r in rollouts)
    assert any(line["groups_with_signal"] for line in lines)
    # The trainer's own forward says the same of every token: prompts and tokens are as they were sampled.
    assert max(line["sampler_gap/max"] for line in lines if "sampler_gap/max" in line) < 1e-4
    assert {version for r in rollouts for row in r.rows for version in row.versions if version >= 0} == {0, 1}
    figures = [line for line in folder.read_metrics() if line["stage"] == "rollouts" and "step" in line]
    assert [line["history_breaks"] for line in figures] == [8, 8]
    assert sum(line["broken_attempts"] for line in figures) == 1
    broken = folder.read_rollouts("grpo_broken")
    assert sum(line["broken_tokens"] for line in figures) == sum(rollout.sampled_tokens for rollout in broken)
    assert result.report.run["agent"] == "forgetful_agent"
    assert result.report.run["history_breaks"] == 3 * 2
    assert "forgetful" in (folder.path / "report.md").read_text()

    again = train(tiny_model_dir, tmp_path / "run")
    assert again.report.conditions == result.report.conditions
    assert ANSWERS.count("Two.") == 6
    with pytest.raises(sdk.RunFolderError, match=r"agent\.name"):
        train(tiny_model_dir, tmp_path / "run", agent="node agent.js")


def test_branches_of_an_agents_rollouts_are_refused_before_the_run_begins(tiny_model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(sdk.ConfigError, match=r"set rollouts\.branches to 0, or leave agent out"):
        train(tiny_model_dir, tmp_path / "run", **{"rollouts.branches": 1})
    assert not (tmp_path / "run").exists()


INSTRUCTED = "Be brief, and add."
SUM = sdk.ToolCall(id="", name="add", arguments={"a": 2, "b": 1})


def shown(*said: Any) -> dict[str, Any]:
    messages = [sdk.Message(role="assistant", **({"content": one} if isinstance(one, str) else one)) for one in said]
    return {"prompt": "What is 2 + 1?", "demonstration": messages, "expected": {"answer": "3"}}


def calling_agent(task: sdk.Task, endpoint: sdk.AgentEndpoint) -> str:
    """Has a system prompt of its own; makes one call, and has the result put into words in another conversation."""
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    question = {"role": "user", "content": task.opening()[0].content}
    first = ask(endpoint, {"role": "system", "content": INSTRUCTED}, question, tools=[tool])
    made = json.loads(first["tool_calls"][0]["function"]["arguments"])
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "add", "arguments": made}}
    headers = {**endpoint.mcp_headers, "Accept": "application/json, text/event-stream"}
    httpx.post(endpoint.mcp_url, json=body, headers=headers, timeout=60).raise_for_status()
    return str(ask(endpoint, {"role": "user", "content": "Put 3 into words."})["content"])


def text_of(ids: Any) -> str:
    return ByteRenderer().decode(ids)


async def learned_by(agent: Any, *tasks: dict[str, Any]) -> tuple[list[sdk.Rollout], list[TokenRow]]:
    async with connect([add]) as tools, host_of(program_of(agent)) as host:
        assert host is not None
        context = RunContext(tools=tools, verifier=answer_match(), limits=sdk.Limits(), concurrency=2)
        rollouts = await replay_demonstrations([sdk.Task.model_validate(task) for task in tasks], context)
        return rollouts, await rows_by_agent(rollouts, context, host, ByteRenderer())


async def test_a_demonstration_is_learned_from_in_the_conversations_that_the_agent_has() -> None:
    _, rows = await learned_by(calling_agent, shown({"tool_calls": [SUM]}, "It is 3."))
    assert len(rows) == 2
    assert f"<system>{INSTRUCTED}<end><user>What is 2 + 1?" in text_of(rows[0].prompt_ids)
    assert "Put 3 into words." in text_of(rows[1].prompt_ids)
    sampled = [
        text_of(token for token, mine in zip(r.completion_ids, r.sampled, strict=True) if mine) for r in rows
    ]  # fmt: skip
    assert sampled == ['<tool_call>{"name": "add", "arguments": {"a": 2, "b": 1}}</tool_call><end>', "It is 3.<end>"]


async def test_demonstrations_that_the_agent_cannot_play_are_left_out_or_refused_by_name() -> None:
    fits, too_short = shown({"tool_calls": [SUM]}, "It is 3."), shown("It is 3.")
    _, rows = await learned_by(calling_agent, fits, too_short)
    assert len(rows) == 2
    with pytest.raises(sdk.ConfigError, match=r"the first is task .* agent broke: AgentCrashed.*warm_start\.max_steps"):
        await learned_by(calling_agent, too_short)
