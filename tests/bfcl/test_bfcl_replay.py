"""The example as its users run it: gold calls through the bridge, and what the tasks promise."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

pytest.importorskip("bfcl_eval", reason="install it with: pip install --no-deps -r examples/bfcl/requirements.txt")

from dataset import API_NAMES, CATEGORIES, Entry, all_entries
from one_task import in_one_task
from replay import MCP_JSON, mcp_server, replay, replay_with
from sandbox_conformance import Call, SandboxConformance
from tasks import MORE_FUNCTIONS, tasks
from verifier import verify, verify_few_calls, verify_the_end
from worlds import BfclTwin

import mcp_bridge
import sdk
from mcp_bridge.sources.mcp_json import read_config
from sdk.records import Message, Rollout, Task, ToolCall
from sdk.tasks import load_tasks
from sdk.verifiers import run_verifier

EXAMPLE = Path(__file__).parents[2] / "examples" / "bfcl"


class TestTwin(SandboxConformance):
    seeds_differ = False
    scenarios_tried = ("default", "multi_turn_base_0", "multi_turn_long_context_60", "multi_turn_miss_func_110")

    def make(self) -> BfclTwin:
        return BfclTwin()

    def change(self) -> Call:
        return "add_contact", {"user_name": "Eve"}

    def calls(self) -> list[Call]:
        return [
            ("message_login", {"user_id": "USR001"}),
            ("mkdir", {"dir_name": "notes"}),
            ("cd", {"folder": "nowhere"}),
            ("logarithm", {"value": 10.0, "base": 2.0, "precision": 9}),
            ("get_outside_temperature_from_google", {}),
        ]


@pytest.fixture(scope="module")
async def served() -> AsyncIterator[mcp_bridge.Toolset]:
    """The example's server, in a process of its own."""
    async with in_one_task(mcp_bridge.connect({"mcpServers": mcp_server()}, connect_timeout_s=60)) as toolset:
        yield toolset


@pytest.mark.asyncio(loop_scope="module")  # that of `served`
@pytest.mark.parametrize("category", CATEGORIES)
async def test_gold_calls_are_right_over_mcp(category: str, served: mcp_bridge.Toolset) -> None:
    rollouts = await replay_with(served, tasks((category,))[::5])
    assert [(one.task.id, one.failure) for one in rollouts if one.failure] == []
    assert [one.verdict and one.verdict.score for one in rollouts] == [1.0] * 40


@pytest.mark.parametrize("category", CATEGORIES)
async def test_all_gold_calls_are_right_in_process_by_both_verifiers(category: str) -> None:
    rollouts = await replay(tasks((category,)))
    assert [one.verdict and one.verdict.score for one in rollouts] == [1.0] * 200
    assert [verify_the_end(one).score for one in rollouts] == [1.0] * 200


@pytest.mark.parametrize("category", CATEGORIES)
async def test_the_first_turns_that_ask_for_a_call_are_tasks_of_their_own(category: str) -> None:
    first = tasks((category,), first_turn=True)
    assert [task.id for task in first] == [
        entry.id for entry in all_entries().values() if _asks_at_once(entry, category)
    ]
    rollouts = await replay(first)
    assert [one.verdict and one.verdict.score for one in rollouts] == [1.0] * len(first)
    assert [verify_the_end(one).score for one in rollouts] == [1.0] * len(first)
    nothing = await replay([task.model_copy(update={"demonstration": task.demonstration[-1:]}) for task in first])
    assert [one.verdict and one.verdict.score for one in nothing] == [0.0] * len(first)


def _asks_at_once(entry: Entry, category: str) -> bool:
    return entry.category == category and bool(entry.gold[0])


async def _played(task: Task, demonstration: list[Message]) -> Rollout:
    (rollout,) = await replay([task.model_copy(update={"demonstration": demonstration})])
    return rollout


async def test_a_rollout_that_leaves_one_call_out_is_wrong() -> None:
    task = tasks(("base",))[0]
    place = next(place for place, message in enumerate(task.demonstration) if message.tool_calls)
    rollout = await _played(task, task.demonstration[:place] + task.demonstration[place + 1 :])
    assert rollout.verdict is not None
    assert rollout.verdict.score == 0
    assert "turn 1" in rollout.verdict.explanation
    assert verify_the_end(rollout).score == 0


async def test_calls_too_many_that_only_read_earn_less_where_calls_are_counted_and_wrong_rollouts_earn_nothing() -> (
    None
):
    task = tasks(("base",), first_turn=True)[0]
    looks = [Message(role="assistant", tool_calls=[ToolCall(id=f"look_{number}", name="pwd")]) for number in range(3)]
    gold, longer = await _played(task, task.demonstration), await _played(task, looks + task.demonstration)
    wrong = await _played(task, task.demonstration[1:])
    scores = [(await run_verifier(verify_few_calls, one)).score for one in (gold, longer, wrong)]
    made = len(gold.calls)
    assert scores == pytest.approx([1 + 0.2 * (1 - made / 12), 1 + 0.2 * (1 - (made + 3) / 12), 0])
    assert [verify(one).score for one in (gold, longer, wrong)] == [1, 1, 0]


async def test_a_rollout_that_ends_early_is_wrong() -> None:
    rollout = await _played(tasks(("base",))[1], tasks(("base",))[1].demonstration)
    assert verify(rollout).score == 1
    cut = rollout.model_copy(update={"stop_reason": "turn_limit"})
    assert verify(cut).score == 0
    last_user = max(place for place, message in enumerate(rollout.messages) if message.role == "user")
    unheard = rollout.model_copy(update={"messages": rollout.messages[:last_user]})
    assert "it ended in turn" in verify(unheard).explanation


async def test_a_detour_between_turns_is_wrong_in_every_turn_and_forgiven_at_the_end() -> None:
    task = next(one for one in tasks(("base",)) if one.id == "multi_turn_base_1")
    first_end = next(place for place, message in enumerate(task.demonstration) if not message.tool_calls)
    away = [
        Message(role="assistant", tool_calls=[ToolCall(id="x1", name="mkdir", arguments={"dir_name": "detour"})]),
        task.demonstration[first_end],
        Message(role="assistant", tool_calls=[ToolCall(id="x2", name="rmdir", arguments={"dir_name": "detour"})]),
    ]
    rollout = await _played(task, task.demonstration[:first_end] + away + task.demonstration[first_end + 1 :])
    assert (verify(rollout).score, verify_the_end(rollout).score) == (0, 1)


async def test_a_final_state_that_the_calls_do_not_lead_to_is_no_evidence() -> None:
    task = tasks(("base",))[0]
    rollout = await _played(task, task.demonstration)
    forged = json.loads(json.dumps(rollout.final_state))
    forged["TwitterAPI"]["tweet_counter"]["value"] = 99
    with pytest.raises(sdk.VerifierError, match="another state"):
        verify(rollout.model_copy(update={"final_state": forged}))


async def test_a_call_that_did_not_parse_is_no_call_of_the_turn() -> None:
    task = tasks(("base",))[0]
    broken = Message(role="assistant", tool_calls=[ToolCall(id="b", name="cd", error="this is no JSON")])
    rollout = await _played(task, [broken, *task.demonstration])
    assert rollout.calls[0].result.is_error
    assert verify(rollout).score == 1


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("over_mcp", [False, True])
async def test_a_world_has_the_functions_of_its_entry_and_hides_those_that_come_later(
    over_mcp: bool, served: mcp_bridge.Toolset
) -> None:
    task = next(one for one in tasks(("miss_func",)) if one.id == "multi_turn_miss_func_0")
    entry = all_entries()[task.id]
    ((turn, (name,)),) = entry.held_out.items()
    async with AsyncExitStack() as stack:
        toolset = served if over_mcp else await stack.enter_async_context(mcp_bridge.connect(BfclTwin()))
        assert len(toolset.tools) == 128
        async with toolset.open_world("w", task.setup) as world:
            shown = {tool.name for tool in world.tools}
            assert name not in shown
            assert {"post_tweet", "cd"} <= shown
            assert "book_flight" not in shown
            assert (await world.call("book_flight", {})).is_error
            assert not (await world.call("mkdir", {"dir_name": "a"})).is_error
            hidden = await world.call(name, {"file_name": "x"})
            assert "there is no" not in hidden.text.lower()
            state = await world.state()
            assert state is not None
            assert set(state) == {"clock", "TwitterAPI", "GorillaFileSystem"}
    told = task.later_turns[turn - 1]
    assert told.endswith(MORE_FUNCTIONS)
    assert json.loads(told.removesuffix(MORE_FUNCTIONS))[0]["function"]["name"] == name


def test_tasks_have_all_their_turns_and_the_halves_share_no_story() -> None:
    made = tasks(CATEGORIES)
    assert len({task.id for task in made}) == 800
    assert all(1 + len(task.later_turns) == len(task.expected["turns"]) for task in made)
    assert all(text.strip() for task in made for text in [str(task.prompt), *task.later_turns])
    train, held_out = ([task for task in made if task.tags["split"] == split] for split in ("train", "heldout"))
    assert (len(train), len(held_out)) == (400, 400)
    assert {task.family for task in train} & {task.family for task in held_out} == set()


def test_the_files_of_the_example_fit_together(tmp_path: Path) -> None:
    assert sdk.TrainConfig.of(EXAMPLE / "recipe_7b.json").grpo.num_iterations == 2
    assert sdk.TrainConfig.of(EXAMPLE / "recipe_135m.json").evaluation.max_heldout == 120
    (spec,) = read_config(json.loads(MCP_JSON.read_text()), where=str(MCP_JSON), folder=EXAMPLE)
    assert (EXAMPLE / spec.args[0]).is_file()
    written = subprocess.run(
        [sys.executable, str(EXAMPLE / "tasks.py"), "miss_param"], capture_output=True, text=True, check=True
    )
    (tmp_path / "tasks.jsonl").write_text(written.stdout)
    assert [task.id for task in load_tasks(tmp_path / "tasks.jsonl")] == [task.id for task in tasks(("miss_param",))]
    assert {tool.source for tool in BfclTwin().tools} == set(API_NAMES)
