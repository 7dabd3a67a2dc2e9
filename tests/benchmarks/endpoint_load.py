"""The endpoint under load: streams for minutes with the server's memory, fuzzed requests over all its paths, and the
heaviest bodies one after the other.

    python tests/benchmarks/endpoint_load.py [--model FOLDER] [--streams 64] [--minutes 30] [--requests 20000] [--heavy]

`toolbake serve` runs in a process of its own. Beside each part `/health` is asked twice a second, beside a heavy body
twenty times, each time over a new connection. A status of 500 or more (but 503 of a full queue), a stream that ends
with an error and a lost connection are printed with the request, and the program exits with 1. The embedded model
answers where no folder is given; for the fuzzed requests a small one is enough.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import re
import string
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.to_thread
import httpx
import psutil

ORDERS = "You answer questions about orders. Look an order up before you speak of it. "
TOOL = {
    "name": "get_order",
    "description": "Read an order.",
    "parameters": {"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]},
}
_JSON = {"content-type": "application/json"}
_AT_ONCE = 16
"""Fuzzed requests under way."""


@dataclass
class Found:
    statuses: Counter[int] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    health: list[float] = field(default_factory=list)
    """Seconds until `/health` answered."""
    first: list[float] = field(default_factory=list)
    """Seconds until a stream's first event."""
    tokens: int = 0
    megabytes: list[float] = field(default_factory=list)
    """Of the server, by minute."""

    def take(self, status: int, text: str, asked: object) -> None:
        self.statuses[status] += 1
        # Of a stream that broke, the last event is the error.
        broke = any(mark in text for mark in ('"type": "server_error"', '"code": "server_error"', "engine_failed"))
        if (status >= 500 and '"queue_full"' not in text) or broke:
            self.faults.append(f"{status} {text[-400:]} <- {asked!r:.800}")


@contextmanager
def serving(model: str | None, *more: str) -> Iterator[tuple[str, str, psutil.Process]]:
    command = [sys.executable, "-m", "toolbake", "serve", *([model] if model else []), "--port", "0"]
    command += ["--engine", "embedded", *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            said = re.match(r"(\S+) is served at (\S+)/v1", process.stdout.readline())
            assert said is not None, "the server did not start"
            yield said[1], said[2], psutil.Process(process.pid)
        finally:
            process.terminate()


def ask_health(url: str, ended: Any, told: Any, every_s: float) -> None:
    """In a process of its own, which measures the server alone: how long each answer took, once all is over."""
    took = []
    with httpx.Client(timeout=120, limits=httpx.Limits(max_keepalive_connections=0)) as client:
        while not ended.wait(every_s):
            began = time.perf_counter()
            assert client.get(f"{url}/health").status_code == 200
            took.append(time.perf_counter() - began)
    told.put(took)


@asynccontextmanager
async def watched(url: str, process: psutil.Process, found: Found, *, every_s: float = 0.5) -> AsyncIterator[None]:
    async def read_memory() -> None:
        while True:
            found.megabytes.append(process.memory_info().rss / 2**20)
            await anyio.sleep(60)

    apart = multiprocessing.get_context("spawn")
    ended, told = apart.Event(), apart.Queue()
    apart.Process(target=ask_health, args=(url, ended, told, every_s), daemon=True).start()
    async with anyio.create_task_group() as group:
        group.start_soon(read_memory)
        yield
        group.cancel_scope.cancel()
    found.megabytes.append(process.memory_info().rss / 2**20)
    ended.set()
    found.health = await anyio.to_thread.run_sync(told.get)


async def stream_for(url: str, model: str, seconds: float, number: int, found: Found) -> None:
    """Conversations one after the other: every other one with tools, each prompt new but for its beginning."""
    draw, until = random.Random(number), time.perf_counter() + seconds
    async with httpx.AsyncClient(timeout=600) as client:
        while time.perf_counter() < until:
            words = " ".join("".join(draw.choices(string.ascii_lowercase, k=5)) for _ in range(draw.randint(5, 200)))
            messages = [
                {"role": "system", "content": ORDERS * 8},
                {"role": "user", "content": f"Where is {words}?"},
            ]
            body = {"model": model, "messages": messages, "stream": True, "max_tokens": draw.randint(8, 64)}
            body |= {"stream_options": {"include_usage": True}, "temperature": 1.0}
            if draw.random() < 0.5:
                body["tools"] = [{"type": "function", "function": TOOL}]
            began, first, lines = time.perf_counter(), None, []
            async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as reply:
                async for line in reply.aiter_lines():
                    if first is None and line.startswith("data: "):
                        first = time.perf_counter() - began
                    lines.append(line)
            found.first += [] if first is None else [first]
            found.take(reply.status_code, "\n".join(lines), body)
            usage = next((json.loads(x[6:])["usage"] for x in reversed(lines) if '"completion_tokens"' in x), None)
            found.tokens += usage["completion_tokens"] if usage else 0


# ---------------------------------------------------------------------------------------------------------------------
# Fuzzed requests: fine ones, of which some parts are exchanged, left out or doubled.

SCALARS = [
    None,
    True,
    0,
    -1,
    2**70,
    1e308,
    0.5,
    "",
    "x",
    "user",
    "tool",
    "auto",
    "<tool_call>",
    "a" * 3000,
    "\x00",
    "é👩‍👧",
]


def fine_body(model: str, path: str, draw: random.Random) -> dict[str, Any]:
    more = {"temperature": draw.random() * 2, "top_p": draw.random() or 1, "stream": draw.random() < 0.3}
    choice = draw.choice(["none", "auto", "required"])
    schema = {"type": "object", "properties": {"a": {"enum": ["x", 1, None]}}, "required": ["a"]}
    text = draw.choice(["Hi", "Where is order 4417?", "é" * 50, ""])
    if path == "/v1/responses":
        called = {"type": "function_call", "call_id": "c", "name": "get_order", "arguments": '{"order_id": "1"}'}
        items = [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]},
            called,
            {"type": "function_call_output", "call_id": "c", "output": "shipped"},
        ]
        body: dict[str, Any] = {"model": model, "input": draw.choice([text, items]), "max_output_tokens": 4, **more}
        body["tools"] = [{"type": "function", "strict": draw.random() < 0.5, **TOOL}]
        body["text"] = {"format": {"type": "json_schema", "name": "a", "schema": schema}}
    else:
        function = {"name": "get_order", "arguments": '{"order_id": "1"}'}
        messages = [
            {"role": "user", "content": text},
            {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": "c", "content": "shipped"},
        ]
        body = {"model": model, "messages": messages[: draw.choice([1, 3])], "max_tokens": 4, **more}
        body["tools"] = [{"type": "function", "function": {"strict": draw.random() < 0.5, **TOOL}}]
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
        body |= {
            "n": draw.randint(1, 3),
            "seed": draw.randint(-9, 9),
            "stop": ["x"],
            "logprobs": True,
            "top_logprobs": 2,
        }
    body["tool_choice"] = choice
    return {
        name: value for name, value in body.items() if name in ("model", "messages", "input") or draw.random() < 0.5
    }


def anything(draw: random.Random, depth: int = 0) -> Any:
    kind = draw.random()
    if kind < 0.7 or depth > 3:
        return draw.choice(SCALARS)
    if kind < 0.85:
        return [anything(draw, depth + 1) for _ in range(draw.randint(0, 3))]
    names = ["type", "content", "role", "name", "function", "properties", "$ref", "pattern", "enum", "x"]
    return {draw.choice(names): anything(draw, depth + 1) for _ in range(draw.randint(0, 3))}


def spoil(value: Any, draw: random.Random) -> Any:
    """`value` with one of its parts, somewhere in it, exchanged, left out or doubled."""
    if draw.random() < 0.25 or not isinstance(value, dict | list) or not value:
        return anything(draw)
    if isinstance(value, list):
        place = draw.randrange(len(value))
        new = draw.choice([[], [spoil(value[place], draw)], [value[place]] * 2])
        return [*value[:place], *new, *value[place + 1 :]]
    name = draw.choice(list(value))
    if draw.random() < 0.2:
        return {other: one for other, one in value.items() if other != name}
    return {**value, name: spoil(value[name], draw)} if draw.random() < 0.85 else {**value, "x_" + name: value[name]}


def fuzzed(model: str, draw: random.Random) -> dict[str, Any]:
    """A request, as `httpx.AsyncClient.request` takes it."""
    path = draw.choice(["/v1/chat/completions"] * 4 + ["/v1/responses"] * 4 + ["/v1/models", f"/v1/models/{model}"])
    if draw.random() < 0.1:
        path = draw.choice(
            ["/metrics", "/health", "/ready", "/", "/v1", "/v1/completions", "/v1/models/%00/../x", "//"]
        )
    method = draw.choices(["POST", "GET", "PUT", "DELETE", "HEAD", "OPTIONS"], [90, 20, 1, 1, 1, 1])[0]
    headers = {"content-type": "application/json", "x-request-id": draw.choice(["a", "x" * 200, "a b"])}
    body: Any = fine_body(model, path, draw)
    for _ in range(draw.choice([0, 1, 1, 2, 3])):
        body = spoil(body, draw)
    content = json.dumps(body).encode()
    if draw.random() < 0.05:
        content = draw.choice(
            [content[: draw.randrange(len(content) + 1)], b"[" * 5000, b"\xff" + content, b"", b"NaN"]
        )
        headers |= {"content-type": draw.choice(["application/json", "text/plain", "application/json; charset=x"])}
    if draw.random() < 0.02:
        headers |= draw.choice([{"host": "evil.example"}, {"content-encoding": "gzip"}, {"authorization": "Bearer"}])
    return {"method": method, "url": path, "content": content, "headers": headers}


async def fuzz(url: str, model: str, requests: int, found: Found) -> None:
    left = iter(range(requests))

    async def ask() -> None:
        async with httpx.AsyncClient(base_url=url, timeout=120) as client:
            for number in left:
                asked = fuzzed(model, random.Random(number))
                try:
                    reply = await client.request(**asked)
                    found.take(reply.status_code, reply.text, asked)
                except httpx.TransportError as error:
                    found.faults.append(f"{type(error).__name__} {error} <- {asked!r:.800}")

    async with anyio.create_task_group() as group:
        for _ in range(_AT_ONCE):
            group.start_soon(ask)


# ---------------------------------------------------------------------------------------------------------------------


# Bodies near the limits.


def heavy_bodies() -> Iterator[tuple[str, dict[str, Any]]]:
    """What a chat request has beside its model and limit, by name."""

    def by(schema: dict[str, Any]) -> dict[str, Any]:
        return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}

    def of(count: int) -> dict[str, Any]:
        return {"type": "object", "properties": {f"field_{n}": {"type": "string"} for n in range(count)}}

    def tools(count: int, **more: Any) -> dict[str, Any]:
        return {"tools": [{"type": "function", "function": {**TOOL, "name": f"t{n}", **more}} for n in range(count)]}

    deep: dict[str, Any] = {"type": "string"}
    for _ in range(45):
        deep = {"type": "object", "properties": {"a": deep}, "required": ["a"]}
    yield "20,000 tools", tools(20_000)
    yield "1,024 strict tools of 12 fields", tools(1024, strict=True, parameters=of(12))
    yield "16 MB of text", {"messages": [{"role": "user", "content": "a" * (16 * 2**20 - 300)}]}
    yield "190,000 values", {"metadata": {str(n): 1 for n in range(190_000)}}
    yield "9,999 messages", {"messages": [{"role": "user", "content": "Hello there."}] * 9_999}
    yield "a schema of 95 levels", by(deep)
    yield "a schema of 5,000 fields", by(of(5_000))
    yield "a schema of 20,000 forms", by({"anyOf": [of(1)] * 20_000})
    yield "a bias of 190,000 tokens", {"logit_bias": {str(n): 1.0 for n in range(190_000)}}
    yield "190,000 stop strings", {"stop": ["a"] * 190_000}
    yield "four stop strings of 4 MB", {"stop": ["ab" * 1_900_000] * 4, "max_tokens": 40}
    alternatives = {"logprobs": True, "top_logprobs": 20, "logit_bias": {"2": -100.0}}
    yield "16 answers of 500 tokens, log-probabilities", {"n": 16, "max_tokens": 500, **alternatives}


async def ask_heavy(url: str, model: str, process: psutil.Process) -> None:
    """Prints the longest that `/health` took beside each body."""
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        for name, more in heavy_bodies():
            body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, **more}
            found, content = Found(), json.dumps(body).encode()
            async with watched(url, process, found, every_s=0.05):
                await anyio.sleep(2)  # the other process has begun
                reply = await client.post("/v1/chat/completions", content=content, headers=_JSON)
            longest = max(found.health)
            print(
                f"{name}, {len(content) / 1e6:.1f} MB: {reply.status_code}, /health longest {longest:.2f} s", flush=True
            )


# ---------------------------------------------------------------------------------------------------------------------


def told(title: str, found: Found) -> None:
    found.health.sort()
    p99 = found.health[int(0.99 * (len(found.health) - 1))]
    print(f"{title}: statuses {dict(sorted(found.statuses.items()))}, {len(found.faults)} faults")
    print(f"  /health: {len(found.health)} times, median {found.health[len(found.health) // 2]:.3f} s, ", end="")
    print(f"99 % {p99:.3f} s, longest {found.health[-1]:.3f} s")
    print(f"  memory of the server by minute, MB: {' '.join(f'{one:.0f}' for one in found.megabytes)}")
    if found.first:
        found.first.sort()
        print(f"  {len(found.first)} streams, {found.tokens} tokens, first event: ", end="")
        print(f"median {found.first[len(found.first) // 2]:.2f} s, longest {found.first[-1]:.2f} s")
    for fault in found.faults[:20]:
        print(f"  {fault}")


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model folder; the embedded model where not given")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--heavy", action="store_true", help="also the heaviest bodies")
    options = parser.parse_args()
    faults = 0
    with serving(options.model) as (model, url, process):
        if options.streams and options.minutes:
            found = Found()
            async with watched(url, process, found), anyio.create_task_group() as group:
                for number in range(options.streams):
                    group.start_soon(stream_for, url, model, options.minutes * 60, number, found)
            told(f"{options.streams} streams for {options.minutes:g} minutes", found)
            faults += len(found.faults)
        if options.requests:
            found, began = Found(), time.perf_counter()
            async with watched(url, process, found):
                await fuzz(url, model, options.requests, found)
            told(f"{options.requests} fuzzed requests in {time.perf_counter() - began:.0f} s", found)
            faults += len(found.faults)
        if options.heavy:
            await ask_heavy(url, model, process)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(anyio.run(main))
