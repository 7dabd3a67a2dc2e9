"""A short training of the embedded model in a process of its own: prints the most memory that it held, and its losses.

    python memory_of_a_training.py FOLDER OPTIONS

`OPTIONS`: a JSON object, beside which every rollout of two steps is trained: each earns something else.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from sdk.process import tune_process

PROMPTS = [
    f"Say in your own words why order A-{number} is late, and what the customer should do." for number in range(9)
]


def look_up(order_id: str) -> str:
    """The state of an order."""
    return f"{order_id} is late"


def length(rollout: object) -> float:
    """Another score for nearly every rollout, so that all groups are trained."""
    return sum(map(ord, rollout.messages[-1].content)) % 101 / 100  # type: ignore[attr-defined]


def peak_bytes() -> int:
    """As the kernel counts it for this program; `getrusage` goes on from what the process that began it had held."""
    (kilobytes,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(kilobytes) * 1024


def main(folder: Path, options: dict[str, object]) -> None:
    tune_process()
    import sdk

    result = sdk.train(
        [look_up],
        PROMPTS,
        length,
        output_dir=folder,
        config={
            "evaluation": {"heldout": 1, "validation": 0, "max_heldout": 1, "max_served": 0},
            "warm_start": {"max_steps": 0},
            "grpo": {"max_steps": 2, "prompts_per_step": 4, "num_generations": 4, "save_steps": 2},
            "limits": {"max_turns": 1, "max_turn_tokens": 16, "max_tokens": 16},
            "probes": {"tasks": 0},
            **options,
        },
    )
    metrics = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in metrics if line["stage"] == "grpo"]
    print(
        json.dumps(
            {
                "peak": peak_bytes(),
                "losses": [line["loss"] for line in steps],
                "norms": [line["grad_norm"] for line in steps],
                "rows": [line["trained_rows"] for line in steps],
                "tokens": [line["trained_tokens"] for line in steps],
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
