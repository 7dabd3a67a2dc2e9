"""Sources on the command line: its words become the tools, tasks, verifiers and models that the functions of `sdk`
take."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from mcp_bridge.errors import kind_of, users_line
from mcp_bridge.safe_text import and_more, did_you_mean

from ..errors import ConfigError
from ..process import printing_to_stderr

DEFAULT_KEY_VARIABLE = "OPENAI_API_KEY"
_URL = re.compile("https?://", flags=re.IGNORECASE)


def place_arguments(tools: str | None, second: str | None, command: str | None) -> tuple[str | None, str | None]:
    """`--command` takes the place of TOOLS, so that a lone argument beside it is the second one."""
    if command is not None and second is None:
        return None, tools
    return tools, second


def tool_source(tools: str | None, command: str | None) -> Any:
    """What `mcp_bridge.connect` takes. Raises `ConfigError` unless exactly one of both is given."""
    tools = tools or None  # as of a variable of the shell that is not set
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
    return _twin_of_cassette(tools) if tools.endswith(".jsonl") else Path(tools)


def _twin_of_cassette(file: str) -> Any:
    """A recording's twin. A file of tasks in its place is the usual mistake."""
    from mcp_bridge.errors import SourceError
    from sandboxes.recorded import RecordedTwin

    try:
        return RecordedTwin(Path(file).expanduser())
    except SourceError as error:
        raise ConfigError(
            f"TOOLS is {file!r}, and a .jsonl file must be a cassette of toolbake record: {error}. If it holds tasks, "
            "give the tools before it: mcp.json, a URL or file.py:name"
        ) from error


def _split_command(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(
            f"--command is {command!r}, which no shell could split: {error}; close each quote, and write \\\\ for \\"
        ) from None
    if not words:
        raise ConfigError("--command is empty; give a program and its arguments, such as 'python server.py'")
    return words


def task_source(tasks: str | None) -> Any:
    """What `sdk.tasks.load_tasks` takes: the path of a file, or a named object such as a list of tasks."""
    if not tasks:
        raise ConfigError("TASKS is missing; give a .jsonl, .json, .csv or .parquet file, or an object: file.py:name")
    return load_named(tasks, "TASKS") if is_named_object(tasks) else Path(tasks).expanduser()


EXPECTED = "expected"
"""As the verifier's name: the tasks' own fields decide."""


def load_verifier(name: str, tasks: Any = None) -> Any:
    """The verifier of this name. Raises `ConfigError` where there is none, it cannot be one, or `tasks` do not say what
    `expected` is to compare."""
    from ..verifiers import as_expected, check_verifier

    if name == EXPECTED:
        by_fields = as_expected()
        if tasks is not None:
            from ..tasks import load_tasks

            by_fields.require_fields(load_tasks(tasks))
        return by_fields
    if not is_named_object(name):
        here = f", such as {name}:verify" if name.endswith(".py") else ""
        raise ConfigError(
            f"--verifier is {name!r}; name an object of a file or module: path/to/file.py:name or package.module:name"
            f"{here}; or give {EXPECTED!r} to compare what the tasks themselves expect"
        )
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
            f"--handlers {name} is {kind_of(handlers)}; write `handlers = mcp_bridge.Handlers(...)` into a "
            "file and name that: file.py:handlers"
        )
    return handlers


def agent_source(agent: str | None) -> Any:
    """What `sdk.evaluate` takes as its agent: a named function, or a command as it is written. Raises `ConfigError`."""
    if agent is None:
        return None
    if agent.endswith(".py") and Path(agent).is_file():
        raise ConfigError(
            f"--agent is {agent!r}, a Python file; name the function in it ({agent}:name), or if it is a program, "
            f"start it: --agent 'python {agent}'"
        )
    return load_named(agent, "--agent") if is_named_object(agent) else agent


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


def policy_source(value: str, option: str) -> Any:
    """One policy as `sdk.evaluate` takes it. Raises `ConfigError`, which names `option`."""
    from ..policies.model_source import named_source  # heavy

    if not value.startswith(("http://", "https://")) and is_named_object(value):
        return load_named(value, option)
    return named_source(value, option)


def second_model(model: str | None, key_env: str | None, option: str, key_option: str) -> Any:
    """A model beside the policy, such as `user_model`. Raises `ConfigError` for a key without an endpoint."""
    source = None if model is None else "embedded" if model == "embedded" else policy_source(model, option)
    if key_env is not None:
        if source is None:
            raise ConfigError(f"{key_option} does nothing without {option} https://host/v1#name; leave it out")
        if not isinstance(source, dict):
            raise ConfigError(f"{key_option} is for an endpoint, and {option} {model} is none; leave the key out")
        source["api_key"] = key_from(key_env, key_option)
    return source


def user_source(model: str | None, key_env: str | None) -> Any:
    """What `sdk.evaluate` takes as `user_model`. Raises as `second_model`."""
    return second_model(model, key_env, "--user-model", "--user-key")


def key_from(variable: str | None, option: str = "--api-key-env") -> str | None:
    """The key in an environment variable; None without a name. Raises `ConfigError` where it is not set."""
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


# ---------------------------------------------------------------------------------------------------------------------

_WORD = r"[A-Za-z_]\w*"
_NAMED = re.compile(rf"(?P<module>.+\.py|{_WORD}(?:\.{_WORD})*):(?P<name>{_WORD}(?:\.{_WORD})*)")
_MOST_SHOWN = 20


def is_named_object(text: str) -> bool:
    """Whether `text` has the form `file.py:name` or `package.module:name`."""
    return _NAMED.fullmatch(text) is not None


def load_named(text: str, what: str) -> Any:
    """The object that `text` names. `what` is the option it was given to, for messages.

    The file's folder (for a module: the current one) is put first on Python's path, as `python file.py` does.
    Raises `ConfigError` for another form, a file or module that cannot be loaded, and a name that it does not
    have; the message lists what there is.
    """
    match = _NAMED.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"{what} is {text!r}; name an object of a file or module: path/to/file.py:name or package.module:name"
        )
    module = load_module(match["module"], what)
    found: Any = module
    for word in match["name"].split("."):
        try:
            found = getattr(found, word)
        except AttributeError:
            names = public_names(module)
            raise ConfigError(
                f"{what}: {match['module']} has no {match['name']!r}.{did_you_mean(match['name'], names)} It has: "
                f"{and_more(names, _MOST_SHOWN) or 'nothing'}"
            ) from None
    return found


def load_module(name: str, what: str) -> ModuleType:
    """The module of a file's path or of a dotted name. Raises `ConfigError` with the line where loading fails."""
    try:
        with printing_to_stderr():
            return _load_file(Path(name).expanduser(), what) if name.endswith(".py") else _load_module(name, what)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        line = "" if isinstance(error, SyntaxError) else users_line(error)  # its text names the line itself
        raise ConfigError(f"{what}: {name} cannot be loaded: {type(error).__name__}: {error}{line}") from error


def _load_file(path: Path, what: str) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"{what}: there is no file {str(path)!r}; give the path of a Python file, then :name")
    path = path.resolve()
    _put_first(path.parent)
    name = path.stem
    loaded = sys.modules.get(name)
    if loaded is not None:
        if getattr(loaded, "__file__", None) == str(path):
            return loaded
        name = f"{name} of {path.parent}"  # a module of that name is loaded already, for example `json`
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{what}: {str(path)!r} is not a Python file that can be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _load_module(name: str, what: str) -> ModuleType:
    _put_first(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigError(
                f"{what}: there is no module {error.name!r}; install it, start from the folder that holds it, "
                "or give the path of a file: path/to/file.py:name"
            ) from None
        raise


def _put_first(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def public_names(module: ModuleType) -> list[str]:
    """What the module offers: `__all__`, or its own public names without what it only imported."""
    declared = getattr(module, "__all__", None)
    if declared is not None:
        return sorted(declared)
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not isinstance(value, ModuleType)
        and getattr(value, "__module__", module.__name__) != "__future__"
        and (not hasattr(value, "__qualname__") or getattr(value, "__module__", None) == module.__name__)
    )
