"""`synthesize`: drafts of tasks, each from a walk, one after the other until there are enough that pass every check.

A progress file beside the file of tasks keeps what was decided: a run that was killed resumes from it.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import anyio

from mcp_bridge import Toolset
from mcp_bridge.errors import ToolFailure
from mcp_bridge.safe_text import listed
from mcp_bridge.world import Setup

from ..connecting import connect
from ..errors import ConfigError, PolicyFailure, plain_errors
from ..policies.model_source import ModelSource, check_model_source, open_agent, second_label, second_source
from ..policies.protocol import Agent
from ..progress import Progress, Silent
from ..records import Task
from ..rollouts import derive_seed
from ..rollouts.limits import Limits
from ..tasks import counted
from ..tasks.task_files import as_lines
from ..traces.atomic_files import file_sha256, make_folder, write_bytes
from ..traces.identity import differences, digest, tools_identity
from ..traces.journal import Journal
from ..traces.run_lock import RunLock
from ..verifiers.calls import is_number
from .held_back import held_back
from .request_text import DONE, Phrases, Request, request, reworded, spoken
from .solution import answer_doubt
from .task_checks import Seen, is_left_out, played_again, replay_problem, tried, wording_problem
from .worlds import BrokenTool, Found, Lessons, NoWalk, Walk, Worlds, demonstration, learn, minimised, open_worlds, walk

_WALKS = 8
"""Of one attempt, until one leads to a task with the number of calls that is wanted."""


@dataclass(frozen=True)
class Draft:
    """A task made by templates, before it is checked. `shape`: what it has in common with others of its kind."""

    task: Task
    asked: Request
    shape: str
    tier: int


async def draft(worlds: Worlds, lessons: Lessons, phrases: Phrases, *, seed: int, attempt: int, calls: int) -> Draft:
    """The draft of one attempt: depends on the tools and the other arguments alone. Raises `NoWalk`."""
    chance = random.Random(derive_seed(seed, "synthesis", attempt))
    setup = worlds.setups[attempt % len(worlds.setups)]
    for left in reversed(range(_WALKS)):
        try:
            walked = await minimised(worlds, await walk(worlds, lessons, setup, calls, chance))
            if len(walked.steps) < calls:
                raise NoWalk("fewer calls than wanted are enough")
            asked = request(walked, phrases, chance)
            break
        except NoWalk:
            if not left:
                raise
    return Draft(_task(walked, asked, f"synthetic-{seed}-{attempt}"), asked, shape_of(walked, asked), len(walked.steps))


def shape_of(walked: Walk, asked: Request) -> str:
    """The tools in order, how each is fed, and what is asked. Example: "list_orders(customer_id)>get_order: total" """
    parts = []
    for step in walked.steps:
        told = [spoken(name) for name, source in step.sources.items() if not isinstance(source, Found)]
        parts.append(f"{step.tool.name}({', '.join(told)})" if told else step.tool.name)
    return f"{'>'.join(parts)}: {asked.field}"


def _task(walked: Walk, asked: Request, name: str) -> Task:
    calls = [{"name": step.tool.name, "arguments": step.arguments} for step in walked.steps]
    expected: dict[str, Any] = {
        "answer": asked.answer,
        "calls": calls,
        "calls_may_differ": True,  # the request asks for an end, and other tools may lead to it, too
        "changes": walked.changes,
    }
    if asked.options:
        expected["options"] = list(asked.options)
    tools = list(dict.fromkeys(step.tool.name for step in walked.steps))
    return Task(
        id=name,
        prompt=asked.prompt,
        setup=dict(walked.setup),
        expected=expected,
        demonstration=demonstration((step.call for step in walked.steps), asked.closing),
        tags={
            "tier": str(len(walked.steps)),
            "tools": "+".join(tools),
            "end": "change" if walked.changes else "fact",
            "wording": "template",
        },
        family=f"{shape_of(walked, asked)}/{asked.wording}",
    )


# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SynthesizedTasks:
    """Tasks made from tools. `print` it; give `tasks` or `path` to `sdk.train` as prompts."""

    tasks: Sequence[Task]
    wanted: int
    attempts: int
    left_out: Mapping[str, int]
    """Reason -> how many attempts it ended."""
    unused_tools: Mapping[str, str]
    """Tools that no task uses, and why."""
    path: Path | None = None

    def __str__(self) -> str:
        tiers = Counter(task.tags["tier"] for task in self.tasks)
        shown = ", ".join(f"{count} of {tier} call{'s' * (tier != '1')}" for tier, count in sorted(tiers.items()))
        where = f" in {self.path}" if self.path is not None else ""
        worded = sum(task.tags["wording"] == "model" for task in self.tasks)
        if self.tasks:
            by_model = f", {worded} are worded by the model" if worded else ""
            made = f"{counted(self.tasks)}{where} from {self.attempts} attempts: {shown}"
            lines = [f"{made}; all were played again in fresh worlds{by_model}"]
        else:
            lines = [f"no task was made in {self.attempts} attempts"]
        if len(self.tasks) < self.wanted:
            lines.append(
                f"{self.wanted} were wanted: the tools and worlds give no more that differ enough; synthesize with "
                "more `setups`, more `max_calls`, or go on with fewer"
            )
        lines += [f"  guessable: {one}" for one in one_answer_fits(self.tasks)]
        lines += [f"  {count} left out: {reason}" for reason, count in Counter(self.left_out).most_common()]
        lines += [f"  the tool {name} is not used: {reason}" for name, reason in self.unused_tools.items()]
        return "\n".join(lines)

    def _repr_markdown_(self) -> str:
        return listed(str(self))


_LEAST_ALIKE = 4


def one_answer_fits(tasks: Sequence[Task]) -> list[str]:
    """The kinds of questions, by last tool and what is asked, most of which have one answer: a model could learn it
    without reading any result. Kinds with fewer than four tasks are left alone, and so are deeds that ask for nothing
    but that they are done."""
    kinds: dict[tuple[str, str], Counter[str]] = {}
    for task in tasks:
        asked = task.family.rpartition("/")[0].rpartition(": ")[2]
        if task.tags.get("end") == "fact" or asked != DONE:
            kind = (task.expected["calls"][-1]["name"], asked)
            kinds.setdefault(kind, Counter())[str(task.expected["answer"])] += 1
    found = []
    for (tool, asked), answers in sorted(kinds.items()):
        (answer, count), total = answers.most_common(1)[0], answers.total()
        if total >= _LEAST_ALIKE and count > total / 2:
            found.append(
                f"{count} of {total} tasks that ask {tool} for the {asked} have the answer {answer!r}; give worlds in "
                "which it differs, or drop some of them"
            )
    return found


_ATTEMPTS_A_TASK = 60
_EVEN_ATTEMPTS_A_TASK = 20
"""So long, tiers are kept even; then tasks of any tier are taken."""
_MOST_OF_A_SHAPE = 0.08
_MOST_IN_VAIN = 200
"""After so many attempts in a row that are left out, nearly all for one reason, none is made any more; after twice as
many, for whatever reasons, once any number of calls is taken."""
_REPEATS = "it repeats another task"


@dataclass(frozen=True)
class _Plan:
    """The options, checked."""

    n: int
    seed: int
    max_calls: int
    attempts: int
    difficulty: tuple[float, float] | None
    hold_back: int
    limits: Limits
    concurrency: int

    def identity(self, *, writer: ModelSource, policy: ModelSource) -> dict[str, Any]:
        """What decides which tasks are made; how many are wanted does not."""
        names = ("seed", "max_calls", "difficulty")
        plain: dict[str, Any] = {name: getattr(self, name) for name in names}
        if policy is not None:
            plain |= {"attempts": self.attempts, "limits": self.limits.model_dump()}
        if self.hold_back:
            plain["hold_back"] = self.hold_back
        if self.difficulty is not None:
            plain["difficulty"] = list(self.difficulty)
        return {**plain, "writer": _label(writer), "policy": _label(policy)}


async def synthesize_async(
    tools: Any,
    n: int = 100,
    *,
    to: str | Path | None = None,
    setups: Sequence[Setup] | None = None,
    max_calls: int = 2,
    phrases: Mapping[str, str] | None = None,
    writer: ModelSource = None,
    policy: ModelSource = None,
    attempts: int = 4,
    difficulty: tuple[float, float] | None = None,
    hold_back: int = 0,
    limits: Limits | Mapping[str, Any] | None = None,
    connect_timeout_s: float = 120.0,
    concurrency: int = 8,
    seed: int = 0,
    progress: Progress | None = None,
) -> SynthesizedTasks:
    """Make `n` tasks whose gold answers are right by construction, from tools whose worlds can be reset.

    Each is a random walk of at most `max_calls` calls through a world, with arguments from its state and from earlier
    results. What the last call found out or changed is the end; calls that the end does not need are dropped by
    playing the rest again; the request is put in words by templates, or by `writer`. Then it is checked: the calls are
    played again in a fresh world and must earn what the task expects, every argument stands in the request or in an
    earlier result, what the request names is unique in the state, and no other task asks the same.

    `to`: a .jsonl file to write; a run that was killed goes on from what stands beside it. `setups`: the worlds, by
    default `{"seed": 1}` to `{"seed": 24}`. `phrases`: how people ask for a tool, such as
    `{"book": "Book {room} for {person}", "find_slots": "the free slots of {room}"}`; one that only reads has words for
    what it returns. `writer`, `policy`: an endpoint as `(url, model name)`, a folder or hub name, an agent, or
    "embedded"; None: templates, and rules alone. `policy` plays each task `attempts` times: tasks that several attempts
    understand in one other way are left out, and `difficulty=(low, high)` leaves out those whose success lies outside,
    as `curriculum.difficulty_filter` of a training would.
    `hold_back`: so many values are missing in each request, and its user tells them when asked; see `docs/users.md`.

    Fewer than `n` tasks come back where the tools give no more; the result says so. Raises `ConfigError` for tools
    without worlds that can be reset and tell their state, and for a `to` that holds something else, more than `n`
    tasks, or tasks that do not hold in the present worlds.

    Example: `sdk.synthesize(Helpdesk(), 200, to="tasks.jsonl")`
    """
    bounds = Limits.of(limits)
    plan = _checked(_Plan(n, seed, max_calls, attempts, difficulty, hold_back, bounds, concurrency), policy)
    shown = progress or Silent()
    async with connect(tools, call_timeout_s=bounds.call_timeout_s, connect_timeout_s=connect_timeout_s) as source:
        worlds = await open_worlds(source, setups, shown)
        identity = {
            **plan.identity(writer=writer, policy=policy),
            "setups": digest([dict(setup) for setup in worlds.setups]),
            "tools": tools_identity(source.specs, source.tools)["digest"],
            **({"phrases": dict(phrases)} if phrases else {}),
        }
        worded = Phrases(phrases, source.tools)
        first_state = digest(dict(worlds.first_state))
        with ProgressFile(Path(to) if to is not None else None, identity, first_state) as kept:
            kept.require_room(n)
            await _require_kept(source, kept, shown, concurrency)
            if kept.began_with_other_worlds:
                held = "the tasks made so far hold, but" if kept.tasks else "and"
                shown.say(
                    f"warning: the tools' worlds have changed since {kept.work} was begun; {held} attempts that were "
                    f"left out then are not made again. Remove {kept.path} and {kept.work} to make all of them anew"
                )
            async with _opened(writer, concurrency) as writing, _opened(policy, concurrency * attempts) as trying:
                lessons = await learn(worlds, seed)
                worded.check_reads(lessons.reads)
                maker = _Maker(worlds, lessons, worded, plan, kept, writing, trying)
                with shown.track("making tasks", n, min(n, len(kept.tasks))) as step:
                    await maker.run(step)
                if maker.stopped:
                    shown.say(f"warning: {maker.stopped}")
            tasks = [task for _, task, _ in kept.tasks]
            kept.write(tasks)
            used = {tool for task in tasks for tool in task.tags["tools"].split("+")}
            why = f"none of the {kept.next_attempt} attempts made a task with it"
            unused = lessons.left_out | {name: why for name in lessons.tools if name not in used}
            return SynthesizedTasks(tasks, n, kept.next_attempt, dict(kept.left_out), unused, kept.path)


async def _require_kept(source: Toolset, kept: ProgressFile, shown: Progress, concurrency: int) -> None:
    """Play the tasks that an earlier run kept: the worlds may have changed since. Raises `ConfigError`."""
    if not kept.tasks:
        return
    tasks = [task for _, task, _ in kept.tasks]
    with shown.track("playing kept tasks again", len(tasks)) as step:
        rollouts = await played_again(source, tasks, step, concurrency=concurrency)
    # The demonstration ends with the answer of then: that it is right is known only where a result has it still.
    found = [
        (task.id, replay_problem(one) or answer_doubt(task, one)) for task, one in zip(tasks, rollouts, strict=True)
    ]
    problems = [(name, what) for name, what in found if what]
    if problems:
        name, what = problems[0]
        raise ConfigError(
            f"{len(problems)} of the {len(tasks)} tasks made so far for {kept.path} do not hold any more: the tools' "
            f"worlds have changed since. The first is {name!r}: {what}. Give another path, or remove {kept.path} and "
            f"{kept.work} to make all of them anew"
        )


@dataclass
class _Maker:
    """Attempts side by side, decided on in their order, so that a run that goes on makes what it would have made."""

    _worlds: Worlds
    _lessons: Lessons
    _phrases: Phrases
    _plan: _Plan
    _kept: ProgressFile
    _writer: Agent | None
    _policy: Agent | None
    _seen: Seen = field(default_factory=Seen)
    _shapes: Counter[str] = field(default_factory=Counter)
    _tiers: Counter[str] = field(default_factory=Counter)
    _in_vain: Counter[str] = field(default_factory=Counter)
    """Why the attempts were left out that were made since the last task."""
    stopped: str = ""
    """Why it ended early."""

    def __post_init__(self) -> None:
        for _, task, shape in self._kept.tasks:
            self._count(task, shape)

    async def run(self, step: Any) -> None:
        plan, kept = self._plan, self._kept
        most = _ATTEMPTS_A_TASK * plan.n
        while len(kept.tasks) < plan.n and kept.next_attempt < most and self._lessons.tools:
            first = kept.next_attempt
            found: dict[int, tuple[Task, str] | str] = {}
            with plain_errors():
                async with anyio.create_task_group() as group:
                    for attempt in range(first, min(first + plan.concurrency, most)):
                        group.start_soon(self._attempt, attempt, found)
                await self._leave_out_broken()
            for attempt in sorted(found):
                one = found[attempt]
                if len(kept.tasks) == plan.n:
                    return
                problem = one if isinstance(one, str) else self._crowded(*one, attempt) or self._seen_before(one[0])
                if problem or isinstance(one, str):
                    kept.leave_out(attempt, problem)
                    self._in_vain[problem] += 1
                    continue
                kept.keep(attempt, *one)
                self._count(*one)
                self._in_vain.clear()
                step.advance(note=f"{attempt + 1} attempts")
            if not self._in_vain:
                continue
            (reason, count), total = self._in_vain.most_common(1)[0], self._in_vain.total()
            step.advance(0, f"{kept.next_attempt} attempts; {count} of the last {total} left out: {reason}")
            is_full = reason.startswith(("there are enough", _REPEATS))
            is_hopeless = total >= _MOST_IN_VAIN and count >= 0.9 * total and not is_full
            if is_hopeless or (total >= 2 * _MOST_IN_VAIN and not self._is_even(kept.next_attempt)):
                self.stopped = (
                    f"stopped after {kept.next_attempt} attempts with {len(kept.tasks)} tasks: of the last {total}, "
                    f"none gave a task, {count} for one reason: {reason}"
                )
                return

    async def _leave_out_broken(self) -> None:
        """Tools that break again and again: each call of one that hangs would take as long as a call may."""
        for tool in self._worlds.suspects:
            if tool in self._lessons.tools and await self._worlds.breaks_alone(tool):
                self._lessons.leave_out(tool, self._worlds.why_broken(tool))

    def _count(self, task: Task, shape: str) -> None:
        self._seen.add(task, task.id)
        self._shapes[shape] += 1
        self._tiers[task.tags["tier"]] += 1

    async def _attempt(self, attempt: int, found: dict[int, tuple[Task, str] | str]) -> None:
        plan = self._plan
        # Later on, numbers of calls that gave no task are not tried again.
        most = plan.max_calls if self._is_even(attempt) else max(map(int, self._tiers), default=plan.max_calls)
        calls = attempt // len(self._worlds.setups) % most + 1  # each number in turn, after all worlds
        if problem := self._enough_of(str(calls), attempt):
            found[attempt] = problem  # nothing is walked for it
            return
        try:
            drafted = await draft(
                self._worlds, self._lessons, self._phrases, seed=plan.seed, attempt=attempt, calls=calls
            )
            found[attempt] = await self._checked(drafted, attempt)
        except NoWalk as reason:
            found[attempt] = str(reason)
        except BrokenTool as failure:
            found[attempt] = f"a call of {failure.tool} broke ({failure.kind})"
        except ToolFailure as failure:
            found[attempt] = f"a world broke ({type(failure).__name__})"

    async def _checked(self, drafted: Draft, attempt: int) -> tuple[Task, str] | str:
        """The task with its shape, or why it is left out. What costs least is looked at first."""
        task = drafted.task
        if problem := self._crowded(task, drafted.shape, attempt) or self._seen_before(task):
            return problem
        if self._writer is not None:
            text, reason = await reworded(self._writer, drafted.asked, seed=self._plan.seed, attempt=attempt)
            wording = {"wording": "model"} if text else {"wording": "template", "not_reworded": reason}
            task = task.model_copy(update={"prompt": text or task.prompt, "tags": {**task.tags, **wording}})
        if self._plan.hold_back:
            found = held_back(task, self._plan.hold_back, seed=self._plan.seed)
            if isinstance(found, str):
                return "too few of its values can be held back"
            if problem := self._seen_before(found):
                return problem
            task = found
        with Silent().track("", 1) as step:
            (gold,) = await played_again(self._worlds.source, [task], step)
        if problem := replay_problem(gold):
            return f"its gold solution does not earn what it expects: {problem.partition(';')[0][:80]}"
        if answer_doubt(task, gold):
            return "its answer is not among the results of its gold solution: they were cut, or differ in each play"
        if wording_problem(gold):
            return "the request does not say all that it must, or says the answer"
        return await self._tried(task, drafted.shape) if self._policy is not None else (task, drafted.shape)

    async def _tried(self, task: Task, shape: str) -> tuple[Task, str] | str:
        plan = self._plan
        assert self._policy is not None
        found, rollouts = await tried(
            self._worlds.source, self._policy, task, attempts=plan.attempts, limits=plan.limits, seed=plan.seed
        )
        if not found.scored:
            failure = next((rollout.failure for rollout in rollouts if rollout.failure is not None), None)
            raise PolicyFailure(
                f"no attempt of the policy could be scored: {failure.message if failure else 'no reason'}"
            )
        if found.ambiguous:
            return "several attempts of the policy came to one other end: it may be ambiguous"
        if plan.difficulty is not None and is_left_out(task, rollouts, plan.difficulty):
            return f"the policy's success is outside of {plan.difficulty[0]:g} to {plan.difficulty[1]:g}"
        return task.model_copy(update={"tags": {**task.tags, "success": f"{found.success:.2f}"}}), shape

    def _crowded(self, task: Task, shape: str, attempt: int) -> str:
        plan = self._plan
        if self._shapes[shape] >= max(2, math.ceil(_MOST_OF_A_SHAPE * plan.n)):
            return "there are enough of its kind"
        return self._enough_of(task.tags["tier"], attempt)

    def _enough_of(self, tier: str, attempt: int) -> str:
        share = math.ceil(self._plan.n / self._plan.max_calls)
        is_full = self._is_even(attempt) and self._tiers[tier] >= share
        return "there are enough of its number of calls" if is_full else ""

    def _is_even(self, attempt: int) -> bool:
        return attempt < _EVEN_ATTEMPTS_A_TASK * self._plan.n

    def _seen_before(self, task: Task) -> str:
        return _REPEATS if self._seen.problem(task) or self._seen.asks_again(task) else ""


@asynccontextmanager
async def _opened(model: ModelSource, rows: int) -> AsyncIterator[Agent | None]:
    if model is None:
        yield None
        return
    async with open_agent(second_source(model), rows=rows) as agent:
        yield agent


def _label(model: ModelSource) -> str | None:
    return None if model is None else second_label(model)


def _checked(plan: _Plan, policy: ModelSource) -> _Plan:
    for name in ("n", "max_calls", "attempts", "concurrency"):
        value = getattr(plan, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name} is {value!r}; it must be a whole number, 1 or more")
    if isinstance(plan.hold_back, bool) or not isinstance(plan.hold_back, int) or plan.hold_back < 0:
        raise ConfigError(f"hold_back is {plan.hold_back!r}; it must be a whole number, 0 or more")
    if plan.difficulty is not None:
        if policy is None:
            raise ConfigError("difficulty is measured by a policy's attempts; give `policy`, or leave `difficulty` out")
        shares = plan.difficulty
        is_pair = isinstance(shares, tuple | list) and len(shares) == 2 and all(map(is_number, shares))
        if not is_pair or not 0 <= shares[0] < shares[1] <= 1:
            raise ConfigError(f"difficulty is {plan.difficulty}; give two shares that rise, such as (0.1, 0.9)")
        if plan.attempts < 2:
            raise ConfigError(f"attempts is {plan.attempts}; a difficulty takes at least 2")
    check_model_source(second_source(policy))
    return plan


# ---------------------------------------------------------------------------------------------------------------------

_FORMAT = 1


class ProgressFile:
    """`NAME.work.jsonl` beside `NAME.jsonl`: one line for each attempt, kept or not, in their order.

    Without a path nothing is kept and nothing can be gone on with.
    """

    def __init__(self, path: Path | None, identity: Mapping[str, Any], first_state: str = "") -> None:
        """`first_state`: the digest of a fresh world's state.

        Raises `ConfigError` for a path that holds something else, `RunFolderError` where it cannot be written."""
        self.path = path
        self.work: Path | None = None
        self.tasks: list[tuple[int, Task, str]] = []
        """Attempt, task and shape of those kept."""
        self.left_out: Counter[str] = Counter()
        self.next_attempt = 0
        self.began_with_other_worlds = False
        """Whether the state of a fresh world was another one when the file was begun."""
        self._first_state = first_state
        self._written: set[str] = set()
        self._journal: Journal | None = None
        self._lock: RunLock | None = None
        if path is not None:
            self._open(path, dict(identity))

    def _open(self, path: Path, identity: dict[str, Any]) -> None:
        if path.suffix != ".jsonl":
            raise ConfigError(f"{path}: tasks are written as JSON lines; give a path that ends in .jsonl")
        make_folder(path.parent)
        work = self.work = path.with_name(f"{path.stem}.work.jsonl")
        if path.exists() and not work.exists():
            raise ConfigError(
                f"{path} exists already, and {work.name} is not beside it; give another path, or remove it"
            )
        self._lock = RunLock(path.with_name(f".{path.name}.lock"), file=path)
        self._journal = Journal(work)
        try:
            self._journal.cut_torn_line()
            try:
                self._read(path, work, identity)
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                raise ConfigError(
                    f"{work} is damaged: {type(error).__name__}: {str(error).splitlines()[0]}; move it and {path.name} "
                    "away, or give another path"
                ) from error
        except BaseException:
            self.close()
            raise

    def _read(self, path: Path, work: Path, identity: dict[str, Any]) -> None:
        assert self._journal is not None
        lines = self._journal.read()
        first = next(lines, None)
        if first is None:
            self._journal.append({"format": _FORMAT, "made_with": identity, "first_state": self._first_state})
            return
        if first.get("format") != _FORMAT:
            raise ConfigError(f"{work} is not a progress file of this version; give another path")
        if changed := differences(first["made_with"], identity):
            raise ConfigError(
                f"{work} was begun with other options: {'; '.join(changed[:5])}. Give those again, or another path"
            )
        self.began_with_other_worlds = first.get("first_state", self._first_state) != self._first_state
        for line in lines:
            if "written" in line:
                self._written.add(line["written"])
                continue
            self.next_attempt = line["attempt"] + 1
            if "task" in line:
                self.tasks.append((line["attempt"], Task.model_validate(line["task"]), line["shape"]))
            else:
                self.left_out[line["left_out"]] += 1
        if path.exists() and file_sha256(path) not in self._written:
            raise ConfigError(
                f"{path} was changed since it was written, and going on would write it anew; move it away, and check "
                "it with `toolbake synthesize TOOLS --check FILE`"
            )

    def require_room(self, n: int) -> None:
        """Raises `ConfigError` where fewer tasks are wanted than there are: none is taken away."""
        if len(self.tasks) > n:
            raise ConfigError(
                f"n is {n}, and {self.work} has {len(self.tasks)} tasks already, of which none is taken away; give n="
                f"{len(self.tasks)} or more, or another path"
            )

    def keep(self, attempt: int, task: Task, shape: str) -> None:
        self.tasks.append((attempt, task, shape))
        self._note(
            {"attempt": attempt, "shape": shape, "task": task.model_dump(mode="json", exclude_defaults=True)}, attempt
        )

    def leave_out(self, attempt: int, reason: str) -> None:
        self.left_out[reason] += 1
        self._note({"attempt": attempt, "left_out": reason}, attempt)

    def _note(self, line: dict[str, Any], attempt: int) -> None:
        self.next_attempt = attempt + 1
        if self._journal is not None:
            self._journal.append(line)

    def write(self, tasks: Sequence[Task]) -> None:
        """Write the file of tasks as a whole."""
        if self.path is None or self._journal is None or not tasks:
            return
        text = as_lines(tasks)
        # Said before it is done: a kill in between must not make the file look like somebody else's.
        self._journal.append({"written": hashlib.sha256(text).hexdigest()})
        self._journal.sync()
        write_bytes(self.path, text)

    def close(self) -> None:
        if self._journal is not None:
            self._journal.close()
        if self._lock is not None:
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
