"""`sdk.train`, `evaluate` and `rollout` with an MCP server that asks back in the middle of a call."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
from mcp.server.mcpserver import Elicit, MCPServer, Resolve
from mcp_types import ToolAnnotations
from pydantic import BaseModel

import sdk
from mcp_bridge import Elicitation, Handlers, Sampling
from sdk.errors import RunFolderError
from sdk.policies.scripted import ScriptedAgent

TALKATIVE = [sys.executable, str(Path(__file__).parents[1] / "bridge" / "servers" / "talkative.py")]
PAINT: dict[str, Any] = {"name": "paint", "arguments": {"thing": "door"}}
THINK: dict[str, Any] = {"name": "think", "arguments": {}}
TINY = {
    "probes.tasks": 0,
    "warm_start.max_steps": 1,
    "warm_start.batch_size": 1,
    "grpo.max_steps": 0,
    "evaluation.heldout": 1,
    "evaluation.max_served": 0,
    "limits": {"max_turns": 2, "max_turn_tokens": 4, "max_tokens": 8},
}


class Colour(BaseModel):
    colour: str


def which() -> Elicit[Colour]:
    return Elicit("Which colour?", Colour)


def blue(question: Elicitation) -> dict[str, str]:
    return {"colour": "blue"}


def red(question: Elicitation) -> dict[str, str]:
    return {"colour": "red"}


async def word(question: Sampling) -> str:
    return "yes"


def painter() -> ScriptedAgent:
    calls = [sdk.ToolCall(id=f"c{n}", **call) for n, call in enumerate((PAINT, THINK))]
    return ScriptedAgent([calls, "Done."])


def is_blue(rollout: sdk.Rollout) -> bool:
    return [call.result.text for call in rollout.calls if call.result] == ["The door is blue.", "It said yes."]


async def test_a_rollout_answers_what_a_server_asks_with_its_handlers() -> None:
    handlers = Handlers(elicitation=blue, sampling=word)
    answered = await sdk.rollout_async(TALKATIVE, "Paint it.", model=painter(), verifier=is_blue, handlers=handlers)
    assert answered.verdict is not None
    assert answered.verdict.score == 1.0
    refused = await sdk.rollout_async(TALKATIVE, "Paint it.", model=painter(), verifier=is_blue)
    assert refused.verdict is not None
    assert refused.verdict.score == 0.0
    assert [call.result.error_kind for call in refused.calls if call.result] == ["tool_error", "tool_error"]


async def test_an_evaluation_answers_and_other_answers_are_another_run(tmp_path: Path) -> None:
    call: dict[str, Any] = {"model": painter(), "output_dir": tmp_path / "run"}
    kept = Handlers(elicitation=blue, sampling=word, progress=lambda step: None)
    report = await sdk.evaluate_async(TALKATIVE, ["Paint it."], is_blue, handlers=kept, **call)
    (only,) = report.conditions.values()
    assert only.success is not None
    assert only.success.interval.estimate == 1.0
    # Who only listens does not count; who answers does.
    same = Handlers(elicitation=blue, sampling=word)
    await sdk.evaluate_async(TALKATIVE, ["Paint it."], is_blue, handlers=same, **call)
    other = Handlers(elicitation=red, sampling=word)
    with pytest.raises(RunFolderError, match="handlers"):
        await sdk.evaluate_async(TALKATIVE, ["Paint it."], is_blue, handlers=other, **call)


def test_a_training_run_answers_while_demonstrations_are_replayed(tiny_model_folder: Path, tmp_path: Path) -> None:
    asked: list[str] = []

    def user(question: Elicitation) -> dict[str, str]:
        asked.append(question.message)
        return {"colour": "blue"}

    steps = [
        {"role": "assistant", "tool_calls": [{"id": "a", **PAINT}, {"id": "b", **THINK}]},
        {"role": "assistant", "content": "Done."},
    ]
    tasks = [{"prompt": f"Paint door {number}.", "demonstration": steps} for number in range(3)]
    handlers = Handlers(elicitation=user, sampling=word)
    command = {"command": TALKATIVE[0], "args": TALKATIVE[1:], "toolbake": {"isolation": "shared"}}  # one process
    tools = {"mcpServers": {"talkative": command}}
    run = sdk.train(tools, tasks, is_blue, str(tiny_model_folder), tmp_path / "run", TINY, handlers=handlers)
    assert asked == ["Which colour shall the door have?"] * 3, "twice here, and once while its isolation was tried"
    assert "handlers" in json.loads((run.run_dir / "run.json").read_text())["config"]


def asking_server() -> MCPServer:
    """In this process: a tool that asks, and only reads, so that probes call it too."""
    server = MCPServer("asking", log_level="ERROR")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    async def favourite(answer: Annotated[Colour, Resolve(which)]) -> str:
        """The user's favourite colour."""
        return f"It is {answer.colour}."

    return server


async def test_probes_and_new_examples_have_their_questions_answered_too(tmp_path: Path) -> None:
    asked: list[str] = []

    def user(question: Elicitation) -> dict[str, str]:
        asked.append(question.message)
        return {"colour": "blue"}

    def is_told(rollout: sdk.Rollout) -> bool:
        return "It is blue." in [call.result.text for call in rollout.calls if call.result]

    handlers = Handlers(elicitation=user)
    report = await sdk.certify_async(asking_server(), ["Which colour?"], is_told, handlers=handlers)
    # Those that call every tool were told; with nobody to answer, none would be.
    assert {finding.probe.name for finding in report.findings} == {"every_tool", "every_value", "echoes"}
    probed = len(asked)
    assert probed == 3
    agent = ScriptedAgent([sdk.ToolCall(id="c", name="favourite", arguments={}), "Blue."])
    data = await sdk.distill_async(
        tools=asking_server(),
        prompts=["Which colour?"],
        verifier=is_told,
        model=agent,
        samples=1,
        to=tmp_path / "data.jsonl",
        licence="apache-2.0",
        handlers=handlers,
    )
    assert len(data.selection.kept) == 1
    assert asked == ["Which colour?"] * (probed + 1)
