"""`toolbake init`: a project that can be run at once, around tools that one has or around an example."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mcp_bridge.errors import BridgeError

from ...errors import ConfigError
from ..failing import as_options, clean_errors
from ..options import Debug

if TYPE_CHECKING:
    from ...progress import Progress
    from ...records import Task
    from ..starter.sources_of_project import ProjectTools

TASKS, VERIFY, TRAIN, GOLD_TEST, README = "tasks.jsonl", "verify.py", "train.json", "test_tasks.py", "README.md"
REQUESTS_FILE = "requests.csv"
_WANTED = 10

Folder = Annotated[
    Path, typer.Argument(metavar="FOLDER", show_default="the current folder", help="Where the project goes.")
]
McpFile = Annotated[
    Path | None,
    typer.Option(
        "--mcp",
        metavar="FILE",
        show_default="none",
        help="Your tools: an mcp.json, or the Python file of an MCP server.",
    ),
]
OpenApiFile = Annotated[
    str | None,
    typer.Option(
        "--openapi",
        metavar="FILE|URL",
        show_default="none",
        help="Your tools: an API by its OpenAPI document. The project has a twin of it, with simulated state.",
    ),
]
PythonFile = Annotated[
    str | None,
    typer.Option(
        "--python",
        metavar="FILE.py[:NAME]",
        show_default="none",
        help="Your tools: a class, functions with type hints, or a sandbox.",
    ),
]


def init(
    folder: Folder = Path(),
    *,
    mcp: McpFile = None,
    openapi: OpenApiFile = None,
    python: PythonFile = None,
    debug: Debug = False,
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
    with clean_errors(debug):
        from ...progress import Console
        from ..process import quiet_libraries
        from ..starter.sources_of_project import MCP_JSON

        given = [option for option in (mcp, openapi, python) if option is not None]
        if len(given) > 1:
            raise ConfigError(f"--mcp, --openapi and --python are tools each; give one of them, not {len(given)}")
        quiet_libraries()
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
    from ..starter.sources_of_project import example_tools, mcp_tools, openapi_tools, python_tools

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
    from ..sources import load_named

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
        "seed": 0,
    }
    files = {
        VERIFY: _VERIFY,
        TRAIN: json.dumps(train, indent=2) + "\n",
        GOLD_TEST: _gold_test(tools.word, has_worlds=bool(tasks)),
        README: _readme(tools, tasks, why),
    }
    if tasks:
        files[TASKS] = "".join(task.model_dump_json(exclude_defaults=True) + "\n" for task in tasks)
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
    make = [(f"toolbake solve {tools} --tasks {REQUESTS_FILE} --to {TASKS}", "make tasks of your requests")]
    return [
        *([] if has_tasks else make),
        (f"toolbake doctor {tools} --tasks {TASKS} --verifier {VERIFY}:verify", "is everything ready?"),
        ("pytest", "the gold solutions earn their reward"),
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
