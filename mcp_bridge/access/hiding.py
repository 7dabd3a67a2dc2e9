"""Credentials kept out of what a policy reads and a trace keeps: a server may repeat what it was given.

Fewer values than `mcp_bridge.access.redaction` keeps out of errors and logs, where every value of an environment is
replaced. Here that would change what a tool says of `production` or of a folder, so only what is surely a credential
is: a value under the name of a secret, an argument after such a flag, the user of a URL, what a login gave.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import quote

from ..records import Tool, ToolResult
from .redaction import SHORTEST_SECRET, is_secret_name, redacted, text_secrets

_LOGIN_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie"})
_PROSE = frozenset({"description", "title", "default", "examples"})
"""Keys of a schema under which a server may write anything; elsewhere a word is the schema's own."""


def environment_credentials(env: Mapping[str, str]) -> tuple[str, ...]:
    """The values under names of secrets, and the secrets inside the others, such as the password in a URL."""
    found: list[str] = []
    for name, value in env.items():
        found += [value, value.strip()] if is_secret_name(name) else text_secrets(value)
    return tuple(found)


def header_credentials(headers: Mapping[str, str]) -> tuple[str, ...]:
    """The values of headers that log in or have names of secrets, the token in `Bearer token`, the password in
    `Basic ...`; of other headers, such as a version, the secrets inside them."""
    found: list[str] = []
    for name, value in headers.items():
        if name.lower() not in _LOGIN_HEADERS and not is_secret_name(name):
            found += text_secrets(value)
            continue
        scheme, _, token = value.strip().partition(" ")
        found += [value, *token.split()]
        if scheme.lower() == "basic":
            found += _basic(token)
    return tuple(found)


def _basic(token: str) -> list[str]:
    try:
        pair = base64.b64decode(token, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return []
    return [pair, pair.partition(":")[2]]


class Hiding:
    """Replaces the credentials of one server by `***`."""

    def __init__(self, credentials: Callable[[], tuple[str, ...]]) -> None:
        """`credentials`: asked each time, because tokens are learned while a session goes on. Those of less than
        six characters are left: they would blank out ordinary words."""
        self._credentials = credentials
        self._of: tuple[str, ...] = ()
        self._forms: tuple[str, ...] = ()

    def result(self, result: ToolResult) -> ToolResult:
        """The result without credentials; the same record where it holds none."""
        forms = self._known()
        if not forms:
            return result
        text, structured = _hidden(result.text, forms), _hidden(result.structured, forms)
        if text is result.text and structured is result.structured:
            return result
        return result.model_copy(update={"text": text, "structured": structured})

    def tool(self, tool: Tool) -> Tool:
        """The tool without credentials in what it says of itself."""
        forms = self._known()
        if not forms:
            return tool
        said = {
            "description": _hidden(tool.description, forms),
            "input_schema": _hidden_in_schema(tool.input_schema, forms),
            "output_schema": _hidden_in_schema(tool.output_schema, forms),
        }
        return tool.model_copy(update=said)

    def _known(self) -> tuple[str, ...]:
        now = self._credentials()
        if now is not self._of:
            self._of, self._forms = now, tuple(_forms(now))
        return self._forms


def _forms(credentials: Iterable[str]) -> list[str]:
    """As they stand, inside JSON, and in a URL; the longest first, so that none is left in part."""
    found = {form for one in credentials for form in (one, json.dumps(one)[1:-1], quote(one, safe=""))}
    return sorted((form for form in found if len(form) >= SHORTEST_SECRET), key=len, reverse=True)


def _hidden(value: Any, forms: tuple[str, ...]) -> Any:
    """`value` itself where nothing in it had to be replaced."""
    if isinstance(value, str):
        return redacted(value, forms) if any(form in value for form in forms) else value
    if isinstance(value, list):
        items = [_hidden(one, forms) for one in value]
        return value if all(map(_is, items, value)) else items
    if isinstance(value, dict):
        entries = {_hidden(key, forms): _hidden(one, forms) for key, one in value.items()}
        return value if all(map(_is, entries.values(), value.values())) and entries.keys() == value.keys() else entries
    return value


def _is(one: Any, other: Any) -> bool:
    return one is other


def _hidden_in_schema(value: Any, forms: tuple[str, ...]) -> Any:
    if isinstance(value, list):
        return [_hidden_in_schema(one, forms) for one in value]
    if isinstance(value, dict):
        return {
            key: _hidden(one, forms) if key in _PROSE and not isinstance(one, dict) else _hidden_in_schema(one, forms)
            for key, one in value.items()
        }
    return value
