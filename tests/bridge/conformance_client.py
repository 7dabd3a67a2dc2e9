"""The client that the conformance suite of MCP tries: it logs in where a server asks for it, and calls every tool.

    conformance_client.py URL

What a scenario tells its client is in MCP_CONFORMANCE_CONTEXT.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import anyio

import mcp_bridge
from sdk.cli.app import app

SCENARIO = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
CLIENT_METADATA = "https://conformance-test.local/client-metadata.json"
MOST_LOGINS = 3


def own_client() -> dict[str, str]:
    """The client that the user names, where the scenario is about one."""
    told = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    if SCENARIO == "auth/pre-registration":
        return {"client_id": told["client_id"], "client_secret": told["client_secret"]}
    return {"client_id": CLIENT_METADATA} if SCENARIO == "auth/basic-cimd" else {}


async def call_all(config: Path) -> None:
    async with mcp_bridge.connect(config) as toolset:
        for tool in toolset.tools:
            asked = tool.input_schema.get("properties", {})
            await toolset.call(tool.name, {name: sample(schema) for name, schema in asked.items()})


def sample(schema: dict[str, Any]) -> Any:
    return 1 if schema.get("type") in ("integer", "number") else "a"


def main(url: str) -> str | None:
    """Why it gives up; None where all calls were made."""
    client = own_client()
    auth = {"auth": {"type": "authorization_code", **client}} if client else {}
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "mcp.json"
        config.write_text(json.dumps({"mcpServers": {"tried": {"url": url, **auth}}}))
        for _ in range(MOST_LOGINS):
            try:
                return anyio.run(call_all, config)
            except mcp_bridge.BridgeError as error:
                if "toolbake login" not in str(error):
                    return str(error)
            if failed := app(["login", str(config), "--server", "tried"], standalone_mode=False):
                return f"login ended with {failed}"
    return f"{MOST_LOGINS} logins were not enough"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
