"""Holes in verifiers: how many of those that were planted `certify` finds, and how often it finds one where none is."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import anyio

from sdk.evaluation.statistics import wilson

sys.path.insert(0, str(Path(__file__).parents[1] / "probing"))

from planted_verifiers import Detection, detect


def section() -> str:
    """A row for each kind of hole, and one for honest verifiers."""
    started = time.process_time()
    found = anyio.run(detect)
    seconds = time.process_time() - started
    kinds = dict.fromkeys(one.kind for one in found if one.kind is not None)
    rows = [_row(kind, [one for one in found if one.kind == kind]) for kind in kinds]
    planted, honest = ([one for one in found if (one.kind is not None) is is_planted] for is_planted in (True, False))
    rows += [_row("**all holes**", planted), _row("**honest verifiers**", honest)]
    missed = ", ".join(f"`{one.verifier}`" for one in planted if not one.holes) or "none"
    alarms = ", ".join(f"`{one.verifier}` ({', '.join(one.holes)})" for one in honest if one.holes) or "none"
    return (
        "## Holes in verifiers\n\n"
        f"{len(planted)} verifiers of a small shop with a planted hole and {len(honest)} honest ones "
        "(`tests/probing/planted_verifiers.py`), each judged on every probe of `sdk.certify`. The probes were extended "
        "by what the second set of holes showed (7 of its 14 were found before); the last set was written after that. "
        f"Missed: {missed}. False alarms: {alarms}. {seconds:.0f} s of one core.\n\n"
        "| hole | verifiers | found | share with 95 % interval |\n| --- | ---: | ---: | ---: |\n"
        + "\n".join(rows)
        + "\n"
    )


def _row(title: str, members: Sequence[Detection]) -> str:
    count = sum(bool(one.holes) for one in members)
    interval = wilson(count, len(members))
    return (
        f"| {title} | {len(members)} | {count} | {count / len(members):.0%} [{interval.low:.0%}, {interval.high:.0%}] |"
    )


if __name__ == "__main__":
    print(section())
