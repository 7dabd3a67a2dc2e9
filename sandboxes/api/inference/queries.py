"""Query parameters and their meaning, inferred from their names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from mcp_bridge.openapi.document import Parameter

from ..realistic import words_of
from ..shapes import Shape
from .model import Filter, Query
from .paths import same_words, singular_of

_LIMIT = ("limit", "per page", "page size", "max results", "size", "top", "first", "max items", "results per page",
          "page limit")  # fmt: skip
_PAGE = ("page", "page number", "current page", "page num", "p")
_OFFSET = ("offset", "skip", "start", "start index", "start at", "from")
_CURSOR = ("cursor", "after", "starting after", "page token", "next token", "marker", "continuation token",
           "page cursor", "next cursor", "start cursor")  # fmt: skip
_SORT = ("sort", "sort by", "order by", "ordering", "sort field")
_DIRECTION = ("direction", "order", "sort order", "sort dir", "sort direction", "order direction")
_SEARCH = ("q", "query", "search", "keyword", "keywords", "search term", "term", "text")

EVERYTHING = frozenset(("all", "any", "*", ""))
"""Values of a filter that choose every row."""

Test = Literal["at_least", "at_most", "above", "below"]

_TESTS: dict[Test, tuple[str, ...]] = {
    "at_least": ("min", "gte", "from", "since", "after", "start"),
    "at_most": ("max", "lte", "to", "until", "before", "end"),
    "above": ("gt",),
    "below": ("lt",),
}
_TIMES: dict[str, Test] = {"since": "at_least", "after": "at_least", "before": "at_most", "until": "at_most"}
_WHEN = ("updated_at", "created_at", "updated", "created", "date")


def query_of(parameters: Iterable[Parameter], row: Shape) -> Query:
    """What each query parameter of a list does to rows of shape `row`."""
    rest = [one for one in parameters if one.location == "query"]
    found: dict[str, str | None] = {}
    for role, names in (
        ("limit", _LIMIT), ("page", _PAGE), ("offset", _OFFSET), ("cursor", _CURSOR), ("sort", _SORT),
        ("direction", _DIRECTION), ("search", _SEARCH),
    ):  # fmt: skip
        named = (one.name for name in names for one in rest if " ".join(words_of(one.name)) == name)
        found[role] = next((name for name in named if name not in row.properties), None)
    taken = {name for name in found.values() if name}
    filters, unknown = [], []
    for one in rest:
        if one.name in taken:
            continue
        test = filter_of(one.name, row)
        if test is None:
            unknown.append(one.name)
        else:
            filters.append(test)
    return Query(**found, filters=tuple(filters), unknown=tuple(unknown))


def filter_of(parameter: str, row: Shape) -> Filter | None:
    """The filter that a query parameter is, `None` where no property of the row goes by its name."""
    if column := column_of(parameter, row):
        schema = row.properties[column]
        is_many = isinstance(schema, dict) and schema.get("type") == "array"
        return Filter(parameter, column, "has" if is_many else "is")
    words = words_of(parameter)
    for test, marks in _TESTS.items():
        for mark in marks:
            # Before the column's name or after it: `min_price`, `price_min`.
            for own, rest in ((words[:1], words[1:]), (words[-1:], words[:-1])):
                if own == [mark] and rest and (column := _by_words(rest, row)):
                    return Filter(parameter, column, test)
    if len(words) == 1 and words[0] in _TIMES:
        times = (mine for name in _WHEN for mine in row.properties if same_words(mine, name))
        if column := next(times, None):
            return Filter(parameter, column, _TIMES[words[0]])
    return None


def column_of(parameter: str, row: Shape) -> str | None:
    """The property that a parameter is named after: itself, its singular or plural, or `customer` for `customer_id`."""
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
