"""Phrases: how people ask for a tool, in the user's own words."""

from __future__ import annotations

import re
import string
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from mcp_bridge.records import Tool

from ..errors import ConfigError
from .walks import Found, Step, properties

if TYPE_CHECKING:
    from .descriptions import Describer

_THING = re.compile(r"(?:the|a|an|all|any|each|every|my|our|this|that)\s", re.IGNORECASE)


class Phrases:
    """One phrase for a tool, with its arguments in braces: `{"book": "Book {room} for {person} on {day}"}`.

    That of a tool that acts says what to do. That of a tool that only reads names what it returns: "the free slots of
    {room}". A phrase is used for calls that give all the arguments that it has, and no others.
    """

    def __init__(self, given: Mapping[str, str] | None, tools: Sequence[Tool]) -> None:
        """Raises `ConfigError` for a tool or an argument that there is not."""
        self._parts: dict[str, list[tuple[str, str]]] = {}
        known = {tool.name: tool for tool in tools}
        for name, text in (given or {}).items():
            if name not in known:
                raise ConfigError(f"phrases: there is no tool {name!r}; the tools are {', '.join(known)}")
            self._parts[name] = _parsed(name, text, list(properties(known[name])))

    def check_reads(self, reads: Collection[str]) -> None:
        """Raises `ConfigError` where a tool that only reads has a phrase that names no thing."""
        for name, parts in self._parts.items():
            if name in reads and not _THING.match(parts[0][0]):
                raise ConfigError(
                    f"phrases: {name!r} only reads, so its phrase names what it returns, and begins with an article, "
                    f'for example "the {" ".join(name.split("_"))}"; it begins with {parts[0][0][:40]!r}'
                )

    def words(self, step: Step, describer: Describer) -> str | None:
        """The phrase with the arguments of a call; None where it does not fit the call. Raises `NoWalk` as
        `Describer.argument` does."""
        parts = self._parts.get(step.tool.name)
        if parts is None or {name for _, name in parts if name} != set(step.sources):
            return None
        said = ""
        for literal, name in parts:
            said += literal
            if not name:
                continue
            source = step.sources[name]
            if isinstance(source, Found):
                described = describer.argument(name, source)
                # "Book room {room}" with "the room with the name Oak" has the noun twice.
                before, _, last = said.rstrip().rpartition(" ")
                if described.startswith(f"the {last.lower()} "):
                    said = f"{before.removesuffix('the').rstrip()} "
                said += described
            else:
                describer.said.append(source.value)
                said += str(source.value)
        return said


def _parsed(tool: str, text: str, arguments: Sequence[str]) -> list[tuple[str, str]]:
    """Texts, each with the argument that follows it; "" after the last."""
    example = f'"{tool.split("_")[0].capitalize()} ... {{{next(iter(arguments), "argument")}}}"'
    plain = text.strip().rstrip(".?!") if isinstance(text, str) else ""
    if not plain:
        raise ConfigError(f"phrases: that of {tool!r} is {text!r}; write for example {example}")
    try:
        found = [(literal, name or "") for literal, name, _, _ in string.Formatter().parse(plain)]
    except ValueError as error:
        raise ConfigError(f"phrases: that of {tool!r} cannot be read ({error}); write for example {example}") from None
    for _, name in found:
        if name and name not in arguments:
            raise ConfigError(
                f"phrases: that of {tool!r} has {{{name}}}, which is none of its arguments: {', '.join(arguments)}"
            )
    first = found[0][0]
    if first[:2].istitle() or len(first) < 2:
        found[0] = (first[:1].lower() + first[1:], found[0][1])
    return found
