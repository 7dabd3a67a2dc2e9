"""The paths of a document, each with its operations and what they give."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..shapes import Shapes
from .model import Envelope
from .paths import answer_schema, envelope_of, is_plain, steps_of, success_of

if TYPE_CHECKING:
    from mcp_bridge.openapi.document import Document, Operation

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
        """The last literal step."""
        return next((step for step in reversed(self.steps) if step != "{}"), "")

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
    """The paths by their steps. Those with parameters inside a step are left out."""
    found: dict[Steps, Path] = {}
    for operation in document.operations:
        if not is_plain(operation.path):
            continue
        steps = steps_of(operation.path)
        path = found.setdefault(steps, Path(steps, operation.path))
        path.operations.setdefault(operation.method, operation)
        schema = answer_schema(operation, success_of(operation))
        path.envelopes.setdefault(
            operation.method,
            None if schema is None else envelope_of(shapes, schema, path.word),
        )
        path.run = len(steps) - len(tuple(without_run(steps)))
    return found


def without_run(steps: Steps) -> Iterator[str]:
    end = len(steps)
    while end and steps[end - 1] == "{}":
        end -= 1
    yield from steps[:end]


def shared_prefix(paths: Iterable[Steps]) -> Steps:
    """The literal steps that all paths begin with, such as `api`, `v2`."""
    shared: Steps | None = None
    for steps in paths:
        literal = steps[: steps.index("{}")] if "{}" in steps else steps[:-1] if len(steps) > 1 else ()
        literal = literal[:-1] if "{}" in steps else literal
        if shared is None:
            shared = literal
        size = next(
            (n for n, (a, b) in enumerate(zip(shared, literal, strict=False)) if a != b),
            None,
        )
        shared = shared[: size if size is not None else min(len(shared), len(literal))]
    return shared or ()
