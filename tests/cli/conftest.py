"""A folder to work in with tools, tasks and a verifier as users write them, and a model that takes no time."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import pytest
from command_line import chat_endpoint

CHECKS = """
def verify(rollout):
    return "shipped" in rollout.answer

def make_verifier():
    return verify

threshold = 0.5
"""

DESK = '''
ORDERS = {"4417": "shipped", "4418": "cancelled"}

def get_order(order_id: str) -> str:
    """Read an order."""
    return ORDERS[order_id]

def cancel_order(order_id: str, reason: str = "none") -> str:
    """Cancel an order."""
    return "cancelled"

tools = [get_order, cancel_order]
'''


@pytest.fixture(autouse=True)
def _own_process_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a command sets for its process does not leak into other tests."""
    for name in ("TRANSFORMERS_VERBOSITY", "TRL_EXPERIMENTAL_SILENCE", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
        monkeypatch.delenv(name)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("checks", "desk"):  # of this test's folder, also where a test before left its own
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield
    for name in ("checks", "desk"):
        sys.modules.pop(name, None)
    if "transformers" in sys.modules:
        from transformers.utils import logging

        logging.set_tqdm_hook(None)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: `checks.py`, `desk.py`, `mcp.json` (the helpdesk) and `tasks.jsonl`."""
    (tmp_path / "checks.py").write_text(CHECKS)
    (tmp_path / "desk.py").write_text(DESK)
    server = {"command": sys.executable, "args": ["-m", "sandboxes.helpdesk"]}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"helpdesk": server}}))
    shown = [
        {"role": "assistant", "tool_calls": [{"id": "c1", "name": "get_order", "arguments": {"order_id": "4417"}}]},
        {"role": "assistant", "content": "It is shipped."},
    ]
    prompts = [
        f"{question} order 4417?" for question in ("Where is", "What of", "Who has", "Seen", "Lost", "Any news of")
    ]
    rows = [{"id": f"t{i}", "prompt": prompt, "demonstration": shown} for i, prompt in enumerate(prompts)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def endpoint() -> Iterator:
    with chat_endpoint() as running:
        yield running
