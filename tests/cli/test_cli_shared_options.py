"""Options that commands share: -h, --quiet, --json, --verifier expected, and a recording in place of tools."""

from __future__ import annotations

import json

import anyio
import pytest
from command_line import toolbake

from mcp_bridge import connect
from sandboxes.helpdesk import Helpdesk
from sandboxes.recorded import record

TASK = {"id": "one", "prompt": "Where is order 4417?", "expected": {"answer": "shipped"}}


@pytest.mark.parametrize("words", [[], ["train"], ["judge", "check"], ["doctor"]])
def test_a_short_h_is_help(words):
    assert toolbake(*words, "-h").stdout == toolbake(*words, "--help").stdout != ""


@pytest.fixture
def asked(desk, endpoint):
    (desk / "one.jsonl").write_text(json.dumps(TASK) + "\n")
    return ["--endpoint", endpoint.url, "--model", "large-1"]


def test_an_evaluation_is_one_json_object_and_quiet_shows_nothing_else(desk, asked):
    words = ("evaluate", "desk.py:tools", "one.jsonl", "--verifier", "expected", *asked)
    result = toolbake(*words, "--json", "--quiet", "--output-dir", "run")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    report = json.loads(result.stdout)
    assert report["conditions"]["large-1"]["scored"] == 1
    assert report["conditions"]["large-1"]["score"]["estimate"] == 1
    assert report == json.loads((desk / "run" / "report.json").read_text())
    loud = toolbake(*words, "--json")
    assert set(json.loads(loud.stdout)["conditions"]) == {"large-1"}
    assert "1/1" in loud.stderr


def test_a_rollout_is_one_json_object_with_its_verdict(desk, asked):
    result = toolbake(
        *("rollout", "desk.py:tools", "--tasks", "one.jsonl", "--verifier", "expected", *asked, "--json", "-q")
    )
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    rollout = json.loads(result.stdout)
    assert (rollout["answer"], rollout["verdict"]["score"]) == ("The order is shipped.", 1)
    assert [call["call"]["name"] for call in rollout["calls"]] == ["get_order"]
    assert rollout["rows"] == []


def test_what_tools_and_verifiers_print_is_not_part_of_the_result(desk, asked):
    source = (
        (desk / "desk.py").read_text().replace("    return ORDERS", "    print('the tool runs')\n    return ORDERS")
    )
    (desk / "loud.py").write_text(f"{source}\ndef verify(rollout):\n    print('the verifier runs')\n    return 1.0\n")
    words = ("--tasks", "one.jsonl", "--verifier", "loud.py:verify", *asked, "--json")
    played = toolbake("rollout", "loud.py:tools", *words)
    assert json.loads(played.stdout)["verdict"]["score"] == 1
    assert "the tool runs" in played.stderr
    report = toolbake("evaluate", "loud.py:tools", "one.jsonl", *words[2:])
    assert json.loads(report.stdout)["conditions"]["large-1"]["scored"] == 1
    assert "the verifier runs" in report.stderr


def test_what_a_module_prints_when_it_is_loaded_is_not_part_of_the_result(desk):
    (desk / "shouting.py").write_text("print('loaded')\nfrom desk import tools\n")
    listed = toolbake("tools", "shouting:tools", "--json")
    assert listed.exit_code == 0, listed.stderr
    assert json.loads(listed.stdout)["tools"]
    assert "loaded" in listed.stderr


def test_synthesis_and_its_check_are_one_json_object_each(desk):
    (desk / "shop.py").write_text("from sandboxes.helpdesk import Helpdesk\nhelpdesk = Helpdesk()\n")
    made = toolbake("synthesize", "shop.py:helpdesk", "--to", "made.jsonl", "-n", "3", "--json", "--quiet")
    assert made.exit_code == 0, made.stderr
    assert made.stderr == ""
    assert {name: json.loads(made.stdout)[name] for name in ("path", "tasks", "wanted")} == {
        "path": "made.jsonl",
        "tasks": 3,
        "wanted": 3,
    }
    good = toolbake("synthesize", "shop.py:helpdesk", "--check", "made.jsonl", "--json", "--quiet")
    assert json.loads(good.stdout) == {"hold": 3, "problems": [], "warnings": []}
    (desk / "bad.jsonl").write_text(json.dumps(TASK) + "\n")
    bad = toolbake("synthesize", "shop.py:helpdesk", "--check", "bad.jsonl", "--json", "--quiet")
    assert bad.exit_code == 1
    (problem,) = json.loads(bad.stdout)["problems"]
    assert (problem["where"], problem["task_id"]) == ("bad.jsonl, line 1", "one")


def test_tasks_that_expect_nothing_are_refused_before_anything_runs(desk, endpoint):
    result = toolbake(
        *("evaluate", "desk.py:tools", "tasks.jsonl", "--verifier", "expected"),
        *("--endpoint", endpoint.url, "--model", "large-1"),
    )
    assert result.exit_code == 1
    assert "task 't0' expects nothing; give expected with some of answer," in result.stderr
    assert endpoint.requests == []


def test_a_recording_is_a_source_of_tools_for_every_command(desk):
    async def play() -> None:
        async with connect(Helpdesk()) as toolset:
            async with record(toolset, desk / "desk.jsonl").open_world("one") as world:
                await world.call("get_policy", {"topic": "returns"})

    anyio.run(play)
    listed = toolbake("tools", "desk.jsonl", "--json")
    assert listed.exit_code == 0, listed.stderr
    assert [tool["source"] for tool in json.loads(listed.stdout)["tools"]] == ["recorded"] * 9
