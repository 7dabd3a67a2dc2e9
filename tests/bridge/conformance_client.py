"""The client that the conformance suite of MCP tries. It logs in where a server asks for it, accepts the defaults of
what it is asked, and makes the calls that the scenario names, or one of every tool.

    conformance_client.py SOCKET

Imports what a client needs, and forks one for each `forked_client.py` that asks for it: the imports of 39 clients take
most of a minute. What a scenario tells its client is in its environment. The last line that a client prints is how it
exits.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import anyio

import mcp_bridge
import mcp_bridge.sessions.browser_redirect
import mcp_bridge.sessions.connections
import mcp_bridge.sessions.transports
from sdk.cli.app import app

CLIENT_METADATA = "https://conformance-test.local/client-metadata.json"
MOST_LOGINS = 3


NO_TOOLS = ("offers no tools that can be used", "no tool is left")
"""How a connection ends whose scenario is over with it: its server has no tools, or one that nobody should use."""


def told_by_scenario() -> dict[str, Any]:
    told: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    return told


def own_client() -> dict[str, str]:
    """The client that the user names, where the scenario is about one."""
    told = told_by_scenario()
    scenario = os.environ.get("MCP_CONFORMANCE_SCENARIO")
    if scenario == "auth/pre-registration":
        return {"client_id": told["client_id"], "client_secret": told["client_secret"]}
    return {"client_id": CLIENT_METADATA} if scenario == "auth/basic-cimd" else {}


async def call_all(config: Path) -> None:
    async with mcp_bridge.connect(config, handlers=mcp_bridge.Handlers(elicitation=defaults)) as toolset:
        for call in told_by_scenario().get("toolCalls", ()):
            await toolset.call(call["name"], call["arguments"])
        for tool in toolset.tools if "toolCalls" not in told_by_scenario() else ():
            asked = tool.input_schema.get("properties", {})
            await toolset.call(tool.name, {name: sample(schema) for name, schema in asked.items()})


def defaults(asked: mcp_bridge.Elicitation) -> dict[str, Any]:
    fields = (asked.schema or {}).get("properties", {})
    return {name: schema.get("default", sample(schema)) for name, schema in fields.items()}


def sample(schema: dict[str, Any]) -> Any:
    if schema.get("type") == "boolean":
        return True
    return 1 if schema.get("type") in ("integer", "number") else "a"


def main(url: str) -> str | None:
    """Why it gives up; None where all calls were made."""
    client = own_client()
    auth = {"auth": {"type": "authorization_code", **client}} if client else {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CONFIG_HOME"] = folder  # the suite runs many clients at once: each has logins of its own
        config = Path(folder) / "mcp.json"
        config.write_text(json.dumps({"mcpServers": {"tried": {"url": url, **auth}}}))
        for _ in range(MOST_LOGINS):
            try:
                return anyio.run(call_all, config)
            except mcp_bridge.BridgeError as error:
                if any(words in str(error) for words in NO_TOOLS):
                    return None
                if "toolbake login" not in str(error):
                    return str(error)
            if failed := app(["login", str(config), "--server", "tried"], standalone_mode=False):
                return f"login ended with {failed}"
    return f"{MOST_LOGINS} logins were not enough"


def run_forked(asked: socket.socket) -> None:
    """In the place of the process that asked: with its folder, environment and outputs. Tells it how it exits."""
    message, outputs, _, _ = socket.recv_fds(asked, 2**20, 2)
    folder, environment, url = json.loads(message)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, output in enumerate(outputs, start=1):
        os.dup2(output, number)
    error: str | None = "it crashed"
    try:
        error = main(url)
    except Exception:
        traceback.print_exc()
    if error is not None:
        print(error, file=sys.stderr)
    status = int(error is not None)
    print(f"exits with {status}", flush=True)
    asked.send(str(status).encode())


def fork_clients(place: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(place)
        listener.listen()
        print("listens", flush=True)
        while True:
            asked, _ = listener.accept()
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                try:
                    run_forked(asked)
                finally:
                    os._exit(0)
            asked.close()


if __name__ == "__main__":
    fork_clients(sys.argv[1])
