"""The tools of a source that may be used, and the destructive ones that training must not call for real."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from ..errors import SourceError
from ..records import LeftOut, Tool
from ..sources.server_options import ServerOptions

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
        reason = _reason_against(described, options)
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


def _reason_against(tool: Tool, options: ServerOptions) -> str | None:
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


def refuse_in_training(live: Iterable[Tool], allowed: Iterable[str]) -> None:
    """Raises `SourceError` that names the tools and what to do. `live`: see `Toolset.live_destructive`.

    `allowed`: names as the policy sees them, or patterns.
    """
    names = tuple(allowed)
    refused = [tool for tool in live if not is_named(tool.name, names)]
    if not refused:
        return
    shown = "; ".join(f"{tool.name!r} of {tool.source}" for tool in refused)
    first = refused[0]
    own = first.name_at_source or first.name
    raise SourceError(
        f"training would call destructive tools for real, thousands of times: {shown}. Train in a simulated backend "
        "(a sandbox, or a server with control tools). If all they change is in files, give each world a copy: "
        '"toolbake": {"world": {"folder": "seed/"}} in mcp.json (docs/tools.md). To leave a tool out, name it there: '
        f'"toolbake": {{"deny": [{_quoted(own)}]}}. To train on it all the same: "toolbake": {{"allow_destructive": '
        f"[{_quoted(own)}]}} there, or config={{'allow_destructive': [{first.name!r}]}}"
    )


def warn_of(live: Iterable[Tool]) -> None:
    """Log a warning that names them, where rollouts are played that nobody trains on. `live`: as above."""
    if names := [tool.name for tool in live]:
        logger.warning("these tools may destroy something real, and the policy may call them: %s", ", ".join(names))


def _quoted(name: str) -> str:
    return f'"{name}"'
