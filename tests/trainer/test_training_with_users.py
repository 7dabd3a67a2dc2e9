"""Training on tasks whose users hold facts back: the user's words are read, and never trained."""

from pathlib import Path

import pytest

import sdk
from mcp_bridge import connect
from sandboxes.helpdesk import Helpdesk
from sdk.policies.scripted import ByteRenderer
from sdk.rollouts.limits import Limits
from sdk.rollouts.run_context import RunContext
from sdk.tasks import load_tasks
from sdk.traces import RunFolder
from sdk.trainer.demonstrations import demonstration_rows, replay_demonstrations

TASKS = sdk.hold_back(load_tasks("examples/helpdesk/tasks.jsonl")[:60:10], told=["USERTEXT {value}"]).tasks


async def test_a_demonstration_with_a_user_trains_what_the_policy_said_alone() -> None:
    async with connect(Helpdesk()) as source:
        context = RunContext(tools=source, verifier=lambda _: 1.0, limits=Limits(), concurrency=4)
        rollouts = await replay_demonstrations(TASKS, context)
        rows = demonstration_rows(rollouts, ByteRenderer(), source.tools)
    assert len(rows) == len(TASKS)
    for row, task in zip(rows, TASKS, strict=True):
        pairs = list(zip(row.completion_ids, row.sampled, strict=True))
        assert b"USERTEXT" in bytes(token for token, _ in pairs if token < 256)
        learnt = bytes(token for token, sampled in pairs if sampled and token < 256).decode()
        assert learnt.startswith(task.demonstration[0].content)
        assert learnt.endswith(task.demonstration[-1].content)
        assert "USERTEXT" not in learnt


@pytest.mark.timeout(300)
def test_a_run_trains_on_tasks_with_users(tiny_model_dir: Path, tmp_path: Path) -> None:
    config = {
        "probes.tasks": 0,
        "warm_start": {"max_steps": 1, "batch_size": 2},
        "grpo": {"max_steps": 1, "prompts_per_step": 1, "num_generations": 2},
        "evaluation": {"heldout": 1, "validation": 0, "max_served": 0},
        "limits": {"max_turns": 3, "max_turn_tokens": 6, "max_tokens": 18},
        "tool_prompt": "names",
    }

    def even(rollout: sdk.Rollout) -> bool:
        return bool(rollout.calls) or sum(map(ord, rollout.answer)) % 2 == 0

    sdk.train(Helpdesk(), TASKS, even, str(tiny_model_dir), tmp_path / "run", config)
    run = RunFolder.open_to_read(tmp_path / "run")
    assert run.stage("report") is not None
    assert all(one.task.user is not None for stage in run.rollout_stages() for one in run.read_rollouts(stage))
