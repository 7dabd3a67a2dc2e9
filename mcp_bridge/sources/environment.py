"""Variables in the values of an `mcp.json`: `${NAME}` and `${NAME:-default}` are read from the environment."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping

from ..access.redaction import is_secret_name
from ..errors import SourceError

WORLD_DIR = "${TOOLBAKE_WORLD_DIR}"
"""In the command, arguments, environment or working folder of a server: the folder of each world's own."""
WORLD_DIR_PREFIX = "toolbake-world-"
"""How the names of these folders begin."""

_BUILT_IN = {"TOOLBAKE_PYTHON": sys.executable}
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


def expanded(
    values: Mapping[str, str], key: str, place: str, *, has_worlds: bool = False
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The values with `${NAME}` replaced, and what came from the environment (which is never shown).

    `has_worlds`: `${TOOLBAKE_WORLD_DIR}` is left for each world to replace.
    """
    secrets: list[str] = []

    def replace(match: re.Match[str], field: str) -> str:
        variable, default = match.group(1), match.group(2)
        if f"${{{variable}}}" == WORLD_DIR:
            if has_worlds:
                return WORLD_DIR
            raise SourceError(f"{place}: {field} uses {WORLD_DIR}, which only a server with a command has")
        value = os.environ.get(variable, _BUILT_IN.get(variable, default))
        if value is None:
            raise SourceError(
                f"{place}: {field} uses ${{{variable}}}, but the environment variable {variable} is not set. "
                f"Set it, or give a default: ${{{variable}:-text}}"
            )
        if variable in os.environ:
            secrets.append(value)
        return value

    done = {}
    for name, value in values.items():
        field = f"{key}.{name}" if key else name
        done[name] = _VARIABLE.sub(lambda match, field=field: replace(match, field), value)  # type: ignore[misc]
    return done, tuple(secrets)


def secret_variables(texts: Iterable[str]) -> tuple[str, ...]:
    """The values of the environment variables in the texts whose names are those of secrets."""
    names = dict.fromkeys(match.group(1) for text in texts for match in _VARIABLE.finditer(text))
    return tuple(os.environ[name] for name in names if name in os.environ and is_secret_name(name))
