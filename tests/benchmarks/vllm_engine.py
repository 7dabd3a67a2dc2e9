"""Tokens a second of the embedded engine, of transformers' `generate` and of vLLM on a CPU, and how long new weights
take to get to vLLM.

    python tests/benchmarks/vllm_engine.py [--rounds 3] [--new-tokens 48] [--threads 2]

32 rollouts in 4 groups of 8: the prompts of `engine_throughput`. All three sample the same number of tokens of the same
prompts, in turns, because the speed of a shared machine changes from minute to minute: read the ratios. Before each run
the two engines get the weights again, so that nothing is stored from the run before; how long that takes with vLLM is
the second table. Its server runs all the time; how much processor it took while the others ran is said. `make vllm`
comes first.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

# Its import sets what must be set before torch is loaded.
from engine_throughput import (
    ENGINE,
    GENERATE,
    GROUP_SIZE,
    GROUPS,
    about,
    all_rows,
    forgetful,
    in_turns,
    opened,
    run_engine,
    run_generate,
    table,
)
from engine_throughput import section as section_without_vllm

sys.path.insert(0, str(Path(__file__).parents[1] / "policies" / "vllm_server"))

from vllm_environment import VLLM, installed_python

RANK = 16
PEER = VLLM.replace("==", " ")
CONTEXT_TOKENS = 1024
FOLDER, TRANSFER = "all 135 M, through a folder", "all 135 M, by transfer through shared memory"
ADAPTER = f"LoRA adapter of rank {RANK}"


class Served(NamedTuple):
    """vLLM with the model, for use outside of an event loop."""

    policy: Any
    portal: Any

    def run(self, rows: list[list[int]], new_tokens: int) -> float:
        """Seconds for all rows at once."""
        from sdk.policies.protocol import Sampling

        sampling = Sampling(max_tokens=new_tokens)

        async def go() -> int:
            asked = (self.policy.sample(row, sampling=sampling, seed=i) for i, row in enumerate(rows))
            return sum(len(completion.token_ids) for completion in await asyncio.gather(*asked))

        start = time.perf_counter()
        made = self.portal.call(go)
        taken = time.perf_counter() - start
        if made != len(rows) * new_tokens:
            raise RuntimeError(f"vLLM made {made} tokens instead of {len(rows) * new_tokens}")
        return taken

    def processor_s(self) -> float:
        """What the processes of the server have used of the processors so far."""
        import psutil

        server = psutil.Process(self.policy.pids[0])
        times = [process.cpu_times() for process in (server, *server.children(recursive=True))]
        return sum(used.user + used.system for used in times)


@contextmanager
def serving(loaded: Any, python: Path) -> Iterator[Served]:
    """A vLLM server with the model, which ends no text of its own accord."""
    from anyio.from_thread import start_blocking_portal

    from sdk.policies.vllm import VllmOptions, open_vllm
    from sdk.policies.vllm.weights import untied

    # vLLM takes the end token from the tokenizer, too.
    tokenizer = copy.deepcopy(loaded.tokenizer)
    tokenizer.eos_token = None
    with tempfile.TemporaryDirectory() as folder, start_blocking_portal() as portal:
        start = untied(loaded.model, tokenizer, Path(folder) / "start")
        opening = open_vllm(
            str(start),
            VllmOptions(python=str(python), publish="transfer"),
            lora_rank=RANK,
            context_tokens=CONTEXT_TOKENS,
            folder=Path(folder) / "vllm",
        )
        with portal.wrap_async_context_manager(opening) as policy:
            yield Served(policy, portal)


@contextmanager
def through_a_folder(policy: Any) -> Iterator[None]:
    """In the block it publishes as one that was opened with `publish: "checkpoint"`, to the same server: a second
    policy there would take these weights away again."""
    plane, policy._plane = policy._plane, None
    try:
        yield
    finally:
        policy._plane = plane


def timed(action: Callable[[], object], into: list[float]) -> None:
    start = time.perf_counter()
    action()
    into.append(time.perf_counter() - start)


def measure(
    rounds: int, new_tokens: int, threads: int, python: Path
) -> tuple[dict[str, list[float]], dict[str, list[float]], float]:
    """Seconds of each contender and of each way to publish in each round, and the share of one processor that vLLM took
    while the others ran."""
    import peft

    published: dict[str, list[float]] = {FOLDER: [], TRANSFER: [], ADAPTER: []}
    with opened(threads) as (loaded, engine), serving(loaded, python) as served:
        model, rows, policy = loaded.model, all_rows(loaded.tokenizer), served.policy
        config = peft.LoraConfig(r=RANK, target_modules="all-linear", task_type="CAUSAL_LM")
        adapted = peft.get_peft_model(copy.deepcopy(model), config)
        run_engine(engine, rows[:2], 2)
        run_generate(model, rows[:2], 2)
        served.run(rows[:2], 2)
        idle_s, idle_used_s = 0.0, 0.0

        def on_vllm() -> float:
            timed(lambda: policy.publish_adapter(adapted, version=1), published[ADAPTER])
            with through_a_folder(policy):
                timed(lambda: policy.publish(model.state_dict(), version=2), published[FOLDER])
            timed(lambda: policy.publish(model.state_dict(), version=3), published[TRANSFER])
            return served.run(rows, new_tokens)

        def without_vllm(run: Callable[[], float]) -> Callable[[], float]:
            def watched() -> float:
                nonlocal idle_s, idle_used_s
                used = served.processor_s()
                taken = run()
                idle_s, idle_used_s = idle_s + taken, idle_used_s + served.processor_s() - used
                return taken

            return watched

        contenders = {
            ENGINE: without_vllm(forgetful(engine, model, lambda: run_engine(engine, rows, new_tokens))),
            PEER: on_vllm,
            GENERATE: without_vllm(lambda: run_generate(model, rows, new_tokens)),
        }
        taken = in_turns(contenders, rounds=rounds)
    return taken, published, idle_used_s / idle_s


def section(*, rounds: int = 3, new_tokens: int = 48, threads: int = 2) -> str:
    """The result as Markdown; without vLLM, the two others and how to install it."""
    python = installed_python()
    if python is None:
        without = section_without_vllm(rounds=rounds, new_tokens=new_tokens, threads=threads)
        return f"{without}\n\nvLLM was left out: it is not installed (`make vllm`)."
    taken, published, idle = measure(rounds, new_tokens, threads, python)
    told = (
        f"{about(new_tokens, threads)} vLLM: its own choice of threads, requests over HTTP, each with a seed; while "
        f"the others ran, it took {idle:.0%} of a processor."
    )
    title = "Sampling: the embedded engine beside `generate` and vLLM on a CPU"
    lines = [
        table(title, told, GROUPS * GROUP_SIZE * new_tokens, taken),
        "",
        "| weights published to vLLM | seconds, median | least, most |",
        "| --- | --- | --- |",
    ]
    for name, seconds in published.items():
        lines.append(f"| {name} | {statistics.median(seconds):.2f} | {min(seconds):.2f}, {max(seconds):.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    print(section(rounds=options.rounds, new_tokens=options.new_tokens, threads=options.threads))


if __name__ == "__main__":
    main()
