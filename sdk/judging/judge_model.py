"""Asking a model for one JSON object: cached, within a budget, and never twice without saying so."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio
from anyio.lowlevel import RunVar

from ..errors import ConfigError, PolicyFailure, VerifierError
from ..policies.endpoint import EndpointAgent
from ..policies.model_source import ModelSource, check_model_source, model_label, open_agent
from ..policies.protocol import Agent, Sampling
from ..records import Message
from ..verifiers.answer_forms import strict_json
from ..verifiers.comparing import shortened
from .cache import JudgeCache

Read = TypeVar("Read")

_THOUGHTS = re.compile(r"\s*<think>.*?</think>", re.DOTALL)
"""What a model that reasons says before its answer, where its endpoint leaves that in."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a judge may spend in this process; answers from the cache cost nothing. None: no limit.

    Nothing more is asked once as much is spent: what was under way by then, at most one question for each rollout that
    is judged at once, still counts on top of `tokens`. An endpoint that does not say what it used cannot be held to
    `tokens`: it scores nothing, and is not asked again.
    """

    calls: int | None = None
    tokens: int | None = None
    """Of prompts and answers, as the endpoint counts them."""

    def __post_init__(self) -> None:
        for name, most in (("calls", self.calls), ("tokens", self.tokens)):
            if most is not None and most < 0:
                raise ConfigError(f"Budget: {name} is {most}; give 0 or more, or None for no limit")


@dataclass
class Spent:
    """What was asked so far. `unreadable`: answers that were no verdict."""

    calls: int = 0
    tokens: int = 0
    from_cache: int = 0
    unreadable: int = 0


class _Question:
    """One that is being asked, for the equal ones that wait for it."""

    def __init__(self) -> None:
        self.ended = anyio.Event()
        self.failure: VerifierError | None = None


class Asker:
    """One model, asked for JSON. `model`: an endpoint as `(url, name)` or mapping, a local model, or an agent."""

    def __init__(
        self, model: ModelSource, *, cache: JudgeCache | None, budget: Budget, tries: int, max_tokens: int
    ) -> None:
        check_model_source(model)
        if tries < 1:
            raise ConfigError(f"tries is {tries}; it must be 1 or more")
        self.label = model_label(model) or "the embedded model"
        self.spent = Spent()
        self.cache = cache
        self._model = model
        self._budget = budget
        self._tries = tries
        self._max_tokens = max_tokens
        self._agent: Agent | None = None
        self._is_uncounted = False
        # Of each event loop its own: `sdk.evaluate` and its kind begin a new one every time.
        self._opening: RunVar[anyio.Lock] = RunVar("judge_opening")
        self._asking: RunVar[dict[str, _Question]] = RunVar("judge_asking")
        self._stack = AsyncExitStack()

    async def ask(self, rules: str, material: str, read: Callable[[dict[str, Any]], Read]) -> tuple[Read, str]:
        """What `read` makes of the model's JSON object, and a note where it took more than one try.

        `read` raises `ValueError` for what is no verdict. Raises `VerifierError` where the budget is spent, the model
        fails, or none of the tries is a verdict; with a cache also for equal questions that waited for this one. A
        failure is not kept: who asks later asks anew.
        """
        if self.cache is None:
            return await self._asked(rules, material, read, None)
        key = hashlib.sha256(json.dumps([self.label, rules, material]).encode()).hexdigest()
        asking = self._asking.get({})
        self._asking.set(asking)
        while key in asking:  # rollouts of one group are often the same, and judged at once
            question = asking[key]
            await question.ended.wait()
            if question.failure is not None:
                raise VerifierError(str(question.failure)) from question.failure
        kept = self.cache.get("reply", key)
        if kept is not None:
            self.spent.from_cache += 1
            return read(_json_object(kept)), ""
        question = asking[key] = _Question()
        try:
            return await self._asked(rules, material, read, key)
        except VerifierError as error:
            question.failure = error
            raise
        finally:  # where it was cancelled, one of those that wait asks instead
            del asking[key]
            question.ended.set()

    async def _asked(
        self, rules: str, material: str, read: Callable[[dict[str, Any]], Read], key: str | None
    ) -> tuple[Read, str]:
        """The same of the model itself; `key`: what the cache keeps its answer under."""
        problem = ""
        for number in range(self._tries):
            reply = await self._reply(rules, material, number)
            try:
                found = read(_json_object(reply))
            except ValueError as error:
                self.spent.unreadable += 1
                problem = f"{error}; it said {shortened(reply, 200)}"
                continue
            if self.cache is not None and key is not None:
                self.cache.put("reply", key, reply)
            return found, f" (try {number + 1})" if number else ""
        raise VerifierError(f"the judge {self.label} gave no verdict in {self._tries} tries: {problem}")

    async def close(self) -> None:
        """Stop a local model; an agent that was handed in stays open."""
        await self._stack.aclose()
        self._agent = None

    async def _reply(self, rules: str, material: str, number: int) -> str:
        self._require_budget()
        agent = await self._opened()
        self._require_budget()  # what others asked meanwhile counts; from here to the count nobody else has a turn
        self.spent.calls += 1
        messages = [Message(role="system", content=rules), Message(role="user", content=material)]
        sampling = Sampling(temperature=0.0 if number == 0 else 0.7, max_tokens=self._max_tokens)
        try:
            reply = await agent.start([], sampling=sampling, seed=number).reply(messages)
        except PolicyFailure as error:
            raise VerifierError(f"the judge {self.label} failed: {error}") from error
        used = reply.prompt_tokens + reply.sampled_tokens
        self.spent.tokens += used
        if reply.stop_reason == "context":  # nothing was read, and nothing need be counted
            raise VerifierError(f"the judge {self.label}: the rollout does not fit into its context")
        if self._budget.tokens is not None and not used:
            self._is_uncounted = not self.spent.tokens
            raise self._uncounted()
        return reply.message.content

    def _uncounted(self) -> VerifierError:
        return VerifierError(
            f"the judge {self.label} does not say how many tokens it used, so that a budget of tokens limits nothing; "
            "give Budget(calls=...)"
        )

    def _require_budget(self) -> None:
        if self._is_uncounted:
            raise self._uncounted()
        for name in ("calls", "tokens"):
            most, used = getattr(self._budget, name), getattr(self.spent, name)
            if most is not None and used >= most:
                raise VerifierError(
                    f"the judge's budget is spent: {used} of {most} {name}; give a larger Budget, or a cache"
                )

    async def _opened(self) -> Agent:
        try:
            lock = self._opening.get()
        except LookupError:
            lock = anyio.Lock()
            self._opening.set(lock)
        async with lock:
            if self._agent is None:
                if isinstance(self._model, tuple):
                    # Opened for good, an endpoint would hold connections of a loop that may end before the judge.
                    self._agent = EndpointAgent(*self._model)
                elif isinstance(self._model, dict):
                    self._agent = EndpointAgent(**self._model)
                else:
                    self._agent = await self._stack.enter_async_context(open_agent(self._model))
            return self._agent


def _json_object(reply: str) -> dict[str, Any]:
    thoughts = _THOUGHTS.match(reply)
    found = strict_json(reply[thoughts.end() :] if thoughts else reply)
    if not isinstance(found, dict):
        raise ValueError("the verdict is no JSON object")
    return found
