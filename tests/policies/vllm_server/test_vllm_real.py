"""Real vLLM: what every engine must do, new weights of all kinds, training, a crash, no orphans.

One server for all of it, started by the first test and ended by the last: starting takes most of the time.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import peft
import pytest
import torch
from changed_weights import changed_copy
from engine_conformance import EngineConformance
from one_task import in_one_task
from plain_forward import TOLERANCE, assert_exact, plain_logprobs
from server_processes import processes_of, segments_of
from vllm_training import TRAINING, assert_trained_on_what_was_published, trained_on

import sdk
from sdk.policies.models import LoadedModel, load_model
from sdk.policies.protocol import Completion, Sampling
from sdk.policies.vllm import VllmOptions, VllmPolicy, open_vllm
from sdk.policies.vllm.published_weights import untied, write_checkpoint

pytestmark = pytest.mark.timeout(1200)
in_the_loop_of_the_engine = pytest.mark.asyncio(loop_scope="module")

TWELVE = Sampling(max_tokens=12)
LONG = Sampling(max_tokens=500)
"""Long enough that something happens to it on its way."""
PROMPT = [1, 4093, 198, 22234, 338, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]
LONG_PROMPT = PROMPT * 20
"""Two and a half blocks of vLLM's cache on CPUs: only whole ones are kept and found again."""
RANK = 4


# Small caches and batches: a server tries out its largest batch and clears its cache before it answers.
SMALL = ("--max-num-batched-tokens", "1024", "--max-num-seqs", "16", "--num-gpu-blocks-override", "256")
# Threads that are bound to a core wait there for whatever else the tests compute on it.
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


@pytest.fixture(scope="module")
def loaded(small_model: LoadedModel) -> LoadedModel:
    return small_model


@pytest.fixture(scope="module")
async def engine(
    vllm_python: Path, loaded: LoadedModel, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[VllmPolicy]:
    folder = tmp_path_factory.mktemp("vllm")
    start = untied(loaded.model, loaded.tokenizer, folder / "start")
    server = {"python": str(vllm_python), "arguments": SMALL, "environment": ENVIRONMENT, "max_restarts": 1}
    server["start_timeout_s"] = 1000.0  # machines that test much else at the same time
    options = VllmOptions.model_validate({**server, "in_flight": True, "publish": "transfer"})
    server = open_vllm(str(start), options, lora_rank=RANK, context_tokens=1024, folder=folder)
    async with in_one_task(server) as policy:
        yield policy


@in_the_loop_of_the_engine
class TestVllm(EngineConformance):
    """Comes first: its tests begin with the weights that the server started with."""


@in_the_loop_of_the_engine
async def test_published_weights_are_sampled_from_in_full(engine: VllmPolicy, loaded: LoadedModel) -> None:
    before = await engine.sample(LONG_PROMPT, sampling=TWELVE, seed=3)
    changed = changed_copy(loaded.model)
    await asyncio.to_thread(engine.publish, changed.state_dict(), version=7)
    # The same long prompt again: keys and values of the old weights must not be found.
    after = await engine.sample(LONG_PROMPT, sampling=TWELVE, seed=3)
    assert (before.version, after.version) == (0, 7)
    assert_exact(loaded.model, LONG_PROMPT, before)
    assert_exact(changed, LONG_PROMPT, after)


@in_the_loop_of_the_engine
async def test_weights_in_flight_interrupt_and_every_token_is_of_the_version_that_it_names(
    engine: VllmPolicy, loaded: LoadedModel
) -> None:
    old, new = (changed_copy(loaded.model, seed, endless=True) for seed in (1, 2))
    await asyncio.to_thread(engine.publish, old.state_dict(), version=8)
    flying = await begun(engine)
    await asyncio.to_thread(engine.publish, new.state_dict(), version=9)
    assert engine.counts()["interrupted"] >= 1
    for completion in await asyncio.gather(*flying):
        versions = completion.versions or [completion.version] * len(completion.token_ids)
        first_new = versions.count(8)
        assert versions == [8] * first_new + [9] * (len(versions) - first_new)
        prompt = PROMPT + completion.token_ids[:first_new]
        tail = replace(completion, token_ids=completion.token_ids[first_new:], logprobs=completion.logprobs[first_new:])
        assert_exact(new, prompt, tail)


async def running(engine: VllmPolicy) -> list[float]:
    """How many requests vLLM says that it computes."""
    import httpx

    async with httpx.AsyncClient(verify=False) as client:
        text = (await client.get(f"{engine.urls[0]}/metrics")).text
    return [float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith("vllm:num_requests_running")]


async def begun(engine: VllmPolicy) -> list[asyncio.Task[Completion]]:
    """Long completions that vLLM is seen to compute. Where they all ended before that was seen, there are others."""
    while True:
        flying = [asyncio.create_task(engine.sample(PROMPT, sampling=LONG, seed=seed)) for seed in range(4)]
        while not all(one.done() for one in flying):
            if sum(await running(engine)):
                return flying
        await asyncio.gather(*flying)


@in_the_loop_of_the_engine
async def test_it_tells_how_full_its_cache_is_while_it_samples_and_after(engine: VllmPolicy) -> None:
    async def go_on_sampling(seed: int) -> None:
        while True:
            await engine.sample(LONG_PROMPT, sampling=LONG, seed=seed)

    busy = [asyncio.create_task(go_on_sampling(seed)) for seed in range(8)]
    # 256 blocks of 128 tokens; eight requests hold 8 blocks at most each. vLLM is looked at each second.
    while engine.pressure() == 0.0:  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.05)
    assert engine.pressure() <= 8 * 8 / 256 + 1e-6
    for one in busy:
        one.cancel()
    await asyncio.gather(*busy, return_exceptions=True)
    while engine.pressure() > 0.0:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


@in_the_loop_of_the_engine
async def test_an_adapter_is_published_under_a_name_of_its_own_and_sampled_from(
    engine: VllmPolicy, loaded: LoadedModel
) -> None:
    config = peft.LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(copy.deepcopy(loaded.model), config).eval()
    await asyncio.to_thread(engine.publish, loaded.model.state_dict(), version=10)
    for version in (11, 12):
        torch.manual_seed(version)
        with torch.no_grad():
            for name, weight in adapted.named_parameters():
                if "lora_B" in name:
                    weight.normal_(std=0.02)
        await asyncio.to_thread(engine.publish_adapter, adapted, version=version)
        completion = await engine.sample(LONG_PROMPT, sampling=TWELVE, seed=3)
        assert completion.version == version
        assert_exact(adapted, LONG_PROMPT, completion)


@in_the_loop_of_the_engine
@pytest.mark.parametrize("lora_rank", [0, RANK])
async def test_training_samples_from_vllm_what_the_trainer_computes_after_each_publication(
    engine: VllmPolicy, small_model_folder: Path, tmp_path: Path, lora_rank: int
) -> None:
    vllm = {"urls": engine.urls, "publish": "adapter" if lora_rank else "checkpoint"}
    changes = {"lora.r": lora_rank, "grpo.learning_rate": 1e-4}
    result = await sdk.train_async(*TRAINING, str(small_model_folder), tmp_path / "run", trained_on(vllm, **changes))
    assert_trained_on_what_was_published(result)
    # What was saved is what was published last.
    async with open_vllm("unused", VllmOptions(urls=tuple(engine.urls))) as policy:
        saved = load_model(result.model_dir).model
        await asyncio.to_thread(policy.publish, saved.state_dict(), version=2)
        assert_exact(saved, PROMPT, await policy.sample(PROMPT, sampling=TWELVE, seed=1))


@pytest.fixture(scope="module")
async def beside(
    engine: VllmPolicy, loaded: LoadedModel, vllm_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What became of weights that a trainer with vLLM beside it sent: see `beside_vllm.py`."""
    folder = tmp_path_factory.mktemp("beside")
    write_checkpoint(changed_copy(loaded.model, 5).state_dict(), folder / "changed")
    script = Path(__file__).with_name("beside_vllm.py")
    command = [str(vllm_python), str(script), *engine.urls, str(folder / "changed" / "model.safetensors")]
    environment = {**os.environ, "PYTHONPATH": str(script.parents[3])}
    ended = await anyio.run_process(command, env=environment, stderr=subprocess.STDOUT, check=False)
    lines = ended.stdout.decode().splitlines()
    assert ended.returncode == 0, "\n".join(lines[-30:])
    told: dict[str, Any] = json.loads(lines[-1])
    return told


@in_the_loop_of_the_engine
async def test_weights_go_through_vllms_own_factory_for_trainers_and_are_compared_the_first_time(
    beside: dict[str, Any], engine: VllmPolicy, loaded: LoadedModel
) -> None:
    published = beside["published"]
    assert published["sent"] == 3  # the first version again, after all weights were set to zero
    ids, logprobs = published["token_ids"], published["logprobs"]
    assert published["version"] == 2
    assert logprobs == pytest.approx(plain_logprobs(changed_copy(loaded.model, 5), PROMPT, ids), abs=TOLERANCE)


@in_the_loop_of_the_engine
async def test_what_is_told_to_servers_on_gpus_is_what_their_workers_read(
    beside: dict[str, Any], loaded: LoadedModel
) -> None:
    told = beside["told"]
    assert (told["world_size"], told["address"]) == (3, "127.0.0.1")
    assert sorted(told["names"]) == sorted(loaded.model.state_dict())
    assert {"lm_head.weight", "model.embed_tokens.weight"} <= set(told["names"])
    assert set(told["dtype_names"]) == {"bfloat16"}
    assert told["handles_come_back"]


@in_the_loop_of_the_engine
async def test_a_transfer_that_waits_for_a_server_that_broke_ends_within_seconds(beside: dict[str, Any]) -> None:
    for name, words in (("refused", "HTTP 500: injected fault"), ("died", "HTTP 503 when asked for its health")):
        said, seconds, mark, paused = beside[name]
        assert said.startswith("the transfer of weights to http://127.0.0.1:")
        assert words in said
        assert seconds < 20
        assert mark.startswith("incomplete-toolbake-")
        assert paused


@in_the_loop_of_the_engine
async def test_a_server_that_is_killed_is_noticed_started_again_and_given_the_present_weights(
    engine: VllmPolicy, loaded: LoadedModel
) -> None:
    changed = changed_copy(loaded.model, endless=True)
    await asyncio.to_thread(engine.publish, changed.state_dict(), version=20)
    (pid,) = engine.pids
    segments = segments_of(pid)
    assert segments
    flying = await begun(engine)
    os.kill(pid, signal.SIGKILL)
    completions = await asyncio.gather(*flying)
    assert engine.counts()["restarts"] == 1
    assert 1 <= engine.counts()["retries"] <= len(flying)
    assert engine.pids != [pid]
    for completion in completions:
        assert completion.version == 20
        assert_exact(changed, PROMPT, completion)
    # Nothing is left of the one that was killed: neither what it had started, nor their memory.
    assert processes_of(pid) == []
    assert segments.isdisjoint(f"/dev/shm/{name}" for name in os.listdir("/dev/shm"))


SCRIPT = """
import sys, time
from pathlib import Path
from sdk.policies.vllm.server_process import VllmProcess, server_arguments
arguments = server_arguments(sys.argv[2], cpu=True, lora_rank=0, context_tokens=None)
process = VllmProcess(sys.argv[1], arguments, log=Path(sys.argv[3]), environment={})
print(process.pid, flush=True)
sys.stdin.read()
"""


def test_no_server_outlives_us_when_we_are_killed(vllm_python: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(vllm_python), "unused", str(tmp_path / "log")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as ours:
        assert ours.stdout is not None
        group = int(ours.stdout.readline())
        os.killpg(group, 0)
        ours.kill()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
    pytest.fail("the server's process group is still there")
