"""A real OpenAI-compatible endpoint that solves the order tasks by rule."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """Reads the order that the user names, then tells its status."""

    def do_POST(self) -> None:
        messages = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"]
        message: dict[str, Any]
        if messages[-1]["role"] == "tool":
            message = {"role": "assistant", "content": f"It is {json.loads(messages[-1]['content'])['status']}."}
        else:
            number = re.findall(r"\d+", messages[0]["content"])[0]
            call = {"name": "get_order", "arguments": json.dumps({"order_id": number})}
            message = {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "call_1", "type": "function", "function": call}],
            }
        finish = "tool_calls" if "tool_calls" in message else "stop"
        usage = {"prompt_tokens": 1, "completion_tokens": 5, "total_tokens": 6}
        choices = [{"index": 0, "message": message, "finish_reason": finish}]
        answer = json.dumps({"id": "x", "model": "desk", "choices": choices, "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args: object) -> None:
        """Silent."""


@contextmanager
def order_desk() -> Iterator[str]:
    """Its URL, until the block ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
