"""Tokens a second of the embedded engine and of transformers' `generate`, side by side on the same prompts.

    python tests/benchmarks/engine_throughput.py [--rounds 3] [--new-tokens 48] [--threads 2]

32 rollouts in 4 groups of 8, each prompt about 245 tokens long, of which the groups share the system message with its
tools. No end token, so that both sample exactly the same number of tokens. The two alternate, because the speed of a
shared machine changes from minute to minute: read the ratio. The engine starts each run with nothing stored.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sdk.cli.process import tune_process

# Before torch is imported, for both contenders: what the `toolbake` command sets for threads and memory.
tune_process()

GROUPS, GROUP_SIZE, PROMPT_TOKENS = 4, 8, 245
ENGINE, GENERATE = "embedded engine", "transformers `generate`"

TOOLS = [
    ("find_customer", "Find customers by name or e-mail address.", {"query": "string"}),
    ("list_orders", "List a customer's orders, newest first.", {"customer_id": "string", "limit": "integer"}),
    ("get_order", "Read one order with its items and its status.", {"order_id": "string"}),
    ("refund_order", "Refund an order that was delivered.", {"order_id": "string", "reason": "string"}),
    ("change_address", "Change where an order that has not left goes.", {"order_id": "string", "address": "string"}),
    ("check_stock", "How many pieces of an article are in stock.", {"sku": "string"}),
]


def prompts(tokenizer: Any) -> list[list[int]]:
    """Four prompts of one length, one for each group."""
    tools = [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": description,
                "parameters": {
                    "type": "object",
                    "properties": {k: {"type": t} for k, t in arguments.items()},
                    "required": list(arguments)[:1],
                },
            },
        }
        for name, description, arguments in TOOLS
    ]
    asked = ["Where is order 4417?", "Refund order 12, it broke.", "Do you have SKU-9?", "Who is Ann Lee?"]
    out = []
    for text in asked[:GROUPS]:
        messages = [{"role": "user", "content": text + " Please answer in one or two sentences."}]
        ids = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, return_dict=False)
        filler = tokenizer.encode(" please", add_special_tokens=False)
        end = len(ids) - 5
        out.append(ids[:end] + filler * max(PROMPT_TOKENS - len(ids), 0) + ids[end:])
    return out


def run_generate(model: Any, rows: list[list[int]], new_tokens: int) -> float:
    """Seconds for one batch of all rows."""
    import torch

    torch.manual_seed(0)
    ids = torch.tensor(rows)
    start = time.perf_counter()
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            top_k=0,
            max_new_tokens=new_tokens,
            pad_token_id=0,
        )
    taken = time.perf_counter() - start
    if out.shape[1] != ids.shape[1] + new_tokens:
        raise RuntimeError(f"generate made {out.shape[1] - ids.shape[1]} tokens for each row instead of {new_tokens}")
    return taken


def run_engine(engine: Any, rows: list[list[int]], new_tokens: int) -> float:
    """Seconds for all rows at once."""
    from sdk.policies.protocol import Sampling

    async def go() -> int:
        sampling = Sampling(max_tokens=new_tokens)
        done = await asyncio.gather(*(engine.sample(r, sampling=sampling, seed=i) for i, r in enumerate(rows)))
        return sum(len(c.token_ids) for c in done)

    start = time.perf_counter()
    made = asyncio.run(go())
    taken = time.perf_counter() - start
    if made != len(rows) * new_tokens:
        raise RuntimeError(f"the engine made {made} tokens instead of {len(rows) * new_tokens}")
    return taken


@contextmanager
def opened(threads: int, model_folder: Path | None = None) -> Iterator[tuple[Any, Any]]:
    """A model, the embedded one where none is given, without an end token, with its tokenizer, and an embedded engine
    with its weights."""
    import torch

    from sdk.policies.embedded import EmbeddedEngine
    from sdk.policies.models import load_model

    torch.set_num_threads(threads)
    loaded = load_model(model_folder, dtype=torch.float32)
    model = loaded.model.to("cpu")
    model.config.eos_token_id = None
    model.generation_config.eos_token_id = None
    with EmbeddedEngine(model) as engine:
        yield loaded, engine


def in_turns(contenders: Mapping[str, Callable[[], float]], *, rounds: int) -> dict[str, list[float]]:
    """The seconds that each says it took, in each round."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name, run in contenders.items():
            taken[name].append(run())
        print(f"round {number}: " + ", ".join(f"{name} {s[-1]:.2f} s" for name, s in taken.items()), flush=True)
    return taken


def forgetful(engine: Any, model: Any, run: Callable[[], float]) -> Callable[[], float]:
    """`run` on an engine that has nothing stored."""

    def forget_and_run() -> float:
        engine.publish(model.state_dict(), version=engine.version + 1)
        return run()

    return forget_and_run


def alternate(
    prepare: Callable[[Any], list[Any]],
    on_engine: Callable[[Any, list[Any]], float],
    on_generate: Callable[[Any, list[Any]], float],
    *,
    rounds: int,
    threads: int,
) -> tuple[list[Any], dict[str, list[float]]]:
    """What `prepare` makes with the tokenizer, and the seconds that the engine and `generate` take for it in each
    round."""
    with opened(threads) as (loaded, engine):
        work = prepare(loaded.tokenizer)
        on_engine(engine, work[:2])
        on_generate(loaded.model, work[:2])
        contenders = {
            ENGINE: forgetful(engine, loaded.model, lambda: on_engine(engine, work)),
            GENERATE: lambda: on_generate(loaded.model, work),
        }
        return work, in_turns(contenders, rounds=rounds)


def table(title: str, about: str, tokens: int, taken: Mapping[str, Sequence[float]]) -> str:
    """A section: what was done, and `tokens` sampled in the seconds of each contender, the engine's last."""
    lines = [f"## {title}", "", about, "", "| | seconds, median | tokens a second |", "| --- | --- | --- |"]
    peers = [name for name in taken if name != ENGINE]
    for name in (*peers, ENGINE):
        median = statistics.median(taken[name])
        lines.append(f"| {name} | {median:.1f} | {tokens / median:.0f} |")
    each = []
    for name in peers:
        ratios = [peer / engine for peer, engine in zip(taken[name], taken[ENGINE], strict=True)]
        lines.append(f"| ratio to {name}, median of {len(ratios)} | {statistics.median(ratios):.1f} | |")
        each.append(f"to {name} " + ", ".join(f"{ratio:.1f}" for ratio in ratios))
    lines += ["", f"The ratio of each round: {'; '.join(each)}."]
    return "\n".join(lines)


def about(new_tokens: int, threads: int) -> str:
    """What is done, in words."""
    return (
        f"{GROUPS * GROUP_SIZE} rollouts in {GROUPS} groups, prompts of about {PROMPT_TOKENS} tokens, {new_tokens} new "
        f"tokens each, float32, {threads} threads."
    )


def all_rows(tokenizer: Any) -> list[list[int]]:
    """The prompt of every rollout."""
    return [prompt for prompt in prompts(tokenizer) for _ in range(GROUP_SIZE)]


def section(*, rounds: int = 3, new_tokens: int = 48, threads: int = 2) -> str:
    """The result as Markdown."""
    rows, taken = alternate(
        all_rows,
        lambda engine, rows: run_engine(engine, rows, new_tokens),
        lambda model, rows: run_generate(model, rows, new_tokens),
        rounds=rounds,
        threads=threads,
    )
    title = "Sampling: the embedded engine beside `generate`"
    return table(title, about(new_tokens, threads), len(rows) * new_tokens, taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    print(section(rounds=options.rounds, new_tokens=options.new_tokens, threads=options.threads))


if __name__ == "__main__":
    main()
