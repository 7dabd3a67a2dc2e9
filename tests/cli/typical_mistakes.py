"""Sixty typical mistakes: what is typed or called, and how the message names the value, the place and the fix."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import sdk
from sandboxes.helpdesk import Helpdesk
from sandboxes.objects import ObjectTwin
from sdk.verifiers import answer_match, calls_match, final_state, weighted

JUDGED_BY = "train desk.py:tools tasks.jsonl --verifier"
TRAIN = f"{JUDGED_BY} checks.py:verify"
TRAIN_MINE = TRAIN.replace("tasks.jsonl", "mine.jsonl")
ROLLOUT = "rollout desk.py:tools"


@dataclass(frozen=True)
class Mistake:
    """`does`: a command, or a call in Python. `value`, `place`, `fix`: three parts of the message, which say what is
    wrong, where it is (`HERE`: the current folder) and what to write or do instead. `files`: written before."""

    does: str | Callable[[], Any]
    value: str
    place: str
    fix: str
    files: dict[str, str] = field(default_factory=dict)


def rows(*lines: str) -> dict[str, str]:
    return {"mine.jsonl": "\n".join(lines) + "\n"}


def server(**entry: Any) -> dict[str, str]:
    return {"mine.json": json.dumps({"mcpServers": {"one": entry}})}


def solve(calls: str, **more: Any) -> Callable[[], Any]:
    return lambda: sdk.solve(Helpdesk(), "What is order 4256?", calls, {"seed": 43}, **more)


class Counter:
    """With something in it that cannot be copied."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def count(self, text: str) -> int:
        """Count the letters."""
        return len(text)


FASTAPI = '{"openapi": "3.1.0", "info": {"title": "o", "version": "1"}, "paths": {"/o": {"get": {"responses": {}}}}}'

MISTAKES: dict[str, Mistake] = {
    # ---- tools
    "no tools": Mistake("tools", "neither TOOLS nor --command", "TOOLS is", "an mcp.json, a URL, or an object"),
    "tools of an empty variable": Mistake(
        "tools ''", "neither TOOLS nor --command", "TOOLS is", "an mcp.json, a URL, or an object"
    ),
    "a model folder without a tokenizer": Mistake(
        *("tools desk.py:tools --model run", "(tokenizer.json) are missing", "the tokenizer of the model 'run'"),
        *("save the model again with", {"run/config.json": '{"model_type": "llama"}'}),
    ),
    "tools twice": Mistake(
        "tools mcp.json --command x", "TOOLS (mcp.json) and --command (x)", "TOOLS and --command;", "exactly one of"
    ),
    "a file that is not there": Mistake("tools none.json", "'none.json'", "TOOLS is", "give the path of an mcp.json"),
    "a Python file without a name": Mistake(
        "tools desk.py", "'desk.py', a Python file", "TOOLS is", "start it: --command 'python desk.py'"
    ),
    "a name that the file lacks": Mistake(
        *("tools desk.py:tool", "has no 'tool'", "TOOLS: desk.py"),
        "Did you mean 'tools'? It has: ORDERS, cancel_order, get_order, tools",
    ),
    "a module that is not there": Mistake(
        "tools no_such.part:x", "there is no module 'no_such'", "TOOLS:", "install it, start from the folder"
    ),
    "an mcp.json that is no JSON": Mistake(
        "tools mine.json", "where the text ends", "'mine.json'", "write JSON there: texts", {"mine.json": "{"}
    ),
    "an mcp.json without servers": Mistake(
        "tools mine.json", 'no object "mcpServers"', "mine.json", "it must look like", {"mine.json": "{}"}
    ),
    "a mistyped key": Mistake(
        "tools mine.json", "'comand'", "server 'one' in mine.json", "Did you mean 'command'?", server(comand="x")
    ),
    "an option in the wrong place": Mistake(
        *("tools mine.json", "'deny'", "server 'one' in mine.json", 'object "toolbake": {"deny": ["a"]}'),
        server(command="x", deny=["a"]),
    ),
    "command and url": Mistake(
        *("tools mine.json", "it has both", "server 'one' in mine.json", "exactly one of them"),
        server(command="x", url="https://x.example"),
    ),
    "a variable that is not set": Mistake(
        *("tools mine.json", "NO_SUCH_TOKEN is not set", "server 'one' in mine.json: env.A", "Set it, or give a"),
        server(command="x", env={"A": "${NO_SUCH_TOKEN}"}),
    ),
    "a program that is not there": Mistake(
        *("tools mine.json", "'no-such-program' cannot be started", "one (no-such-program)", "Give the full path"),
        server(command="no-such-program"),
    ),
    "a command that no shell splits": Mistake(
        'tools --command "python \'x"', '"python \'x", which no shell could split', "--command is", "close each quote"
    ),
    "a server that takes long": Mistake(
        "tools --command 'sleep 60' --connect-timeout 0.3", "within 0.3 s", "sleep 60", "--connect-timeout 0.9"
    ),
    "tasks in place of tools": Mistake("tools tasks.jsonl", "'tasks.jsonl'", "TOOLS is", "give the tools before it"),
    "an API document without a server": Mistake(
        "tools mine.json", "the document names no server", "mine.json:", '"base_url"', {"mine.json": FASTAPI}
    ),
    "a class in place of an object": Mistake(
        lambda: sdk.rollout(Counter, "Hi"),
        "the class Counter",
        "the source is",
        "sandboxes.objects.ObjectTwin(Counter)",
    ),
    "a folder in place of tools": Mistake("tools .", "'.'", "is a folder", "give a file, such as 'mcp.json'"),
    "servers under another name": Mistake(
        "tools mine.json",
        'no object "mcpServers"',
        "mine.json",
        "rename 'mcpServer'",
        {"mine.json": '{"mcpServer": {}}'},
    ),
    "a key by a shorter name": Mistake(
        "tools mine.json", "'cmd'", "server 'one' in mine.json", "Did you mean 'command'?", server(cmd="x")
    ),
    "a command with its arguments": Mistake(
        *("tools mine.json", "'no-such-program it.py' cannot be started", "one (no-such-program it.py)"),
        '"command": "no-such-program", "args": ["it.py"]',
        server(command="no-such-program it.py"),
    ),
    "a server that is not run": Mistake(
        *("tools mine.json", "ended before it answered", "one (true)", "must also run it, as `server.run()` does"),
        server(command="true"),
    ),
    "an object that cannot be copied": Mistake(
        *(lambda: sdk.solve(ObjectTwin(Counter), "Hi", 'count(text="a")'), "cannot pickle '_thread.lock' object"),
        *("Counter.count", "give ObjectTwin(..., copy=...)"),
    ),
    "an object that is there already and cannot be copied": Mistake(
        *(lambda: ObjectTwin(Counter()), "cannot pickle '_thread.lock' object", "Counter: "),
        "give ObjectTwin(..., copy=...)",
    ),
    "a model folder that is not there": Mistake(
        "tools desk.py:tools --model ./none", "no model folder './none'", "model:", "a model (it has a config.json)"
    ),
    # ---- tasks
    "no tasks": Mistake(
        "train desk.py:tools --verifier checks.py:verify", "is missing", "TASKS", "give a .jsonl, .json,"
    ),
    "a file of tasks that is not there": Mistake(
        TRAIN.replace("tasks.jsonl", "none.jsonl"), "'none.jsonl'", "tasks is", "give the path of a file with tasks"
    ),
    "a task without a prompt": Mistake(
        TRAIN_MINE, "has no 'prompt'", "mine.jsonl, line 1", "add what the user asks for", rows('{"id": "a"}')
    ),
    "a mistyped field": Mistake(
        TRAIN_MINE, "'expcted'", "mine.jsonl, line 1", "did you mean 'expected'?", rows('{"prompt": "a", "expcted": 1}')
    ),
    "a line that is no JSON": Mistake(
        *(TRAIN_MINE, "value at column 12, where '}' stands", "mine.jsonl, line 2", "write JSON there: texts"),
        rows('{"prompt": "a"}', '{"prompt": }'),
    ),
    "two tasks with one id": Mistake(
        *(TRAIN_MINE, "the same id 'a'", "mine.jsonl, line 2 and mine.jsonl, line 1", "give each task an id"),
        rows('{"id": "a", "prompt": "b"}', '{"id": "a", "prompt": "c"}'),
    ),
    "one task only": Mistake(TRAIN_MINE, "1 cannot be divided", "tasks:", "give at least two", rows('{"prompt": "a"}')),
    "only some tasks have a side": Mistake(
        *(TRAIN_MINE, "1 of 2 tasks lack tags['split']", "the first is 'b'", "tag every task with 'train', "),
        rows('{"prompt": "a", "tags": {"split": "train"}}', '{"id": "b", "prompt": "b"}'),
    ),
    "both sides in one file, one empty": Mistake(
        *(TRAIN_MINE, "no task is left for heldout", "tags['split']", "tag some tasks with it"),
        rows('{"prompt": "a", "tags": {"split": "train"}}', '{"prompt": "b", "tags": {"split": "train"}}'),
    ),
    "a prompt and tasks": Mistake(
        f"{ROLLOUT} Hi --tasks tasks.jsonl", "this has both", "PROMPT in quotes or --tasks", "exactly one of them"
    ),
    "neither a prompt nor tasks": Mistake(
        ROLLOUT, "this has neither", "PROMPT in quotes or --tasks", "exactly one of them"
    ),
    "an id that no task has": Mistake(
        *(f"{ROLLOUT} --tasks tasks.jsonl --task-id t9", "'t9', which tasks.jsonl does not have", "--task-id is"),
        "its ids are t0, t1, t2, t3, t4, t5",
    ),
    "a request without calls": Mistake(
        *("solve desk.py:tools --tasks mine.jsonl --to new.jsonl", "has no 'calls'", "mine.jsonl, line 1"),
        *("write those that solve it, for example get_order(order_id=", rows('{"prompt": "a"}')),
    ),
    "solved tasks over others": Mistake(
        "solve desk.py:tools --tasks tasks.jsonl --to tasks.jsonl", "which exists", "--to is", "give a new file"
    ),
    "a call without names of arguments": Mistake(
        solve("get_order('4256')"), "\"get_order('4256')\" cannot", "the arguments of get_order", "write for example"
    ),
    "a call that a tool refuses": Mistake(
        solve("get_order(order_id='1')"), "(order_id='1') is refused: No order '1';", "the task:", "correct the call"
    ),
    "a call of no tool": Mistake(
        solve("get_ordr(order_id='1')"), "there is no tool 'get_ordr'", "the task:", "the tools are cancel_order,"
    ),
    "an answer that no result has": Mistake(
        *(solve("get_order(order_id='4256')", answer="$.prise"), "'$.prise' is not in", "the result of call 1"),
        "which has $1.customer, $1.product",
    ),
    "an answer that is not clear": Mistake(
        *(solve("get_order(order_id='4256')"), "the last one returns 6 values", "the task:"),
        "name the one that is asked for, for example answer: '$.customer'",
    ),
    "tasks made by real calls": Mistake(
        *("synthesize desk.py:tools --to made.jsonl", "are not simulated", "get_order, cancel_order"),
        "give a sandbox or a twin in their place: sandboxes.objects.ObjectTwin",
    ),
    # ---- verifiers
    "a mistyped verifier": Mistake(
        *(f"{JUDGED_BY} checks.py:verfy", "has no 'verfy'", "--verifier: checks.py"),
        "Did you mean 'verify'? It has: make_verifier, threshold, verify",
    ),
    "a file in place of a verifier": Mistake(
        *(f"{JUDGED_BY} checks.py", "'checks.py'", "--verifier is"),
        "name an object of a file or module: path/to/file.py:name or package.module:name, such as checks.py:verify",
    ),
    "a factory in place of a verifier": Mistake(
        *(f"{JUDGED_BY} checks.py:make_verifier", "takes () and is called with one argument"),
        *("--verifier checks.py:make_verifier", "write `verify = make_verifier(...)` into a file"),
    ),
    "a number in place of a verifier": Mistake(
        f"{JUDGED_BY} checks.py:threshold", "the verifier is 0.5 (float)", "--verifier checks.py:", "give a function of"
    ),
    "a word in place of a verifier": Mistake(
        lambda: sdk.evaluate([], ["Hi"], "expected"), "'expected' (str)", "the verifier is", "sdk.verifiers.as_expected"
    ),
    "a class in place of a verifier": Mistake(
        lambda: sdk.evaluate([], ["Hi"], Counter), "the class Counter", "the verifier is", "give an instance: Counter()"
    ),
    "a verifier without an argument": Mistake(
        lambda: sdk.evaluate([], ["Hi"], lambda: 1.0), "takes ()", "the verifier <lambda>", "let it take (rollout)"
    ),
    "tasks that expect nothing": Mistake(
        f"{JUDGED_BY} expected", "expects nothing", "task 't0'", "give expected with some of answer, answer_json"
    ),
    "a mistyped form of calls": Mistake(
        lambda: calls_match(order="right"), "'right'", "calls_match: order", "choose one of any, in_order, exact"
    ),
    "a text in place of a tuple": Mistake(
        lambda: final_state(ignore="orders"), "is 'orders'", "final_state: ignore", "give a tuple: ('orders',)"
    ),
    "options in one text": Mistake(
        lambda: answer_match(options="gold"), "is 'gold'", "answer_match: options", "give a tuple: ('gold',)"
    ),
    "weights without verifiers": Mistake(
        lambda: weighted([final_state()]), "[final_state()]", "weighted:", "give {verifier: weight, ...}"
    ),
    # ---- options
    "a mistyped setting": Mistake(
        f"{TRAIN} --set group_size=4", "no option 'group_size'", "config:", "it is grpo.num_generations"
    ),
    "a setting without a value": Mistake(
        f"{TRAIN} --set grpo.max_steps", "'grpo.max_steps'", "--set is", "it must look like name=value, such as"
    ),
    "a word in place of a number": Mistake(
        f"{TRAIN} --set grpo.max_steps=many", "'many'", "option grpo.max_steps", "should be a valid integer"
    ),
    "a mistyped limit": Mistake(
        f"{ROLLOUT} Hi --limit max_turn=3", "no limit 'max_turn'", "limits:", "the limits are max_turns, "
    ),
    "a file of tasks in place of a prompt": Mistake(
        f"{ROLLOUT} asked.jsonl", "'asked.jsonl'", "PROMPT is", "give --tasks asked.jsonl", {"asked.jsonl": "{}"}
    ),
    "an endpoint without a model": Mistake(
        f"{ROLLOUT} Hi --endpoint http://x/v1", "http://x/v1", "--endpoint", "needs --model: the name of a model there"
    ),
    "a key that is not set": Mistake(
        "serve ./none --api-key-env NO_SUCH_KEY", "'NO_SUCH_KEY'", "--api-key-env is", "set it to the key itself"
    ),
    "an open address without a key": Mistake(
        *("serve ./none --host 0.0.0.0 --port 0", "'0.0.0.0'", "--host is"),
        "give --api-key-env, or --host 127.0.0.1 for this machine only",
    ),
    "a page for others without a key": Mistake(
        "view tasks.jsonl --host 0.0.0.0", "'0.0.0.0'", "--host is", "give --api-key-env, or --host 127.0.0.1 for this"
    ),
    "a run that is not there": Mistake(
        "export runs/none --to vllm --output-dir out",
        "'runs/none'",
        "model:",
        "or a name on the hub; without one it is the embedded model.",
    ),
    "a root that is none": Mistake("verify run --root zzz", "'zzz'", "--root is", "give the 64 hexadecimal digits"),
    "a difficulty of nobody": Mistake(
        *("synthesize desk.py:tools --to made.jsonl --difficulty 0.1,0.9", "measured by a policy's attempts"),
        *("difficulty is", "give --policy, or leave --difficulty out"),
    ),
    "setups that do not fit": Mistake(
        *("synthesize twin.py:twin --to made.jsonl --setup '{\"sed\": 1}'", "unknown setup 'sed'", "a world with"),
        *(
            "Give --setup that fit the tools",
            {"twin.py": "from sandboxes.helpdesk import Helpdesk\ntwin = Helpdesk()\n"},
        ),
    ),
    "a folder that is in use for something else": Mistake(
        *(f"{TRAIN} --set evaluation.heldout=1 --output-dir .", "is not empty and holds no run (", "HERE"),
        "choose a new or empty output_dir",
    ),
    "a run that has no model": Mistake(
        *("serve run --port 0", "no model", "'run' is the folder of a run", "run the command that began it again"),
        {"run/run.json": "{}"},
    ),
    "a report of no run": Mistake("report .", "it has no run.json", "HERE", "give the output_dir of a run"),
}
