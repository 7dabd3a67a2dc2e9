"""Whole conversations, with users by rules and by a model, and what the tasks promise."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("tau2.environment", reason="pip install --no-deps -r examples/tau2/requirements.txt")

from domain_tasks import tasks
from domain_twin import Tau2Twin
from domains import DOMAINS, package_tasks
from reward import verify

import sdk
from mcp_bridge.sources.mcp_json import read_config
from sdk.policies.scripted import ScriptedAgent
from sdk.records import Message, Rollout, Task, ToolCall
from sdk.tasks import load_tasks

EXAMPLE = Path(__file__).parents[2] / "examples" / "tau2"
_SPEC = importlib.util.spec_from_file_location("tau2_replay", EXAMPLE / "replay.py")  # bfcl has a replay.py, too
assert _SPEC is not None
assert _SPEC.loader is not None
replay = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(replay)

ROAMING = "[mms_issue]bad_network_preference|data_mode_off|user_abroad_roaming_disabled_on[PERSONA:None]"


TASKS = {task.id: task for task in tasks()}


def some(domain: str, number: int) -> list[Task]:
    """So many tasks of a domain."""
    found = [task for task in TASKS.values() if task.tags["domain"] == domain]
    return found[:: len(found) // number]


async def played(task: Task, demonstration: Sequence[Message] | None = None) -> Rollout:
    changed = task if demonstration is None else task.model_copy(update={"demonstration": list(demonstration)})
    (rollout,) = await replay.replay(task.tags["domain"], [changed])
    return rollout


@pytest.mark.parametrize("domain", DOMAINS)
async def test_gold_conversations_with_users_by_rules_are_right(domain: str) -> None:
    rollouts = await replay.replay(domain, some(domain, 8))
    assert [one.task.id for one in rollouts if one.verdict is None or one.verdict.score != 1] == []
    assert all(one.user_turns[0].told and one.user_turns[-1].ended for one in rollouts)


async def test_a_conversation_over_mcp_leads_to_the_world_that_its_calls_lead_to() -> None:
    rollouts = await replay.replay("telecom", some("telecom", 4), over_mcp=True)
    assert [one.failure for one in rollouts if one.failure] == []
    assert [one.verdict and one.verdict.score for one in rollouts] == [1.0] * len(rollouts)
    assert any(turn.calls for one in rollouts for turn in one.user_turns)


async def test_the_user_acts_on_its_phone_and_the_agent_cannot() -> None:
    task = TASKS[f"telecom/{ROAMING}"]
    rollout = await played(task)
    by_user = [record.call.name for turn in rollout.user_turns for record in turn.calls]
    assert by_user == ["set_network_mode_preference", "toggle_data"]
    assert [record.call.name for record in rollout.calls] == ["enable_roaming"]
    assert rollout.shown_tools is not None
    assert not {"toggle_data", "can_send_mms"} & set(rollout.shown_tools)
    itself = [
        Message(role="assistant", tool_calls=[ToolCall(id="x", name="toggle_data")])
        if "toggle data" in one.content
        else one
        for one in task.demonstration
    ]
    refused = await played(task, itself)
    assert refused.calls[0].result.error_kind == "unknown_tool"
    assert refused.verdict is not None
    assert refused.verdict.components == {"ENV_ASSERTION": 0.0}


async def test_an_action_that_is_left_out_is_wrong() -> None:
    task = TASKS["airline/12"]
    calls = [one for one in task.demonstration if one.tool_calls]
    rollout = await played(task, [one for one in task.demonstration if one is not calls[-1]])
    assert rollout.verdict is not None
    assert rollout.verdict.score == 0
    assert rollout.verdict.explanation == "not as asked: DB"


async def test_a_rollout_that_was_cut_off_is_wrong_and_a_state_that_calls_do_not_lead_to_is_no_evidence() -> None:
    rollout = await played(TASKS["retail/3"])
    assert verify(rollout).score == 1
    assert verify(rollout.model_copy(update={"stop_reason": "turn_limit"})).score == 0
    forged = json.loads(json.dumps(rollout.final_state))
    forged["orders"].popitem()
    with pytest.raises(sdk.VerifierError, match="another state"):
        verify(rollout.model_copy(update={"final_state": forged}))


def test_a_model_can_play_the_user_and_use_its_phone() -> None:
    task = TASKS["telecom/[mobile_data_issue]data_mode_off|data_usage_exceeded[PERSONA:None]"]
    refuel = {"customer_id": "C1001", "line_id": "L1002", "gb_amount": 2.0}
    agent = ["Is your mobile data on?", ToolCall(id="a", name="refuel_data", arguments=refuel), "It works again."]

    def user(messages: list[Message], seed: int) -> str | ToolCall:
        if messages[-1].role == "tool":
            return "Now it is."
        asked = messages[-1].content == agent[0]
        return ToolCall(id="b", name="toggle_data") if asked else "Thank you. ###STOP###"

    rollout = sdk.rollout(
        Tau2Twin("telecom"), task, model=ScriptedAgent(agent), verifier=verify, user_model=ScriptedAgent(user)
    )
    assert rollout.failure is None
    assert [record.call.name for record in rollout.user_turns[0].calls] == ["toggle_data"]
    assert rollout.verdict is not None
    assert rollout.verdict.score == 1


def test_tasks_have_users_and_families() -> None:
    assert len(TASKS) == 278
    for task in TASKS.values():
        assert task.user is not None
        assert task.user.scenario == str(package_tasks(task.tags["domain"])[task.setup["scenario"]].user_scenario)
        assert not {"you", "your", "yourself"} & set(task.opening()[-1].content.lower().split()), task.id
    personas = [task for task in TASKS.values() if task.id.startswith(f"telecom/{ROAMING.partition('[PERSONA')[0]}[")]
    assert len({task.family for task in personas}) == 1


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_splits_of_the_package_are_kept(domain: str) -> None:
    train, test, base = (package_tasks(domain, split).keys() for split in ("train", "test", "base"))
    assert train | test == base
    assert not train & test
    with pytest.raises(ValueError, match="base, train, test"):
        tasks((domain,), "big")


def test_the_files_of_the_example_fit_together(tmp_path: Path) -> None:
    config = json.loads((EXAMPLE / "mcp.json").read_text())
    (spec,) = read_config(config, where="mcp.json", folder=EXAMPLE)
    assert (EXAMPLE / spec.args[0]).is_file()
    assert spec.args[1] in DOMAINS
    command = [sys.executable, str(EXAMPLE / "domain_tasks.py"), "airline", "--split", "test"]
    written = subprocess.run(command, capture_output=True, text=True, check=True)
    (tmp_path / "tasks.jsonl").write_text(written.stdout)
    assert load_tasks(tmp_path / "tasks.jsonl") == tasks(("airline",), "test")
