"""Tokens a second of the embedded engine, of transformers' `generate` and of vLLM on a CPU, and how long new weights
take to get to vLLM.

    python tests/benchmarks/vllm_engine.py [--rounds 3] [--new-tokens 48] [--threads 2]

32 rollouts, in 4 groups of 8 and of 32 different prompts. All sample the same number of tokens of the same prompts.
`generate` and vLLM are measured as a competent user runs them, too: in bfloat16, each prompt computed once, compiled.
Before each run the engines drop what they have stored. vLLM is left out where `make vllm` has not been run.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

# Its import sets what must be set before torch is loaded.
from engine_throughput import (
    ENGINE,
    ENGINE_BF16,
    PROMPT_TOKENS,
    Seconds,
    in_turns,
    opened,
    prompts,
    run_engine,
    run_generate,
    table,
)
from vllm_server import DEFAULTS, FOR_TRAINING, RANK, Vllm, by_default, for_training, installed_python

SHAPES = {"4 groups of 8": (4, 8), "32 different prompts": (32, 1)}
FOLDER, TRANSFER = "all 135 M, through a folder", "all 135 M, by transfer through shared memory"
ADAPTER = f"LoRA adapter of rank {RANK}"


@contextmanager
def through_a_folder(policy: Any) -> Iterator[None]:
    """In the block it publishes as one that was opened with `publish: "checkpoint"`, to the same server: a second
    policy there would take these weights away again."""
    plane, policy._plane = policy._plane, None
    try:
        yield
    finally:
        policy._plane = plane


def publications(served: Vllm, model: Any, rounds: int) -> list[str]:
    """Seconds of each way to publish, as a table."""
    import peft

    policy, published = served.policy, {name: list[float]() for name in (FOLDER, TRANSFER, ADAPTER)}
    config = peft.LoraConfig(r=RANK, target_modules="all-linear", task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(copy.deepcopy(model), config)

    def time_it(name: str, action: Callable[[], object]) -> None:
        start = time.perf_counter()
        action()
        published[name].append(time.perf_counter() - start)

    for _ in range(rounds):
        time_it(ADAPTER, lambda: policy.publish_adapter(adapted, version=1))
        with through_a_folder(policy):
            time_it(FOLDER, lambda: policy.publish(model.state_dict(), version=2))
        time_it(TRANSFER, lambda: policy.publish(model.state_dict(), version=3))
    lines = ["| weights published to vLLM | seconds, median | least, most |", "| --- | --- | --- |"]
    for name, seconds in published.items():
        lines.append(f"| {name} | {statistics.median(seconds):.2f} | {min(seconds):.2f}, {max(seconds):.2f} |")
    return lines


def contenders(stack: ExitStack, threads: int) -> tuple[dict[str, Callable[[Any, int], Seconds]], list[Any]]:
    """Each samples so many tokens of each row. And what is needed to publish weights: the server, the model."""
    plain, short = (stack.enter_context(opened(threads, dtype)) for dtype in ("float32", "bfloat16"))
    done: dict[str, Callable[[Any, int], Seconds]] = {
        ENGINE: lambda rows, new: plain.forgetful(lambda engine: run_engine(engine, rows, new))(),
        ENGINE_BF16: lambda rows, new: short.forgetful(lambda engine: run_engine(engine, rows, new))(),
        "`generate`, float32, one batch": lambda rows, new: run_generate(plain.model, rows, new),
        "`generate`, float32, each prompt computed once": lambda rows, new: run_generate(
            plain.model, rows, new, prefill_once=True
        ),
        "`generate`, bfloat16, each prompt computed once": lambda rows, new: run_generate(
            short.model, rows, new, prefill_once=True
        ),
    }
    if (python := installed_python()) is None:
        return done, []
    training = stack.enter_context(for_training(plain.loaded, python))
    defaults = stack.enter_context(by_default(plain.loaded, python))
    done[FOR_TRAINING], done[DEFAULTS] = training.run_rows, defaults.run_rows
    return done, [training, plain.model]


def section(*, rounds: int = 3, new_tokens: int = 48, threads: int = 2) -> str:
    """The result as Markdown."""
    from sdk.policies.models.loading import load_tokenizer

    tokenizer, lines = load_tokenizer().tokenizer, list[str]()
    with ExitStack() as stack:
        runs, publishing = contenders(stack, threads)
        warm = prompts(tokenizer, 2)
        for run in runs.values():
            run(warm, 4)
        for name, (groups, size) in SHAPES.items():
            rows = [prompt for prompt in prompts(tokenizer, groups) for _ in range(size)]
            print(name, flush=True)
            taken = in_turns({one: partial(run, rows, new_tokens) for one, run in runs.items()}, rounds=rounds)
            lines += [f"{name}:", "", *table(len(rows) * new_tokens, taken), ""]
        if publishing:
            lines += publications(*publishing, rounds)
        else:
            lines.append("vLLM was left out: it is not installed (`make vllm`).")
    return "\n".join(
        [
            "## Sampling: the embedded engine beside `generate` and vLLM on a CPU",
            "",
            f"32 rollouts of one turn, prompts of about {PROMPT_TOKENS} tokens, {new_tokens} new tokens each, "
            f"{threads} threads; {rounds} rounds. vLLM chooses its threads itself and is asked over HTTP, after a "
            "warm-up; its processor seconds are those of its server.",
            "",
            *lines,
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    print(section(rounds=options.rounds, new_tokens=options.new_tokens, threads=options.threads))


if __name__ == "__main__":
    main()
