"""`toolbake record`, `toolbake replay` and `toolbake divergence` as their users type them."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest
from command_line import toolbake

from mcp_bridge import connect
from sandboxes.helpdesk import Helpdesk
from sandboxes.recorded import record

TWIN = """
from sandboxes.helpdesk import Helpdesk

same = Helpdesk()
other = Helpdesk(seed=5)
"""
PRINTS = """
class Loud(Helpdesk):
    def _run(self, name, arguments):
        print("asked for", name)
        return super()._run(name, arguments)


loud = Loud()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The present folder, with a cassette of the helpdesk and a file of twins."""

    async def play() -> None:
        async with connect(Helpdesk()) as toolset:
            async with record(toolset, tmp_path / "desk.jsonl").open_world("one") as world:
                state = await world.state()
                assert state is not None
                await world.call("get_order", {"order_id": next(iter(state["orders"]))})
                await world.call("get_policy", {"topic": "returns"})

    anyio.run(play)
    (tmp_path / "twin.py").write_text(TWIN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_twin_of_a_cassette_is_compared_where_none_is_named(folder):
    result = toolbake("divergence", "desk.jsonl")
    assert result.exit_code == 0, result.stderr
    assert "2 calls in 1 session were compared: 100.0% of the results agree." in result.stdout


def test_without_a_twin_each_session_is_compared_with_a_twin_of_the_others(folder):
    async def play() -> None:
        async with connect(Helpdesk()) as toolset, record(toolset, "desk.jsonl").open_world("two") as world:
            await world.call("get_policy", {"topic": "returns"})
            await world.call("get_policy", {"topic": "shipping"})

    anyio.run(play)
    result = toolbake("divergence", "desk.jsonl", "--json-to", "report.json")
    assert result.exit_code == 3, result.stderr
    # Each session has one call that the other has too, and one that it has alone.
    assert "each session with a twin of the others: 50.0% of the results agree, and 0 of 2 sessions" in result.stdout
    found = json.loads((folder / "report.json").read_text())
    assert (found["answered_by"], found["agreement"], found["on_itself"]) == ("others", 0.5, 1.0)
    assert toolbake("divergence", "desk.jsonl", "--at-least", "0.5").exit_code == 0


def test_what_a_twin_prints_goes_to_stderr(folder):
    printing = TWIN + "print('at its start')\n" + PRINTS
    (folder / "loud.py").write_text(printing)
    result = toolbake("divergence", "desk.jsonl", "loud.py:loud")
    assert result.stdout.startswith("# Divergence from")
    assert "asked for get_order" not in result.stdout
    assert "asked for get_order" in result.stderr
    assert "at its start" in result.stderr


def test_a_named_twin_that_agrees_ends_with_0_and_one_that_does_not_with_3(folder):
    assert toolbake("divergence", "desk.jsonl", "twin.py:same").exit_code == 0
    result = toolbake("divergence", "desk.jsonl", "twin.py:other", "--json-to", "report.json")
    assert result.exit_code == 3
    assert "| get_order | 1 | 0 of 1 |" in result.stdout
    assert json.loads((folder / "report.json").read_text())["agrees"] is False
    other = ("divergence", "desk.jsonl", "twin.py:other", "--ignore", "get_policy:**")
    assert toolbake(*other).exit_code == 3
    assert toolbake(*other, "--at-least", "0.5").exit_code == 0
    assert toolbake(*other, "--at-least", "0.6").exit_code == 3
    # That one is refused and the other not is never ignored: the order is not there.
    assert toolbake(*other, "--ignore", "get_order:**").exit_code == 3


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["divergence", "none.jsonl"], "there is no cassette 'none.jsonl'"),
        (["divergence", "twin.py"], "line 2 of the cassette 'twin.py' is none of header, session, call"),
        (["divergence", "desk.jsonl", "twin.py"], "a Python file; name the object in it"),
        (
            ["divergence", "desk.jsonl", "twin.py:same", "--ignore-text", "("],
            "--ignore-text '(' is not a valid regular expression",
        ),
        (["record", "twin.py:same", "--to", "x.jsonl"], "only an MCP server can be recorded from outside"),
        (["record", "--to", "x.jsonl"], "give exactly one of TOOLS and --command"),
        (["record", "--command", "cat", "--to", "x.jsonl", "--scrub", "("], "not a valid regular expression"),
        (["replay", "none.jsonl"], "there is no cassette 'none.jsonl'"),
        (["replay", "desk.jsonl", "--unseen", "guess"], "--unseen is 'guess'; choose error, nearest or model"),
        (["replay", "desk.jsonl", "--unseen", "model"], "needs --endpoint and --model"),
        (["replay", "desk.jsonl", "--endpoint", "http://127.0.0.1:1/v1"], "do nothing without --unseen model"),
        (["replay", "desk.jsonl", "--unseen", "model", "--endpoint", "http://127.0.0.1:1/v1"], "needs --model"),
        (["replay", "desk.jsonl", "--reads", "gte_*"], "reads has 'gte_*', which is not a tool"),
    ],
)
def test_mistakes_end_with_1_and_one_message(folder, words, complaint):
    result = toolbake(*words)
    assert result.exit_code == 1
    assert complaint in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    assert not (folder / "x.jsonl").exists()


def test_a_file_for_json_that_cannot_be_written_does_not_cost_the_report(folder):
    result = toolbake("divergence", "desk.jsonl", "--json-to", "none/report.json")
    assert result.exit_code == 1
    assert "none/report.json cannot be written: No such file or directory" in " ".join(result.stderr.split())
    assert "2 calls in 1 session were compared: 100.0% of the results agree." in result.stdout


@pytest.mark.parametrize("target", ["desk.jsonl", "twin.py", "none.jsonl", "."])
def test_a_report_never_replaces_another_file(folder, target):
    (folder / "none.jsonl").write_text("")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    result = toolbake("divergence", "desk.jsonl", "twin.py:same", "--json-to", target)
    assert result.exit_code == 1
    assert f"--json-to is '{target}', which is there and is not a divergence report" in " ".join(result.stderr.split())
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_report_is_printed_as_json_and_replaces_an_older_one(folder):
    for twin, code in (("twin.py:other", 3), ("twin.py:same", 0)):
        result = toolbake("divergence", "desk.jsonl", twin, "--json", "--json-to", "report.json")
        assert result.exit_code == code, result.stderr
        assert json.loads(result.stdout)["agrees"] is (code == 0)
        assert (folder / "report.json").read_text() == result.stdout


def test_a_cassette_must_be_named(folder):
    assert toolbake("record", "twin.py:same").exit_code == 2
    assert toolbake("divergence").exit_code == 2
