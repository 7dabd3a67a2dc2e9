"""What query parameters mean, from their names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..shapes import Shape
from ..values.realistic import words_of
from .model import Filter, Paging, Query
from .paths import same_words, singular_of

if TYPE_CHECKING:
    from mcp_bridge.openapi.document import Parameter

_LIMIT = ("limit", "per page", "page size", "max results", "size", "top", "first", "max items", "results per page",
          "page limit")  # fmt: skip
_PAGE = ("page", "page number", "current page", "page num", "p")
_OFFSET = ("offset", "skip", "start", "start index", "start at", "from")
_CURSOR = ("cursor", "after", "starting after", "page token", "next token", "marker", "continuation token",
           "page cursor", "next cursor", "start cursor")  # fmt: skip
_SORT = ("sort", "sort by", "order by", "ordering", "sort field")
_DIRECTION = (
    "direction",
    "order",
    "sort order",
    "sort dir",
    "sort direction",
    "order direction",
)
_SEARCH = ("q", "query", "search", "keyword", "keywords", "search term", "term", "text")

EVERYTHING = frozenset(("all", "any", "*", ""))
"""Values of a filter that choose every row."""

_TESTS = {
    "at_least": (("min",), ("gte",), ("from",), ("since",), ("after",), ("start",)),
    "at_most": (("max",), ("lte",), ("to",), ("until",), ("before",), ("end",)),
    "above": (("gt",),),
    "below": (("lt",),),
}
_TIMES = (
    ("since", "at_least"),
    ("after", "at_least"),
    ("before", "at_most"),
    ("until", "at_most"),
)


def query_of(parameters: Iterable[Parameter], row: Shape) -> Query:
    """What each query parameter of a list does to rows of shape `row`."""
    rest = [one for one in parameters if one.location == "query"]
    found: dict[str, str | None] = {}
    for role, names in (
        ("limit", _LIMIT), ("page", _PAGE), ("offset", _OFFSET), ("cursor", _CURSOR), ("sort", _SORT),
        ("direction", _DIRECTION), ("search", _SEARCH),
    ):  # fmt: skip
        named = (one.name for name in names for one in rest if _plainly(one.name) == name)
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
    paging = Paging(found["limit"], found["page"], found["offset"], found["cursor"])
    return Query(
        paging,
        tuple(filters),
        found["search"],
        found["sort"],
        found["direction"],
        tuple(unknown),
    )


def _plainly(name: str) -> str:
    return " ".join(words_of(name))


def filter_of(parameter: str, row: Shape) -> Filter | None:
    """The filter that a query parameter is, `None` where no property of the row goes by its name."""
    if column := column_of(parameter, row):
        is_many = row.properties[column] is not True and _kind(row, column) == "array"
        return Filter(parameter, column, "has" if is_many else "is")
    words = words_of(parameter)
    for test, marks in _TESTS.items():
        for mark in marks:
            size = len(mark)
            for rest in ([words[size:]] if tuple(words[:size]) == mark else []) + (
                [words[:-size]] if tuple(words[-size:]) == mark else []
            ):
                if rest and (column := _by_words(rest, row)):
                    return Filter(parameter, column, test)  # type: ignore[arg-type]
    for word, test in _TIMES:
        if words == [word] and (column := _first(row, ("updated_at", "created_at", "updated", "created", "date"))):
            return Filter(parameter, column, test)  # type: ignore[arg-type]
    return None


def _kind(row: Shape, column: str) -> str:
    schema = row.properties[column]
    return str(schema.get("type")) if isinstance(schema, dict) else ""


def column_of(parameter: str, row: Shape) -> str | None:
    """The property that a parameter is named after: itself, its singular or plural, or `customer` for `customer_id`."""
    words = words_of(parameter)
    if not words:
        return None
    for candidate in (
        words,
        [*words[:-1], singular_of(words[-1])],
        [*words[:-1], words[-1] + "s"],
    ):
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


def _first(row: Shape, names: Iterable[str]) -> str | None:
    return next(
        (mine for name in names for mine in row.properties if same_words(mine, name)),
        None,
    )
