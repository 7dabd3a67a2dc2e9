"""Policies on `TokenServer`s, and what these say."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import torch
from token_server import TokenServer, token

from sdk.policies.protocol import Sampling
from sdk.policies.vllm import VllmOptions, VllmPolicy, open_vllm

EIGHT = Sampling(max_tokens=8)


@asynccontextmanager
async def opened(*servers: TokenServer, folder: Path | None = None, **options: Any) -> AsyncIterator[VllmPolicy]:
    urls = tuple(server.url for server in servers)
    async with open_vllm("unused", VllmOptions(urls=urls, **options), folder=folder) as policy:
        yield policy


def state(value: float) -> dict[str, torch.Tensor]:
    return {"weight": torch.full((4,), value)}


def tokens_of(weights: str, seed: int, count: int, first_place: int = 0) -> list[int]:
    return [token(weights, seed, place) for place in range(first_place, first_place + count)]
