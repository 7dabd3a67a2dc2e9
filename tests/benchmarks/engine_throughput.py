"""Tokens a second of the embedded engine and of transformers' `generate`, side by side on the same prompts.

    python tests/benchmarks/engine_throughput.py [--rounds 3] [--new-tokens 48] [--threads 2]

32 rollouts in 4 groups of 8, each prompt about 245 tokens long, of which the groups share the system message with its
tools. No end token, so that both sample exactly the same number of tokens. The two alternate, because the speed of a
shared machine changes from minute to minute: read the ratio. The engine starts each run with nothing stored.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import time
from typing import Any

# Before torch is imported: threads that spin at barriers cost a shared machine a factor of ten and more.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

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


def machine() -> str:
    """Processor and cores."""
    name = platform.processor()
    try:
        with open("/proc/cpuinfo") as lines:
            name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return name or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()

    import torch
    import transformers

    from sdk.policies.embedded import EmbeddedEngine
    from sdk.policies.models import load_model

    torch.set_num_threads(options.threads)
    loaded = load_model(dtype=torch.float32)
    model = loaded.model.to("cpu")
    model.config.eos_token_id = None
    model.generation_config.eos_token_id = None
    rows = [prompt for prompt in prompts(loaded.tokenizer) for _ in range(GROUP_SIZE)]
    tokens = len(rows) * options.new_tokens
    generate_s: list[float] = []
    engine_s: list[float] = []
    with EmbeddedEngine(model) as engine:
        run_engine(engine, rows[:2], 2)
        run_generate(model, rows[:2], 2)
        for version in range(options.rounds):
            engine.publish(model.state_dict(), version=version)  # forgets what is stored
            engine_s.append(run_engine(engine, rows, options.new_tokens))
            generate_s.append(run_generate(model, rows, options.new_tokens))
            print(f"round {version}: engine {engine_s[-1]:.1f} s, generate {generate_s[-1]:.1f} s", flush=True)

    print(f"\n{machine()}, {options.threads} threads, float32")
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {loaded.name}")
    print(f"{len(rows)} rollouts in {GROUPS} groups, prompts of {len(rows[0])} tokens, {options.new_tokens} new each")
    print(f"\n{'':22}{'seconds (median)':>18}{'tokens/s':>12}")
    for name, seconds in (("generate", generate_s), ("embedded engine", engine_s)):
        print(f"{name:22}{statistics.median(seconds):18.1f}{tokens / statistics.median(seconds):12.0f}")
    ratios = [g / e for g, e in zip(generate_s, engine_s, strict=True)]
    print(f"{'ratio (median)':22}{statistics.median(ratios):18.1f}   of {', '.join(f'{r:.1f}' for r in ratios)}")


if __name__ == "__main__":
    main()
