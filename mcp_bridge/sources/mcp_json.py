"""Reads the `mcpServers` format that desktop MCP clients use; what may stand in it is in `docs/tools.md`.

`"type": "sse"` is for a server of HTTP's old transport; without a type, a URL that takes no POST is asked in that way
too. An entry with `openapi` is an API; its keys are in `docs/openapi.md`. The keys of other clients are taken as well.
`~` and a relative `cwd` are resolved against the folder of the file; without `cwd` the server starts in the current
folder.
"""

from __future__ import annotations

import difflib
import json
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..access.redaction import is_url, shown_text, shown_value, split_url, url_secrets
from ..access.settings import read_access
from ..errors import SourceError, kind_of
from ..safe_text import json_problem, strict_json
from .environment import WORLD_DIR, expanded, read_env_file, secret_variables
from .specs import HttpSpec, OpenApiSpec, ServerOptions, ServerSpec, StdioSpec, UrlTransport, read_options

logger = logging.getLogger(__name__)

_STDIO_KEYS = {"command", "args", "env", "envFile", "cwd"}
_HTTP_KEYS = {"url", "headers", "auth", "tls", "proxy"}
_OPENAPI_KEYS = {
    "openapi", "base_url", "headers", "auth", "tags", "idempotency_header", "slashes_in_path", "follow_urls", "tls",
    "proxy",
}  # fmt: skip
_COMMON_KEYS = {"type", "transport", "toolbake", "disabled"}
# Keys of desktop clients that concern their own windows and prompts, not how a server is reached.
_FOREIGN_KEYS = {"alwaysAllow", "autoApprove", "description", "icon", "name", "timeout", "trust"}
# Keys of theirs that do something there, and what does it here.
_ELSEWHERE = {
    "tools": '"toolbake": {"allow": [...]} chooses tools',
    "includeTools": '"toolbake": {"allow": [...]} chooses tools',
    "enabledTools": '"toolbake": {"allow": [...]} chooses tools',
    "excludeTools": '"toolbake": {"deny": [...]} leaves tools out',
    "disabledTools": '"toolbake": {"deny": [...]} leaves tools out',
    "oauth": "`toolbake login` logs in, as a client that auth may name",
}
_TOP_KEYS = ("mcpservers", "servers")
"""In small letters, to be compared with what is near."""
_SAME_KEYS = {"serverUrl": "url", "httpUrl": "url"}
_HTTP_TYPES = {"http", "streamable-http", "streamableHttp", "streamable_http"}
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
# These make the request what it is; one that a user sets would contradict it.
_OWN_HEADERS = {"content-length", "content-type", "cookie", "host", "transfer-encoding", "connection"}

_NOT_OF_APIS = {
    "isolation": "which all worlds share",
    "protocol": "which does not speak MCP",
    "resources": "which does not speak MCP",
    "prompts": "which does not speak MCP",
    "roots": "which asks for no folders",
    "warm": "which has no sessions",
    "max_sessions": "which has no sessions",
}
"""Options that an API has no use for, and why."""


def read_file(path: Path) -> list[ServerSpec | OpenApiSpec]:
    """The servers of an `mcp.json`, or the API of an OpenAPI document in JSON.

    Raises `SourceError` with line and column where it is not JSON, and for a key that an object of an `mcp.json` has
    twice.
    """
    config = config_in(path)
    if is_document(config):
        return [OpenApiSpec("", str(path))]
    return read_config(config, where=str(path), folder=path.resolve().parent)


_STRING = r'"(?:[^"\\\n]|\\.)*"?'
"""Also one that nobody ended: to look for its end from each of its quotes would take minutes."""
_COMMENT = re.compile(rf"({_STRING})|//[^\n]*|/\*.*?\*/", re.DOTALL)
_LAST_COMMA = re.compile(rf"({_STRING}|[\[{{]\s*,)|,(?=\s*[}}\]])")


def _plain_json(text: str) -> str:
    """JSON without the comments, and the commas after a last entry, that VS Code and Gemini CLI allow. What is left
    stands where it stood, so that errors name its place."""
    for extra in (_COMMENT, _LAST_COMMA):
        text = extra.sub(lambda found: found[1] or re.sub(r"[^\n]", " ", found[0]), text)
    return text


def config_in(path: Path) -> Mapping[str, Any]:
    """The object in a JSON file. Raises `SourceError` with line and column where there is none."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise SourceError(
            f"there is no file {str(path)!r}. Give the path of an mcp.json, a URL that begins with http:// or "
            'https://, or a command as a list: ["python", "server.py"]'
        ) from None
    except IsADirectoryError:
        raise SourceError(
            f"{str(path)!r} is a folder; give a file, such as {str(path / 'mcp.json')!r}, or a command as a list: "
            '["python", "server.py"]'
        ) from None
    except UnicodeDecodeError as error:
        raise SourceError(
            f"{str(path)!r} is not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8"
        ) from None
    except OSError as error:
        raise SourceError(f"{str(path)!r} cannot be read: {error.strerror or error}") from error
    try:
        try:
            config = json.loads(text)
        except json.JSONDecodeError:
            text = _plain_json(text)
            config = json.loads(text)
        if not isinstance(config, Mapping):
            raise SourceError(f'{str(path)!r} holds {kind_of(config)}; it must be {{"mcpServers": {{...}}}}')
        if not is_document(config):
            strict_json(text, unique_keys=True)  # of two "deny" the last alone would count, and nobody be told
    except json.JSONDecodeError as error:
        raise SourceError(f"{str(path)!r} is not valid JSON: {json_problem(error)}") from error
    except RecursionError:
        raise SourceError(f"{str(path)!r} is nested too deeply to be read") from None
    except ValueError as error:
        raise SourceError(f"{str(path)!r} cannot be used: {error}") from None
    return config


def is_document(config: Mapping[str, Any]) -> bool:
    """Whether it is an OpenAPI document and no `mcp.json`."""
    return bool({"openapi", "swagger"} & set(config)) and "mcpServers" not in config


def read_config(config: Mapping[str, Any], *, where: str, folder: Path) -> list[ServerSpec | OpenApiSpec]:
    """The servers of a configuration already in memory. `folder` is where a relative `cwd` starts."""
    if "mcpServers" in config and "servers" in config:
        raise SourceError(f'{where} has both "mcpServers" and "servers"; put all servers into one of them')
    key = "servers" if "servers" in config else "mcpServers"
    servers = config.get(key)
    if not isinstance(servers, Mapping):
        near = [one for one in config if key not in config and difflib.get_close_matches(str(one).lower(), _TOP_KEYS)]
        hint = f"; rename {shown_value(near[0])}, which does nothing" if near else ""
        raise SourceError(
            f'{where} has no object "mcpServers"{hint}; it must look like '
            '{"mcpServers": {"name": {"command": "...", "args": [...]}}}'
        )
    if not servers:
        raise SourceError(f'"{key}" in {where} is empty; add at least one server')
    specs: list[StdioSpec | HttpSpec | OpenApiSpec] = []
    notes: list[str] = []
    for name, entry in servers.items():
        place = f"server {name!r} in {where}" if name else where
        if not isinstance(entry, Mapping):
            raise SourceError(
                f'{place} is {shown_value(entry)}; it must be an object with "command", "url" or "openapi"'
            )
        entry = _in_our_words(entry, place)
        notes += _notes_on(entry, place)
        if entry.get("disabled") is not True:
            read = _read_openapi if "openapi" in entry else _read_entry
            specs.append(read(str(name), entry, place, folder))
    if not specs:
        raise SourceError(f"every server in {where} is disabled; enable at least one")
    for note in notes:
        logger.warning("%s", note)
    return [replace(specs[0], notes=tuple(notes)), *specs[1:]]


def _in_our_words(entry: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    """The entry with the keys and the type that other clients call otherwise."""
    found = dict(entry)
    for theirs, ours in _SAME_KEYS.items():
        if theirs in found:
            if ours in found:
                raise SourceError(f"{place} has two addresses, {theirs!r} and another one; remove one of them")
            found[ours] = found.pop(theirs)
    if found.get("type") == "local":
        found["type"] = "stdio"
    if isinstance(enabled := found.pop("enabled", None), bool):
        found.setdefault("disabled", not enabled)
    return found


def _notes_on(entry: Mapping[str, Any], place: str) -> list[str]:
    """What does nothing here, and that a server is disabled. Raises `SourceError` for what looks like a misspelled key
    of ours."""
    notes: list[str] = []
    known = (_OPENAPI_KEYS if "openapi" in entry else _STDIO_KEYS | _HTTP_KEYS) | _COMMON_KEYS
    for key in entry:
        if key in _ELSEWHERE and entry[key] not in (["*"], []):
            notes.append(f"{place}: {key!r} does nothing here; {_ELSEWHERE[key]}")
        elif key not in known | _FOREIGN_KEYS | _ELSEWHERE.keys():
            choices = [*sorted(known), *ServerOptions.model_fields]
            near = difflib.get_close_matches(str(key), choices, n=1)
            if near and near[0] != key:  # "cmd" is nearer to "cwd", and is short for "command"
                near = [one for one in choices if _is_short_for(str(key), one)] or near
            hint = f" Did you mean {near[0]!r}?" if near else ""
            if near and near[0] in ServerOptions.model_fields:
                value = shown_text(json.dumps(entry[key], default=repr)) if key == near[0] else "..."
                hint = f' It belongs in the entry\'s object "toolbake": {{"{near[0]}": {value}}}.'
            if not hint and {"command", "url", "openapi"} & entry.keys():
                notes.append(f"{place}: {shown_value(key)} does nothing here. Known: {', '.join(sorted(known))}")
                continue
            raise SourceError(f"{place} has an unknown key {shown_value(key)}.{hint} Known: {', '.join(sorted(known))}")
    if entry.get("disabled") is True:
        return [*notes, f"{place} is left out: it is disabled"]
    if "timeout" in entry:
        # Some clients count milliseconds, some seconds; some mean the start, some a call.
        notes.append(
            f'{place}: "timeout" does nothing here. "toolbake": {{"connect_timeout_s": 60}} limits how long the server '
            "may take to start, and call_timeout_s of whoever connects how long a call may take"
        )
    return notes


def _is_short_for(short: str, name: str) -> bool:
    """Whether all letters of `short` stand in `name` in their order, the first one first."""
    letters = iter(name)
    return short[:1] == name[:1] and all(letter in letters for letter in short)


def _read_entry(name: str, entry: Mapping[str, Any], place: str, folder: Path) -> StdioSpec | HttpSpec:
    kind = entry.get("type", entry.get("transport"))
    if kind is not None and kind not in {"stdio", "sse", *_HTTP_TYPES}:
        raise SourceError(f"{place} has type {shown_value(kind)}; known are 'stdio', 'http' and 'sse'")
    if ("command" in entry) == ("url" in entry):
        found = "both" if "command" in entry else "neither"
        raise SourceError(f'{place} must have "command" (stdio) or "url" (HTTP), exactly one of them; it has {found}')
    transport = "command" if "command" in entry else "url"
    if kind is not None and (kind == "stdio") != ("command" in entry):
        raise SourceError(f"{place} has type {shown_value(kind)}, which does not fit {transport!r}; remove one of them")
    mixed = [key for key in entry if key in (_HTTP_KEYS if "command" in entry else _STDIO_KEYS)]
    if mixed:
        raise SourceError(f"{place} has {mixed[0]!r}, which does nothing beside {transport!r}; remove it")
    options = _with_places(read_options(entry.get("toolbake", {}), place), folder)
    if "url" in entry:
        _refuse_folder(options, place)
    read = _stdio if "command" in entry else _http
    return read(name, entry, place, folder, options)


def _with_places(options: ServerOptions, folder: Path) -> ServerOptions:
    """The options with paths that no longer depend on where they were written."""
    update: dict[str, Any] = {}
    if options.roots is not None:
        update["roots"] = tuple(one if "://" in one else str(folder / Path(one).expanduser()) for one in options.roots)
    if options.world is not None and options.world.folder is not None:
        seed = str(folder / Path(options.world.folder).expanduser())
        update["world"] = options.world.model_copy(update={"folder": seed})
    return options.model_copy(update=update)


def _refuse_folder(options: ServerOptions, place: str) -> None:
    if options.world is not None and options.world.folder is not None:
        raise SourceError(
            f'{place}: world.folder does nothing here; it is for a "command" that uses {WORLD_DIR} in its command, '
            "args, env or cwd"
        )


def _stdio(name: str, entry: Mapping[str, Any], place: str, folder: Path, options: ServerOptions) -> StdioSpec:
    command = entry["command"]
    if not isinstance(command, str) or not command:
        raise SourceError(f"{place}: command is {shown_value(command)}; it must be the name or path of a program")
    args, given = entry.get("args", []), _strings(entry, "env", place)
    if not isinstance(args, list) or not all(isinstance(arg, str) for arg in args):
        raise SourceError(f"{place}: args is {shown_value(args)}; it must be a list of strings")
    secrets: list[str] = []
    fill = partial(expanded, place=place, secrets=secrets, has_worlds=True)
    program = os.path.expanduser(fill(command, "command"))
    words = tuple(fill(arg, f"args.{number}") for number, arg in enumerate(args))
    env = {key: fill(value, f"env.{key}") for key, value in given.items()}
    if "envFile" in entry:
        env = {**read_env_file(entry["envFile"], place, folder), **env}
    cwd = entry.get("cwd")
    if cwd is not None:
        if not isinstance(cwd, str):
            raise SourceError(f"{place}: cwd is {shown_value(cwd)}; it must be the path of a folder")
        cwd = cwd if cwd.startswith(WORLD_DIR) else str(folder / Path(cwd).expanduser())
    spec = StdioSpec(
        name,
        program,
        words,
        env=env,
        cwd=cwd,
        options=options,
        secrets=tuple(secrets),
        credentials=secret_variables([command, *args, *given.values()]),
    )
    seed = spec.seed_folder
    if seed is not None and not spec.has_world_dir:
        _refuse_folder(options, place)
    if seed is not None and options.isolation == "shared":
        raise SourceError(
            f'{place}: isolation "shared" gives all worlds one process, so one folder; remove it, or world.folder'
        )
    if seed is not None and not os.path.isdir(seed):
        raise SourceError(f"{place}: world.folder {seed!r} is not a folder; give one that is copied for each world")
    return spec


def _http(name: str, entry: Mapping[str, Any], place: str, folder: Path, options: ServerOptions) -> HttpSpec:
    secrets: list[str] = []
    given = _strings(entry, "headers", place)
    headers = {key: expanded(value, f"headers.{key}", place, secrets) for key, value in given.items()}
    if not isinstance(entry["url"], str):
        raise SourceError(f"{place}: url is {shown_value(entry['url'])}; it must be a string")
    url = expanded(entry["url"], "url", place, secrets)
    check_url(url, place)
    if options.isolation == "process":
        raise SourceError(
            f'{place}: isolation "process" needs a "command"; a server behind a URL is started by someone else. '
            'Use "session" or "shared"'
        )
    # Every header counts as a secret, also one written down literally, and the token in "Bearer token".
    tokens = [word for value in headers.values() for word in value.split()[1:]]
    access = read_access(entry, place, folder)
    if access.login is not None and any(header.lower() == "authorization" for header in headers):
        raise SourceError(f"{place} has both auth and a header Authorization; remove one of them")
    secrets += [*url_secrets(url), *headers.values(), *tokens, *access.secrets]
    kind = entry.get("type", entry.get("transport"))
    transport: UrlTransport | None = None if kind is None else "sse" if kind == "sse" else "streamable"
    return HttpSpec(
        name,
        url,
        headers=headers,
        transport=transport,
        options=options,
        secrets=tuple(secrets),
        access=access,
        credentials=secret_variables([entry["url"], *given.values()]),
    )


def _read_openapi(name: str, entry: Mapping[str, Any], place: str, folder: Path) -> OpenApiSpec:
    """An entry with `openapi`. Errors show no value of `auth` and `headers`."""
    options = read_options(entry.get("toolbake", {}), place)
    if options.world is not None:
        raise SourceError(
            f"{place}: world does nothing here: an API has no worlds. Put a twin before it, sandboxes.api.ApiTwin"
        )
    secrets: list[str] = []

    def filled(value: Any, where: str) -> Any:
        if isinstance(value, Mapping):
            return {key: filled(one, f"{where}.{key}") for key, one in value.items()}
        if isinstance(value, list):
            return [filled(one, where) for one in value]
        return expanded(value, where, place, secrets) if isinstance(value, str) else value

    for key in ("type", "transport"):
        if key in entry:
            raise SourceError(f"{place} has {key!r}, which does nothing beside 'openapi'; remove it")
    access = read_access({key: entry[key] for key in ("tls", "proxy") if key in entry}, place, folder)
    document = entry["openapi"]
    if isinstance(document, str):
        document = expanded(document, "openapi", place, secrets)
    if isinstance(document, str) and document and not is_url(document):
        document = str(folder / Path(document).expanduser())
    if not document or not isinstance(document, str | Mapping):
        raise SourceError(f"{place}: openapi must be the path or the URL of a document")
    base_url = filled(entry.get("base_url"), "base_url")
    if base_url is not None and not isinstance(base_url, str):
        raise SourceError(f"{place}: base_url must be a string")
    headers = filled(_strings(entry, "headers", place), "headers")
    for header, value in headers.items():
        _check_header(header, value, place)
    for key, why in _NOT_OF_APIS.items():
        if key in options.model_fields_set and getattr(options, key) != ServerOptions.model_fields[key].default:
            raise SourceError(f"{place}: {key} does nothing for a live API, {why}; remove it")
    idempotency_header = entry.get("idempotency_header")
    if idempotency_header is not None:
        _check_header(idempotency_header, "key", place)
    auth = filled(entry.get("auth", {}), "auth")
    if not isinstance(auth, Mapping):
        raise SourceError(f"{place}: auth must be an object, not {kind_of(auth)}")
    tags = entry.get("tags", [])
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise SourceError(f"{place}: tags must be a list of strings")
    words = [word for value in headers.values() for word in (value, *value.split()[1:])]
    return OpenApiSpec(
        name=name,
        document=document,
        base_url=base_url,
        headers=headers,
        auth=_with_files(auth, folder),
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


def _flag(entry: Mapping[str, Any], key: str, place: str) -> bool:
    value = entry.get(key, False)
    if not isinstance(value, bool):
        raise SourceError(f"{place}: {key} must be true or false")
    return value


def _check_header(name: Any, value: Any, place: str) -> None:
    if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name) or name.lower() in _OWN_HEADERS:
        raise SourceError(f"{place}: {name!r:.80} is not a header that can be set")
    if not isinstance(value, str) or not re.fullmatch(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?", value):
        raise SourceError(f"{place}: the header {name} must be one line of plain ASCII without spaces around it")


def check_url(url: str, place: str) -> None:
    """Raises `SourceError` unless `url` begins with http:// or https:// and names a host."""
    if not re.match(r"https?://[^/?#]+", url, flags=re.IGNORECASE):
        raise SourceError(f"{place}: the URL must begin with http:// or https:// and name a host")
    try:
        split_url(url)
    except ValueError as error:
        raise SourceError(f"{place}: {error}") from None


def _strings(entry: Mapping[str, Any], key: str, place: str) -> dict[str, str]:
    value = entry.get(key, {})
    if not isinstance(value, Mapping):
        raise SourceError(f"{place}: {key} must be an object of strings, not {kind_of(value)}")
    for name, one in value.items():
        if not isinstance(one, str):
            # The value is not shown: it may be a secret.
            raise SourceError(f"{place}: {key}.{name} is {kind_of(one)}; write it as a string")
    return dict(value)
