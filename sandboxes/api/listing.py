"""The rows that a list shows: filtered, searched, sorted, and one page of them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

from .maker import kind_fits
from .model import IDENTIFIERS, LINK, Filter, Plan, Table, is_link
from .queries import EVERYTHING, column_of
from .realistic import words_of
from .requests import INVALID, Problem, Request
from .shapes import Shape, Shapes
from .store import Found, Row, Store

Facts = dict[str, tuple[Any, ...]]
"""What is known of a page, by the words of a property's name run together: likely values first, of several types."""

_USUAL_PAGE = 30
_WAYS = frozenset(("asc", "desc", "ascending", "descending"))
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
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
            rows = [(row["@of"][LINK][1], self._store.get(*row["@of"][LINK]) or {}) for _, row in rows]
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
        rows = self._sorted(plan, rows, given, shape)
        return self._cut(request, rows, given, shown)

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
        if type(left) is not type(right):
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
        is_day = isinstance(wanted, str) and _DATE.fullmatch(wanted) and str(value).startswith(f"{wanted}T")
        return value is not None and (bool(is_day) or _text(value) == _text(wanted))

    def _mentions(self, row: Row, word: str) -> bool:
        texts = (value for name, value in row.items() if isinstance(value, str) and not name.startswith("@"))
        return any(word in text.casefold() for text in texts)

    # -- in which order -----------------------------------------------------------------------------------------------

    def _sorted(self, plan: Plan, rows: list[Found], given: Mapping[str, Any], shape: Shape) -> list[Found]:
        wanted = given.get(plan.query.sort or "")
        way = str(given.get(plan.query.direction or "", "")).lower()
        if wanted in (None, "") and way not in _WAYS:
            wanted, way = given.get(plan.query.direction or ""), ""  # `order=-name`
        if wanted in (None, ""):
            return rows[::-1] if way.startswith("desc") else rows
        fields: list[str] = []
        for field in map(str, wanted if isinstance(wanted, list) else str(wanted).split(",")):
            if fields and field.strip().lower() in _WAYS:
                fields[-1] += f" {field}"  # `sort=name,desc`
            else:
                fields.append(field)
        for field in reversed(fields):
            column, down = _sort_key(field, shape)
            down = down or way.startswith("desc")
            if column is not None:
                there = [one for one in rows if one[1].get(column) is not None]
                gone = [one for one in rows if one[1].get(column) is None]
                there.sort(key=lambda one: self._rank(one[1][column]), reverse=down)
                rows = there + gone
            elif field.strip().lower() in _WAYS and down:
                rows = rows[::-1]  # `sort=desc`
        return rows

    def _rank(self, value: Any) -> tuple[int, Any]:
        found = _comparable(self._store.value(value))
        kinds = {bool: 0, float: 1, str: 2}
        return (kinds.get(type(found), 3), found if type(found) in kinds else str(found))

    # -- which page ---------------------------------------------------------------------------------------------------

    def _cut(
        self, request: Request, rows: list[Found], given: Mapping[str, Any], table: Table
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
            start = self._place(rows, str(cursor), table, after=True)
        elif (before := given.get(asked.before or "")) not in (None, ""):
            rows = rows[: self._place(rows, str(before), table, after=False)]
            start = max(0, len(rows) - size) if size is not None else 0
        shown = rows[start:][:size]
        more = start + len(shown) < total
        last = self._token(shown[-1], table) if shown and more else None
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
        facts = _facts(total, start, size, len(shown), number, last)
        for names, values in (
            (("next", "nexturl", "nexturi", "nextlink", "nextpageurl", "nextpageuri", "nextpagelink", "nextpage"),
             (last if asked.cursor else None, following, number + 1) if more else ()),
            (("previous", "prev", "previousurl", "prevurl", "previouslink", "prevlink", "prevpageurl",
              "previouspageurl", "previouspageuri", "previouspage", "prevpage"),
             (before, number - 1) if start > 0 else ()),
            (("first", "firstpageurl", "firstpageuri"), (start == 0, address(first, 0))),
            (("last", "lastpageurl", "lastpageuri"), (not more, end)),
            (("self", "selfurl", "selflink"), (_address(request, {}),)),
        ):  # fmt: skip
            facts |= dict.fromkeys(names, (*(one for one in values if one is not None), None, ""))
        return shown, {"".join(words_of(asked.cursor or "")): (last, ""), **facts}

    def _counts_from_zero(self, plan: Plan) -> bool:
        for parameter in plan.operation.parameters:
            if parameter.name == plan.query.page:
                says = self._shapes.of(parameter.schema).says
                return bool(says.get("default", says.get("minimum", 1)) == 0)
        return False

    def _token(self, found: Found, table: Table) -> str:
        return str(self._store.value(found[1].get(table.key.column)) or found[0])

    def _place(self, rows: list[Found], cursor: str, table: Table, *, after: bool) -> int:
        """The place of the row that a cursor names, or after it. Where it was deleted, of the next one."""
        for place, found in enumerate(rows):
            if self._token(found, table) == cursor:
                return place + after
        keys = self._store.keys(table.name)
        gone = next((place for place, key in enumerate(keys) if key.rpartition("/")[2] == cursor), None)
        if gone is None:
            raise Problem(INVALID[::-1], f"The cursor {cursor!r} leads nowhere; take one from the page before.")
        later = set(keys[gone:])
        return next((place for place, (key, _) in enumerate(rows) if key in later), len(rows))


def _facts(total: int, start: int, size: int | None, count: int, page: int, cursor: str | None) -> Facts:
    """What an answer may say about a page of `count` rows."""
    pages = max(1, math.ceil(total / size)) if size else 1
    more = total - start - count > 0
    facts: Facts = {}
    for names, value in (
        (("total", "totalcount", "totalresults", "totalitems", "totalelements", "count", "resultcount", "totalentries"),
         total),
        (("page", "currentpage", "pagenumber", "number"), page),
        (("perpage", "pagesize", "limit", "size", "itemsperpage"), size if size is not None else count),
        (("offset", "start", "skip", "startat"), start),
        (("pages", "totalpages", "lastpage", "pagecount", "maxpage", "numpages", "numberofpages"), pages),
        (("hasmore", "hasnext", "hasnextpage", "more", "truncated", "istruncated"), more),
        (("islast", "islastpage", "done", "isdone", "end", "endoflist", "finished"), not more),
        (("hasprevious", "haspreviouspage", "hasprev"), start > 0),
        (("isfirst", "isfirstpage"), start == 0),
        (("numberofelements", "returned", "itemcount"), count),
        (("nextcursor", "nextpagetoken", "nexttoken", "cursor", "endcursor", "nextmarker", "after"), cursor),
        (("nextoffset", "nextstart", "nextskip"), start + count if more else None),
        (("previousoffset", "prevoffset"), max(0, start - (size or 0)) if start > 0 else None),
        (("incompleteresults",), False),
    ):  # fmt: skip
        facts |= dict.fromkeys(names, (value,) if value is not None else (None, ""))
    return facts


def _address(request: Request, changes: Mapping[str, Any]) -> str:
    """The path and query of the request, with changes to the query; `None` leaves a parameter out."""
    path = request.plan.operation.path
    for name, value in request.path.items():
        path = path.replace(f"{{{name}}}", quote(str(value), safe=""))
    query: dict[str, Any] = {}
    for name, value in {**request.query, **changes}.items():
        inside = value.items() if isinstance(value, dict) else ()
        query |= {f"{name}[{key}]": one for key, one in inside} if inside else {name: value}
    written = {name: json.dumps(one) if isinstance(one, bool) else one for name, one in query.items()}
    text = urlencode({name: one for name, one in written.items() if one is not None}, doseq=True)
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


def _comparable(value: Any) -> Any:
    """A number as a float, a time as seconds, a text without case."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:  # a whole number of hundreds of digits
            return math.inf if value > 0 else -math.inf
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value.replace("Z", "+00:00"))
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except ValueError:
            pass
        try:
            return float(value)
        except ValueError:
            return value.casefold()
    return str(value)


def _text(value: Any) -> str:
    return str(value).casefold()


def _whole(value: Any) -> int | None:
    try:
        return max(0, int(value))
    except (TypeError, ValueError):
        return None
