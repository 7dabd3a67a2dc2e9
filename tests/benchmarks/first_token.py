"""Streams over HTTP: the embedded engine's endpoint in both number formats beside vLLM with its defaults, all with the
embedded model.

    python tests/benchmarks/first_token.py [--rounds 3] [--streams 16] [--long 6500]

All servers run all the time and are asked in turns, each prompt with other words, so that only the template is in
their prefix caches. The first table has the time to the first token of streams that are asked for at once. In the
second some streams are under way when a long prompt arrives: the longest time that one of them waited for a token.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import httpx
from endpoint_load import serving
from vllm_server import DEFAULTS, installed_python, running

ENGINES = {dtype: f"embedded engine, {dtype}" for dtype in ("float32", "bfloat16")}
PROMPT_TOKENS, NEW_TOKENS = 270, 64
OTHERS, OTHERS_TOKENS, BEFORE_LONG = 8, 192, 16
"""Beside the long prompt: streams, the tokens of each, and how many of the first one's come before it."""
_WORDS = ("order", "lamp", "rug", "city", "stock", "refund", "policy", "kettle")
"""Of about one token each with the space before them."""


def prompt(draw: random.Random, tokens: int) -> str:
    """Of about so many tokens, in an order of its own, that asks for a long answer."""
    return f"Write a long story with these words: {' '.join(draw.choice(_WORDS) for _ in range(tokens))}"


async def stream(
    client: httpx.AsyncClient, model: str, text: str, most: int, heard: Callable[[int], None] = lambda count: None
) -> list[float]:
    """When each token came, by `time.perf_counter`; of an empty answer when it ended. `heard`: told how many came."""
    messages = [{"role": "user", "content": text}]
    body = {"model": model, "messages": messages, "max_tokens": most, "temperature": 1.0, "stream": True}
    times: list[float] = []
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        if answer.status_code != 200:
            raise RuntimeError(f"{answer.status_code}: {(await answer.aread()).decode()[:400]}")
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event: dict[str, Any] = json.loads(line.removeprefix("data: "))
            if "error" in event:
                raise RuntimeError(str(event["error"]))
            if any(choice["delta"].get("content") for choice in event["choices"]):
                times.append(time.perf_counter())
                heard(len(times))
    return times or [time.perf_counter()]


async def first_tokens(client: httpx.AsyncClient, model: str, draw: random.Random, streams: int) -> list[float]:
    """Seconds to the first token of each of so many streams, asked for at once."""
    firsts: list[float] = []
    began = time.perf_counter()

    async def one(text: str) -> None:
        firsts.append((await stream(client, model, text, NEW_TOKENS))[0] - began)

    async with anyio.create_task_group() as group:
        for text in [prompt(draw, PROMPT_TOKENS) for _ in range(streams)]:
            group.start_soon(one, text)
    return firsts


async def longest_wait(client: httpx.AsyncClient, model: str, draw: random.Random, tokens: int) -> tuple[float, float]:
    """Seconds: the longest that a stream waited for a token after a long prompt came, and that one's first token."""
    arrived, waits = anyio.Event(), list[float]()
    begun, first = math.inf, 0.0  # a stream that ends before the long prompt comes waits for nothing

    async def other(text: str) -> None:
        times = await stream(client, model, text, OTHERS_TOKENS, lambda count: count == BEFORE_LONG and arrived.set())
        late = [time for time in times if time > begun]
        waits.extend(after - before for before, after in zip([begun, *late], late, strict=False))

    async with anyio.create_task_group() as group:
        for text in [prompt(draw, PROMPT_TOKENS) for _ in range(OTHERS)]:
            group.start_soon(other, text)
        await arrived.wait()
        begun = time.perf_counter()
        first = (await stream(client, model, prompt(draw, tokens), 2))[0] - begun
    if not waits:
        raise RuntimeError("no other stream was under way when the long prompt came")
    return max(waits), first


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--long", type=int, default=6500, help="tokens of the long prompt")
    options = parser.parse_args()
    from sdk.policies.models.smollm2 import embedded_folder

    python = installed_python()
    if python is None:
        parser.error("vLLM is not installed; run `make vllm`")
    with ExitStack() as stack:
        log = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "log.txt"
        servers: dict[str, tuple[str, str]] = {}
        for dtype, who in ENGINES.items():
            name, url, _ = stack.enter_context(serving(None, "--dtype", dtype))
            servers[who] = name, url
        servers[DEFAULTS] = "model", stack.enter_context(running(python, embedded_folder(), log)).url
        found = {who: (list[float](), list[float](), list[float]()) for who in servers}
        for number in range(options.rounds + 1):  # the first one warms up
            for who, (model, base) in servers.items():
                draw = random.Random(number)
                async with httpx.AsyncClient(base_url=base, timeout=600) as client:
                    firsts = await first_tokens(client, model, draw, options.streams)
                    wait, first = await longest_wait(client, model, draw, options.long)
                if number:
                    found[who][0].extend(firsts)
                    found[who][1].append(wait)
                    found[who][2].append(first)
    median = statistics.median
    print(f"| {options.streams} streams at once | first token, median, s | the last stream's, s |\n| --- | --- | --- |")
    for who, (firsts, _, _) in found.items():
        print(f"| {who} | {median(firsts):.2f} | {max(firsts):.2f} |")
    beside = f"{OTHERS} streams beside a prompt of {options.long} tokens"
    print(f"\n| {beside} | longest wait for a token, s | its first token, s |")
    print("| --- | --- | --- |")
    for who, (_, waits, longs) in found.items():
        print(f"| {who} | {median(waits):.2f} ({min(waits):.2f} to {max(waits):.2f}) | {median(longs):.1f} |")


if __name__ == "__main__":
    anyio.run(main)
