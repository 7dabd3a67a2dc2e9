"""The example inbox: what is planted can be found, demonstrations earn the reward, and nothing else does."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sdk
from mcp_bridge import ToolResult
from sdk.policies.scripted import ScriptedAgent, replay_demonstration
from sdk.records import CallRecord

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples" / "inbox"))

import inbox_outcome as outcome  # noqa: E402
from inbox import Inbox  # noqa: E402
from questions import make_tasks  # noqa: E402
from workbench_inbox import WorkbenchInbox  # noqa: E402
from workbench_inbox import make_tasks as make_workbench_tasks  # noqa: E402

FINAL = {"final_tools": {"return_final_answer": "answer"}}


@pytest.fixture(scope="module")
def tasks() -> list[sdk.Task]:
    return [sdk.Task.model_validate(task) for task in make_tasks()]


def test_held_out_tasks_have_inboxes_words_and_two_kinds_that_no_training_task_has(tasks: list[sdk.Task]) -> None:
    train, heldout = ([t for t in tasks if t.tags["split"] == split] for split in ("train", "heldout"))
    assert (len(train), len(heldout)) == (288, 120)
    assert not {t.setup["seed"] for t in train} & {t.setup["seed"] for t in heldout}
    assert not {t.family for t in train} & {t.family for t in heldout}
    assert {t.tags["kind"] for t in heldout} - {t.tags["kind"] for t in train} == {"badge", "ticket"}
    for split in (train, heldout):
        assert sum(t.expected["answer"] is None for t in split) == len(split) / 6
    assert [t.model_dump() for t in tasks] == [sdk.Task.model_validate(t).model_dump() for t in make_tasks()]


def test_a_third_of_the_training_tasks_has_a_demonstration_and_all_earn_the_reward(tasks: list[sdk.Task]) -> None:
    shown = [task for task in tasks if task.demonstration]
    assert len(shown) >= 96
    assert len({task.family for task in shown}) == 10
    assert len({task.family for task in tasks if task.tags["split"] == "train"}) == 30
    for task in shown[::4]:
        rollout = sdk.rollout(Inbox(), task, model=replay_demonstration(task), verifier=outcome.verify, limits=FINAL)
        assert rollout.verdict is not None, rollout.failure
        assert rollout.verdict.score > 1, rollout.verdict


def inbox_calls(*calls: tuple[str, dict[str, Any]]) -> list[Any]:
    made = [
        sdk.records.ToolCall(id=f"c{n}", name=name, arguments=arguments) for n, (name, arguments) in enumerate(calls)
    ]
    return [sdk.records.Message(role="assistant", tool_calls=[call]) for call in made]


SEARCH = ("search_inbox", {"query": "Hugo Keller flight"})


def finish(answer: str, *sources: str) -> tuple[str, dict[str, Any]]:
    return ("return_final_answer", {"answer": answer, "sources": list(sources)})


@pytest.fixture(scope="module")
def told(tasks: list[sdk.Task]) -> tuple[sdk.Task, str, str]:
    """A task with an answer, the mail that has it, and one that has not."""
    task = next(t for t in tasks if t.demonstration and t.expected["answer"] is not None and len(t.demonstration) == 3)
    read = task.demonstration[1].tool_calls[0].arguments["message_id"]
    body = json.loads(Inbox(task.setup["seed"]).call_now("read_email", {"message_id": "m0001"}).text)["body"]
    assert task.expected["answer"] not in body
    return task, read, "m0001"


def score(task: sdk.Task, *calls: tuple[str, dict[str, Any]], verifier: Any = outcome.verify) -> float:
    return score_in(Inbox(), task, *calls, verifier=verifier)


def score_in(inbox: Inbox, task: sdk.Task, *calls: tuple[str, dict[str, Any]], verifier: Any = outcome.verify) -> float:
    rollout = sdk.rollout(
        inbox, task, model=ScriptedAgent([*inbox_calls(*calls), "Done."]), verifier=verifier, limits=FINAL
    )
    assert rollout.verdict is not None, rollout.failure
    return rollout.verdict.score


def test_an_answer_counts_with_a_source_that_was_read_and_contains_it(told: tuple[sdk.Task, str, str]) -> None:
    task, mail, other = told
    right = task.expected["answer"]
    read, read_other = ("read_email", {"message_id": mail}), ("read_email", {"message_id": other})
    assert score(task, read, finish(right, mail)) > 1, "and a little more for few turns"
    assert score(task, read, read_other, finish(right, mail)) < score(task, read, finish(right, mail))
    assert score(task, finish(right, mail)) == -1, "not read"
    assert score(task, read, finish(right)) == -1, "no source"
    assert score(task, read_other, finish(right, other)) == -1, "the source does not contain it"
    assert score(task, read, read_other, finish(right, mail, other)) == -1, "one of two does not contain it"
    assert score(task, read, finish("X-1", mail)) == -1
    assert score(task, finish("I don't know")) == 0
    assert score(task, finish(f"I don't know, maybe {right}", mail)) == -1
    assert score(task) == -1, "no final answer"


def test_where_the_inbox_tells_nothing_only_not_knowing_is_right(tasks: list[sdk.Task]) -> None:
    task = next(t for t in tasks if t.expected["answer"] is None)
    assert score(task, SEARCH, finish("I don't know")) > 1
    assert score(task, SEARCH, finish("I don't know.")) > 1
    assert score(task, SEARCH, finish("I don\u2019t know")) > 1
    assert score(task, SEARCH, finish("nothing", "m0001")) == -1


def test_naming_what_was_corrected_beside_its_correction_is_wrong(tasks: list[sdk.Task]) -> None:
    room = next(t for t in tasks if str(t.expected["answer"])[1:2] == "-")
    right = room.expected["answer"]
    told = CallRecord(
        call=sdk.ToolCall(id="1", name="read_email", arguments={"message_id": "m1"}),
        result=ToolResult(text=json.dumps({"body": f"> The room is Z-999.\n\nIt is {right} now."})),
        turn=0,
    )
    for said, score in {f"{right}, Z-999": 0, f"Z-999 {right}": 0, f"room {right}": 1, right: 1}.items():
        one = sdk.Rollout(id="r", task=room, answer=said, calls=[told])
        assert outcome._says.verify(one).score == score


def test_each_term_of_the_reward_can_be_left_out(told: tuple[sdk.Task, str, str]) -> None:
    task, mail, _ = told
    right = task.expected["answer"]
    assert score(task, finish("I don't know"), verifier=outcome.without_abstaining) == -1
    assert score(task, finish(right), verifier=outcome.without_sources) > 1
    assert score(task, ("read_email", {"message_id": mail}), finish(right, mail), verifier=outcome.without_thrift) == 1


def test_a_search_takes_words_and_no_query_language() -> None:
    inbox = Inbox(3)
    for query in ('lunch" OR "parking', "lunch NOT friday", "subject: lunch*", "(", "'; DROP TABLE mails"):
        result = inbox.call_now("search_inbox", {"query": query})
        assert isinstance(json.loads(result.text), list) if not result.is_error else "no word" in result.text
    hits = json.loads(inbox.call_now("search_inbox", {"query": "lunch"}).text)
    assert len(hits) == 5
    assert [hit["date"] for hit in hits] == sorted((hit["date"] for hit in hits), reverse=True)
    assert inbox.call_now("read_email", {"message_id": "m9999"}).is_error


def test_the_server_gives_each_rollout_the_inbox_of_its_task(told: tuple[sdk.Task, str, str]) -> None:
    task, mail, _ = told
    script = inbox_calls(("read_email", {"message_id": mail}), finish(task.expected["answer"], mail))
    tools = {"command": sys.executable, "args": [str(ROOT / "examples" / "inbox" / "inbox.py"), "serve"]}
    rollout = sdk.rollout(
        {"mcpServers": {"inbox": tools}}, task, model=ScriptedAgent(script), verifier=outcome.verify, limits=FINAL
    )
    assert rollout.verdict is not None, rollout.failure
    assert rollout.verdict.score > 1, rollout.verdict


def test_with_the_example_s_options_no_policy_that_does_not_search_earns_the_reward(tasks: list[sdk.Task]) -> None:
    options = sdk.TrainConfig.of(ROOT / "examples" / "inbox" / "options.json")
    some = [task for told in ("yes", "no") for task in [t for t in tasks if t.tags["in_inbox"] == told][:3]]
    bounds: dict[str, Any] = {"allow": options.probes.allow, "limits": options.limits, "most_tasks": len(some)}
    sdk.certify(Inbox(), some, outcome.verify, **bounds).require()
    unasked = sdk.certify(Inbox(), some, outcome.verify, **{**bounds, "allow": ()})
    assert unasked.holes == ["unknowing"], "where no e-mail tells it, not knowing is right"


SNAG = "Dear Sam,\\n\\nRegarding task '{}', I am nearly there but have hit a snag with {}. Any idea?\\n\\nBest"
BETTER = "Dear Sam,\\n\\nI've been assigned '{}'. I am sure it will improve our {}.\\n\\nBest"
IN_FORM = [
    ("ada.brown", "Move the archive", "2023-10-02 10:00:00", SNAG.format("Move the archive", "old tapes")),
    ("ada.brown", "Move the archive", "2023-10-05 10:00:00", SNAG.format("Move the archive", "the lift")),
    ("li.wei", "Paint the hall", "2023-10-03 09:00:00", BETTER.format("Paint the hall", "first impression")),
    ("li.wei", "Move the archive", "2023-10-04 09:00:00", "Dear Sam,\\n\\nDone.\\n\\nBest"),
]


@pytest.fixture(params=["in its form", "itself"])
def workbench(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder in the form of WorkBench's data, and that of the environment variable WORKBENCH where it is set."""
    if request.param == "itself":
        if "WORKBENCH" not in os.environ:
            pytest.skip("it needs WorkBench's data: set WORKBENCH to its folder")
        return Path(os.environ["WORKBENCH"])
    with (tmp_path / "emails.csv").open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["email_id", "inbox/outbox", "sender/recipient", "subject", "sent_datetime", "body"])
        for place, (who, title, sent, body) in enumerate(IN_FORM):
            rows.writerow([f"{place:08}", "inbox", f"{who}@atlas.com", f"Task Update on {title}", sent, body])
    return tmp_path


def test_the_questions_about_workbench_s_mails_are_answered_by_their_newest_mail(workbench: Path) -> None:
    inbox, tasks = WorkbenchInbox(workbench), [sdk.Task.model_validate(t) for t in make_workbench_tasks(workbench)]
    assert {task.tags["in_inbox"] for task in tasks} == {"yes", "no"}
    assert len({task.id for task in tasks}) == len(tasks)
    for task in tasks:
        _, kind, who, title = task.id.split("/", 3)
        found = json.loads(inbox.call_now("search_inbox", {"query": f"{who} {title}"}).text)
        word = {"snag": "snag", "improvement": "improve"}[kind]
        bodies = [
            (m["message_id"], json.loads(inbox.call_now("read_email", {"message_id": m["message_id"]}).text)["body"])
            for m in found
        ]
        said = [message for message, body in bodies if word in body]
        if task.expected["answer"] is None:
            assert not said, task.id
            assert score_in(inbox, task, finish("I don't know")) > 1
            continue
        newest = ("read_email", {"message_id": said[0]})
        assert score_in(inbox, task, newest, finish(task.expected["answer"], said[0])) > 1, task.id
        assert score_in(inbox, task, newest, finish("the weather", said[0])) == -1, task.id


def test_what_a_later_mail_says_replaces_what_an_earlier_one_said(workbench: Path) -> None:
    told = {task["id"]: task["expected"]["answer"] for task in make_workbench_tasks(workbench)}
    if (workbench / "emails.csv").exists() and (workbench / "emails.csv").stat().st_size < 10_000:
        assert told == {
            "workbench/snag/Ada Brown/Move the archive": "the lift",
            "workbench/improvement/Li Wei/Paint the hall": "first impression",
            "workbench/snag/Li Wei/Move the archive": None,
        }
    else:
        assert len(told) == 60
        assert sum(answer is None for answer in told.values()) == 10


def test_a_folder_without_workbench_s_mails_is_refused_with_its_path(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "inbox" / "inbox.py"), "serve", "--workbench", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert f"there is neither {tmp_path / 'emails.csv'} nor " in done.stderr
