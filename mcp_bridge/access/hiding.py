"""Credentials kept out of what a policy reads and a trace keeps: a server may repeat what it was given.

Fewer values than `mcp_bridge.access.redaction` keeps out of errors and logs, where every value of an environment is
replaced. Here that would change what a tool says of `production` or of a folder, so only what is surely a credential
is: a value under the name of a secret, an argument after such a flag, the password of a URL, what a login gave. A
password that is a word is left as well: a policy that reads `***` cannot name the column `password`.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import quote

from ..records import Tool, ToolResult
from .redaction import HIDDEN, SHORTEST_SECRET, is_secret_name, is_weak, text_secrets, whole

logger = logging.getLogger(__name__)

_LOGIN_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie"})


def environment_credentials(env: Mapping[str, str]) -> tuple[str, ...]:
    """The values under names of secrets, and the secrets inside the others, such as the password in a URL."""
    found: list[str] = []
    for name, value in env.items():
        found += [value, value.strip()] if is_secret_name(name) else text_secrets(value, names=False)
    return tuple(found)


def header_credentials(headers: Mapping[str, str]) -> tuple[str, ...]:
    """The values of headers that log in or have names of secrets, the token in `Bearer token`, the password in
    `Basic ...`; of other headers, such as a version, the secrets inside them."""
    found: list[str] = []
    for name, value in headers.items():
        if name.lower() not in _LOGIN_HEADERS and not is_secret_name(name):
            found += text_secrets(value, names=False)
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

    def __init__(self, credentials: Callable[[], tuple[str, ...]], label: str) -> None:
        """`credentials`: asked each time, because tokens are learned while a session goes on. Weak ones are left, with
        one warning that names the server by its `label`."""
        self._credentials = credentials
        self._label = label
        self._of: tuple[str, ...] = ()
        self._forms: tuple[str, ...] = ()
        self._pattern = re.compile("")
        self._has_warned = False

    def result(self, result: ToolResult) -> ToolResult:
        """The result without credentials; the same record where it holds none."""
        if not self._knows_any():
            return result
        text, structured = self._hidden(result.text), self._hidden(result.structured)
        if text is result.text and structured is result.structured:
            return result
        return result.model_copy(update={"text": text, "structured": structured})

    def tool(self, tool: Tool) -> Tool:
        """The tool without credentials in what it says of itself."""
        if not self._knows_any():
            return tool
        said = ("description", "input_schema", "output_schema")
        return tool.model_copy(update={field: self._hidden(getattr(tool, field)) for field in said})

    def _knows_any(self) -> bool:
        now = self._credentials()
        if now is not self._of:
            self._of, self._forms = now, hidden_forms(now)
            self._pattern = re.compile("|".join(map(whole, self._forms)))
            self._has_warned = self._has_warned or warn_of_weak(now, self._label)
        return bool(self._forms)

    def _hidden(self, value: Any) -> Any:
        """`value` itself where nothing in it had to be replaced."""
        if isinstance(value, str):
            if not any(form in value for form in self._forms):
                return value
            return self._pattern.sub(HIDDEN, value)
        if isinstance(value, list):
            items = [self._hidden(one) for one in value]
            return value if all(map(operator.is_, items, value)) else items
        if isinstance(value, dict):
            entries = {self._hidden(key): self._hidden(one) for key, one in value.items()}
            same = all(map(operator.is_, entries.values(), value.values())) and entries.keys() == value.keys()
            return value if same else entries
        return value


def hidden_forms(credentials: Iterable[str]) -> tuple[str, ...]:
    """Those that are not weak, as they stand, inside JSON and in a URL; the longest first, so that none is left in
    part."""
    strong = [one for one in credentials if not is_weak(one)]
    found = {form for one in strong for form in (one, json.dumps(one)[1:-1], quote(one, safe=""))}
    return tuple(sorted(found, key=len, reverse=True))


def warn_of_weak(credentials: Iterable[str], label: str) -> bool:
    """Warn where a credential is left in results because it is a word. Whether there is one."""
    is_any = any(len(one) >= SHORTEST_SECRET and is_weak(one) for one in credentials)
    if is_any:
        logger.warning(
            "%s has a credential that is an ordinary word. Its results may hold that word for other reasons, so it is "
            "hidden in logs and errors alone; where its tools may repeat the credential, give it a random one",
            label,
        )
    return is_any
