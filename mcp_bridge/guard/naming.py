"""Names that tell tools apart and that model APIs take: where two sources have one name, both get their source's name
before it; `files.read`, which MCP allows and those APIs do not, becomes `files_read`."""

from __future__ import annotations

import hashlib
import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import SourceError
from ..records import Tool

logger = logging.getLogger(__name__)

LONGEST_NAME = 64
"""What model APIs take: `[a-zA-Z0-9_-]{1,64}`."""

_LONGEST_PREFIX = 32
_LEGAL = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_SUFFIX = re.compile(r"\.(py|js|mjs|cjs|ts|sh|exe)$")
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]+")


@dataclass(frozen=True)
class Named:
    """The tools of one source, before their names are told apart. `namespace`: put before all of them."""

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

    def is_prefixed(source: Named, tool: Tool) -> bool:
        return source.namespace is not None or counts[tool.name] > 1

    def plain_name(source: Named, prefix: str, tool: Tool) -> str:
        return _prefixed(prefix, tool.name) if is_prefixed(source, tool) else _legal(prefix, tool.name)

    taken = Counter(
        plain_name(source, prefix, tool)
        for source, prefix in zip(sources, prefixes, strict=True)
        for tool in source.tools
    )

    def named(source: Named, prefix: str, tool: Tool) -> Tool:
        name = plain_name(source, prefix, tool)
        if name == tool.name:
            # A source that is made of others, such as a connected toolset, has its own names for their tools.
            return tool.model_copy(update={"name_at_source": ""}) if tool.name_at_source else tool
        # Two prefixes that the user chose alike are for the user to change; all else is told apart here.
        if taken[name] > 1 and (source.namespace is None or _ILLEGAL.search(tool.name)):
            name = _with_digest(name, prefix, tool.name)
        return tool.model_copy(update={"name": name, "name_at_source": tool.name})

    out = [
        [named(source, prefix, tool) for tool in source.tools] for source, prefix in zip(sources, prefixes, strict=True)
    ]
    _refuse_collisions(out)
    for source, tools in zip(sources, out, strict=True):
        # A namespace is the user's own choice; the rest should not go unseen.
        level = logging.INFO if source.namespace is not None else logging.WARNING
        for tool in tools:
            if tool.name_at_source:
                logger.log(level, "tool %r of %s is called %r here", tool.name_at_source, tool.source, tool.name)
    return out


def _legal(prefix: str, tool: str) -> str:
    """The name itself where model APIs take it."""
    if _LEGAL.fullmatch(tool):
        return tool
    name = _ILLEGAL.sub("_", tool)
    return name if len(name) <= LONGEST_NAME else _with_digest(name, prefix, tool)


def _prefixed(prefix: str, tool: str) -> str:
    name = f"{prefix}__{_ILLEGAL.sub('_', tool)}"
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
        prefix, number = first, 1
        while source.namespace is None and prefix in out:
            number += 1
            prefix = f"{first}_{number}"
        out.append(prefix)
    return out


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
