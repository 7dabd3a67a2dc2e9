"""Query parameters and their meaning, inferred from their names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from mcp_bridge.openapi.document import Parameter

from .model import Filter, Query
from .paths import same_words, singular_of
from .realistic import words_of
from .shapes import Shape, Shapes

_LIMIT = ("limit", "per page", "page size", "max results", "size", "top", "first", "max items", "results per page",
          "page limit", "items", "count", "max")  # fmt: skip
_PAGE = ("page", "page number", "current page", "page num", "p")
_OFFSET = ("offset", "skip", "start", "start index", "start at", "from", "page offset")
_CURSOR = ("cursor", "after", "starting after", "page token", "next token", "marker", "continuation token",
           "page cursor", "next cursor", "start cursor", "page after", "iterator")  # fmt: skip
_BEFORE = ("ending before", "page before", "before cursor", "previous cursor")
_SORT = ("sort", "sort by", "order by", "ordering", "sort field")
_DIRECTION = ("direction", "order", "sort order", "sort dir", "sort direction", "order direction")
_SEARCH = ("q", "query", "search", "keyword", "keywords", "search term", "term", "text")

_NUMBERS = frozenset(("limit", "page", "offset"))
_MOMENTS = frozenset(("date", "date-time"))
_SHOWN = frozenset(("expand", "fields", "field", "include", "exclude", "embed", "select", "view", "properties"))
"""What an answer shows of each row, also where a row has a property of that name."""
_MARKED = frozenset(("filter", "filters"))
"""What stands before a column's name in `filter[status]`."""

EVERYTHING = frozenset(("all", "any", "*", ""))
"""Values of a filter that choose every row."""

Test = Literal["at_least", "at_most", "above", "below"]

_MARKS: dict[str, Test] = {
    **dict.fromkeys(("min", "gte", "from", "since", "after", "start"), "at_least"),
    **dict.fromkeys(("max", "lte", "to", "until", "before", "end"), "at_most"),
    "gt": "above",
    "lt": "below",
}
_TIMES = frozenset(("since", "after", "before", "until"))
"""What alone bounds a time. The other marks, such as `from`, do where a format or another word says so."""
_OF_TIMES = frozenset(("date", "time", "datetime", "timestamp", "at", "day"))
_WHEN = ("updated_at", "created_at", "updated", "created", "date")


def query_of(shapes: Shapes, parameters: Iterable[Parameter], row: Shape, beside: Iterable[str]) -> Query:
    """What each query parameter of a list does to rows of shape `row`. `beside`: what an answer has beside them."""
    rest = [one for one in parameters if one.location == "query"]
    found: dict[str, str | None] = {}
    for role, names in (
        ("limit", _LIMIT), ("page", _PAGE), ("offset", _OFFSET), ("cursor", _CURSOR), ("before", _BEFORE),
        ("sort", _SORT), ("direction", _DIRECTION), ("search", _SEARCH),
    ):  # fmt: skip
        named = (one for name in names for one in rest if _is_called(one.name, name))
        usable = (one.name for one in named if _may_be(role, shapes.of(one.schema), one.name in row.properties))
        found[role] = next(usable, None)
    taken = {name for name in found.values() if name}
    if found["cursor"] is None:
        # What the answer tells for the next page goes by the name of what is sent for it.
        told = {tuple(words_of(name)) for name in beside}
        free = (one for one in rest if one.name not in taken and column_of(one.name, row) is None)
        texts = (one.name for one in free if shapes.of(one.schema).kinds - {"null"} == {"string"})
        cursors = [name for name in texts if tuple(words_of(name)) in told]
        found["cursor"] = cursors[0] if cursors else None
        taken |= set(cursors[:1])
    filters, unknown = [], []
    for one in rest:
        if one.name in taken:
            continue
        asked = shapes.of(one.schema)
        branches = [shapes.of(branch) for group in asked.choices for branch in group] or [asked]
        tests = _inside(one.name, {key for branch in branches for key in branch.properties}, row)
        if any(branch.kind != "object" for branch in branches):
            test = filter_of(one.name, row, is_moment=asked.says.get("format") in _MOMENTS)
            tests += [] if test is None else [test]
        filters += tests
        unknown += [] if tests else [one.name]
    return Query(**found, filters=tuple(filters), unknown=tuple(unknown))


def _may_be(role: str, shape: Shape, is_column: bool) -> bool:
    """Whether a parameter with a name of the role may play it: `count` may be a flag, `items` a list and `from` a date.
    One that is called as a column of the rows chooses by it, unless it is a number with a default or a greatest value:
    a page has these."""
    if role not in _NUMBERS:
        return not is_column and shape.says.get("format") not in _MOMENTS
    is_number = bool({"integer", "number", "string"} & shape.kinds) and shape.says.get("format") not in _MOMENTS
    return is_number and not (is_column and shape.says.keys().isdisjoint({"default", "maximum"}))


def _is_called(name: str, words: str) -> bool:
    """Whether a name has these words, however they are joined: `pageSize`, `page[size]` and `pagesize`."""
    return "".join(words_of(name)) == words.replace(" ", "")


def _inside(parameter: str, keys: Iterable[str], row: Shape) -> list[Filter]:
    """The filters that an object with these keys in the query holds: `filter[status]`, `created[gte]`."""
    found = {}
    for key in sorted(keys):
        if _MARKED & set(words_of(parameter)[-1:]):
            found[key] = filter_of(key, row)
        elif key == "eq":
            found[key] = filter_of(parameter, row)
        elif key in _MARKS:
            found[key] = filter_of(f"{parameter} {key}", row)
    return [replace(test, parameter=parameter, key=key) for key, test in found.items() if test is not None]


def filter_of(parameter: str, row: Shape, *, is_moment: bool = False) -> Filter | None:
    """The filter that a query parameter is, `None` where no property of the row goes by its name."""
    words = words_of(parameter)
    if words[:1] == words and _SHOWN & set(words):
        return None
    column = column_of(parameter, row)
    if column is None and len(words) > 1 and words[0] in _MARKED:
        found = filter_of(" ".join(words[1:]), row)
        return None if found is None else replace(found, parameter=parameter)
    if column is None and len(words) > 1 and words[-1] == "id":
        column = column_of(" ".join(words[:-1]), row)
    column = column or column_of(f"{parameter}_id", row)
    if column:
        schema = row.properties[column]
        is_many = isinstance(schema, dict) and schema.get("type") == "array"
        return Filter(parameter, column, "has" if is_many else "is")
    for mark, test in _MARKS.items():
        # Before the column's name or after it: `min_price`, `price_min`.
        for own, rest in ((words[:1], words[1:]), (words[-1:], words[:-1])):
            if own == [mark] and rest and (column := _by_words(rest, row)):
                return Filter(parameter, column, test)
    bounds = [word for word in words if word not in _OF_TIMES]
    if len(bounds) == 1 and bounds[0] in _MARKS and (is_moment or bounds != words or bounds[0] in _TIMES):
        times = (mine for name in _WHEN for mine in row.properties if same_words(mine, name))
        if column := next(times, None):
            return Filter(parameter, column, _MARKS[bounds[0]])
    return None


def column_of(parameter: str, row: Shape) -> str | None:
    """The property that a parameter is named after: itself, its singular or plural."""
    words = words_of(parameter)
    if not words:
        return None
    for candidate in (words, [*words[:-1], singular_of(words[-1])], [*words[:-1], words[-1] + "s"]):
        for name in row.properties:
            if words_of(name) == candidate:
                return name
    return None


def _by_words(words: list[str], row: Shape) -> str | None:
    for extra in ([], ["at"], ["date"], ["on"], ["time"]):
        for name in row.properties:
            if words_of(name) == [*words, *extra]:
                return name
    return None
