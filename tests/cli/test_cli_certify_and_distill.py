"""`toolbake certify` and `toolbake distill`: rewards that are earned for nothing, and data to train on."""

from __future__ import annotations

import json
import shutil
import signal

import pytest
from command_line import start_toolbake, toolbake

from sdk.tasks import load_tasks
from sdk.traces import RunFolder
from sdk.viewing.labels import Label, Labels

TASKS = [
    {"id": "one", "prompt": "Where is order 4417?", "expected": {"answer": "shipped"}},
    {"id": "two", "prompt": "And order 4418?", "expected": {"answer": "cancelled"}},
]


@pytest.fixture
def tasks(desk):
    (desk / "two.jsonl").write_text("".join(json.dumps(task) + "\n" for task in TASKS))
    (desk / "easy.py").write_text("def verify(rollout):\n    return 'order' in rollout.answer.lower()\n")
    return "two.jsonl"


def test_certify_exits_with_3_and_shows_what_was_rewarded_for_nothing(tasks):
    found = toolbake("certify", "desk.py:tools", tasks, "--verifier", "easy.py:verify", "-q")
    assert found.exit_code == 3
    assert "on 2 tasks: 2 found a hole: copies_prompt, every_value" in found.stdout
    assert "asked: Where is order 4417?\n    calls: none\n    answer: Where, is, order, 4417" in found.stdout
    assert "To close them: let the verifier look at the calls, the answer and" in found.stdout
    assert "where a probe does the task, allow it: --allow copies_prompt" in found.stdout
    assert found.stderr == ""
    told = json.loads(toolbake("certify", "desk.py:tools", tasks, "--verifier", "easy.py:verify", "--json").stdout)
    assert told["tasks"] == 2
    assert {one["task"] for one in told["findings"]} == {"one", "two"}
    assert told["not_called"] == ["get_order", "cancel_order"], "they are live, and not marked as read-only"


def test_a_verifier_that_scores_nothing_is_an_error_of_certify_and_no_hole(desk, tasks):
    (desk / "broken.py").write_text("def verify(rollout):\n    raise RuntimeError('no connection')\n")
    found = toolbake("certify", "desk.py:tools", tasks, "--verifier", "broken.py:verify", "-q")
    assert found.exit_code == 1
    assert "nothing could be scored" in found.stdout
    assert "no connection" in found.stdout
    assert "so nothing is known of the verifier" in found.stderr


def test_certify_exits_with_0_where_nothing_was_rewarded_or_it_is_allowed(tasks):
    words = ("certify", "desk.py:tools", tasks, "--verifier")
    found = toolbake(*words, "expected", "--most-tasks", "1")
    assert found.exit_code == 0, found.stderr
    assert "rollouts on 1 task: none found a hole" in found.stdout
    allowed = toolbake(*words, "easy.py:verify", "--allow", "copies_prompt", "--allow", "every_value", "-q")
    assert allowed.exit_code == 0
    assert "copies_prompt" in allowed.stdout
    wrong = toolbake(*words, "expected", "--allow", "echo")
    assert wrong.exit_code == 1
    assert "there is no probe 'echo' to allow; the probes are gold, empty, constant" in wrong.stderr


def test_certify_shows_what_the_probes_found_where_the_training_fails_and_exits_with_1(desk, tasks, tiny_model_folder):
    shutil.copytree(tiny_model_folder, desk / "broken")
    (desk / "broken" / "model.safetensors").write_bytes(b"no weights")
    words = ("certify", "desk.py:tools", tasks, "--verifier", "expected", "--train-minutes", "5", "--model", "broken")
    found = toolbake(*words, "-q")
    assert found.exit_code == 1
    assert "rollouts on 2 tasks: none found a hole" in found.stdout
    told = json.loads(toolbake(*words, "-q", "--json").stdout)
    assert (told["holds"], told["holes"]) == (False, [])
    assert f"the training failed: {told['trained']['failure']}" in found.stdout
    assert "the training against the verifier failed, so too little is known of what training finds" in found.stderr


def test_distill_plays_the_tasks_and_keeps_what_the_verifier_passes(desk, tasks, endpoint):
    policy = ("--endpoint", endpoint.url, "--model", "large-1")
    words = ("desk.py:tools", tasks, "--verifier", "expected", *policy, "--to", "sft.jsonl", "--licence", "mit")
    made = toolbake("distill", *words, "--samples", "2")
    assert made.exit_code == 0, made.stderr
    assert "1 examples of 4 rollouts in sft.jsonl; left out: 2 not verified" in made.stdout
    (row,) = [json.loads(line) for line in (desk / "sft.jsonl").read_text().splitlines()]
    assert (row["license"], row["origin"]["task"]) == ("mit", "one")
    assert row["messages"][-1]["content"] == "The order is shipped."
    again = toolbake("distill", *words)
    assert again.exit_code == 1
    assert "sft.jsonl exists already" in again.stderr


STOPS = """
import os
from pathlib import Path

def verify(rollout):
    if rollout.task.id == "two" and not Path("again").exists():
        os.kill(os.getpid(), int(os.environ["STOP_BY"]))
    return "shipped" in rollout.answer
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_distill_that_was_stopped_goes_on_with_what_was_played(desk, tasks, endpoint, monkeypatch, number):
    (desk / "checks.py").write_text(STOPS)
    monkeypatch.setenv("STOP_BY", str(int(number)))
    words = ("distill", "desk.py:tools", tasks, "--verifier", "checks.py:verify", "--endpoint", endpoint.url)
    words += ("--model", "large-1", "--to", "sft.jsonl", "--licence", "mit", "--samples", "2", "--concurrency", "1")
    with start_toolbake(*words, cwd=desk) as stopped:
        _, said = stopped.communicate()
    assert stopped.returncode == {signal.SIGINT: 130, signal.SIGKILL: -9}[number], said
    assert ("run the same command again to go on" in said) == (number == signal.SIGINT)
    assert not (desk / "sft.jsonl").exists()
    asked = len(endpoint.requests)
    (desk / "again").touch()
    made = toolbake(*words)
    assert made.exit_code == 0, made.stderr
    assert "2 examples of 4 rollouts in sft.jsonl" in made.stdout
    # Two requests a rollout: those of the first task are there, and the one that Ctrl-C came in may be.
    assert len(endpoint.requests) - asked in ([2, 4] if number == signal.SIGINT else [4])


def test_distill_takes_the_rollouts_of_a_finished_run(desk, tasks, endpoint):
    policy = ("--endpoint", endpoint.url, "--model", "large-1")
    toolbake("evaluate", "desk.py:tools", tasks, "--verifier", "expected", *policy, "--output-dir", "run", "-q")
    words = ("distill", "desk.py:tools", "--to", "sft.jsonl", "--licence", "mit", "--run", "run", "--json")
    made = toolbake(*words)
    assert made.exit_code == 0, made.stderr
    told = json.loads(made.stdout)
    assert (told["file"], told["examples"], told["left_out"]["not_verified"]) == ("sft.jsonl", 1, 1)
    none = toolbake(*(word.replace("sft", "none") for word in words), "--threshold", "9")
    assert (none.exit_code, "Lower --threshold, or take" in none.stderr) == (1, True), none.stderr
    both = toolbake("distill", "desk.py:tools", tasks, *words[2:])
    assert "give TASKS or --run FOLDER, exactly one of them; this has both" in both.stderr


def test_what_was_distilled_or_labelled_good_is_trained_on_as_demonstrations(desk, tasks, endpoint, tiny_model_folder):
    policy = ("--endpoint", endpoint.url, "--model", "large-1")
    solved = [{**TASKS[0], "id": f"solved-{n}", "prompt": f"Where is order 4417, please, {n}?"} for n in range(3)]
    (desk / "solved.jsonl").write_text("".join(json.dumps(task) + "\n" for task in solved))
    words = (
        "evaluate",
        "desk.py:tools",
        "solved.jsonl",
        "--verifier",
        "expected",
        *policy,
        "--output-dir",
        "run",
        "-q",
    )
    assert toolbake(*words).exit_code == 0
    made = toolbake("distill", "desk.py:tools", "--to", "sft.jsonl", "--licence", "mit", "--run", "run", "--json")
    assert json.loads(made.stdout)["examples"] == 3, made.stderr
    read = sorted(load_tasks(desk / "sft.jsonl"), key=lambda task: task.id)
    assert [(task.id, task.expected) for task in read] == [(task["id"], {"answer": "shipped"}) for task in solved]
    assert read[0].demonstration[-1].content == "The order is shipped."
    trained = toolbake(
        *(
            "train",
            "desk.py:tools",
            "sft.jsonl",
            "--verifier",
            "expected",
            "--model",
            tiny_model_folder,
            "-q",
            "--json",
        ),
        *("--output-dir", "trained", "--set", "warm_start.max_steps=1", "--set", "grpo.max_steps=0"),
        *("--set", "evaluation.heldout=1", "--set", "evaluation.validation=0", "--set", "limits.max_turn_tokens=8"),
    )
    assert trained.exit_code == 0, trained.stderr
    assert '"stage":"warm_start"' in (desk / "trained" / "metrics.jsonl").read_text()

    run = RunFolder.open_to_read(desk / "run")
    for rollout, label in zip(run.read_rollouts("evaluation"), ("good", "bad", "good"), strict=True):
        Labels(run).write(Label(stage="evaluation", rollout=rollout.id, label=label))
    assert toolbake("view", "run", "--export-labels", "labelled.jsonl").exit_code == 0
    assert [bool(task.demonstration) for task in load_tasks(desk / "labelled.jsonl")] == [True, False, True]
    (desk / "no_task.jsonl").write_text(json.dumps({"messages": []}) + "\n")
    refused = toolbake("certify", "desk.py:tools", "no_task.jsonl", "--verifier", "expected")
    assert refused.exit_code == 1
    assert "no_task.jsonl, line 1: has messages and no 'task'" in refused.stderr
