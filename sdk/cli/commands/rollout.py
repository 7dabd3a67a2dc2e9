"""`toolbake rollout`: one conversation, to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mcp_bridge.safe_text import and_more

from ...errors import ConfigError
from .. import options

TaskFile = Annotated[
    str | None,
    options.opt(
        "--tasks FILE",
        "Take the task from a file of tasks, with its setup and what is expected, in place of PROMPT.",
        default="none",
    ),
]
TaskId = Annotated[str | None, options.opt("--task-id ID", "Which task of the file.", default="the first")]
Verdicts = Annotated[
    str | None, options.opt("--verifier FILE.py:NAME|expected", "Show its verdict, too.", default="none")
]
Prompt = Annotated[str | None, options.arg("PROMPT", "What the user asks for, in quotes.", default=False)]


def rollout(
    tools: options.Tools = None,
    prompt: Prompt = None,
    *,
    command: options.Command = None,
    tasks: TaskFile = None,
    task_id: TaskId = None,
    verifier: Verdicts = None,
    model: options.Model = None,
    endpoint: options.Endpoint = None,
    api_key_env: options.EndpointKey = None,
    limit: options.LimitSettings = None,
    agent: options.AgentName = None,
    user_model: options.UserModel = None,
    user_key: options.UserKey = None,
    handlers: options.HandlersName = None,
    connect_timeout: options.ConnectTimeout = 120.0,
    temperature: options.Temperature = 0.0,
    strict_tools: options.StrictTools = None,
    seed: options.Seed = 0,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Have one conversation and read it: what was asked, which tools were called, what came back, the verdict.

    The quickest way to see whether tools and model understand each other, and why a task fails. The conversation has
    a world of its own, as in training; nothing is kept.

    Examples:
      toolbake rollout mcp.json 'Where is order 4417?'
      toolbake rollout mcp.json --tasks tasks.jsonl --task-id refund-3 --verifier checks.py:verify
    """
    from ...process import printing_to_stderr
    from ...traces.json_text import dump_json
    from ...transcript import rollout_text
    from ..failing import require_no_failure
    from ..sources import (
        agent_source,
        load_handlers,
        load_verifier,
        model_source,
        place_arguments,
        tool_source,
        user_source,
    )

    progress = options.progress_of(quiet)
    bounds = options.limits(limit or [])
    policy = model_source(model, endpoint, api_key_env, say=progress.say)
    tools, prompt = place_arguments(tools, prompt, command)
    source = tool_source(tools, command)
    asked = load_handlers(handlers)
    task = _task(prompt, tasks, task_id)
    judge = load_verifier(verifier, [task]) if verifier is not None else None

    from ...blocking import rollout

    progress.say(f"asking {model or 'the embedded SmolLM2-135M-Instruct'}")
    how = {
        "limits": bounds,
        "agent": agent_source(agent),
        "user_model": user_source(user_model, user_key),
        "handlers": asked,
        "connect_timeout_s": connect_timeout,
    }
    how |= {"temperature": temperature, "strict_tools": strict_tools, "seed": seed}
    with printing_to_stderr():
        found = rollout(source, task, model=policy, verifier=judge, **how)
    if as_json:
        typer.echo(dump_json(found.model_copy(update={"rows": []}), indent=2))
    else:
        typer.echo(rollout_text(found))
    require_no_failure(found)


def _task(prompt: str | None, tasks: str | None, task_id: str | None) -> Any:
    """What to ask. Raises `ConfigError` unless PROMPT or --tasks says it."""
    from ...tasks import load_tasks
    from ...tasks.task_files import SUFFIXES
    from ..sources import task_source

    if (prompt is None) == (tasks is None):
        found = "both" if prompt is not None else "neither"
        raise ConfigError(f"give PROMPT in quotes or --tasks FILE, exactly one of them; this has {found}")
    if tasks is None:
        if task_id is not None:
            raise ConfigError(f"--task-id {task_id} does nothing without --tasks; give the file, or leave it out")
        if prompt is not None and prompt.endswith(SUFFIXES) and Path(prompt).expanduser().is_file():
            raise ConfigError(f"PROMPT is {prompt!r}, a file; to take a task from it, give --tasks {prompt}")
        return {"prompt": prompt}
    known = load_tasks(task_source(tasks))
    if task_id is None:
        return known[0]
    for task in known:
        if task.id == task_id:
            return task
    ids = and_more([task.id for task in known], 10)
    raise ConfigError(f"--task-id is {task_id!r}, which {tasks} does not have; its ids are {ids}")
