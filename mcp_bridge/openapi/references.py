"""Follows `$ref`: inside a document, to files beside it, and to URLs only where that was asked for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit
from urllib.request import url2pathname

from referencing import Registry, Resource
from referencing.exceptions import PointerToNowhere, Unresolvable

from ..access.redaction import public_url
from ..errors import SourceError
from .loading import load_file, load_url

_IN_MEMORY = "memory:document"
_MOST_STEPS = 100


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
        follow_urls: bool = False,
        fetch: Callable[[str], Any] = load_url,
    ) -> None:
        self._fetch = fetch
        self._folder = address.resolve().parent if isinstance(address, Path) else None
        self._follow_urls = follow_urls
        if isinstance(address, Path):
            uri = address.resolve().as_uri()
        else:
            uri = urldefrag(address).url if address else _IN_MEMORY
        self.root = Place(uri)
        registry: Registry[Any] = Registry(retrieve=functools.cache(self._resource))  # type: ignore[call-arg]
        self._registry = registry.with_resource(uri, Resource.opaque(root))

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
        except PointerToNowhere:
            raise SourceError(f"{place}: $ref {reference!r} leads nowhere; there is nothing at {where}") from None
        except Unresolvable as error:
            cause = error.__cause__
            while cause is not None and not isinstance(cause, SourceError):
                cause = cause.__cause__
            raise NotFollowed(f"{place}: $ref {reference!r} cannot be followed: {cause or error}") from None

    def locate(self, reference: str, place: Place) -> Place:
        """The place that `reference` names, whether or not something is there."""
        relative, fragment = urldefrag(reference)
        if relative and place.document == _IN_MEMORY and not urlsplit(relative).scheme:
            raise NotFollowed(
                f"{place}: $ref {reference!r} names a file, but the document was given as a value; give its path"
            )
        document = urldefrag(urljoin(place.document, relative)).url if relative else place.document
        pointer = unquote(fragment)
        if pointer and not pointer.startswith("/"):
            return self._anchor(pointer, Place(document), place)
        return Place(document, pointer)

    def _anchor(self, name: str, document: Place, place: Place) -> Place:
        root, _ = self.target(document.document, place)
        for one, where in _walk(root, document):
            if isinstance(one, Mapping) and name in (one.get("$anchor"), one.get("$dynamicAnchor")):
                return where
        raise SourceError(f"{place}: $ref '#{name}' leads nowhere; no schema in {document} has this $anchor")

    def _resource(self, uri: str) -> Resource[Any]:
        return Resource.opaque(self._load(uri))

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
