"""Room for keys and values: asked for in plenty, and taken only as it is written to."""

from __future__ import annotations

import os
import random
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from sdk.policies.embedded import attention
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


def peak_bytes() -> int:
    (kilobytes,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(kilobytes) * 1024


@ON_LINUX
def test_while_room_grows_no_more_than_a_layer_is_there_twice() -> None:
    layers, rows, tokens = 16, 4, 4096
    config = SimpleNamespace(num_hidden_layers=layers, num_attention_heads=1, hidden_size=32)
    cache = RowCache(config, dtype=torch.float32, device=torch.device("cpu"))
    cache.ensure(rows=rows, tokens=tokens)
    for row in range(rows):
        cache.row(row)[:] = row + 1.0
    stored = rows * tokens * cache.token_bytes
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins again from what is held now
    before = peak_bytes()
    cache.ensure(rows=2 * rows, tokens=2 * tokens, stored=[tokens] * rows)
    assert peak_bytes() - before < 2.5 * stored / layers
    for row in range(rows):
        assert (cache.row(row)[..., :tokens, :] == row + 1.0).all()
        assert (cache.row(row)[..., tokens:, :] == 0.0).all()
    assert (cache.data[:, :, rows:] == 0.0).all()


@pytest.mark.parametrize("platform", [sys.platform, "darwin"])
@pytest.mark.parametrize("seed", range(6))
def test_rows_hold_what_was_written_however_room_grows_rows_change_places_and_memory_is_given_back(
    seed: int, platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "sys", SimpleNamespace(platform=platform))
    chance = random.Random(seed)
    config = SimpleNamespace(num_hidden_layers=3, num_attention_heads=2, hidden_size=64)
    cache = RowCache(config, dtype=torch.float32, device=torch.device("cpu"))
    expected: list[torch.Tensor] = []

    def lengths() -> list[int]:
        return [kept.shape[3] for kept in expected]

    for number in range(120):
        if number < 2 or (len(expected) < 20 and chance.random() < 0.2):
            expected.append(torch.zeros(3, 2, 2, 0, 32))
            cache.ensure(rows=len(expected), tokens=1, stored=lengths())
        if number == 0:
            continue
        row, other = chance.sample(range(len(expected)), 2)
        have = expected[row].shape[3]
        do = chance.choice(["write", "write", "swap", "release"])
        if do == "write":
            more = torch.rand(3, 2, 2, chance.choice([1, 5, 40, 200]), 32)
            cache.ensure(rows=len(expected), tokens=have + more.shape[3], stored=lengths())
            cache.row(row)[..., have : have + more.shape[3], :] = more
            expected[row] = torch.cat([expected[row], more], dim=3)
        elif do == "swap":
            cache.swap(row, other, a_tokens=have, b_tokens=expected[other].shape[3])
            expected[row], expected[other] = expected[other], expected[row]
        else:
            expected[row] = expected[row][..., : chance.randrange(have + 1), :]
            cache.ensure(rows=len(expected), tokens=1, stored=lengths())
            cache.release(row, expected[row].shape[3])
        for place, kept in enumerate(expected):
            assert torch.equal(cache.row(place)[..., : kept.shape[3], :], kept), (number, do, place)


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
def test_what_a_longer_row_leaves_behind_goes_back_when_rows_change_places() -> None:
    config = SimpleNamespace(num_hidden_layers=4, num_attention_heads=2, hidden_size=128)
    cache = RowCache(config, dtype=torch.float32, device=torch.device("cpu"))
    tokens = 8192
    cache.ensure(rows=2, tokens=tokens)
    cache.row(0)[:] = 1.0
    cache.row(1)[..., :100, :] = 2.0
    cache.ensure(rows=2, tokens=tokens, stored=[tokens, 100])
    before = anonymous_bytes()
    cache.swap(0, 1, a_tokens=tokens, b_tokens=100)
    assert cache.touched == [100, tokens]
    assert anonymous_bytes() - before < 0.1 * tokens * cache.token_bytes
    assert (cache.row(0)[..., :100, :] == 2.0).all()
    assert (cache.row(1) == 1.0).all()


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
