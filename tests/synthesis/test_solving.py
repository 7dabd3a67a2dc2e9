"""`sdk.solve` and `toolbake solve`: whole tasks from requests and the calls that solve them."""

import csv
import json
import re
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer
from typer.testing import CliRunner, Result

import mcp_bridge
import sdk
from sandboxes.helpdesk import Helpdesk
from sandboxes.objects import ObjectTwin
from sdk.blocking import solve_file
from sdk.cli.app import app
from sdk.policies.scripted import ScriptedAgent, replay_demonstration
from sdk.records import ToolCall
from sdk.verifiers import all_of, answer_match, answer_set, as_expected, final_state, required_calls

SETUP = {"seed": 43, "scenario": "default"}
STATUS = "What is the status of order 4256?"
GOLD = all_of(final_state(), required_calls(), answer_match())


def toolbake(*words: str) -> Result:
    return CliRunner().invoke(app, list(words), prog_name="toolbake")


def test_a_solved_question_has_its_answer_and_a_demonstration_that_earns_it() -> None:
    task = sdk.solve(
        Helpdesk(), "What is the status of order 4256?", "get_order(order_id='4256')", SETUP, answer="$.status"
    )
    assert task.expected == {
        "answer": "cancelled",
        "calls": [{"name": "get_order", "arguments": {"order_id": "4256"}}],
        "changes": [],
    }
    right = sdk.rollout(Helpdesk(), task, model=replay_demonstration(task), verifier=GOLD)
    assert right.verdict is not None
    assert right.verdict.score == 1
    wrong = sdk.rollout(Helpdesk(), task, model=ScriptedAgent(["It is cancelled."]), verifier=GOLD)
    assert wrong.verdict is not None
    assert wrong.verdict.score == 0


def test_a_solved_order_has_the_changes_of_the_world_and_no_answer() -> None:
    before = sdk.solve(Helpdesk(), "Status of 2342?", [("get_order", {"order_id": "2342"})], SETUP, answer="$1.address")
    task = sdk.solve(
        Helpdesk(),
        "Order 2342 goes to 5 New Street now.",
        [{"name": "change_address", "arguments": {"order_id": "2342", "address": "5 New Street"}}],
        SETUP,
        tags={"kind": "address"},
        family="address/1",
    )
    change = {"table": "orders", "key": "2342", "column": "address", "before": before.expected["answer"]}
    assert task.expected["changes"] == [{**change, "after": "5 New Street"}]
    assert "answer" not in task.expected
    assert (task.tags, task.family, task.setup) == ({"kind": "address"}, "address/1", SETUP)


@pytest.mark.parametrize(
    "calls", ["find(space='3A'); leave(plate=$1.plate)", [("find", {"space": "3A"}), ("leave", {"plate": "$1.plate"})]]
)
def test_an_argument_is_read_from_the_result_of_an_earlier_call(calls: Any) -> None:
    def find(space: str) -> dict[str, str]:
        return {"plate": f"B-{space}"}

    def leave(plate: str, paid: str = "$1.50") -> dict[str, str]:
        return {"left": plate, "paid": paid}

    task = sdk.solve([find, leave], "The car in 3A wants to leave. Which one is it?", calls, answer="$.left")
    assert task.expected["answer"] == "B-3A"
    assert task.expected["calls"][1] == {"name": "leave", "arguments": {"plate": "B-3A"}}
    assert task.demonstration is not None
    assert task.demonstration[1].tool_calls[0].arguments == {"plate": "B-3A"}
    priced = sdk.solve(leave, "Pay.", "leave(plate='$7', paid='$1.50')", answer="$.paid")
    assert priced.expected["answer"] == "$1.50"


def test_an_unquoted_number_of_a_call_is_its_whole_result_and_a_quoted_one_a_price() -> None:
    def find_seat(row: str) -> str:
        return f"{row}-7"

    def note(seat: str, price: str) -> dict[str, str]:
        return {"seat": seat, "price": price}

    task = sdk.solve([find_seat, note], "Note it.", 'find_seat(row="C"); note(seat=$1, price="$1")', answer="$.seat")
    assert task.expected["answer"] == "C-7"
    assert task.expected["calls"][1]["arguments"] == {"seat": "C-7", "price": "$1"}
    with pytest.raises(sdk.ConfigError, match=r"names call 5; there are 1 before it"):
        sdk.solve([find_seat, note], "Note it.", 'find_seat(row="C"); note(seat=$5, price="")', answer="$.seat")


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("$.allergies", r"is \[\], and an answer is .*; give the answer in words"),
        ("$.chip", "is null, and an answer is"),
        ("$.note", 'is "", and an answer is'),
        ("$.pets", r"name one of \$\.pets\[0\]\.name, \$\.pets\[1\]\.name"),
        ("$", r"name one of \$\.pets\[0\]\.name"),
    ],
)
def test_what_no_answer_can_be_compared_with_is_an_error(path: str, problem: str) -> None:
    def get_owner() -> dict[str, Any]:
        return {"allergies": [], "chip": None, "note": "", "pets": [{"name": "Tom"}, {"name": "Kit", "ill": {}}]}

    with pytest.raises(sdk.ConfigError, match=problem):
        sdk.solve(get_owner, "Which?", "get_owner()", answer=path)


def test_an_argument_is_read_from_a_list_of_an_mcp_server_and_never_from_the_letters_of_a_text() -> None:
    server = MCPServer("rooms", log_level="ERROR")

    @server.tool()
    def rooms() -> list[dict[str, str]]:
        """All rooms."""
        return [{"name": "Oak"}, {"name": "Elm"}]

    @server.tool()
    def people() -> list[str]:
        """All people."""
        return ["Anna", "Bob"]

    @server.tool()
    def book(room: str) -> str:
        """Book a room."""
        return room

    task = sdk.solve(server, "Book the second room.", "rooms(); book(room=$1[1].name)", answer="$")
    assert task.expected["answer"] == "Elm"
    assert sdk.solve(server, "Who is second?", "people()", answer="$[1]").expected["answer"] == "Bob"
    with pytest.raises(sdk.ConfigError, match=r"the argument '\$1\[1\]' is not in the result of call 1, which has \$1"):
        sdk.solve(server, "Book for the second.", "people(); book(room=$1[1])", answer="$")


@pytest.mark.parametrize(
    "calls",
    [
        "find(); pay(items=[$1.id, 'a, $1.id'], to={'who': $1.id})",
        [("find", {}), ("pay", {"items": ["$1.id", "a, $1.id"], "to": {"who": "$1.id"}})],
    ],
)
def test_a_reference_within_a_list_or_an_object_is_filled_in(calls: Any) -> None:
    def find() -> dict[str, str]:
        return {"id": "b7"}

    def pay(items: list[str], to: dict[str, str]) -> str:
        return "paid"

    task = sdk.solve([find, pay], "Pay.", calls, answer="paid")
    assert task.expected["calls"][1]["arguments"] == {"items": ["b7", "a, $1.id"], "to": {"who": "b7"}}


@pytest.mark.parametrize("price", ["$1", "$5", "$1,200", "$1.50"])
def test_an_answer_that_is_a_price_is_no_path(price: str) -> None:
    def cost() -> str:
        return price

    assert sdk.solve(cost, "What does it cost?", "cost()", answer=price).expected["answer"] == price


@pytest.mark.parametrize("returned", [None, ""])
def test_nothing_is_no_answer_that_is_taken_by_itself(returned: str | None) -> None:
    def find(text: str) -> str | None:
        return returned if text else text

    with pytest.raises(sdk.ConfigError, match=r"the last one returns no value: name the one that is asked for"):
        sdk.solve([find], "Is there a lamp?", "find(text='lamp')")


def test_one_call_may_be_an_object_and_a_reply_a_number(tmp_path: Path) -> None:
    def add(a: int) -> int:
        return a + 1

    task = sdk.solve(add, "1 and 1?", {"name": "add", "arguments": {"a": 1}})
    assert task.expected["answer"] == 2
    rows = [["prompt", "calls", "reply"], ["1 and 1?", "add(a=1)", "2"], ["2 and 1?", "add(a=2)", "true"]]
    with (tmp_path / "requests.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    solved = solve_file(add, tmp_path / "requests.csv")
    assert [one.demonstration[-1].content for one in solved if one.demonstration] == ["2", "true"]


@pytest.mark.parametrize(("free", "expected"), [(["1A", "2B"], {"all": ["1A", "2B"]}), (["1A"], "1A")])
def test_an_answer_that_is_read_as_a_list_needs_all_its_items(free: list[str], expected: Any) -> None:
    def free_spaces() -> list[str]:
        return free

    task = sdk.solve(free_spaces, "Which spaces are free?", "free_spaces()", answer="$")
    assert task.expected["answer"] == expected
    assert task.demonstration is not None
    assert task.demonstration[-1].content == ", ".join(free)
    for said, right in {", ".join(free): 1, "1A": int(len(free) == 1), "2B": 0}.items():
        calls = task.demonstration[:-1]
        agent = ScriptedAgent([*calls, said])
        for verifier in (answer_match(), as_expected(), answer_set()) if len(free) > 1 else (as_expected(),):
            rollout = sdk.rollout(free_spaces, task, model=agent, verifier=verifier)
            assert rollout.verdict is not None
            assert rollout.verdict.score == right, (said, verifier)


@pytest.mark.parametrize(
    ("calls", "answer", "problem"),
    [
        ("get_order(order_id='4256')", "$3.status", "names call 3; there are 1"),
        ("get_order(order_id=open('/etc/passwd').read())", None, "an argument of get_order is not a number"),
        ("__import__('os').system('true')", None, "line 1 is not a call"),
        ("get_order(order_id=", None, "cannot be read as calls"),
        ("get_order(order_id='4256') now", None, "invalid syntax at 'now'; write for example"),
        ("get_order(order_id=$1.id)", None, r"the argument '\$1\.id' names call 1; there are 0 before it"),
        (
            "get_order(order_id='4256'); get_order(order_id=$1.price)",
            None,
            r"the argument '\$1\.price' is not in the result of call 1, which has .*\$1\.status",
        ),
        ("get_order(order_id='0'); get_order(order_id=$1.id)", None, r"get_order\(order_id='0'\) is refused"),
        ("get_order(order_id='1', order_id='2')", None, "get_order has the argument order_id twice"),
        ("get_order(order_id={'1', '2'})", None, "an argument of get_order is not a number"),
        ("get_order(order_id=b'1')", None, "an argument of get_order is not a number"),
        ("get_order(order_id=1j)", None, "an argument of get_order is not a number"),
        ("get_order(order_id={[]: 1})", None, "an argument of get_order is not a number"),
        (7, None, "7 is not a call"),
        ([], None, "there are no calls"),
        ([7], None, "7 is not a call; write for example"),
        ([{"name": "get_order", "arguments": '{"order_id": "4256"}'}], None, "is not a call; write for example"),
        (
            '[{"name": "get_order", "arguments": {"order_id": "1", "order_id": "4256"}}]',
            "$.status",
            "the key 'order_id' occurs twice; keep one of them",
        ),
    ],
)
def test_what_cannot_be_solved_says_what_to_change(calls: Any, answer: str | None, problem: str) -> None:
    with pytest.raises(sdk.ConfigError, match=problem):
        sdk.solve(Helpdesk(), "What of order 4256?", calls, SETUP, answer=answer)


def test_the_command_solves_a_file_and_writes_nothing_where_a_line_is_wrong(tmp_path: Path) -> None:
    rows = [
        {"prompt": STATUS, "calls": "get_order(order_id='4256')", "answer": "$.status"},
        {"prompt": "Send 2342 to 5 New Street.", "calls": "change_address(order_id='2342', address='5 New Street')"},
    ]

    def write(name: str, listed: list[dict[str, str]]) -> Path:
        with open(tmp_path / name, "w", newline="") as file:
            writer = csv.DictWriter(file, ["prompt", "calls", "answer", "setup.seed"])
            writer.writeheader()
            writer.writerows({**row, "setup.seed": "43"} for row in listed)
        return tmp_path / name

    to = tmp_path / "new" / "tasks.jsonl"
    bad = [*rows, {"prompt": "Where is order 1?", "calls": "get_order(order_id='1')"}]
    ended = toolbake("solve", "examples/helpdesk/mcp.json", "--tasks", str(write("bad.csv", bad)), "--to", str(to))
    assert ended.exit_code == 1
    assert "bad.csv, line 4: get_order(order_id='1') is refused: No order '1'" in ended.stderr
    assert not to.exists()
    ended = toolbake("solve", "examples/helpdesk/mcp.json", "--tasks", str(write("good.csv", rows)), "--to", str(to))
    assert ended.exit_code == 0, ended.stderr
    assert "2 tasks" in ended.stdout
    assert "1 change the world, 1 ask for an answer" in ended.stdout
    solved = [json.loads(line) for line in to.read_text().splitlines()]
    assert [task["expected"].get("answer") for task in solved] == ["cancelled", None]
    nowhere = str(tmp_path / "good.csv" / "tasks.jsonl")
    bad_csv = str(tmp_path / "bad.csv")
    ended = toolbake("solve", "examples/helpdesk/mcp.json", "--tasks", bad_csv, "--to", nowhere)
    assert (ended.exit_code, "good.csv" in ended.stderr, "is refused" in ended.stderr) == (1, True, False)
    again = toolbake("solve", "examples/helpdesk/mcp.json", "--tasks", str(tmp_path / "good.csv"), "--to", str(to))
    assert again.exit_code == 1
    assert "exists; give a new file" in again.stderr


def test_solved_tasks_are_checked_with_the_verifier_that_training_will_use() -> None:
    task = sdk.solve(Helpdesk(), STATUS, "get_order(order_id='4256')", SETUP, answer="$.status")
    assert sdk.check_tasks(Helpdesk(), [task], verifier=GOLD).problems == []
    bare = task.model_copy(update={"expected": {}})
    assert sdk.check_tasks(Helpdesk(), [bare], verifier=lambda rollout: "cancelled" in rollout.answer).problems == []
    with pytest.raises(sdk.ConfigError, match=r"its score is 0, not 1\. Correct .*, or the verifier"):
        sdk.check_tasks(Helpdesk(), [task], verifier=lambda rollout: "shipped" in rollout.answer).require_all()


@pytest.mark.parametrize(
    ("answer", "warning"),
    [
        ("status", r"no result of its calls has the answer 'status'; did you mean \$\.status"),
        (".status", r"no result of its calls has the answer '\.status'; did you mean \$\.status"),
        ("Dr. Nobody", "neither a result of its calls nor the prompt has the answer 'Dr. Nobody'; correct it unless"),
        ({"all": ["cancelled", ["Atlantis", "Utopia"]]}, r"has the answer one of \['Atlantis', 'Utopia'\]"),
        ("cancelled", ""),
        ("4256", ""),
        ("yes", ""),
        (False, ""),
    ],
)
def test_an_answer_that_no_result_has_is_a_warning_when_it_is_solved_and_when_it_is_checked(
    answer: Any, warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    task = sdk.solve(Helpdesk(), STATUS, "get_order(order_id='4256')", SETUP, answer=answer)
    checked = sdk.check_tasks(Helpdesk(), [task], verifier=final_state())
    assert [bool(re.search(warning, text)) for text in caplog.messages] == [True] * bool(warning)
    found = [one.what for one in [*checked.warnings, *checked.problems] if "the request says" not in one.what]
    assert found == [text.removeprefix("the task: ") for text in caplog.messages]


def shop(orders: Any) -> MCPServer:
    server = MCPServer("shop")
    mcp_bridge.worlds(server, make=lambda: orders, state=lambda kept: {"orders": kept})
    server.tool(name="look", structured_output=False)(lambda: "two orders")
    return server


@pytest.mark.parametrize(
    ("orders", "kind", "fix"),
    [
        ([{"id": 1, "status": "open"}], "a list", r"write for example {str\(row\['id'\]\): row for row in orders}"),
        (
            {"1": "open"},
            "an object whose values are not objects",
            "write for example {table: {row_key: {column: value}}}",
        ),
    ],
)
def test_a_state_that_is_no_table_is_named_with_how_to_make_it_one(
    orders: Any, kind: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLBAKE_CONTROL", "1")
    with pytest.raises(mcp_bridge.SourceError, match=f"the state has {kind} at 'orders'.*{fix}"):
        sdk.solve(shop(orders), "How many orders are there?", "look()", answer="two")


def diary(made: Callable[[dict[str, Any], str], Any]) -> MCPServer:
    server = MCPServer("diary")
    worlds = mcp_bridge.worlds(server, make=dict, state=lambda kept: kept)

    @server.tool(structured_output=False)
    def write(text: str) -> str:
        """Write into the diary."""
        return str(made(worlds(), text))

    return server


def timed(kept: dict[str, Any], text: str) -> None:
    kept["notes"] = {"1": {"text": text, "made_at": time.time_ns()}}


def random_row(kept: dict[str, Any], text: str) -> None:
    timed(kept, text)
    kept["log"] = {str(uuid.uuid4()): {"text": text}}


def one_value(kept: dict[str, Any], text: str) -> None:
    kept["notes"] = {"1": {"text": text}}
    kept["settings"] = {"seen": {"value": time.time_ns()}}


def many_values(kept: dict[str, Any], text: str) -> None:
    kept["notes"] = {"1": {"text": text}}
    kept["settings"] = {str(key): {"value": time.time_ns()} for key in range(400)}


@pytest.mark.parametrize(
    ("made", "ignored"),
    [
        (timed, ["notes.made_at"]),
        (random_row, ["log", "notes.made_at"]),
        (one_value, ["settings.seen.value"]),
        (many_values, ["settings.value"]),
    ],
)
def test_what_differs_between_two_fresh_worlds_is_not_expected_of_a_rollout(
    made: Callable[..., Any], ignored: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TOOLBAKE_CONTROL", "1")
    task = sdk.solve(diary(made), "Note tea.", "write(text='tea')")
    change = {"table": "notes", "key": "1", "column": "text", "before": None, "after": "tea"}
    assert (task.expected["changes"], task.expected["ignore"]) == ([change], ignored)
    assert f"the task: {', '.join(ignored)} differ in each world" in caplog.text
    for text, right in {"tea": 1, "milk": 0}.items():
        agent = ScriptedAgent([[ToolCall(id="1", name="write", arguments={"text": text})], "Done."])
        for verifier in (final_state(), as_expected()):
            rollout = sdk.rollout(diary(made), task, model=agent, verifier=verifier)
            assert rollout.verdict is not None
            assert rollout.verdict.score == right


class Nursery:
    def __init__(self) -> None:
        self.stock = {"tulip": 5, "iris": 5}
        self.orders: dict[str, dict[str, Any]] = {}

    def order(self, plant: str, number: int) -> dict[str, int]:
        """Order plants."""
        self.stock[plant] -= number
        self.orders[uuid.uuid4().hex] = {"plant": plant, "number": number}
        return {"left": self.stock[plant]}

    def waste(self, plant: str) -> str:
        """Throw a plant away."""
        self.stock[plant] = 0
        return "gone"


def test_of_an_objects_attributes_only_the_one_that_differs_is_ignored() -> None:
    call = {"name": "order", "arguments": {"plant": "tulip", "number": 2}}
    task = sdk.solve(ObjectTwin(Nursery), "Order 2 tulips. How many are left?", [call], answer="$.left")
    assert task.expected["ignore"] == ["Nursery.orders.value"]
    assert [change["key"] for change in task.expected["changes"]] == ["stock"]
    waste = ToolCall(id="2", name="waste", arguments={"plant": "iris"})
    ordered = ToolCall(id="1", **call)
    for calls, right in (([ordered], 1), ([ordered, waste], 0)):
        rollout = sdk.rollout(
            ObjectTwin(Nursery), task, model=ScriptedAgent([calls, "3 are left."]), verifier=as_expected()
        )
        assert rollout.verdict is not None
        assert rollout.verdict.score == right


@pytest.mark.parametrize(
    ("tool", "answer", "is_told"),
    [("git_create_branch", None, True), ("cancel", None, True), ("cancel", "ok", False), ("get_order", None, False)],
)
def test_a_write_that_no_state_shows_is_a_warning(
    tool: str, answer: Any, is_told: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TOOLBAKE_CONTROL", "1")
    server = MCPServer("silent")
    mcp_bridge.worlds(server, make=dict, state=lambda kept: kept)
    server.tool(name=tool, structured_output=False)(lambda: "ok")
    assert sdk.solve(server, "Do it.", f"{tool}()", answer=answer).expected["answer"] == "ok"
    assert (f"nothing in the world's state shows what {tool} did" in caplog.text) is is_told


def only_random_rows(kept: dict[str, Any], text: str) -> None:
    kept["log"] = {str(uuid.uuid4()): {"text": text}}


def random_answer(kept: dict[str, Any], text: str) -> str:
    return uuid.uuid4().hex


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (only_random_rows, "all that the calls change differs in each world: log; let the server"),
        (random_answer, "the expected answer would differ in each world"),
    ],
)
def test_a_task_of_which_everything_differs_in_each_world_is_an_error(
    made: Callable[..., Any], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLBAKE_CONTROL", "1")
    with pytest.raises(sdk.ConfigError, match=problem):
        sdk.solve(diary(made), "Note tea.", "write(text='tea')")


ROOMS: dict[str, str] = {}


def book(room: str, person: str) -> str:
    """Book a room."""
    ROOMS[room] = person
    return "booked"


def capital(country: str) -> str:
    """The capital of a country."""
    return {"France": "Paris"}.get(country, "unknown")


def test_calls_of_functions_that_share_state_are_announced_before_they_are_made(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sdk.solve([book, capital], "The capital of France?", "capital(country='France')")
    assert caplog.messages == []
    sdk.solve([book, capital], "Book room 2 for Ann.", "book(room='2', person='Ann')", answer="booked")
    (said,) = caplog.messages
    assert "tasks may share state, by way of book (it changes ROOMS[room]): these calls are real" in said
    assert "sandboxes.objects.ObjectTwin" in said


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("prompt,calls\nA?,look()\nB?,look()\nA?,look()\n", r"requests.csv, line 4 repeats .*requests.csv, line 2 "),
        (
            "prompt,calls,id\nA?,look(),1\nB?,look(),1\n",
            r"line 3 and .*line 2 have the same id '1' but differ in prompt",
        ),
        ("prompt,calls\n", "requests.csv has no request; write one in each row"),
        ("prompt,calls\n,\n", "requests.csv has no request; write one in each row"),
        ("request,calls\nA?,look()\n", "one must be 'prompt'; the others are .*, calls, answer, reply"),
        ("prompt,calls,anser\nA?,look(),7\n", "unknown field 'anser'; did you mean 'answer'"),
    ],
)
def test_requests_that_would_not_load_as_tasks_are_refused_before_a_call_is_made(
    text: str, problem: str, tmp_path: Path
) -> None:
    (tmp_path / "requests.csv").write_text(text)
    with pytest.raises(sdk.ConfigError, match=problem):
        solve_file([unmade], tmp_path / "requests.csv")


def unmade() -> str:
    raise AssertionError("a call was made")


def test_an_answer_that_is_cut_from_the_result_is_doubted(caplog: pytest.LogCaptureFixture) -> None:
    def get_report() -> dict[str, str]:
        return {"text": "so on, " * 2000, "author": "Mira"}

    sdk.solve([get_report], "Who wrote the report?", "get_report()", answer="$.author")
    assert "characters were cut from the results: ask for less at a time, or raise max_result_chars" in caplog.text
