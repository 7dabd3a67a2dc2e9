"""Unique names of tools that model APIs accept: where two sources have one name, both get their source's name
as a prefix; `files.read`, which MCP allows and those APIs do not, becomes `files_read`."""

from __future__ import annotations

import hashlib
import logging
import re
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass

from ..errors import SourceError
from ..records import Tool

logger = logging.getLogger(__name__)

LONGEST_NAME = 64
"""What model APIs take: `[a-zA-Z0-9_-]{1,64}`."""

_LONGEST_PREFIX = 32
_SUFFIX = re.compile(r"\.(py|js|mjs|cjs|ts|sh|exe)$")
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]+")


@dataclass(frozen=True)
class Named:
    """The tools of one source, before their names are made unique. `namespace`: a prefix for all of them."""

    label: str
    namespace: str | None
    tools: Sequence[Tool]


def told_apart(sources: Sequence[Named]) -> list[list[Tool]]:
    """The tools of each source under names that no other has; `Tool.name_at_source` keeps the source's own.

    A name that only one source has stays as it is, unless the source has a namespace or model APIs do not take it.
    Raises `SourceError` where one source has a name twice or a tool without one, or the new names collide.
    """
    for source in sources:
        _refuse_twice(source)
    counts = Counter(tool.name for source in sources if source.namespace is None for tool in source.tools)
    prefixes = _prefixes(sources)
    wanted = [
        [
            _legal(prefix, tool.name, is_prefixed=source.namespace is not None or counts[tool.name] > 1)
            for tool in source.tools
        ]
        for source, prefix in zip(sources, prefixes, strict=True)
    ]
    taken = Counter(name for names in wanted for name in names)
    out: list[list[Tool]] = []
    for source, prefix, names in zip(sources, prefixes, wanted, strict=True):
        out.append([])
        for tool, name in zip(source.tools, names, strict=True):
            if name == tool.name:
                # A source that is made of others, such as a connected toolset, has its own names for their tools.
                out[-1].append(tool.model_copy(update={"name_at_source": ""}) if tool.name_at_source else tool)
                continue
            # Two prefixes that the user chose alike are for the user to change; all else is told apart here.
            if taken[name] > 1 and (source.namespace is None or _ILLEGAL.search(tool.name)):
                name = _with_digest(name, prefix, tool.name)
            # A namespace is the user's own choice; the rest should not go unseen.
            level = logging.INFO if source.namespace is not None else logging.WARNING
            logger.log(level, "tool %r of %s is called %r here", tool.name, tool.source, name)
            out[-1].append(tool.model_copy(update={"name": name, "name_at_source": tool.name}))
    _refuse_collisions(out)
    return out


def _legal(prefix: str, tool: str, *, is_prefixed: bool) -> str:
    """The name itself where model APIs take it and it needs no prefix."""
    name = _ILLEGAL.sub("_", tool)
    name = f"{prefix}__{name}" if is_prefixed else name
    return name if len(name) <= LONGEST_NAME else _with_digest(name, prefix, tool)


def _with_digest(name: str, prefix: str, tool: str) -> str:
    """Eight digits of a hash at the end keep names apart that would be one after cutting, or without odd letters."""
    digest = hashlib.sha256(f"{prefix}/{tool}".encode()).hexdigest()[:8]
    return f"{name[: LONGEST_NAME - 9]}_{digest}"


def _prefixes(sources: Sequence[Named]) -> list[str]:
    """A prefix for each source; those that would be equal are numbered, unless the user chose them."""
    out: list[str] = []
    for source in sources:
        first = source.namespace or _prefix(source.label)
        out.append(numbered(first, out) if source.namespace is None else first)
    return out


def numbered(name: str, taken: Container[str], longest: int | None = None) -> str:
    """`name`, or where it is taken, its first `longest` letters with a number."""
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name[:longest]}_{number}"
    return found


def _prefix(label: str) -> str:
    """From a label to a short name: that of a server in mcp.json, the host of a URL, the script of a command."""
    if "://" in label:
        word = label.partition("://")[2].partition("/")[0]
    else:
        words = [word for word in label.split() if not word.startswith("-")] or [label]
        word = _SUFFIX.sub("", words[-1].rpartition("/")[2])
    return _ILLEGAL.sub("_", word).strip("_")[:_LONGEST_PREFIX].rstrip("_") or "tools"


def _refuse_twice(source: Named) -> None:
    seen: dict[str, str] = {}
    for tool in source.tools:
        origin = tool.source or source.label
        if not tool.name:
            raise SourceError(f"{origin} has a tool without a name, which no model could call; give it one there")
        if tool.name in seen:
            raise SourceError(
                f"two tools are called {tool.name!r}: one from {seen[tool.name]}, one from {origin}. "
                "Rename one of them, or leave one source out."
            )
        seen[tool.name] = origin


def _refuse_collisions(named: Sequence[Sequence[Tool]]) -> None:
    seen: dict[str, Tool] = {}
    for tool in (tool for tools in named for tool in tools):
        if (other := seen.get(tool.name)) is not None:
            raise SourceError(
                f"two tools would be called {tool.name!r}: one from {other.source}, one from {tool.source}. "
                'Give one of the servers another "toolbake": {"namespace": "..."} in mcp.json.'
            )
        seen[tool.name] = tool
