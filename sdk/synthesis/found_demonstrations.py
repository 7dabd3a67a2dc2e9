"""Demonstrations are found: a teacher's verified rollouts, or calls that a prompt's words and the tools' schemas allow.

A search plays sequences of one call, then of two, and so on in fresh worlds. The answer is worded by what the tools
returned, and the run's own verifier judges the whole rollout. Nothing of a task but its prompt and setup is read.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import islice
from typing import Any

import anyio

from mcp_bridge.records import Tool

from ..distillation import select
from ..errors import PolicyFailure, RunFolderError, VerifierError
from ..evaluation.conditions import is_success
from ..policies.protocol import Agent, Sampling
from ..policies.scripted import ScriptedAgent
from ..progress import Silent
from ..records import Message, Rollout, Task
from ..rollouts import derive_seed
from ..rollouts.episode import Job
from ..rollouts.run_context import RunContext, play_scripts
from ..tasks import counted, load_tasks
from ..tasks.splitting import ThreeWaySplit
from ..tasks.task_files import as_lines, with_demonstration
from ..traces.atomic_files import file_sha256, write_bytes
from ..traces.journal import Journal
from ..verifiers import run_verifier
from .call_candidates import CallCandidate, CallCandidates, ResultValue, values_of
from .shared_state import searchable_tools
from .words import PromptValues, last_name, stems
from .worlds import at, content_of, demonstration, leaves, properties

MOST_WORDINGS = 14
_SHORT = 30
"""Words of a text that is an answer as it stands."""
_COUNTING = frozenset(stems("many much count number total"))
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
DONE = "Done."


def wordings(contents: Sequence[Any], prompt: PromptValues) -> list[str]:
    """Answers from what the calls returned, in their order: short ones that the prompt asks for first.

    `contents`: what each call returned, see `content_of`. Example: `{"status": "shipped"}` is answered with "shipped".
    """
    found: dict[str, None] = {}
    for content in reversed(contents):
        for one in _of(content, prompt):
            found.setdefault(one)
    found.setdefault(DONE)
    return list(found)[:MOST_WORDINGS]


def _of(content: Any, prompt: PromptValues) -> Iterator[str]:
    if isinstance(content, Mapping) and set(content) == {"result"}:
        content = content["result"]
    if not isinstance(content, Mapping | list):
        yield from _of_text(_written(content), prompt)
        return
    if _COUNTING & prompt.vocabulary:
        yield from _counts(content)
    fields = (field for field in leaves(content, is_leaf=lambda value: value is not None) if field[0])
    ranked = sorted(fields, key=lambda field: -_asked_for(field[0], field[1], content, prompt))
    yield from (_written(value) for _, value in ranked[:8])
    if ranked and ranked[0][1] in (0, 1) and _share(stems(last_name(ranked[0][0])), prompt):
        yield _written(bool(ranked[0][1]))  # as databases write yes and no
    last = next((path[-1] for path, _ in ranked if isinstance(path[-1], str)), None)
    if isinstance(content, list) and len(content) > 1 and last is not None:
        column = [row[last] for row in content if isinstance(row, Mapping) and last in row]
        yield ", ".join(map(_written, column))
    if isinstance(content, list) and content and not any(isinstance(one, Mapping | list) for one in content):
        yield ", ".join(map(_written, content))
    if len(ranked) > 1:
        yield ", ".join(_written(value) for _, value in ranked[:2])


def _counts(content: Mapping[str, Any] | list[Any]) -> Iterator[str]:
    """How many a list has; of one page in an envelope, such as `{"items": [...], "total": 40}`, how many there are."""
    if isinstance(content, list):
        yield str(len(content))
        return
    lists = [inner for inner in content.values() if isinstance(inner, list)]
    if len(lists) == 1:
        named = (value for name, value in content.items() if _COUNTING.intersection(stems(name)))
        yield from (str(value) for value in named if isinstance(value, int) and not isinstance(value, bool))
        yield str(len(lists[0]))


def _of_text(text: str, prompt: PromptValues) -> Iterator[str]:
    if not text:
        return
    if len(text.split()) <= _SHORT:
        yield text
        return
    sentences = [one.strip() for one in _SENTENCE.split(text) if one.strip()]
    by_likeness = sorted(sentences, key=lambda one: -len(prompt.vocabulary.intersection(stems(one))))
    yield from (one for one in by_likeness[:3] if len(one.split()) <= _SHORT)


def _asked_for(path: tuple[str | int, ...], value: Any, content: Any, prompt: PromptValues) -> float:
    """How well a field of a result answers the prompt: its name is asked for, its row is named, it is new."""
    names = [stems(part) for part in path if isinstance(part, str)]
    asked = (
        3.0 * _share(names[-1], prompt) + 1.0 * max((_share(one, prompt) for one in names[:-1]), default=0.0)
        if names
        else 0.0
    )
    row = at(content, path[:-1])
    if isinstance(row, Mapping) and any(isinstance(part, int) for part in path):
        others = {word for other in row.values() if not isinstance(other, Mapping | list) for word in stems(str(other))}
        asked += 2.0 * min(2, len(others & prompt.vocabulary))
    words = stems(str(value))
    is_known = bool(words) and all(word in prompt.vocabulary for word in words)
    return asked - 2.5 * is_known - 0.05 * len(words)


def _share(words: Sequence[str], prompt: PromptValues) -> float:
    return sum(word in prompt.vocabulary for word in words) / len(words) if words else 0.0


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "Yes" if value else "No"
    return str(value).strip()


_TASKS_AT_ONCE = 8
_PLAYED_AT_ONCE = 6
"""Candidates of one task. Those after the first that is paid were played in vain."""
_EXTENDED = 6
"""Candidates of which longer ones are made."""
_MORE_TELLING = 12
"""Further candidates that use more of the prompt's values, after one was paid."""
_A_FAULTY_TOOL = 3
"""A tool that did not answer so often is not tried again."""
_OF_EXPERIENCE = 4.0
"""What it adds to the plausibility of a tool that it solved a task with the same words."""


@dataclass(frozen=True)
class SearchBounds:
    """What a search may use up."""

    candidates: tuple[int, ...] = (48, 72)
    """Of one task, by the number of calls: as many numbers as a demonstration may have calls."""
    seconds: float = 300.0
    """Of the whole search. What was found until then is kept."""
    call_timeout_s: float = 5.0


@dataclass(frozen=True)
class Found:
    """A demonstration that was found. `rollout`: its own, with the verdict that it earned."""

    task: Task
    rollout: Rollout

    @property
    def tools(self) -> tuple[str, ...]:
        return tuple(record.call.name for record in self.rollout.calls)

    @property
    def demonstrated(self) -> Task:
        return with_demonstration(self.task, self.rollout.messages)


_ENDS = ("paid_for_nothing", "not_found")
_COUNTS = (
    *("candidates", "faulty_tools", "failures", "failure", "verifier_failures", "verifier_failure", "mistaken"),
    "seconds",
)


@dataclass
class SearchReport:
    """What a search found and what not. `print` it."""

    found: dict[str, Found] = field(default_factory=dict)
    """By the task's id."""
    paid_for_nothing: list[Task] = field(default_factory=list)
    """Tasks whose verifier pays for an answer without a call."""
    not_found: list[Task] = field(default_factory=list)
    candidates: int = 0
    faulty_tools: dict[str, str] = field(default_factory=dict)
    """Tool -> the last failure of a tool that was not tried again."""
    failures: int = 0
    """Candidates that could not be played: a tool or a world failed."""
    failure: str = ""
    """The last of them."""
    verifier_failures: int = 0
    verifier_failure: str = ""
    mistaken: int = 0
    """Rollouts of a teacher that the verifier pays for, and that would teach a mistake."""
    out_of_time: list[Task] = field(default_factory=list)
    """Tasks that were not searched because the time was over."""
    seconds: float = 0.0
    """Of searching, in all processes of a run."""

    def note(self, wave: Sequence[Task]) -> dict[str, Any]:
        """How tasks ended, and what was counted so far, for `go_on`."""
        ids = [task.id for task in wave]
        ends = {end: [task.id for task in getattr(self, end) if task.id in ids] for end in _ENDS}
        found = [name for name in self.found if name in ids]
        return {"found": found, **ends, "counts": {count: getattr(self, count) for count in _COUNTS}}

    def go_on(
        self, notes: Iterable[Mapping[str, Any]], tasks: Sequence[Task], known: Mapping[str, Rollout]
    ) -> set[str]:
        """Take over what was noted, with the rollouts that were found. Returns the tasks that need no search."""
        by_id = {task.id: task for task in tasks}
        for note in notes:
            self.found |= {name: Found(by_id[name], known[name]) for name in note["found"] if name in known}
            for end in _ENDS:
                getattr(self, end).extend(by_id[name] for name in note[end])
            for count, value in note["counts"].items():
                setattr(self, count, value)
        return {task.id for task in self.searched}

    @property
    def searched(self) -> list[Task]:
        return [*(one.task for one in self.found.values()), *self.not_found, *self.paid_for_nothing]

    def __str__(self) -> str:
        lengths = Counter(len(one.tools) for one in self.found.values())
        shown = ", ".join(f"{n} of {length} call{'s' * (length > 1)}" for length, n in sorted(lengths.items()))
        lines = [
            f"demonstrations found: {len(self.found)} for {counted(self.searched)}{f' ({shown})' if shown else ''}, "
            f"from {self.candidates} candidates that were played"
        ]
        shapes = Counter(" then ".join(one.tools) for one in self.found.values())
        lines += [f"  {count} by {shape}" for shape, count in shapes.most_common(8)]
        if self.paid_for_nothing:
            lines.append(
                f"  {counted(self.paid_for_nothing)} left out: the verifier pays for an answer without a call, the "
                f"first is task {self.paid_for_nothing[0].id!r}"
            )
        lines += [f"  {tool} was not tried any more: {why}" for tool, why in self.faulty_tools.items()]
        if self.failures:
            lines.append(f"  {self.failures} candidates could not be played, the last: {self.failure}")
        if self.verifier_failures:
            lines.append(f"  the verifier failed {self.verifier_failures} times, the last: {self.verifier_failure}")
        if self.mistaken:
            lines.append(
                f"  {self.mistaken} right rollouts of the teacher were left out: a call failed, a limit ended them, or "
                "the answer is empty"
            )
        if self.out_of_time:
            lines.append(f"  not searched: {counted(self.out_of_time)}, because the time was over")
        return "\n".join(lines)


@dataclass(frozen=True)
class _Candidate:
    """Calls in their order, and how plausible they are."""

    calls: tuple[CallCandidate, ...]

    @property
    def plausibility(self) -> float:
        return sum(call.plausibility for call in self.calls)

    @property
    def said(self) -> str:
        return " ".join(call.said for call in self.calls)

    @property
    def unasked(self) -> int:
        """How many of the calls change something that the prompt does not ask for."""
        return sum(call.is_unasked for call in self.calls)

    def script(self, answer: str) -> list[Message]:
        return demonstration([(call.tool, call.arguments) for call in self.calls], answer)


@dataclass(frozen=True)
class _Played:
    candidate: _Candidate
    rollout: Rollout
    """With the wording that was paid best."""

    @property
    def score(self) -> float:
        return self.rollout.verdict.score if self.rollout.verdict is not None else float("-inf")


class DemonstrationSearch:
    """A search over the training tasks of a run. Deterministic with the context's seed, unless its time ends it."""

    def __init__(self, context: RunContext, tools: Sequence[Tool], bounds: SearchBounds | None = None) -> None:
        """`tools`: those that may be tried, see `searchable_tools`."""
        self.bounds = bounds or SearchBounds()
        self.report = SearchReport()
        self._tools = list(tools)
        self._threshold, self._verifier, self._seed = context.success_threshold, context.verifier, context.seed
        self._progress = context.progress
        limits = context.limits
        # Of several tasks at once, together no more than the run's limit.
        self._tasks_at_once = min(_TASKS_AT_ONCE, context.concurrency)
        each = context.concurrency // self._tasks_at_once
        self._judged = replace(context, progress=Silent(), concurrency=each)
        self._unjudged = replace(
            self._judged,
            verifier=None,
            limits=limits.model_copy(update={"call_timeout_s": min(limits.call_timeout_s, self.bounds.call_timeout_s)}),
        )
        self._failures: Counter[str] = Counter()
        self.longest = min(len(self.bounds.candidates), limits.max_calls, limits.max_turns - 1)
        """The most calls of a demonstration."""

    async def run(
        self,
        tasks: Sequence[Task],
        *,
        wanted: int,
        known: Sequence[Rollout] = (),
        on_found: Callable[[Rollout], None] = lambda _: None,
        journal: Journal | None = None,
    ) -> SearchReport:
        """Search until `wanted` tasks have a demonstration, every task was searched, or the time is over.

        `known`: rollouts that an earlier search of the same tasks had found and handed to `on_found`. `journal`: where
        it noted what it had done, so that no task is searched twice and its time counts.
        """
        order = list(tasks)
        random.Random(self._seed).shuffle(order)
        before = {rollout.task.id: rollout for rollout in known}
        done = self.report.go_on(journal.read() if journal is not None else (), order, before)
        began = anyio.current_time() - self.report.seconds
        deadline = began + self.bounds.seconds
        begun = len(self.report.found)
        with self._progress.track("searching demonstrations", min(wanted, len(order)), begun) as step:
            for begin in range(0, len(order), self._tasks_at_once):
                if len(self.report.found) >= wanted:
                    break
                wave = [task for task in order[begin : begin + self._tasks_at_once] if task.id not in done]
                if not wave:
                    continue
                if anyio.current_time() > deadline:
                    self.report.out_of_time += [task for task in order[begin:] if task.id not in done]
                    break
                results: dict[str, Found | str] = {}
                searches = {task.id: _TaskSearch(self, task, self._experience(task)) for task in wave}
                with anyio.move_on_at(deadline):
                    async with anyio.create_task_group() as group:
                        for task in wave:
                            if task.id in before:
                                results[task.id] = Found(task, before[task.id])
                            else:
                                group.start_soon(self._search, searches[task.id], results)
                for task in wave:  # in their order, whichever ended first
                    self.report.candidates += searches[task.id].played
                    result = results.get(task.id)
                    if isinstance(result, Found):
                        self.report.found[task.id] = result
                        if task.id not in before:
                            on_found(result.rollout)
                        step.advance(note=f"{len(self.report.found)} found")
                    elif result is None:
                        self.report.out_of_time.append(task)
                    else:
                        (self.report.paid_for_nothing if result else self.report.not_found).append(task)
                self.report.seconds = anyio.current_time() - began
                if journal is not None:
                    journal.append(self.report.note(wave))
        return self.report

    async def _search(self, search: _TaskSearch, results: dict[str, Found | str]) -> None:
        results[search.task.id] = await search.through()

    # ---- for the search of one task

    def tools(self) -> list[Tool]:
        """Those that still answer."""
        return [tool for tool in self._tools if tool.name not in self.report.faulty_tools]

    def _experience(self, task: Task) -> list[dict[str, float]]:
        """By the place of a call: how likely each tool is, by tasks with like words that were solved already."""
        mine = _plain_words(prompt_text(task))
        likely: list[dict[str, float]] = [{} for _ in range(max(1, self.longest))]
        for one in self.report.found.values():
            theirs = _plain_words(prompt_text(one.task))
            likeness = len(mine & theirs) / max(1, len(mine | theirs))
            for place, tool in enumerate(one.tools[: len(likely)]):
                likely[place][tool] = max(likely[place].get(tool, 0.0), _OF_EXPERIENCE * likeness)
        return likely

    async def play(self, task: Task, candidates: Sequence[_Candidate], first: int) -> list[Rollout]:
        """Each in a world of its own, without a verdict."""
        plays = [
            (
                Job(id=f"search/{task.id}/{first + number}", task=task, seed=self._seed),
                ScriptedAgent(candidate.script(DONE), name="search"),
            )
            for number, candidate in enumerate(candidates)
        ]
        rollouts = await play_scripts(plays, self._unjudged, Silent())
        for candidate, rollout in zip(candidates, rollouts, strict=True):
            if rollout.failure is None:
                for call in candidate.calls:
                    self._failures.pop(call.tool, None)
                continue
            self.report.failures += 1
            self.report.failure = rollout.failure.message
            # A world that could not be opened is not a tool's fault.
            if rollout.failure.boundary == "tools" and rollout.messages and len(rollout.calls) < len(candidate.calls):
                tool = candidate.calls[len(rollout.calls)].tool
                self._failures[tool] += 1
                if self._failures[tool] >= _A_FAULTY_TOOL:
                    self.report.faulty_tools.setdefault(tool, rollout.failure.message)
        return rollouts

    async def judged(self, rollout: Rollout, answer: str) -> Rollout | None:
        """The rollout as if it had ended with `answer`, with its verdict; None where the verifier failed."""
        messages = [*rollout.messages[:-1], rollout.messages[-1].model_copy(update={"content": answer})]
        worded = rollout.model_copy(update={"messages": messages, "answer": answer, "rows": []})
        assert self._verifier is not None
        try:
            worded.verdict = await run_verifier(self._verifier, worded)
        except VerifierError as error:
            self.report.verifier_failures += 1
            self.report.verifier_failure = str(error)
            return None
        return worded

    def is_paid(self, rollout: Rollout | None) -> bool:
        return rollout is not None and is_success(rollout, self._threshold)

    async def confirmed(self, task: Task, candidate: _Candidate, answer: str) -> Rollout | None:
        """The demonstration played from its beginning and judged as it really went; None where it is not paid again."""
        job = Job(id=f"found/{task.id}", task=task, seed=self._seed)
        agent = ScriptedAgent(candidate.script(answer), name="search")
        [rollout] = await play_scripts([(job, agent)], self._judged, Silent())
        return rollout if self.is_paid(rollout) else None


class _TaskSearch:
    """The search of one task."""

    def __init__(self, search: DemonstrationSearch, task: Task, likely: list[dict[str, float]]) -> None:
        self.task = task
        self.played = 0
        self._search = search
        self._likely = likely
        self._prompt = PromptValues(prompt_text(task))
        self._is_about_one = any(sign.isdigit() for one in self._prompt.telling for sign in one)
        """Whether the prompt names one thing by a number or a code."""
        self._schemas = {tool.name: properties(tool) for tool in search.tools()}

    async def through(self) -> Found | str:
        """What was found; otherwise why the verifier pays without a call, or an empty text where nothing was found."""
        if self.task.later_turns or self.task.user is not None:
            return ""
        if await self._paid_for_nothing():
            return "the verifier pays for an answer without a call"
        ended: list[_Played] = []
        for length in range(1, self._search.longest + 1):
            stream = self._longer(ended) if length > 1 else (_Candidate((call,)) for call in self._candidates(0))
            budget = self._search.bounds.candidates[length - 1]
            paid, ended = await self._played(islice(stream, budget))
            for one in sorted(paid, key=self._worth):
                rollout = await self._search.confirmed(self.task, one.candidate, one.rollout.answer)
                if rollout is not None:
                    return Found(self.task, rollout)
        return ""

    def _worth(self, one: _Played) -> tuple[float, ...]:
        covered = self._prompt.covered(one.candidate.said)
        return (-one.score, -covered, one.candidate.unasked, -one.candidate.plausibility, len(one.rollout.answer))

    def _is_better(self, one: _Candidate, other: _Candidate) -> bool:
        """Whether it would be kept in place of the other if it were paid, too."""
        mine, theirs = ((-self._prompt.covered(each.said), each.unasked) for each in (one, other))
        return mine < theirs

    async def _paid_for_nothing(self) -> bool:
        [rollout] = await self._search.play(self.task, [_Candidate(())], self.played)
        self.played += 1
        if rollout.failure is not None:
            return False
        for answer in ("", DONE, self._prompt.text):
            if self._search.is_paid(await self._search.judged(rollout, answer)):
                return True
        return False

    def _candidates(self, place: int, returned: Sequence[ResultValue] = ()) -> Iterator[CallCandidate]:
        likely = self._likely[place]
        return CallCandidates(self._search.tools(), likely).first(self._prompt, returned)

    def _longer(self, ended: Sequence[_Played]) -> Iterator[_Candidate]:
        """Each of the best candidates with one more call, in turns."""
        places: Counter[str] = Counter()

        def rank(one: _Played) -> tuple[float, int]:
            """Tools take turns: one that answers whatever it is given does not fill all places."""
            places[one.candidate.calls[-1].tool] += 1
            return -max(0.0, one.score), places[one.candidate.calls[-1].tool]

        likely = sorted(ended, key=lambda one: (-max(0.0, one.score), -one.candidate.plausibility))
        streams = [self._extended(one) for one in sorted(likely, key=rank)[:_EXTENDED]]
        while streams:
            for stream in list(streams):
                following = next(stream, None)
                if following is None:
                    streams.remove(stream)
                else:
                    yield following

    def _extended(self, begun: _Played) -> Iterator[_Candidate]:
        records = begun.rollout.calls
        returned = [v for r in records for v in values_of(r.call.name, content_of(r.result), self._prompt)]
        done = {call.key for call in begun.candidate.calls}
        for call in self._candidates(len(begun.candidate.calls), returned):
            if call.key not in done:
                yield _Candidate((*begun.candidate.calls, call))

    async def _played(self, stream: Iterator[_Candidate]) -> tuple[list[_Played], list[_Played]]:
        """Those that were paid, and those that may be made longer: whose calls were all answered without an error."""
        paid: list[_Played] = []
        ended: list[_Played] = []
        more = _MORE_TELLING
        while batch := list(islice(stream, _PLAYED_AT_ONCE)):
            if paid:
                best = min(paid, key=self._worth).candidate
                batch = [one for one in batch if self._is_better(one, best)][:more]
                more -= len(batch)
            known = {tool.name for tool in self._search.tools()}
            batch = [one for one in batch if all(call.tool in known for call in one.calls)]
            rollouts = await self._search.play(self.task, batch, self.played) if batch else []
            self.played += len(batch)
            for candidate, rollout in zip(batch, rollouts, strict=True):
                refused = any(record.result.is_error for record in rollout.calls)
                if rollout.failure is None and not refused and rollout.stop_reason == "answered":
                    one = await self._worded(candidate, rollout)
                    (paid if self._search.is_paid(one.rollout) else ended).append(one)
            if paid and not more:
                break
        return paid, ended

    async def _worded(self, candidate: _Candidate, rollout: Rollout) -> _Played:
        """With the first wording that is paid, or that with the highest score."""
        best = _Played(candidate, rollout)
        answers = wordings(self._answering(candidate, rollout), self._prompt)
        if rollout.initial_state != rollout.final_state and not self._prompt.text.rstrip().endswith("?"):
            answers.insert(0, DONE)  # what an act returned is seldom an answer
        for answer in answers:
            worded = await self._search.judged(rollout, answer)
            if worded is None:
                continue
            one = _Played(candidate, worded)
            if self._search.is_paid(worded):
                return one
            best = one if one.score > best.score else best
        return best

    def _answering(self, candidate: _Candidate, rollout: Rollout) -> list[Any]:
        """What calls returned that can answer the prompt; the right answer in anything else is there by chance.

        Such a call was given a value of the prompt or of an earlier such call, or it returned one of the prompt. Where
        the prompt is not about one thing, a call that was given nothing but choices of its schema will do. An act that
        is not asked for and changed nothing has to tell more than what it was given: that it was done is no answer.
        """
        prompt, known, contents = self._prompt, set[str](), []
        is_unchanged = rollout.initial_state is not None and rollout.initial_state == rollout.final_state
        for call, record in zip(candidate.calls, rollout.calls, strict=True):
            content = content_of(record.result)
            given, told = _plain(call.arguments), _plain(content)
            shown = self._schemas.get(call.tool, {})
            # A choice of the schema is worded otherwise in a prompt: "done" for "finished".
            free = {name: value for name, value in call.arguments.items() if "enum" not in shown.get(name, {})}
            rests = any(one in known or prompt.names(one) for one in given) or not (_plain(free) or self._is_about_one)
            if not rests and not prompt.covered(" ".join([record.result.text.casefold(), *told])):
                continue
            known |= told | {str(one.value).casefold() for one in values_of(call.tool, content, prompt)}
            if not (is_unchanged and call.is_unasked and told <= given):
                contents.append(content)
        return contents


def _plain(value: Any) -> set[str]:
    """The plain values in something, as texts in lower case."""
    return {str(one).casefold() for _, one in leaves(value)}


def prompt_text(task: Task) -> str:
    """What the user says in a task's prompt."""
    return "\n".join(message.content for message in task.opening() if message.role == "user")


@lru_cache(maxsize=10_000)  # each task is compared with all that were found before
def _plain_words(prompt: str) -> frozenset[str]:
    """The words that are not values of the prompt's own: those that tasks of one kind share."""
    values = PromptValues(prompt)
    return frozenset(word for word in values.words if word not in values.telling and not word.isdigit())


# ---------------------------------------------------------------------------------------------------------------------

TRIES = 4
"""Of one task. Of those that the verifier pays for the one with the fewest calls is kept."""
_HOPELESS = 2 * TRIES
"""So many tries that all broke: the endpoint is to be looked at, before each task is asked in vain."""


async def taught(
    tasks: Sequence[Task],
    context: RunContext,
    teacher: Agent,
    *,
    wanted: int,
    known: Sequence[Rollout],
    on_found: Callable[[Rollout], None],
    journal: Journal | None = None,
) -> SearchReport:
    """Play tasks with the teacher, `TRIES` times each, until `wanted` of them have a demonstration.

    `known`, `journal`: as of `DemonstrationSearch.run`. Not kept are rollouts without
    a call, which teach no tool, and those that would teach a mistake: with a call that failed, ended by a limit, or
    with an empty answer. Raises `PolicyFailure` where the teacher broke in all tries, and none was known.
    """
    report, order = SearchReport(), list(tasks)
    played = broken = 0
    random.Random(context.seed).shuffle(order)  # the first are often of one kind
    before = {rollout.task.id: rollout for rollout in known}
    engine = replace(context, host=None).engine(teacher)
    sampling = Sampling(temperature=1.0, max_tokens=context.limits.max_turn_tokens)
    at_once = max(1, context.concurrency // TRIES)
    done = report.go_on(journal.read() if journal is not None else (), order, before)
    with context.progress.track("asking the teacher", len(order), len(done)) as step:
        for begin in range(0, len(order), at_once):
            if len(report.found) >= wanted:
                break
            wave = [task for task in order[begin : begin + at_once] if task.id not in done]
            if not wave:
                continue
            asked = [task for task in wave if task.id not in before]
            jobs = [
                Job(
                    id=f"teacher/{task.id}/{n}",
                    task=task,
                    seed=derive_seed(context.seed, "teacher", 0, task.id, n),
                    group=task.id,
                )
                for task in asked
                for n in range(TRIES)
            ]
            rollouts = await engine.run(jobs, sampling=sampling)
            broke = _count(report, rollouts)
            played, broken = played + len(rollouts), broken + broke
            for task in wave:
                tries = [rollout for rollout in rollouts if rollout.task.id == task.id]
                right = [rollout for rollout in tries if is_success(rollout, context.success_threshold)]
                calling = [rollout for rollout in right if rollout.calls]
                clean = [rollout for rollout in calling if _is_clean(rollout)]
                report.mistaken += len(calling) - len(clean)
                distinct = select(clean, threshold=context.success_threshold, per_task=TRIES).kept
                kept = min(distinct, key=lambda one: len(one.calls), default=None)
                if task.id in before:
                    report.found[task.id] = Found(task, before[task.id])
                elif kept is not None:
                    on_found(kept)
                    report.found[task.id] = Found(task, kept)
                else:
                    (report.paid_for_nothing if right and not calling else report.not_found).append(task)
                step.advance(note=f"{len(report.found)} found")
            if journal is not None and (not rollouts or broke < len(rollouts)):
                # Otherwise the endpoint may have been down: a run that goes on asks for these tasks again.
                journal.append(report.note(wave))
            enough = _HOPELESS if begin + at_once < len(order) else 1
            if not report.found and broken == played >= enough:
                raise PolicyFailure(f"the teacher answered in none of {played} tries, the last: {report.failure}")
    return report


def _is_clean(rollout: Rollout) -> bool:
    failed = any(record.result.is_error or record.call.error is not None for record in rollout.calls)
    return rollout.stop_reason == "answered" and bool(rollout.answer.strip()) and not failed


def _count(report: SearchReport, rollouts: Sequence[Rollout]) -> int:
    """How many of them the teacher's model or endpoint broke."""
    report.candidates += len(rollouts)
    for rollout in rollouts:
        if (failure := rollout.failure) is not None and failure.boundary == "verifier":
            report.verifier_failures, report.verifier_failure = report.verifier_failures + 1, failure.message
        elif failure is not None:
            report.failures, report.failure = report.failures + 1, failure.message
    return sum(one.failure is not None and one.failure.boundary == "policy" for one in rollouts)


# ---------------------------------------------------------------------------------------------------------------------

STAGE = "found_demonstrations"
FILE = "demonstrations.jsonl"


async def find_demonstrations(
    tasks: ThreeWaySplit, context: RunContext, *, wanted: int, allowed: Sequence[str] = ()
) -> list[Task]:
    """The training tasks, those with a demonstration that one was found for: by the teacher of `context`, or else by a
    search. Validation and held-out tasks take no part.

    Written to `demonstrations.jsonl` in the run folder, with all tasks of the run and the side of each, so that the
    file can be edited and given as the prompts of another run. A finished search is read again from there; one that was
    cut off goes on. Raises `RunFolderError` where the file was changed since.
    """
    folder = context.run_folder
    path = folder.path / FILE
    done = folder.stage(STAGE)
    if done is not None:
        if not done["found"]:
            return list(tasks.train)
        if not path.is_file() or file_sha256(path) != done["sha256"]:
            raise RunFolderError(
                f"{path} is not as this run wrote it; put it back, or give it as the prompts of a new run"
            )
        shown = {task.id: task.demonstration for task in load_tasks(path)}
        return [task.model_copy(update={"demonstration": shown[task.id]}) for task in tasks.train]
    tools = searchable_tools(context.tools, allowed)
    if not tools and context.teacher is None:
        context.progress.say(f"no demonstration is searched: none of the tools may be tried. {_TEACHER}")
        return list(tasks.train)
    known, keep = folder.read_rollouts(STAGE), partial(folder.append_rollout, STAGE)
    journal = Journal(path.with_suffix(".work.jsonl"))
    journal.cut_torn_line()
    if context.teacher is not None:
        context.progress.say(f"the teacher plays {counted(tasks.train, 'training task')}, {TRIES} times each")
        async with context.teacher() as teacher:  # opened here alone: a local one takes as much memory as a model does
            report = await taught(
                tasks.train, context, teacher, wanted=wanted, known=known, on_found=keep, journal=journal
            )
    else:
        context.progress.say(
            "no training task has a demonstration: calls are searched that the verifier pays for, with "
            f"{len(tools)} of {len(context.tools.tools)} tools (warm_start.find_demonstrations)"
        )
        search = DemonstrationSearch(context, tools)
        report = await search.run(tasks.train, wanted=wanted, known=known, on_found=keep, journal=journal)
    for line in str(report).splitlines():
        context.progress.say(line)
    train = [report.found[task.id].demonstrated if task.id in report.found else task for task in tasks.train]
    facts: dict[str, Any] = {
        "found": len(report.found),
        "searched": len(report.searched),
        "candidates": report.candidates,
    }
    if report.found:
        sides = {"train": train, "validation": tasks.validation, "heldout": tasks.heldout}
        content = as_lines(
            task.model_copy(update={"tags": {**task.tags, "split": side}})
            for side, part in sides.items()
            for task in part
        )
        write_bytes(path, content)
        facts["sha256"] = file_sha256(path)
        context.progress.say(f"what was found is in {path}: look at it, correct it, and give it as prompts if you like")
    else:
        context.progress.say(f"no demonstration was found: the model learns from its own attempts alone. {_TEACHER}")
    folder.finish_stage(STAGE, facts)
    journal.close()
    journal.path.unlink(missing_ok=True)
    return train


_TEACHER = (
    "A larger model can be the teacher: sdk.train(..., teacher=(URL, NAME)), or --teacher URL#NAME. Or write "
    "demonstrations into the tasks: sdk.solve plays your calls and makes the whole task"
)
