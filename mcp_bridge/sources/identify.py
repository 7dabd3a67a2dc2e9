"""Says what kind of source the user gave, before anything is started."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from ..access.redaction import is_url, shown_arguments, shown_text, url_secrets
from ..errors import SourceError, kind_of
from ..world import WorldSource
from .functions import function_name
from .mcp_json import check_url, read_config, read_file
from .specs import FunctionSpec, HttpSpec, OpenApiSpec, ServerObjectSpec, Spec, StdioSpec, WorldSourceSpec

_YAML = (".yaml", ".yml")

ACCEPTED = """Accepted are:
  - the path of an mcp.json, or the same as a dict: {"mcpServers": {"name": {"command": "...", "args": [...]}}}
  - a URL of a streamable HTTP server: "https://host/mcp"
  - an OpenAPI document: "openapi.json", "openapi.yaml", a URL that ends so, or the document as a dict
  - a command as a list of strings: ["python", "server.py"]
  - an MCP server object (MCPServer, Server), or a function annotated to return one, called once for each world
  - Python functions with type hints
  - a sandbox, or anything else with `tools` and `open_world`
  - a list of any of these"""


def identify(source: Any) -> list[Spec]:
    """The servers, functions and sandboxes behind `source`. Raises `SourceError` listing the accepted forms.

    A list of strings is one command, unless every string is a URL or names a `.json` or `.yaml` file.
    """
    if isinstance(source, str):
        return _from_text(source)
    if isinstance(source, os.PathLike):
        return _from_file(Path(os.fspath(source)).expanduser())
    if isinstance(source, Mapping) and "swagger" in source and "mcpServers" not in source:
        return [OpenApiSpec("", source)]
    if isinstance(source, Mapping) and "openapi" in source and "mcpServers" not in source:
        # Either a document, which begins with its version, or an entry of an mcp.json by itself.
        if str(source["openapi"])[:2] == "3.":
            return [OpenApiSpec("", source)]
        return [*read_config({"mcpServers": {"": source}}, where="the dict", folder=Path.cwd())]
    if isinstance(source, Mapping):
        return [*read_config(source, where="the dict", folder=Path.cwd())]
    if isinstance(source, list | tuple):
        return _from_list(list(source))
    return [_from_object(source)]


def _from_text(source: str) -> list[Spec]:
    if is_url(source):
        check_url(source, "the source")
        if urlsplit(source).path.lower().endswith((".json", *_YAML)):
            return [OpenApiSpec("", source, secrets=url_secrets(source))]
        return [HttpSpec("", source, secrets=url_secrets(source))]
    if not source.strip():
        raise SourceError(f"the source is an empty string. {ACCEPTED}")
    path = Path(source).expanduser()
    if not path.exists() and any(character.isspace() for character in source):
        words = shown_arguments(source.split())
        raise SourceError(f"there is no file {' '.join(words)!r}. If it is a command, give it as a list: {words!r}")
    if "://" in source and not path.exists():
        raise SourceError(
            f"the source {shown_text(source)!r} must begin with http:// or https:// to be a URL. {ACCEPTED}"
        )
    return _from_file(path)


def _from_file(path: Path) -> list[Spec]:
    if path.suffix.lower() in _YAML:
        return [OpenApiSpec("", str(path))]
    return [*read_file(path)]


def _from_list(source: list[Any]) -> list[Spec]:
    if not source:
        raise SourceError(f"the source is an empty list. {ACCEPTED}")
    if all(isinstance(part, str) for part in source) and not all(
        is_url(part) or part.endswith((".json", *_YAML)) for part in source
    ):
        command, *args = source
        if not command:
            raise SourceError(
                f"the command {shown_arguments(source)!r} begins with an empty string; begin with a program"
            )
        return [StdioSpec("", os.path.expanduser(command), tuple(args))]
    return [spec for part in source for spec in identify(part)]


def _from_object(source: Any) -> Spec:
    server_types = _server_types()
    if isinstance(source, type):
        raise SourceError(f"the source is the class {source.__name__}; {_instead_of(source, server_types)}. {ACCEPTED}")
    if server_types and isinstance(source, server_types):
        return ServerObjectSpec(str(getattr(source, "name", "")), source)
    # A class in place of an instance was refused above: its attributes would look right here.
    if isinstance(source, WorldSource):
        return WorldSourceSpec(source, label=type(source).__name__)
    if callable(source):
        factory = _as_factory(source, server_types)
        return factory if factory is not None else FunctionSpec(source)
    if isinstance(source, ModuleType):
        raise SourceError(
            f"the source is the module {source.__name__}; give each rollout variables of its own with "
            f"sandboxes.objects.ObjectTwin({source.__name__}) (docs/sandboxes.md), or its functions, whose calls are "
            f"real. {ACCEPTED}"
        )
    kind = type(source)
    is_users = kind.__module__ != "builtins" and not hasattr(kind, "open_world")
    fix = f"; {_instead_of(kind, server_types)}" if is_users else ""
    raise SourceError(f"{source!r:.200} ({kind.__name__}) is no source of tools{fix}. {ACCEPTED}")


def _instead_of(kind: type, server_types: tuple[type[Any], ...]) -> str:
    """What to give in the place of a class, or of an instance that is no source."""
    if issubclass(kind, server_types) or hasattr(kind, "open_world"):
        return "give an instance of it"
    methods = [name for name, one in vars(kind).items() if inspect.isfunction(one) and not name.startswith("_")]
    if not methods:
        return "give functions or an MCP server in its place"
    return (
        f"give each rollout one of its own with sandboxes.objects.ObjectTwin({kind.__name__}) (docs/sandboxes.md), or "
        f"the methods of one as functions that all rollouts share, such as [one.{methods[0]}], or an MCP server"
    )


def _server_types() -> tuple[type[Any], ...]:
    """The SDK's server classes where somebody has loaded them; without that no object of theirs can exist."""
    found = []
    for module, name in (("mcp.server.mcpserver", "MCPServer"), ("mcp.server.lowlevel.server", "Server")):
        loaded = getattr(sys.modules.get(module), name, None)
        if isinstance(loaded, type):
            found.append(loaded)
    return tuple(found)


def _as_factory(source: Callable[..., Any], server_types: tuple[type[Any], ...]) -> ServerObjectSpec | None:
    """A factory of servers: annotated to return one, or a lambda or `partial`, which could be no tool anyway."""
    if not server_types or not _takes_nothing(source):
        return None
    name = function_name(source)
    annotated = typing.get_origin(_return_hint(source)) or _return_hint(source)
    if isinstance(annotated, type) and issubclass(annotated, server_types):
        return ServerObjectSpec(name, None, factory=_checked(source, name, server_types))
    if name == "<lambda>" or isinstance(source, functools.partial):
        made = source()
        if isinstance(made, server_types):
            return ServerObjectSpec(str(getattr(made, "name", "")), None, factory=_checked(source, name, server_types))
    return None


def _checked(source: Callable[..., Any], name: str, server_types: tuple[type[Any], ...]) -> Callable[[], Any]:
    def make() -> Any:
        server = source()
        if not isinstance(server, server_types):
            raise SourceError(f"{name!r} returned {kind_of(server)}; it must return a new MCP server object")
        return server

    return make


def _takes_nothing(source: Callable[..., Any]) -> bool:
    try:
        return not inspect.signature(source).parameters
    except (TypeError, ValueError):
        return False


def _return_hint(source: Callable[..., Any]) -> Any:
    try:
        return typing.get_type_hints(source).get("return")
    except (NameError, TypeError):
        return None
