"""The eight APIs of BFCL as object twins: one twin, whose scenarios are the entries of the data set."""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Mapping
from threading import Lock
from typing import Any

from dataset import API_NAMES, all_entries, api_class, function_docs

from mcp_bridge import Tool
from sandboxes import Refused
from sandboxes.objects import ObjectTwin, as_json

ALL = "default"
"""The scenario with all eight APIs, each as it begins without a configuration."""

_ONE_CALL = Lock()
"""MathAPI sets the precision of mpmath for the whole process: no two calls at once, in whatever threads they are."""

_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}


class BfclTwin(ObjectTwin):
    """The eight APIs. A scenario has the ones that its entry involves, and shows what that entry shows.

    A function that is held out until a later turn is not listed, but can be called: so it is in the data set.
    """

    def __init__(self) -> None:
        super().__init__(
            {name: api_class(name) for name in API_NAMES},
            name="bfcl",
            load=_load,
            scenarios=(ALL, *all_entries()),
            schemas=tool_schemas(),
            shared=(
                "LONG_WEATHER_EXTENSION",
            ),  # a dict of the package that its weather is written into, and read at once
            undo=False,  # the package takes nothing back after an exception; nor do we, to be comparable
        )

    def present(self, scenario: str) -> Collection[str]:
        return API_NAMES if scenario == ALL else all_entries()[scenario].apis

    def hidden(self, scenario: str) -> Collection[str]:
        if scenario == ALL:
            return ()
        return [name for names in all_entries()[scenario].held_out.values() for name in names]

    def jsonable(self, value: Any) -> Any:
        return as_json(value, special=_as_the_package_compares)

    def _run(self, name: str, arguments: dict[str, Any]) -> Any:
        with _ONE_CALL:
            found = super()._run(name, arguments)
        if isinstance(found, dict) and found.get("error"):
            raise Refused(json.dumps(found, ensure_ascii=False))
        return found


def tool_schemas() -> dict[str, Tool]:
    """The tools as the data set describes them, with its types in JSON Schema's words."""
    return {
        doc["name"]: Tool(
            name=doc["name"],
            description=doc["description"],
            input_schema={**_schema(doc["parameters"]), "additionalProperties": False},
            source=api,
        )
        for api in API_NAMES
        for doc in function_docs(api)
    }


def _schema(described: Mapping[str, Any]) -> dict[str, Any]:
    schema = dict(described)
    kind = _TYPES.get(schema.get("type", "string"), schema.get("type", "string"))
    schema.pop("type", None)
    if kind is not None:
        schema = {"type": kind, **schema}
    if "properties" in schema:
        schema["properties"] = {name: _schema(inner) for name, inner in schema["properties"].items()}
    if "items" in schema:
        schema["items"] = _schema(schema["items"])
    return schema


def _load(objects: dict[str, Any], seed: int, scenario: str) -> None:  # noqa: ARG001 - entries have seeds of their own
    entry = None if scenario == ALL else all_entries()[scenario]
    for name, one in objects.items():
        if hasattr(one, "_load_scenario"):
            config = copy.deepcopy(entry.config.get(name, {})) if entry else {}
            one._load_scenario(config, long_context=bool(entry and entry.is_long))


def _as_the_package_compares(value: Any) -> Any:
    # Two directories are equal when names and contents are; what they lie in is not asked.
    if type(value).__name__ == "Directory":
        return {"name": value.name, "contents": value.contents}
    # Results are compared as texts, and those of mpmath's numbers differ by their precision.
    return repr(value) if type(value).__module__.startswith("mpmath") else value
