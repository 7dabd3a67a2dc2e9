"""What a server must be able to do, found out by asking it before anything is spent."""

from __future__ import annotations

from dataclasses import dataclass

import httpx

from ...errors import ConfigError, PolicyFailure
from ..endpoint_replies import error_text
from ..protocol import Sampling
from .completions import read_answer, request_body
from .control import INCOMPLETE, broken_off, held_version, is_published

_SMALL_NUCLEUS = 1e-6
"""With this top_p the most likely token is the only one, so that its log-probability is 0."""
_TOLERANCE = 1e-3
_ASKED_TOKENS = 4
_FIRST_ANSWER_S = 300.0


@dataclass(frozen=True)
class ServerFacts:
    """The model that a server has: its name there, and the most tokens of prompt and completion together."""

    name: str
    context_tokens: int


def look_at(url: str, client: httpx.Client, *, named: str | None, publishes: bool) -> ServerFacts:
    """Ask what it serves, and sample a few tokens (the first answer takes vLLM long). `named`: the model to take.
    `publishes`: weights will be published, so that it does not matter which ones it has.

    Raises `PolicyFailure` where it does not answer as vLLM does, `ConfigError` where it lacks the model, has another
    run's weights where none will be published, or gives log-probabilities of another distribution than it samples from.
    """
    facts = _facts(url, client, named)
    _require_usable_weights(url, client, publishes=publishes)
    sampling = Sampling(temperature=1.0, top_p=_SMALL_NUCLEUS, max_tokens=_ASKED_TOKENS)
    prompt = [1, 2, 3]
    body = request_body(facts.name, prompt, sampling=sampling, max_tokens=_ASKED_TOKENS, seed=0, stop_token_ids=())
    try:
        answer = client.post(f"{url}/v1/completions", json={**body, "ignore_eos": True}, timeout=_FIRST_ANSWER_S)
    except httpx.HTTPError as error:
        raise PolicyFailure(f"vLLM at {url} gave no first answer: {type(error).__name__}: {error}") from None
    if answer.status_code != 200:
        raise PolicyFailure(f"vLLM at {url} answered HTTP {answer.status_code}: {error_text(answer.text)}")
    try:
        logprobs = read_answer(answer.text, prompt=prompt, max_tokens=_ASKED_TOKENS).logprobs
    except ValueError as error:
        raise PolicyFailure(f"vLLM at {url} gave an answer that cannot be used: {error}") from None
    if min(logprobs) < -_TOLERANCE:
        raise ConfigError(
            f"vLLM at {url} gives log-probabilities of another distribution than the one it samples from (of the only "
            f"token in the nucleus {min(logprobs):.2f}, where 0 is right): start it with --logprobs-mode "
            "processed_logprobs"
        )
    return facts


def _require_usable_weights(url: str, client: httpx.Client, *, publishes: bool) -> None:
    """Raises `PolicyFailure` where an earlier run left a part of its weights in the server, `ConfigError` where it left
    all of them and they would be taken for those that the server was started with."""
    try:
        has = held_version(url, client)
    except (httpx.HTTPError, PolicyFailure):
        return  # it need not say it while nobody gives it weights
    if has.startswith(INCOMPLETE):
        raise PolicyFailure(f"{url}: {broken_off(has)}")
    if is_published(has) and not publishes:
        raise ConfigError(
            f"vLLM at {url} has the weights that a training run published ({has}) in place of those that it was "
            "started with: start it again, with the model that is to be asked"
        )


def _facts(url: str, client: httpx.Client, named: str | None) -> ServerFacts:
    try:
        answer = client.get(f"{url}/v1/models", timeout=30.0)
        answer.raise_for_status()
        lengths = {str(model["id"]): model["max_model_len"] for model in answer.json()["data"]}
        name = named or next(iter(lengths))
        if name in lengths and lengths[name] is not None:
            return ServerFacts(name, int(lengths[name]))
    except (httpx.HTTPError, ValueError, KeyError, StopIteration, TypeError) as error:
        raise PolicyFailure(f"{url} does not answer as vLLM does: {type(error).__name__}: {error}") from None
    raise ConfigError(f"vLLM at {url} has no base model {name!r}; it has {', '.join(sorted(lengths))}")
