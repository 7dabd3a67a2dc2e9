"""Sixty typical mistakes: what is typed or called, and what the message must hold: the value, the place, the fix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import sdk
from sandboxes.objects import ObjectTwin
from sdk.verifiers import answer_match, calls_match, final_state, weighted

TRAIN = ["train", "desk.py:tools", "tasks.jsonl", "--verifier", "checks.py:verify"]
ROLLOUT = ["rollout", "desk.py:tools", "Hi you"]


@dataclass(frozen=True)
class Mistake:
    """`does`: the words of a command, or a call in Python. `files`: written before. `says`: parts of the message."""

    does: list[str] | Callable[[], Any]
    says: tuple[str, ...]
    files: dict[str, str] = field(default_factory=dict)


def rows(*lines: str) -> dict[str, str]:
    return {"mine.jsonl": "\n".join(lines) + "\n"}


def servers(entry: str) -> dict[str, str]:
    return {"mine.json": '{"mcpServers": {"one": ' + entry + "}}"}


def solve(calls: str, **more: Any) -> Callable[[], Any]:
    from sandboxes.helpdesk import Helpdesk

    return lambda: sdk.solve(Helpdesk(), "What is order 4256?", calls, {"seed": 43}, **more)


class Counter:
    """With something in it that cannot be copied."""

    def __init__(self) -> None:
        import threading

        self._lock = threading.Lock()

    def count(self, text: str) -> int:
        """Count the letters."""
        return len(text)


FASTAPI = '{"openapi": "3.1.0", "info": {"title": "o", "version": "1"}, "paths": {"/o": {"get": {"responses": {}}}}}'

MISTAKES: dict[str, Mistake] = {
    # ---- tools
    "no tools": Mistake(["tools"], ("neither TOOLS nor --command", "mcp.json, a URL")),
    "tools twice": Mistake(
        ["tools", "mcp.json", "--command", "x"], ("TOOLS (mcp.json) and --command (x)", "exactly one")
    ),
    "a file that is not there": Mistake(["tools", "none.json"], ("'none.json'", "TOOLS", "--command")),
    "a Python file without a name": Mistake(
        ["tools", "desk.py"], ("'desk.py'", "desk.py:name", "--command 'python desk.py'")
    ),
    "a name that the file lacks": Mistake(["tools", "desk.py:tool"], ("'tool'", "desk.py", "Did you mean 'tools'?")),
    "a module that is not there": Mistake(["tools", "no_such.part:x"], ("'no_such'", "TOOLS", "install it")),
    "an mcp.json that is no JSON": Mistake(
        ["tools", "mine.json"], ("mine.json", "line 1, column 2", "not valid JSON"), {"mine.json": "{"}
    ),
    "an mcp.json without servers": Mistake(
        ["tools", "mine.json"], ('"mcpServers"', "mine.json", "must look like"), {"mine.json": "{}"}
    ),
    "a mistyped key": Mistake(
        ["tools", "mine.json"],
        ("'comand'", "server 'one' in mine.json", "Did you mean 'command'?"),
        servers('{"comand": "x"}'),
    ),
    "an option in the wrong place": Mistake(
        ["tools", "mine.json"],
        ("'deny'", "server 'one' in mine.json", '"toolbake": {"deny"'),
        servers('{"command": "x", "deny": ["a"]}'),
    ),
    "command and url": Mistake(
        ["tools", "mine.json"],
        ("it has both", "server 'one' in mine.json", "exactly one"),
        servers('{"command": "x", "url": "https://x.example"}'),
    ),
    "a variable that is not set": Mistake(
        ["tools", "mine.json"],
        ("NO_SUCH_TOKEN", "server 'one' in mine.json", "environment"),
        servers('{"command": "x", "env": {"A": "${NO_SUCH_TOKEN}"}}'),
    ),
    "a program that is not there": Mistake(
        ["tools", "mine.json"], ("no-such-program", "one"), servers('{"command": "no-such-program"}')
    ),
    "a command that no shell splits": Mistake(
        ["tools", "--command", "python 'x"], ('"python \'x"', "--command", "no shell could split")
    ),
    "a server that takes long": Mistake(
        ["tools", "--command", "sleep 60", "--connect-timeout", "0.3"], ("0.3 s", "sleep 60", "--connect-timeout 0.9")
    ),
    "tasks in place of tools": Mistake(
        ["tools", "tasks.jsonl"], ("'tasks.jsonl'", "TOOLS", "give the tools before it")
    ),
    "an API document without a server": Mistake(
        ["tools", "mine.json"],
        ("the document names no server", "mine.json", '"base_url"', "toolbake init --openapi"),
        {"mine.json": FASTAPI},
    ),
    "a class in place of an object": Mistake(
        lambda: sdk.rollout(Counter, "Hi"), ("the class Counter", "give an instance of it")
    ),
    "an object that cannot be copied": Mistake(
        lambda: sdk.solve(ObjectTwin(Counter), "Hi", 'count(text="a")'), ("cannot pickle", "Counter.count", "copy=")
    ),
    "a model folder that is not there": Mistake(
        ["tools", "desk.py:tools", "--model", "./none"], ("'./none'", "config.json", "hub name")
    ),
    # ---- tasks
    "no tasks": Mistake(
        ["train", "desk.py:tools", "--verifier", "checks.py:verify"], ("TASKS is missing", "file.py:name")
    ),
    "a file of tasks that is not there": Mistake(
        [*TRAIN[:2], "none.jsonl", *TRAIN[3:]], ("none.jsonl", "no such file")
    ),
    "a task without a prompt": Mistake(
        [*TRAIN[:2], "mine.jsonl", *TRAIN[3:]],
        ("'prompt'", "mine.jsonl, line 1", "its fields are"),
        rows('{"id": "a"}'),
    ),
    "a mistyped field": Mistake(
        [*TRAIN[:2], "mine.jsonl", *TRAIN[3:]],
        ("'expcted'", "mine.jsonl, line 1", "did you mean 'expected'?"),
        rows('{"prompt": "a", "expcted": {}}'),
    ),
    "a line that is no JSON": Mistake(
        [*TRAIN[:2], "mine.jsonl", *TRAIN[3:]], ("mine.jsonl, line 2", "JSON"), rows('{"prompt": "a"}', '{"prompt": ')
    ),
    "two tasks with one id": Mistake(
        [*TRAIN[:2], "mine.jsonl", *TRAIN[3:]],
        ("'a'", "mine.jsonl, line 2"),
        rows('{"id": "a", "prompt": "b"}', '{"id": "a", "prompt": "c"}'),
    ),
    "one task only": Mistake(
        [*TRAIN[:2], "mine.jsonl", *TRAIN[3:]], ("1 tasks cannot be divided", "at least two"), rows('{"prompt": "a"}')
    ),
    "only some tasks have a side": Mistake(
        [*TRAIN[:2], "mine.jsonl", *TRAIN[3:]],
        ("split", "train"),
        rows('{"prompt": "a", "tags": {"split": "train"}}', '{"prompt": "b"}'),
    ),
    "both sides in one file, one empty": Mistake(
        [*TRAIN[:2], "mine.jsonl", *TRAIN[3:]],
        ("no task is left for heldout", "tag"),
        rows('{"prompt": "a", "tags": {"split": "train"}}', '{"prompt": "b", "tags": {"split": "train"}}'),
    ),
    "a prompt and tasks": Mistake([*ROLLOUT, "--tasks", "tasks.jsonl"], ("this has both", "exactly one")),
    "neither a prompt nor tasks": Mistake(ROLLOUT[:2], ("this has neither", "PROMPT in quotes or --tasks")),
    "an id that no task has": Mistake(
        [*ROLLOUT[:2], "--tasks", "tasks.jsonl", "--task-id", "t9"], ("'t9'", "tasks.jsonl", "its ids are t0, t1")
    ),
    "a request without calls": Mistake(
        ["solve", "desk.py:tools", "--tasks", "mine.jsonl", "--to", "new.jsonl"],
        ("'calls'", "mine.jsonl, line 1", "get_order(order_id="),
        rows('{"prompt": "a"}'),
    ),
    "solved tasks over others": Mistake(
        ["solve", "desk.py:tools", "--tasks", "tasks.jsonl", "--to", "tasks.jsonl"],
        ("tasks.jsonl exists", "give a new file"),
    ),
    "a call without names of arguments": Mistake(solve("get_order('4256')"), ("get_order", "need their names")),
    "a call that a tool refuses": Mistake(
        solve("get_order(order_id='1')"), ("get_order(order_id='1')", "is refused", "No order '1'")
    ),
    "a call of no tool": Mistake(solve("get_ordr(order_id='1')"), ("'get_ordr'", "the tools are", "get_order")),
    "an answer that no result has": Mistake(
        solve("get_order(order_id='4256')", answer="$.prise"),
        ("'$.prise'", "the result of call 1", "which has $1.customer"),
    ),
    "an answer that is not clear": Mistake(
        solve("get_order(order_id='4256')"), ("values", "name the one that is asked for", "answer: '$.")
    ),
    "tasks made by real calls": Mistake(
        ["synthesize", "desk.py:tools", "--to", "made.jsonl"],
        ("get_order, cancel_order", "are not simulated", "ObjectTwin"),
    ),
    # ---- verifiers
    "a mistyped verifier": Mistake([*TRAIN[:4], "checks.py:verfy"], ("'verfy'", "checks.py", "Did you mean 'verify'?")),
    "a file in place of a verifier": Mistake(
        [*TRAIN[:4], "checks.py"], ("'checks.py'", "--verifier", "checks.py:verify", "'expected'")
    ),
    "a factory in place of a verifier": Mistake(
        [*TRAIN[:4], "checks.py:make_verifier"],
        ("checks.py:make_verifier", "--verifier", "verify = make_verifier(...)"),
    ),
    "a number in place of a verifier": Mistake(
        [*TRAIN[:4], "checks.py:threshold"], ("0.5 (float)", "--verifier", "a function of the rollout")
    ),
    "a word in place of a verifier": Mistake(
        lambda: sdk.evaluate([], ["Hi"], "expected"), ("'expected' (str)", "as_expected()")
    ),  # type: ignore[arg-type]
    "a class in place of a verifier": Mistake(
        lambda: sdk.evaluate([], ["Hi"], type("Mine", (), {})), ("the class Mine", "give an instance: Mine()")
    ),
    "a verifier without an argument": Mistake(
        lambda: sdk.evaluate([], ["Hi"], lambda: 1.0), ("takes ()", "one argument, the rollout")
    ),  # type: ignore[arg-type,misc]
    "tasks that expect nothing": Mistake([*TRAIN[:4], "expected"], ("task 't0'", "expects nothing", "toolbake solve")),
    "a mistyped form of calls": Mistake(
        lambda: calls_match(order="right"), ("'right'", "calls_match: order", "choose one of")
    ),  # type: ignore[arg-type]
    "a text in place of a tuple": Mistake(
        lambda: final_state(ignore="orders"), ("'orders'", "final_state: ignore", "give a tuple")
    ),  # type: ignore[arg-type]
    "options in one text": Mistake(
        lambda: answer_match(options="gold"), ("'gold'", "answer_match: options", "give a tuple")
    ),  # type: ignore[arg-type]
    "weights without verifiers": Mistake(
        lambda: weighted([final_state()]), ("final_state()", "weighted", "give {verifier: weight, ...}")
    ),  # type: ignore[arg-type]
    # ---- options
    "a mistyped setting": Mistake([*TRAIN, "--set", "group_size=4"], ("'group_size'", "it is grpo.num_generations")),
    "a setting without a value": Mistake(
        [*TRAIN, "--set", "grpo.max_steps"], ("'grpo.max_steps'", "--set", "name=value")
    ),
    "a word in place of a number": Mistake([*TRAIN, "--set", "grpo.max_steps=many"], ("'many'", "grpo.max_steps")),
    "a mistyped limit": Mistake([*ROLLOUT, "--limit", "max_turn=3"], ("'max_turn'", "the limits are max_turns,")),
    "an endpoint without a model": Mistake(
        [*ROLLOUT, "--endpoint", "http://x/v1"], ("http://x/v1", "--endpoint", "needs --model")
    ),
    "a key that is not set": Mistake(
        ["serve", "./none", "--api-key-env", "NO_SUCH_KEY"],
        ("'NO_SUCH_KEY'", "--api-key-env", "set it to the key itself"),
    ),
    "an open address without a key": Mistake(
        ["serve", "./none", "--host", "0.0.0.0", "--port", "0"],
        ("'0.0.0.0'", "there is no api_key", "host='127.0.0.1'"),
    ),
    "a folder that is in use for something else": Mistake(
        [*TRAIN, "--set", "evaluation.heldout=1", "--output-dir", "."],
        ("is not empty and holds no run", "choose a new or empty output_dir"),
    ),
    "a run that has no model": Mistake(
        ["serve", "run", "--port", "0"],
        ("'run'", "has no model yet", "run the command that began it"),
        {"run/run.json": "{}"},
    ),
    "a report of no run": Mistake(["report", "."], ("holds no run", "output_dir of a run")),
}
