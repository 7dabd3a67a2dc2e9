"""The top-level names of `mcp_bridge`, `sandboxes` and `sdk` under one: `toolbake.connect`, `toolbake.train`.

The names are those packages' own, so either import may be used. Nothing heavy is imported until it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mcp_bridge
import sandboxes
import sdk

if TYPE_CHECKING:
    from mcp_bridge import *  # noqa: F403
    from sandboxes import *  # noqa: F403
    from sdk import *  # noqa: F403

_HOMES = {name: package for package in (mcp_bridge, sandboxes, sdk) for name in package.__all__}

__all__ = sorted(_HOMES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(
            f"module 'toolbake' has no attribute {name!r}; it has the top-level names of mcp_bridge, sandboxes and "
            "sdk, whose modules are imported by their own names, such as sdk.verifiers"
        )
    return getattr(_HOMES[name], name)


def __dir__() -> list[str]:
    return __all__
