"""The paths of a document: their steps, their operations, and what the answers hold (a row, rows, or neither)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp_bridge.openapi.document import Document, Operation
from mcp_bridge.safe_text import singular_of

from .model import Envelope
from .realistic import words_of
from .shapes import Shapes

_HOLDERS = ("data", "items", "results", "result", "records", "entries", "values", "value", "content", "rows", "objects")
_PAGING = frozenset((
    "total", "count", "page", "pages", "per", "size", "limit", "offset", "next", "previous", "prev", "cursor", "has",
    "more", "first", "last", "links", "link", "meta", "paging", "pagination", "number", "elements", "token", "self",
    "url", "object", "ok", "success", "status", "code", "message", "kind", "etag", "marker", "order", "truncated",
    "incomplete", "results", "empty", "sort", "pageable", "errors", "error", "warnings", "warning", "max", "start",
    "failed", "included",
))  # fmt: skip
_BESIDE = _PAGING | {"api", "metadata", "version", "query"}
"""Words of what may stand beside rows that are named after the path, such as `apiVersion` and `metadata`."""
_VERSION = re.compile(r"v(\d+)(?:[.\w]*)")
_ALIKE = 0.5
_TOLD = frozenset(("errors", "warnings", "failed"))
"""Lists of what there is to say of a call, not of rows."""


def steps_of(path: str) -> tuple[str, ...]:
    """The steps of a path without parameters' names, version and `.json`: `/v2/users/{id}` is `("users", "{}")`."""
    return tuple("{}" if re.fullmatch(r"\{[^{}]+\}", step) else step for step in _split(path)[1])


def _split(path: str) -> tuple[list[str], list[str]]:
    """The version that a path begins with, if any, and the steps after it."""
    steps = re.sub(r"\.(json|xml)$", "", path).strip("/").split("/")
    start = 1 if len(steps) > 1 and _VERSION.fullmatch(steps[0]) else 0
    return steps[:start], steps[start:]


def version_of(path: str) -> int:
    """The number of the version that a path begins with, 0 where it begins with none."""
    return int(next((found[1] for step in _split(path)[0] if (found := _VERSION.fullmatch(step))), 0))


def word_of(steps: tuple[str, ...]) -> str:
    """The last literal step."""
    return next((step for step in reversed(steps) if step != "{}"), "")


def names_of(path: str) -> list[str]:
    """The parameters of a path, in order."""
    return re.findall(r"\{([^{}]+)\}", path)


def is_plain(path: str) -> bool:
    """Whether every parameter is a whole step."""
    return all(step == "{}" or "{" not in step for step in steps_of(path))


def head_of(path: str, count: int) -> str:
    """The first `count` steps of a path, as written."""
    version, steps = _split(path)
    return "/" + "/".join([*version, *steps[:count]])


def same_words(one: str, other: str) -> bool:
    """Whether two names are the same in any spelling: `orderId` and `order_id`."""
    return words_of(one) == words_of(other)


def success_of(operation: Operation) -> str:
    """The status of success as written in the document: the lowest of 200 to 299, or `default`."""
    good = sorted(status for status in operation.responses if status[:1] == "2")
    return good[0] if good else "default" if "default" in operation.responses else "200"


def json_schema(content: Mapping[str, Any]) -> Any:
    """The schema of a body's JSON form, `None` where it has none."""
    for kind, media in content.items():
        bare = kind.partition(";")[0].strip().lower()
        if bare == "*/*" or bare == "application/json" or bare.endswith("+json"):
            return media.schema
    return None


def body_schema(operation: Operation) -> Any:
    """The schema of what is sent: JSON, or else a form; `None` where nothing is."""
    if operation.body is None:
        return None
    found = json_schema(operation.body.content)
    if found is not None:
        return found
    for kind, media in operation.body.content.items():
        if kind.startswith(("multipart/form-data", "application/x-www-form-urlencoded")):
            return media.schema
    return None


def answer_schema(operation: Operation, status: str | None = None) -> Any:
    """The JSON schema of the answer with `status`, by default that of success; `None` where it has no JSON body."""
    response = operation.responses.get(success_of(operation) if status is None else status)
    return None if response is None else json_schema(response.content)


def envelope_of(shapes: Shapes, schema: Any, word: str, *, lists: bool = False) -> Envelope | None:
    """What an answer holds. `word`: the last literal step of the path. `None` where it is neither row nor rows.

    Of an answer with a choice (`oneOf`) it is the branch that holds one row, the one with the most properties. Where
    all hold lists, or `lists` are asked for, it is the list with the fewest, since rows with more would hold under two.
    """
    shape = shapes.of(schema)
    if not shape.properties and len(shape.choices) == 1 and shape.says.get("items") is None:
        found = [_envelope(shapes, schema, branch, word, (), 0) for branch in shape.choices[0]]
        known = sorted((one for one in found if one is not None), key=lambda one: len(shapes.of(one.item).properties))
        rows, many = ([one for one in known if one.is_list == is_list] for is_list in (False, True))
        if known:
            return many[0] if many and (lists or not rows) else rows[-1]
    return _envelope(shapes, schema, schema, word, (), 0)


def _envelope(shapes: Shapes, whole: Any, schema: Any, word: str, path: tuple[str, ...], depth: int) -> Envelope | None:
    shape = shapes.of(schema)
    if shape.kind == "array":
        return Envelope(whole, path, True, shape.items) if is_object(shapes, shape.items) else None
    if shape.kind != "object" or not is_object(shapes, schema):
        return None
    if depth < 2:
        lists = [
            name
            for name, inner in shape.properties.items()
            if shapes.of(inner).kind == "array" and is_object(shapes, shapes.of(inner).items)
            if name not in _TOLD or same_words(name, word)
        ]
        objects = [name for name, inner in shape.properties.items() if is_object(shapes, inner)]
        rows = [name for name in objects if _has_id(shapes, shape.properties[name])]
        is_list = not rows or any(same_words(name, word) for name in lists)
        is_list = is_list and _is_wrapper(shape.properties, lists, word)
        holder = _holder(lists, word) if is_list else None
        if holder is not None:
            return Envelope(whole, (*path, holder), True, shapes.of(shape.properties[holder]).items)
        inside = _holder(objects, singular_of(word)) if _is_wrapper(shape.properties, objects, word) else None
        if inside is None and depth == 0:
            # An answer may tell more beside the row: `{"server": {...}, "action": {...}}`.
            own = (name for name in objects if words_of(name) == words_of(singular_of(word)))
            inside = next((name for name in own if _has_id(shapes, shape.properties[name])), None)
        if inside is not None:
            return _envelope(shapes, whole, shape.properties[inside], word, (*path, inside), depth + 1)
    return Envelope(whole, path, False, schema)


def rows_among(shapes: Shapes, schema: Any, row: Any) -> Envelope | None:
    """The list in an answer whose items are as `row` is, whatever stands beside it; `None` where there is none."""
    places: list[tuple[tuple[str, ...], Any]] = [((), schema)]
    found: list[Envelope] = []
    for path, inside in places:
        for name, inner in shapes.of(inside).properties.items():
            shape = shapes.of(inner)
            if shape.kind == "array" and is_object(shapes, shape.items):
                found.append(Envelope(schema, (*path, name), True, shape.items))
            elif not path and is_object(shapes, inner):
                places.append(((name,), inner))
    best = max(found, key=lambda one: _likeness(shapes, one.item, row), default=None)
    return best if best is not None and are_alike(shapes, best.item, row) else None


def are_alike(shapes: Shapes, one: Any, other: Any) -> bool:
    """Whether two schemas are of rows of one kind: of the same definition, or with half of the properties in common."""
    return _likeness(shapes, one, other) >= _ALIKE


def _likeness(shapes: Shapes, one: Any, other: Any) -> float:
    left, right = shapes.of(one), shapes.of(other)
    if left.name is not None and left.name == right.name:
        return 1.0
    fewest = min(len(left.properties), len(right.properties))
    return len(left.properties.keys() & right.properties.keys()) / max(1, fewest)


def is_object(shapes: Shapes, schema: Any) -> bool:
    """Whether a schema is of objects that name their properties, in a branch at least."""
    shape = shapes.of(schema)
    if shape.properties:
        return shape.kind == "object"
    return any(isinstance(branch, dict) and shapes.of(branch).properties for group in shape.choices for branch in group)


def _has_id(shapes: Shapes, schema: Any) -> bool:
    return any(words_of(name)[-1:] in (["id"], ["uuid"], ["name"]) for name in shapes.of(schema).properties)


def _holder(names: list[str], word: str) -> str | None:
    """The property that holds what the answer is about."""
    for name in names:
        if same_words(name, word) or same_words(name, singular_of(word)) or name.lower() in _HOLDERS:
            return name
    return names[0] if len(names) == 1 else None


def _is_wrapper(properties: Iterable[str], holders: list[str], word: str) -> bool:
    """Whether all properties but the holders are about paging and the like."""
    rest = [name for name in properties if name not in holders]
    named = any(same_words(name, word) or name.lower() in _HOLDERS for name in holders)
    if not holders or (len(holders) > 1 and not named):
        return False
    return all((_BESIDE if named else _PAGING) & set(words_of(name)) for name in rest)


Steps = tuple[str, ...]


@dataclass
class Path:
    """One path of the document with its operations. `run`: how many parameters it ends in."""

    steps: Steps
    written: str
    operations: dict[str, Operation] = field(default_factory=dict)
    envelopes: dict[str, Envelope | None] = field(default_factory=dict)
    run: int = 0

    @property
    def word(self) -> str:
        return word_of(self.steps)

    @property
    def collection(self) -> Steps:
        """The path without the parameters it ends in."""
        return self.steps[: len(self.steps) - self.run]

    def row(self, methods: Iterable[str]) -> Envelope | None:
        """The first of these methods' answers that holds one row."""
        found = (self.envelopes.get(method) for method in methods)
        return next((one for one in found if one is not None and not one.is_list), None)

    @property
    def listed(self) -> Envelope | None:
        """What a GET lists."""
        found = self.envelopes.get("get")
        return found if found is not None and found.is_list else None


def paths_of(document: Document, shapes: Shapes) -> dict[Steps, Path]:
    """The paths by their steps. Those with parameters inside a step are left out.

    What `/v9/projects` and `/v1/projects/{id}/env` are about is the same; the latest version describes it.
    """
    found: dict[Steps, Path] = {}
    for operation in sorted(document.operations, key=lambda one: -version_of(one.path)):
        if not is_plain(operation.path):
            continue
        steps = steps_of(operation.path)
        path = found.setdefault(steps, Path(steps, operation.path))
        path.operations.setdefault(operation.method, operation)
        path.envelopes.setdefault(operation.method, _envelope_of_success(shapes, operation))
        path.run = sum(1 for _ in itertools.takewhile(lambda step: step == "{}", reversed(steps)))
    for path in found.values():
        if "get" in path.operations:
            path.envelopes["get"] = _as_list(shapes, found, path.operations["get"], path.envelopes["get"])
    return found


def envelope_in(shapes: Shapes, paths: Mapping[Steps, Path], operation: Operation) -> Envelope | None:
    """What the answer of one of the document's operations holds."""
    return _as_list(shapes, paths, operation, _envelope_of_success(shapes, operation))


def _envelope_of_success(shapes: Shapes, operation: Operation) -> Envelope | None:
    schema, steps = answer_schema(operation), steps_of(operation.path)
    if schema is None:
        return None
    return envelope_of(shapes, schema, word_of(steps), lists=operation.method == "get" and steps[-1] != "{}")


def _as_list(
    shapes: Shapes, paths: Mapping[Steps, Path], operation: Operation, found: Envelope | None
) -> Envelope | None:
    """The list that a GET answers with where a parameter or two below a row is read that is as its items are."""
    steps = steps_of(operation.path)
    below = (paths[one] for one in ((*steps, "{}"), (*steps, "{}", "{}")) if one in paths)
    row = next((one for path in below if (one := path.row(["get"])) is not None), None)
    if operation.method != "get" or found is None or found.is_list or row is None:
        return found
    return rows_among(shapes, found.schema, row.item) or found


def shared_prefix(paths: Iterable[Steps]) -> Steps:
    """The literal steps that all paths begin with, such as `api`, `v2`."""
    literal = [tuple(itertools.takewhile(lambda step: step != "{}", steps))[:-1] for steps in paths]
    shared = itertools.takewhile(lambda column: len(set(column)) == 1, zip(*literal, strict=False))
    return tuple(column[0] for column in shared)
