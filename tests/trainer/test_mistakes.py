"""Demonstrations after a mistake: it is refused and not trained, nothing is called by it, and what follows is right."""

from collections import Counter
from pathlib import Path

import pytest
from heard import Heard

import sdk
from mcp_bridge import Toolset, connect
from sandboxes.helpdesk import Helpdesk
from sdk.policies.scripted import ByteRenderer
from sdk.records import Message, TokenRow, ToolCall
from sdk.rollouts.limits import Limits
from sdk.rollouts.run_context import RunContext
from sdk.tasks import load_tasks
from sdk.traces import RunFolder
from sdk.trainer.demonstrations import replay_demonstrations
from sdk.trainer.mistakes import rows_after_mistakes
from sdk.verifiers import VerifierLike, all_of, calls_match, final_state

TASKS = load_tasks("examples/helpdesk/tasks.jsonl")[::30]
TOLERANT, STRICT = all_of(final_state(), calls_match(only=True)), calls_match(most_mistakes=0)
END = 256


async def helpdesk_rows(
    verifier: VerifierLike = TOLERANT, *, share: float = 1.0, seed: int = 0, most_turns: int = 12
) -> tuple[list[TokenRow], str]:
    """The rows, and what the console said."""
    heard = Heard()
    async with connect(Helpdesk()) as source:
        played = await replay_demonstrations(TASKS, context_of(source, TOLERANT, 12))
        context = context_of(source, verifier, most_turns, heard)
        rows = await rows_after_mistakes(played, context, ByteRenderer(), share=share, seed=seed)
    return rows, "\n".join(heard.lines)


def context_of(source: Toolset, verifier: VerifierLike, most_turns: int, heard: Heard | None = None) -> RunContext:
    limits = Limits(max_turns=most_turns)
    return RunContext(tools=source, verifier=verifier, limits=limits, concurrency=4, progress=heard or Heard())


def text_of(row: TokenRow, *, sampled: bool) -> str:
    return ByteRenderer().decode([t for t, s in zip(row.completion_ids, row.sampled, strict=True) if s == sampled])


async def test_the_mistake_and_its_error_are_read_and_the_rest_of_the_demonstration_is_trained() -> None:
    rows, _ = await helpdesk_rows()
    assert len(rows) == len(TASKS)
    renderer = ByteRenderer()
    kinds: Counter[str] = Counter()
    for row, task in zip(rows, TASKS, strict=True):
        before = renderer.decode(row.prompt_ids)
        kinds["unknown" if "There is no tool" in before else "arguments"] += 1
        assert ("There is no tool" in before) != ("nothing was called" in before)
        whole = [renderer.decode(renderer.encode_reply(message, [])) for message in task.demonstration]
        heard = before.count("<assistant>") - 2  # the mistake, and the reply that comes next
        assert text_of(row, sampled=True) == "".join(whole[heard:])
        assert all(earlier in before for earlier in whole[:heard])
    assert min(kinds["unknown"], kinds["arguments"]) > len(TASKS) / 10


async def test_other_seeds_make_other_mistakes_and_equal_ones_the_same() -> None:
    prompts = [[row.prompt_ids for row in (await helpdesk_rows(seed=seed))[0]] for seed in (0, 0, 1)]
    assert prompts[0] == prompts[1] != prompts[2]


async def test_a_share_of_the_demonstrations_is_shown_after_a_mistake() -> None:
    few, none = (await helpdesk_rows(share=0.3))[0], (await helpdesk_rows(share=0))[0]
    assert 0.1 < len(few) / len(TASKS) < 0.5
    assert none == []


@pytest.mark.parametrize(("verifier", "most_turns"), [(STRICT, 12), (TOLERANT, 2)])
async def test_what_the_verifier_or_a_limit_does_not_allow_is_not_taught_and_the_console_says_so(
    verifier: VerifierLike, most_turns: int
) -> None:
    rows, said = await helpdesk_rows(verifier, most_turns=most_turns)
    assert rows == []
    assert f"{len(TASKS)} of {len(TASKS)} demonstrations do not pass the verifier after a mistake" in said


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
        assert stage == {"demonstrations": 6, "after_mistakes": 6 * mistakes, "tool_prompts": {"full": 6}}
        assert called == {"double": 6 * (1 + mistakes)}
