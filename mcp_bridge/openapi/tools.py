"""The tools of an API: one for each operation."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ..guard import LONGEST_NAME, numbered, with_digest
from ..records import LeftOut, Tool, ToolAnnotations
from ..toolsets.schema_checks import SchemaTimeout, compiled_schema, schema_errors
from .credentials import carrying
from .document import Document, MediaType, Operation, Response
from .requests import Plan, Prepared, Unwritable, bare_type, is_json, plan_of
from .schemas import NOTHING, Schema, View

LONGEST_DESCRIPTION = 1024
"""In characters. Some documents put whole manuals there, and every prompt would pay for them."""

OF_OTHER_TAGS = "it has none of the tags"

_ANNOTATIONS = {
    "get": ToolAnnotations(read_only=True, destructive=False, idempotent=True, open_world=True),
    "put": ToolAnnotations(read_only=False, idempotent=True, open_world=True),
    "delete": ToolAnnotations(read_only=False, destructive=True, idempotent=True, open_world=True),
    "other": ToolAnnotations(read_only=False, open_world=True),
}
_AS_GET = {"get", "head", "options", "trace"}


@dataclass(frozen=True)
class OperationTool:
    """An operation with the tool that it is to a model."""

    tool: Tool
    operation: Operation
    plan: Plan


class ToolMaker:
    """Makes the tools of one document.

    `source`: what the tools say they come from. `tags`: only operations with one of them; all where empty. `fixed`:
    (location, name in lower case) of parameters that the configuration fills in. `is_live`: the answers are somebody
    else's, and may be other than the document says. No output schema promises them then, for clients of MCP refuse an
    answer against it when the call was made already.
    """

    def __init__(
        self,
        document: Document,
        *,
        source: str,
        tags: Collection[str] = (),
        fixed: Collection[tuple[str, str]] = (),
        is_live: bool = False,
    ) -> None:
        self._document = document
        self._source = source
        self._tags = set(tags)
        self._fixed = fixed
        self._is_live = is_live
        self._request = View(document.schemas, "readOnly")
        self._strict = View(document.schemas, "readOnly", is_strict=True)
        self._answer = View(document.schemas, "writeOnly")
        self._reaches: dict[int, bool] = {}
        self._compiled: dict[str, Any] = {}

    def make(self, refuse: Callable[[Operation], str | None]) -> tuple[list[OperationTool], list[LeftOut]]:
        """The tools, and what was left out, operations that the document gets wrong included. `refuse`: why an
        operation cannot be called, `None` where it can."""
        made: list[OperationTool] = []
        left_out = [
            LeftOut(tool=name, source=self._source, reason=why) for name, why in self._document.left_out.items()
        ]
        names: set[str] = set()
        for operation in self._document.operations:
            name = numbered(legal_name(operation.operation_id), names, LONGEST_NAME - 4)
            names.add(name)
            reason = refuse(operation) or self._document.problem(operation)
            if self._tags and not self._tags & set(operation.tags):
                reason = f"{OF_OTHER_TAGS} {', '.join(sorted(self._tags))}"
            if reason is not None:
                left_out.append(LeftOut(tool=name, source=self._source, reason=reason))
                continue
            secret = {(one.location, one.name.lower()) for one in carrying(operation)}
            plan = plan_of(operation, self._request, self._strict, fixed={*self._fixed, *secret})
            made.append(OperationTool(self._tool(name, operation, plan), operation, plan))
        return made, left_out

    def pruned(self, operation: Operation, status: int, value: Any) -> Any:
        """An answer without what the document calls write-only."""
        media = _json_of(answer_of(operation, status))
        if media is None or not isinstance(media.schema, dict):
            return value
        key = id(media.schema)
        if key not in self._reaches:
            self._reaches[key] = self._answer.reaches_mark(media.schema)
        return self._answer.pruned(value, media.schema) if self._reaches[key] else value

    def refuse_read_only(self, tool: OperationTool, prepared: Prepared) -> None:
        """Raises `Unwritable` where a body holds what only the server sets. Below the arguments themselves, the schema
        that the model sees may allow names that it does not list."""
        if tool.plan.strict_schema is None or prepared.body is None:
            return
        name = tool.tool.name
        if name not in self._compiled:
            self._compiled[name] = compiled_schema(tool.plan.strict_schema, is_known_valid=True)
        try:
            problems = schema_errors(self._compiled[name], prepared.value)
        except SchemaTimeout as timeout:
            raise Unwritable(f"the body could not be checked in time, and so is not accepted: {timeout}") from timeout
        while problems:
            problem = problems.pop()
            problems += problem.context or ()
            if problem.schema == NOTHING:
                place = problem.json_path.removeprefix("$").removeprefix(".")
                raise Unwritable(f"{place}: only the server sets this; leave it out")

    def _tool(self, name: str, operation: Operation, plan: Plan) -> Tool:
        kind = "get" if operation.method in _AS_GET else operation.method
        return Tool(
            name=name,
            description=_description(operation),
            input_schema=plan.input_schema,
            output_schema=None if self._is_live else self._output_schema(operation),
            annotations=_ANNOTATIONS.get(kind, _ANNOTATIONS["other"]),
            source=self._source,
        )

    def _output_schema(self, operation: Operation) -> Schema | None:
        """Of the JSON in answers of success, where all have some. Only objects have one: that is what MCP allows."""
        answers = [one for status, one in sorted(operation.responses.items()) if status.startswith("2")]
        media = [_json_of(one) for one in answers]
        found = [one.schema for one in media if one is not None and isinstance(one.schema, dict)]
        found = [one for number, one in enumerate(found) if one not in found[:number]]
        resolved = [self._document.resolve(one) for one in found]
        if (
            not found
            or None in media
            or any(not isinstance(one, dict) or one.get("type") != "object" for one in resolved)
        ):
            return None
        views = [self._answer.of(one) for one in found]
        if len(views) == 1:
            return {**self._answer.closed(views[0]), "type": "object"}
        return self._answer.closed({"type": "object", "anyOf": views})


def answer_of(operation: Operation, status: int) -> Response | None:
    """The document's answer for this status; `None` where it has none."""
    for key in (str(status), f"{status // 100}XX", f"{status // 100}xx", "default"):
        if key in operation.responses:
            return operation.responses[key]
    return None


def _json_of(answer: Response | None) -> MediaType | None:
    content: Mapping[str, MediaType] = answer.content if answer is not None else {}
    for name, media in content.items():
        if is_json(bare_type(name)) or bare_type(name) == "*/*":
            return media
    return None


def legal_name(text: str) -> str:
    """`text` as a name that model APIs take; a long one is cut and keeps a hash of the whole."""
    name = re.sub(r"[^a-zA-Z0-9_-]+", "_", text).strip("_") or "operation"
    return name if len(name) <= LONGEST_NAME else with_digest(name, text)


def _description(operation: Operation) -> str:
    summary, words = operation.summary.strip(), operation.description.strip()
    parts = ["Deprecated."] if operation.deprecated else []
    if summary:
        parts.append(summary if summary[-1] in ".!?" else f"{summary}.")
    if words and words.rstrip(".") != summary.rstrip("."):
        parts.append(words)
    text = " ".join(parts) or f"{operation.method.upper()} {operation.path}"
    if len(text) <= LONGEST_DESCRIPTION:
        return text
    cut = text[: LONGEST_DESCRIPTION - 6].rpartition(" ")[0] or text[: LONGEST_DESCRIPTION - 6]
    return f"{cut} [...]"
