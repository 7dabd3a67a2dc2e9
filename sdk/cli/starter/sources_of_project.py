"""The tools of a new project: a server, an API's document, a Python file or the example, as files in its folder."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from keyword import iskeyword
from pathlib import Path
from types import ModuleType
from typing import Any

from mcp_bridge.access.redaction import public_url, url_secrets

from ...errors import ConfigError
from ..sources import is_named_object, load_module, load_named, public_names

MCP_JSON, TOOLS_PY, REQUESTS = "mcp.json", "tools.py", "requests.csv"
_PYTHON = "${TOOLBAKE_PYTHON:-python}"
_PLACES = ("ca", "cert", "key")
"""Of an entry's `tls`: files, relative to the folder of their `mcp.json`."""


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
    here = Path(__file__).parent
    files = {
        "server.py": (here / "rooms.py").read_text("utf-8"),
        MCP_JSON: _json({"mcpServers": {"rooms": {"command": _PYTHON, "args": ["server.py"], "cwd": "."}}}),
        REQUESTS: (here / REQUESTS).read_text("utf-8"),
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
    from mcp_bridge.sources.mcp_json import read_file

    read_file(file)  # a mistake in it is told with its place
    config = json.loads(file.read_text("utf-8-sig"))
    entries = config.get("mcpServers")
    if not isinstance(entries, dict):
        raise ConfigError(f"--mcp is {str(file)!r}, an OpenAPI document; give it as --openapi {file}")
    moved = {name: _moved(entry, file.resolve().parent, folder) for name, entry in entries.items()}
    text = _json({"mcpServers": moved})
    return ProjectTools(MCP_JSON, f"the servers of `{_from(folder, file)}`", {MCP_JSON: text})


def openapi_tools(document: str, folder: Path) -> ProjectTools:
    """Of an API: its twin, because training calls thousands of times and must not touch the real one."""
    if document.startswith(("http://", "https://")):
        if url_secrets(document):
            raise ConfigError(
                f"--openapi is {public_url(document)!r} with a user, a password, a query or a fragment, which would be "
                "written into tools.py; save the document, and give the file"
            )
        place = json.dumps(document)
    else:
        _require_file(Path(document), "--openapi", "an OpenAPI document (openapi.json or .yaml), or its URL")
        place = f"Path(__file__).parent / {json.dumps(_from(folder, Path(document)))}"
    lines = [
        '"""A twin of the API: the tools of its OpenAPI document, with simulated state for each rollout."""',
        "",
        "from pathlib import Path",
        "",
        "from sandboxes.api import ApiTwin",
        "",
        f"tools = ApiTwin({place})",
    ]
    if "Path(" not in place:
        lines = [line for line in lines if line != "from pathlib import Path"]
        lines = [*lines[:1], *lines[2:]]
    return ProjectTools(f"{TOOLS_PY}:tools", f"a twin of the API in `{document}`", {TOOLS_PY: "\n".join(lines) + "\n"})


def python_tools(text: str, folder: Path) -> ProjectTools:
    """Of a Python file: the object that is named, or what it holds: a sandbox, a class, functions."""
    file_word, sign, name = text.rpartition(":") if is_named_object(text) else (text, "", "")
    file = Path(file_word)
    _require_file(file, "--python", "a Python file, or an object in it: file.py:name")
    if not sign:
        name = ""
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
#   tools = ObjectTwin({module})
"""


# ---------------------------------------------------------------------------------------------------------------------


def _imports(file: Path, names: list[str], folder: Path, *, twin: bool, at_home: bool) -> str:
    lines = ['"""The tools of this project."""', ""]
    if not at_home:
        lines += ["import sys", "from pathlib import Path", ""]
    if twin:
        lines += ["from sandboxes.objects import ObjectTwin", ""]
    if not at_home:
        lines += [f"sys.path.insert(0, str(Path(__file__).parent / {json.dumps(_from(folder, file.parent))}))", ""]
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
    found = dict(entry)
    if "command" in entry:
        # Without `cwd` a server starts where the command was typed.
        cwd = str(entry.get("cwd", ""))
        if not cwd.startswith("${"):
            found["cwd"] = _from(folder, home / Path(cwd).expanduser() if cwd else Path.cwd())
    document = entry.get("openapi")
    if isinstance(document, str) and "://" not in document:
        found["openapi"] = _from(folder, home / Path(document).expanduser())
    options = entry.get("toolbake")
    if isinstance(options, dict):
        options = dict(options)
        world = options.get("world")
        if isinstance(world, dict) and isinstance(world.get("folder"), str):
            options["world"] = {**world, "folder": _from(folder, home / Path(world["folder"]).expanduser())}
        if isinstance(options.get("roots"), list):
            options["roots"] = [
                one if "://" in str(one) else _from(folder, home / Path(str(one)).expanduser())
                for one in options["roots"]
            ]
        found["toolbake"] = options
    tls = entry.get("tls")
    if isinstance(tls, dict):
        found["tls"] = {
            name: _from(folder, home / Path(value).expanduser())
            if name in _PLACES and isinstance(value, str) and "${" not in value
            else value
            for name, value in tls.items()
        }
    return found


def _require_file(file: Path, option: str, wanted: str) -> None:
    if not file.expanduser().is_file():
        raise ConfigError(f"{option} is {str(file)!r}, and there is no such file; give {wanted}")


def _from(folder: Path, place: Path) -> str:
    """The path from the project's folder, with `/` on every system."""
    return Path(os.path.relpath(place.resolve(), folder.resolve())).as_posix()


def _plain(name: str) -> str:
    return "".join(character if character.isalnum() else "_" for character in name)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
