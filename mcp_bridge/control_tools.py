"""Control tools, by which the bridge tells a server that keeps one world for each rollout about worlds.

A server that can hold many worlds offers *control tools*, marked in their MCP `_meta` with `CONTROL_META` and one of
the verbs; `docs/servers.md` has their arguments and answers. They are never listed to the model and cannot be called
by it, and are offered only under `TOOLBAKE_CONTROL=1`, so that any other MCP client sees the plain tools alone.

Every call of a plain tool carries `{WORLD_META: world, CALL_META: call_id}` in its `_meta`, and `IDEMPOTENCY_META` and
`ROLLOUT_META` beside them. `world` is the same in all of these: `<nonce>/<world_id>`, where the nonce is new for each
connection, because several clients of one server may choose the same ids.
"""

from __future__ import annotations

from typing import Literal

CONTROL_META = "toolbake/control"
"""Key in a tool's `_meta`; the value is one of the verbs."""

LIVE_META = "toolbake/live"
"""Key in the `_meta` of the tool that opens worlds; the value lists the plain tools that reach something outside of
their world. Without it there are none: the server simulates them all."""

WORLD_META = "toolbake/world"
"""Key in a call's `_meta`: which world the call belongs to."""

CALL_META = "toolbake/call"
"""Key in a call's `_meta`: the id of the call in its rollout's ledger."""

IDEMPOTENCY_META = "toolbake/idempotency_key"
"""Key in a call's `_meta`: the same in every attempt of one call, and in no other call of anyone. A server that keeps
what it answered under each key can answer a repeated call without doing it again."""

ROLLOUT_META = "toolbake/rollout"
"""Key in a call's `_meta`: the id of the rollout that the call belongs to."""

FAILURE_META = "toolbake/failure"
"""Key in the `data` of an error with which our servers answer a call: true where no tool said this, but what is behind
the server failed. Without it, the error is what the tool said."""

CONTROL_ENV = "TOOLBAKE_CONTROL"
"""Set to `1` in the environment of servers that the bridge starts over stdio."""

DEFAULT_WORLD = "default"
"""The world of `Toolset.call`. A server without control tools is not told of it: to that server it is the only one."""

OPEN_WORLD: Literal["open_world"] = "open_world"
WORLD_STATE: Literal["world_state"] = "world_state"
CLOSE_WORLD: Literal["close_world"] = "close_world"
FORK_WORLD: Literal["fork_world"] = "fork_world"

CONTROL_VERBS = (OPEN_WORLD, WORLD_STATE, CLOSE_WORLD, FORK_WORLD)
