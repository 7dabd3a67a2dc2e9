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
from collections.abc import Callable, Sequence
from typing import Any

from sdk.freed_memory import keep_freed_memory

# Before torch is imported, for both contenders: what `import sdk` and `sdk.train` set for threads and memory.
keep_freed_memory()

GROUPS, GROUP_SIZE, PROMPT_TOKENS = 4, 8, 245

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


def alternate(
    prepare: Callable[[Any], list[Any]],
    on_engine: Callable[[Any, list[Any]], float],
    on_generate: Callable[[Any, list[Any]], float],
    *,
    rounds: int,
    threads: int,
) -> tuple[list[Any], list[float], list[float]]:
    """What `prepare` makes with the tokenizer, and the seconds that `generate` and the engine take for it in each
    round."""
    import torch

    from sdk.policies.embedded import EmbeddedEngine
    from sdk.policies.models import load_model

    torch.set_num_threads(threads)
    loaded = load_model(dtype=torch.float32)
    model = loaded.model.to("cpu")
    model.config.eos_token_id = None
    model.generation_config.eos_token_id = None
    work = prepare(loaded.tokenizer)
    generate_s: list[float] = []
    engine_s: list[float] = []
    with EmbeddedEngine(model) as engine:
        on_engine(engine, work[:2])
        on_generate(model, work[:2])
        for version in range(rounds):
            engine.publish(model.state_dict(), version=version)  # forgets what is stored
            engine_s.append(on_engine(engine, work))
            generate_s.append(on_generate(model, work))
            print(f"round {version}: engine {engine_s[-1]:.1f} s, generate {generate_s[-1]:.1f} s", flush=True)
    return work, generate_s, engine_s


def table(title: str, about: str, tokens: int, generate_s: Sequence[float], engine_s: Sequence[float]) -> str:
    """A section: what was done, and `tokens` sampled in the seconds of each contender."""
    ratios = [g / e for g, e in zip(generate_s, engine_s, strict=True)]
    lines = [f"## {title}", "", about, "", "| | seconds, median | tokens a second |", "| --- | --- | --- |"]
    for name, seconds in (("transformers `generate`", generate_s), ("embedded engine", engine_s)):
        median = statistics.median(seconds)
        lines.append(f"| {name} | {median:.1f} | {tokens / median:.0f} |")
    lines.append(f"| ratio, median of {len(ratios)} | {statistics.median(ratios):.1f} | |")
    lines += ["", "The ratio of each round: " + ", ".join(f"{ratio:.1f}" for ratio in ratios) + "."]
    return "\n".join(lines)


def section(*, rounds: int = 3, new_tokens: int = 48, threads: int = 2) -> str:
    """The result as Markdown."""
    rows, generate_s, engine_s = alternate(
        lambda tokenizer: [prompt for prompt in prompts(tokenizer) for _ in range(GROUP_SIZE)],
        lambda engine, rows: run_engine(engine, rows, new_tokens),
        lambda model, rows: run_generate(model, rows, new_tokens),
        rounds=rounds,
        threads=threads,
    )
    about = (
        f"{len(rows)} rollouts in {GROUPS} groups, prompts of about {PROMPT_TOKENS} tokens, {new_tokens} new tokens "
        f"each, float32, {threads} threads."
    )
    title = "Sampling: the embedded engine beside `generate`"
    return table(title, about, len(rows) * new_tokens, generate_s, engine_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    print(section(rounds=options.rounds, new_tokens=options.new_tokens, threads=options.threads))


if __name__ == "__main__":
    main()
