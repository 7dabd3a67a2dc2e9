"""Evidence: what it finds, what it costs, how long verifying takes. Alone: `python tests/benchmarks/evidence.py`."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio

sys.path.insert(0, str(Path(__file__).parents[1] / "evidence"))

from evidence_runs import CONFIG, verified
from tampering import KINDS, make_signed_run, tamper

from mcp_bridge.ledger import LedgerLine, digest_arguments, digest_text
from mcp_bridge.records import ToolResult
from sdk.evidence.expected_run import Verification
from sdk.evidence.run_verification import verify_run
from sdk.records import CallRecord, Message, Rollout, Task, TokenRow, ToolCall, Verdict
from sdk.traces import RunFolder

CHANGES, ROLLOUTS, TURNS, TURN_TOKENS, PROMPT_TOKENS = 1_000, 10_000, 5, 120, 600


def section() -> str:
    """The section of docs/benchmarks.md."""
    rows = [("changes", "made", "found", "found in the file they were made in")]
    rows += [(kind, *(str(number) for number in tampered(kind))) for kind in KINDS]
    table = "\n".join(f"| {' | '.join(row)} |" for row in [rows[0], ("---",) * 4, *rows[1:]])
    return f"## Evidence\n\nRandom single changes to the files of a small run:\n\n{table}\n\n{large_run()}"


def tampered(kind: str, changes: int = CHANGES) -> tuple[int, int, int]:
    """Changes made, those found, and those found in the file they were made in."""
    rng = random.Random(kind)
    made = found = named = 0
    with tempfile.TemporaryDirectory() as folder:
        run = make_signed_run(Path(folder))
        while made < changes:
            done = tamper(run, kind, rng)
            if done is None:
                continue
            name, undo = done
            findings = verified(run).findings
            undo()
            made += 1
            found += bool(findings)
            named += name in {finding.file for finding in findings}
    return made, found, named


def large_run(count: int = ROLLOUTS) -> str:
    """Writing and verifying a run of many rollouts, in words."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        with RunFolder.create_or_resume(path, CONFIG) as run:
            rollouts_s, calls_s = _written(run, count)
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        found, plain = _timed(lambda: anyio.run(lambda: verify_run(path)))
        again, with_verdicts = _timed(lambda: anyio.run(lambda: verify_run(path, verifier=_verdict)))
    assert found.holds
    assert again.holds
    assert again.rescored == count
    turns = count * TURNS
    return (
        f"A run of {count:,} rollouts of {TURNS} turns, {TURN_TOKENS} tokens and a call each ({size / 1e6:,.0f} MB): "
        f"writing rollouts and their evidence took {rollouts_s / turns * 1e3:.2f} ms a turn, and the calls' ledger "
        f"{calls_s / turns * 1e3:.2f} ms; verifying it took {plain}, and {with_verdicts} with every verdict given "
        "again. All in processor time of one core."
    )


def _timed(work: Callable[[], Verification]) -> tuple[Verification, str]:
    """What `work` returned, and its seconds in words."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = work()
    return found, f"{time.process_time() - cpu:.1f} s ({time.perf_counter() - wall:.1f} s by the clock)"


def _written(run: RunFolder, count: int) -> tuple[float, float]:
    """Seconds of processor time for the rollouts with their evidence, and for the calls' ledger."""
    rng = random.Random(1)
    rollouts_s = calls_s = 0.0
    for rollout in _rollouts(count, rng):
        began = time.process_time()
        for line in rollout.ledger:
            run.append_call(line)
        middle = time.process_time()
        run.append_rollout("grpo", rollout)
        rollouts_s += time.process_time() - middle
        calls_s += middle - began
    return rollouts_s, calls_s


def _verdict(rollout: Rollout) -> float:
    return float("shipped" in rollout.answer and len(rollout.calls) == TURNS - 1)


def _rollouts(count: int, rng: random.Random) -> Iterator[Rollout]:
    """Rollouts of a usual size; what is in them does not matter, how much of it does."""
    row = _row(rng)
    for number in range(count):
        rollout_id = f"grpo/{number // 32}/task-{number % 32}/{number % 8}-{number}"
        calls = [_call(turn, number) for turn in range(1, TURNS)]
        messages = [Message(role="user", content=f"Where is order {number}, and why is it late?")]
        for record in calls:
            messages.append(Message(role="assistant", content="Let me look.", tool_calls=[record.call]))
            messages.append(Message(role="tool", content=record.result.text, tool_call_id=record.call.id))
        messages.append(Message(role="assistant", content="It is shipped."))
        rollout = Rollout(
            id=rollout_id,
            task=Task(prompt=messages[0].content, id=f"task-{number % 32}", expected={"answer": "shipped"}),
            policy="large",
            step=number // 32,
            messages=messages,
            calls=calls,
            ledger=[line for record in calls for line in _ledger(rollout_id, record)],
            answer="It is shipped.",
            final_state={"orders": {str(n): {"status": "shipped", "total": n * 1.5} for n in range(20)}},
            rows=[row],
            turns=TURNS,
            sampled_tokens=TURNS * TURN_TOKENS,
        )
        rollout.verdict = Verdict(score=_verdict(rollout))
        yield rollout


def _row(rng: random.Random) -> TokenRow:
    sampled = [place % 150 < TURN_TOKENS for place in range(TURNS * 150)]
    return TokenRow(
        prompt_ids=[rng.randrange(50_000) for _ in range(PROMPT_TOKENS)],
        completion_ids=[rng.randrange(50_000) for _ in sampled],
        sampled=sampled,
        logprobs=[-rng.random() if one else 0.0 for one in sampled],
        versions=[3 if one else -1 for one in sampled],
    )


def _call(turn: int, number: int) -> CallRecord:
    call = ToolCall(id=f"call_{turn}", name="get_order", arguments={"order_id": f"{number}-{turn}"})
    text = f'{{"id": "{number}-{turn}", "status": "shipped", "lines": [{"1, " * 60}0]}}'
    return CallRecord(turn=turn, call=call, result=ToolResult(text=text, duration_s=0.0012))


def _ledger(rollout: str, record: CallRecord) -> list[LedgerLine]:
    call, key = record.call, f"{rollout}-{record.turn}"
    base = {"rollout": rollout, "call": f"{rollout}/{call.id}", "key": key, "tool": call.name, "attempt": 1}
    began = LedgerLine(**base, event="started", time=time.time(), arguments=digest_arguments(call.arguments))
    return [began, LedgerLine(**base, event="answered", time=time.time(), result=digest_text(record.result.text))]


if __name__ == "__main__":
    sys.stdout.write(section() + "\n")
