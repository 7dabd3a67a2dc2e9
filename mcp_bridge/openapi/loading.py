"""From a path, a URL or text to plain values: JSON, and YAML as version 1.2 means it."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from ..access.hiding import header_credentials
from ..access.redaction import public_url, redacted, url_secrets
from ..access.settings import Access
from ..errors import SourceError

MOST_BYTES = 64 * 1024 * 1024
"""The largest document that is read."""

_MOST_VALUES = 2_000_000
_MOST_DEPTH = 200
_FETCH_TIMEOUT_S = 30.0


def load_file(path: Path) -> Any:
    """The value in a JSON or YAML file. Raises `SourceError` with the line where it is neither."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise SourceError(f"{str(path)!r} has more than {MOST_BYTES} bytes, the most an API's document may have")
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise SourceError(f"there is no file {str(path)!r}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{str(path)!r} cannot be read: {error}") from error
    return load_text(text, str(path))


def load_url(url: str, access: Access | None = None, headers: Mapping[str, str] | None = None) -> Any:
    """The value behind a URL; redirects stay on its host. Raises `SourceError`.

    `access`: whom to trust, our certificate and the proxy. `headers`: sent along, for documents behind a login; with
    them, redirects stay on its scheme and port, too.
    """
    import httpx

    shown, secrets = public_url(url), (*url_secrets(url), *header_credentials(headers or {}))
    tls, proxy = (None, None) if access is None else (access.tls, access.proxy)
    try:
        with httpx.Client(
            timeout=_FETCH_TIMEOUT_S,
            follow_redirects=False,
            headers=headers,
            verify=True if tls is None else tls.context(),
            proxy=proxy or None,
            trust_env=proxy is None,
        ) as client:
            here = httpx.URL(url)
            for _ in range(5):
                with client.stream("GET", here) as response:
                    target = response.next_request.url if response.next_request is not None else None
                    if target is None:
                        return load_text(_body(response, shown), shown)
                if target.host != here.host or (headers and origin(str(target)) != origin(str(here))):
                    where = target.copy_with(path="", query=None, fragment=None, userinfo=b"")
                    raise SourceError(f"{shown} redirects to another host, {where}; give that URL if you trust it")
                here = target
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise SourceError(
            f"{shown} cannot be fetched: {type(error).__name__} {redacted(str(error), secrets)}"
        ) from None
    raise SourceError(f"{shown} redirects more than 5 times; give the URL of the document itself")


def origin(url: str) -> tuple[str, str | None, int | None] | None:
    """Scheme, host and port; `None` of a relative URL."""
    parts = urlsplit(url)
    if not parts.hostname:
        return None
    return (parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme))


def _body(response: Any, shown: str) -> str:
    if response.status_code != 200:
        raise SourceError(f"{shown} answered {response.status_code} instead of an OpenAPI document")
    chunks, size = [], 0
    for chunk in response.iter_bytes():
        size += len(chunk)
        if size > MOST_BYTES:
            raise SourceError(f"{shown} has more than {MOST_BYTES} bytes, the most an API's document may have")
        chunks.append(chunk)
    try:
        return b"".join(chunks).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SourceError(f"{shown} is no UTF-8 text: {error}") from None


def load_text(text: str, where: str) -> Any:
    """The value of JSON or YAML text. Raises `SourceError` that names `where` and the line."""
    try:
        if text.lstrip()[:1] in {"{", "["}:
            try:
                return plain(json.loads(text, parse_constant=_no_constant), where)
            except json.JSONDecodeError as error:
                # YAML's flow style begins like JSON; only what is neither is refused.
                if Path(where).suffix.lower() == ".json":
                    raise SourceError(
                        f"{where} is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}"
                    ) from None
        return plain(yaml.load(text, Loader=_Loader), where)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise SourceError(f"{where} is not valid YAML: {getattr(error, 'problem', None) or error}{place}") from None
    except RecursionError:
        raise SourceError(f"{where} is nested too deep to be read") from None
    except ValueError as error:
        raise SourceError(f"{where} cannot be read: {error}") from None


def plain(value: Any, where: str) -> Any:
    """A copy in which every key is a string. Raises `SourceError` for what is no JSON value or grows without end.

    YAML's anchors may hold themselves, or repeat each other until a small file has more values than memory.
    """
    if _size(value, {}, 0, where) > _MOST_VALUES:
        raise SourceError(f"{where} holds more than {_MOST_VALUES} values; perhaps a YAML anchor repeats itself")

    def copied(one: Any) -> Any:
        if isinstance(one, Mapping):
            return {_key(key, where): copied(inner) for key, inner in one.items()}
        if isinstance(one, list | tuple):
            return [copied(inner) for inner in one]
        if one is None or isinstance(one, str | int | float | bool):
            return one
        raise SourceError(f"{where} holds a {type(one).__name__}, which has no JSON form: {one!r:.80}")

    return copied(value)


def _size(value: Any, known: dict[int, int], depth: int, where: str) -> int:
    """How many values a copy would hold. What is shared is looked at once: its copies may outgrow any memory."""
    if depth > _MOST_DEPTH:
        raise SourceError(f"{where} holds more than {_MOST_DEPTH} levels; perhaps a YAML anchor repeats itself")
    if not isinstance(value, Mapping | list | tuple):
        return 1
    if id(value) not in known:
        inner = value.values() if isinstance(value, Mapping) else value
        known[id(value)] = 1 + sum(_size(one, known, depth + 1, where) for one in inner)
    return known[id(value)]


def _key(key: Any, where: str) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    # Status codes are often written without quotes.
    if isinstance(key, str | int):
        return str(key)
    raise SourceError(f"{where} has the key {key!r}; keys must be strings")


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON value")


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Safe YAML with the plain values of version 1.2: `no`, `12:30` and `2026-01-01` are strings."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - the base class wants a class attribute

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:merge" and isinstance(key.value, str):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} is there twice", key.start_mark
                    )
                seen.add(key.value)
        made: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
        return made


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    ("float", r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?", "-+0123456789."),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("merge", r"<<", "<"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), list(_first))
