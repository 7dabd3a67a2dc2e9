"""Room for keys and values: asked for in plenty, and taken only as it is written to."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from sdk.policies.embedded.cache import RowCache

OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems say in other ways how much memory they have")
@pytest.mark.skipif(OVERCOMMIT.exists() and OVERCOMMIT.read_text().strip() == "2", reason="all room is reserved here")
def test_rows_with_room_for_more_tokens_than_fit_into_memory_cost_what_they_store() -> None:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    config = SimpleNamespace(num_hidden_layers=1, num_attention_heads=1, hidden_size=64)
    cache = RowCache(config, dtype=torch.float32, device=torch.device("cpu"))
    cache.ensure(rows=64, tokens=100)
    cache.row(63)[..., :3, :] = 5.0
    bytes_of_a_token = 2 * 64 * 4
    tokens = 4 * memory // (64 * bytes_of_a_token)
    cache.ensure(rows=64, tokens=tokens, stored=[3] * 64)
    last = cache.row(63)
    last[..., tokens - 1, :] = 7.0
    assert (last[..., :3, :] == 5.0).all()
    assert (last[..., 3:100, :] == 0.0).all()
    assert (last[..., tokens - 1, :] == 7.0).all()
