"""Lists: what their query parameters mean, inferred from the names, and the rows that they show: filtered, searched,
sorted, and one page of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import quote

from mcp_bridge.openapi.document import Parameter
from mcp_bridge.openapi.requests import query_parts
from mcp_bridge.safe_text import singular_of

from .maker import kind_fits
from .model import IDENTIFIERS, LINK, Filter, Plan, Query, Table, is_link
from .paths import same_words
from .realistic import words_of
from .requests import INVALID, Problem, Request
from .shapes import Shape, Shapes
from .store import Found, Row, Store, row_key

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

Order = Sequence[tuple[str | None, bool]]
"""The columns that a list is sorted by, the weightiest first, and whether downwards; None: by when rows were made."""

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


# ---------------------------------------------------------------------------------------------------------------------
# The rows of one page

Facts = dict[str, tuple[Any, ...]]
"""What is known of a page, by the words of a property's name run together: likely values first, of several types."""

_USUAL_PAGE = 30
_WAYS = frozenset(("asc", "desc", "ascending", "descending"))
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
_NEWEST = {"newest": True, "oldest": False, "recent": True, "latest": True}


class Lister:
    """Applies the query of a list to its rows."""

    def __init__(self, shapes: Shapes, store: Store) -> None:
        self._shapes = shapes
        self._store = store

    def page(self, request: Request, rows: list[Found]) -> tuple[list[Found], Facts]:
        """The rows of the page that was asked for, and what an answer may say about it."""
        plan, query = request.plan, request.query
        table = self._store.tables[str(plan.table)]
        members = self._store.tables[table.members] if table.members else None
        if members is not None:
            named = [row["@of"][LINK] for _, row in rows]
            rows = [(key, row) for of, key in named if (row := self._store.get(of, key)) is not None]
        shown = members or table
        shape = self._shapes.of(shown.schema)
        asked = self._parameters(plan)
        defaults = {name: one.says["default"] for name, one in asked.items() if "default" in one.says}
        given = {**defaults, **query}
        for one in plan.query.filters:
            if one.parameter in query:
                wanted = query[one.parameter]
                if isinstance(wanted, dict) != (one.key is not None) or (one.key and one.key not in wanted):
                    continue
                wanted = wanted[one.key] if one.key is not None else wanted
                rows = [found for found in rows if self._passes(found[1], one, wanted, shape)]
            elif one.parameter in defaults:
                choices, wanted = asked[one.parameter].enum, defaults[one.parameter]
                rows = [
                    found
                    for found in rows
                    if self._is_beside(found[1].get(one.column), shape.properties[one.column], choices, wanted)
                    or self._passes(found[1], one, wanted, shape)
                ]
        if plan.query.search and given.get(plan.query.search):
            word = str(given[plan.query.search]).casefold()
            rows = [found for found in rows if self._mentions(found[1], word)]
        order = self._order(plan, given, shape)
        return self._cut(request, self._sorted(rows, order), given, shown, order)

    def _parameters(self, plan: Plan) -> dict[str, Shape]:
        """The query's parameters."""
        found = (one for one in plan.operation.parameters if one.location == "query")
        return {one.name: self._shapes.of(one.schema) for one in found}

    def _is_beside(self, value: Any, column: Any, choices: tuple[Any, ...] | None, wanted: Any) -> bool:
        """Whether a filter's default says nothing of a row: of its column's values, or of this one."""
        is_other = choices is not None and isinstance(value, str) and value not in choices
        return value is None or wanted == "none" or is_other or not kind_fits(self._shapes.of(column), wanted)

    # -- which --------------------------------------------------------------------------------------------------------

    def _passes(self, row: Row, one: Filter, wanted: Any, shape: Shape) -> bool:
        known = self._shapes.of(shape.properties[one.column]).enum or ()
        if isinstance(wanted, str) and wanted.casefold() in EVERYTHING and wanted not in known:
            return True
        value = row.get(one.column)
        if one.test == "has":
            return self._has(value, wanted)
        if one.test == "is":
            choices = wanted if isinstance(wanted, list) else [wanted]
            return any(self._same(value, choice) for choice in choices)
        if value is None:
            return False
        if one.test == "at_most" and isinstance(wanted, str) and _DATE.fullmatch(wanted):
            wanted += "T23:59:59.999999"  # the whole day
        left, right = _comparable(value), _comparable(wanted)
        if _KINDS[type(left)] != _KINDS[type(right)]:
            return False
        tests = {"at_least": left >= right, "at_most": left <= right, "above": left > right, "below": left < right}
        return bool(tests[one.test])

    def _has(self, value: Any, wanted: Any) -> bool:
        values = value if isinstance(value, list) else []
        choices = wanted if isinstance(wanted, list) else str(wanted).split(",")
        return all(any(self._same(one, choice) for one in values) for choice in choices)

    def _same(self, value: Any, wanted: Any) -> bool:
        if is_link(value):
            row = self._store.get(*value[LINK]) or {}
            names = (row.get(name) for name in ("id", "name", "title", "login", "username"))
            return any(_text(one) == _text(wanted) for one in (self._store.value(value), *names) if one is not None)
        if isinstance(value, dict):
            shown = (value.get(name) for name in (*IDENTIFIERS, "name", "title", "code"))
            return any(_text(one) == _text(wanted) for one in shown)
        if isinstance(value, int | float) and not isinstance(value, bool) and _comparable(value) == _comparable(wanted):
            return True  # 12 and 12.0
        if isinstance(value, str) and isinstance(wanted, str) and (moment := _moment(wanted)) is not None:
            is_day = _DATE.fullmatch(wanted) and value.startswith(f"{wanted}T")
            return bool(is_day) or _moment(value) == moment
        return value is not None and _text(value) == _text(wanted)

    def _mentions(self, row: Row, word: str) -> bool:
        texts = (value for name, value in row.items() if isinstance(value, str) and not name.startswith("@"))
        return any(word in text.casefold() for text in texts)

    # -- in which order -----------------------------------------------------------------------------------------------

    def _order(self, plan: Plan, given: Mapping[str, Any], shape: Shape) -> Order:
        wanted = given.get(plan.query.sort or "")
        way = str(given.get(plan.query.direction or "", "")).lower()
        if wanted in (None, "") and way not in _WAYS:
            wanted, way = given.get(plan.query.direction or ""), ""  # `order=-name`
        if wanted in (None, ""):
            return [(None, way.startswith("desc"))]
        fields: list[str] = []
        for field in map(str, wanted if isinstance(wanted, list) else str(wanted).split(",")):
            if fields and field.strip().lower() in _WAYS:
                fields[-1] += f" {field}"  # `sort=name,desc`
            else:
                fields.append(field)
        order: list[tuple[str | None, bool]] = []
        for field in fields:
            column, down = _sort_key(field, shape)
            down = down or way.startswith("desc")
            order.append((column, down and (column is not None or field.strip().lower() in _WAYS)))  # `sort=desc`
        return order

    def _sorted(self, rows: list[Found], order: Order) -> list[Found]:
        for column, down in reversed(order):
            if column is not None:
                there = [one for one in rows if one[1].get(column) is not None]
                gone = [one for one in rows if one[1].get(column) is None]
                there.sort(key=lambda one: self._rank(one[1][column]), reverse=down)
                rows = there + gone
            elif down:
                rows = rows[::-1]
        return rows

    def _rank(self, value: Any) -> tuple[int, Any]:
        found = _comparable(self._store.value(value))
        return _KINDS[type(found)], found

    # -- which page ---------------------------------------------------------------------------------------------------

    def _cut(
        self, request: Request, rows: list[Found], given: Mapping[str, Any], table: Table, order: Order
    ) -> tuple[list[Found], Facts]:
        asked, total = request.plan.query, len(rows)
        limit = _whole(given.get(asked.limit or ""))
        page = _whole(given.get(asked.page or ""))
        start = _whole(given.get(asked.offset or "")) or 0
        cursor = given.get(asked.cursor or "")
        first = 0 if self._counts_from_zero(request.plan) else 1
        size = limit if limit is not None or page is None else _USUAL_PAGE
        if page is not None and size is not None:
            start += max(0, page - first) * size
        if cursor not in (None, ""):
            start = self._place(rows, str(cursor), table, order, after=True)
        elif (before := given.get(asked.before or "")) not in (None, ""):
            rows = rows[: self._place(rows, str(before), table, order, after=False)]
            start = max(0, len(rows) - size) if size is not None else 0
        shown = rows[start:][:size]
        more = start + len(shown) < total
        last = self._tokens(rows, table)[start + len(shown) - 1] if shown and more else None
        number, pages = first + start // (size or total or 1), max(1, math.ceil(total / (size or total or 1)))

        def address(to_page: int, to_row: int, to_cursor: str | None = None) -> str | None:
            """The path and query of another page; None where the query has nothing to ask for it with."""
            places = {asked.cursor: to_cursor} if asked.cursor else {asked.page: to_page} if asked.page else {}
            places = places or ({asked.offset: to_row} if asked.offset else {})
            return _address(request, {str(name): value for name, value in places.items()}) if places else None

        step = size or 0
        following = address(number + 1, start + step, last) if more else None
        before = address(number - 1, max(0, start - step)) if start > 0 and not asked.cursor else None
        end = address(first + pages - 1, (pages - 1) * step) if not asked.cursor else None
        here, count, is_later = _address(request, {}), len(shown), start > 0
        facts: Facts = {"".join(words_of(asked.cursor or "")): (last, "")}
        for words, *values in (
            ("total totalcount totalresults totalitems totalelements count resultcount totalentries", total),
            ("page currentpage pagenumber number", number),
            ("perpage pagesize limit size itemsperpage", size if size is not None else count),
            ("offset start skip startat", start),
            ("pages totalpages lastpage pagecount maxpage numpages numberofpages", pages if size else 1),
            ("hasmore hasnext hasnextpage more truncated istruncated", more),
            ("islast islastpage done isdone end endoflist finished", not more),
            ("hasprevious haspreviouspage hasprev", is_later),
            ("isfirst isfirstpage", start == 0),
            ("numberofelements returned itemcount", count),
            ("nextcursor nextpagetoken nexttoken cursor endcursor nextmarker after", last, None, ""),
            ("nextoffset nextstart nextskip", start + count if more else None, None, ""),
            ("previousoffset prevoffset", max(0, start - step) if is_later else None, None, ""),
            ("incompleteresults", False),
            ("next nexturl nexturi nextlink nextpageurl nextpageuri nextpagelink nextpage",
             last if asked.cursor else None, following, number + 1 if more else None, None, ""),
            ("previous prev previousurl prevurl previouslink prevlink prevpageurl previouspageurl previouspageuri "
             "previouspage prevpage", before, number - 1 if is_later else None, None, ""),
            ("first firstpageurl firstpageuri", start == 0, address(first, 0), None, ""),
            ("last lastpageurl lastpageuri", not more, end, None, ""),
            ("self selfurl selflink", here, None, ""),
        ):  # fmt: skip
            # Null only after all else, where there may be nothing to tell.
            known = (one for place, one in enumerate(values) if one is not None or place == len(values) - 2)
            facts |= dict.fromkeys(words.split(), tuple(known))
        return shown, facts

    def _counts_from_zero(self, plan: Plan) -> bool:
        for parameter in plan.operation.parameters:
            if parameter.name == plan.query.page:
                says = self._shapes.of(parameter.schema).says
                return bool(says.get("default", says.get("minimum", 1)) == 0)
        return False

    def _tokens(self, rows: list[Found], table: Table) -> list[str]:
        """The cursor of each row."""
        own = [str(self._store.value(row.get(table.key.column)) or key) for key, row in rows]
        return own if len(set(own)) == len(own) else [key for key, _ in rows]  # numbers begin anew under each parent

    def _place(self, rows: list[Found], cursor: str, table: Table, order: Order, *, after: bool) -> int:
        """The place of the row that a cursor names, or after it. Where it is no longer listed, of the next one."""
        tokens = self._tokens(rows, table)
        if cursor in tokens:
            return tokens.index(cursor) + after
        keys = self._store.keys(table.name)
        own = row_key(None, [cursor])
        named = [key for key in keys if key == cursor] or [key for key in keys if key.rpartition("/")[2] == own]
        beside = {key.rpartition("/")[0] for key, _ in rows}
        key = next((one for one in named if one.rpartition("/")[0] in beside), named[0] if named else "")
        listed = [one for one, _ in rows]
        if key in listed:  # an id where the tokens are whole keys, or the other way round
            return listed.index(key) + after
        row = self._store.get(table.name, key)
        if not named or (row is None and any(column is not None for column, _ in order)):
            why = ", because its row was deleted and the list is sorted" if named else ""
            raise Problem(INVALID[::-1], f"The cursor {cursor!r} leads nowhere{why}; take one from the page before.")
        ages = {one: age for age, one in enumerate(keys)}
        among = sorted([*rows, (key, row or {})], key=lambda one: ages.get(one[0], len(ages)))
        return [one for one, _ in self._sorted(among, order)].index(key)


def _address(request: Request, changes: Mapping[str, Any]) -> str:
    """The path and query of the request, with changes to the query; `None` leaves a parameter out."""
    path = request.plan.operation.path
    for name, value in request.path.items():
        path = path.replace(f"{{{name}}}", quote(str(value), safe=""))
    asked = {one.name: one for one in request.plan.operation.parameters if one.location == "query"}
    given = {**request.query, **changes}
    text = "&".join(part for name, value in given.items() for part in query_parts(asked[name], value))
    return f"{path}?{text}" if text else path


def _sort_key(field: str, shape: Shape) -> tuple[str | None, bool]:
    """The column that a list is sorted by, and whether downwards: `-created`, `created:desc`, `created desc`."""
    down = field.startswith("-")
    words = words_of(field)
    if words and words[-1] in _WAYS:
        down, words = down or words[-1].startswith("desc"), words[:-1]
    if len(words) == 1 and words[0] in _NEWEST:
        down, words = _NEWEST[words[0]], ["created"]
    name = "_".join(words)
    for candidate in (name, f"{name}_at", f"{name}_date", f"date_{name}", f"{name}_on"):
        if column := column_of(candidate, shape):
            return column, down
    return None, down


_KINDS: dict[type, int] = {bool: 0, int: 1, float: 1, str: 2}
"""What can be compared with each other."""


def _comparable(value: Any) -> Any:
    """A number as it is, or as a text says it, a time as seconds, a text without case."""
    if isinstance(value, int | float):
        return value
    if isinstance(value, str):
        if (moment := _moment(value)) is not None:
            return moment
        for number in (int, float) if _NUMBER.fullmatch(value) else ():
            try:
                return number(value)
            except ValueError:
                pass
        return value.casefold()
    return str(value)


def _moment(text: str) -> float | None:
    """A time as seconds; None for a text that is none, such as a code of eight digits."""
    if not _DATE.match(text):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _text(value: Any) -> str:
    return str(value).casefold()


def _whole(value: Any) -> int | None:
    try:
        return max(0, int(value))
    except (TypeError, ValueError):
        return None
