"""`--agent`: a function in a file, or a command."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from command_line import toolbake

AGENT = """
import json, os, urllib.request

def agent(task, endpoint):
    return ask(task.prompt, endpoint.base_url, endpoint.api_key, endpoint.model)

def ask(prompt, url, key, model):
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": prompt}]}).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/chat/completions", body, headers)) as answer:
        said = json.load(answer)["choices"][0]["message"]
    return f"{prompt} {said['content']}"  # no tools were sent, so that a call is text

if __name__ == "__main__":
    names = ("TOOLBAKE_PROMPT", "OPENAI_BASE_URL", "OPENAI_API_KEY", "OPENAI_MODEL")
    print(ask(*(os.environ[name] for name in names)))
"""


@pytest.fixture
def own(desk: Path, endpoint) -> list[str]:
    (desk / "own_agent.py").write_text(AGENT)
    return ["--endpoint", endpoint.url, "--model", "large-1"]


@pytest.mark.parametrize("agent", ["own_agent.py:agent", f"{sys.executable} own_agent.py"])
def test_an_agent_plays_a_rollout_and_an_evaluation(own, desk, agent):
    result = toolbake("rollout", "desk.py:tools", "Where?", *own, "--agent", agent, "--json", "--quiet")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["answer"].startswith('Where? <tool_call>{"name": "get_order"')
    words = ("evaluate", "desk.py:tools", "tasks.jsonl", "--verifier", "checks.py:verify", *own)
    result = toolbake(*words, "--agent", agent, "--json", "--quiet")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["run"]["agent"] in agent
    assert report["conditions"]["large-1"]["unscored"] == 0


def test_a_python_file_without_a_name_says_how_to_give_it(own):
    result = toolbake("rollout", "desk.py:tools", "Where?", *own, "--agent", "own_agent.py")
    assert result.exit_code == 1
    assert "own_agent.py:name" in result.stderr
    assert "--agent 'python own_agent.py'" in result.stderr


def test_a_crash_of_a_program_is_shown_with_its_last_words(own, desk):
    (desk / "breaks.py").write_text("raise SystemExit('no database')")
    agent = f"{sys.executable} breaks.py"
    result = toolbake("rollout", "desk.py:tools", "Where?", *own, "--agent", agent)
    assert result.exit_code == 1
    assert "AgentCrashed" in result.stderr
    assert "no database" in result.stderr


def test_training_takes_an_agent_and_names_one_that_is_not_there(own):
    words = ("train", "desk.py:tools", "tasks.jsonl", "--verifier", "checks.py:verify", "--agent", "own_agent.py:agnt")
    result = toolbake(*words)
    assert result.exit_code == 1
    assert "Did you mean 'agent'?" in result.stderr
