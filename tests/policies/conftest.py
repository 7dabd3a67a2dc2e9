"""What the tests of policies share: the embedded model's real tokenizer, and real local endpoints."""

from __future__ import annotations

import copy
import os
import socketserver
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import pytest
from chat_endpoints import ChatServer

from mcp_bridge.records import Tool
from sdk.policies.models import LoadedModel
from sdk.policies.models.smollm2 import embedded_folder


@pytest.fixture(scope="session")
def smollm2_tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(embedded_folder())


@pytest.fixture(scope="session")
def small_model_folder(smollm2_tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers, 64 wide, with the embedded model's tokenizer and template: what engines are compared on. Made so that
    an error shows: far from uniform, with a head tied to the embedding, and with keys and values that matter (those of
    other weights move a log-probability by 0.1 and more)."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from sdk.policies.models import save_model

    eos = smollm2_tokenizer.eos_token_id
    config = LlamaConfig(
        **{"vocab_size": len(smollm2_tokenizer), "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2},
        **{"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 2048},
        **{"bos_token_id": smollm2_tokenizer.bos_token_id, "eos_token_id": eos, "pad_token_id": eos},
        **{"tie_word_embeddings": True, "initializer_range": 0.15},
    )
    torch.manual_seed(5)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(0.4 / 0.15)
        model.model.embed_tokens.weight[eos] = torch.randn(64)  # long, so that turns do end
    return save_model(model, smollm2_tokenizer, tmp_path_factory.mktemp("models") / "small")


@pytest.fixture(scope="session")
def small_model(small_model_folder: Path) -> LoadedModel:
    from sdk.policies.models import load_model

    return load_model(str(small_model_folder))


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
