"""The first update beside TRL's: the same weights from the same rollouts, and equally good ones from its own?

    python tests/benchmarks/first_update.py [--seeds 2] [--samples 2] [--model FOLDER]

For each seed one step of both, as in `end_to_end.py`: the same weights to begin with, tasks and options. Then

- the rollouts that TRL trained go through `sdk.train`'s update, and the weights of both are compared;
- both new models do the held-out tasks, sampled by our engine at the temperature of training.

Rewards of a single step say little: 48 rollouts have a standard error of 7 points. A seed takes about seven minutes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import end_to_end  # its import sets what must be set before torch is loaded

SHAPE = {"steps": 1, "prompts": 8, "group_size": 6}


def update_on(job: Mapping[str, Any]) -> dict[str, float]:
    """`sdk.train`'s update on the rollouts of `job["trl"]`, and how far its weights are from TRL's."""
    import torch

    from sdk.policies.models import load_model
    from sdk.trainer.batch import Batch, BatchStats
    from sdk.trainer.config import TrainConfig
    from sdk.trainer.grpo import make_trainer

    torch.set_num_threads(job["threads"])
    config, rollouts = TrainConfig.of(job["config"]), job["trl"]["rollouts"]
    start, theirs = (load_model(folder, dtype="float32") for folder in (job["model"], job["trl"]["model"]))
    before = {name: weights.detach().clone() for name, weights in start.model.named_parameters()}
    rows = [_row(start.model, one) for one in rollouts]
    size = config.grpo.num_generations
    stats = BatchStats(scored_rows=len(rows), scored_tokens=sum(sum(row.tokens.sampled) for row in rows))
    batch = Batch(groups=[rows[first : first + size] for first in range(0, len(rows), size)], stats=stats)
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(
            start.model,
            start.tokenizer,
            config=config,
            output_dir=folder,
            collect=lambda step: batch,
            publisher=_Nobody(),
            callbacks=[],
        )
        trainer.train()
    after = dict(theirs.model.named_parameters())
    ours, trls = (
        torch.cat([(weights.detach() - before[name]).flatten() for name, weights in side.items()]).double()
        for side in (dict(start.model.named_parameters()), after)
    )
    return {
        "loss": float(trainer.state.log_history[0]["loss"]),
        "cosine": float(ours @ trls / (ours.norm() * trls.norm())),
        "near": float(((ours - trls).abs() < 0.01 * config.grpo.learning_rate).double().mean()),
    }


def _row(model: Any, rollout: Mapping[str, Any]) -> Any:
    """A rollout of TRL as a row of ours. The sampler's log-probabilities, which TRL does not keep, are the model's."""
    import torch

    from sdk.records import TokenRow
    from sdk.trainer.batch import TrainRow

    prompt, completion, sampled = rollout["prompt_ids"], rollout["completion_ids"], rollout["sampled"]
    with torch.no_grad():
        logits_TV = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
        logps_T = logits_TV.log_softmax(-1).gather(1, torch.tensor(completion)[:, None])[:, 0].tolist()
    tokens = TokenRow(
        prompt_ids=prompt,
        completion_ids=completion,
        sampled=sampled,
        logprobs=[logp if is_sampled else 0.0 for logp, is_sampled in zip(logps_T, sampled, strict=True)],
        versions=[0] * len(completion),
    )
    return TrainRow(tokens, rollout["advantage"])


class _Nobody:
    def publish(self, state: Any, *, version: int) -> None:
        """Nothing samples here."""


def success(models: Mapping[str, str], samples: int, threads: int) -> Any:
    """The report on the held-out tasks, each done `samples` times."""
    import torch

    import sdk
    from sdk.cli.commands.quickstart import HELPDESK
    from sdk.cli.quickstart_options import LIMITS, quickstart_options, quickstart_tasks, quickstart_verifier

    torch.set_num_threads(threads)
    return sdk.evaluate(
        HELPDESK,
        quickstart_tasks(),
        quickstart_verifier(),
        models=models,
        split="heldout",
        samples=samples,
        temperature=quickstart_options().grpo.temperature,
        limits=LIMITS,
    )


def one_seed(seed: int, start: Path, folder: Path, samples: int, threads: int) -> dict[str, Any]:
    """What is compared, of one seed."""
    program = Path(__file__)
    config = end_to_end.step_config(seed=seed, **SHAPE)
    job: dict[str, Any] = {"model": str(start), "config": config, "threads": threads}
    ours = end_to_end.in_process(
        [str(program.with_name("end_to_end.py")), "--ours"], job, folder / f"ours_{seed}", threads
    )
    job |= {"tasks": ours["tasks"], "gold": end_to_end.gold_tasks(), "rows": SHAPE["group_size"]}
    trl = end_to_end.in_process([str(program.with_name("helpdesk_in_trl.py"))], job, folder / f"trl_{seed}", threads)
    update = end_to_end.in_process([str(program), "--update"], job | {"trl": trl}, folder / f"update_{seed}", threads)
    report = success({"trl": trl["model"], "ours": ours["model"]}, samples, threads)
    found = {"trl": trl["steps"][0], "ours": ours["steps"][0], "update": update, "report": report}
    print(f"seed {seed}: {update}, {report.comparisons}", file=sys.stderr, flush=True)
    return found


def section(*, seeds: int = 2, samples: int = 2, threads: int = 2, model: Path | None = None) -> str:
    """The result as Markdown."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start = model.resolve() if model is not None else end_to_end.warm_start(folder / "warm_start", threads)
        before = success({"start": str(start)}, samples, threads)
        done = [one_seed(seed, start, folder, samples, threads) for seed in range(seeds)]
    tasks = before.conditions["start"].success.tasks
    return "\n".join(
        [
            "## The first update: `sdk.train` beside TRL's `GRPOTrainer`",
            "",
            f"One step of {SHAPE['prompts']} tasks x {SHAPE['group_size']} rollouts from the quickstart's warm start, "
            "the same tasks and options, each with rollouts of its own; and TRL's rollouts once more through "
            f"`sdk.train`'s update. Success on {tasks} held-out tasks, each done {samples} times at the temperature of "
            "training, by one engine.",
            "",
            *_updates(done),
            "",
            *_successes(before, done),
        ]
    )


def _updates(done: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        "| of TRL's own rollouts | TRL's loss | `sdk.train`'s | cosine | weights equal to 1% of the rate |",
        "| --- | --- | --- | --- | --- |",
        *(
            f"| seed {seed} | {one['trl']['loss']:.6f} | {one['update']['loss']:.6f} | "
            f"{one['update']['cosine']:.8f} | {one['update']['near']:.3%} |"
            for seed, one in enumerate(done)
        ),
    ]


def _successes(before: Any, done: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = ["| weights | reward of its 48 rollouts | success after the update |", "| --- | --- | --- |"]
    lines.append(f"| before | | {_rate(before, 'start')} |")
    for seed, one in enumerate(done):
        for side, name in (("trl", "TRL"), ("ours", "`sdk.train`")):
            lines.append(f"| {name}, seed {seed} | {one[side]['reward']:.3f} | {_rate(one['report'], side)} |")
    means = [statistics.fmean(_interval(one["report"], side).estimate for one in done) for side in ("trl", "ours")]
    lines += ["", f"Mean over seeds: TRL {means[0]:.1%}, `sdk.train` {means[1]:.1%}. `sdk.train` minus TRL, by seed: "]
    differences = [comparison.success for one in done for comparison in one["report"].comparisons]
    lines[-1] += ", ".join(f"{100 * d.estimate:+.1f} ({100 * d.low:+.1f} to {100 * d.high:+.1f})" for d in differences)
    return [*lines[:-1], lines[-1] + " points."]


def _interval(report: Any, name: str) -> Any:
    return report.conditions[name].success.interval


def _rate(report: Any, name: str) -> str:
    found = _interval(report, name)
    return f"{found.estimate:.1%} ({found.low:.1%} to {found.high:.1%})"


def main() -> None:
    if sys.argv[1:2] == ["--update"]:
        job_file, result_file = map(Path, sys.argv[2:])
        result_file.write_text(json.dumps(update_on(json.loads(job_file.read_text()))))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--samples", type=int, default=2, help="tries of each held-out task")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="a warm-started model; made where not given")
    print(section(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
