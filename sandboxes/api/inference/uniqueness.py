"""Which properties of a row no two rows may share, as far as a document lets it be known.

| what the document says | the property is unique |
| --- | --- |
| `x-unique: true` on it | always |
| its description says so: "unique", "must not be taken" | always |
| the operation's 409 or 422 says that it is taken: "a project with this name already exists" | in that operation |
| the operation has a 409, and the property is what people log in or are found with: `email`, `slug`, ... | in it |
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..shapes import Shapes
from ..values.realistic import words_of

if TYPE_CHECKING:
    from mcp_bridge.openapi.document import Operation

_IDENTIFYING = frozenset(("email", "username", "login", "slug", "sku", "handle"))
_TAKEN = re.compile(r"\balready\b|\btaken\b|\bduplicate|\bin use\b|\bunique\b|\bsame\b", re.IGNORECASE)
_SAYS_UNIQUE = re.compile(
    r"(?<!not )(?<!non-)\bunique\b(?! (?:among|per|for each|in the list))|must not be taken", re.IGNORECASE
)
_CONFLICTS = ("409", "422")


def unique_properties(shapes: Shapes, schema: Any, operation: Operation) -> frozenset[str]:
    """The properties of a row of `schema` that an operation refuses to make equal to another row's."""
    properties: Mapping[str, Any] = shapes.of(schema).properties
    taken = _named_as_taken(operation)
    found = set()
    for name, inner in properties.items():
        shape = shapes.of(inner)
        words = words_of(name)
        if shape.says.get("x-unique") is False or shape.kinds & {"object", "array", "boolean"} == shape.kinds:
            continue
        says = str(shape.says.get("description", ""))
        by_itself = shape.says.get("x-unique") is True or bool(_SAYS_UNIQUE.search(says))
        by_conflict = "409" in operation.responses and "".join(words) in _IDENTIFYING
        if by_itself or by_conflict or " ".join(words) in taken:
            found.add(name)
    return frozenset(found)


def _named_as_taken(operation: Operation) -> frozenset[str]:
    """The words, and pairs of them, of the refusals that speak of something that is there already."""
    found: set[str] = set()
    for status in _CONFLICTS:
        answer = operation.responses.get(status)
        said = answer.description if answer is not None else ""
        if said and _TAKEN.search(said):
            words = words_of(said)
            found |= set(words) | {f"{one} {two}" for one, two in itertools.pairwise(words)}
    # What every such sentence has, and many rows too.
    return frozenset(found - {"id", "state", "status", "type", "kind", "description", "number"})
