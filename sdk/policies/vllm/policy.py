"""vLLM as a policy: token ids in and out, over as many servers as there are."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NoReturn

import anyio
import httpx

from ...errors import PolicyFailure
from ..endpoint import error_text
from ..grammar import Grammar
from ..models.saving import open_to_readers
from ..protocol import Completion, Sampling, require_room
from .fleet import Fleet, Ticket
from .published_weights import Adapter, Checkpoint, DataPlane, Transfer, write_checkpoint
from .vllm_options import VllmOptions

logger = logging.getLogger(__name__)

# Token ids in and out of `/v1/completions`: the body of a request, and its answer read with suspicion.

_NO_LOGPROB = -9999.0
"""What vLLM sends for minus infinity and for nan (JSON has neither)."""


@dataclass(frozen=True)
class Sampled:
    """What one request brought. `abort`: the server cut it off, to take new weights."""

    token_ids: list[int]
    logprobs: list[float]
    ended: Literal["stop", "length", "abort"]


def request_body(
    model: str,
    prompt: Sequence[int],
    *,
    sampling: Sampling,
    max_tokens: int,
    seed: int,
    stop_token_ids: Sequence[int],
    grammar: Grammar | None = None,
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
        **({"structured_outputs": {"grammar": grammar.text}} if grammar is not None else {}),
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
        raise ValueError("a log-probability that is not a finite number; see --logprobs-mode in docs/vllm.md")
    return Sampled(token_ids, logprobs, finish)


_BROKEN_STATUSES = {500, 502, 503, 504}
_PAUSED = "Generation is paused"
"""What vLLM 0.33 says with HTTP 503 to requests that come while it is paused; 0.32 lets them wait."""
_FIRST_PAUSE_S = 0.2


class VllmPolicy:
    """A `Policy` and a `WeightPublisher`. Made by `open_vllm`.

    Requests belong to the event loop that opened it; weights may be published from any thread.
    """

    takes_grammars = True

    def __init__(
        self,
        fleet: Fleet,
        client: httpx.AsyncClient,
        *,
        options: VllmOptions,
        context_tokens: int,
        weights_folder: Path,
        takes_adapters: bool,
        plane: DataPlane | None = None,
        sleeps: bool = False,
    ) -> None:
        """`sleeps`: whether the servers have their GPU together with the training, and `rest` makes them give its
        memory up."""
        self._fleet = fleet
        self.sleeps = sleeps
        """Whether it gives its GPU's memory to the trainer, see `rest`."""
        self._client = client
        self._options = options
        self.context_tokens = context_tokens
        """The most tokens of prompt and completion together."""
        self._folder = weights_folder
        self._plane = plane
        self._publications = 0
        self._compared: set[str] = set()
        self.held: str | None = None
        """The digest of the weights that the servers have, where whoever publishes notes it."""
        self.takes_adapters = takes_adapters
        """Whether `publish_adapter` is the way to publish."""

    @property
    def urls(self) -> list[str]:
        """Where the replicas are now; one that was started again has a new port."""
        return [replica.url for replica in self._fleet.replicas]

    @property
    def pids(self) -> list[int]:
        """Of the servers that we started."""
        return [replica.process.pid for replica in self._fleet.replicas if replica.process is not None]

    def counts(self) -> dict[str, int]:
        """What happened since the start: `retries` of requests, `restarts` of servers, `publications` of weights,
        requests that a publication `interrupted`, `preemptions` of requests for want of cache."""
        names = ("retries", "restarts", "publications", "interrupted", "preemptions")
        return {name: self._fleet.counts[name] for name in names}

    def pressure(self) -> float:
        """How full the fullest server's cache is: 0 to 1, and above where requests were thrown out or wait for room.

        The engine keeps fewer rollouts in flight where it is above 0.9, see `AdaptiveConcurrency`.
        """
        return self._fleet.pressure()

    async def sample(
        self,
        prompt_ids: Sequence[int],
        *,
        sampling: Sampling,
        seed: int,
        stop_token_ids: Sequence[int] = (),
        grammar: Grammar | None = None,
    ) -> Completion:
        """Continue `prompt_ids`; see `Policy.sample`. Cancelling the task ends the request in the server.

        Where weights published in flight interrupt it, it goes on with them: `Completion.versions` says which token
        is of which. With a `grammar` it cannot, since vLLM would begin the grammar again. vLLM ends a reply that
        follows one with the tokenizer's own end token alone, so the grammar must know no other.

        Raises `ValueError` for a prompt that is empty or leaves no room in the context, `PolicyFailure` where no server
        answers, and where new weights interrupt a reply that follows a grammar.
        """
        prompt = [int(token) for token in prompt_ids]
        require_room(prompt, self.context_tokens)
        limit = min(sampling.max_tokens, self.context_tokens - len(prompt))
        taken: list[tuple[Sampled, int]] = []
        tokens: list[int] = []
        lost: list[str] = []
        turned_away: float | None = None
        while True:
            one = replace(sampling, max_tokens=limit - len(tokens))
            piece_seed = (seed + len(tokens)) % 2**63  # a piece after an interruption has random numbers of its own
            ticket = await self._fleet.admit(prompt + tokens)
            answered: list[int] | None = None
            try:
                sampled = await self._ask(ticket, prompt + tokens, one, piece_seed, stop_token_ids, grammar)
                answered = prompt + tokens + sampled.token_ids
            except _Lost as error:
                await self._retry(ticket, str(error), lost)
                continue
            except _Paused as error:
                turned_away = time.monotonic() if turned_away is None else turned_away
                if time.monotonic() - turned_away > self._options.recover_timeout_s:
                    raise PolicyFailure(
                        f"{error} for {self._options.recover_timeout_s:g} s (recover_timeout_s), and not by us; give "
                        "training a server of its own"
                    ) from None
            finally:
                self._fleet.leave(ticket, answered=answered)
            if answered is None:  # an exchange of weights paused it: the next admission waits for the end of that
                await anyio.sleep(_FIRST_PAUSE_S)
                continue
            turned_away = None
            taken.append((sampled, ticket.version))
            tokens += sampled.token_ids
            if sampled.ended != "abort":
                return _joined(taken)
            if grammar is not None:
                raise PolicyFailure(
                    "new weights interrupted a reply that follows a grammar; set vllm.in_flight to false"
                )
            if len(tokens) >= limit:
                return _joined([*taken, (Sampled([], [], "length"), ticket.version)])

    def publish(self, state: Mapping[str, Any], *, version: int) -> None:
        """All weights, by vLLM's own transfer or through a folder that the servers read; returns when every replica has
        them.

        Requests under way end with the weights they began with, or are interrupted, as `in_flight` says. Keys and
        values of earlier weights are dropped. `state` may be changed afterwards. Blocks; call it outside the event
        loop, which answers requests meanwhile. Raises `ModelError` where the folder cannot be written, `PolicyFailure`
        where a server refuses them: whatever it has then, nothing is sampled from it.
        """
        if self._plane is not None:
            self._fleet.exchange(
                Transfer(plane=self._plane, state=state, version=version), interrupt=self._options.in_flight
            )
            return
        folder = self._next_folder()
        write_checkpoint(state, folder)
        weights = Checkpoint(folder=folder, version=version, compared=self._compared)
        self._fleet.exchange(weights, interrupt=self._options.in_flight)

    def publish_adapter(self, adapter: Any, *, version: int) -> None:
        """A PEFT model's LoRA adapter, under a name of its own; returns when every replica has it.

        Nothing is interrupted: requests under way end with the adapter they began with, which is unloaded then.
        Blocks. Raises `PolicyFailure` where a server refuses it.
        """
        folder = self._next_folder()
        adapter.save_pretrained(folder, save_embedding_layers=False)
        open_to_readers(folder)
        self._fleet.exchange(Adapter(folder=folder, version=version))

    def renumber(self, version: int) -> None:
        """Later samples carry `version`: the weights have not changed, and nothing is sent. Raises `PolicyFailure`
        where a server that rests does not wake."""
        self._fleet.renumber(version)

    def rest(self) -> None:
        """Give the GPU's memory to the trainer beside it, until weights are published; nothing where it has a GPU of
        its own. Requests under way end first, those that come later wait. Blocks. Raises `PolicyFailure` where a
        server does not."""
        if self.sleeps:
            self._fleet.sleep()

    def _next_folder(self) -> Path:
        self._publications += 1
        return self._folder / f"publication-{self._publications}"

    async def _ask(
        self,
        ticket: Ticket,
        prompt: list[int],
        sampling: Sampling,
        seed: int,
        stop_token_ids: Sequence[int],
        grammar: Grammar | None,
    ) -> Sampled:
        """One request to one server. Raises `_Lost` where the server broke, `PolicyFailure` for other failures."""
        url = ticket.replica.url
        body = request_body(
            ticket.model,
            prompt,
            sampling=sampling,
            max_tokens=sampling.max_tokens,
            seed=seed,
            stop_token_ids=stop_token_ids,
            grammar=grammar,
        )
        response: httpx.Response | None = None
        try:
            with anyio.fail_after(self._options.request_timeout_s):
                with ticket.scope:
                    response = await self._client.post(f"{url}/v1/completions", json=body)
        except TimeoutError:
            limit = self._options.request_timeout_s
            raise PolicyFailure(f"vLLM at {url} gave no answer within {limit:g} s (request_timeout_s)") from None
        except httpx.TransportError as error:
            self._lost(ticket, f"{type(error).__name__}: {error}")
        if response is None:
            raise _Lost(ticket.lost or "the server was lost")
        if response.status_code == 200:
            try:
                return read_answer(response.text, prompt=prompt, max_tokens=sampling.max_tokens)
            except ValueError as error:
                raise PolicyFailure(f"vLLM at {url} gave an answer that cannot be used: {error}") from None
        said = f"HTTP {response.status_code}: {error_text(response.text)}"
        if response.status_code == 503 and _PAUSED in said:
            raise _Paused(f"vLLM at {url} is paused")
        if response.status_code in _BROKEN_STATUSES:
            self._lost(ticket, said)
        if response.status_code == 404 and "does not exist" in said:
            # A server that was started again between two questions about its health has lost the adapter.
            self._fleet.suspect(ticket.replica, said, forgot=True)
            raise _Lost(said)
        raise PolicyFailure(f"vLLM at {url} answered {said}")

    def _lost(self, ticket: Ticket, why: str) -> NoReturn:
        self._fleet.suspect(ticket.replica, why)
        raise _Lost(why)

    async def _retry(self, ticket: Ticket, why: str, lost: list[str]) -> None:
        """Returns where the request is to be sent again; it asks for the same tokens. Counted and logged."""
        lost.append(f"{ticket.replica.url}: {why}")
        if len(lost) > self._options.max_retries:
            raise PolicyFailure(f"vLLM failed {len(lost)} times, at last {lost[-1]}")
        self._fleet.counts["retries"] += 1
        logger.warning(
            "a request that vLLM lost is sent again (%d of %d): %s", len(lost), self._options.max_retries, why
        )
        await anyio.sleep(_FIRST_PAUSE_S * 2 ** (len(lost) - 1))


class _Lost(Exception):
    """The server broke before it answered; another one, or the same when it is back, can be asked again."""


class _Paused(Exception):
    """The server takes no requests until it goes on. It is well."""


def _joined(pieces: Sequence[tuple[Sampled, int]]) -> Completion:
    """One completion of the pieces between interruptions and the version of each."""
    ended = pieces[-1][0].ended
    assert ended != "abort"
    return Completion(
        token_ids=[token for piece, _ in pieces for token in piece.token_ids],
        logprobs=[value for piece, _ in pieces for value in piece.logprobs],
        stop_reason=ended,
        version=pieces[-1][1],
        versions=[version for piece, version in pieces for _ in piece.token_ids] if len(pieces) > 1 else None,
    )
