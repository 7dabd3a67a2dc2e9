"""`toolbake init`: a project that can be run at once, around tools that one has or around an example."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from keyword import iskeyword
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mcp_bridge.errors import BridgeError

from ...errors import ConfigError
from ..failing import as_options
from ..options import arg, opt
from ..sources import is_named_object, load_module, load_named, public_names

if TYPE_CHECKING:
    from ...progress import Progress
    from ...records import Task

TASKS, VERIFY, TRAIN, GOLD_TEST, README = "tasks.jsonl", "verify.py", "train.json", "test_tasks.py", "README.md"
REQUESTS_FILE = "requests.csv"
MCP_JSON, TOOLS_PY = "mcp.json", "tools.py"
_PYTHON = "${TOOLBAKE_PYTHON:-python}"
_PLACES, _KEY_FILE = ("ca", "cert", "key"), "private_key_file"
"""Of an entry's `tls` and of its `auth`: files, relative to the folder of their `mcp.json`."""
_FETCHING = frozenset({"npx", "uvx", "pipx", "bunx", "docker", "podman"})
"""Commands that get a server from a registry, so that the folder they are typed in has nothing of it."""
_WANTED = 10

Folder = Annotated[Path, arg("FOLDER", "Where the project goes.", default="the current folder")]
McpFile = Annotated[
    Path | None, opt("--mcp FILE", "Your tools: an mcp.json, or the Python file of an MCP server.", default="none")
]
OpenApiFile = Annotated[
    str | None,
    opt(
        "--openapi FILE|URL",
        "Your tools: an API by its OpenAPI document. The project has a twin of it, with simulated state.",
        default="none",
    ),
]
PythonFile = Annotated[
    str | None,
    opt("--python FILE.py[:NAME]", "Your tools: a class, functions with type hints, or a sandbox.", default="none"),
]


def init(
    folder: Folder = Path(),
    *,
    mcp: McpFile = None,
    openapi: OpenApiFile = None,
    python: PythonFile = None,
) -> None:
    """Write a project that can be run at once: tools, tasks, a verifier, options, a test and a README.

    The tasks are made with the tools themselves, in simulated worlds, and each was solved once: its answer and its
    changes are what the calls really brought about. Without --mcp, --openapi or --python the tools are a small example
    server of its own, with 50 requests to it. No file is overwritten.

    Examples:
      toolbake init rooms
      toolbake init --mcp server.py
      toolbake init crm --openapi https://crm.example/openapi.json
    """
    from ...progress import Console

    given = [option for option in (mcp, openapi, python) if option is not None]
    if len(given) > 1:
        raise ConfigError(f"--mcp, --openapi and --python are tools each; give one of them, not {len(given)}")
    tools = _tools(folder, mcp, openapi, python)
    _refuse_files_in_the_way(folder, [*tools.files, TASKS, VERIFY, TRAIN, GOLD_TEST, README])
    missing_folders = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        _write(folder, tools.files)
        if mcp is not None and (folder / MCP_JSON).is_file() and Path(mcp).is_file():
            # It may hold keys; nobody may read them who could not before.
            (folder / MCP_JSON).chmod(Path(mcp).stat().st_mode & (folder / MCP_JSON).stat().st_mode)
        tasks, why = _tasks(tools, folder, Console())
    except BaseException:
        for name in tools.files:
            (folder / name).unlink(missing_ok=True)
        if folder in missing_folders:
            shutil.rmtree(folder / "__pycache__", ignore_errors=True)  # of the tools that were imported
        for one in missing_folders:
            with contextlib.suppress(OSError):  # what went wrong is told, not what is left of it
                one.rmdir()
        raise
    why = as_options(why, ("--setup", "--max-calls"))  # of synthesize, which makes more
    rest = _rest(tools, tasks, why)
    if (folder / REQUESTS_FILE).exists():
        rest.pop(REQUESTS_FILE, None)
    _write(folder, rest)
    for line in _said(folder, tools, tasks, why):
        typer.echo(line)


def _tools(folder: Path, mcp: Path | None, openapi: str | None, python: str | None) -> ProjectTools:
    if mcp is not None:
        return mcp_tools(mcp, folder)
    if openapi is not None:
        return openapi_tools(openapi, folder)
    return python_tools(python, folder) if python is not None else example_tools()


def _refuse_files_in_the_way(folder: Path, names: Sequence[str]) -> None:
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; give a folder")
    if there := [name for name in names if (folder / name).exists()]:
        raise ConfigError(
            f"{folder} has {', '.join(there)} already, and no file is overwritten; give another folder, or move "
            f"{'it' if len(there) == 1 else 'them'} away"
        )


def _write(folder: Path, files: Mapping[str, str]) -> None:
    from ...traces.atomic_files import make_folder, write_bytes

    make_folder(folder)
    for name, text in files.items():
        write_bytes(folder / name, text.encode())


# ---------------------------------------------------------------------------------------------------------------------


def _tasks(tools: ProjectTools, folder: Path, progress: Progress) -> tuple[list[Task], str]:
    """The tasks, and why there are none or few. Raises what connecting raises: without tools there is no project."""
    from ...blocking import solve_file, synthesize

    source: Any = folder / tools.word
    if ":" in tools.word:
        source = load_named(str(folder / tools.word), "the project")
    if tools.own_server:
        return solve_file(source, folder / REQUESTS_FILE, progress=progress), ""
    problems = []
    without_setup: list[dict[str, Any]] = [{}]
    for setups in (None, without_setup):  # worlds by seed, or one world for tools that take no setup
        try:
            made = synthesize(source, _WANTED, setups=setups, max_calls=2, progress=progress)
        except ConfigError as error:
            broken = isinstance(error.__cause__, BridgeError)
            problems.append(f"{error}; correct that first (toolbake doctor looks at worlds)" if broken else str(error))
            continue
        if len(made.tasks) < _WANTED:
            return list(made.tasks), "\n".join(str(made).splitlines()[bool(made.tasks) :])
        unused = [f"The tool {name} is in none of them: {reason}" for name, reason in made.unused_tools.items()]
        return list(made.tasks), "\n".join(unused)
    return [], tools.simulated_by or problems[0]


def _rest(tools: ProjectTools, tasks: Sequence[Task], why: str) -> dict[str, str]:
    """All files but those of the tools."""
    most = max((len(task.expected.get("calls", ())) for task in tasks), default=2)
    train = {
        "grpo": {"max_steps": 26, "num_generations": 6},
        "limits": {"max_turns": most + 3, "max_turn_tokens": 96, "max_tokens": 96 * (most + 2)},
        "evaluation": {"heldout": 4},
        "seed": 0,
    }
    files = {
        VERIFY: _VERIFY,
        TRAIN: json.dumps(train, indent=2) + "\n",
        GOLD_TEST: _gold_test(tools.word, has_worlds=bool(tasks)),
        README: _readme(tools, tasks, why),
    }
    if tasks:
        from ...tasks.task_files import as_lines

        files[TASKS] = as_lines(tasks).decode()
    if REQUESTS_FILE not in tools.files and not tasks:
        files[REQUESTS_FILE] = "prompt,calls,answer,setup.seed,tags.kind,family\n"
    return files


_VERIFY = '''"""What counts as success: all that a task's `expected` holds, changes of the world, calls and answer."""

from sdk.verifiers import as_expected

verify = as_expected()
'''


def _gold_test(word: str, *, has_worlds: bool) -> str:
    file, _, name = word.rpartition(":")
    imports = f"from {file.removesuffix('.py')} import {name}\n" if file else ""
    tools = name if file else f'HERE / "{word}"'
    head = '"""The gold solution of every task earns its reward: run `pytest` after each change."""\n\n'
    if has_worlds:
        return f'''{head}from pathlib import Path

import sdk
{imports}from verify import verify

HERE = Path(__file__).parent


def test_the_gold_solutions_earn_their_reward():
    sdk.check_tasks({tools}, HERE / "{TASKS}", verifier=verify).require_all()
'''
    return f'''{head}from pathlib import Path

import pytest
import sdk
from sdk.policies.scripted import replay_demonstration
from sdk.tasks import load_tasks
{imports}from verify import verify

HERE = Path(__file__).parent


@pytest.mark.parametrize("task", load_tasks(HERE / "{TASKS}"), ids=lambda task: task.id)
def test_the_gold_solution_earns_its_reward(task):
    rollout = sdk.rollout({tools}, task, model=replay_demonstration(task), verifier=verify)
    assert rollout.verdict and rollout.verdict.score == 1, rollout.verdict or rollout.failure
'''


def next_commands(word: str, *, has_tasks: bool) -> list[tuple[str, str]]:
    """What to type in the project's folder, in this order, each with what it is for."""
    tools = shlex.quote(word)
    judged = f"{tools} {TASKS} --verifier {VERIFY}:verify"
    make = [
        (
            f"toolbake solve {tools} --tasks {REQUESTS_FILE} --to {TASKS}",
            "make tasks of your requests, by making their calls",
        )
    ]
    return [
        *([] if has_tasks else make),
        (f"toolbake doctor {tools} --tasks {TASKS} --verifier {VERIFY}:verify", "is everything ready?"),
        ("pytest", "the gold solutions earn their reward (pip install pytest)"),
        (f"toolbake evaluate {judged}", "what the model can do untrained"),
        (f"toolbake train {judged} --config {TRAIN} --output-dir runs/first", "train it; some minutes to an hour"),
        ("toolbake report runs/first --errors", "what went wrong, with examples"),
        ("toolbake serve runs/first", "put it to use"),
    ]


def _readme(tools: ProjectTools, tasks: Sequence[Task], why: str) -> str:
    rows = {
        **{name: "how the tools are started" if name == "mcp.json" else "the tools" for name in tools.files},
        REQUESTS_FILE: "requests with the calls that solve them; `toolbake solve` makes tasks of them",
        TASKS: f"{len(tasks)} tasks with their gold solutions; read and edit them",
        VERIFY: "what counts as success",
        TRAIN: "the options of the training; `toolbake train --list-settings` names all",
        GOLD_TEST: "replays the gold solutions",
    }
    if tasks and REQUESTS_FILE not in tools.files:
        del rows[REQUESTS_FILE]
    if not tasks:
        del rows[TASKS]
    shown = "\n".join(f"| `{name}` | {text} |" for name, text in rows.items())
    commands = "\n".join(f"# {text}\n{command}" for command, text in next_commands(tools.word, has_tasks=bool(tasks)))
    word = shlex.quote(tools.word)
    if tasks:
        more = f"""More tasks make a better model: a hundred and more, in many wordings. Write requests with their calls
and solve them (`toolbake solve {word} --tasks requests.csv --to more.jsonl`), or have some made (`toolbake synthesize
{word} --to more.jsonl -n 100`)."""
    else:
        more = f"""There are no tasks yet. None could be made by trying the tools: {why}

Write requests into `{REQUESTS_FILE}`, one in each row, with the calls that solve them, such as
`get_order(order_id="7")`; `toolbake solve --help` explains the columns."""
    return f"""# A toolbake project
The tools are {tools.what}.

| file | what it is |
| --- | --- |
{shown}

Next:

```bash
{commands}
```

{more}
"""


def _said(folder: Path, tools: ProjectTools, tasks: Sequence[Task], why: str) -> list[str]:
    from ...tasks import counted

    lines = [f"A project is in {folder.resolve() if str(folder) == '.' else folder}, with {tools.what}."]
    if tasks:
        lines.append(f"{counted(tasks)}, each solved once in a world of its own.")
        lines += why.splitlines()
    else:
        lines.append(f"No task could be made by trying the tools: {why}")
        lines.append(f"Write requests with their calls into {REQUESTS_FILE}; its README shows how.")
    lines += ["", "Next:"]
    lines += [f"  cd {shlex.quote(str(folder))}"] * (str(folder) != ".")
    commands = next_commands(tools.word, has_tasks=bool(tasks))
    return [*lines, *(line for command, text in commands for line in (f"  # {text}", f"  {command}"))]


# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProjectTools:
    """What is written for the tools. `word`: what the commands take as TOOLS, seen from the project's folder."""

    word: str
    what: str
    """In a few words, for the README."""
    files: Mapping[str, str] = field(default_factory=dict)
    own_server: bool = False
    """Whether they are the example, which has requests of its own."""
    simulated_by: str = ""
    """How each rollout could have a world of its own, where the tools as they are written have none."""


def example_tools() -> ProjectTools:
    """A server of four tools with a world for each rollout, to read and to replace."""
    here = Path(__file__).parents[1] / "starter"
    files = {
        "server.py": (here / "rooms.py").read_text("utf-8"),
        MCP_JSON: _json({"mcpServers": {"rooms": {"command": _PYTHON, "args": ["server.py"], "cwd": "."}}}),
        REQUESTS_FILE: (here / REQUESTS_FILE).read_text("utf-8"),
    }
    return ProjectTools(MCP_JSON, "a booking desk for meeting rooms, `server.py`", files, own_server=True)


def mcp_tools(file: Path, folder: Path) -> ProjectTools:
    """Of an `mcp.json` or a server in Python. An `mcp.json` elsewhere is copied, with the places in it as they were."""
    _require_file(file, "--mcp", "an mcp.json, or the Python file of a server")
    if file.suffix == ".py":
        entry = {"command": _PYTHON, "args": [file.name], "cwd": _from(folder, file.parent)}
        text = _json({"mcpServers": {_plain(file.stem): entry}})
        return ProjectTools(MCP_JSON, f"the MCP server `{_from(folder, file)}`", {MCP_JSON: text})
    if file.suffix != ".json":
        raise ConfigError(f"--mcp is {str(file)!r}; give an mcp.json, or the Python file of a server (server.py)")
    if file.resolve() == (folder / MCP_JSON).resolve():
        return ProjectTools(MCP_JSON, "the servers of `mcp.json`")
    from mcp_bridge.sources.mcp_json import config_in, is_document, read_config

    config = config_in(file)
    if is_document(config):
        raise ConfigError(f"--mcp is {str(file)!r}, an OpenAPI document; give it as --openapi {file}")
    home = file.resolve().parent
    read_config(config, where=str(file), folder=home)  # a mistake in it is told with its place
    entries = config.get("mcpServers", config.get("servers"))
    moved = {name: _moved(entry, home, folder) for name, entry in entries.items()}
    text = _json({"mcpServers": moved})
    return ProjectTools(MCP_JSON, f"the servers of `{_from(folder, file)}`", {MCP_JSON: text})


def openapi_tools(document: str, folder: Path) -> ProjectTools:
    """Of an API: its twin, because training calls thousands of times and must not touch the real one."""
    from mcp_bridge.access.redaction import public_url, url_secrets

    if document.startswith(("http://", "https://")):
        if url_secrets(document):
            raise ConfigError(
                f"--openapi is {public_url(document)!r} with a user, a password, a query or a fragment, which would be "
                "written into tools.py; save the document, and give the file"
            )
        imports, place = "", json.dumps(document, ensure_ascii=False)
    else:
        from mcp_bridge.openapi.document import read_document

        _require_file(Path(document), "--openapi", "an OpenAPI document (openapi.json or .yaml), or its URL")
        read_document(Path(document))  # a mistake in it is told with its place, and not with that of tools.py
        imports = "from pathlib import Path\n\n"
        place = f"Path(__file__).parent / {json.dumps(_from(folder, Path(document)), ensure_ascii=False)}"
    code = f'''"""A twin of the API: the tools of its OpenAPI document, with simulated state for each rollout."""

{imports}from sandboxes.api import ApiTwin

tools = ApiTwin({place})
'''
    return ProjectTools(f"{TOOLS_PY}:tools", f"a twin of the API in `{document}`", {TOOLS_PY: code})


def python_tools(text: str, folder: Path) -> ProjectTools:
    """Of a Python file: the object that is named, or what it holds: a sandbox, a class, functions."""
    file_word, _, name = text.rpartition(":") if is_named_object(text) else (text, "", "")
    file = Path(file_word)
    wanted = "a Python file, or an object in it: file.py:name"
    _require_file(file, "--python", wanted)
    if file.suffix != ".py":
        raise ConfigError(f"--python is {text!r}, which is not a Python file; give {wanted}")
    module = load_module(file_word, "--python")
    kind, names = _found(module, name, file)
    if kind == "server":
        return mcp_tools(file, folder)
    at_home = file.resolve().parent == folder.resolve()
    if kind == "object" and at_home:
        return ProjectTools(f"{file.name}:{names[0]}", f"`{names[0]}` of `{file.name}`")
    if not file.stem.isidentifier() or iskeyword(file.stem) or file.name in (TOOLS_PY, "verify.py"):
        raise ConfigError(
            f"--python is {str(file)!r}, and {TOOLS_PY} of the project cannot import a file of that name; rename it, "
            "for example to my_tools.py"
        )
    tools = {"object": names[0], "class": f"ObjectTwin({names[0]})", "functions": f"[{', '.join(names)}]"}[kind]
    what = {
        "object": f"`{names[0]}` of `{_from(folder, file)}`",
        "class": f"the methods of `{names[0]}` in `{_from(folder, file)}`, on an object of its own for each rollout",
        "functions": f"the functions of `{_from(folder, file)}`",
    }[kind]
    imports = _imports(file, names, folder, twin=kind == "class", at_home=at_home)
    simulated_by = ""
    if kind == "functions":
        imports += _OWN_VARIABLES.format(file=file.name, module=file.stem)
        simulated_by = (
            f"calls of these functions are real. If they change only variables of {file.name}, do what the comment in "
            f"{TOOLS_PY} shows: each rollout then has variables of its own, and `toolbake synthesize {TOOLS_PY}:tools "
            "--to tasks.jsonl` makes tasks"
        )
    code = f"{imports}\ntools = {tools}\n"
    return ProjectTools(f"{TOOLS_PY}:tools", what, {TOOLS_PY: code}, simulated_by=simulated_by)


_OWN_VARIABLES = """
# Calls are real. If these functions change only variables of {file}, give each rollout variables of its own:
#   import {module}
#   from sandboxes.objects import ObjectTwin
#   tools = ObjectTwin({module})   # state=vars, if their names begin with an underscore
"""


# ---------------------------------------------------------------------------------------------------------------------


def _imports(file: Path, names: list[str], folder: Path, *, twin: bool, at_home: bool) -> str:
    lines = ['"""The tools of this project."""', ""]
    if not at_home:
        lines += ["import sys", "from pathlib import Path", ""]
    if twin:
        lines += ["from sandboxes.objects import ObjectTwin", ""]
    if not at_home:
        place = json.dumps(_from(folder, file.parent), ensure_ascii=False)
        lines += [f"sys.path.insert(0, str(Path(__file__).parent / {place}))", ""]
    return "\n".join([*lines, f"from {file.stem} import {', '.join(names)}", ""])


def _found(module: ModuleType, name: str, file: Path) -> tuple[str, list[str]]:
    """What kind of tools it has, and their names. Raises `ConfigError` where that is none, or not clear."""
    names = [name] if name else public_names(module)
    values = {one: getattr(module, one) for one in names if hasattr(module, one)}
    if name and name not in values:
        load_named(f"{file}:{name}", "--python")
    kinds: dict[str, list[str]] = {"server": [], "object": [], "class": [], "functions": []}
    for one, value in values.items():
        if kind := _kind(value):
            kinds[kind].append(one)
    for kind in ("server", "object"):
        if len(kinds[kind]) == 1 or (kinds[kind] and "tools" in kinds[kind]):
            return kind, ["tools" if "tools" in kinds[kind] else kinds[kind][0]]
    if len(kinds["class"]) == 1 and not kinds["functions"]:
        return "class", kinds["class"]
    if kinds["functions"] and not kinds["class"]:
        return "functions", kinds["functions"]
    every = [one for found in kinds.values() for one in found]
    if not every:
        raise ConfigError(
            f"--python is {file}, which has no tools: functions with type hints, a class, a sandbox or a list `tools`"
        )
    raise ConfigError(f"--python is {file}, which has {', '.join(every)}; name one of them: --python {file}:{every[0]}")


def _kind(value: Any) -> str:
    from mcp_bridge.world import WorldSource

    if type(value).__name__ in ("MCPServer", "FastMCP") and hasattr(value, "tool"):
        return "server"
    if inspect.isclass(value):
        return "class" if any(inspect.isfunction(one) for n, one in vars(value).items() if n[0] != "_") else ""
    if isinstance(value, WorldSource) or (isinstance(value, list | tuple) and value and all(map(callable, value))):
        return "object"
    return "functions" if inspect.isfunction(inspect.unwrap(value)) and callable(value) else ""


def _moved(entry: Any, home: Path, folder: Path) -> Any:
    """An entry of an `mcp.json` as it reads in another folder."""
    if not isinstance(entry, dict):
        return entry

    def moved(place: str) -> str:
        return _from(folder, home / Path(place).expanduser())

    def with_places(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
        return {
            name: moved(value) if name in names and isinstance(value, str) and "${" not in value else value
            for name, value in values.items()
        }

    found = with_places(entry, "envFile")
    if "command" in entry:
        # Without `cwd` a server starts where the command was typed. It is written only where the server may need that:
        # a project that names no folder beside it can be moved.
        cwd = str(entry.get("cwd", ""))
        if not cwd.startswith("${") and (cwd or _is_of_this_folder(entry)):
            found["cwd"] = moved(cwd) if cwd else _from(folder, Path.cwd())
    document = entry.get("openapi")
    if isinstance(document, str) and "://" not in document:
        found["openapi"] = moved(document)
    options = entry.get("toolbake")
    if isinstance(options, dict):
        options = dict(options)
        world = options.get("world")
        if isinstance(world, dict) and isinstance(world.get("folder"), str):
            options["world"] = {**world, "folder": moved(world["folder"])}
        if isinstance(options.get("roots"), list):
            options["roots"] = [one if "://" in str(one) else moved(str(one)) for one in options["roots"]]
        found["toolbake"] = options
    if isinstance(tls := entry.get("tls"), dict):
        found["tls"] = with_places(tls, *_PLACES)
    if isinstance(auth := entry.get("auth"), dict):
        # Of a server the key's file stands in it, of an API in the entry of each scheme.
        found["auth"] = {
            name: with_places(one, _KEY_FILE) if isinstance(one, dict) else one
            for name, one in with_places(auth, _KEY_FILE).items()
        }
    return found


def _is_of_this_folder(entry: Mapping[str, Any]) -> bool:
    """Whether what an entry starts may be in the current folder: whatever is not fetched, or is told a place in it."""
    places = [*entry.get("args", ()), *entry.get("env", {}).values()]
    named = (part for place in places for part in (str(place), str(place).rpartition("=")[2]) if part)
    return Path(str(entry["command"])).stem not in _FETCHING or any(
        not Path(part).is_absolute() and Path(part).exists() for part in named
    )


def _require_file(file: Path, option: str, wanted: str) -> None:
    if not file.expanduser().is_file():
        there = "which is a folder" if file.expanduser().is_dir() else "and there is no such file"
        raise ConfigError(f"{option} is {str(file)!r}, {there}; give {wanted}")


def _from(folder: Path, place: Path) -> str:
    """The path from the project's folder, with `/` on every system."""
    return Path(os.path.relpath(place.resolve(), folder.resolve())).as_posix()


def _plain(name: str) -> str:
    return "".join(character if character.isalnum() else "_" for character in name)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
