"""Token ids in and out of `/v1/completions`: the body of a request, and its answer read with suspicion."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..endpoint_replies import error_text
from ..protocol import Sampling

_NO_LOGPROB = -9999.0
"""What vLLM sends for minus infinity and for nan (JSON has neither)."""


@dataclass(frozen=True)
class Sampled:
    """What one request brought. `abort`: the server cut it off, to take new weights."""

    token_ids: list[int]
    logprobs: list[float]
    ended: Literal["stop", "length", "abort"]


def request_body(
    model: str, prompt: Sequence[int], *, sampling: Sampling, max_tokens: int, seed: int, stop_token_ids: Sequence[int]
) -> dict[str, Any]:
    """The JSON of one request. It names every setting that changes the distribution: servers take those that a request
    leaves out from the model's generation config, and the log-probabilities would be of another distribution."""
    return {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": 0,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "seed": seed,
        "stop_token_ids": list(stop_token_ids),
        "logprobs": 0,
        "return_token_ids": True,
        "stream": False,
    }


def read_answer(text: str, *, prompt: Sequence[int], max_tokens: int) -> Sampled:
    """The answer in the body of a 200. Raises `ValueError` that says what is wrong with it."""
    try:
        body = json.loads(text)
        (choice,) = body["choices"]
        finish = choice["finish_reason"]
        token_ids = [int(token) for token in choice["token_ids"]]
        held = choice["logprobs"]
        logprobs = [float(value) for value in held["token_logprobs"]] if held is not None else []
        heard = choice["prompt_token_ids"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"no completion with token ids ({type(error).__name__}: {error}): {error_text(text)}"
        ) from None
    if finish not in ("stop", "length", "abort"):
        raise ValueError(f"finish_reason is {finish!r}; it must be stop, length or abort")
    if heard != list(prompt):
        raise ValueError(f"the server read a prompt of {len(heard or [])} tokens where {len(prompt)} were sent")
    if len(token_ids) != len(logprobs):
        raise ValueError(f"{len(token_ids)} tokens but {len(logprobs)} log-probabilities")
    if len(token_ids) > max_tokens:
        raise ValueError(f"{len(token_ids)} tokens where at most {max_tokens} were asked for")
    if not all(math.isfinite(value) and value > _NO_LOGPROB for value in logprobs):
        raise ValueError("a log-probability that is no finite number; see --logprobs-mode in docs/vllm.md")
    return Sampled(token_ids, logprobs, finish)
