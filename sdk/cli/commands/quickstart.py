"""`toolbake quickstart`: the main job on the helpdesk and the embedded model."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..failing import RESUMABLE, require_no_failure, when_interrupted
from ..options import opt

if TYPE_CHECKING:
    from ...progress import Progress
    from ...trainer.config import TrainConfig
    from ...trainer.pipeline import TrainResult

DEFAULT_FOLDER = Path("runs/quickstart")

HELPDESK = {"mcpServers": {"helpdesk": {"command": sys.executable, "args": ["-m", "sandboxes.helpdesk"]}}}
"""A process of its own over stdio, started as any MCP server is."""

_Steps = Annotated[
    int | None,
    opt(
        "--steps N",
        "At most N steps of the warm start and of GRPO each, for a shorter try.",
        default="as many as the report needs",
        min=1,
    ),
]
_Heldout = Annotated[
    int | None, opt("--heldout N", "Measure on at most N of the held-out tasks.", default="all", min=1)
]
_Prompts = Annotated[int | None, opt("--prompts N", "Learn from at most N tasks in each step.", default="8", min=1)]
_Seed = Annotated[
    int | None,
    opt(
        "--seed N",
        "Another draw: the order of tasks and what is sampled. One run is one draw of many.",
        default="0",
        min=0,
        max=2**32 - 1,
    ),
]


def quickstart(
    output_dir: Annotated[
        Path, opt("--output-dir FOLDER", "Where everything of the run goes: rollouts, curve, model.")
    ] = DEFAULT_FOLDER,
    fresh: Annotated[
        bool, opt("--fresh", "Start over into a new folder beside the old one; nothing is deleted.")
    ] = False,
    steps: _Steps = None,
    heldout: _Heldout = None,
    prompts: _Prompts = None,
    seed: _Seed = None,
) -> None:
    """See the main job done, from an MCP server to a trained and served model, with nothing to download.

    It starts a simulated order desk as an MCP server in a process of its own, measures the embedded model on tasks
    that training never sees, shows it some solved tasks (the warm start), lets it practise against a verifier (GRPO),
    measures it again, writes the report and the model, and asks the served model one question over HTTP. It takes
    about a quarter of an hour on two cores. Stopped at any time, the same command goes on where it was; a finished
    run is only reported again.

    Examples:
      toolbake quickstart
      toolbake quickstart --steps 2 --heldout 20 --output-dir runs/short
    """
    folder = fresh_folder(output_dir) if fresh else output_dir
    asked = {"steps": steps, "heldout": heldout, "prompts": prompts, "seed": seed}
    when_interrupted(_how_to_go_on(folder, asked) if fresh else RESUMABLE)
    from mcp_bridge.extras import require_extra

    from ...errors import ConfigError
    from ...progress import Console
    from ..quickstart_options import quickstart_options

    require_extra("quickstart", "toolbake quickstart", ConfigError)
    _run(folder, quickstart_options(**asked), Console())


def _how_to_go_on(folder: Path, asked: Mapping[str, int | None]) -> str:
    """The command that goes on with a run that `--fresh` began."""
    options = [f"--{name}={value}" for name, value in asked.items() if value is not None]
    return f"stopped; go on with: {shlex.join(['toolbake', 'quickstart', '--output-dir', str(folder), *options])}"


def _run(folder: Path, options: TrainConfig, progress: Progress) -> None:
    from ...blocking import train
    from ...process import quiet_bars
    from ..quickstart_options import quickstart_tasks, quickstart_verifier
    from .train import show_result

    tasks, verifier = quickstart_tasks(kept_aside=bool(options.evaluation.validation)), quickstart_verifier()
    result = finished_run(folder, options, tools=HELPDESK, prompts=tasks, verifier=verifier)
    if result is not None:
        progress.say(f"{folder} holds a finished quickstart, reported again; --fresh starts over into a new folder")
    else:
        quiet_bars()
        result = train(HELPDESK, tasks, verifier, output_dir=folder, config=options, progress=progress)
    show_result(result)
    _ask(result, options, tasks, verifier, progress)


def _ask(
    result: TrainResult, options: TrainConfig, tasks: list[dict[str, Any]], verifier: Any, progress: Progress
) -> None:
    """Serve the tuned model and ask it the first held-out question that takes two calls."""
    from ...blocking import rollout
    from ...serving import serve
    from ...transcript import rollout_text

    question = next(t for t in tasks if t["tags"]["tier"] == "2" and t["tags"]["split"] == "heldout")
    progress.say("serving the tuned model to ask it one held-out question")
    with serve(result.model_dir, port=0) as server:
        model = {"base_url": f"{server.url}/v1", "model": server.model_name}
        found = rollout(HELPDESK, question, model=model, verifier=verifier, limits=options.limits)
        require_no_failure(found)
        typer.echo(f"\nOne held-out question to {server.url}/v1/chat/completions, model {server.model_name!r}:\n")
        typer.echo(rollout_text(found))


def finished_run(folder: Path, options: TrainConfig, *, tools: Any, prompts: Any, verifier: Any) -> TrainResult | None:
    """The result of a finished run of all this in `folder`; None where there is none.

    The tools are started and asked, as `sdk.train` would: a server that has changed makes it another run.
    """
    from ...evaluation.report import Report
    from ...traces.identity import plain_config, same_run
    from ...traces.run_folder import RunFolder
    from ...trainer.pipeline import TrainResult

    if not (folder / "run.json").is_file():
        return None
    run = RunFolder.open_to_read(folder)
    if run.stage("report") is None or not (run.model_dir / "config.json").is_file():
        return None
    now = plain_config(_identity(options, tools, prompts, verifier))
    if not same_run(run.info, now):
        return None
    return TrainResult(model_dir=run.model_dir, run_dir=run.path, report=Report.read(run.report_json))


def _identity(options: TrainConfig, tools: Any, prompts: Any, verifier: Any) -> Any:
    import anyio

    from ...connecting import connect
    from ...trainer.compute_plan import settle_sampler
    from ...trainer.run_identity import train_identity
    from ...trainer.task_splits import settle, split_for_training

    sides = split_for_training(prompts, options)
    settled, _ = settle_sampler(None, settle(options, sides)[0])

    async def ask() -> dict[str, Any]:
        async with connect(tools, call_timeout_s=options.limits.call_timeout_s) as source:
            return train_identity(
                settled,
                model=None,
                verifier=verifier,
                train=sides.train,
                heldout=sides.heldout,
                tools=source,
                validation=sides.validation,
            )

    return anyio.run(ask)


def fresh_folder(wanted: Path) -> Path:
    """`wanted` where it is free, otherwise with the first free number: `runs/quickstart-2`."""
    number, folder = 1, wanted
    while folder.exists():
        number += 1
        folder = wanted.with_name(f"{wanted.name}-{number}")
    return folder
