"""MCP over stdio by hand, for servers that start in a thirtieth of the time that the SDK takes to be imported.

For tests of processes and of bytes. What servers of the SDK do is tested with servers of the SDK.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

Call = Callable[[str, dict[str, Any], dict[str, Any]], str | None]
"""Name, arguments and `_meta` of a call to the text that answers it; None where nothing ever does."""


def tool(name: str, description: str = "", **hints: bool) -> dict[str, Any]:
    return {"name": name, "description": description, "inputSchema": {"type": "object"}, "annotations": hints}


def serve(tools: list[dict[str, Any]], call: Call) -> None:
    """Answer line by line until the input ends."""
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        result = _result(message["method"], message.get("params", {}), tools, call)
        if result is not None:
            whole = {"jsonrpc": "2.0", "id": message["id"], "result": result}
            sys.stdout.write(json.dumps(whole) + "\n")
            sys.stdout.flush()


def _result(method: str, params: dict[str, Any], tools: list[dict[str, Any]], call: Call) -> dict[str, Any] | None:
    # What every result and every list of the newest revision has; older ones do not mind it.
    complete = {"resultType": "complete"}
    lasting = {**complete, "ttlMs": 0, "cacheScope": "private"}
    server = {"name": "by-hand", "version": "1"}
    match method:
        case "server/discover":
            told = {"io.modelcontextprotocol/serverInfo": server}
            return {**lasting, "capabilities": {"tools": {}}, "supportedVersions": ["2026-07-28"], "_meta": told}
        case "initialize":
            return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": server}
        case "tools/list":
            return {**lasting, "tools": tools}
        case "tools/call":
            text = call(params["name"], params.get("arguments") or {}, params.get("_meta") or {})
            return None if text is None else {**complete, "content": [{"type": "text", "text": text}]}
    return complete
