"""Variables in the values of an `mcp.json`.

`${NAME}`, `${env:NAME}` and `${NAME:-default}` are read from the environment. A default may hold `${NAME}` itself.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..access.redaction import is_secret_name
from ..errors import SourceError, kind_of
from ..extras import require_extra

WORLD_DIR = "${TOOLBAKE_WORLD_DIR}"
"""In the command, arguments, environment or working folder of a server: the folder of each world's own."""
WORLD_DIR_PREFIX = "toolbake-world-"
"""How the names of these folders begin."""

_BUILT_IN = {"TOOLBAKE_PYTHON": sys.executable}
_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-((?:\$\{(?:\$\{[^}]*\}|[^}])*\}|[^}])*))?\}")
_PROMPT = re.compile(r"\$\{input:([^}]*)\}")
"""What an editor asks its user for."""


def expanded(text: str, field: str, place: str, secrets: list[str], *, has_worlds: bool = False) -> str:
    """The text with `${NAME}` replaced. What came from the environment, which is never shown, is added to `secrets`.

    `has_worlds`: `${TOOLBAKE_WORLD_DIR}` is left for each world to replace.
    """

    def replace(match: re.Match[str]) -> str:
        variable, default = match.group(1), match.group(2)
        if f"${{{variable}}}" == WORLD_DIR:
            if has_worlds:
                return WORLD_DIR
            raise SourceError(f"{place}: {field} uses {WORLD_DIR}, which only a server with a command has")
        value = os.environ.get(variable, _BUILT_IN.get(variable))
        if value is None and default is not None:
            return expanded(default, field, place, secrets, has_worlds=has_worlds)
        if value is None:
            raise SourceError(
                f"{place}: {field} uses ${{{variable}}}, but the environment variable {variable} is not set. "
                f"Set it, or give a default: ${{{variable}:-text}}"
            )
        if variable in os.environ:
            secrets.append(value)
        return value

    if (asked := _PROMPT.search(text)) is not None:
        raise SourceError(
            f"{place}: {field} uses {asked[0]}, for which an editor asks its user; write ${{env:NAME}}, and set that "
            "environment variable"
        )
    return _VARIABLE.sub(replace, text)


def read_env_file(value: Any, place: str, folder: Path) -> dict[str, str]:
    """The variables of `envFile`, a file of lines `NAME=value`. Raises `SourceError`, which shows no value."""
    if not isinstance(value, str) or not value:
        raise SourceError(f"{place}: envFile is {kind_of(value)}; it must be the path of a file")
    require_extra("desktop", f"{place}: envFile", SourceError)
    from dotenv import dotenv_values

    path = folder / Path(expanded(value, "envFile", place, [])).expanduser()
    try:
        with path.open(encoding="utf-8-sig") as file:
            found = dotenv_values(stream=file, interpolate=False)
    except (OSError, UnicodeDecodeError) as error:
        told = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise SourceError(f"{place}: envFile {str(path)!r} cannot be read: {told}") from None
    return {name: text for name, text in found.items() if text is not None}


def secret_variables(texts: Iterable[str]) -> tuple[str, ...]:
    """The values of the environment variables in the texts whose names are those of secrets."""
    found = [match for text in texts for match in _VARIABLE.finditer(text)]
    names = dict.fromkeys(match[1] for match in found)
    own = (os.environ[name] for name in names if name in os.environ and is_secret_name(name))
    inner = [match[2] for match in found if match[2]]
    return (*own, *(secret_variables(inner) if inner else ()))
