"""For all tests."""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from free_ports import free_port
from hypothesis import settings

# By default the youngest generation is collected after 700 new containers, and all that torch, transformers and pytest
# hold every now and then: a sixth of the tests' processor time. `toolbake` sets the same in its processes.
gc.set_threshold(50_000, *gc.get_threshold()[1:])

# A machine that others use too may take its time over any single example.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

for library in (httpx, httpx2):
    # Five seconds by default, for which a busy machine may stop a server that has just been started.
    patience = inspect.signature(library.get).parameters["timeout"].default
    patience.connect = patience.read = patience.write = patience.pool = 60.0

# The tests compare with a CPU's arithmetic, bit for bit in places; `tests/benchmarks/gpu` tests what runs on a GPU.
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
if "PYTEST_XDIST_WORKER" in os.environ:
    # Each worker has a core of its own; with more threads than cores, threads wait for each other at every barrier.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

collect_ignore = ["environments"]
"""Packages of others, with tests of theirs. pytest knows environments, but no folder of unpacked files."""

LONG_FILES = (
    "policies/vllm_server/test_vllm_real.py",
    "packaging/test_installed_quickstart.py",
    "policies/vllm_server/test_engines_served.py",
    "trainer/test_processes_sharded.py",
    "trainer/test_memory_of_a_training.py",
    "policies/vllm_server/test_vllm_started.py",
    "trainer/test_kill_and_resume.py",
    "house/test_docs_run.py",
    "trainer/test_longer_runs.py",
    "bridge/test_bridge_conformance.py",
    "bfcl/test_bfcl_replay.py",
    "exporting/test_exports.py",
    "house/test_docs_your_own_tools.py",
    "notebooks/test_notebooks.py",
    "bridge/test_bridge_orphans.py",
    "bridge/test_bridge_passing_conformance.py",
    "packaging/test_installed_core.py",
    "trainer/test_processes.py",
    "serving/test_frameworks.py",
    "sandboxes/test_recorded_servers.py",
    "sandboxes/test_recorded_examples.py",
    "trainer/test_training_runs.py",
    "trainer/test_training_by_agents.py",
    "trainer/test_tool_prompts.py",
    "trainer/test_strict_tools.py",
    "bridge/test_bridge_many_faults.py",
    "viewing/test_viewing_in_browser.py",
    "sandboxes/test_recorded_asking.py",
    "trainer/test_lora.py",
    "trainer/test_never_a_worse_model.py",
    "trainer/test_overlap_and_branches.py",
    "trainer/test_found_demonstrations.py",
    "trainer/test_audits_and_validation.py",
    "trainer/test_database_in_training.py",
    "viewing/test_hostile_rollouts.py",
    "viewing/test_odd_rollouts.py",
    "house/test_benchmark_page.py",
    "rollouts/test_server_questions.py",
    "probing/test_probes.py",
    "policies/embedded/test_engine_smollm2.py",
    "serving/test_serving_a_real_model.py",
    "serving/test_measured_sampling.py",
    "cli/test_cli_commands.py",
    "judging/test_ranked_training.py",
    "alarms/test_alarms_in_training.py",
    "evidence/test_verify_command.py",
    "evidence/test_weights_of_all_kinds.py",
    "probing/test_planted_verifiers.py",
    "house/test_docs_site.py",
    "house/test_private_names.py",
    "synthesis/test_finding_demonstrations.py",
    "trainer/test_training_with_users.py",
    "trainer/test_full_disk.py",
)
"""They take 20 seconds to minutes, with few tests. Where processes share the files, one that got such a file last
would keep all waiting."""


def pytest_configure() -> None:
    here = Path(__file__).parent
    if missing := [file for file in LONG_FILES if not (here / file).is_file()]:
        raise pytest.UsageError(f"LONG_FILES of tests/conftest.py names {missing[0]}, which is not there")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In the order in which `--no-loadscope-reorder` hands the files out: long ones first, then those of many tests."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    first = {Path(__file__).parent / file: place for place, file in enumerate(LONG_FILES)}
    tests = Counter(item.path for item in items)
    items.sort(key=lambda item: (first.get(item.path, len(first)), -tests[item.path]))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Imports make much and throw little of it away: to look for that, again and again, takes a sixth of their time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


unhandled: list[dict[str, Any]] = []
"""What went wrong in tasks and callbacks that nobody awaits."""


def watched_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    return loop


def virtual_loop() -> asyncio.AbstractEventLoop:
    from simulation import VirtualClockLoop

    loop = VirtualClockLoop()
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    return loop


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests marked `virtual_clock` wait for timers only, and run by a clock that jumps: none is too slow for them.

    Always the same two: fixtures of a module are made again for a test whose factory is another one.
    """
    return {"virtual": virtual_loop} if item.get_closest_marker("virtual_clock") else {"watched": watched_loop}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    unhandled.clear()
    result = yield
    if unhandled:
        raise AssertionError(f"in a task or callback: {unhandled[0]['message']}") from unhandled[0].get("exception")
    return result


def pytest_collection_finish() -> None:
    """What the imports made stays for good: the garbage collector need not look at it again, which takes it 0.2 s and
    more each time, and each training run asks for it several times."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def unused_tcp_port() -> int:
    return free_port()


@pytest.fixture(scope="session")
def short_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The embedded model's tokenizer and template, with the first 4,096 of its 49,152 tokens.

    They spell any text. A tiny model with all of them is little else than their embeddings, and most of what a training
    of it takes is to load and to write them, again and again.
    """
    from transformers import AutoTokenizer

    from sdk.policies.models.smollm2 import embedded_folder

    folder = tmp_path_factory.mktemp("tokenizer")
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(embedded_folder() / name, folder)
    whole = json.loads((embedded_folder() / "tokenizer.json").read_text())
    model = whole["model"]
    kept = {token: number for token, number in model["vocab"].items() if number < 4096}
    merges = [pair for pair in model["merges"] if {*pair, "".join(pair)} <= kept.keys()]
    text = json.dumps({**whole, "model": {**model, "vocab": kept, "merges": merges}})
    (folder / "tokenizer.json").write_text(text)
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="session")
def tiny_model_folder(short_tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model, 8 wide."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny") / "model"
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(short_tokenizer),
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        eos_token_id=short_tokenizer.eos_token_id,
        pad_token_id=short_tokenizer.pad_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    short_tokenizer.save_pretrained(folder)
    return folder
