"""`toolbake evaluate` of several policies, and `toolbake report` on what it leaves."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from command_line import toolbake

AGENTS = """
from sdk.policies.scripted import ScriptedAgent
from sdk.records import ToolCall

reader = ScriptedAgent([ToolCall(id="", name="get_order", arguments={"order_id": "4417"}), "It is shipped."], "reader")
guesser = ScriptedAgent(["It is lost."], "guesser")
"""
WORDS = ("evaluate", "desk.py:tools", "tasks.jsonl", "--verifier", "checks.py:verify")


@pytest.fixture
def agents(desk: Path) -> Path:
    """The current folder, with two scripted agents in `agents.py`."""
    (desk / "agents.py").write_text(AGENTS)
    return desk


def test_a_scripted_policy_and_a_model_are_compared_kept_and_reported_again(agents, tiny_model_folder):
    words = (
        *(
            *WORDS,
            "--output-dir",
            "kept",
            "--policy",
            "reader=agents.py:reader",
            "--policy",
            f"tiny={tiny_model_folder}",
        ),
        *("--limit", "max_turn_tokens=8", "--limit", "max_turns=2", "--price", "reader=1,2", "--baseline", "tiny"),
    )
    result = toolbake(*words)
    assert result.exit_code == 0, result.stderr
    assert "tiny → reader: +100.0 points" in result.stdout
    report = json.loads((agents / "kept" / "report.json").read_text())
    assert list(report["conditions"]) == ["reader", "tiny"]
    assert report["conditions"]["reader"]["success"]["interval"]["estimate"] == 1.0
    assert report["conditions"]["tiny"]["success"]["interval"]["estimate"] == 0.0
    assert report["conditions"]["tiny"]["prompt_tokens"]["mean"] > 50
    assert report["conditions"]["reader"]["cost"]["price"] == {"input": 1.0, "output": 2.0}
    assert sum(group["rollouts"] for group in report["errors"]["tiny"]["groups"]) == 6
    assert (agents / "kept" / "success.png").read_bytes().startswith(b"\x89PNG")

    rollouts = {file.name: file.read_bytes() for file in (agents / "kept" / "rollouts").iterdir()}
    assert set(rollouts) == {"evaluation_01_reader.jsonl", "evaluation_02_tiny.jsonl"}
    assert toolbake(*words).exit_code == 0
    assert rollouts == {file.name: file.read_bytes() for file in (agents / "kept" / "rollouts").iterdir()}

    again = toolbake("report", "kept", "--to", "slides", "--price", "tiny=0.1,0.1", "--baseline", "reader")
    assert again.exit_code == 0, again.stderr
    assert "reader → tiny: -100.0 points" in again.stdout
    assert {"report.md", "report.json", "success.png", "errors.png"} <= {f.name for f in (agents / "slides").iterdir()}
    refused = toolbake("report", "kept", "slides")
    assert refused.exit_code == 1
    assert "--to is missing: the report of 2 runs needs a folder" in refused.stderr
    before = (agents / "kept" / "report.json").read_bytes()
    refused = toolbake("report", "kept", "slides", "--to", "kept")
    assert "--to is kept, a run, whose own report would be replaced; give another folder" in refused.stderr
    assert (agents / "kept" / "report.json").read_bytes() == before
    errors = toolbake("report", "kept", "--errors")
    assert "## What went wrong first" in errors.stdout
    assert "failed of all" in errors.stdout


def test_what_a_server_asks_is_answered_by_the_handlers_that_are_named(desk):
    (desk / "painting.py").write_text(
        """
from mcp_bridge import Handlers
from sdk.policies.scripted import ScriptedAgent
from sdk.records import ToolCall

handlers = Handlers(elicitation=lambda question: {"colour": "blue"})
painter = ScriptedAgent([ToolCall(id="", name="paint", arguments={"thing": "door"}), "Done."], "painter")
verify = lambda rollout: rollout.calls[0].result.text == "The door is blue."
"""
    )
    tasks = desk / "tasks.jsonl"
    tasks.write_text(tasks.read_text().partition("\n")[0])  # each rollout starts a server
    server = Path(__file__).parents[1] / "bridge" / "servers" / "talkative.py"
    words = ("evaluate", "--command", f"{sys.executable} {server}", "tasks.jsonl", "--verifier", "painting.py:verify")
    policies = ("--policy", "painter=painting.py:painter")
    answered = toolbake(*words, *policies, "--handlers", "painting.py:handlers")
    assert answered.exit_code == 0, answered.stderr
    assert "100.0 %" in answered.stdout
    command = ("tools", "--command", f"{sys.executable} {server}", "--json", "--handlers", "painting.py:handlers")
    assert "paint" in [tool["name"] for tool in json.loads(toolbake(*command).stdout)["tools"]]
    wrong = toolbake(*words, *policies, "--handlers", "painting.py:painter")
    assert wrong.exit_code != 0
    assert "--handlers painting.py:painter is a ScriptedAgent" in wrong.stderr


def test_an_endpoint_and_shorter_tool_prompts_are_measured_with_the_key_of_that_policy(agents, endpoint):
    (agents / "prompt.txt").write_text("You answer for the order desk.")
    result = toolbake(
        *(*WORDS, "--policy", f"large={endpoint.url}#large-1", "--policy-key", "large=DESK_KEY"),
        *("--policy", "guesser=agents.py:guesser", "--tool-prompt", "full", "--tool-prompt", "names"),
        *("--policy-prompt", "large=prompt.txt"),
        DESK_KEY="sk-desk",
    )
    assert result.exit_code == 0, result.stderr
    assert "large, names only → guesser" not in result.stdout
    assert "large, full schemas → large, names only: +0.0 points" in result.stdout
    assert "large, full schemas → guesser, full schemas: -100.0 points" in result.stdout
    assert set(endpoint.keys) == {"Bearer sk-desk"}
    first = {json.dumps(request["messages"][0]) for request in endpoint.requests}
    assert first == {'{"role": "system", "content": "You answer for the order desk."}'}
    shown = [request["tools"][0]["function"] for request in endpoint.requests]
    assert {tool["description"] for tool in shown} == {"Read an order.", ""}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--policy", "reader"], "--policy is 'reader'; give a name and a value, such as tuned=runs/first/model"),
        (["--policy", "a=embedded", "--policy", "a=embedded"], "--policy names 'a' twice"),
        (["--policy", "a=embedded", "--model", "b"], "--policy and --model or --endpoint are both given"),
        (["--policy", "a=https://host/v1"], "the endpoint https://host/v1 has no model"),
        (["--policy", "a=embedded", "--policy-key", "a=KEY"], "'a', which is not an endpoint; the endpoints are none"),
        (["--policy-key", "a=KEY"], "--policy-key does nothing without --policy"),
        (["--policy", "a=https://host/v1#m", "--policy-key", "a=NO_SUCH"], "that environment variable is not set"),
        (["--policy", "a=https://host/v1#m", "--policy-key", "a=NO_SUCH"], "--policy-key is 'NO_SUCH'"),
        (["--policy-prompt", "a=prompt.txt"], "--policy-prompt does nothing without --policy"),
        (
            ["--policy", "a=embedded", "--policy-prompt", "a=p.txt"],
            "'a', which is not an endpoint; the endpoints are none",
        ),
        (["--policy", "a=https://host/v1#m", "--policy-prompt", "a=no.txt"], "--policy-prompt: no.txt cannot be read"),
        (["--price", "a=cheap"], "--price a=cheap: give two numbers"),
        (["--tool-prompt", "short"], "give one or more of full, names, none"),
        (["--samples", "2"], "at temperature 0 the model 'embedded' answers the same every time"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_in_policies_are_named_with_the_fix(agents, words, said):
    result = toolbake(*WORDS, *words)
    assert result.exit_code == 1
    assert said in " ".join(result.stderr.split())


@pytest.mark.parametrize("threshold", ["nan", "inf"])
def test_a_threshold_that_is_no_number_is_refused_and_the_report_stays(agents, threshold):
    kept = (*WORDS, "--policy", "reader=agents.py:reader", "--output-dir", "kept")
    assert toolbake(*kept).exit_code == 0
    before = (agents / "kept" / "report.json").read_bytes()
    for words in (kept, ("report", "kept")):
        result = toolbake(*words, "--threshold", threshold)
        assert result.exit_code == 2
        assert f"{threshold} is not a number to compare with" in result.stderr
    assert (agents / "kept" / "report.json").read_bytes() == before

    import sdk
    from sdk.evaluation.report import report_of

    with pytest.raises(sdk.ConfigError, match=f"success_threshold is {threshold}; give a finite number"):
        report_of(agents / "kept", success_threshold=float(threshold))
    with pytest.raises(sdk.ConfigError, match=f"success_threshold is {threshold}; give a finite number"):
        sdk.evaluate(len, ["Hi there"], lambda rollout: 1.0, success_threshold=float(threshold))


def test_a_folder_without_a_finished_run_has_no_report(agents):
    result = toolbake("report", "nowhere")
    assert result.exit_code == 1
    assert "holds no run" in result.stderr
