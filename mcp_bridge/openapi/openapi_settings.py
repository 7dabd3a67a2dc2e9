"""Settings of an API in an `mcp.json`; their keys are in `docs/openapi.md`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..access.redaction import is_url
from ..access.settings import read_access
from ..errors import SourceError, kind_of
from ..sources.environment import expanded
from ..sources.server_options import ServerOptions
from ..sources.specs import OpenApiSpec

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
# These make the request what it is; one that a user sets would contradict it.
_OWN_HEADERS = {"content-length", "content-type", "cookie", "host", "transfer-encoding", "connection"}

_OF_SERVERS = {
    "isolation": "which all worlds share",
    "protocol": "which does not speak MCP",
    "resources": "which does not speak MCP",
    "prompts": "which does not speak MCP",
    "roots": "which asks for no folders",
    "warm": "which has no sessions",
    "max_sessions": "which has no sessions",
}
"""Options that an API has no use for, and why."""


def read_entry(name: str, entry: Mapping[str, Any], place: str, folder: Path, options: ServerOptions) -> OpenApiSpec:
    """An entry with `openapi`. Raises `SourceError` that names `place` and shows no value of `auth` and `headers`."""

    secrets: list[str] = []

    def filled(value: Any, where: str) -> Any:
        if isinstance(value, Mapping):
            return {key: filled(one, f"{where}.{key}") for key, one in value.items()}
        if isinstance(value, list):
            return [filled(one, where) for one in value]
        if isinstance(value, str):
            done, found = expanded({where: value}, "", place)
            secrets.extend(found)
            return done[where]
        return value

    for key in ("type", "transport"):
        if key in entry:
            raise SourceError(f"{place} has {key!r}, which does nothing beside 'openapi'; remove it")
    access = read_access({key: entry[key] for key in ("tls", "proxy") if key in entry}, place, folder)
    document = entry["openapi"]
    if isinstance(document, str):
        document = filled(document, "openapi")
    if isinstance(document, str) and document and not is_url(document):
        document = str(folder / Path(document).expanduser())
    if not document or not isinstance(document, str | Mapping):
        raise SourceError(f"{place}: openapi must be the path or the URL of a document")
    base_url = filled(entry.get("base_url"), "base_url")
    if base_url is not None and not isinstance(base_url, str):
        raise SourceError(f"{place}: base_url must be a string")
    headers = filled(_object(entry, "headers", place), "headers")
    for header, value in headers.items():
        _check_header(header, value, place)
    for key, why in _OF_SERVERS.items():
        if key in options.model_fields_set and getattr(options, key) != ServerOptions.model_fields[key].default:
            raise SourceError(f"{place}: {key} does nothing for a live API, {why}; remove it")
    idempotency_header = entry.get("idempotency_header")
    if idempotency_header is not None:
        _check_header(idempotency_header, "key", place)
    tags = entry.get("tags", [])
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise SourceError(f"{place}: tags must be a list of strings")
    words = [word for value in headers.values() for word in (value, *value.split()[1:])]
    return OpenApiSpec(
        name=name,
        document=document,
        base_url=base_url,
        headers=headers,
        auth=_with_files(filled(_object(entry, "auth", place), "auth"), folder),
        tags=tuple(tags),
        idempotency_header=idempotency_header,
        slashes_in_path=_flag(entry, "slashes_in_path", place),
        follow_urls=_flag(entry, "follow_urls", place),
        options=options,
        secrets=(*secrets, *words, *access.secrets),
        access=access,
    )


def _with_files(auth: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The values with the paths of keys against the folder."""
    done = dict(auth)
    for name, value in auth.items():
        if isinstance(value, Mapping) and isinstance(path := value.get("private_key_file"), str) and path:
            done[name] = {**value, "private_key_file": str(folder / Path(path).expanduser())}
    return done


def _object(entry: Mapping[str, Any], key: str, place: str) -> Mapping[str, Any]:
    value = entry.get(key, {})
    if not isinstance(value, Mapping):
        raise SourceError(f"{place}: {key} must be an object, not {kind_of(value)}")
    return value


def _flag(entry: Mapping[str, Any], key: str, place: str) -> bool:
    value = entry.get(key, False)
    if not isinstance(value, bool):
        raise SourceError(f"{place}: {key} must be true or false")
    return value


def _check_header(name: Any, value: Any, place: str) -> None:
    if not isinstance(name, str) or not _TOKEN.fullmatch(name) or name.lower() in _OWN_HEADERS:
        raise SourceError(f"{place}: {name!r:.80} is not a header that can be set")
    if not isinstance(value, str) or not re.fullmatch(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?", value):
        raise SourceError(f"{place}: the header {name} must be one line of plain ASCII without spaces around it")
