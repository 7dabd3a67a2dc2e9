"""Running the command as its users do, and a small OpenAI-like server for it to talk to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from sdk.cli.app import app


def toolbake(*words: str | Path, **environment: str) -> Result:
    """The command in this process; `result.stdout` and `result.stderr` apart."""
    return CliRunner().invoke(app, [str(word) for word in words], env=environment, prog_name="toolbake")


def start_toolbake(*words: str | Path, cwd: Path, in_background: bool = False) -> subprocess.Popen[str]:
    """The command in a process of its own, which Ctrl-C reaches wherever the tests run, but for a shell's background
    commands."""
    interrupt = signal.SIG_IGN if in_background else signal.default_int_handler
    return subprocess.Popen(
        [sys.executable, "-W", "error::ResourceWarning", "-m", "toolbake", *map(str, words)],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "120"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, interrupt) and None,
    )


@dataclass
class ChatEndpoint:
    """Calls `get_order` once and then says what came back, in every conversation."""

    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)


@contextmanager
def chat_endpoint() -> Iterator[ChatEndpoint]:
    """The endpoint, served over HTTP until the block ends."""
    state = ChatEndpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            state.requests.append(body)
            state.keys.append(self.headers.get("Authorization"))
            last = body["messages"][-1]
            if last["role"] == "tool":
                message = {"role": "assistant", "content": f"The order is {last['content']}."}
            else:
                call = {"name": "get_order", "arguments": json.dumps({"order_id": "4417"})}
                calls = [{"id": "call_1", "type": "function", "function": call}]
                message = {"role": "assistant", "content": None, "tool_calls": calls}
            finish = "tool_calls" if "tool_calls" in message else "stop"
            usage = {"prompt_tokens": 1, "completion_tokens": 5, "total_tokens": 6}
            choice = {"index": 0, "message": message, "finish_reason": finish}
            answer = json.dumps({"id": "x", "model": "large-1", "choices": [choice], "usage": usage}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
