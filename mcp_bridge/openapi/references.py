"""Documents and the references between them: JSON and YAML from files and URLs, and the targets of `$ref`."""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit
from urllib.request import url2pathname

import yaml
from referencing import Registry, Resource
from referencing.exceptions import PointerToNowhere, Unresolvable

from ..access.redaction import HiddenInLogs, header_credentials, public_url, redacted, url_secrets
from ..access.settings import Access
from ..errors import SourceError, kind_of
from ..safe_text import json_problem, strict_json, whole_characters
from ..unique_keys import UniqueKeys

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
    _in_logs = HiddenInLogs(lambda: secrets)
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
        raise SourceError(f"{shown} is not valid UTF-8: {error}") from None


def load_text(text: str, where: str) -> Any:
    """The value of JSON or YAML text. Raises `SourceError` that names `where` and the line."""
    try:
        if text.lstrip()[:1] in {"{", "["}:
            try:
                return plain(strict_json(text), where)
            except json.JSONDecodeError as error:
                # YAML's flow style begins like JSON; only what is neither is refused.
                if Path(where).suffix.lower() == ".json":
                    raise SourceError(f"{where} is not valid JSON: {json_problem(error)}") from None
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
    """A copy in which every key is a string. Raises `SourceError` for a value that is not JSON or has no end.

    YAML's anchors may hold themselves, or repeat each other until a small file has more values than memory.
    """
    values = 0

    def copied(one: Any, depth: int) -> Any:
        nonlocal values
        values += 1
        if values > _MOST_VALUES:
            raise SourceError(f"{where} holds more than {_MOST_VALUES} values; perhaps a YAML anchor repeats itself")
        if depth > _MOST_DEPTH:
            raise SourceError(f"{where} holds more than {_MOST_DEPTH} levels; perhaps a YAML anchor repeats itself")
        if isinstance(one, Mapping):
            return {_key(key, where): copied(inner, depth + 1) for key, inner in one.items()}
        if isinstance(one, list | tuple):
            return [copied(inner, depth + 1) for inner in one]
        if isinstance(one, str):
            return one if one.isascii() else whole_characters(one)
        if one is None or isinstance(one, int | float | bool):
            return one
        raise SourceError(f"{where} holds {kind_of(one)}, which has no JSON form: {one!r:.80}")

    return copied(value, 0)


def _key(key: Any, where: str) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    # Status codes are often written without quotes.
    if isinstance(key, str | int):
        return whole_characters(str(key))
    raise SourceError(f"{where} has the key {key!r}; keys must be strings")


class _Loader(UniqueKeys, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Safe YAML with the plain values of version 1.2: `no`, `12:30` and `2026-01-01` are strings."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - the base class wants a class attribute


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    ("float", r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?", "-+0123456789."),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("merge", r"<<", "<"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), list(_first))


_IN_MEMORY = "memory:document"
_MOST_STEPS = 100
_NOWHERE = (PointerToNowhere, ValueError, TypeError)
"""The last two: a name for a place in a list, and a step into a value that has none."""


class NotFollowed(SourceError):
    """A reference to another file or URL that is not read: the user has to say more, or to bring it."""


@dataclass(frozen=True)
class Place:
    """Where something stands: the document's URI and the JSON pointer in it."""

    document: str
    pointer: str = ""

    def __truediv__(self, step: str | int) -> Place:
        escaped = str(step).replace("~", "~0").replace("/", "~1")
        return Place(self.document, f"{self.pointer}/{escaped}")

    def __str__(self) -> str:
        """For error messages: `openapi.yaml#/paths/~1orders/get`."""
        if self.document == _IN_MEMORY:
            return f"#{self.pointer}" if self.pointer else "the document"
        parts = urlsplit(self.document)
        name = Path(unquote(parts.path)).name if parts.scheme == "file" else public_url(self.document)
        return f"{name}#{self.pointer}" if self.pointer else name

    def is_in(self, other: Place) -> bool:
        """Whether it is that place, or below."""
        return self.document == other.document and f"{self.pointer}/".startswith(f"{other.pointer}/")

    @property
    def steps(self) -> list[str]:
        return [step.replace("~1", "/").replace("~0", "~") for step in self.pointer.split("/")[1:]]


class References:
    """The documents that one API is written in.

    `root`: the first document's value. `address`: its file or URL, `None` where it came as a value.
    Files are read only from the folder of the first one and below; URLs only with `follow_urls`, by `fetch`.
    """

    def __init__(
        self,
        root: Any,
        address: Path | str | None,
        *,
        follow_urls: bool,
        fetch: Callable[[str], Any],
    ) -> None:
        self._fetch = fetch
        self._folder = address.resolve().parent if isinstance(address, Path) else None
        self._follow_urls = follow_urls
        if isinstance(address, Path):
            uri = address.resolve().as_uri()
        else:
            uri = urldefrag(address).url if address else _IN_MEMORY
        self.root = Place(uri)
        self._read = functools.cache(self._load)
        self._take(root, self._read)

    def _take(self, root: Any, read: Callable[[str], Any]) -> None:
        self._ids = self._with_ids(root)
        registry: Registry[Any] = Registry(retrieve=functools.cache(lambda uri: Resource.opaque(read(uri))))  # type: ignore[call-arg]
        self._registry = registry.with_resource(self.root.document, Resource.opaque(root))

    def converted(self, root: Any, convert: Callable[[Any], Any]) -> References:
        """The same documents in another form: `root`, and what `convert` makes of the others. None is read twice."""
        made = copy.copy(self)
        made._take(root, lambda uri: convert(self._read(uri)))
        return made

    def _with_ids(self, root: Any) -> dict[str, Place]:
        """The named schemas that have an `$id`, by what it says."""
        node, place = root, self.root
        for step in ("components", "schemas"):
            node, place = node.get(step) if isinstance(node, Mapping) else None, place / step
        named = node.items() if isinstance(node, Mapping) else ()
        ids = {name: one.get("$id") for name, one in named if isinstance(one, Mapping)}
        return {one.rstrip("#"): place / name for name, one in ids.items() if isinstance(one, str)}

    def follow(self, node: Any, place: Place) -> tuple[Any, Place]:
        """`node` and where it stands, or what its `$ref` leads to in the end. Raises `SourceError`."""
        for _ in range(_MOST_STEPS):
            if not isinstance(node, Mapping) or not isinstance(node.get("$ref"), str):
                return node, place
            node, place = self.target(node["$ref"], place)
        raise SourceError(f"{place}: its $ref leads back to itself")

    def target(self, reference: str, place: Place) -> tuple[Any, Place]:
        """What `reference`, written at `place`, leads to, one step. Raises `SourceError`."""
        where = self.locate(reference, place)
        try:
            return self._registry.resolver().lookup(f"{where.document}#{where.pointer}").contents, where
        except _NOWHERE:
            raise SourceError(f"{place}: $ref {reference!r} leads nowhere; there is nothing at {where}") from None
        except Unresolvable as error:
            cause = error.__cause__
            while cause is not None and not isinstance(cause, SourceError):
                cause = cause.__cause__
            raise NotFollowed(f"{place}: $ref {reference!r} cannot be followed: {cause or error}") from None

    def locate(self, reference: str, place: Place) -> Place:
        """The place that `reference` names, whether or not something is there."""
        relative, fragment = urldefrag(reference)
        name, around = next((one for one in self._ids.items() if place.is_in(one[1])), ("", Place(place.document)))
        base = self._ids.get(relative, self._ids.get(urljoin(name, relative))) if relative else around
        if base is None and place.document == _IN_MEMORY and not urlsplit(relative).scheme:
            raise NotFollowed(
                f"{place}: $ref {reference!r} names a file, but the document was given as a value; give its path"
            )
        base = base or Place(urldefrag(urljoin(place.document, relative)).url)
        pointer = unquote(fragment)
        if pointer and not pointer.startswith("/"):
            return self._anchor(pointer, Place(base.document), place)
        inside = Place(base.document, base.pointer + pointer)
        # By the letter, an `$id` is a root of its own; many count from the document there, too.
        return inside if relative or not base.pointer or self._has(inside) else Place(base.document, pointer)

    def _has(self, place: Place) -> bool:
        try:
            self._registry.resolver().lookup(f"{place.document}#{place.pointer}")
        except (Unresolvable, *_NOWHERE):
            return False
        return True

    def _anchor(self, name: str, document: Place, place: Place) -> Place:
        root, _ = self.target(document.document, place)
        for one, where in _walk(root, document):
            if isinstance(one, Mapping) and name in (one.get("$anchor"), one.get("$dynamicAnchor")):
                return where
        raise SourceError(f"{place}: $ref '#{name}' leads nowhere; no schema in {document} has this $anchor")

    def _load(self, uri: str) -> Any:
        parts = urlsplit(uri)
        if parts.scheme == "file":
            path = Path(url2pathname(parts.path)).resolve()
            if self._folder is None or parts.netloc not in {"", "localhost"} or not path.is_relative_to(self._folder):
                raise SourceError(
                    f"{str(path)!r} is outside the folder of the document"
                    + (f" ({str(self._folder)!r}); move it there" if self._folder else "")
                )
            return load_file(path)
        if parts.scheme in {"http", "https"}:
            if not self._follow_urls:
                raise SourceError(
                    f"{public_url(uri)} is a URL, and URLs inside documents are not fetched without being asked to: "
                    "read_document(..., follow_urls=True), or save it beside the document"
                )
            return self._fetch(uri)
        raise SourceError(f"{uri!r} is neither a file nor an http URL")


def _walk(node: Any, place: Place) -> Iterator[tuple[Any, Place]]:
    yield node, place
    if isinstance(node, Mapping):
        for key, inner in node.items():
            yield from _walk(inner, place / key)
    elif isinstance(node, list):
        for number, inner in enumerate(node):
            yield from _walk(inner, place / number)
