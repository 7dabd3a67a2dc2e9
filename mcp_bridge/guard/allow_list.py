"""Which tools of a source are used, and what counts as said of them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from ..errors import SourceError
from ..records import LeftOut, Tool
from ..sources.options import ServerOptions

logger = logging.getLogger(__name__)

_GLOB = frozenset("*?[")
_NAMING = ("allow", "deny", "read_only", "destructive", "idempotent", "allow_destructive")


def choose(tools: Sequence[Tool], options: ServerOptions, label: str) -> tuple[list[Tool], list[LeftOut]]:
    """The tools to use, with the user's word in their annotations, and those left out with the reason.

    Raises `SourceError` where an option names a tool that is not there.
    """
    _require_known(tools, options, label)
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


def _require_known(tools: Sequence[Tool], options: ServerOptions, label: str) -> None:
    names = [tool.name for tool in tools]
    for option in _NAMING:
        for pattern in getattr(options, option) or ():
            if any(fnmatchcase(name, pattern) for name in names):
                continue
            if not _GLOB & set(pattern):
                raise SourceError(
                    f"{label}: toolbake.{option} names {pattern!r}, which is none of its tools: {', '.join(names)}"
                )
            logger.warning("%s: toolbake.%s has %r, which fits none of its tools", label, option, pattern)
    both = [name for name in names if is_named(name, options.read_only) and is_named(name, options.destructive)]
    if both:
        raise SourceError(
            f"{label}: {both[0]!r} is in both toolbake.read_only and toolbake.destructive "
            f"({', '.join(options.read_only)}; {', '.join(options.destructive)}); take it out of one of them"
        )
