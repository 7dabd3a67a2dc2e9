"""From a model's arguments to the request that is sent."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from .arguments import Plan
from .bodies import Body, body_of
from .document import Operation, Parameter
from .styles import Unwritable, checked_path, cookie_text, header_text, path_text, query_parts


@dataclass(frozen=True)
class Prepared:
    """A request before credentials. `path` and `query` are percent-encoded. `value`: the body before it was written."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    cookies: dict[str, str]
    body: Body | None
    value: Any = None


def prepare(
    operation: Operation,
    plan: Plan,
    arguments: Mapping[str, Any],
    *,
    reserved: Collection[str] = (),
    slashes: bool = False,
) -> Prepared:
    """`reserved`: names of query parameters that only the configuration may set. `slashes`: see `path_text`.

    Raises `Unwritable` for arguments that have no form in their place.
    """
    path = operation.path
    query: list[str] = []
    headers: dict[str, str] = {}
    cookies: dict[str, str] = {}
    names = {one.name for one in plan.parameters.values() if one.location == "query"} | set(reserved)
    for argument, parameter in plan.parameters.items():
        if argument not in arguments:
            continue
        value = arguments[argument]
        if parameter.location == "path":
            path = path.replace(f"{{{parameter.name}}}", path_text(parameter, value, slashes=slashes))
        elif parameter.location == "query":
            _refuse_taken(parameter, value, names)
            query += query_parts(parameter, value)
        elif parameter.location == "header":
            text = header_text(parameter, value)
            headers |= {} if text is None else {parameter.name: text}
        else:
            text = cookie_text(parameter, value)
            cookies |= {} if text is None else {parameter.name: text}
    missing = [one.name for one in plan.parameters.values() if one.location == "path" and f"{{{one.name}}}" in path]
    if missing:
        raise Unwritable(f"{missing[0]}: is part of the path and must be given")
    made = None if plan.body is None else body_of(plan.body, arguments)
    body, value = made if made is not None else (None, None)
    return Prepared(
        operation.method.upper(), _encoded(checked_path(path)), "&".join(query), headers, cookies, body, value
    )


def _encoded(path: str) -> str:
    """The document's own part of a path may hold letters that a URL does not."""
    return quote(path, safe="/%:@!$&'()*+,;=~")


def _refuse_taken(parameter: Parameter, value: Any, names: Collection[str]) -> None:
    """The keys of an object may become query parameters: none of them may pass for another one."""
    spreads = parameter.style == "form" and parameter.explode and parameter.content_type is None
    if spreads and isinstance(value, Mapping):
        for key in value:
            if key in names and key != parameter.name:
                raise Unwritable(f"{parameter.name}: must not have the key {key!r}, which is a parameter of its own")
