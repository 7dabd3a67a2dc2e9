"""A model that is asked for one JSON object: a cache of answers on disk, a budget, and the escaped material."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from ..errors import ConfigError, PolicyFailure, VerifierError, require_number
from ..policies.endpoint import EndpointAgent
from ..policies.model_source import ModelSource, check_model_source, model_label, open_agent, weights_identity
from ..policies.protocol import Agent, Sampling
from ..policies.token_agent import TokenAgent
from ..records import CallRecord, Message, Rollout
from ..traces.identity import digest
from ..verifiers.answer_forms import json_document
from ..verifiers.value_checks import shortened

Read = TypeVar("Read")

_TABLE = "CREATE TABLE IF NOT EXISTS kept (kind TEXT, key TEXT, value TEXT, PRIMARY KEY (kind, key)) WITHOUT ROWID"


class JudgeCache:
    """A SQLite file that several processes may use at once."""

    def __init__(self, path: Path | str) -> None:
        """Raises `ConfigError` for a path that cannot hold it."""
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._open() as connection:
                connection.execute(_TABLE)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"the judge's cache {str(path)!r} cannot be used: {error}; give another path") from error

    def get(self, kind: str, key: str) -> Any:
        """What was kept, or None."""
        with self._open() as connection:
            row = connection.execute("SELECT value FROM kept WHERE kind = ? AND key = ?", (kind, key)).fetchone()
        return None if row is None else json.loads(row[0])

    def put(self, kind: str, values: Mapping[str, Any]) -> None:
        """Keep the values of some keys, all of them in one commit, which a disk may take 30 ms for."""
        rows = [(kind, key, json.dumps(value)) for key, value in values.items()]
        with self._open() as connection:
            connection.executemany("INSERT OR REPLACE INTO kept VALUES (?, ?, ?)", rows)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self.path, timeout=30)
        try:
            with connection:
                yield connection
        finally:
            connection.close()


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a judge may spend in this process; answers from the cache cost nothing. None: no limit.

    Nothing more is asked once as much is spent: what was under way by then, at most one question for each rollout that
    is judged at once, still counts on top of `tokens`. An endpoint that does not report its usage cannot be held to
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
    """What was asked so far. `unreadable`: answers that were not a verdict."""

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
    """One model, asked for JSON. `spent` counts what was asked; `await close()` stops a local model.

    `model`: an endpoint as `(url, name)` or mapping, a local model, or an agent.
    """

    def __init__(
        self,
        model: ModelSource,
        *,
        cache: Path | str | None = None,
        budget: Budget | None = None,
        tries: int = 2,
        max_tokens: int = 512,
    ) -> None:
        """See `sdk.judging.judge`."""
        check_model_source(model)
        require_number("tries", tries, least=1, whole=True)
        self.spent = Spent()
        self.cache = None if cache is None else JudgeCache(cache)
        self._model = model
        self._budget = budget or Budget()
        self._tries = tries
        self._max_tokens = max_tokens
        self._agent: Agent | None = None
        self._is_uncounted = False
        # Of each event loop its own: `sdk.evaluate` and its kind begin a new one every time.
        self._opening: RunVar[anyio.Lock] = RunVar("judge_opening")
        self._keeping: RunVar[anyio.Lock] = RunVar("judge_keeping")
        self._unkept: dict[str, str] = {}
        self._asking: RunVar[dict[str, _Question]] = RunVar("judge_asking")
        self._stack = AsyncExitStack()

    @cached_property
    def label(self) -> str:
        """The model's name, and what tells it from another one of that name."""
        name = model_label(self._model) or "the embedded model"
        told: Any = weights_identity(self._model)
        if hasattr(self._model, "start") and not isinstance(self._model, TokenAgent):
            told = self._model  # other code may have this name, too
        elif isinstance(self._model, Mapping):
            told = told or self._model.get("extra_body")
        return f"{name} ({digest(told)[:8]})" if told else name

    async def answer(
        self, rules: str, material: Any, read: Callable[[dict[str, Any]], Read], **fields: str
    ) -> tuple[Read, str]:
        """What `read` makes of the model's JSON object, and a note where it took more than one try.

        `rules` is a template of `fields` and of `check`, the word that the object must repeat (see `check_word`).
        `read` raises `ValueError` where that is not a verdict. Raises `VerifierError` where the budget is spent, the
        model fails, or none of the tries is a verdict; with a cache also for equal questions that waited for this one.
        A failure is not kept: who asks later asks anew.
        """
        text = escaped(material)
        check = check_word(text)
        rules = rules.format(check=check, **fields)

        def checked(reply: str) -> Read:
            said = _json_object(reply)
            if said.get("check") != check:
                raise ValueError("the verdict does not repeat the check word of the rules")
            return read(said)

        if self.cache is None:
            return await self._asked(rules, text, checked, None)
        key = hashlib.sha256(json.dumps([self.label, rules, text]).encode()).hexdigest()
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
            return checked(kept), ""
        question = asking[key] = _Question()
        try:
            return await self._asked(rules, text, checked, key)
        except VerifierError as error:
            question.failure = error
            raise
        finally:  # where it was cancelled, one of those that wait asks instead
            del asking[key]
            question.ended.set()

    async def _asked(self, rules: str, material: str, read: Callable[[str], Read], key: str | None) -> tuple[Read, str]:
        """The same of the model itself; `key`: what the cache keeps its answer under."""
        problem = ""
        for number in range(self._tries):
            reply = await self._reply(rules, material, number)
            try:
                found = read(reply)
            except ValueError as error:
                self.spent.unreadable += 1
                problem = f"{error}; it said {shortened(reply, 200)}"
                continue
            if self.cache is not None and key is not None:
                await self._keep(self.cache, key, reply)
            return found, f" (try {number + 1})" if number else ""
        raise VerifierError(f"the judge {self.label} gave no verdict in {self._tries} tries: {problem}")

    async def _keep(self, cache: JudgeCache, key: str, reply: str) -> None:
        """Keep an answer, together with those that came while others were written; also where it is cancelled."""
        self._unkept[key] = reply
        with anyio.CancelScope(shield=True):
            async with _of_this_loop(self._keeping):
                if key in self._unkept:
                    together, self._unkept = self._unkept, {}
                    await anyio.to_thread.run_sync(cache.put, "reply", together)

    async def open(self) -> None:
        """Begin to ask in this event loop alone, until `close`: questions to an endpoint then share its connections."""
        self._agent = await self._stack.enter_async_context(open_agent(self._model))

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
            raise VerifierError(f"the judge {self.label}: what it is asked about does not fit into its context")
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
        async with _of_this_loop(self._opening):
            if self._agent is None:
                if isinstance(self._model, tuple):
                    # Opened for good, an endpoint would hold connections of a loop that may end before the judge.
                    self._agent = EndpointAgent(*self._model)
                elif isinstance(self._model, dict):
                    self._agent = EndpointAgent(**self._model)
                else:
                    self._agent = await self._stack.enter_async_context(open_agent(self._model))
            return self._agent


def _of_this_loop(variable: RunVar[anyio.Lock]) -> anyio.Lock:
    try:
        return variable.get()
    except LookupError:
        variable.set(anyio.Lock())
        return variable.get()


def _json_object(reply: str) -> dict[str, Any]:
    found = json_document(reply)
    if not isinstance(found, dict):
        raise ValueError("the verdict is not a JSON object")
    return found


# ---------------------------------------------------------------------------------------------------------------------
# The material that a judge is shown, escaped so that nothing in it can pass for the judge's own instructions.
#
# All that a policy or a tool wrote is inside JSON strings, with `<`, `>`, `|`, words in brackets (`[INST]`) and every
# character beyond ASCII escaped: no quote, line break, role marker or special token can end the string or begin a
# message. The rules name a check word made of the material's hash, which nobody who wrote the material could have
# known, and a verdict without it is not valid. What a policy writes that speaks to its judge earns nothing, before any
# judge is asked.

_MOST_CALL_CHARS = 2000
"""Of a result, and of what a call's arguments are as text."""
_MOST_ANSWER_CHARS = 8000

_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_MARKS = re.compile(r"[<>|]|\[(?=/?[A-Za-z_]\w*\])")
"""What markers of chat formats begin with or hold: `<|im_start|>`, `</s>`, `[/INST]`. Lists stay readable."""
_TO_THE_JUDGE = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"\b(?:score|reward|verdict|grade|rating|criteria|criterion|check|ranking)\b[\s\"'*]*[:=]",
        r"<\||\|>|</?(?:answer|system|user|assistant|judge|material|evidence|s)>|\[/?INST\]",
        r"\b(?:ignore|disregard|forget)\b.{0,40}\b(?:instruction|rule|criteri|rubric|above|previous|prompt)",
        r"\b(?:judge|grader|evaluator|scorer|examiner)s?\b.{0,30}\b(?:must|should|please|will|has to|note)\b",
        r"\b(?:dear|attention|note to)\b.{0,20}\b(?:judge|grader|evaluator|scorer|examiner)",
        r"\bfull (?:marks|points|score|credit)\b|\b(?:highest|maximum|perfect) (?:score|mark|rating)\b",
        r"\b(?:mark|grade|rate|score|judge|count) (?:this|it|me|(?:the|my) answer)\b.{0,20}\b(?:correct|right|pass)",
        r"\bthe (?:answer|response) (?:above|below)\b.{0,30}\b(?:is|as) (?:correct|right)",
        r"\bverdicts?\b.{0,30}\b(?:must|should|has to)\b",
    )
)


def refused(rollout: Rollout) -> str | None:
    """Why a rollout earns nothing and is shown to no judge, or None.

    An answer that does not fit into a judge's context would otherwise leave its rollout unscored, and those that it is
    compared with.
    """
    if (said := speaks_to_the_judge(rollout)) is not None:
        return f"the answer or a call speaks to whoever scores it: {said!r}"
    if len(rollout.answer) > _MOST_ANSWER_CHARS:
        return f"the answer has {len(rollout.answer)} characters, more than {_MOST_ANSWER_CHARS}"
    return None


def speaks_to_the_judge(rollout: Rollout) -> str | None:
    """What in the answer, in a call's name or in its arguments addresses whoever scores it, or None.

    A phrase whose words the prompt or the gold answer has itself does not count. The name of an argument and its value
    are read apart: a tool may ask for a `rating`. Lexical: it stops what is known, and the escaping stays for the rest.
    """
    expected = json.dumps(rollout.task.expected, ensure_ascii=False, default=str)
    own = "\n".join([*(message.content for message in rollout.task.opening()), *rollout.user_texts, expected])
    texts = [rollout.answer, *(text for record in rollout.calls for text in _written(record))]
    own, written = _plain(own), [_plain(text) for text in texts]
    for pattern in _TO_THE_JUDGE:
        for text in written:
            for found in pattern.finditer(text):
                words = found[0].rstrip("\"'*:= ")  # asked for "the score", an answer may begin with "Score:"
                if not re.search(rf"(?<!\w){re.escape(words)}(?!\w)", own):
                    return found[0]
    return None


def evidence(rollout: Rollout) -> dict[str, Any]:
    """What happened, as the judge sees it. Results and arguments beyond 2 000 characters are cut, visibly."""
    return {
        "asked": rollout.user_texts,
        "calls": [
            {
                "tool": record.call.name[:_MOST_CALL_CHARS],
                "arguments": _arguments(record),
                "failed": record.result.is_error,
                "result": shortened(record.result.text, _MOST_CALL_CHARS),
            }
            for record in rollout.calls
        ],
        "answer": rollout.answer,
    }


_ALIKE = str.maketrans("аеорсухіјѕһԁӏոοαειικνρτυχ", "aeopcyxijshdlnoaeiikvptux")
"""Cyrillic, Armenian and Greek letters that look like Latin ones."""


def _plain(text: str) -> str:
    """Without what only looks different: letters of other widths and scripts, accents, signs that are not shown, and
    spaces of any kind and number."""
    signs = unicodedata.normalize("NFKD", text.casefold())
    shown = "".join(sign for sign in signs if unicodedata.category(sign) not in ("Cf", "Mn"))
    return " ".join(shown.translate(_ALIKE).split())


def _written(record: CallRecord) -> Iterator[str]:
    """The texts that the policy wrote in a call, also where it did not parse."""
    rest: list[Any] = [record.call.name, record.call.error, record.call.arguments]
    while rest:
        one = rest.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, Mapping):
            rest += [*one.keys(), *one.values()]
        elif isinstance(one, list):
            rest += one


def _arguments(record: CallRecord) -> Any:
    text = json.dumps(record.call.arguments, ensure_ascii=False)
    return record.call.arguments if len(text) <= _MOST_CALL_CHARS else shortened(text, _MOST_CALL_CHARS)


def escaped(material: Any) -> str:
    """JSON in ASCII without a marker of any chat format."""
    text = json.dumps(material, ensure_ascii=True, sort_keys=True, default=str)
    # Only in strings: outside of them brackets are lists.
    return _STRING.sub(lambda string: _MARKS.sub(lambda mark: f"\\u{ord(mark[0]):04x}", string[0]), text)


def check_word(material: str) -> str:
    """What a verdict on this material must repeat."""
    return hashlib.sha256(material.encode()).hexdigest()[:10]
