"""Paths taken apart, and what an operation's answer holds: a row, a list of rows, or something else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..shapes import Shapes
from ..values.realistic import words_of
from .model import Envelope

if TYPE_CHECKING:
    from mcp_bridge.openapi.document import Operation

_HOLDERS = (
    "data",
    "items",
    "results",
    "result",
    "records",
    "entries",
    "values",
    "value",
    "content",
    "rows",
    "objects",
)
_PAGING = frozenset(
    [
        "total",
        "count",
        "page",
        "pages",
        "per",
        "size",
        "limit",
        "offset",
        "next",
        "previous",
        "prev",
        "cursor",
        "has",
        "more",
        "first",
        "last",
        "links",
        "link",
        "meta",
        "paging",
        "pagination",
        "number",
        "elements",
        "token",
        "self",
        "url",
        "object",
        "ok",
        "success",
        "status",
        "code",
        "message",
        "kind",
        "etag",
        "marker",
        "order",
        "truncated",
        "incomplete",
        "results",
        "empty",
        "sort",
        "pageable",
    ]
)


def steps_of(path: str) -> tuple[str, ...]:
    """The steps of a path without parameters' names, and without `.json`: `/users/{id}` is `("users", "{}")`."""
    return tuple("{}" if re.fullmatch(r"\{[^{}]+\}", step) else step for step in _bare(path).strip("/").split("/"))


def _bare(path: str) -> str:
    return re.sub(r"\.(json|xml)$", "", path)


def names_of(path: str) -> list[str]:
    """The parameters of a path, in order."""
    return re.findall(r"\{([^{}]+)\}", path)


def is_plain(path: str) -> bool:
    """Whether every parameter is a whole step."""
    return all(step == "{}" or "{" not in step for step in steps_of(path))


def head_of(path: str, count: int) -> str:
    """The first `count` steps of a path, as written."""
    return "/" + "/".join(_bare(path).strip("/").split("/")[:count])


def singular_of(name: str) -> str:
    """`companies` is `company`; a word that is no plural stays as it is."""
    if name.endswith("ies") and len(name) > 4:
        return name[:-3] + "y"
    if re.search(r"(ss|sh|ch|x|z|us)es$", name):
        return name[:-2]
    return name[:-1] if name.endswith("s") and not name.endswith(("ss", "us", "is")) else name


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


def answer_schema(operation: Operation, status: str) -> Any:
    """The JSON schema of the answer with `status`, `None` where it has no JSON body."""
    response = operation.responses.get(status)
    return None if response is None else json_schema(response.content)


def envelope_of(shapes: Shapes, schema: Any, word: str) -> Envelope | None:
    """What an answer holds. `word`: the last literal step of the path. `None` where it is neither row nor rows.

    Of an answer with a choice (`oneOf`) it is the branch that holds one row, the one with the most properties.
    """
    shape = shapes.of(schema)
    if not shape.properties and len(shape.choices) == 1 and shape.kind != "array":
        found = [_envelope(shapes, schema, branch, word, (), 0) for branch in shape.choices[0]]
        rows = [one for one in found if one is not None and not one.is_list]
        if rows:
            return max(rows, key=lambda one: len(shapes.of(one.item).properties))
    return _envelope(shapes, schema, schema, word, (), 0)


def _envelope(
    shapes: Shapes,
    whole: Any,
    schema: Any,
    word: str,
    path: tuple[str, ...],
    depth: int,
) -> Envelope | None:
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
        ]
        holder = _holder(lists, word) if _is_wrapper(shape.properties, lists, word) else None
        if holder is not None:
            return Envelope(whole, (*path, holder), True, shapes.of(shape.properties[holder]).items)
        objects = [name for name, inner in shape.properties.items() if is_object(shapes, inner)]
        inside = _holder(objects, singular_of(word)) if _is_wrapper(shape.properties, objects, word) else None
        if inside is None and depth == 0:
            # An answer may tell more beside the row: `{"server": {...}, "action": {...}}`.
            own = (name for name in objects if words_of(name) == words_of(singular_of(word)))
            inside = next((name for name in own if _has_id(shapes, shape.properties[name])), None)
        if inside is not None:
            return _envelope(
                shapes,
                whole,
                shape.properties[inside],
                word,
                (*path, inside),
                depth + 1,
            )
    return Envelope(whole, path, False, schema)


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
    return all(_PAGING & set(words_of(name)) for name in rest) and (named or bool(rest) or len(holders) == 1)
