"""The top-level names of `mcp_bridge`, `sandboxes` and `sdk` under one: `toolbake.connect`, `toolbake.train`.

The names are those packages' own, so either import may be used. Nothing is imported until it is used.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcp_bridge import *  # noqa: F403
    from sandboxes import *  # noqa: F403
    from sdk import *  # noqa: F403


@functools.cache
def _homes() -> dict[str, Any]:
    packages = map(importlib.import_module, ("mcp_bridge", "sandboxes", "sdk"))
    return {name: package for package in packages for name in package.__all__}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(_homes())
    if name.startswith("__") or name not in _homes():
        raise AttributeError(
            f"module 'toolbake' has no attribute {name!r}; it has the top-level names of mcp_bridge, sandboxes and "
            "sdk, whose modules are imported by their own names, such as sdk.verifiers"
        )
    return getattr(_homes()[name], name)


def __dir__() -> list[str]:
    return sorted(_homes())
