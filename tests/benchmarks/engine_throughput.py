"""What `vllm_engine` and `rollout_sampling` share: timed sampling by the embedded engine and by `generate`.

Contenders take turns, because the speed of a shared machine changes from minute to minute, and each run is timed by the
clock and in processor seconds, which other programs change less: read the ratios. Every one begins with nothing stored.

Axes: N rows, P prompts, L tokens of the longest row.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from sdk.process import tune_process

# Before torch is imported, for both contenders: what the `toolbake` command sets for threads and memory.
tune_process()

PROMPT_TOKENS = 245
ENGINE, ENGINE_BF16 = "embedded engine, float32", "embedded engine, bfloat16"
ASKED = ("Where is order {}?", "Refund order {}, it broke.", "Do you have SKU-{}?", "Who is customer {}?")

TOOLS = [
    ("find_customer", "Find customers by name or e-mail address.", {"query": "string"}),
    ("list_orders", "List a customer's orders, newest first.", {"customer_id": "string", "limit": "integer"}),
    ("get_order", "Read one order with its items and its status.", {"order_id": "string"}),
    ("refund_order", "Refund an order that was delivered.", {"order_id": "string", "reason": "string"}),
    ("change_address", "Change where an order that has not left goes.", {"order_id": "string", "address": "string"}),
    ("check_stock", "How many pieces of an article are in stock.", {"sku": "string"}),
]


class Seconds(NamedTuple):
    """What a run took, and its model's processor seconds: of this process, or of vLLM's server."""

    clock: float
    processor: float


@contextmanager
def timed(into: list[Seconds], processor_s: Callable[[], float] = time.process_time) -> Iterator[None]:
    """Adds what the block took."""
    began, used = time.perf_counter(), processor_s()
    yield
    into.append(Seconds(time.perf_counter() - began, processor_s() - used))


def prompts(tokenizer: Any, count: int) -> list[list[int]]:
    """Different prompts of one length, which share the system message with its tools."""
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
    out = []
    for number in range(count):
        text = ASKED[number % len(ASKED)].format(4417 + number)
        messages = [{"role": "user", "content": text + " Please answer in one or two sentences."}]
        ids = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, return_dict=False)
        filler = tokenizer.encode(" please", add_special_tokens=False)
        end = len(ids) - 5
        out.append(ids[:end] + filler * max(PROMPT_TOKENS - len(ids), 0) + ids[end:])
    return out


def padded(rows: Sequence[Sequence[int]]) -> tuple[Any, Any]:
    """(token ids, which of them are tokens), both (N, L), padded on the left."""
    import torch

    longest = max(map(len, rows))
    ids_NL = torch.tensor([[0] * (longest - len(row)) + list(row) for row in rows])
    seen_NL = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    return ids_NL, seen_NL


def generate(model: Any, ids_NL: Any, seen_NL: Any, new_tokens: int, cache: Any = None, **options: Any) -> Any:
    """`generate`'s tokens, (N, L + `new_tokens`). `cache`: the keys and values of the first tokens."""
    import torch

    with torch.inference_mode():
        out = model.generate(
            ids_NL,
            attention_mask=seen_NL,
            **({"do_sample": True, "top_k": 0} | options),
            max_new_tokens=new_tokens,
            pad_token_id=0,
            **({} if cache is None else {"past_key_values": cache}),
        )
    if out.shape[1] != ids_NL.shape[1] + new_tokens:
        raise RuntimeError(f"generate made {out.shape[1] - ids_NL.shape[1]} tokens a row instead of {new_tokens}")
    return out


def prefilled(model: Any, rows: Sequence[Sequence[int]]) -> tuple[Any, Any, Any]:
    """`padded` rows, and a cache of all but the last token of each, for which each different row was computed once."""
    import torch
    from transformers import DynamicCache

    different = list(dict.fromkeys(map(tuple, rows)))
    ids_PL, seen_PL = padded(different)
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        model(
            ids_PL[:, :-1],
            attention_mask=seen_PL[:, :-1],
            position_ids=(seen_PL.cumsum(1) - 1).clamp(min=0)[:, :-1],
            past_key_values=cache,
            logits_to_keep=1,
        )
    place = {row: index for index, row in enumerate(different)}
    owners_N = torch.tensor([place[tuple(row)] for row in rows])
    cache.batch_select_indices(owners_N)
    return ids_PL[owners_N], seen_PL[owners_N], cache


def run_generate(model: Any, rows: list[list[int]], new_tokens: int, *, prefill_once: bool = False) -> Seconds:
    """One batch of all rows."""
    import torch

    torch.manual_seed(0)
    taken: list[Seconds] = []
    with timed(taken):
        ids_NL, seen_NL, cache = prefilled(model, rows) if prefill_once else (*padded(rows), None)
        generate(model, ids_NL, seen_NL, new_tokens, cache)
    return taken[0]


def run_engine(engine: Any, rows: list[list[int]], new_tokens: int) -> Seconds:
    """All rows at once."""
    from sdk.policies.protocol import Sampling

    async def go() -> int:
        sampling = Sampling(max_tokens=new_tokens)
        done = await asyncio.gather(*(engine.sample(r, sampling=sampling, seed=i) for i, r in enumerate(rows)))
        return sum(len(c.token_ids) for c in done)

    taken: list[Seconds] = []
    with timed(taken):
        made = asyncio.run(go())
    if made != len(rows) * new_tokens:
        raise RuntimeError(f"the engine made {made} tokens instead of {len(rows) * new_tokens}")
    return taken[0]


class Opened(NamedTuple):
    """A model and an embedded engine with its weights."""

    loaded: Any
    engine: Any

    @property
    def model(self) -> Any:
        return self.loaded.model

    def forgetful(self, run: Callable[[Any], Seconds]) -> Callable[[], Seconds]:
        """`run` with an engine that has nothing stored."""

        def forget_and_run() -> Seconds:
            self.engine.publish(self.model.state_dict(), version=self.engine.version + 1)
            return run(self.engine)

        return forget_and_run


@contextmanager
def opened(threads: int, dtype: str = "float32", model_folder: Any = None) -> Iterator[Opened]:
    """A model, the embedded one where none is given, without an end token, and an engine with its weights."""
    import torch

    from sdk.policies.embedded import EmbeddedEngine
    from sdk.policies.models import load_model

    torch.set_num_threads(threads)
    loaded = load_model(model_folder, dtype=dtype)
    model = loaded.model.to("cpu")
    model.config.eos_token_id = None
    model.generation_config.eos_token_id = None
    with EmbeddedEngine(model) as engine:
        yield Opened(loaded, engine)


def in_turns(contenders: Mapping[str, Callable[[], Seconds]], *, rounds: int) -> dict[str, list[Seconds]]:
    """What each says it took, in each round."""
    taken: dict[str, list[Seconds]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name, run in contenders.items():
            taken[name].append(run())
            clock, processor = taken[name][-1]
            print(f"round {number}: {name}: {clock:.2f} s, {processor:.2f} processor s", flush=True)
    return taken


def table(tokens: int, taken: Mapping[str, Sequence[Seconds]], first: str = ENGINE) -> list[str]:
    """`tokens` sampled in the seconds of each contender, and how many times as long as `first` each took: the median
    of the rounds' ratios, and their spread."""
    lines = [
        "| | seconds | tokens a second | tokens a processor second | times as long | of processor time |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, seconds in taken.items():
        clock, processor = (statistics.median(one) for one in zip(*seconds, strict=True))
        ratios = [
            spread([one / its for one, its in zip(ours, firsts, strict=True)])
            for ours, firsts in zip(zip(*seconds, strict=True), zip(*taken[first], strict=True), strict=True)
        ]
        shown = ["1", "1"] if name == first else ratios
        lines.append(
            f"| {name} | {clock:.1f} | {tokens / clock:.0f} | {tokens / processor:.0f} | {' | '.join(shown)} |"
        )
    return lines


def spread(ratios: Sequence[float]) -> str:
    """The median, and the least and the largest."""
    middle, least, most = (
        f"{one:.{1 if one >= 2 else 2}f}" for one in (statistics.median(ratios), min(ratios), max(ratios))
    )
    return f"{middle} ({least} to {most})"
