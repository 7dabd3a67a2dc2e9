"""Gold solutions: the calls that solve a task are played in its world, and the whole task comes back."""

from __future__ import annotations

import ast
import functools
import json
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from mcp_bridge import Tool, Toolset
from mcp_bridge.records import EMPTY
from mcp_bridge.safe_text import json_values, strict_json
from sandboxes.changes import Change, diff

from ..connecting import connect
from ..errors import ConfigError, PolicyFailure
from ..policies.scripted import ScriptedAgent
from ..progress import Progress, Silent
from ..records import Message, Rollout, Task, ToolCall
from ..rollouts.episode import Job
from ..rollouts.limits import Limits
from ..rollouts.run_context import RunContext, play_scripts
from ..tasks.task_files import note_task, read_file, task_from_mapping
from ..verifiers.states import is_ignored
from ..verifiers.text_tokens import positions, tokenize
from .shared_state import changes_shared
from .words import verb_and_object, words
from .worlds import leaves

log = logging.getLogger(__name__)

Calls = str | Mapping[str, Any] | Sequence[Any]
"""`"book(room='2', person='Ann')"`, several on lines of their own or with `;` between them; or a list of such texts, of
pairs `("book", {"room": "2"})` and of mappings `{"name": "book", "arguments": {"room": "2"}}`. An argument may be read
from the result of an earlier call: `"find_room(seats=4); book(room=$1.name, person='Ann')"`."""

_OWN_FIELDS = ("calls", "answer", "reply")
"""Of a row, beside the fields of a task."""
_UNBOUNDED = Limits(max_turns=10_000, max_calls=10_000, max_seconds=3600.0)
_PATH = re.compile(r"\$(\d*)((?:\.[^.\[\]]+|\[\d+\])*)")
_REFERENCE = re.compile(r"\$\d+(?:\.[^\W\d][^.\[\]]*|\[\d+\])(?:\.[^.\[\]]+|\[\d+\])*")
"""An argument that is read from a result. `$1.50` and, in quotes, `$5` are prices."""
_WHOLLY = "()"
_WHOLE = re.compile(r"\$\d+\(\)")
"""How `$1` without quotes, a whole result, is told from a price."""
_BARE_REFERENCE = re.compile(r"""("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|([=\[,:]\s*)(\$\d+(?:\.\w+|\[\d+\])*)""")
"""A quoted text, or a reference outside of one with what is before it."""
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
_LITERALS = {"true": True, "false": False, "null": None}
_LONGEST_VALUE = 8
"""Words. A longer text is a passage, in which the answer has to be named."""
_CONCURRENCY = 8
_CLOCK = re.compile(r"\d\d:\d\d|\d{9,}")
_TICK_S = 1.1
"""A clock that counts seconds shows another time then."""


async def solve_async(
    tools: Any,
    prompt: str | Sequence[Message],
    calls: Calls,
    setup: Mapping[str, Any] | None = None,
    *,
    answer: Any = None,
    reply: str | None = None,
    tags: Mapping[str, str] | None = None,
    family: str = "",
    connect_timeout_s: float = 120.0,
) -> Task:
    """Play the calls that solve a task in a fresh world, and return the whole `Task`: its answer, the changes of the
    world, the calls and a demonstration, all as they really were.

    Example: `sdk.solve("mcp.json", "Book room 2 for Ann.", "book(room='2', person='Ann')", {"seed": 7})`

    `tools`: anything `mcp_bridge.connect` takes. `calls`: in their order, see `Calls`. `setup`: how the world begins.
    `answer`: what the answer must contain; a text such as `$.price` or `$1.rooms[0].name` reads it from the result of
    the last or the first call, while `$5` is a price. By default it is the one value that the last call returned, where
    the calls changed nothing; a task that changes the world has no answer unless one is given. `reply`: the last
    message of the demonstration; by default the answer. `tags`, `family`: as in `Task`.

    The calls are played a second time in another fresh world, unless worlds share state. What the server chose itself,
    such as the time or a random key, differs there: such columns, and the tables of such keys, are named in
    `expected["ignore"]` and in a warning, and no change of them is expected.

    An answer that neither a result nor the prompt has is logged as a warning: it may be computed, or mistyped. Raises
    `ConfigError` for calls that cannot be read, that a tool refuses, or whose answer is not clear or differs each time.
    """
    fields = {"prompt": prompt, "setup": dict(setup or {}), "tags": dict(tags or {}), "family": family}
    task = task_from_mapping(fields, "the task")
    async with connect(tools, connect_timeout_s=connect_timeout_s) as source:
        draft = _Draft("the task", task, read_calls(calls), answer, reply)
        return (await _solved(source, [draft], Silent(), log.warning))[0]


async def solve_file_async(
    tools: Any, file: str | Path, *, connect_timeout_s: float = 120.0, progress: Progress | None = None
) -> list[Task]:
    """Solve every task of a file, whose rows have `calls` beside the fields of a task, and maybe `answer` and `reply`.

    `file`: `.csv`, `.jsonl`, `.json` or `.parquet`. The rest is as for `solve_async`. Raises `ConfigError` that names
    the line of every task that could not be solved.
    """
    drafts: list[_Draft] = []
    seen: dict[str, tuple[Task, str]] = {}
    for row, where in read_file(Path(file), beside=_OWN_FIELDS):
        if not isinstance(row, Mapping) or not row.get("calls"):
            raise ConfigError(
                f"{where}: has no 'calls'; write those that solve it, for example get_order(order_id=\"7\")"
            )
        fields = {name: value for name, value in row.items() if name not in _OWN_FIELDS}
        try:
            calls = read_calls(row["calls"])
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
        task = task_from_mapping(fields, where, beside=_OWN_FIELDS)
        note_task(task, where, seen)
        reply = row.get("reply")  # a cell may hold a number
        drafts.append(_Draft(where, task, calls, row.get("answer"), None if reply is None else _said(reply)))
    if not drafts:
        raise ConfigError(f"{file} has no request; write one in each row, with 'prompt' and 'calls'")
    shown = progress or Silent()
    async with connect(tools, connect_timeout_s=connect_timeout_s) as source:
        return await _solved(source, drafts, shown, shown.say)


@dataclass(frozen=True)
class _Draft:
    """A task that lacks what its calls bring about. `where`: its place, for errors."""

    where: str
    task: Task
    calls: list[ToolCall]
    answer: Any
    reply: str | None


async def _solved(
    source: Toolset, drafts: Sequence[_Draft], progress: Progress, warn: Callable[[str], None]
) -> list[Task]:
    known = {tool.name for tool in source.tools}
    for draft in drafts:
        if unknown := [call.name for call in draft.calls if call.name not in known]:
            raise ConfigError(
                f"{draft.where}: there is no tool {unknown[0]!r}; the tools are {', '.join(sorted(known))}"
            )
    called = {call.name for draft in drafts for call in draft.calls}
    if shared := {tool: why for tool, why in changes_shared(source).items() if tool in called}:
        warn(_of_shared(shared))
    context = RunContext(tools=source, verifier=None, limits=_UNBOUNDED, concurrency=_CONCURRENCY)

    async def play(which: str) -> list[Rollout]:
        plays = []
        for number, draft in enumerate(drafts):
            job = Job(id=f"{which}/{number}", task=draft.task, seed=0)
            plays.append((job, ScriptedAgent(functools.partial(_next, draft.calls), name="solution")))
        with progress.track("solving", len(plays)) as step:
            return await play_scripts(plays, context, step)

    began = time.monotonic()
    played = await play("solve")
    again: Sequence[Rollout | None] = [None] * len(drafts)
    if not shared and not any(map(_refused, played)):
        if any(_CLOCK.search(json.dumps(_changes(rollout), default=str)) for rollout in played):
            await anyio.sleep(max(0.0, began + _TICK_S - time.monotonic()))
        again = await play("solve-again")
    found, problems = [], []
    for draft, rollout, second in zip(drafts, played, again, strict=True):
        try:
            found.append(_whole(draft, rollout, second))
        except ConfigError as error:
            problems.append(f"{draft.where}: {error}")
    if problems:
        raise ConfigError("\n".join(problems))
    writing = {tool.name for tool in source.tools if _writes(tool)}
    for draft, task, rollout in zip(drafts, found, played, strict=True):
        unseen = [call.name for call in draft.calls if call.name in writing] if not task.expected.get("changes") else []
        if unseen and draft.answer is None and "answer" not in draft.task.expected:
            warn(
                f"{draft.where}: nothing in the world's state shows what {unseen[-1]} did, so that only the calls and "
                f"the answer {task.expected['answer']!r} are checked. Let the server tell its state (docs/servers.md), "
                "or give the answer that the user needs"
            )
        if ignored := task.expected.get("ignore"):
            warn(f"{draft.where}: {', '.join(ignored)} differ in each world, so that they are not compared")
        if doubt := answer_doubt(task, rollout):
            warn(f"{draft.where}: {doubt}")
    return found


def _writes(tool: Tool) -> bool:
    """Whether a tool says that it changes something, or has the name of one that does."""
    if tool.annotations.read_only is not None:
        return not tool.annotations.read_only
    name = tool.name_at_source or tool.name
    return bool(verb_and_object(name)[0]) or not {"create", "add", "update", "delete", "remove"}.isdisjoint(words(name))


def _next(calls: Sequence[ToolCall], messages: Sequence[Message], seed: int) -> Message:  # noqa: ARG001
    """The turn of the solution after `messages`. Raises `PolicyFailure` for an argument that no result has."""
    results = [_as_read(message.content) for message in messages if message.role == "tool"]
    if len(results) == len(calls):
        return Message(role="assistant")
    call = calls[len(results)]
    try:
        arguments = {name: _filled(value, results) for name, value in call.arguments.items()}
    except ConfigError as error:  # of this task alone
        raise PolicyFailure(str(error)) from None
    return Message(role="assistant", tool_calls=[call.model_copy(update={"arguments": arguments})])


def _filled(value: Any, results: Sequence[Any]) -> Any:
    """An argument, or what it names of the results so far."""
    if isinstance(value, str) and (_REFERENCE.fullmatch(value) or _WHOLE.fullmatch(value)):
        return _at(value.removesuffix(_WHOLLY), results, "argument")
    if isinstance(value, Mapping):
        return {name: _filled(inner, results) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_filled(inner, results) for inner in value]
    return value


def _of_shared(tools: Mapping[str, str]) -> str:
    """What it means that calls reach a state that no task has to itself. `tools`: each with what it may change."""
    named = "; ".join(f"{tool} ({why})" for tool, why in tools.items())
    return (
        f"tasks may share state, by way of {named}: these calls are real, and what one task changes, others may see in "
        "their results. Give each task a world of its own (sandboxes.objects.ObjectTwin for Python objects and "
        "modules, docs/sandboxes.md), or mark what only reads (mcp_bridge.behaves(read_only=True), or read_only in "
        "mcp.json)"
    )


def _whole(draft: _Draft, rollout: Rollout, again: Rollout | None) -> Task:
    """The task with what its calls brought about. `again`: the same calls in another fresh world."""
    if refused := _refused(rollout):
        raise ConfigError(refused)
    expected = _brought_about(draft, rollout)
    if again is not None:
        if refused := _refused(again):
            raise ConfigError(f"in a second fresh world, {refused}")
        second = _brought_about(draft, again)
        state = rollout.final_state or {}
        if differing := _differing(expected.get("changes", []), second.get("changes", []), state):
            expected["ignore"] = sorted({*expected.get("ignore", ()), *differing})
            kept = [
                one for one in expected["changes"] if not is_ignored(differing, one["table"], one["key"], one["column"])
            ]
            if not kept and draft.answer is None and "answer" not in draft.task.expected:
                raise ConfigError(
                    f"all that the calls change differs in each world: {', '.join(sorted(differing))}; let the server "
                    "take its keys and times from the task's setup, or give an answer"
                )
            expected["changes"] = kept
        for name in ("answer", "calls"):
            if expected.get(name) != second.get(name):
                raise ConfigError(
                    f"the expected {name} would differ in each world: {expected[name]!r} and {second[name]!r}; give "
                    f"{name} with values that stay the same, or let the server take them from the task's setup"
                )
    reply = draft.reply or (_said(expected["answer"]) if "answer" in expected else "Done.")
    messages = [Message(role="assistant", tool_calls=[record.call]) for record in rollout.calls]
    demonstration = [*messages, Message(role="assistant", content=reply)]
    return draft.task.model_copy(update={"expected": expected, "demonstration": demonstration})


def _refused(rollout: Rollout) -> str:
    """Why the calls could not be played; empty where they were."""
    for record in rollout.calls:
        if record.result.is_error:
            said = record.result.text[:300].rstrip(" .\n")
            arguments = ", ".join(f"{name}={value!r}" for name, value in record.call.arguments.items())
            return f"{record.call.name}({arguments}) is refused: {said}; correct the call, or the task's setup"
    return "" if rollout.failure is None else f"the calls could not be played: {rollout.failure.message}"


def _brought_about(draft: _Draft, rollout: Rollout) -> dict[str, Any]:
    """What is expected after one play."""
    expected: dict[str, Any] = {**draft.task.expected}
    if (changes := _changes(rollout)) is not None:
        expected["changes"] = changes
    results = [_value(record.result.structured, record.result.text) for record in rollout.calls]
    if isinstance(draft.answer, str) and _is_path(draft.answer):
        expected["answer"] = _as_answer(_at(draft.answer, results), draft.answer)
    elif draft.answer is not None:
        expected["answer"] = draft.answer
    elif "answer" not in expected and changes in (None, []):
        expected["answer"] = _only_value(results)
    expected["calls"] = [{"name": record.call.name, "arguments": record.call.arguments} for record in rollout.calls]
    return expected


def _is_path(answer: str) -> bool:
    """Whether an answer names a value of a result. `$5` and `$1,200` are prices."""
    return bool(_REFERENCE.fullmatch(answer)) or (answer.startswith("$") and not answer[1:2].isdigit())


def _changes(rollout: Rollout) -> list[Change] | None:
    if rollout.initial_state is None or rollout.final_state is None:
        return None
    return diff(rollout.initial_state, rollout.final_state)


def _differing(first: Sequence[Change], second: Sequence[Change], state: Mapping[str, Any]) -> set[str]:
    """What differs between two plays, by its name in `ignore`: columns, tables with keys that differ, and the one value
    that differs in a table of a single column, such as that of an object's attributes."""
    rows = [{(one["table"], one["key"]) for one in changes} for changes in (first, second)]
    names = {table for table, _ in rows[0] ^ rows[1]}
    one_only = [one for one in first if one not in second] + [one for one in second if one not in first]
    keys: dict[tuple[str, str], set[str]] = {}
    for one in one_only:
        if one["table"] not in names:
            keys.setdefault((one["table"], one["column"]), set()).add(one["key"])
    for (table, column), of in keys.items():
        is_alone = len(of) == 1 and all(set(row or ()) <= {column} for row in state.get(table, {}).values())
        names.add(f"{table}.{next(iter(of))}.{column}" if is_alone else f"{table}.{column}")
    return names


def read_calls(given: Calls) -> list[ToolCall]:
    """Calls as people write them, see `Calls`. Nothing is evaluated: arguments are literals."""
    found: list[tuple[str, dict[str, Any]]] = []
    for one in given if isinstance(given, Sequence) and not isinstance(given, str) else [given]:
        if isinstance(one, str):
            found += _from_text(one)
        elif (
            isinstance(one, Mapping)
            and isinstance(one.get("name"), str)
            and isinstance(one.get("arguments"), Mapping | None)
            and set(one) <= {"name", "arguments"}
        ):
            found.append((one["name"], dict(one.get("arguments") or {})))
        elif isinstance(one, Sequence) and len(one) == 2 and isinstance(one[0], str) and isinstance(one[1], Mapping):
            found.append((one[0], dict(one[1])))
        else:
            raise ConfigError(
                f"{one!r} is not a call; write for example \"book(room='2')\", ('book', {{'room': '2'}}) or "
                "{'name': 'book', 'arguments': {'room': '2'}}"
            )
    if not found:
        raise ConfigError("there are no calls; give those that solve the task, in their order")
    return [
        ToolCall(id=f"call_{number}", name=name, arguments=arguments)
        for number, (name, arguments) in enumerate(found, 1)
    ]


def _from_text(text: str) -> list[tuple[str, dict[str, Any]]]:
    def problem(why: str) -> ConfigError:
        return ConfigError(
            f'{text[:200]!r} cannot be read as calls: {why}; write for example get_order(order_id="7"); '
            'cancel_order(order_id="7")'
        )

    if text.lstrip().startswith(("[", "{")):
        try:
            listed = strict_json(text, unique_keys=True)
        except ValueError as error:
            raise problem(f"it is not valid JSON: {error}") from None
        return [(call.name, call.arguments) for call in read_calls(listed if isinstance(listed, list) else [listed])]
    try:
        try:
            lines = ast.parse(text.strip()).body
        except SyntaxError:
            lines = ast.parse(_BARE_REFERENCE.sub(_quoted, text.strip())).body
    except SyntaxError as error:
        raise problem(f"{error.msg} at {error.text and error.text[(error.offset or 1) - 1 :].strip()[:40]!r}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise problem(str(error)) from None
    found = []
    for line in lines:
        call = line.value if isinstance(line, ast.Expr) else None
        if not isinstance(call, ast.Call) or (name := _dotted(call.func)) is None:
            raise problem(f"line {line.lineno} is not a call")
        if call.args or any(word.arg is None for word in call.keywords):
            raise problem(f"the arguments of {name} need their names")
        names = [word.arg for word in call.keywords]
        if twice := [one for one in names if names.count(one) > 1]:
            raise problem(f"{name} has the argument {twice[0]} twice")
        try:
            found.append((name, {str(word.arg): _literal(word.value) for word in call.keywords}))
        except (ValueError, TypeError):
            raise problem(
                f"an argument of {name} is not a number, a text, true, false, null, a list or an object"
            ) from None
    return found


def _quoted(found: re.Match[str]) -> str:
    if found[1]:
        return found[1]
    whole = _WHOLLY if found[3][1:].isdigit() else ""
    return f"{found[2]}'{found[3]}{whole}'"


def _dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := _dotted(node.value)) is not None:
        return f"{before}.{node.attr}"
    return None


def _literal(node: ast.expr) -> Any:
    """As `ast.literal_eval`, with the words of JSON."""

    class Words(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.expr:
            return ast.Constant(_LITERALS[name.id]) if name.id in _LITERALS else name

    value = ast.literal_eval(Words().visit(node))
    json.dumps(value, allow_nan=False)  # raises ValueError or TypeError for what JSON does not have
    return value


def _value(structured: Any, text: str) -> Any:
    """A result as JSON where it is JSON; the one that MCP wraps as `{"result": ...}` by itself."""
    if structured is None:
        return _as_read(text)
    return structured["result"] if isinstance(structured, dict) and set(structured) == {"result"} else structured


def _as_read(text: str) -> Any:
    """A result of which the text alone is known. MCP writes the items of a list one after the other."""
    if text == EMPTY:
        return None
    items = json_values(text)
    if items is None:
        return text
    if len(items) == 1:
        return items[0]
    return items if items and all(isinstance(item, dict) for item in items) else text


def _at(path: str, results: Sequence[Any], what: str = "answer") -> Any:
    """What `$.price` or `$2.rooms[0]` names. `what`: where it is written, for errors."""
    found = _PATH.fullmatch(path)
    if found is None:
        raise ConfigError(f"the {what} {path!r} is not a path; write for example $.price or $1.rooms[0].name")
    number = int(found[1]) if found[1] else len(results)
    if not 1 <= number <= len(results):
        there = f"there are {len(results)}" + (" before it" if what == "argument" else "")
        raise ConfigError(f"the {what} {path!r} names call {number}; {there}, counted from 1")
    value = results[number - 1]
    for key, place in _STEP.findall(found[2]):
        try:
            if isinstance(value, str):
                raise TypeError("a text has no parts")
            value = value[key] if key else value[int(place)]
        except (KeyError, IndexError, TypeError):
            known = ", ".join(_leaves(results[number - 1], f"${number}"))
            raise ConfigError(f"the {what} {path!r} is not in the result of call {number}, which has {known}") from None
    return value


def _as_answer(value: Any, path: str) -> Any:
    """A value of a result as an expected answer. A plain list would be one of which any item will do, so all are.
    Raises `ConfigError` for what no answer can be compared with."""
    parts = value if isinstance(value, list) else [value]
    if not parts or any(part is None or part == "" or isinstance(part, list | Mapping) for part in parts):
        told = json.dumps(value, ensure_ascii=False, default=str)
        named = [name for name, leaf in _leaves(value, path).items() if leaf not in (None, "", [], {})]
        raise ConfigError(
            f"the answer {path!r} is {told:.120}, and an answer is a text, a number, true or false, or a list of them; "
            + (f"name one of {', '.join(named[:20])}" if named else "give the answer in words, such as none")
        )
    if not isinstance(value, list):
        return value
    return value[0] if len(value) == 1 else {"all": value}


def _only_value(results: Sequence[Any]) -> Any:
    """The value of the last result where it has one only."""
    named = _leaves(results[-1], "$")
    values = list(named.values())
    too_long = any(isinstance(value, str) and len(value.split()) > _LONGEST_VALUE for value in values)
    if len(values) == 1 and values[0] not in (None, "") and not too_long:
        return values[0]
    count = "no value" if values in ([None], [""]) else f"{len(values)} values"
    raise ConfigError(
        f"the calls change nothing, and the last one returns {count}: name the one that is asked for, for example "
        f"answer: {next(iter(named), '$')!r}; it returns {', '.join(list(named)[:20]) or 'nothing'}"
    )


def _leaves(value: Any, path: str) -> dict[str, Any]:
    """The values of a result, each by its path as an answer writes it: `$1.rooms[0].name`."""
    found = leaves(value, is_leaf=lambda _: True)
    return {path + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in parts): leaf for parts, leaf in found}


_YES_OR_NO = frozenset({"yes", "no", "true", "false"})


def answer_doubt(task: Task, rollout: Rollout) -> str:
    """Why the expected answer may be a slip: no result of the calls has it, as far as the policy reads them, and nobody
    said it. Empty where nothing is doubtful. It is not an error: an answer may be computed from results."""
    gold = task.expected.get("answer")
    calls = [record.result for record in rollout.calls]
    parts = gold["all"] if isinstance(gold, Mapping) and isinstance(gold.get("all"), list) else [gold]
    results = [_as_read(one.text) if one.truncated_chars else _value(one.structured, one.text) for one in calls]
    said = [message.content for message in [*task.opening(), *rollout.messages] if message.role in ("system", "user")]
    for part in parts:
        forms = [form for form in (part if isinstance(part, list) else [part]) if _is_plain(form)]
        if not forms or _stands_in(forms, (text for result in results for text in _values_of(result))):
            continue
        # The name of a field may stand in the prompt, too: "When does it start?"
        fields = _leaves(results[-1], "$") if results else {}
        field = next((path for form in forms if (path := f"$.{str(form).lstrip('.')}") in fields), None)
        shown = repr(forms[0]) if len(forms) == 1 else f"one of {forms!r}"
        if field is not None:
            return f"no result of its calls has the answer {shown}; did you mean {field}, which reads it from the last?"
        if not _stands_in(forms, said):
            fix = "correct it unless it is computed; $.FIELD reads it from the last result"
            if cut := sum(one.truncated_chars for one in calls):
                fix = f"{cut} characters were cut from the results: ask for less at a time, or raise max_result_chars"
            return f"neither a result of its calls nor the prompt has the answer {shown}; {fix}"
    return ""


def _stands_in(forms: Sequence[Any], texts: Iterable[str]) -> bool:
    wanted = [tokenize(str(form)) for form in forms]
    return any(positions(form, tokens) for tokens in map(tokenize, texts) for form in wanted)


def _is_plain(form: Any) -> bool:
    """Whether a form of an answer could stand in a result as it is."""
    if isinstance(form, bool) or not isinstance(form, str | int | float):
        return False
    return bool(tokenize(str(form))) and str(form).casefold() not in _YES_OR_NO


def _values_of(result: Any) -> Iterator[str]:
    """The values of a result and the keys of its rows, but not the names of its fields."""
    if isinstance(result, Mapping):
        if all(isinstance(row, Mapping) for row in result.values()):
            yield from map(str, result)
        for inner in result.values():
            yield from _values_of(inner)
    elif isinstance(result, list):
        for inner in result:
            yield from _values_of(inner)
    else:
        yield str(result)


def _said(answer: Any) -> str:
    if isinstance(answer, Mapping) and set(answer) == {"all"}:
        answer = answer["all"]
    if isinstance(answer, list) and all(isinstance(one, str | int | float) for one in answer):
        return ", ".join(map(str, answer))
    return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
