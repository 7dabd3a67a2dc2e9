"""The guard: which tools of a source a policy may see and call, under which names, and how many calls at a time.

Names are unique, and such as model APIs accept: where two sources have one name, both get their source's name as a
prefix; `files.read`, which MCP allows and those APIs do not, becomes `files_read`.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Container, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import anyio

from .errors import SourceError
from .records import LeftOut, Tool
from .sources.specs import ServerOptions

logger = logging.getLogger(__name__)

_GLOB = frozenset("*?[")
_NAMING = ("allow", "deny", "read_only", "destructive", "idempotent", "allow_destructive")


def choose(
    tools: Sequence[Tool], options: ServerOptions, label: str, *, within: str = "toolbake."
) -> tuple[list[Tool], list[LeftOut]]:
    """The tools to use, with the user's word in their annotations, and those left out with the reason.

    `within`: where the options stand, for errors. Raises `SourceError` where an option names a tool that is not there.
    """
    _require_known(tools, options, label, within)
    kept: list[Tool] = []
    left_out: list[LeftOut] = []
    for tool in tools:
        described = with_users_word(tool, options)
        reason = reason_against(described, options)
        if reason is None:
            kept.append(described)
        else:
            left_out.append(LeftOut(tool=tool.name, source=tool.source or label, reason=reason))
    return kept, left_out


def with_users_word(tool: Tool, options: ServerOptions) -> Tool:
    """The tool with what `read_only`, `destructive` and `idempotent` say in place of its own annotations."""
    said = {
        field: True
        for field in ("read_only", "destructive", "idempotent")
        if is_named(tool.name, getattr(options, field))
    }
    if said.get("read_only"):
        said.setdefault("destructive", False)
    elif said.get("destructive"):
        said["read_only"] = False
    if not said:
        return tool
    return tool.model_copy(update={"annotations": tool.annotations.model_copy(update=said)})


def is_named(tool: str, names: Iterable[str]) -> bool:
    """Whether one of the names or patterns is the tool's."""
    return any(fnmatchcase(tool, name) for name in names)


def reason_against(tool: Tool, options: ServerOptions) -> str | None:
    """Why the options leave the tool out; None where they do not. `tool`: with the user's word in its annotations."""
    if denied := [name for name in options.deny if fnmatchcase(tool.name, name)]:
        return f"deny has {denied[0]!r}"
    if options.allow is not None and not is_named(tool.name, options.allow):
        return "allow does not name it"
    if options.only_read_only and not tool.annotations.read_only:
        return "only_read_only is set, and nothing says that it only reads"
    return None


def _require_known(tools: Sequence[Tool], options: ServerOptions, label: str, within: str) -> None:
    names = [tool.name for tool in tools]
    for option in _NAMING:
        for pattern in getattr(options, option) or ():
            if any(fnmatchcase(name, pattern) for name in names):
                continue
            if not _GLOB & set(pattern):
                raise SourceError(
                    f"{label}: {within}{option} names {pattern!r}, which is none of its tools: {', '.join(names)}"
                )
            logger.warning("%s: %s%s has %r, which fits none of its tools", label, within, option, pattern)
    both = [name for name in names if is_named(name, options.read_only) and is_named(name, options.destructive)]
    if both:
        raise SourceError(
            f"{label}: {both[0]!r} is in both toolbake.read_only and toolbake.destructive "
            f"({', '.join(options.read_only)}; {', '.join(options.destructive)}); take it out of one of them"
        )


def is_destructive(tool: Tool, *, unmarked: bool = False) -> bool:
    """Whether a tool's annotations make it destructive, and not also read-only.

    `unmarked`: count one that says nothing of itself too. MCP's default of `destructiveHint` is true, but most servers
    annotate nothing, and a guard that refuses them all would only be switched off.
    """
    says = tool.annotations
    if says.read_only:
        return False
    return bool(says.destructive) or (unmarked and says.destructive is None)


def dangerous(tools: Iterable[Tool], options: ServerOptions) -> list[Tool]:
    """The destructive ones among a live source's tools that its options do not allow."""
    return [
        tool
        for tool in tools
        if is_destructive(tool, unmarked=options.unmarked_are_destructive)
        and not is_named(tool.name_at_source or tool.name, options.allow_destructive)
    ]


def require_known(tools: Iterable[Tool], allowed: Iterable[str]) -> None:
    """Raises `SourceError` where a name or a pattern in `allowed` fits none of the tools."""
    known = [tool.name for tool in tools]
    for name in allowed:
        if not any(is_named(one, [name]) for one in known):
            raise SourceError(f"allow_destructive names {name!r}, which is none of the tools: {', '.join(known)}")


def refuse_in_training(live: Iterable[Tool], allowed: Sequence[str]) -> None:
    """Raises `SourceError` that names the tools and what to do. `live`: see `Toolset.live_destructive`.

    `allowed`: names as the policy sees them, or patterns.
    """
    refused = [tool for tool in live if not is_named(tool.name, allowed)]
    if not refused:
        return
    shown = "; ".join(f"{tool.name!r} of {tool.source}" for tool in refused)
    first = refused[0]
    own = f'"{first.name_at_source or first.name}"'
    raise SourceError(
        f"training would call destructive tools for real, thousands of times: {shown}. Train in a simulated backend "
        "(a sandbox, or a server with control tools). If all they change is in files, give each world a copy: "
        '"toolbake": {"world": {"folder": "seed/"}} in mcp.json (docs/tools.md). To leave a tool out, name it there: '
        f'"toolbake": {{"deny": [{own}]}}. To train on it all the same: "toolbake": {{"allow_destructive": [{own}]}} '
        f"there, or config={{'allow_destructive': [{first.name!r}]}}"
    )


def warn_of(live: Iterable[Tool]) -> None:
    """Log a warning that names them, where rollouts are played that nobody trains on. `live`: as above."""
    if names := [tool.name for tool in live]:
        logger.warning("these tools may destroy something real, and the policy may call them: %s", ", ".join(names))


# ---------------------------------------------------------------------------------------------------------------------
# Names

LONGEST_NAME = 64
"""What model APIs take: `[a-zA-Z0-9_-]{1,64}`."""

_LONGEST_PREFIX = 32
_SUFFIX = re.compile(r"\.(py|js|mjs|cjs|ts|sh|exe)$")
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]+")


@dataclass(frozen=True)
class Named:
    """The tools of one source, before their names are made unique. `namespace`: a prefix for all of them. `is_named`:
    the label is a name that the user gave."""

    label: str
    namespace: str | None
    tools: Sequence[Tool]
    is_named: bool = False


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
                name = with_digest(name, f"{prefix}/{tool.name}")
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
    return name if len(name) <= LONGEST_NAME else with_digest(name, f"{prefix}/{tool}")


def with_digest(name: str, whole: str) -> str:
    """Eight digits of a hash of the `whole` at the end keep names apart that would be one after cutting, or without odd
    letters."""
    digest = hashlib.sha256(whole.encode()).hexdigest()[:8]
    return f"{name[: LONGEST_NAME - 9]}_{digest}"


def _prefixes(sources: Sequence[Named]) -> list[str]:
    """A prefix for each source; those that would be equal are numbered, unless the user chose them."""
    out: list[str] = []
    for source in sources:
        first = source.namespace or _prefix(source.label, is_whole=source.is_named)
        out.append(numbered(first, out) if source.namespace is None else first)
    return out


def numbered(name: str, taken: Container[str], longest: int | None = None) -> str:
    """`name`, or where it is taken, its first `longest` letters with a number."""
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name[:longest]}_{number}"
    return found


def _prefix(label: str, *, is_whole: bool) -> str:
    """From a label to a short name: the name of a server in mcp.json as a whole, for its last word alone may be that
    of all ("Orders MCP", "Stock MCP"); of others the host of a URL, the script of a command."""
    if is_whole:
        word = label
    elif "://" in label:
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


# ---------------------------------------------------------------------------------------------------------------------
# Limits of calls, over all worlds


class Turns:
    """Turns at one server, given in the order in which they are asked for.

    At most `max_concurrency` are taken at once, and at most `calls_per_second` in a second on the long run, up to a
    second's worth of them at once (a token bucket).
    """

    def __init__(self, options: ServerOptions) -> None:
        most, per_second = options.max_concurrency, options.calls_per_second
        self._free: Any = contextlib.nullcontext() if most is None else anyio.Semaphore(most)
        self._interval_s = 0.0 if per_second is None else 1.0 / per_second
        self._next_s = float("-inf")
        """When the next token would be there if all were taken as they come."""

    @contextlib.asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """A turn, for as long as the block runs. Whoever is cancelled while waiting for a token has used one up."""
        async with self._free:
            now = anyio.current_time()
            self._next_s = max(self._next_s, now - max(0.0, 1.0 - self._interval_s))
            wait_s = self._next_s - now
            self._next_s += self._interval_s
            if wait_s > 0:
                await anyio.sleep(wait_s)
            yield
