"""Checks of a task. Its calls are played again in a fresh world, and its request is compared with them. A policy
attempts it, which shows how hard it is and whether it is ambiguous.

What it expects must name tools, arguments and tables that there are: else nobody can win it.
"""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any

from mcp_bridge import Toolset
from mcp_bridge.errors import BridgeError
from mcp_bridge.records import Tool
from mcp_bridge.safe_text import and_more, listed
from sandboxes import diff

from ..connecting import connect
from ..errors import ConfigError
from ..evaluation.conditions import is_success
from ..policies.protocol import Agent, Sampling
from ..policies.scripted import replay_demonstration
from ..progress import Progress, Silent, Step
from ..records import Rollout, Task, reaches
from ..rollouts import derive_seed
from ..rollouts.engine import RolloutEngine
from ..rollouts.episode import Job
from ..rollouts.limits import Limits
from ..rollouts.run_context import RunContext, play_scripts
from ..tasks import load_tasks
from ..tasks.task_files import read_file, task_from_mapping
from ..trainer.config import CurriculumOptions, TrainConfig
from ..trainer.curriculum import Difficulty
from ..verifiers import VerifierLike, all_of, answer_match, calls_match, final_state, required_calls, verifier_name
from ..verifiers.calls import holds_pattern
from ..verifiers.grounding import ungrounded_arguments
from ..verifiers.text_tokens import positions, tokenize
from .solution import answer_doubt
from .worlds import open_worlds

_RIGHT = re.compile(r"\S+ 1: ")
"""How a line of a combined verdict begins that has nothing to complain of."""
_UNBOUNDED = Limits(max_turns=10_000, max_calls=10_000)
VERIFIER_FAILED = "the verifier failed"
"""How the problem of a gold solution begins whose verdict is missing."""


def gold_verifier(tasks: Sequence[Task]) -> VerifierLike:
    """What these tasks can be judged by: the world's end, the answer, the calls, as far as all of them expect it."""
    kinds = [set(task.expected) for task in tasks]
    parts: list[VerifierLike] = []
    if all({"changes", "state"} & kind for kind in kinds):
        parts.append(final_state())
    if all("calls" in kind for kind in kinds):
        parts.append(calls_match() if any(map(_has_patterns, tasks)) else required_calls())
    if all("answer" in kind for kind in kinds):
        parts.append(answer_match())
    return all_of(*parts)


def _has_patterns(task: Task) -> bool:
    return holds_pattern(task.expected.get("calls"))


async def played_again(
    source: Toolset,
    tasks: Sequence[Task],
    step: Step,
    *,
    concurrency: int = 8,
    verifier: VerifierLike | None = None,
) -> list[Rollout]:
    """The demonstration of each task in a fresh world of its own, judged by all that the task expects, or by
    `verifier`."""
    kinds: dict[tuple[bool, tuple[str, ...]], list[int]] = {}
    for place, task in enumerate(tasks):
        kinds.setdefault((_has_patterns(task), tuple(sorted(task.expected))), []).append(place)
    found: dict[int, Rollout] = {}
    for places in kinds.values():
        plays = [
            (Job(id=f"gold/{place}/{tasks[place].id}", task=tasks[place], seed=0), replay_demonstration(tasks[place]))
            for place in places
        ]
        judge = verifier or gold_verifier([tasks[place] for place in places])
        context = RunContext(tools=source, verifier=judge, limits=_UNBOUNDED, concurrency=concurrency)
        done = await play_scripts(plays, context, step)
        found.update(zip(places, done, strict=True))
    return [found[place] for place in range(len(tasks))]


def replay_problem(rollout: Rollout) -> str:
    """Why the gold solution does not do what the task expects; empty where it does."""
    if rollout.failure is not None:
        if rollout.failure.boundary == "verifier":
            return f"{VERIFIER_FAILED}: {rollout.failure.message}"
        return f"its calls could not be played: {rollout.failure.message}"
    refused = [record for record in rollout.calls if record.result.is_error]
    # A task may be about a call that is refused: then not every call is among those expected.
    made = sum(len(message.tool_calls) for message in rollout.task.demonstration)
    if refused and len(rollout.task.expected.get("calls", range(made))) >= made:
        call, said = refused[0].call, refused[0].result.text[:200]
        shown = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
        return f"the call {call.name}({shown}) of its demonstration is refused: {said}"
    if rollout.verdict is None:
        return "its end could not be judged"
    lines = [line for line in rollout.verdict.explanation.splitlines() if not _RIGHT.match(line)]
    return (
        "" if reaches(rollout.verdict.score) else "; ".join(lines) or f"its score is {rollout.verdict.score:g}, not 1"
    )


def wording_problem(rollout: Rollout) -> str:
    """What the request lacks or gives away; empty where nothing."""
    missing = ungrounded_arguments(rollout)
    if missing:
        return (
            f"the request says nothing of {missing[0]}, and no earlier call returns it; name it in the prompt, or add "
            "the call that finds it"
        )
    expected = rollout.task.expected
    answer = expected.get("answer")
    plain = isinstance(answer, str | int | float) and not isinstance(answer, bool)
    # Where something is to be done, the answer may repeat it.
    if plain and expected.get("changes") == []:
        prompt = [token for message in rollout.task.opening() for token in tokenize(message.content)]
        if positions(tokenize(str(answer)), prompt):
            doubt = answer_doubt(rollout.task, rollout)
            return doubt or f"the request says the answer {answer!r} itself; take it out of the prompt"
    return ""


def normalised(prompt: str) -> str:
    """A request without what does not count: case, spaces, punctuation."""
    return " ".join(str(token) for token in tokenize(prompt))


class Seen:
    """The tasks so far, to find those that repeat or contradict one."""

    def __init__(self) -> None:
        self._prompts: dict[str, tuple[str, str]] = {}
        self._paths: dict[str, str] = {}
        self._anywhere: set[str] = set()

    def asks_again(self, task: Task) -> bool:
        """Whether a task of whatever world has the same calls and the same end, in other words perhaps: who learns one
        knows the answer to the other."""
        return _solution(task) in self._anywhere

    def problem(self, task: Task) -> str:
        """Why a task may not stand beside those before it; empty where it may."""
        prompt, path = _keys(task)
        if prompt in self._prompts:
            name, gold = self._prompts[prompt]
            other = "and expects the same" if gold == _gold(task) else "but expects something else"
            return f"it asks the same as {name} in the same world, {other}"
        if path in self._paths:
            return f"its calls and its end are those of {self._paths[path]}"
        return ""

    def add(self, task: Task, name: str) -> None:
        prompt, path = _keys(task)
        self._prompts[prompt] = (name, _gold(task))
        self._paths[path] = name
        self._anywhere.add(_solution(task))


def _keys(task: Task) -> tuple[str, str]:
    facts = [f"{name}: {fact.value}" for name, fact in task.user.facts.items()] if task.user is not None else []
    said = " / ".join([*(normalised(message.content) for message in task.opening()), *task.later_turns, *facts])
    setup = _json(task.setup)
    return f"{setup} {said}", f"{setup} {_path(task)}"


def _path(task: Task) -> str:
    calls = [[call.name, call.arguments] for message in task.demonstration for call in message.tool_calls]
    return f"{_json(calls)} {_json(task.expected.get('answer'))} {_json(task.later_turns)}"


def _solution(task: Task) -> str:
    return f"{_path(task)} {_gold(task)}"


def _gold(task: Task) -> str:
    return _json({name: task.expected.get(name) for name in ("answer", "changes", "state")})


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


_SHOWN = 20


@dataclass(frozen=True)
class Problem:
    """What is wrong with one task."""

    where: str
    """File and line, or the task's id."""
    task_id: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}{f' (task {self.task_id!r})' if self.task_id else ''}: {self.what}"


@dataclass(frozen=True)
class CheckedTasks:
    """The tasks that hold, and the problems of the others. `print` it; `require_all` raises where there are any."""

    tasks: Sequence[Task]
    problems: Sequence[Problem]
    warnings: Sequence[Problem] = ()
    """Of tasks that hold: what may be a slip, such as an answer that no result of their calls has."""

    def __str__(self) -> str:
        count = len({problem.where for problem in self.problems})
        held = "1 task holds" if len(self.tasks) == 1 else f"{len(self.tasks)} tasks hold"
        head = f"{held}: their calls were played again in fresh worlds and earn what they expect"
        lines = [head, *([f"{count} {'does' if count == 1 else 'do'} not:"] if count else [])]
        lines += [f"  {one}" for one in self.problems]
        doubts = [f"{len(self.warnings)} may have a wrong answer:", *(f"  {one}" for one in self.warnings)]
        return "\n".join(lines + (doubts if self.warnings else []))

    def _repr_markdown_(self) -> str:
        return listed(str(self))

    def require_all(self) -> None:
        """Raises `ConfigError` that names the problems."""
        if self.problems:
            more = len(self.problems) - _SHOWN
            shown = [f"  {problem}" for problem in self.problems[:_SHOWN]] + (
                [f"  and {more} more"] if more > 0 else []
            )
            raise ConfigError(
                f"{len(self.problems)} problem{'s' * (len(self.problems) > 1)} in the tasks:\n" + "\n".join(shown)
            )


async def check_tasks_async(
    tools: Any,
    prompts: Any,
    *,
    verifier: VerifierLike | None = None,
    connect_timeout_s: float = 120.0,
    concurrency: int = 8,
    progress: Progress | None = None,
) -> CheckedTasks:
    """Check tasks against the tools: those that `sdk.synthesize` wrote and people edited, or any with demonstrations.

    `prompts`: a file or whatever else `sdk.tasks.load_tasks` takes. Of each task the calls of its demonstration are
    played in a fresh world and must earn what it expects, or 1 from your `verifier`; the request must hold every
    argument that no earlier call returns, and not the answer; no two may ask the same in the same world. The tools,
    arguments and tables that a task expects must be there. A problem of a file names its line.

    Raises `ConfigError` for a file that cannot be read and tools without worlds that can be reset.
    """
    placed, problems = _read(prompts)
    async with connect(tools, connect_timeout_s=connect_timeout_s) as source:
        await open_worlds(source, [{}])
        seen = Seen()
        playable: list[tuple[str, Task]] = []
        names = await unknown_names(source, [task for _, task in placed])
        for (where, task), unknown in zip(placed, names, strict=True):
            if what := unknown or _unplayable(task, source.tools, judged=verifier is not None) or seen.problem(task):
                problems.append(Problem(where, task.id, what))
            else:
                seen.add(task, where)
                playable.append((where, task))
        with (progress or Silent()).track("playing tasks again", len(playable)) as step:
            alone = [task for _, task in playable]
            rollouts = await played_again(source, alone, step, concurrency=concurrency, verifier=verifier)
    good, warnings = [], []
    for (where, task), rollout in zip(playable, rollouts, strict=True):
        if what := replay_problem(rollout):
            what += ". Correct `expected`, or the calls and the last message of its demonstration" + (
                "" if verifier is None else ", or the verifier"
            )
        if what := what or wording_problem(rollout):
            problems.append(Problem(where, task.id, what))
        else:
            good.append(task)
            if doubt := answer_doubt(task, rollout):
                warnings.append(Problem(where, task.id, doubt))
    order = {where: place for place, (where, _) in enumerate(placed)}
    in_order = sorted(problems, key=lambda problem: order.get(problem.where, len(order)))
    return CheckedTasks(good, in_order, warnings)


def _read(prompts: Any) -> tuple[list[tuple[str, Task]], list[Problem]]:
    """The tasks with their places, and the lines that are none."""
    if not isinstance(prompts, str | Path):
        return [(f"task {task.id!r}", task) for task in load_tasks(prompts)], []
    placed: list[tuple[str, Task]] = []
    problems: list[Problem] = []
    ids: dict[str, str] = {}
    for item, where in read_file(Path(prompts)):
        try:
            if not isinstance(item, dict):
                raise ConfigError(f"{where}: is {item!r:.80}; a task is an object with a 'prompt'")
            task = task_from_mapping(item, where)
        except ConfigError as error:
            problems.append(Problem(where, "", str(error).removeprefix(f"{where}: ")))
            continue
        if task.id in ids:
            problems.append(Problem(where, task.id, f"its id is that of {ids[task.id]}; give it an id of its own"))
            continue
        ids[task.id] = where
        placed.append((where, task))
    if not placed and not problems:
        raise ConfigError(f"{prompts} holds no task; give at least one")
    return placed, problems


def _unplayable(task: Task, tools: Sequence[Tool], *, judged: bool) -> str:
    calls = [call for message in task.demonstration for call in message.tool_calls]
    if any(message.role != "assistant" for message in task.demonstration):
        return "its demonstration holds other messages than the assistant's; leave results out, calls are played"
    if not task.demonstration:
        return "it has no demonstration, so that nothing can be played; add the assistant messages of a right solution"
    if not judged and not {"answer", "calls", "changes", "state"} & set(task.expected):
        return "it expects nothing that can be checked; add expected.answer, expected.calls or expected.changes"
    names = {tool.name for tool in tools}
    unknown = [call.name for call in calls if call.name not in names]
    if unknown:
        return (
            f"its demonstration calls {unknown[0]!r}, which the tools do not have; they are {', '.join(sorted(names))}"
        )
    return ""


# ---------------------------------------------------------------------------------------------------------------------

_AGREEING = 0.5
"""The share of attempts that must come to one other end for a task to count as ambiguous."""


@dataclass(frozen=True)
class Tried:
    """What came of the attempts. `success`: the share that was right, of those that could be scored."""

    success: float
    scored: int
    other_end: int
    """How many came to one end that is not the gold one."""

    @property
    def ambiguous(self) -> bool:
        return self.other_end >= max(2, _AGREEING * self.scored)


async def tried(
    source: Toolset, agent: Agent, task: Task, *, attempts: int, limits: Limits, seed: int
) -> tuple[Tried, list[Rollout]]:
    """Play a task `attempts` times at temperature 1, each in a world of its own."""
    engine = RolloutEngine(
        agent=agent, source=source, verifier=all_of(final_state(), answer_match()), limits=limits, concurrency=attempts
    )
    jobs = [
        Job(
            id=f"attempt/{task.id}/{n}", task=task, seed=derive_seed(seed, "attempt", task.id, n), group=task.id, step=0
        )
        for n in range(attempts)
    ]
    rollouts = await engine.run(jobs, sampling=Sampling(temperature=1.0, max_tokens=limits.max_turn_tokens))
    scored = [rollout for rollout in rollouts if rollout.scored]
    wrong = [rollout for rollout in scored if not is_success(rollout, 1.0)]
    ends = Counter(
        _end(rollout)
        for rollout in wrong
        if rollout.stop_reason == "answered" and any(not record.result.is_error for record in rollout.calls)
    )
    most = max(ends.values(), default=0)
    return Tried((len(scored) - len(wrong)) / max(1, len(scored)), len(scored), most), rollouts


def is_left_out(task: Task, rollouts: Sequence[Rollout], band: tuple[float, float]) -> bool:
    """Whether training with this `curriculum.difficulty_filter` would leave the task out after these rollouts."""
    filtered = Difficulty([task], TrainConfig(curriculum=CurriculumOptions(difficulty_filter=band)))
    filtered.observe(rollouts)
    return bool(filtered.left_out(1))


def _end(rollout: Rollout) -> str:
    """What an attempt came to: the changes it made and what it said."""
    changes = diff(rollout.initial_state or {}, rollout.final_state or {})
    return _json([changes, normalised(rollout.answer)])


_MOST_NAMES = 20
_HARMLESS = frozenset({"$absent", "$optional"})
"""Patterns that a call without the argument fits, as null does: such a call can be made, whatever the name is."""
_SAME_WORD = 0.85
"""A table may appear only when its first row is written. One whose name is so like that of another is a slip."""


async def unknown_names(source: Toolset, tasks: Sequence[Task]) -> list[str]:
    """For each task, what it expects that these tools do not have, with the choices and the fix; empty where nothing.

    Looks at the names and arguments of `expected["calls"]` and `expected["forbid"]`, and at the tables of
    `expected["changes"]`. A world is opened only to learn tables that are not known yet. Where its state cannot be
    read, tables are not looked at.
    """
    tables: set[str] | None = set()
    looked: set[str] = set()
    found = []
    for task in tasks:
        problem = _unknown_call(task, source.tools)
        key = _json(task.setup)
        if not problem and tables is not None and source.has_state and not tables.issuperset(_tables_of(task)):
            if key not in looked:
                looked.add(key)
                told = await _tables(source, task, len(looked))
                tables = tables | told if told is not None else None
            problem = _unknown_table(task, tables) if tables is not None else ""
        found.append(problem)
    return found


async def tasks_of_unknown_names(source: Toolset, tasks: Sequence[Task]) -> list[str]:
    """What `unknown_names` finds, with the task that has it."""
    found = zip(tasks, await unknown_names(source, tasks), strict=True)
    return [f"task {task.id!r}: {what}" for task, what in found if what]


_COMPARES = re.compile(r"\b(as_expected|calls_match|required_calls|final_state)\(")


async def require_known_names(source: Toolset, tasks: Sequence[Task], verifier: VerifierLike) -> list[str]:
    """Raises `ConfigError` where a task expects or forbids a tool, an argument or a table that there is not, and
    `verifier` has a ready-made one that compares them: before anything is trained on a reward that nothing can earn, or
    without a limit that is thought to hold. What another verifier makes of such names is not known: for it, a line that
    warns of the first, or none. Also raises it for a tool that `required_calls(forbid=...)` names and there is not."""
    known = {tool.name for tool in source.tools}
    if unknown := next((name for name in _forbidden_by(verifier) if name not in known), None):
        choices = _choices(unknown, known, "the tools", _NEVER_MADE)
        raise ConfigError(f"required_calls(forbid=...) names the tool {unknown!r}, which there is not{choices}")
    if named := await tasks_of_unknown_names(source, tasks):
        more = f" ({len(named)} of {len(tasks)} tasks)" if len(named) > 1 else ""
        if _COMPARES.search(verifier_name(verifier)):
            raise ConfigError(f"{named[0]}{more}")
        return [f"warning: {named[0]}{more}"]
    return []


def _forbidden_by(verifier: Any) -> Iterator[str]:
    """The tools that a ready-made verifier forbids, by itself or in one of its parts."""
    if isinstance(verifier, required_calls):
        yield from verifier.forbid
    elif is_dataclass(verifier):
        for part in vars(verifier).values():
            for one in part if isinstance(part, tuple) else (part,):
                yield from _forbidden_by(one)


async def _tables(source: Toolset, task: Task, number: int) -> set[str] | None:
    """The tables of a fresh world of a task; None where it cannot be opened, which whoever plays the task tells."""
    try:
        async with source.open_world(f"names/{number}", task.setup or None) as world:
            state = await world.state()
    except BridgeError:
        return None
    return None if state is None else set(state)


def _unknown_call(task: Task, tools: Sequence[Tool]) -> str:
    known = {tool.name: tool for tool in tools}
    for field, call in _named_calls(task):
        name = call["name"]
        fix = _NEVER_MADE if field == "forbid" else _NEVER_DONE
        if name not in known:
            return (
                f"expected.{field} names the tool {name!r}, which there is not{_choices(name, known, 'the tools', fix)}"
            )
        schema = known[name].input_schema
        arguments = call.get("arguments", {})
        if not isinstance(arguments, Mapping) or _is_open(schema):
            continue
        for argument, pattern in arguments.items():
            may_lack = pattern is None or (isinstance(pattern, Mapping) and _HARMLESS & set(pattern))
            if argument not in schema["properties"] and (field == "forbid" or not may_lack):
                return (
                    f"expected.{field} gives {name} the argument {argument!r}, which it does not have"
                    f"{_choices(argument, schema['properties'], 'its arguments', fix)}"
                )
    return ""


def _named_calls(task: Task) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The calls that a task expects and forbids, without those of another form than the ready-made verifiers compare:
    each after the name of its field."""
    for field in ("calls", "forbid"):
        calls = task.expected.get(field)
        for call in calls if isinstance(calls, list) else []:
            one = {"name": call} if isinstance(call, str) and field == "forbid" else call
            if isinstance(one, Mapping) and isinstance(one.get("name"), str):
                yield field, one


def _is_open(schema: Mapping[str, Any]) -> bool:
    """Whether other arguments than those that it names may be right."""
    named = schema.get("properties")
    others = ("additionalProperties", "patternProperties", "$ref", "anyOf", "oneOf", "allOf")
    return not isinstance(named, Mapping) or any(schema.get(key) for key in others)


def _tables_of(task: Task) -> dict[str, bool]:
    """The tables whose changes are expected -> whether a row of it is there before."""
    changes = task.expected.get("changes")
    found: dict[str, bool] = {}
    for change in changes if isinstance(changes, list) else []:
        name = change.get("table") if isinstance(change, Mapping) else None
        if isinstance(name, str):
            found[name] = found.get(name, False) or change.get("before") is not None
    return found


def _unknown_table(task: Task, tables: set[str]) -> str:
    for name, has_rows in _tables_of(task).items():
        is_slip = has_rows or difflib.get_close_matches(name, tables, n=1, cutoff=_SAME_WORD)
        if name not in tables and is_slip:
            return (
                f"expected.changes names the table {name!r}, which the state does not have"
                f"{_choices(name, tables, 'its tables')}"
            )
    return ""


_NEVER_DONE = "Correct it, since no policy could do that"
_NEVER_MADE = "Correct it, since it forbids nothing that a policy could do"


def _choices(name: str, known: Iterable[str], what: str, fix: str = _NEVER_DONE) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    meant = f"; did you mean {near[0]!r}?" if near else ""
    fix = f"{fix}; or leave it out where your verifier does not compare it"
    return f"{meant}; {what} are {and_more(names, _MOST_NAMES) or 'none'}. {fix}"
