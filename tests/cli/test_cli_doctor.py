"""`toolbake doctor` finds what a training would stumble over, and says what to do, what matters most first."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
from command_line import toolbake

from sdk.cli.commands.doctor import check_machine, check_packages, metadata
from sdk.trainer.config import TrainConfig

ROOT = Path(__file__).parents[2]

SHOP = '''
from sandboxes.objects import ObjectTwin


class Shop:
    def __init__(self) -> None:
        self.stock = {"lamp": 3, "rug": 1, "vase": 8}

    def in_stock(self, product: str) -> int:
        """How many there are of a product."""
        if product not in self.stock:
            raise ValueError(f"there is no {product}")
        return self.stock[product]


tools = ObjectTwin(Shop, reads=["in_stock"])


def always(rollout):
    return 1.0


def failing(rollout):
    return rollout.no_such_field
'''


def doctor(*words: str, code: int, quiet: bool = True) -> dict:
    result = toolbake("doctor", *words, "--json", *["--quiet"] * quiet)
    assert result.exit_code == code, result.output
    assert result.stderr == "" or not quiet
    return json.loads(result.stdout)


def found(report: dict, area: str) -> list[str]:
    return [one["found"] for one in report["checks"] if one["area"] == area]


@pytest.fixture
def shop(desk):
    (desk / "shop.py").write_text(SHOP)
    rows = [
        {"prompt": f"How many of {name}?", "calls": f'in_stock(product="{name}")', "family": name}
        for name in ("lamp", "rug", "vase")
    ]
    (desk / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = toolbake("solve", "shop.py:tools", "--tasks", "requests.jsonl", "--to", "solved.jsonl")
    assert done.exit_code == 0, done.output
    return desk


def test_without_arguments_it_looks_at_the_machine_and_the_packages_and_asks_for_the_rest(desk):
    report = doctor(code=0)
    assert {"machine", "packages"} <= {one["area"] for one in report["checks"]}
    assert any("GB free" in one for one in found(report, "machine"))
    assert report["to_do"][-1] == "give TOOLS, --tasks FILE, --verifier FILE.py:NAME to this command, to check them"


def test_a_project_that_is_ready_has_nothing_to_fix_and_the_report_reads_so(shop):
    result = toolbake("doctor", "shop.py:tools", "--tasks", "solved.jsonl", "--verifier", "expected", "--quiet")
    assert result.exit_code == 0, result.output
    assert "3 of 3 gold solutions were replayed and hold" in result.stdout
    assert "rollouts of probes on 3 tasks" in result.stdout
    assert "1 tool: in_stock" in result.stdout
    assert "(0 must be fixed)" in result.stdout
    assert "1 task of 1 family; trained on:" in result.stdout
    assert "for an interval worth reading: add tasks of new families\n" in result.stdout
    assert "toolbake synthesize shop.py:tools --to more.jsonl -n 100" in result.stdout


def test_what_must_be_fixed_comes_first_and_ends_with_exit_code_1(shop):
    rows = [json.loads(line) for line in (shop / "solved.jsonl").read_text().splitlines()]
    rows[1]["expected"]["answer"] = 77
    (shop / "solved.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = doctor("shop.py:tools", "--tasks", "solved.jsonl", "--verifier", "expected", code=1)
    assert report["problems"] == 1
    assert report["to_do"][0].startswith("correct solved.jsonl, line 2:")


def test_a_verifier_that_pays_for_nothing_and_one_that_fails_are_found(shop):
    report = doctor("shop.py:tools", "--tasks", "solved.jsonl", "--verifier", "shop.py:always", code=1)
    assert "make the verifier refuse what" in report["to_do"][0]
    assert "look at state, calls and answer together, as sdk.verifiers.as_expected() does" in report["to_do"][0]
    report = doctor("shop.py:tools", "--tasks", "solved.jsonl", "--verifier", "shop.py:failing", code=1)
    assert any("no_such_field" in one for one in found(report, "verifier"))
    assert report["to_do"][0].startswith("correct the verifier: the verifier failed: ")
    assert not any("line 1" in one for one in report["to_do"])
    assert not any("none was rewarded" in one for one in found(report, "verifier")), "nothing could be scored"
    levels = {one["found"]: one["level"] for one in report["checks"]}
    assert levels["0 of 3 gold solutions were replayed and hold"] == "advice"


def test_tasks_that_nobody_can_win_are_found_by_doctor_and_certify(shop):
    expected = {"answer": 3, "calls": [{"name": "in_stok", "arguments": {"product": "lamp"}}]}
    rows = [{"prompt": f"How many lamps, please? ({n})", "expected": expected} for n in range(3)]
    (shop / "lost.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("shop.py:tools", "lost.jsonl", "--verifier", "expected")
    report = doctor(words[0], "--tasks", *words[1:], code=1)
    assert "names the tool 'in_stok', which there is not; did you mean 'in_stock'?" in report["to_do"][0]
    refused = toolbake("certify", *words)
    assert refused.exit_code == 1
    assert "did you mean 'in_stock'?" in refused.stderr


def test_a_reward_for_what_only_certify_tries_is_to_be_read_and_stops_nothing(shop):
    (shop / "names.py").write_text(
        "def verify(rollout):\n"
        "    return bool(rollout.calls) and str(rollout.task.expected['answer']) in rollout.answer\n"
    )
    report = doctor("shop.py:tools", "--tasks", "solved.jsonl", "--verifier", "names.py:verify", code=0)
    command = "toolbake certify shop.py:tools solved.jsonl --verifier names.py:verify"
    assert any("looks_up_and_lists" in one and command in one for one in report["to_do"])


def test_tasks_that_cannot_be_read_are_told_of_once(shop):
    (shop / "cut.jsonl").write_text('{"prompt": "How many')
    report = doctor("shop.py:tools", "--tasks", "cut.jsonl", "--verifier", "expected", code=1)
    assert report["problems"] == 1
    assert report["to_do"][0].startswith("correct the tasks: cut.jsonl, line 1: not JSON")


def test_more_are_held_out_where_there_are_families_enough(shop):
    rows = [{"prompt": f"How many of {n}?", "expected": {"answer": n}} for n in range(30)]
    (shop / "many.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = doctor("--tasks", "many.jsonl", code=0)
    assert any("or give toolbake train --set evaluation.heldout=0.4" in one for one in report["to_do"])
    assert any("toolbake synthesize TOOLS --to" in one for one in report["to_do"])


def test_tasks_that_expect_nothing_and_what_tools_print_are_dealt_with(shop):
    (shop / "shop.py").write_text("print('hello')\n" + SHOP)
    (shop / "bare.jsonl").write_text('{"prompt": "How many lamps?"}\n')
    report = doctor("shop.py:tools", "--tasks", "bare.jsonl", "--verifier", "expected", code=1, quiet=False)
    assert any("expects nothing" in one for one in found(report, "tasks"))


def test_tools_that_all_rollouts_share_and_tools_that_do_not_start_are_told(desk):
    report = doctor("desk.py:tools", "--tasks", "tasks.jsonl", code=0)
    assert any("no world can tell its state" in one for one in found(report, "tools"))
    assert any("gold solutions were not replayed" in one for one in found(report, "tasks"))
    (desk / "broken.json").write_text(json.dumps({"mcpServers": {"one": {"command": "no-such-program"}}}))
    report = doctor("broken.json", code=1)
    assert "no-such-program" in report["to_do"][0]


CLINIC = """
import sys

import mcp_bridge
from mcp.server.mcpserver import MCPServer

server = MCPServer("clinic", log_level="ERROR")

class Clinic:
    def __init__(self):
        self.beds = open("no_beds.csv") if "broken" in sys.argv else {}

state = None if "stateless" in sys.argv else lambda one: {"beds": one.beds}
clinic = mcp_bridge.worlds(server, make=Clinic, state=state)

@server.tool()
def count_beds() -> int:
    "How many beds there are."
    return len(clinic().beds)

server.run()
"""


@pytest.mark.parametrize(
    ("how", "advice"),
    [
        ("broken", "correct the tools: .*make= of worlds raised FileNotFoundError.*no_beds.csv"),
        ("stateless", "its worlds lack only their state: give mcp_bridge.worlds the argument state="),
    ],
)
def test_worlds_of_a_server_of_ones_own_get_the_advice_that_fits_what_they_lack(desk, how, advice):
    (desk / "clinic.py").write_text(CLINIC)
    entry = {"command": sys.executable, "args": [str(desk / "clinic.py"), how], "env": {"PYTHONPATH": str(ROOT)}}
    (desk / "clinic.json").write_text(json.dumps({"mcpServers": {"clinic": entry}}))
    report = doctor("clinic.json", code=1 if how == "broken" else 0)
    assert any(re.search(advice, one) for one in report["to_do"]), report["to_do"]


FILING = {
    "command": sys.executable,
    "args": [str(ROOT / "tests" / "bridge" / "servers" / "filing.py")],
    "env": {"NOTES_FILE": "${TOOLBAKE_WORLD_DIR}/notes.txt"},
}


@pytest.mark.parametrize("begins", [{}, {"folder": "seed"}])
def test_worlds_of_files_lack_only_a_folder_to_begin_as_before_tasks_are_made_in_them(desk, begins, monkeypatch):
    monkeypatch.setattr("sdk.synthesis.synthesis_run._ATTEMPTS_A_TASK", 4)  # none of them makes a task
    (desk / "seed").mkdir()
    options = {"toolbake": {"world": {"state": "read", **begins}, "read_only": ["read"]}}
    (desk / "mcp.json").write_text(json.dumps({"mcpServers": {"filing": FILING | options}}))
    told = toolbake("doctor", "mcp.json").stdout
    assert ('add "folder" beside "state"' in told) is (not begins), told
    made = toolbake("synthesize", "mcp.json", "--to", "made.jsonl", "-n", "1", "--quiet")
    assert ("are not simulated" in made.stderr) is (not begins)


SHARED = """
NOTES = []

def add_note(text: str) -> str:
    '''Write a note.'''
    NOTES.append(text)
    return "written"

def read_notes() -> str:
    '''Read all notes.'''
    return "; ".join(NOTES)

tools = [add_note, read_notes]
"""


@pytest.fixture
def notes(desk):
    (desk / "notes.py").write_text(SHARED)
    call = {"id": "1", "name": "add_note", "arguments": {"text": "bread"}}
    task = {"prompt": "Note bread.", "demonstration": [{"role": "assistant", "tool_calls": [call]}]}
    (desk / "notes.jsonl").write_text(json.dumps(task) + '\n{"prompt": "Note milk."}\n')
    return ("notes.py:tools", "--tasks", "notes.jsonl")


def test_state_that_rollouts_share_must_be_fixed_unless_the_training_allows_it(desk, notes):
    words = notes
    report = doctor(*words, code=1)
    told = "functions: what add_note wrote in one world, read_notes shows in another world"
    assert f"rollouts share state, which training refuses: {told}" in found(report, "tools")
    assert "ObjectTwin" in report["to_do"][0]
    (desk / "train.json").write_text(json.dumps({"allow_shared_state": ["functions"]}))
    report = doctor(*words, "--config", "train.json", code=0)
    assert any("begins with what other rollouts left" in one for one in found(report, "tools"))
    (desk / "train.json").write_text(json.dumps({"allow_shared_state": ["function"]}))
    report = doctor(*words, "--config", "train.json", code=1)
    assert "allow_shared_state names 'function', which is none of the sources: functions" in report["to_do"][0]


def test_what_cannot_be_loaded_is_a_finding_and_the_rest_is_looked_at_all_the_same(desk):
    words = ("none.json", "--tasks", "none.jsonl", "--verifier", "checks.py:verfy")
    report = doctor(*words, code=1)
    assert report["problems"] == 3
    assert "none.json" in report["to_do"][0]
    assert any("Did you mean 'verify'?" in one for one in found(report, "verifier"))
    assert found(report, "machine")


def test_live_destructive_tools_must_be_simulated_first(desk):
    (desk / "live.py").write_text(
        "from mcp.server.mcpserver import MCPServer\nfrom mcp.types import ToolAnnotations\n"
        "server = MCPServer('shop', log_level='WARNING')\n"
        "@server.tool(annotations=ToolAnnotations(destructive_hint=True))\n"
        "def drop(table: str) -> str:\n    '''Drop a table.'''\n    return 'gone'\n"
    )
    report = doctor("live.py:server", code=1)
    assert "give drop a simulated backend" in report["to_do"][0]
    assert "record them" in report["to_do"][0]


def test_only_tools_whose_calls_may_be_made_are_advised_to_make_tasks_with(desk):
    lines = ["from sandboxes.objects import ObjectTwin", "NOTES = ['bread']"]
    lines += ["def read_notes() -> str:", "    '''Read.'''", "    return '; '.join(NOTES)"]
    lines += ["def add_note(text: str) -> str:", "    '''Write.'''", "    NOTES.append(text)", "    return 'written'"]
    lines += ["class Notes:", "    def __init__(self): self.notes = ['bread']"]
    lines += ["    def count(self) -> int:", "        '''Count.'''", "        return len(self.notes)"]
    lines += ["live, reading, twin = [read_notes, add_note], [read_notes], ObjectTwin(Notes)"]
    (desk / "notes.py").write_text("\n".join(lines))
    (desk / "bare.jsonl").write_text('{"prompt": "Note milk."}\n')
    commands = "toolbake synthesize notes.py:{0} --to", "toolbake solve notes.py:{0}"
    for name, advised in (("live", [False, False]), ("reading", [False, True]), ("twin", [True, True])):
        done = toolbake("doctor", f"notes.py:{name}", "--tasks", "bare.jsonl", "--quiet").stdout
        assert [command.format(name) in done for command in commands] == advised, done
        safe = "because calls of add_note may change real things: a twin"
        assert (
            safe in done and "or a recording (docs/recorded-twins.md); give it in place of notes.py:live" in done
        ) is (name == "live")


BY_NAME = """
from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("notes")

@server.tool(annotations=ToolAnnotations(destructive_hint=False))
def add_note(text: str) -> str:
    return "written"

@server.tool()
def get_notes() -> str:
    open("called.txt", "w").close()
    return ""

server.run("stdio")
"""


def test_a_tool_that_counts_as_destructive_is_not_called_for_a_name_that_sounds_like_reading(desk):
    (desk / "by_name.py").write_text(BY_NAME)
    options = {"unmarked_are_destructive": True}
    server = {"command": sys.executable, "args": ["by_name.py"], "toolbake": options}
    (desk / "mcp.json").write_text(json.dumps({"mcpServers": {"notes": server}}))
    doctor("mcp.json", code=1)
    assert not (desk / "called.txt").exists()


def test_too_little_memory_is_a_problem_with_the_options_that_lower_it(monkeypatch, tmp_path):
    def memory(free: int, config: Path | None = None) -> list:
        monkeypatch.setattr("sdk.policies.embedded.scheduler.free_bytes", lambda: free)
        options = (TrainConfig(), "default options") if config is None else (TrainConfig.of(config), str(config))
        return [one for one in check_machine(None, *options) if one.found.startswith("memory")]

    (little,) = memory(2 * 10**9)
    assert little.level == "problem"
    assert "lora.r=16" in little.do
    (some,) = memory(int(3.5 * 10**9))
    assert some.level == "advice"
    assert "--set batching.offload_optimizer=true" in some.do
    spared = tmp_path / "train.json"
    spared.write_text('{"lora": {"r": 16}}')
    (less,) = memory(int(2.5 * 10**9), spared)
    assert less.level != "problem"
    assert "with default options" not in less.found
    assert "lora.r" not in less.do
    (enough,) = memory(30 * 10**9)
    assert (enough.level, enough.do) == ("good", "")


def test_a_version_outside_the_bounds_and_a_missing_extra_are_named_with_the_command(monkeypatch):
    monkeypatch.setattr(metadata, "requires", lambda _: ["mcp>=99,<100", 'trl<1 ; extra == "train"'])
    monkeypatch.setattr("mcp_bridge.extras.find_spec", lambda name: None if name == "faker" else object())
    advice = {one.do: one.level for one in check_packages("some/model") if one.do}
    assert advice["pip install 'mcp<100,>=99'"] == "problem"
    assert advice["pip install 'trl<1'"] == "problem"
    assert advice["pip install 'toolbake[twins]' for twins of APIs"] == "advice"


def test_a_checkout_that_is_not_installed_is_told_of(monkeypatch):
    def lacking(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", lacking)
    told = [one for one in check_packages("some/model") if "toolbake itself is not installed" in one.found]
    assert [(one.level, one.do) for one in told] == [("advice", "pip install -e . in its checkout")]


def test_a_file_of_settings_is_checked_with_a_line_for_each_thing_that_is_wrong(desk):
    (desk / "train.json").write_text(json.dumps({"engine": "vllm", "vllm": {"python": sys.executable}}))
    report = doctor("--config", "train.json", code=1)
    assert any(one.startswith("sampling: vLLM, 1 server") for one in found(report, "machine"))
    assert "has no vLLM; name the Python of an environment that has it" in report["to_do"][0]
    (desk / "train.json").write_text(json.dumps({"engin": "vllm"}))
    assert "did you mean 'engine'?" in doctor("--config", "train.json", code=1)["to_do"][0]


@pytest.mark.parametrize(("settings", "code"), [({"allow_shared_state": ["functions"]}, 0), ({"engin": "vllm"}, 1)])
def test_settings_from_a_pipe_are_read_once_and_hold_for_every_check(notes, settings, code):
    reading, writing = os.pipe()
    os.write(writing, json.dumps(settings).encode())
    os.close(writing)
    report = doctor(*notes, "--config", f"/dev/fd/{reading}", code=code)
    os.close(reading)
    assert any("rollouts share state" in one for one in found(report, "tools")) == (code == 1)
    assert any("did you mean 'engine'?" in one for one in report["to_do"]) == (code == 1)
