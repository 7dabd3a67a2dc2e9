"""What a run is: its configuration without secrets, a fingerprint of it, and the versions it ran on."""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import PurePath
from typing import Any

from mcp_bridge.access import redaction

from ..errors import RunFolderError

PACKAGES = ("toolbake", "torch", "transformers", "trl", "peft", "accelerate", "mcp", "renderers", "vllm")

# Tokens of a vocabulary and counts per token are no secrets, nor is a key without another word.
_NOT_SECRET = re.compile(
    r"^key$|\b(eos|bos|pad|unk|sep|cls|mask|stop|special|end|start|image|think|tool|next|per) token$"
)

_URL_SECRETS = re.compile(r"(?<=://)[^/\s@]+(?=@)")
_BEARER = re.compile(r"(?<=\b[Bb]earer )\S+")
_ASSIGNMENT = re.compile(r"(?P<name>[\w-]+)(?P<sign>=)(?P<value>[^\s&]+)")


def installed_versions() -> dict[str, str]:
    """Versions of Python and of the packages a result depends on; none of them is imported."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def is_secret_name(name: str) -> bool:
    """Whether a value under this name is kept out of files: `api_key`, `HF_TOKEN`, `headers`; not `max_tokens`.

    The bridge's rule, and `env`, whose values are secrets as often as not; less the tokens of a vocabulary.
    """
    words = re.sub(r"[^A-Za-z0-9]+", " ", name).lower().strip()
    return words.rpartition(" ")[2] == "env" or (redaction.is_secret_name(name) and not _NOT_SECRET.search(words))


def without_secrets(value: Any) -> Any:
    """The same data with `***` in place of secrets.

    Hidden are values under secret names, passwords in URLs (`https://user:pass@host`), secret parameters
    (`?api_key=...`, `--token=...`) and what follows a flag like `--api-key` in a list.
    """
    if isinstance(value, Mapping):
        return {key: _hidden_by_name(str(key), item) for key, item in value.items()}
    if isinstance(value, str):
        return _hide_in_text(value)
    if isinstance(value, list | tuple):
        hidden: list[Any] = []
        after_secret_flag = False
        for item in value:
            hidden.append(redaction.HIDDEN if after_secret_flag else without_secrets(item))
            is_flag = isinstance(item, str) and item.startswith("-") and "=" not in item
            after_secret_flag = is_flag and is_secret_name(item)
        return hidden
    return value


def _hidden_by_name(name: str, value: Any) -> Any:
    return redaction.HIDDEN if value is not None and is_secret_name(name) else without_secrets(value)


def _hide_in_text(text: str) -> str:
    text = _BEARER.sub(redaction.HIDDEN, _URL_SECRETS.sub(redaction.HIDDEN, text))
    return _ASSIGNMENT.sub(
        lambda m: f"{m['name']}{m['sign']}{redaction.HIDDEN}" if is_secret_name(m["name"]) else m[0],
        text,
    )


def plain_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration as it is stored: JSON, secrets hidden.

    Raises `RunFolderError` for a value that has no stable text, such as a function: two runs could not be
    told apart by it.
    """
    try:
        text = json.dumps(without_secrets(config), allow_nan=False, default=_stable)
    except (TypeError, ValueError) as error:
        raise RunFolderError(
            f"the run's config cannot be stored: {error}; use numbers, strings, lists and dicts"
        ) from error
    stored: dict[str, Any] = json.loads(text)
    return stored


def _stable(value: Any) -> Any:
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} {getattr(value, '__name__', '')!r} is no plain value")


def fingerprint(stored_config: Mapping[str, Any]) -> str:
    """A hash of a configuration as stored. Secrets take no part: a new key or token is still the same run."""
    text = json.dumps(_drop_hidden(stored_config), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _drop_hidden(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _drop_hidden(v) for k, v in value.items() if not is_secret_name(str(k))}
    if isinstance(value, list):
        return [_drop_hidden(item) for item in value]
    return value


def same_run(info: Mapping[str, Any], now: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> bool:
    """Whether the content `info` of a folder's `run.json` is that of the configuration `now`, as it would be stored.

    `defaults`: see `with_defaults`.
    """
    fresh: str = fingerprint(now)
    return info["fingerprint"] == fresh or fingerprint(with_defaults(info["config"], defaults or {})) == fresh


def with_defaults(stored: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """A stored configuration with the options that came later, each as `defaults` has it: an earlier version, which
    did not have the option, did what is now its default."""
    filled = dict(stored)
    for name, value in plain_config(defaults).items():
        inner = filled.setdefault(name, value)
        if isinstance(inner, Mapping) and isinstance(value, Mapping):
            filled[name] = with_defaults(inner, value)
    return filled


def seeds_of(stored_config: Mapping[str, Any]) -> dict[str, Any]:
    """Every seed in the configuration, by its dotted name."""
    return {name: v for name, v in _flat(stored_config).items() if re.search(r"(^|[._])seed$", name)}


def differences(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs, for people: `lr is 1e-05 in the folder and 2e-05 now`."""
    then, new = _flat(_drop_hidden(stored)), _flat(_drop_hidden(now))
    lines = []
    for name in sorted(then.keys() | new.keys()):
        old = _short(then[name]) if name in then else "absent"
        fresh = _short(new[name]) if name in new else "absent"
        if name not in then or name not in new or then[name] != new[name]:
            lines.append(f"{name} is {old} in the folder and {fresh} now")
    return lines


def _flat(value: Any, at: str = "") -> dict[str, Any]:
    if isinstance(value, Mapping) and value:
        flat: dict[str, Any] = {}
        for key, item in value.items():
            flat |= _flat(item, f"{at}.{key}" if at else str(key))
        return flat
    return {at: value} if at else {}


def _short(value: Any, limit: int = 60) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= limit else text[: limit - 1] + "…"
