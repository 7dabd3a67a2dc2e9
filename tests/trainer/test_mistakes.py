"""Demonstrations with a mistake in them: it is refused and not trained, and nothing is called by it."""

from collections import Counter
from pathlib import Path

import pytest
from heard import Heard

import sdk
from mcp_bridge import Toolset, connect
from sandboxes.helpdesk import Helpdesk
from sandboxes.objects import ObjectTwin
from sdk.policies.scripted import ByteRenderer
from sdk.records import Message, TokenRow, ToolCall
from sdk.rollouts.limits import Limits
from sdk.rollouts.run_context import RunContext
from sdk.tasks import load_tasks
from sdk.traces import RunFolder
from sdk.trainer.demonstrations import demonstration_rows, replay_demonstrations
from sdk.trainer.mistakes import replay_with_mistakes
from sdk.verifiers import VerifierLike, all_of, calls_match, final_state

TASKS = load_tasks("examples/helpdesk/tasks.jsonl")[::30]
TOLERANT, STRICT = all_of(final_state(), calls_match(only=True)), calls_match(most_mistakes=0)


async def helpdesk_rows(
    verifier: VerifierLike = TOLERANT, *, share: float = 1.0, seed: int = 0, most_turns: int = 12
) -> tuple[list[TokenRow], str]:
    """The rows, and what the console said."""
    heard = Heard()
    async with connect(Helpdesk()) as source:
        played = await replay_demonstrations(TASKS, context_of(source, TOLERANT, 12))
        context = context_of(source, verifier, most_turns, heard)
        with_mistakes = await replay_with_mistakes(played, context, share=share, seed=seed)
        rollouts, ids = [one.rollout for one in with_mistakes], {one.rollout.id: one.call_id for one in with_mistakes}
        rows = demonstration_rows(rollouts, ByteRenderer(), source.tools, mistakes=ids)
    return rows, "\n".join(heard.lines)


def context_of(source: Toolset, verifier: VerifierLike, most_turns: int, heard: Heard | None = None) -> RunContext:
    limits = Limits(max_turns=most_turns)
    return RunContext(tools=source, verifier=verifier, limits=limits, concurrency=4, progress=heard or Heard())


async def test_the_mistake_and_its_error_are_read_and_the_demonstration_is_trained() -> None:
    rows, _ = await helpdesk_rows()
    assert len(rows) == len(TASKS)
    renderer = ByteRenderer()
    errors: Counter[bool] = Counter()
    for row, task in zip(rows, TASKS, strict=True):
        pairs = list(zip(row.completion_ids, row.sampled, strict=True))
        read = renderer.decode([token for token, sampled in pairs if not sampled])
        trained = renderer.decode([token for token, sampled in pairs if sampled])
        assert trained == "".join(renderer.decode(renderer.encode_reply(said, [])) for said in task.demonstration)
        # Of the first message it is in the prompt; the mistake has one more.
        assert read.count("<assistant>") == len(task.demonstration)
        unknown = "There is no tool" in read
        assert unknown != ("nothing was called" in read)
        errors[unknown] += 1
    assert min(errors[True], errors[False]) > len(TASKS) / 10


async def test_other_seeds_make_other_mistakes_and_equal_ones_the_same() -> None:
    rows = [(await helpdesk_rows(seed=seed))[0] for seed in (0, 0, 1)]
    assert rows[0] == rows[1] != rows[2]


async def test_a_share_of_the_demonstrations_is_shown_with_a_mistake() -> None:
    few, none = (await helpdesk_rows(share=0.3))[0], (await helpdesk_rows(share=0))[0]
    assert 0.1 < len(few) / len(TASKS) < 0.5
    assert none == []


@pytest.mark.parametrize(("verifier", "most_turns"), [(STRICT, 12), (TOLERANT, 2)])
async def test_what_the_verifier_or_a_limit_does_not_allow_is_not_taught_and_the_console_says_so(
    verifier: VerifierLike, most_turns: int
) -> None:
    rows, said = await helpdesk_rows(verifier, most_turns=most_turns)
    assert rows == []
    assert f"{len(TASKS)} of {len(TASKS)} demonstrations are not shown with a mistake in them" in said


def test_a_training_makes_no_call_by_a_mistake_and_counts_the_rows(tiny_model_dir: Path, tmp_path: Path) -> None:
    called: Counter[str] = Counter()

    def double(number: int) -> int:
        """Twice a number."""
        called["double"] += 1
        return 2 * number

    def half(number: int, exact: bool) -> float:
        """Half of a number."""
        called["half"] += 1
        return number / 2 if exact else number // 2

    tasks = [
        sdk.Task(
            prompt=f"Kindly duplicate {number}.",
            demonstration=[
                Message(role="assistant", tool_calls=[ToolCall(id="a", name="double", arguments={"number": number})]),
                Message(role="assistant", content=f"{2 * number}"),
            ],
            tags={"split": "train" if number else "heldout"},
        )
        for number in range(7)
    ]
    config = {
        "probes.tasks": 0,
        "warm_start": {"max_steps": 1, "batch_size": 2},
        "grpo.max_steps": 0,
        "evaluation": {"validation": 0, "max_served": 0},
        "limits": {"max_turns": 3, "max_turn_tokens": 6, "max_tokens": 18},
    }
    for mistakes in (0, 1):
        called.clear()
        run = tmp_path / f"{mistakes}"
        sdk.train(
            [double, half], tasks, lambda _: 1.0, str(tiny_model_dir), run, {**config, "warm_start.mistakes": mistakes}
        )
        stage = RunFolder.open_to_read(run).stage("warm_start")
        assert stage == {
            "demonstrations": 6,
            "with_a_mistake": 6 * mistakes,
            "rows": 6 * (1 + mistakes),
            "tool_prompts": {"full": 6},
        }
        assert called == {"double": 6 * (1 + mistakes)}


class Desk:
    """Orders, and a tool that scenarios hide."""

    def __init__(self) -> None:
        self.orders = {7: "open"}

    def lookup(self, order: int) -> str:
        """The state of an order."""
        return self.orders[order]

    def cancel(self, order: int) -> str:
        """Cancel an order."""
        self.orders[order] = "cancelled"
        return "done"


class HidingDesk(ObjectTwin):
    def hidden(self, scenario: str) -> tuple[str, ...]:
        return ("cancel",) if scenario == "later" else ()


async def test_a_word_that_names_a_hidden_tool_is_no_mistake_and_demonstrations_may_hold_mistakes_themselves() -> None:
    def says(name: str, arguments: dict[str, int]) -> Message:
        return Message(role="assistant", tool_calls=[ToolCall(id=name, name=name, arguments=arguments)])

    def never_changed(rollout: sdk.Rollout) -> float:
        return float(all(record.call.name != "cancel" or record.result.is_error for record in rollout.calls))

    answer = Message(role="assistant", content="open")
    tasks = [
        sdk.Task(
            prompt=f"Can anyone cancel 7? {number}",
            setup={"scenario": "later"},
            demonstration=[
                *([says("inspect", {"order": 7})] if number % 2 else []),
                says("lookup", {"order": 7}),
                answer,
            ],
        )
        for number in range(20)
    ]
    async with connect(HidingDesk(Desk, scenarios=("default", "later"))) as source:
        context = context_of(source, never_changed, 12)
        found = await replay_with_mistakes(await replay_demonstrations(tasks, context), context, share=1, seed=0)
        assert len(found) == len(tasks)
        planted = [next(c for c in one.rollout.calls if c.call.id == one.call_id).call.name for one in found]
        assert "cancel" not in planted
        assert set(planted) <= {"anyone", "lookup"}
