"""Random calls of an API twin, and a check of their answers that shares no code with the twin."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from jsonschema import Draft202012Validator

from mcp_bridge.errors import ToolFailure
from mcp_bridge.openapi.document import Document, Operation
from mcp_bridge.openapi.tools import legal_name
from mcp_bridge.records import Tool, ToolResult
from sandboxes.api import ApiTwin

Call = tuple[str, dict[str, Any]]


class RandomCalls:
    """Calls of a twin's tools, about rows that exist and rows that do not."""

    def __init__(self, twin: ApiTwin, document: Document) -> None:
        self.twin = twin
        self.document = document
        self.operations = {legal_name(one.operation_id): one for one in document.operations}
        self._tables = {table.path: table.table for table in twin.report().tables}
        self._validators: dict[tuple[str, str], Draft202012Validator | None] = {}

    def call(self, chance: random.Random, name: str | None = None, world: ApiTwin | None = None) -> Call:
        """A call with arguments that fit the tool's schema, mostly about rows that exist."""
        tools = {tool.name: tool for tool in self.twin.tools}
        tool = tools[name or chance.choice(sorted(tools))]
        return tool.name, self.arguments(tool, chance, world or self.twin)

    def arguments(self, tool: Tool, chance: random.Random, world: ApiTwin) -> dict[str, Any]:
        schema = tool.input_schema
        required = set(schema.get("required", ()))
        found: dict[str, Any] = {}
        definitions = schema.get("$defs", {})
        for name, inner in schema.get("properties", {}).items():
            if name in required or chance.random() < 0.3:
                found[name] = value_for(inner, definitions, chance)
        known = self._path_values(self.operations[tool.name], world, chance)
        found |= {name: value for name, value in known.items() if name in found}
        for parameter in self.operations[tool.name].parameters:
            # A path has no room for these, and the tool says so.
            if parameter.location == "path" and isinstance(found.get(parameter.name), str):
                found[parameter.name] = re.sub(r"[/\\.?#]+", "-", found[parameter.name]) or "x"
        return found

    def _path_values(self, operation: Operation, world: ApiTwin, chance: random.Random) -> dict[str, Any]:
        """The keys of an existing row, for as many of the path's parameters as the row has."""
        if chance.random() < 0.1:
            return {}
        names = re.findall(r"\{([^{}]+)\}", operation.path)
        steps = operation.path.split("/")
        state = world.state()
        for size in range(len(steps), 0, -1):
            table = self._tables.get("/".join(steps[:size]))
            rows = sorted(state.get(table or "", {}))
            if rows:
                values = [unquote(value) for value in chance.choice(rows).split("~")[0].split("/")]
                typed = dict(zip(names, values, strict=False))
                return {name: _typed(operation, name, value) for name, value in typed.items()}
        return {}

    def problem(self, call: Call, result: ToolResult) -> str | None:
        """What is wrong with an answer by the document, `None` where nothing is."""
        operation = self.operations[call[0]]
        if result.is_error:
            if result.error_kind == "invalid_arguments":
                return None
            status = result.text[:3]
            if not status.isdigit() or status[0] not in "45":
                return f"no status in {result.text[:80]!r}"
            declared = operation.responses.get(status) or operation.responses.get("default")
            return None if declared is None else self._invalid(operation, status, result.structured)
        problems = [
            self._invalid(operation, status, result.structured) for status in operation.responses if status[0] in "2d"
        ]
        return None if None in problems else "; ".join(str(one) for one in problems) or "no success is declared"

    def _invalid(self, operation: Operation, status: str, value: Any) -> str | None:
        key = (operation.operation_id, status)
        if key not in self._validators:
            self._validators[key] = self._validator(operation, status)
        validator = self._validators[key]
        if validator is None:
            tells_why = status[0] in "45"  # a refusal names its reason, also where the document has no body for it
            return None if value is None or tells_why else f"{status}: a body, where none is declared"
        error = next(validator.iter_errors(value), None)
        return None if error is None else f"{status}: {error.json_path}: {error.message[:200]}"

    def _validator(self, operation: Operation, status: str) -> Draft202012Validator | None:
        answer = operation.responses.get(status) or operation.responses["default"]
        for kind, media in answer.content.items():
            if "json" in kind or kind == "*/*":
                return Draft202012Validator(self.document.closed(media.schema))
        return None


def value_for(schema: Any, definitions: Mapping[str, Any], chance: random.Random, depth: int = 0) -> Any:
    """A value that mostly fits a schema; what does not is refused by the tool, which is right too."""
    if not isinstance(schema, dict):
        return "x"
    if "$ref" in schema:
        return value_for(definitions[schema["$ref"].rpartition("/")[2]], definitions, chance, depth + 1)
    if "const" in schema or schema.get("enum"):
        return schema["const"] if "const" in schema else chance.choice(schema["enum"])
    for keyword in ("oneOf", "anyOf", "allOf"):
        if keyword in schema and not schema.get("properties"):
            return value_for(chance.choice(schema[keyword]), definitions, chance, depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind if isinstance(kind, str) else next(one for one in kind if one != "null")
    if kind == "object":
        required = schema.get("required", ())
        return {
            name: value_for(inner, definitions, chance, depth + 1)
            for name, inner in schema.get("properties", {}).items()
            if name in required or (depth < 3 and chance.random() < 0.4)
        }
    if kind == "array":
        count = max(schema.get("minItems", 0), chance.randint(0, 2) if depth < 3 else 0)
        return [value_for(schema.get("items", {}), definitions, chance, depth + 1) for _ in range(count)]
    if kind == "integer":
        low = schema.get("minimum", 1)
        return chance.randint(int(low), int(min(schema.get("maximum", low + 20), low + 20)))
    if kind == "number":
        return float(schema.get("minimum", 1)) + chance.randrange(10)
    if kind == "boolean":
        return chance.random() < 0.5
    return _text(schema, chance)


def _text(schema: Mapping[str, Any], chance: random.Random) -> str:
    formats = {
        "date-time": "2026-03-01T10:00:00Z",
        "date": "2026-03-01",
        "email": f"user{chance.randrange(9999)}@example.com",
        "uuid": f"{chance.getrandbits(128):032x}",
        "uri": "https://example.com/x",
    }
    if schema.get("format") in formats:
        return formats[schema["format"]]
    word = "".join(chance.choice("abcdefghijklmnop") for _ in range(max(6, schema.get("minLength", 0))))
    return word[: schema.get("maxLength", len(word))]


def _typed(operation: Operation, name: str, value: str) -> Any:
    for parameter in operation.parameters:
        kind = parameter.schema.get("type") if isinstance(parameter.schema, dict) else None
        if parameter.name == name and parameter.location == "path" and kind == "integer" and value.isdigit():
            return int(value)
    return value


def play(calls: RandomCalls, twin: ApiTwin, seed: int, count: int) -> Iterator[tuple[Call, ToolResult | ToolFailure]]:
    """Make `count` random calls in a world."""
    chance = random.Random(seed)
    for _ in range(count):
        call = calls.call(chance, world=twin)
        try:
            yield call, twin.call_now(*call)
        except ToolFailure as failure:
            yield call, failure
