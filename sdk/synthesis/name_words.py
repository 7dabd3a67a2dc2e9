"""Names of tools, arguments, tables and columns as words, and how well they fit each other."""

from __future__ import annotations

import re

IDENTIFYING = frozenset({"id", "ids", "key", "uuid", "code", "number", "name", "title", "slug", "handle", "login"})
"""Last words of columns that name a row by themselves, as in "order 4417"."""
_PLAIN_IDS = frozenset({"id", "ids", "key", "uuid"})
_PIECES = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_READING = frozenset(
    {
        *("get", "read", "find", "search", "list", "show", "lookup", "look", "fetch", "describe", "query", "check"),
        *("retrieve", "view", "is", "has", "count", "load"),
    }
)
_ACTING = frozenset(
    {
        *("create", "add", "place", "make", "cancel", "update", "change", "set", "delete", "remove", "refund", "put"),
        *("replace", "rename", "sell", "transfer", "send", "move", "close", "open", "book", "assign", "pay", "buy"),
        *("archive", "approve", "reject", "star", "mark", "merge", "return", "order", "start", "stop", "enable"),
        *("disable", "edit", "post"),
    }
)
VERBS = _READING | _ACTING
SETTING = frozenset({"update", "change", "set", "put", "replace", "edit"})
"""Verbs after which it is said what becomes of something."""
MAKING = frozenset({"create", "add", "place", "open", "post", "make", "book", "start"})
"""Verbs after which something is there that was not."""


def words(name: str) -> list[str]:
    """Example: `words("getOrder_lines") == ["get", "order", "lines"]`"""
    return [piece.lower() for piece in _PIECES.findall(name)]


def singular(word: str) -> str:
    """Of a plain English plural. Example: `singular("policies") == "policy"`"""
    if word.endswith("ies") and len(word) > 4:
        return f"{word[:-3]}y"
    if word.endswith(("sses", "xes", "ches", "shes")):
        return word[:-2]
    if word.endswith("s") and not word.endswith(("ss", "us", "is")) and len(word) > 2:
        return word[:-1]
    return word


def noun_of(name: str) -> str:
    """What a table holds, or a list of results: its words with the last one singular."""
    found = words(name)
    return " ".join([*found[:-1], singular(found[-1])]) if found else name


def verb_and_object(tool: str) -> tuple[str, str]:
    """What a tool does and with what; the object is empty where its name does not say it, the verb where it only reads
    or none is known. Example: `verb_and_object("cancel_order") == ("cancel", "order")`"""
    found = words(tool)
    for place in ("by", "for", "with", "of"):
        if place in found[1:]:
            found = found[: found.index(place, 1)]
    if found and found[0] in _READING:
        return "", " ".join(found[1:]) or ""
    if found and found[0] in _ACTING:
        return found[0], " ".join(found[1:])
    if len(found) > 1 and found[-1] in VERBS:
        return ("" if found[-1] in _READING else found[-1]), " ".join(found[:-1])
    return "", " ".join(found)


def without_id(name: str) -> str:
    """What an identifier is of. Example: `without_id("customer_id") == "customer"`; empty for `id` alone."""
    found = words(name)
    while found and found[-1] in _PLAIN_IDS:
        found.pop()
    return " ".join(found)


def likeness(argument: str, tool: str, table: str, column: str, *, is_key: bool) -> float:
    """How well an argument's name fits a column's, from 0 (only by its type) to 1."""
    wanted, noun, said = words(argument), noun_of(table), words(column)
    about = noun in " ".join(singular(word) for word in words(tool))
    if wanted == said:
        # A bare `id` is the one of what the tool is about.
        return (1.0 if about else 0.1) if set(wanted) <= _PLAIN_IDS else (1.0 if about else 0.9)
    if is_key and without_id(argument) == noun:
        return 1.0
    if is_key and set(wanted) <= _PLAIN_IDS and about:
        return 1.0
    if " ".join(wanted) == f"{noun} {' '.join(said)}":
        return 1.0
    if without_id(argument) and without_id(argument) == without_id(column):
        return 0.9
    return 0.1
