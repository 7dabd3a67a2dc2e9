"""What an output folder holds already: nothing, a run to go on with, or a finished one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..trainer.config import TrainConfig
    from ..trainer.pipeline import TrainResult


def finished_run(
    folder: Path, options: TrainConfig, *, tools: Any, prompts: Any, verifier: Any, model: str | Path | None = None
) -> TrainResult | None:
    """The result of a finished run of all this in `folder`; None where there is none.

    The tools are started and asked, as `sdk.train` would: a server that has changed makes it another run.
    """
    from ..evaluation.report import Report
    from ..traces.identity import plain_config, same_run
    from ..traces.run_folder import RunFolder
    from ..trainer.pipeline import TrainResult
    from ..trainer.run_identity import train_defaults

    if not (folder / "run.json").is_file():
        return None
    run = RunFolder.open_to_read(folder)
    if run.stage("report") is None or not (run.model_dir / "config.json").is_file():
        return None
    now = plain_config(_identity(options, tools, prompts, verifier, model))
    if not same_run(run.info, now, train_defaults(now)):
        return None
    return TrainResult(model_dir=run.model_dir, run_dir=run.path, report=Report.read(run.report_json))


def _identity(options: TrainConfig, tools: Any, prompts: Any, verifier: Any, model: str | Path | None) -> Any:
    import anyio

    from ..connecting import connect
    from ..trainer.run_identity import train_identity
    from ..trainer.sides import choose_sides, settle

    sides = choose_sides(prompts, options)
    settled, _ = settle(options, sides)

    async def ask() -> dict[str, Any]:
        async with connect(tools, call_timeout_s=options.limits.call_timeout_s) as source:
            return train_identity(
                settled,
                model=model,
                verifier=verifier,
                train=sides.train,
                heldout=sides.heldout,
                source=tools,
                tools=source.tools,
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
