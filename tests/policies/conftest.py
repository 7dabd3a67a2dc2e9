"""What the tests of policies share: the embedded model's real tokenizer, and real local endpoints."""

from __future__ import annotations

import copy
import os
import socketserver
import threading
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import pytest
from chat_endpoints import ChatServer

from mcp_bridge.records import Tool
from sdk.policies.models.smollm2 import embedded_folder


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def smollm2_tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(embedded_folder())


@pytest.fixture
def with_template(smollm2_tokenizer: Any) -> Callable[[str | None], Any]:
    """The real tokenizer under another chat template."""

    def make(template: str | None) -> Any:
        tokenizer = copy.copy(smollm2_tokenizer)
        tokenizer.chat_template = template
        return tokenizer

    return make


@pytest.fixture(scope="session")
def order_tool() -> Tool:
    return Tool(
        name="get_order",
        description="Read an order.",
        input_schema={"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]},
    )


@pytest.fixture(scope="session")
def chat_server() -> Iterator[ChatServer]:
    with ChatServer() as server:
        yield server


@pytest.fixture
def raw_server() -> Iterator[Callable[[list[bytes]], tuple[str, list[bytes]]]]:
    """Starts a server that reads a request, writes the next bytes as they are and closes the connection."""
    running: list[tuple[socketserver.TCPServer, threading.Thread]] = []

    def start(answers: list[bytes]) -> tuple[str, list[bytes]]:
        left, seen = list(answers), []

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                length = 0
                while (line := self.rfile.readline()).strip():
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                seen.append(self.rfile.read(length))
                self.wfile.write(left.pop(0))

        server = socketserver.TCPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        running.append((server, thread))
        return f"http://127.0.0.1:{server.server_address[1]}/v1", seen

    yield start
    for server, thread in running:
        server.shutdown()
        thread.join()
        server.server_close()
