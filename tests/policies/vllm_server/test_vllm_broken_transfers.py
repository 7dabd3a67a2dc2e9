"""Real vLLM, and transfers of weights that break off: killed in their midst, or refused for what was sent.

One server for all of it. It is stopped in the midst of taking weights by `held_weights.py`, which runs inside of it.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from changed_weights import changed_copy
from one_task import in_one_task
from plain_forward import assert_exact
from server_processes import processes_of, segments_of

from sdk.errors import PolicyFailure
from sdk.policies.models import LoadedModel
from sdk.policies.protocol import Completion, Sampling
from sdk.policies.vllm import VllmOptions, VllmPolicy, open_vllm
from sdk.policies.vllm.control import call
from sdk.policies.vllm.published_weights import untied

pytestmark = [pytest.mark.timeout(1200), pytest.mark.asyncio(loop_scope="module")]  # that of `engine`

TWELVE = Sampling(max_tokens=12)
LONG = Sampling(max_tokens=400)
PROMPT = [1, 4093, 198, 22234, 338, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]
SMALL = ("--max-num-batched-tokens", "1024", "--max-num-seqs", "16", "--num-gpu-blocks-override", "256")
HELD = ("--worker-extension-cls", "held_weights.Extension")


@pytest.fixture(scope="module")
def pipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where an exchange is held in its midst, while a named pipe is there."""
    return tmp_path_factory.mktemp("pipe") / "held"


@pytest.fixture(scope="module")
async def engine(
    vllm_python: Path, small_model: LoadedModel, pipe: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[VllmPolicy]:
    folder, before = tmp_path_factory.mktemp("vllm"), memory_of_ours()
    start = untied(small_model.model, small_model.tokenizer, folder / "start")
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    environment |= {"PYTHONPATH": str(Path(__file__).parent), "HELD_WEIGHTS_PIPE": str(pipe)}
    server = {"python": str(vllm_python), "arguments": (*SMALL, *HELD), "environment": environment}
    server |= {"publish": "transfer", "in_flight": True, "start_timeout_s": 1000.0, "recover_timeout_s": 1000.0}
    options = VllmOptions.model_validate(server)
    async with in_one_task(open_vllm(str(start), options, context_tokens=1024, folder=folder)) as policy:
        yield policy
    assert memory_of_ours() == before


def memory_of_ours() -> list[str]:
    """The memory for weights that this process has open."""
    links = [os.readlink(place) for place in Path("/proc/self/fd").iterdir() if place.is_symlink()]
    return [link for link in links if "toolbake-weights" in link]


def worker_of(group: int) -> int:
    (place,) = [p for p in processes_of(group) if (p / "comm").read_text().strip() == "VLLM::Worker"]
    return int(place.name)


def held_at(pipe: Path) -> asyncio.Future[str]:
    """What the first server says that is held there. The next one is not."""
    loop, told = asyncio.get_running_loop(), asyncio.Future[str]()
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)

    def read() -> None:
        told.set_result(os.read(end, 100).decode())
        loop.remove_reader(end)
        os.close(end)
        pipe.unlink()

    loop.add_reader(end, read)
    return told


def assert_each_token_is_of_the_version_it_names(models: dict[int, Any], completion: Completion) -> None:
    versions = completion.versions or [completion.version] * len(completion.token_ids)
    assert versions == sorted(versions)
    for version in set(versions):
        first, end = versions.index(version), versions.index(version) + versions.count(version)
        piece = Completion(
            completion.token_ids[first:end], completion.logprobs[first:end], completion.stop_reason, version
        )
        assert_exact(models[version], PROMPT + completion.token_ids[:first], piece)


Change = Callable[[dict[str, torch.Tensor]], Any]
QUERIES, HEAD, NORM = "model.layers.1.self_attn.q_proj.weight", "lm_head.weight", "model.norm.weight"
BIAS, OTHER = QUERIES.replace("weight", "bias"), "model.other.weight"
REFUSED: dict[str, tuple[Change, str]] = {
    "one is missing": (lambda state: state.pop(NORM), f"weights of the model were not sent, or not whole: {NORM}"),
    "a part is missing": (
        lambda state: state.pop(QUERIES),
        "not sent, or not whole: model.layers.1.self_attn.qkv_proj",
    ),
    "one is unknown": (lambda state: state.update({OTHER: torch.ones(3)}), rf"does not take {OTHER} of shape \[3\]"),
    "a bias is unknown": (
        lambda state: state.update({BIAS: torch.ones(64)}),
        "64 numbers of what was sent have no place",
    ),
    "one has too few rows": (
        lambda state: state.update({QUERIES: state[QUERIES][:-2]}),
        rf"{QUERIES} of shape \[62, 64",
    ),
    "one has too many rows": (
        lambda state: state.update({QUERIES: torch.ones(66, 64)}),
        "128 numbers of what was sent",
    ),
    "one is a number": (lambda state: state.update({NORM: torch.ones(1)}), rf"{NORM} of shape \[1\]"),
    "one is turned": (lambda state: state.update({HEAD: state[HEAD].T}), rf"{HEAD} of shape \[64, 49152\]"),
}
"""What is changed of all weights, and what the server says of it."""
BROKEN_OFF = r"holds a part of new weights .* until it is started again"


@pytest.fixture
async def url(engine: VllmPolicy) -> AsyncIterator[str]:
    """Where the server is, which is whole again afterwards. As `engine` has published nothing yet, it looks for no
    weights there."""
    (url,) = engine.urls
    yield url
    with httpx.Client() as client:
        call(client, f"{url}/collective_rpc", {"method": "put_layers_back"})
        call(client, f"{url}/update_weight_version", {"new_version": "default"})
        call(client, f"{url}/resume")


@pytest.mark.parametrize("case", REFUSED)
async def test_weights_that_are_not_those_of_the_model_are_refused_and_nothing_is_sampled_any_more(
    url: str, small_model: LoadedModel, case: str
) -> None:
    options = VllmOptions(urls=(url,), publish="transfer", recover_timeout_s=0.5)
    change, words = REFUSED[case]
    state = dict(small_model.model.state_dict())
    async with open_vllm("unused", options) as policy:
        await asyncio.to_thread(policy.publish, state, version=1)
        assert_exact(small_model.model, PROMPT, await policy.sample(PROMPT, sampling=TWELVE, seed=1))
        change(state)
        with pytest.raises(PolicyFailure, match=words):
            await asyncio.to_thread(policy.publish, state, version=2)
        # why the exchange failed, until the monitor has looked at the server and knows what it holds
        with pytest.raises(PolicyFailure, match=f"{words}|{BROKEN_OFF}"):
            await policy.sample(PROMPT, sampling=TWELVE, seed=1)
    async with httpx.AsyncClient() as client:
        assert (await client.get(f"{url}/weight_info")).json()["weight_version"].startswith("incomplete-toolbake-")
        assert (await client.get(f"{url}/is_paused")).json() == {"is_paused": True}
    with pytest.raises(PolicyFailure, match=BROKEN_OFF):
        async with open_vllm("unused", options):
            pass


async def test_a_server_whose_worker_is_killed_in_a_transfer_is_started_again_and_samples_from_no_mixture(
    engine: VllmPolicy, small_model: LoadedModel, pipe: Path
) -> None:
    models = {version: changed_copy(small_model.model, version, endless=True) for version in (1, 2)}
    await asyncio.to_thread(engine.publish, models[1].state_dict(), version=1)
    restarts, (group,) = engine.counts()["restarts"], engine.pids
    segments = segments_of(group)
    assert segments
    flying = [asyncio.create_task(engine.sample(PROMPT, sampling=LONG, seed=seed)) for seed in range(3)]
    hold = held_at(pipe)
    publishing = asyncio.create_task(asyncio.to_thread(engine.publish, models[2].state_dict(), version=2))
    assert await hold == "10 of 21"
    late = asyncio.create_task(engine.sample(PROMPT, sampling=TWELVE, seed=7))
    os.kill(worker_of(group), signal.SIGKILL)
    await publishing
    *flown, last = await asyncio.gather(*flying, late)
    assert last.version == 2
    for completion in (*flown, last):  # one that had its last token before the exchange is whole, and of version 1
        assert_each_token_is_of_the_version_it_names(models, completion)
    assert engine.counts()["restarts"] == restarts + 1
    assert processes_of(group) == []
    assert segments.isdisjoint(f"/dev/shm/{name}" for name in os.listdir("/dev/shm"))
