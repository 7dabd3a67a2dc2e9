"""Room for keys and values: asked for in plenty, and taken only as it is written to."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from sdk.policies.embedded.attention import RowCache

OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")


ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="other systems tell otherwise what memory is taken")


@ON_LINUX
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


def anonymous_bytes() -> int:
    """What this process holds of memory that no file backs."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) * 1024


@ON_LINUX
@pytest.mark.parametrize("kept", [0, 100])
def test_a_row_that_is_released_gives_its_memory_back_and_no_other_row_changes(kept: int) -> None:
    config = SimpleNamespace(num_hidden_layers=4, num_attention_heads=2, hidden_size=128)
    cache = RowCache(config, dtype=torch.float32, device=torch.device("cpu"))
    tokens = 8192
    cache.ensure(rows=3, tokens=tokens)
    for row in range(3):
        cache.row(row)[:] = row + 1.0
    cache.ensure(rows=3, tokens=tokens, stored=[tokens] * 3)
    before = anonymous_bytes()
    cache.release(1, kept)
    given_back = before - anonymous_bytes()
    assert cache.touched == [tokens, kept, tokens]
    whole = cache.token_bytes * (tokens - kept)
    assert 0.9 * whole < given_back < 1.1 * whole
    assert (cache.row(0) == 1.0).all()
    assert (cache.row(1)[..., :kept, :] == 2.0).all()
    assert (cache.row(2) == 3.0).all()


@ON_LINUX
@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="no huge pages here")
def test_no_row_takes_a_huge_page_for_one_token() -> None:
    config = SimpleNamespace(num_hidden_layers=1, num_attention_heads=1, hidden_size=64)
    cache = RowCache(config, dtype=torch.float32, device=torch.device("cpu"))
    cache.ensure(rows=8, tokens=8192)
    begin = cache.data.data_ptr()
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        first, dash, last = line.split()[0].partition("-")
        if dash and int(first, 16) <= begin < int(last, 16):
            break
    flags = next(line for line in lines if line.startswith("VmFlags:"))
    assert "nh" in flags.split()  # no huge pages
