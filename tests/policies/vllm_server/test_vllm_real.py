"""Real vLLM: what every engine must do, new weights of all kinds, transfers that break off, training, crashes.

One server for all of it, started by the first test and ended by the last: starting takes most of the time. It can be
stopped in the midst of taking weights by `held_weights.py`, which runs inside of it.
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
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import peft
import pytest
import torch
from changed_weights import changed_copy
from engine_conformance import EngineConformance
from jsonschema import Draft202012Validator
from one_task import in_one_task
from plain_forward import TOLERANCE, assert_exact, plain_logprobs
from server_processes import processes_of, segments_of
from vllm_training import TRAINING, assert_trained_on_what_was_published, trained_on

import sdk
from mcp_bridge.records import Tool
from sdk.errors import PolicyFailure
from sdk.policies.model_source import grammars_of_calls
from sdk.policies.models import LoadedModel, load_model
from sdk.policies.protocol import Completion, Sampling
from sdk.policies.rendering import make_renderer
from sdk.policies.vllm import VllmOptions, VllmPolicy, open_vllm
from sdk.policies.vllm.control import call
from sdk.policies.vllm.published_weights import untied, write_checkpoint
from sdk.records import Message

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
HELD = ("--worker-extension-cls", "held_weights.Extension")


@pytest.fixture(scope="module")
def loaded(small_model: LoadedModel) -> LoadedModel:
    return small_model


@pytest.fixture(scope="module")
def pipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where an exchange is held in its midst, while a named pipe is there."""
    return tmp_path_factory.mktemp("pipe") / "held"


@pytest.fixture(scope="module")
async def engine(
    vllm_python: Path, loaded: LoadedModel, pipe: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[VllmPolicy]:
    folder, before = tmp_path_factory.mktemp("vllm"), memory_of_ours()
    start = untied(loaded.model, loaded.tokenizer, folder / "start")
    environment = {**ENVIRONMENT, "PYTHONPATH": str(Path(__file__).parent), "HELD_WEIGHTS_PIPE": str(pipe)}
    server: dict[str, Any] = {"python": str(vllm_python), "arguments": (*SMALL, *HELD), "environment": environment}
    # Machines that test much else at the same time.
    server |= {"start_timeout_s": 1000.0, "recover_timeout_s": 1000.0}
    options = VllmOptions.model_validate({**server, "in_flight": True, "publish": "transfer"})
    opened = open_vllm(str(start), options, lora_rank=RANK, context_tokens=1024, folder=folder)
    async with in_one_task(opened) as policy:
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
    with httpx.Client(timeout=None) as client:
        call(client, f"{url}/collective_rpc", {"method": "put_layers_back"})
        call(client, f"{url}/update_weight_version", {"new_version": "default"})
        call(client, f"{url}/resume")


@in_the_loop_of_the_engine
@pytest.mark.parametrize("case", REFUSED)
async def test_weights_that_are_not_those_of_the_model_are_refused_and_nothing_is_sampled_any_more(
    url: str, loaded: LoadedModel, case: str
) -> None:
    options = VllmOptions(urls=(url,), publish="transfer", recover_timeout_s=0.5)
    change, words = REFUSED[case]
    state = dict(loaded.model.state_dict())
    async with open_vllm("unused", options) as policy:
        await asyncio.to_thread(policy.publish, state, version=1)
        assert_exact(loaded.model, PROMPT, await policy.sample(PROMPT, sampling=TWELVE, seed=1))
        change(state)
        with pytest.raises(PolicyFailure, match=words):
            await asyncio.to_thread(policy.publish, state, version=2)
        # why the exchange failed, until the monitor has looked at the server and knows what it holds
        with pytest.raises(PolicyFailure, match=f"{words}|{BROKEN_OFF}"):
            await policy.sample(PROMPT, sampling=TWELVE, seed=1)
    async with httpx.AsyncClient(timeout=None) as client:
        assert (await client.get(f"{url}/weight_info")).json()["weight_version"].startswith("incomplete-toolbake-")
        assert (await client.get(f"{url}/is_paused")).json() == {"is_paused": True}
    with pytest.raises(PolicyFailure, match=BROKEN_OFF):
        async with open_vllm("unused", options):
            pass


@in_the_loop_of_the_engine
class TestVllm(EngineConformance):
    """Comes before `engine` publishes: its tests begin with the weights that the server started with."""


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
    async with httpx.AsyncClient(verify=False, timeout=None) as client:
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


PAINT = Tool(
    name="paint",
    input_schema={
        "type": "object",
        "properties": {"color": {"enum": ["red", "green"]}, "sign": {"type": "string", "maxLength": 6}},
        "required": ["color", "sign"],
        "additionalProperties": False,
    },
)


@in_the_loop_of_the_engine
async def test_a_grammar_bounds_what_is_sampled_and_log_probabilities_are_of_what_it_left(
    engine: VllmPolicy, loaded: LoadedModel
) -> None:
    await asyncio.to_thread(engine.publish, loaded.model.state_dict(), version=10)
    renderer, grammars = make_renderer(loaded.tokenizer, family=loaded.family), grammars_of_calls(loaded, in_vllm=True)
    prompt = renderer.start([Message(role="user", content="Paint it.")], [PAINT])
    grammar = grammars.calls([PAINT], parallel=False)
    hot = replace(LONG, temperature=2.0)
    ask = partial(engine.sample, prompt, sampling=hot, stop_token_ids=renderer.stop_token_ids, grammar=grammar)
    called = []
    for completion in await asyncio.gather(*(ask(seed=seed) for seed in range(6))):
        assert completion.stop_reason == "stop"
        (call,) = renderer.parse(completion.token_ids, [PAINT], prompt_ids=prompt).tool_calls
        assert (call.name, call.error) == ("paint", None)
        assert Draft202012Validator(PAINT.input_schema).is_valid(call.arguments)
        called.append(json.dumps(call.arguments))
        masks = grammar.allowed_along(completion.token_ids)
        expected = plain_logprobs(loaded.model, prompt, completion.token_ids, 2.0, allowed=masks)
        assert completion.logprobs == pytest.approx(expected, abs=TOLERANCE)
    assert len(set(called)) > 1, "what is left to choose is sampled"


@in_the_loop_of_the_engine
async def test_an_adapter_is_published_under_a_name_of_its_own_and_sampled_from(
    engine: VllmPolicy, loaded: LoadedModel
) -> None:
    config = peft.LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(copy.deepcopy(loaded.model), config).eval()
    await asyncio.to_thread(engine.publish, loaded.model.state_dict(), version=11)
    for version in (12, 13):
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
@pytest.mark.parametrize("options", [{"lora.r": RANK}, {"rollouts.strict_tools": True}])
async def test_training_samples_from_vllm_what_the_trainer_computes_after_each_publication(
    engine: VllmPolicy, small_model_folder: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    vllm = {"urls": engine.urls, "publish": "adapter" if "lora.r" in options else "checkpoint"}
    changes = {**options, "grpo.learning_rate": 1e-4}
    result = await sdk.train_async(*TRAINING, str(small_model_folder), tmp_path / "run", trained_on(vllm, **changes))
    assert_trained_on_what_was_published(result, publications=3)
    # What was saved is what was published last.
    async with open_vllm("unused", VllmOptions(urls=tuple(engine.urls))) as policy:
        saved = load_model(result.model_dir).model
        await asyncio.to_thread(policy.publish, saved.state_dict(), version=2)
        assert_exact(saved, PROMPT, await policy.sample(PROMPT, sampling=TWELVE, seed=1))


@pytest.fixture(scope="module", params=["0.32.0", "0.33.0"])
async def beside(
    request: pytest.FixtureRequest,
    engine: VllmPolicy,
    loaded: LoadedModel,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    """What became of weights that a trainer with this vLLM beside it sent: see `beside_vllm.py`."""
    fixture = {"0.32.0": "vllm_python", "0.33.0": "newest_vllm_python"}[request.param]
    python: Path = request.getfixturevalue(fixture)
    folder = tmp_path_factory.mktemp("beside")
    write_checkpoint(changed_copy(loaded.model, 5).state_dict(), folder / "changed")
    script = Path(__file__).with_name("beside_vllm.py")
    command = [str(python), str(script), *engine.urls, str(folder / "changed" / "model.safetensors")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    ended = await anyio.run_process(command, env=environment, stderr=subprocess.STDOUT, check=False)
    lines = ended.stdout.decode().splitlines()
    assert ended.returncode == 0, "\n".join(lines[-30:])
    told: dict[str, Any] = json.loads(lines[-1])
    assert told["told"]["release"] == request.param
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
async def test_a_server_whose_worker_is_killed_in_a_transfer_is_started_again_and_samples_from_no_mixture(
    engine: VllmPolicy, loaded: LoadedModel, pipe: Path
) -> None:
    models = {version: changed_copy(loaded.model, version, endless=True) for version in (15, 16)}
    await asyncio.to_thread(engine.publish, models[15].state_dict(), version=15)
    restarts, (group,) = engine.counts()["restarts"], engine.pids
    segments = segments_of(group)
    assert segments
    flying = [asyncio.create_task(engine.sample(PROMPT, sampling=LONG, seed=seed)) for seed in range(3)]
    hold = held_at(pipe)
    publishing = asyncio.create_task(asyncio.to_thread(engine.publish, models[16].state_dict(), version=16))
    assert await hold == "10 of 21"
    late = asyncio.create_task(engine.sample(PROMPT, sampling=TWELVE, seed=7))
    os.kill(worker_of(group), signal.SIGKILL)
    await publishing
    *flown, last = await asyncio.gather(*flying, late)
    assert last.version == 16
    for completion in (*flown, last):  # one that had its last token before the exchange is whole, and of version 15
        assert_each_token_is_of_the_version_it_names(models, completion)
    assert engine.counts()["restarts"] == restarts + 1
    assert processes_of(group) == []
    assert segments.isdisjoint(f"/dev/shm/{name}" for name in os.listdir("/dev/shm"))


@in_the_loop_of_the_engine
async def test_a_server_that_is_killed_is_noticed_started_again_and_given_the_present_weights(
    engine: VllmPolicy, loaded: LoadedModel
) -> None:
    changed = changed_copy(loaded.model, endless=True)
    await asyncio.to_thread(engine.publish, changed.state_dict(), version=20)
    (pid,) = engine.pids
    segments, before = segments_of(pid), engine.counts()
    assert segments
    pending: set[asyncio.Task[Completion]] = set()
    while not pending:  # this process may stall until all have ended: then there are others
        flying = await begun(engine)
        os.kill(pid, signal.SIGSTOP)  # what has not been answered by now is not, until it is killed
        _, pending = await asyncio.wait(flying, timeout=1)
        if not pending:
            os.kill(pid, signal.SIGCONT)
    # Not from `before` on: those that ended may have lost a connection which the server closed in a stall of ours.
    retries = engine.counts()["retries"]
    os.kill(pid, signal.SIGKILL)
    completions = await asyncio.gather(*flying)
    assert engine.counts()["restarts"] == before["restarts"] + 1
    assert 1 <= engine.counts()["retries"] - retries <= len(flying)
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
from sdk.policies.server_process import ServerProcess
from sdk.policies.vllm.server_command import FOR_CPUS, server_arguments
arguments = server_arguments(sys.argv[2], build=FOR_CPUS, lora_rank=0, context_tokens=None)
command = [sys.argv[1], "-m", *arguments]
process = ServerProcess("vLLM", command, url="http://unused", log=Path(sys.argv[3]), environment={})
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
