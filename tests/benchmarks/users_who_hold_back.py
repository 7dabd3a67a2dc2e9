"""A helpdesk whose users hold the order's number back: does a model learn to ask for it, also with other users?

    python tests/benchmarks/users_who_hold_back.py [--seeds 3] [--runs FOLDER]

Three kinds of requests of the helpdesk, each without the order's number, which the user tells by rules when it is
asked. The embedded SmolLM2-135M-Instruct gets a warm start and GRPO. It is measured on held-out requests in held-out
wordings twice: with users who tell the number as those in training do, and with users who tell it in other words. Each
run is a process of its own whose folder stays, and its result is added to `systems/users-who-hold-back.jsonl`, so the
same command goes on where it was stopped; delete a line to measure it again. `--seeds 0` shows the finished runs alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RUNS = ROOT / "runs" / "users-who-hold-back"
RESULTS = Path(__file__).parent / "systems" / "users-who-hold-back.jsonl"
INTENTS = ("order_status", "order_total", "cancel")
TRAINED, HELD_OUT = 24, 12
"""Tasks of each kind."""
KNOWN = ("The {name} is {value}.", "It is {value}.", "{value}")
OTHERWISE = ("That would be {value}, if I read it right.", "On the slip I have {value} here.", "Hm, {value} I think!")
UNTRAINED, WARM_START, GRPO = "untrained", "after_warm_start", "after_grpo"
STAGES = (UNTRAINED, WARM_START, GRPO)
SUCCESS = 1.0
OPTIONS: dict[str, Any] = {
    "tool_prompt": "names",
    "warm_start": {"max_steps": 12, "batch_size": 8, "learning_rate": 2e-4},
    "grpo": {"max_steps": 5, "prompts_per_step": 4, "num_generations": 6, "learning_rate": 1e-5, "warmup_steps": 3},
    "curriculum": {"by": "intent"},
    "limits": {"max_turns": 5, "max_turn_tokens": 48, "max_tokens": 192, "max_calls": 4},
    "probes": {"tasks": 0},
}


def tasks() -> list[Any]:
    """The training tasks, and the held-out ones with both kinds of users; the tag `users` says which."""
    import sdk
    from sandboxes.helpdesk import tasks as helpdesk_tasks

    made = []
    for intent in INTENTS:
        of_kind = [task for task in helpdesk_tasks() if task["tags"]["intent"] == intent]
        for side, count in (("train", TRAINED), ("heldout", HELD_OUT)):
            chosen = [task for task in of_kind if task["tags"]["split"] == side]
            chosen = [chosen[place * len(chosen) // count] for place in range(count)]
            for users, told in (("known", KNOWN), ("otherwise", OTHERWISE))[: 1 if side == "train" else 2]:
                for task in sdk.hold_back(chosen, told=told).tasks:
                    more = {"id": f"{task.id}-{users}", "tags": {**task.tags, "users": users}}
                    made.append(task.model_copy(update=more))
    return made


def train(seed: int, folder: Path) -> None:
    """One run, in this process."""
    import sdk
    from sandboxes.helpdesk import Helpdesk
    from sdk.progress import Console
    from sdk.verifiers import all_of, answer_match, calls_match, final_state

    verifier = all_of(final_state(), calls_match(), answer_match())
    sdk.train(Helpdesk(), tasks(), verifier, None, folder, {**OPTIONS, "seed": seed}, progress=Console())


def measured(folder: Path) -> dict[str, Any] | None:
    """Held-out success by stage and kind of users, and the gain over the untrained model with its interval."""
    from sdk.evaluation.conditions import compare_paired
    from sdk.traces import RunFolder

    if not (folder / "report.json").is_file():
        return None
    opened = RunFolder.open_to_read(folder)
    row: dict[str, Any] = {}
    for users in ("known", "otherwise"):
        rollouts = {
            stage: [one for one in opened.read_rollouts(stage) if one.task.tags["users"] == users] for stage in STAGES
        }
        pair = compare_paired(rollouts[UNTRAINED], rollouts[GRPO], names=(UNTRAINED, GRPO), threshold=SUCCESS)
        rates = {
            stage: sum(one.scored and one.verdict.score >= SUCCESS for one in found) / len(found)
            for stage, found in rollouts.items()
        }
        asked = sum(any(turn.told for turn in one.user_turns) for one in rollouts[GRPO]) / len(rollouts[GRPO])
        gain = {"value": pair.success.estimate, "low": pair.success.low, "high": pair.success.high}
        row[users] = {"success": rates, "asked": asked, "gain": gain, "tasks": pair.tasks, "families": pair.families}
    return row


class Results:
    """One line for each finished run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.rows = {row["seed"]: row for row in map(json.loads, lines)}

    def add(self, seed: int, row: dict[str, Any]) -> None:
        self.rows[seed] = row = {"seed": seed, **row}
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def table(results: Results) -> str:
    """The finished runs as Markdown."""
    lines = [
        "| seed | users | untrained | warm start | GRPO | asked | gain over the untrained model (95 %) |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for seed, row in sorted(results.rows.items()):
        for users in ("known", "otherwise"):
            one = row[users]
            rates = " | ".join(f"{one['success'][stage]:.1%}" for stage in STAGES)
            gain, low, high = (100 * one["gain"][key] for key in ("value", "low", "high"))
            lines.append(
                f"| {seed} | {users} | {rates} | {one['asked']:.1%} | {gain:+.1f} ({low:+.1f} to {high:+.1f}), "
                f"{one['tasks']} tasks of {one['families']} families |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--runs", type=Path, default=RUNS)
    parser.add_argument("--one", type=int, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        train(options.one, options.runs / f"seed-{options.one}")
        return
    results = Results(RESULTS)
    for seed in range(options.seeds):
        if seed in results.rows:
            continue
        print(f"== seed {seed}", flush=True)
        command = [sys.executable, __file__, "--one", str(seed), "--runs", str(options.runs)]
        own = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        subprocess.run(command, check=True, env={"GOMP_SPINCOUNT": "3000", **os.environ, **own})
        row = measured(options.runs / f"seed-{seed}")
        assert row is not None, f"the run in {options.runs / f'seed-{seed}'} has no report"
        results.add(seed, row)
    print(table(results))


if __name__ == "__main__":
    main()
