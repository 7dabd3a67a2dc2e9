"""From the words on the command line to tools, tasks, verifiers and models, as the functions of `sdk` take them."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .named_objects import is_named_object, load_named

DEFAULT_KEY_VARIABLE = "OPENAI_API_KEY"
_URL = re.compile("https?://", flags=re.IGNORECASE)


def place_arguments(tools: str | None, second: str | None, command: str | None) -> tuple[str | None, str | None]:
    """`--command` takes the place of TOOLS, so that a lone argument beside it is the second one."""
    if command is not None and second is None:
        return None, tools
    return tools, second


def tool_source(tools: str | None, command: str | None) -> Any:
    """What `mcp_bridge.connect` takes. Raises `ConfigError` unless exactly one of both is given."""
    if (tools is None) == (command is None):
        given = f"TOOLS ({tools}) and --command ({command})" if tools is not None else "neither TOOLS nor --command"
        raise ConfigError(
            f"give exactly one of TOOLS and --command; this has {given}. TOOLS is an mcp.json, a URL, or an object: "
            "file.py:name"
        )
    if command is not None:
        return _split_command(command)
    assert tools is not None
    if _URL.match(tools):
        return tools
    if is_named_object(tools):
        return load_named(tools, "TOOLS")
    if tools.endswith(".py"):
        raise ConfigError(
            f"TOOLS is {tools!r}, a Python file; name the object in it ({tools}:name), or if it is an MCP server, "
            f"start it: --command 'python {tools}'"
        )
    if not Path(tools).expanduser().exists():
        raise ConfigError(
            f"TOOLS is {tools!r}, and there is no such file; give the path of an mcp.json, a URL that begins with "
            "http:// or https://, an object (file.py:name), or --command 'PROGRAM ARGS'"
        )
    return Path(tools)


def _split_command(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"--command is {command!r}, which no shell could split: {error}") from None
    if not words:
        raise ConfigError("--command is empty; give a program and its arguments, such as 'python server.py'")
    return words


def task_source(tasks: str | None) -> Any:
    """What `sdk.tasks.load_tasks` takes: the path of a file, or a named object such as a list of tasks."""
    if tasks is None:
        raise ConfigError("TASKS is missing; give a .jsonl, .json, .csv or .parquet file, or an object: file.py:name")
    return load_named(tasks, "TASKS") if is_named_object(tasks) else Path(tasks).expanduser()


def load_verifier(name: str) -> Any:
    """The verifier of this name. Raises `ConfigError` where there is none or it cannot be one."""
    from ..verifiers import check_verifier

    verifier = load_named(name, "--verifier")
    try:
        check_verifier(verifier)
    except ConfigError as error:
        last = name.rpartition(":")[2]
        hint = f". If it makes a verifier, write `verify = {last}(...)` into a file and name that: file.py:verify"
        raise ConfigError(f"--verifier {name}: {error}{hint if callable(verifier) else ''}") from error
    return verifier


def load_handlers(name: str | None) -> Any:
    """The `mcp_bridge.Handlers` of this name, None for none. Raises `ConfigError` for anything else."""
    from mcp_bridge import Handlers

    if name is None:
        return None
    handlers = load_named(name, "--handlers")
    if not isinstance(handlers, Handlers):
        raise ConfigError(
            f"--handlers {name} is a {type(handlers).__name__}; write `handlers = mcp_bridge.Handlers(...)` into a "
            "file and name that: file.py:handlers"
        )
    return handlers


def model_source(
    model: str | None, endpoint: str | None, api_key_env: str | None, *, say: Callable[[str], None]
) -> Any:
    """What `sdk.evaluate` takes as its model: a folder or hub name, or an endpoint with its key.

    `say` hears where a key goes that nobody named. Raises `ConfigError` for options that do not fit each other.
    """
    if endpoint is None:
        if api_key_env is not None:
            raise ConfigError("--api-key-env does nothing without --endpoint; give the endpoint's URL, or leave it out")
        return model
    if model is None:
        raise ConfigError(f"--endpoint {endpoint} needs --model: the name of a model there")
    key = os.environ.get(DEFAULT_KEY_VARIABLE) if api_key_env is None else key_from(api_key_env)
    if key and api_key_env is None:
        say(f"sending the key in {DEFAULT_KEY_VARIABLE} to {endpoint}; --api-key-env names another, '' none")
    return {"base_url": endpoint, "model": model, **({"api_key": key} if key else {})}


def key_from(variable: str, option: str = "--api-key-env") -> str | None:
    """The key in an environment variable; None for an empty name. Raises `ConfigError` where it is not set."""
    return secret_from(variable, option) if variable else None


def secret_from(variable: str, option: str) -> str:
    """The value of an environment variable that `option` names. Raises `ConfigError` where it is not set."""
    key = os.environ.get(variable)
    if not key:
        raise ConfigError(
            f"{option} is {variable!r}, but that environment variable is not set; set it to the key itself, "
            "or name another"
        )
    return key
