"""Weights by vLLM's own transfer: all of them or none, to every replica, whatever breaks in the midst."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import token_policies
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from token_policies import EIGHT, state, tokens_of
from token_server import TokenServer

from sdk.errors import PolicyFailure
from sdk.policies.vllm.published_weights import SharedWeights, layout_of

STEPS = ("/start_weight_update", "/update_weights", "/finish_weight_update", "/reset_prefix_cache")
"""Of an exchange, after which the server has a part of the new weights or mixes versions."""


opened = partial(token_policies.opened, publish="transfer")


async def test_a_transfer_needs_no_file_and_every_replica_has_the_weights_when_it_ends(tmp_path: Path) -> None:
    with TokenServer() as one, TokenServer() as two:
        async with opened(one, two, folder=tmp_path) as policy:
            await asyncio.to_thread(policy.publish, state(1.0), version=1)
            assert one.weights == two.weights == one.mark == two.mark
            assert (one.calls["/reset_prefix_cache"], two.calls["/reset_prefix_cache"]) == (1, 1)
            assert not one.paused
            assert not two.paused
            completion = await policy.sample([5], sampling=EIGHT, seed=3)
        assert (completion.version, completion.token_ids) == (1, tokens_of(one.weights, 3, 8))
    assert list(tmp_path.rglob("*")) == []  # noqa: ASYNC240


async def test_weights_in_flight_interrupt_and_each_token_knows_its_version(server: TokenServer) -> None:
    async with opened(server, in_flight=True) as policy:
        server.hold.clear()
        flying = asyncio.create_task(policy.sample([5], sampling=EIGHT, seed=3))
        await asyncio.to_thread(server.waiting.acquire)
        await asyncio.to_thread(policy.publish, state(1.0), version=1)
        server.release()
        completion = await flying
    assert completion.versions == [0] + [1] * 7
    assert completion.token_ids == [*tokens_of("as started", 3, 1), *tokens_of(server.weights, 4, 7)]


async def test_a_server_that_cannot_read_our_memory_is_named_and_left_as_it_was(server: TokenServer) -> None:
    server.takes_memory = False
    async with opened(server) as policy:
        with pytest.raises(PolicyFailure, match="HTTP 500: the trainer's memory cannot be read"):
            await asyncio.to_thread(policy.publish, state(1.0), version=1)
    assert (server.weights, server.mark, server.paused) == ("as started", "default", False)


@pytest.mark.parametrize("step", STEPS)
async def test_nothing_is_sampled_from_a_server_with_a_part_of_the_weights(server: TokenServer, step: str) -> None:
    async with opened(server, recover_timeout_s=0.5) as policy:
        await asyncio.to_thread(policy.publish, state(1.0), version=1)
        server.failing = {step: 500}
        with pytest.raises(PolicyFailure, match=f"{step} answered HTTP 500: injected fault"):
            await asyncio.to_thread(policy.publish, state(2.0), version=2)
        with pytest.raises(PolicyFailure, match="could be asked for"):
            await policy.sample([5], sampling=EIGHT, seed=3)
    assert server.bodies == []
    assert server.paused
    assert server.mark.startswith("incomplete-toolbake-")
    # A later run sees it, too, whatever it would publish.
    with pytest.raises(PolicyFailure, match=r"holds a part of new weights .* until it is started again"):
        async with opened(server, publish="checkpoint"):
            pass


@pytest.mark.parametrize("step", STEPS[:3])
async def test_a_server_whose_connection_broke_in_the_midst_is_not_asked_until_it_was_started_again(step: str) -> None:
    with TokenServer() as old:
        async with opened(old) as policy:
            await asyncio.to_thread(policy.publish, state(1.0), version=1)
            old.failing = {step: 0}
            await asyncio.to_thread(policy.publish, state(2.0), version=2)
            waiting = asyncio.create_task(policy.sample([5], sampling=EIGHT, seed=3))
            # It answers all the while that it is well, and is looked at again and again.
            for _ in range(3):
                await asyncio.to_thread(old.asked_for_weights.acquire)
            assert not waiting.done()
            assert old.bodies == []
            old.stop()
            with TokenServer(port=old.port) as new:
                completion = await waiting
    assert new.mark == new.weights
    assert (completion.version, completion.token_ids) == (2, tokens_of(new.weights, 3, 8))


class Dying(TokenServer):
    """Its engine dies of new weights, which the server answers as it does what it refuses."""

    deaths = 0

    def __init__(self) -> None:
        super().__init__()
        self.seen_dead = threading.Semaphore(0)

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if path == "/update_weights" and self.deaths:
            self.deaths -= 1
            self.healthy = False
            return 500, {"error": {"message": "cancelled"}}
        return super().answer(path, body)

    def read(self, path: str) -> tuple[int, dict[str, Any] | str]:
        answer = super().read(path)
        if path == "/health" and answer[0] == 503:
            self.seen_dead.release()
        return answer

    def start_again(self) -> None:
        self.weights, self.mark, self.paused, self.healthy = "as started", "default", False, True


async def test_a_server_whose_engine_dies_of_new_weights_gets_them_as_often_as_it_is_started_again() -> None:
    with Dying() as server:
        async with opened(server) as policy:
            await asyncio.to_thread(policy.publish, state(1.0), version=1)
            server.deaths = 2
            await asyncio.to_thread(policy.publish, state(2.0), version=2)
            waiting = asyncio.create_task(policy.sample([5], sampling=EIGHT, seed=3))
            while not waiting.done():
                if await asyncio.to_thread(server.seen_dead.acquire, timeout=0.5):
                    server.start_again()
            completion = await waiting
        assert server.deaths == 0
        assert server.weights == server.mark
        assert (completion.version, completion.token_ids) == (2, tokens_of(server.weights, 3, 8))


async def test_one_replica_that_refuses_weights_is_told_at_once_and_the_other_mixes_nothing(
    server: TokenServer,
) -> None:
    with TokenServer() as other:
        async with opened(server, other) as policy:
            await asyncio.to_thread(policy.publish, state(1.0), version=1)
            other.failing = {"/update_weights": 500}
            with pytest.raises(PolicyFailure, match=rf"{other.url}/update_weights answered HTTP 500"):
                await asyncio.to_thread(policy.publish, state(2.0), version=2)
            for seed in range(8):
                completion = await policy.sample([5, seed], sampling=EIGHT, seed=seed)
                assert (completion.version, completion.token_ids) == (2, tokens_of(server.weights, seed, 8))
    assert other.bodies == []


async def test_a_checkpoint_that_is_refused_in_the_midst_is_not_sampled_from_either(
    server: TokenServer, tmp_path: Path
) -> None:
    async with opened(server, folder=tmp_path, publish="checkpoint", recover_timeout_s=0.5) as policy:
        server.failing = {"/collective_rpc": 500}
        with pytest.raises(PolicyFailure, match="/collective_rpc answered HTTP 500"):
            await asyncio.to_thread(policy.publish, state(1.0), version=1)
        with pytest.raises(PolicyFailure, match="could be asked for"):
            await policy.sample([5], sampling=EIGHT, seed=3)
    assert server.bodies == []
    assert server.paused


DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8)


def read(shared: SharedWeights) -> dict[str, torch.Tensor]:
    """As a server's plugin does."""
    whole, found = torch.frombuffer(bytearray(Path(shared.path).read_bytes()), dtype=torch.uint8), {}
    one = shared.layout
    for name, dtype_name, shape, offset in zip(one.names, one.dtype_names, one.shapes, one.offsets, strict=True):
        dtype = getattr(torch, dtype_name)
        found[name] = whole[offset : offset + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)
    return found


@settings(deadline=None)
@given(
    shapes=st.lists(
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=3), st.booleans()), max_size=5
    ),
    again=st.booleans(),
)
def test_shared_weights_read_back_as_they_were_whatever_becomes_of_the_tensors(
    shapes: list[tuple[torch.dtype, list[int], bool]], again: bool
) -> None:
    written: dict[str, torch.Tensor] = {}
    for number, (dtype, shape, turned) in enumerate(shapes):
        tensor = torch.arange(int(torch.tensor(shape).prod()) if shape else 1).reshape(shape).to(dtype)
        written[f"layer.{number}"] = tensor.T if turned and tensor.dim() == 2 else tensor
    expected = {name: tensor.clone() for name, tensor in written.items()}
    shared = SharedWeights()
    try:
        if again:
            shared.take({"larger": torch.ones(1000)}, "first")
        shared.take(written, "second")
        for tensor in written.values():
            tensor.zero_()
        found = read(shared)
        assert list(found) == list(expected)
        for name, tensor in expected.items():
            assert found[name].dtype == tensor.dtype
            torch.testing.assert_close(found[name], tensor, rtol=0, atol=0)
    finally:
        shared.close()


def test_tied_weights_are_laid_out_twice_each_from_a_multiple_of_64_bytes() -> None:
    embedding = torch.zeros(3, 5)
    layout = layout_of({"embed": embedding, "norm": torch.zeros(7, dtype=torch.bfloat16), "head": embedding})
    assert layout.offsets == [64, 128, 192]  # 60 bytes, 14 bytes
    assert layout.size == 256
    assert layout.dtype_names == ["float32", "bfloat16", "float32"]
    assert layout.shapes == [[3, 5], [7], [3, 5]]


READ = "import sys; print(open(sys.argv[1], 'rb').read(64).rstrip(bytes(1)).decode())"


def test_another_process_reads_the_memory_as_long_as_it_is_there() -> None:
    shared = SharedWeights()
    shared.take(state(1.0), "toolbake-mark")
    command = [sys.executable, "-c", READ, shared.path]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "toolbake-mark"
    place = Path(shared.path)
    assert "toolbake-weights" in str(place.readlink())
    shared.close()
    assert not place.is_symlink() or "toolbake-weights" not in str(place.readlink())
