"""What an output folder holds already: nothing, a run to go on with, or a finished one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..progress import Progress
    from ..trainer.config import TrainConfig
    from ..trainer.pipeline import TrainResult


def say_what_is_there(folder: Path | None, progress: Progress) -> None:
    """A line for the user where `folder` holds a run. Whether it is the same run is checked later."""
    from ..traces.run_folder import RunFolder

    if folder is None or not (folder / "run.json").is_file():
        return
    if RunFolder.open_to_read(folder).stage("report") is not None:
        progress.say(f"{folder} holds a finished run: its parts are read again, nothing is trained twice")
    else:
        progress.say(f"{folder} holds a run that was cut off: going on with it")


def finished_run(folder: Path, options: TrainConfig) -> TrainResult | None:
    """The result of a finished run of these options in `folder`; None where there is none."""
    from ..evaluation.report import Report
    from ..traces.identity import plain_config
    from ..traces.run_folder import RunFolder
    from ..trainer.pipeline import TrainResult

    if not (folder / "run.json").is_file():
        return None
    run = RunFolder.open_to_read(folder)
    if run.stage("report") is None or not (run.model_dir / "config.json").is_file():
        return None
    if run.config.get("train") != plain_config(options.model_dump(mode="json")):
        return None
    return TrainResult(model_dir=run.model_dir, run_dir=run.path, report=Report.read(run.report_json))


def fresh_folder(wanted: Path) -> Path:
    """`wanted` where it is free, otherwise with the first free number: `runs/quickstart-2`."""
    number, folder = 1, wanted
    while folder.exists():
        number += 1
        folder = wanted.with_name(f"{wanted.name}-{number}")
    return folder
