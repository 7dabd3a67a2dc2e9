"""`toolbake train`: tools and tasks in, a tuned and measured model out."""

from __future__ import annotations

import ast
import inspect
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mcp_bridge.extras import require_extra

from ...errors import ConfigError
from .. import options
from ..failing import RESUMABLE, when_interrupted

if TYPE_CHECKING:
    from pydantic import BaseModel

    from ...trainer.config import TrainConfig
    from ...trainer.pipeline import TrainResult


def _list_settings(wanted: bool) -> None:
    """Every option of training with its default and what it does, one a paragraph."""
    if wanted:
        from ...trainer.config import TrainConfig

        typer.echo("\n".join(_described(TrainConfig, "")))
        raise typer.Exit


OutputDir = Annotated[
    Path | None,
    options.opt(
        "--output-dir FOLDER",
        "Where everything of the run goes. A new or empty folder, or that of the same run to go on with it: after a "
        "kill, or with a larger grpo.max_steps.",
        default="runs/ and a name derived from the options",
    ),
]
ConfigFile = Annotated[
    Path | None,
    options.opt("--config FILE", "Settings of the training, as one object in JSON or YAML.", default="none"),
]
Settings = Annotated[
    list[str] | None,
    options.opt(
        "--set NAME=VALUE",
        "One setting, over the file's; the value is JSON. May be given several times. See --list-settings.",
        default="none",
    ),
]


def train(
    tools: options.Tools = None,
    tasks: options.Tasks = None,
    *,
    command: options.Command = None,
    verifier: options.VerifierName,
    model: options.LocalModel = None,
    output_dir: OutputDir = None,
    config: ConfigFile = None,
    settings: Settings = None,
    list_settings: Annotated[  # noqa: ARG001  (its callback does the work)
        bool,
        options.opt(
            "--list-settings", "Print every setting with its default, and exit.", is_eager=True, callback=_list_settings
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        options.opt(
            "--dry-run",
            "Print who computes where, the memory that takes and the servers that start, and exit; exit code 1 where "
            "something cannot work.",
        ),
    ] = False,
    gpus: Annotated[
        str | None,
        options.opt(
            "--gpus GB,GB", "Of --dry-run: the memory of each GPU of another machine.", default="those of this machine"
        ),
    ] = None,
    agent: options.AgentName = None,
    user_model: options.UserModel = None,
    user_key: options.UserKey = None,
    auditor: options.Auditor = None,
    auditor_key: options.AuditorKey = None,
    teacher: options.Teacher = None,
    teacher_key: options.TeacherKey = None,
    verdicts: options.VerdictFiles = None,
    handlers: options.HandlersName = None,
    connect_timeout: options.ConnectTimeout = 120.0,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a model to use your tools.

    The tasks are split into those it trains on and held-out ones. It is measured on the held-out tasks, learns from
    the demonstrations among the training tasks (the warm start), then practises: for each task it makes several
    attempts, the verifier scores them, and what scored better than its siblings is made likelier (GRPO). It is
    measured again after each stage, and ends with the weights that do best on some training tasks that were kept aside,
    those it began with included. The report says how much better it got and how sure that is. A run that was stopped
    goes on when the same command is run again.

    Examples:
      toolbake train mcp.json tasks.jsonl --verifier checks.py:verify --output-dir runs/desk
      toolbake train --command 'python server.py' tasks.jsonl --verifier checks.py:verify \\
        --model Qwen/Qwen3-4B --set grpo.max_steps=40 --set limits.max_turns=6
      toolbake train mcp.json tasks.jsonl --verifier checks.py:verify --set tool_prompt=names
      toolbake train mcp.json tasks.jsonl --verifier checks.py:verify --set tool_prompt.full=0.5 \\
        --set tool_prompt.names=0.5
      toolbake train --verifier expected --config train.json --dry-run --gpus 80,80
      toolbake train mcp.json tasks.jsonl --verifier checks.py:verify --agent 'node agent.js'
      toolbake train mcp.json tasks.jsonl --verifier checks.py:verify --verdicts gpt-4=gpt-4.jsonl
    """
    when_interrupted(RESUMABLE)
    from ...process import printing_to_stderr, quiet_bars
    from ...tasks import load_tasks
    from .. import sources

    training = train_config(config, settings or [])
    tools, tasks = sources.place_arguments(tools, tasks, command)
    if dry_run or gpus is not None:
        if tools is not None or command is not None:
            sources.tool_source(tools, command)
        if tasks is not None:
            load_tasks(sources.task_source(tasks))
        _show_plan(model, training, gpus, output_dir, dry_run=dry_run, as_json=as_json)
        return
    source, prompts = sources.tool_source(tools, command), sources.task_source(tasks)
    judge, asked = sources.load_verifier(verifier, prompts), sources.load_handlers(handlers)
    progress = options.progress_of(quiet)
    require_extra("train", "toolbake train", ConfigError)
    quiet_bars()

    from ...blocking import train

    reach = {
        "agent": sources.agent_source(agent),
        "user_model": sources.user_source(user_model, user_key),
        "auditor": sources.second_model(auditor, auditor_key, "--auditor", "--auditor-key"),
        "teacher": sources.second_model(teacher, teacher_key, "--teacher", "--teacher-key"),
        "verdicts": options.named_values(verdicts, "--verdicts"),
        "handlers": asked,
        "connect_timeout_s": connect_timeout,
    }
    with printing_to_stderr():
        result = train(source, prompts, judge, model, output_dir, training, progress=progress, **reach)
    if as_json:
        typer.echo(_as_json(result))
    else:
        show_result(result)


def show_result(result: TrainResult) -> None:
    """The report, where everything is, and what to do next."""
    typer.echo(str(result.report))
    typer.echo()
    for label, path in result.files.items():
        typer.echo(f"{label:<9} {_from_here(path)}")
    typer.echo()
    typer.echo(f"Serve it: {shlex.join(['toolbake', 'serve', str(_from_here(result.model_dir))])}")


def _as_json(result: TrainResult) -> bytes:
    """For programs: where the model and the run are, and the report."""
    from ...traces.json_text import dump_json

    told = {"model_dir": str(result.model_dir), "run_dir": str(result.run_dir), "report": result.report.model_dump()}
    return dump_json(told, indent=2)


def _from_here(path: Path) -> Path:
    """The path as one would type it in the current folder."""
    here = path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _show_plan(
    model: str | None, training: TrainConfig, gpus: str | None, output_dir: Path | None, *, dry_run: bool, as_json: bool
) -> None:
    """Raises `ConfigError` for GPUs that are not numbers, and `typer.Exit` where the plan has problems."""
    from ...trainer.compute_plan import plan_compute

    if not dry_run:
        raise ConfigError("--gpus does nothing without --dry-run; take it out, or give both")
    try:
        given = None if gpus is None else [int(float(part) * 1e9) for part in gpus.split(",") if part.strip()]
        if given is not None and not all(size > 0 for size in given):
            raise ValueError
    except (ValueError, OverflowError):
        raise ConfigError(f"--gpus is {gpus!r}; give the GB of each GPU, such as 80,80") from None
    plan = plan_compute(model, training, gpus=given, folder=output_dir)
    typer.echo(json.dumps(plan.as_record(), indent=2) if as_json else str(plan))
    if plan.problems:
        raise typer.Exit(1)


# ---------------------------------------------------------------------------------------------------------------------


def train_config(file: Path | None, assignments: Sequence[str]) -> TrainConfig:
    """The options of the file, with those of `assignments` in their place; a group adds its options to the file's.
    Raises `ConfigError`."""
    from ...trainer.config import TrainConfig, nested

    given = TrainConfig.of(file).model_dump(mode="json", exclude_unset=True) if file is not None else {}
    assigned = options.assigned(assignments, "--set")
    return TrainConfig.of(nested([*given.items(), *assigned.items()]))


def _described(model: type[BaseModel], prefix: str) -> list[str]:
    from pydantic import BaseModel

    docs = _field_docs(model)
    lines, inner = [], []
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if isinstance(default, BaseModel):
            inner += _described(type(default), f"{prefix}{name}.")
            continue
        lines.append(f"{prefix}{name}={json.dumps(default)}")
        if docs.get(name):
            lines.append(f"    {docs[name]}")
    return [*lines, *inner]


def _field_docs(model: type[BaseModel]) -> dict[str, str]:
    """The docstrings under a record's fields."""
    body = ast.parse(inspect.getsource(model)).body[0]
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for field, after in zip(body.body, body.body[1:], strict=False):
        match field, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docs[name] = " ".join(text.split())
    return docs
