"""The example library: demonstrations earn the reward, nothing else does, and closed papers leave the context."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sdk
from sdk.policies.scripted import ScriptedAgent, replay_demonstration

EXAMPLE = Path(__file__).parents[2] / "examples" / "papers"
sys.path.insert(0, str(EXAMPLE))

import compacting  # noqa: E402
from library import load_papers  # noqa: E402
from paper_outcome import answer_alone, verify  # noqa: E402
from paper_parts import table  # noqa: E402
from paper_tasks import make_tasks  # noqa: E402
from papers import BY_HEART, Papers  # noqa: E402

LIMITS = sdk.Limits.of(json.loads((EXAMPLE / "options.json").read_text())["limits"])


@pytest.fixture(scope="module")
def tasks() -> list[sdk.Task]:
    return [sdk.Task.model_validate(task) for task in make_tasks()]


def play(task: sdk.Task, script: Any, **options: Any) -> sdk.Rollout:
    return sdk.rollout(Papers(), task, model=script, verifier=verify, limits=LIMITS, **options)


def call(name: str, **arguments: str) -> sdk.Message:
    return sdk.Message(role="assistant", tool_calls=[sdk.ToolCall(id="", name=name, arguments=arguments)])


def test_held_out_tasks_have_papers_topics_and_words_that_no_training_task_has(tasks: list[sdk.Task]) -> None:
    train, heldout = ([t for t in tasks if t.tags["split"] == split] for split in ("train", "heldout"))
    assert len(train) >= 150
    assert len(heldout) >= 80
    assert not {t.family for t in train} & {t.family for t in heldout}
    assert not {t.id.rpartition("/")[0 if t.id[0] == "s" else 2] for t in train} & {
        t.id.rpartition("/")[0 if t.id[0] == "s" else 2] for t in heldout
    }
    assert {t.tags["kind"] for t in heldout} == {"question", "set"}


def test_demonstrations_earn_the_reward_and_find_what_they_open(tasks: list[sdk.Task]) -> None:
    shown = [task for task in tasks if task.demonstration]
    for task in shown[::8]:
        rollout = play(task, replay_demonstration(task))
        assert rollout.verdict is not None, rollout.failure
        assert rollout.verdict.score == 1, rollout.verdict
        found = rollout.calls[0].result.text
        assert all(paper in found for paper in task.expected["cited"])


def test_a_right_answer_without_its_source_earns_nothing_and_half_a_set_earns_its_f1(tasks: list[sdk.Task]) -> None:
    question = next(task for task in tasks if task.tags["kind"] == "question")
    right = call("finish", answer=question.expected["answer"])
    assert play(question, ScriptedAgent([right])).verdict.score == 0  # type: ignore[union-attr]
    papers = next(task for task in tasks if len(task.expected["cited"]) == 2)
    one = [call("cite", paper_id=papers.expected["cited"][0]), call("finish", answer="done")]
    assert play(papers, ScriptedAgent(one)).verdict.score == pytest.approx(2 / 3)  # type: ignore[union-attr]
    assert play(papers, ScriptedAgent([*one[:1], "done"])).verdict.score == 0  # type: ignore[union-attr]


def test_parts_of_the_reward_are_shown_with_what_changed(tasks: list[sdk.Task]) -> None:
    shown = [task for kind in ("question", "set") for task in [t for t in tasks if t.tags["kind"] == kind][:3]]
    wrong = [play(task, ScriptedAgent([call("finish", answer="perhaps")])) for task in shown]
    right = [play(task, replay_demonstration(task)) for task in shown]
    _, _, before, after, change = table({"before": wrong, "after": right}).splitlines()
    assert before.startswith("| before | 0.0 % (0.0 to ")
    assert before.endswith("| 'perhaps' 3 |")
    assert after.count("| 100.0 % (") == 4
    assert change.startswith("| beside before | +100.0 (")


def test_by_heart_there_is_the_answer_alone(tasks: list[sdk.Task]) -> None:
    alone = [sdk.Task.model_validate(task) for task in make_tasks(by_heart=True)]
    assert [task.id for task in alone] == [task.id for task in tasks if task.tags["kind"] == "question"]
    task = next(task for task in alone if task.demonstration)
    for script, score in ((replay_demonstration(task), 1), (ScriptedAgent(["perhaps"]), 0)):
        rollout = sdk.rollout(Papers(), task, model=script, verifier=answer_alone, limits=LIMITS)
        assert rollout.verdict is not None, rollout.failure
        assert rollout.verdict.score == score
    assert [tool.name for tool in Papers(scenario=BY_HEART).tools] == ["finish"]


def test_tasks_and_the_server_read_the_same_papers(tmp_path: Path) -> None:
    paper = {"QUESTION": "Does tea help?", "CONTEXTS": ["Yes."], "MESHES": [], "YEAR": "2009", "final_decision": "yes"}
    (tmp_path / "ori_pqal.json").write_text(json.dumps({"77": paper, "78": paper}))
    command = [sys.executable, str(EXAMPLE / "papers.py"), "tasks", "--to", str(tmp_path / "tasks.jsonl")]
    environment = {**os.environ, "PUBMEDQA": str(tmp_path)}
    said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert "2 papers" in said.stdout
    prompts = [json.loads(line)["prompt"] for line in (tmp_path / "tasks.jsonl").read_text().splitlines()]
    assert any("Does tea help?" in prompt for prompt in prompts)


def test_a_paper_that_was_not_cited_is_closed_and_the_history_goes_on_in_another_row(tasks: list[sdk.Task]) -> None:
    task = next(task for task in tasks if task.tags["kind"] == "question")
    others = [one.expected["cited"][0] for one in tasks if one.tags["kind"] == "question"][1:3]
    script = [call("open", paper_id=others[0]), call("open", paper_id=others[1])]
    script += [call("cite", paper_id=others[1]), call("finish", answer="yes")]
    said = ScriptedAgent(lambda messages, _: script[sum(one.role == "assistant" for one in messages)])
    rollout = play(task, said, agent=compacting.agent)
    assert rollout.failure is None
    assert rollout.answer == "yes"
    closed = [message for message in rollout.messages if message.content == compacting.CLOSED]
    assert closed
    assert len(rollout.rows) > 1


@pytest.mark.skipif("PUBMEDQA" not in os.environ, reason="set PUBMEDQA to a folder with ori_pqal.json")
def test_the_papers_of_pubmedqa_are_read_and_their_demonstrations_found() -> None:
    folder = os.environ["PUBMEDQA"]
    made = [sdk.Task.model_validate(task) for task in make_tasks(folder)]
    library = Papers(folder)
    shown = [task for task in made if task.demonstration]
    queries = [task.demonstration[0].tool_calls[0].arguments for task in shown]
    texts = [library.call_now("search", query).text for query in queries]
    found = [all(one in text for one in task.expected["cited"]) for task, text in zip(shown, texts, strict=True)]
    assert len(found) >= 190
    assert all(found)


def test_a_folder_without_the_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"ori_pqal\.json; give the folder"):
        load_papers(str(tmp_path))


def test_with_the_example_s_options_no_degenerate_policy_earns_the_reward(tasks: list[sdk.Task]) -> None:
    some = [task for kind in ("question", "set") for task in [t for t in tasks if t.tags["kind"] == kind][:3]]
    sdk.certify(Papers(), some, verify, limits=LIMITS, most_tasks=len(some)).require()
