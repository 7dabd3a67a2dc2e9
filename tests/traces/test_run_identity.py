"""What tells one run from another: everything that determines its results, and nothing that differs each time."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import textwrap
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import sdk
from mcp_bridge.records import Tool
from mcp_bridge.sources.connecting import identify
from sdk.agents import program_of
from sdk.errors import RunFolderError
from sdk.policies.scripted import ScriptedAgent
from sdk.records import Message, Rollout, Task, Verdict
from sdk.traces import RunFolder
from sdk.traces.identity import digest, tasks_identity, tools_identity
from sdk.verifiers import all_of, answer_match, required_calls, verifier_identity, verifier_name

SECRET = "sk-THE-SECRET"


def judge(rollout: Rollout, threshold: float = 0.5) -> bool:
    return len(rollout.answer) > threshold


def above(threshold: Any) -> Callable[[Rollout], bool]:
    return lambda rollout: len(rollout.answer) > threshold


class Bound:
    def __init__(self, threshold: float, api_key: str = "") -> None:
        self._threshold = threshold
        self.api_key = api_key

    def verify(self, rollout: Rollout) -> bool:
        return len(rollout.answer) > self._threshold


@dataclass
class Weights:
    parts: dict[str, float]
    part: Any = None

    def verify(self, rollout: Rollout) -> float:
        return self.parts.get(rollout.answer, 0.0)


def from_source(tmp_path: Path, name: str, body: str) -> Any:
    """`verify` of a module as a user's file defines it."""
    import importlib.util

    file = tmp_path / name / "checks.py"
    file.parent.mkdir()
    file.write_text(f"def verify(rollout):\n    return {body}\n")
    spec = importlib.util.spec_from_file_location("checks", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.verify


class Settings:
    """Of the user's own, without a repr."""

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature
        self.api_key = object()
        self.same = {"again": self}


def answer_with(settings: Any, task: Task, endpoint: sdk.AgentEndpoint) -> str:
    return f"{settings.temperature}"


def agent_with(settings: Any) -> Any:
    def agent(task: Task, endpoint: sdk.AgentEndpoint) -> str:
        return answer_with(settings, task, endpoint)

    return agent


@pytest.mark.parametrize(
    "make",
    [agent_with, lambda settings: functools.partial(answer_with, settings), lambda settings: agent_with([settings])],
    ids=["closure", "partial", "in a list"],
)
def test_objects_of_the_user_s_in_an_agent_count_with_their_attributes(make: Callable[[Any], Any]) -> None:
    cold, same, hot = (program_of(make(Settings(temperature))) for temperature in (0.0, 0.0, 1.0))
    assert cold is not None
    assert same is not None
    assert hot is not None
    assert cold.identity == same.identity
    assert cold.identity != hot.identity
    assert cold.identity["name"] == hot.identity["name"]


AGENT = """
SYSTEM = {system!r}
LIMITS = {limits!r}
API_KEY = {key!r}
SEEN = []
COUNT = 0

def shortened(text):
    return text[:LIMITS[0]]

def agent(task, endpoint):
    global COUNT
    COUNT += 1
    SEEN.append(API_KEY)
    return [shortened(SYSTEM) for _ in range(1)][0]

def plain(task, endpoint):
    return task.id
"""


def test_an_agent_counts_with_the_constants_and_the_functions_that_it_reads() -> None:
    def module(system: str = "Be brief.", limits: tuple[int, ...] = (1, 2), key: str = "k") -> dict[str, Any]:
        names: dict[str, Any] = {"__name__": "users_agent"}
        exec(AGENT.format(system=system, limits=limits, key=key), names)
        return names

    def identity(names: dict[str, Any], agent: Any = None) -> Any:
        program = program_of(agent or names["agent"])
        assert program is not None
        return program.identity

    names = module()
    known = identity(names)
    assert identity(module()) == known
    names["agent"](Task(**BASE), None)
    assert (names["COUNT"], names["SEEN"]) == (1, ["k"])
    assert identity(names) == known, "it has run, and is the same"
    assert identity(module(key="another")) == known, "secrets take no part"
    assert identity(module(system="Be long.")) != known
    assert identity(module(limits=(3,))) != known, "read by the function that it calls"
    part, again, other = (functools.partial(one["agent"]) for one in (names, module(), module("Be long.")))
    assert identity({}, part) == identity({}, again) != identity({}, other)
    assert identity(names, names["plain"])["digest"] == digest(names["plain"]), "as runs were begun with"


PROGRAM = {
    "checks.py": """
        import functools
        import package.prompts
        from package.settings import Settings, of_late

        PROMPTS = {"brief": "Be brief."}
        SETTINGS = Settings(0.5)
        SEEN, COUNTS, STATE = [], {}, Settings(0)
        ORDERS = {"4417": {"status": "shipped"}}
        EXAMPLES = [{"role": "user", "content": "Hi."}]

        class Desk:
            def __init__(self):
                self.calls = 0

            def call(self):
                self.calls += 1

        DESK = Desk()

        def example():
            messages = []
            messages.append(EXAMPLES[0])
            return messages

        def retried(function):
            @functools.wraps(function)
            def wrapper(*given):
                for _ in range(3):
                    return function(*given)
            return wrapper

        @functools.cache
        def limit():
            return 7

        is_long = functools.partial(min, 9)

        def first(rollout):
            SEEN.append(rollout)
            COUNTS["first"] = COUNTS.get("first", 0) + 1
            COUNTS["first"] += 1
            STATE.temperature += 1
            order = ORDERS["4417"]
            order["status"] = "cancelled"
            DESK.call()
            example()
            body = {}
            body["system"] = PROMPTS["brief"]
            return body, SETTINGS.temperature, package.prompts.SYSTEM.format(1), limit(), is_long(3)

        @retried
        def second(rollout):
            from package import late
            return late.SCORE

        class Third:
            @retried
            def verify(self, rollout):
                return of_late()
        """,
    "package/__init__.py": "",
    "package/prompts.py": "SYSTEM = 'Be kind. {}'",
    "package/settings.py": """
        def of_late():
            from . import late
            return late.SCORE

        class Settings:
            def __init__(self, temperature):
                self.temperature = temperature
        """,
    "package/late.py": "SCORE = 1.0",
}

IDENTITIES = """
import json, sys
import checks
from sdk.verifiers import verifier_identity

def identities():
    return [verifier_identity(one)["digest"] for one in (checks.first, checks.second, checks.Third())]

before = identities()
checks.first(None), checks.second(None)
assert identities() == before, "the program has gone on"
print(json.dumps(before))
"""


@pytest.mark.parametrize(
    ("file", "old", "new", "changes"),
    [
        ("checks.py", "Be brief.", "Be long.", "first"),
        ("checks.py", "Settings(0.5)", "Settings(0.6)", "first"),
        ("checks.py", "min, 9", "min, 8", "first"),
        ("checks.py", "return 7", "return 8", "first"),
        ("checks.py", "range(3)", "range(4)", "second third"),
        ("package/prompts.py", "kind", "rude", "first"),
        ("package/late.py", "1.0", "0.0", "second third"),
        ("checks.py", "Hi.", "Ho.", "first"),
        ("checks.py", "calls += 1", "calls += 2", "first"),
        ("checks.py", "SEEN, COUNTS", "SEEN,  COUNTS", ""),
    ],
    ids=[
        "dict",
        "object",
        "partial",
        "cached",
        "decorator",
        "module of a package",
        "late import",
        "rows",
        "class",
        "nothing",
    ],
)
def test_an_edit_of_whatever_a_verifier_reads_makes_it_another_one(
    file: str, old: str, new: str, changes: str, tmp_path: Path
) -> None:
    def identities(name: str, edited: dict[str, str]) -> list[str]:
        for path, text in edited.items():
            (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / path).write_text(textwrap.dedent(text))
        ran = subprocess.run(
            [sys.executable, "-c", IDENTITIES], cwd=tmp_path / name, capture_output=True, text=True, timeout=60
        )
        assert ran.returncode == 0, ran.stderr
        digests: list[str] = json.loads(ran.stdout)
        return digests

    assert old in PROGRAM[file]
    before = identities("before", PROGRAM)
    after = identities("after", PROGRAM | {file: PROGRAM[file].replace(old, new)})
    named = zip(("first", "second", "third"), before, after, strict=True)
    assert [name for name, was, now in named if was != now] == changes.split()


def test_a_long_list_that_many_functions_read_is_described_once() -> None:
    readers = "".join(f"def f{n}():\n    return f{n + 1}(), WORDS\n" for n in range(300))
    names: dict[str, Any] = {"__name__": "users_program", "f300": None, "WORDS": ["word"] * 100_000}
    exec(readers, names)
    known = digest(names["f0"])
    names["WORDS"] = ["word"] * 99_999
    assert digest(names["f0"]) != known


VERIFIERS = """
import {helpers}

LIMIT = {limit}

def is_short(text):
    return len(text) <= LIMIT

def verify(rollout):
    return is_short(rollout.answer)

def verify_elsewhere(rollout):
    return len(rollout.answer) <= {helpers}.MOST

class Base:
    def judge(self, rollout):
        return is_short(rollout.answer)

class Judge(Base):
    def verify(self, rollout):
        return self.judge(rollout)

class Mutual:
    def verify(self, rollout):
        return Other().verify(rollout)

class Other:
    def verify(self, rollout):
        return Mutual() and is_short(rollout.answer)
"""


def verifiers_module(monkeypatch: pytest.MonkeyPatch, *, limit: int, most: int) -> dict[str, Any]:
    helpers = types.ModuleType("users_helpers")
    vars(helpers)["MOST"] = most
    monkeypatch.setitem(sys.modules, "users_helpers", helpers)
    helpers.__file__ = "users_helpers.py"
    names: dict[str, Any] = {"__name__": "users_verifiers"}
    exec(VERIFIERS.format(limit=limit, helpers="users_helpers"), names)
    return names


@pytest.mark.parametrize(
    ("make", "reads"),
    [
        (lambda names: names["verify"], "limit"),
        (lambda names: all_of(answer_match(), names["verify"]), "limit"),
        (lambda names: functools.partial(names["verify"]), "limit"),
        (lambda names: names["Judge"](), "limit"),
        (lambda names: names["Judge"]().verify, "limit"),
        (lambda names: names["Mutual"](), "limit"),
        (lambda names: names["verify_elsewhere"], "most"),
    ],
    ids=["function", "in all_of", "partial", "method of a base class", "bound method", "each other", "of a module"],
)
def test_a_verifier_counts_with_the_constants_that_its_code_reads(
    make: Callable[[Any], Any], reads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def identity(limit: int, most: int) -> dict[str, str]:
        return verifier_identity(make(verifiers_module(monkeypatch, limit=limit, most=most)))

    known = identity(5, 5)
    assert identity(5, 5) == known
    assert (identity(6, 5) != known, identity(5, 6) != known) == (reads == "limit", reads == "most")


def test_objects_that_all_hold_each_other_and_long_chains_are_described_at_once() -> None:
    class Node:
        def __init__(self, following: Any = None) -> None:
            self.others = [following]

    crowd = [Node() for _ in range(40)]
    for node in crowd:
        node.others = list(crowd)
    chain = Node()
    for _ in range(3000):
        chain = Node(chain)
    assert digest(crowd) == digest(crowd)
    assert digest(chain) == digest(chain)
    calls = "".join(f"def f{n}():\n    return f{n + 1}() + f{(7 * n) % 300}()\n" for n in range(300))
    names: dict[str, Any] = {"__name__": "users_program", "f300": None}
    exec(calls, names)
    assert digest(names["f0"]) == digest(names["f0"])


# ---- tasks


BASE: dict[str, Any] = {
    "id": "t1",
    "prompt": "Where is order 4417?",
    "expected": {"answer": "shipped"},
    "demonstration": [Message(role="assistant", content="It is shipped.")],
}


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": "Where is order 4418?"},
        {"expected": {"answer": "lost"}},
        {"demonstration": [Message(role="assistant", content="It is lost.")]},
        {"setup": {"seed": 3}},
        {"later_turns": ["And 4418?"]},
        {"tags": {"tier": "2"}},
        {"family": "orders"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_part_of_a_task_counts_also_under_the_same_id(change: dict[str, Any]) -> None:
    assert tasks_identity([Task(**BASE)]) == tasks_identity([Task(**BASE)])
    assert tasks_identity([Task(**BASE)]) != tasks_identity([Task(**{**BASE, **change})])


def test_thousands_of_tasks_are_a_count_and_a_digest() -> None:
    known = tasks_identity([Task(prompt=f"Order {n}?") for n in range(3000)])
    assert known["count"] == 3000
    assert known.keys() == {"count", "digest"}
    assert len(known["digest"]) == 16


def test_a_digest_tells_kinds_apart_and_knows_no_order_where_there_is_none() -> None:
    different = [1, "1", 1.0, [1], {1: 1}, {"1": 1}, None, b"1", (1, 2), {"a": {"b": 1}}, "\ud83d"]
    assert len({digest(value) for value in different}) == len(different)
    assert digest({"a": 1, "b": {2, 3}}) == digest({"b": {3, 2}, "a": 1})


# ---- tools


def test_names_descriptions_and_schemas_of_tools_count_and_their_order_does_not() -> None:
    one, two = Tool(name="get_order", description="Read."), Tool(name="cancel_order")
    specs = identify(["desk-server", "--port", "80"])
    known = tools_identity(specs, [one, two])
    assert known == tools_identity(specs, [two, one])
    assert known["count"] == 2
    assert known["source"] == ["desk-server --port 80"]
    schema = {"type": "object", "properties": {"id": {"type": "integer"}}}
    for changed in ({"name": "read_order"}, {"description": "Look."}, {"input_schema": schema}):
        assert tools_identity(specs, [one.model_copy(update=changed), two])["digest"] != known["digest"]


def test_the_code_of_functions_given_as_tools_counts(tmp_path: Path) -> None:
    tools = [Tool(name="verify")]
    before, after = (identify(from_source(tmp_path, name, score)) for name, score in (("a", "1.0"), ("b", "2.0")))
    assert tools_identity(before, tools) != tools_identity(after, tools)
    assert tools_identity(before, tools)["source"] == ["function checks.verify"]


DESK = """
import sys
from pathlib import Path
from mcp.server.mcpserver import MCPServer

Path(sys.argv[1]).unlink()
server = MCPServer("desk")
server.add_tool(lambda: "shipped", name="get_order")
server.run()
"""


async def test_the_source_of_a_run_is_read_once_and_another_one_is_refused_by_name(tmp_path: Path) -> None:
    server, config, run = tmp_path / "desk.py", tmp_path / "mcp.json", tmp_path / "run"
    server.write_text(DESK)

    async def evaluate(*more: str) -> None:
        # The server removes the file as it starts: whoever read it again would find none.
        args = [str(server), str(config), *more]
        config.write_text(json.dumps({"mcpServers": {"desk": {"command": sys.executable, "args": args}}}))
        agent = ScriptedAgent(["It is shipped."])
        await sdk.evaluate_async(str(config), ["Where is it?"], lambda _: 1.0, model=agent, output_dir=run)

    await evaluate()
    assert RunFolder.open_to_read(run).config["tools"]["source"] == [f"desk ({sys.executable} {server} {config})"]
    with pytest.raises(RunFolderError, match=r"holds another run: tools\.source is"):
        await evaluate("--verbose")


@pytest.mark.parametrize(
    "source",
    [
        ["desk-server", "--api-key", SECRET],
        ["desk-server", f"--token={SECRET}"],
        f"https://user:{SECRET}@host/mcp",
        f"https://host/mcp?key={SECRET}",
        {"mcpServers": {"a": {"command": "desk", "args": [SECRET], "env": {"DESK_KEY": SECRET}}}},
        {"mcpServers": {"a": {"url": "https://host/mcp", "headers": {"Authorization": f"Bearer {SECRET}"}}}},
    ],
    ids=str,
)
def test_the_label_of_tools_holds_no_secret(source: Any) -> None:
    known = tools_identity(identify(source), [Tool(name="get_order")])
    assert known["source"]
    assert SECRET not in str(known)


# ---- verifiers


def test_an_edited_verifier_of_the_same_name_is_another_one(tmp_path: Path) -> None:
    before, same, after = (
        from_source(tmp_path, name, body) for name, body in (("a", "1.0"), ("b", "1.0"), ("c", "0.0"))
    )
    assert verifier_identity(before) == verifier_identity(same)
    assert verifier_identity(before)["name"] == verifier_identity(after)["name"] == "verify"
    assert verifier_identity(before) != verifier_identity(after)
    assert verifier_identity(all_of(before)) == verifier_identity(all_of(same))
    assert verifier_identity(all_of(before)) != verifier_identity(all_of(after))


def test_a_verifier_without_a_source_counts_by_its_code() -> None:
    made = []
    for body in ("1.0", "1.0", "0.0"):
        names: dict[str, Any] = {"__name__": "typed_in"}
        exec(f"def verify(rollout): return {body}", names)
        made.append(verifier_identity(names["verify"]))
    assert made[0] == made[1] != made[2]


@pytest.mark.parametrize(
    "make",
    [
        above,
        Bound,
        lambda value: Bound(value).verify,
        lambda value: functools.partial(judge, threshold=value),
        lambda value: functools.partial(above(value)),
        lambda value: all_of(answer_match(), Bound(value)),
        lambda value: Weights({"yes": value}),
        lambda value: Weights({}, part=functools.partial(judge, threshold=value)),
    ],
    ids=["closure", "object", "bound method", "partial", "partial of a closure", "all_of", "dataclass", "nested"],
)
def test_what_a_verifier_holds_counts_and_its_address_does_not(make: Callable[[float], Any]) -> None:
    first, second = make(0.5), make(0.5)
    assert first is not second
    assert verifier_identity(first) == verifier_identity(second)
    assert verifier_identity(first) != verifier_identity(make(0.9))
    assert "0x" not in verifier_name(first)


def test_a_new_key_in_a_verifier_is_still_the_same_one_and_no_name_shows_it() -> None:
    assert verifier_identity(Bound(0.5, "old")) == verifier_identity(Bound(0.5, "new"))
    keyed = functools.partial(judge, api_key=SECRET, threshold=2)
    assert verifier_name(keyed) == "partial(judge, api_key=***, threshold=2)"
    assert verifier_identity(keyed) == verifier_identity(functools.partial(judge, api_key="new", threshold=2))


def test_a_verifier_that_holds_itself_is_described_to_its_end() -> None:
    def again(rollout: Rollout) -> bool:
        return bool(rollout.answer) or again(rollout)

    assert verifier_identity(again) == verifier_identity(again)


def test_an_identity_is_the_same_in_another_process() -> None:
    script = (
        "import functools; from sdk.verifiers import *; from test_run_identity import *; "
        "judges = answer_match(), functools.partial(judge, threshold=2), above({'a', 'b', 'c'}); "
        "print(verifier_identity(all_of(*judges)))"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONPATH": f"{Path(__file__).parent}", "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1] != ""


def test_digests_of_tasks_and_verifiers_are_those_that_runs_were_begun_with() -> None:
    assert tasks_identity([Task(**BASE)])["digest"] == "8895e9f3e0f68c46"
    assert verifier_identity(all_of(answer_match(), required_calls(only=True)))["digest"] == "595e3b6c527aaed3"


def test_a_folder_refuses_changed_tasks_of_the_same_ids(tmp_path: Path) -> None:
    changed = {**BASE, "expected": {"answer": "lost"}}
    with RunFolder.create_or_resume(tmp_path, {"tasks": tasks_identity([Task(**BASE)])}) as run:
        run.append_rollout("a", Rollout(id="a", task=Task(**BASE), verdict=Verdict(score=1.0)))
    with pytest.raises(RunFolderError, match=r"tasks\.digest is .* in the folder"):
        RunFolder.create_or_resume(tmp_path, {"tasks": tasks_identity([Task(**changed)])})
