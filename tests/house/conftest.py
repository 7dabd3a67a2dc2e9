"""Where the docs' examples run: the helpdesk with few tasks, and a tiny model in place of the embedded one."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import pytest
from project_files import ROOT

TASKS_OF_A_SIDE = 4


@pytest.fixture(scope="session")
def tiny_model_folder(short_tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers, 32 wide, random weights.

    It ends most turns soon, so that nobody waits for it to ramble to the limit.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from sdk.policies.models.saving import save_model

    torch.manual_seed(0)
    shape = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=len(short_tokenizer),
        max_position_embeddings=2048,
        eos_token_id=short_tokenizer.eos_token_id,
        bos_token_id=short_tokenizer.bos_token_id,
        pad_token_id=short_tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(shape)
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] += 1.0  # the same for every token: a constant that the head can read
        model.lm_head.weight[short_tokenizer.eos_token_id, 0] = 1.6
    folder = tmp_path_factory.mktemp("models") / "tiny"
    save_model(model, short_tokenizer, folder)
    return folder


@pytest.fixture(scope="session")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the examples, as a reader has it in a clone, only smaller. To be left as it is."""
    folder = tmp_path_factory.mktemp("clone")
    helpdesk = folder / "examples" / "helpdesk"
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    (helpdesk / "tasks.jsonl").write_text(_few_tasks(), encoding="utf-8")
    for name in ("tasks.jsonl", "mcp.json", "server.py"):
        shutil.copy(helpdesk / name, folder / name)
    (folder / "verify.py").write_text("from sdk.verifiers import answer_match\n\nverify = answer_match()\n")
    return folder


@pytest.fixture
def workspace(tmp_path: Path, clone: Path, tiny_model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The present folder of the examples, which may be changed, and the tiny model in place of the embedded one."""
    shutil.copytree(clone, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    # Set first, so that what a page sets is undone.
    monkeypatch.setenv("TOOLBAKE_CONTROL", "")
    monkeypatch.delenv("TOOLBAKE_CONTROL")
    monkeypatch.setattr("sdk.policies.models.loading.embedded_folder", lambda: tiny_model_folder)
    monkeypatch.setattr("sdk.serving.server.bind", _bind_any_port())
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:  # other examples have files of the same names
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def _few_tasks() -> str:
    """The first tasks of each side of the split, as they stand in the example."""
    kept: dict[str, list[str]] = {}
    for line in (ROOT / "examples" / "helpdesk" / "tasks.jsonl").read_text(encoding="utf-8").splitlines():
        side = kept.setdefault(json.loads(line)["tags"]["split"], [])
        if len(side) < TASKS_OF_A_SIDE:
            side.append(line)
    return "\n".join(line for side in kept.values() for line in side) + "\n"


def _bind_any_port() -> Any:
    """The docs serve on port 8000, which may be taken on the machine that runs the tests."""
    from sdk.serving.server import bind

    def bind_any(host: str, port: int, api_key: str | None) -> socket.socket:
        return bind(host, 0 if port == 8000 else port, api_key)

    return bind_any
