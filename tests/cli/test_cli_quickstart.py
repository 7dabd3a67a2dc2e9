"""The quickstart: the whole job by one command, told again when it is done, and never at the cost of an older run."""

from __future__ import annotations

import json
from collections import Counter
from math import prod

import pytest
from command_line import start_toolbake, toolbake
from safetensors import safe_open

import sandboxes.helpdesk
from mcp_bridge.sources.functions import FunctionSource
from sdk.cli.quickstart_options import (
    INTENTS,
    SELDOM_SHOWN,
    TIERS,
    quickstart_options,
    quickstart_tasks,
    quickstart_verifier,
)
from sdk.cli.resuming import finished_run, fresh_folder
from sdk.evaluation.report import Report
from sdk.tasks import load_tasks
from sdk.trainer.sides import choose_sides

SHORT = ("quickstart", "--steps", "1", "--heldout", "2", "--prompts", "1")


def run(*words, cwd):
    process = start_toolbake(*words, cwd=cwd)
    try:
        out, err = process.communicate(timeout=540)
    finally:
        process.kill()
    return process.returncode, out, err


def parameters_of(folder):
    """How many numbers the model in that folder has, by the headers of its files; serving it has loaded them."""
    with safe_open(folder / "model.safetensors", framework="np") as file:
        return sum(prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118


@pytest.mark.timeout(600)
def test_the_quickstart_trains_reports_serves_and_asks_and_a_second_run_only_reports(tmp_path, monkeypatch):
    code, out, err = run(*SHORT, cwd=tmp_path)
    assert code == 0, err
    folder = tmp_path / "runs" / "quickstart"

    report = Report.read(folder / "report.json")
    assert list(report.conditions) == ["untrained", "after warm start", "after GRPO"]
    assert {condition.rollouts for condition in report.conditions.values()} == {2}
    assert str(report) in out
    assert "Serve it: toolbake serve runs/quickstart/model\n" in out
    assert (folder / "learning_curve.png").is_file()
    assert parameters_of(folder / "model") > 100_000_000

    asked = out.partition("One held-out question to http://127.0.0.1:")[2]
    held = [task for task in quickstart_tasks() if task["tags"]["split"] == "heldout" and task["tags"]["tier"] == "2"]
    question = held[0]["prompt"]
    assert f"user: {question}" in " ".join(asked.split())  # the transcript wraps long lines
    assert "\nended: " in asked
    assert "\nverdict: " in asked

    assert "gold check: " in err
    assert "GRPO: 1/1 " in err
    for noise in ("Writing model shards", "Warning", "Traceback", "it/s"):
        assert noise not in err

    before = sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*"))
    monkeypatch.chdir(tmp_path)
    again = toolbake(*SHORT)
    assert again.exit_code == 0, again.stderr
    assert "runs/quickstart holds a finished quickstart, reported again" in again.stderr
    assert again.stdout.partition("One held-out")[0] == out.partition("One held-out")[0]
    assert sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*")) == before


def test_a_folder_with_another_quickstart_is_refused(tmp_path, monkeypatch):
    from sdk.traces.run_folder import RunFolder

    monkeypatch.chdir(tmp_path)
    with RunFolder.create_or_resume(tmp_path / "runs" / "quickstart", {"train": {"grpo_steps": 99}}) as run:
        run.append_metrics({"step": 0})
    result = toolbake("quickstart", "--steps", "1")
    assert result.exit_code == 1
    assert "holds another run: " in result.stderr
    assert finished_run(tmp_path / "runs" / "quickstart", quickstart_options(), **asked()) is None


def test_a_fresh_start_takes_the_first_free_folder(tmp_path):
    wanted = tmp_path / "quickstart"
    assert fresh_folder(wanted) == wanted
    for name in ("quickstart", "quickstart-2"):
        (tmp_path / name).mkdir()
    assert fresh_folder(wanted) == tmp_path / "quickstart-3"


def test_a_call_that_finds_what_was_asked_for_is_right_however_it_is_spelled():
    import anyio

    from sdk.records import CallRecord, Message, Rollout, Task, ToolCall
    from sdk.verifiers import run_verifier

    task = next(task for task in quickstart_tasks() if task["tags"]["intent"] == "customer_city")
    (name,) = (call["arguments"]["query"]["$text"] for call in task["expected"]["calls"])

    async def score(query):
        async with sandboxes.helpdesk.Helpdesk().open_world("w", task["setup"]) as world:
            before = await world.state()
            call = ToolCall(id="1", name="find_customer", arguments={"query": query})
            result = await world.call(call.name, call.arguments)
            answer = f"{name} lives in {task['expected']['answer'][0]}."
            rollout = Rollout(
                id="r",
                task=Task.model_validate(task),
                messages=[Message(role="assistant", content=answer)],
                answer=answer,
                turns=1,
                calls=[CallRecord(turn=1, call=call, result=result)],
                initial_state=before,
                final_state=await world.state(),
            )
        return (await run_verifier(quickstart_verifier(), rollout)).score

    spelled = [name, f" {name}", name.lower(), name.upper(), f"not {name}", name.split()[0] + " Nobody"]
    assert [anyio.run(score, query) for query in spelled] == [1, 1, 1, 1, 0, 0]


def asked(**changed):
    """What `finished_run` compares besides the options; a desk of functions starts no process."""
    return {"tools": [get_order], "prompts": ORDERS, "verifier": says_shipped, **changed}


def get_order(order_id: str) -> str:
    """Read an order."""
    return "shipped"


def cancel_order(order_id: str) -> str:
    """Cancel an order."""
    return "cancelled"


def says_shipped(rollout):
    return "shipped" in rollout.answer


def says_anything(rollout):
    return bool(rollout.answer)


ORDERS = [{"id": f"t{n}", "prompt": f"Where is order {n}?", "expected": {"answer": "shipped"}} for n in range(20)]


def test_a_run_counts_as_finished_only_with_its_report_its_model_and_the_same_everything(tmp_path):
    from sdk.evaluation.report import build_report
    from sdk.records import Rollout, Task, Verdict
    from sdk.traces.identity import fingerprint
    from sdk.traces.run_folder import RunFolder
    from sdk.trainer.run_identity import train_identity
    from sdk.trainer.sides import choose_sides

    options = quickstart_options(steps=1)
    train, _, heldout = choose_sides(ORDERS, options)
    tools = FunctionSource([get_order]).tools
    identity = train_identity(
        options, model=None, verifier=says_shipped, train=train, heldout=heldout, source=[get_order], tools=tools
    )
    with RunFolder.create_or_resume(tmp_path, identity) as run:
        assert finished_run(tmp_path, options, **asked()) is None
        rollout = Rollout(id="a", task=Task(prompt="Hi"), verdict=Verdict(score=1.0))
        build_report({"untrained": [rollout]}).write(run.path)
        run.finish_stage("report", {})
        assert finished_run(tmp_path, options, **asked()) is None
        run.model_dir.mkdir()
        (run.model_dir / "config.json").write_text("{}")
    found = finished_run(tmp_path, options, **asked())
    assert found is not None
    assert (found.model_dir, found.run_dir) == (tmp_path / "model", tmp_path)
    assert "100.0 %" in str(found.report)
    assert finished_run(tmp_path, quickstart_options(steps=2), **asked()) is None
    info = json.loads((tmp_path / "run.json").read_text())
    of_an_earlier_version = {name: value for name, value in info["config"]["train"].items() if name != "tool_prompt"}
    config = {**info["config"], "train": of_an_earlier_version}
    (tmp_path / "run.json").write_text(json.dumps({**info, "config": config, "fingerprint": fingerprint(config)}))
    assert finished_run(tmp_path, options, **asked()) is not None
    other_gold = [{**ORDERS[0], "expected": {"answer": "lost"}}, *ORDERS[1:]]
    for changed in (
        {"tools": [get_order, cancel_order]},
        {"prompts": ORDERS[1:]},
        {"prompts": other_gold},
        {"verifier": says_anything},
        {"model": "some/other-model"},
    ):
        assert finished_run(tmp_path, options, **asked(**changed)) is None, changed


def test_a_shorter_try_bounds_both_stages_and_leaves_the_rest():
    whole, short = quickstart_options(), quickstart_options(steps=2, heldout=5, prompts=3)
    assert (short.warm_start_steps, short.grpo_steps, short.max_heldout, short.prompts_per_step) == (2, 2, 5, 3)
    changed = {"warm_start_steps", "warm_start_batch", "grpo_steps", "max_heldout", "prompts_per_step", "micro_batches"}
    changed |= {"validation"}
    assert (whole.validation, short.validation) == (28, 0)
    assert short.model_dump(exclude=changed) == whole.model_dump(exclude=changed)


def test_another_seed_changes_nothing_else():
    assert quickstart_options(seed=7) == quickstart_options().model_copy(update={"seed": 7})


def test_some_kinds_are_seldom_shown_and_none_is_never_shown():
    shown = Counter(task["tags"]["intent"] for task in quickstart_tasks() if "demonstration" in task)
    asked = Counter(task["tags"]["intent"] for task in quickstart_tasks())
    assert {intent for intent in INTENTS if shown[intent] < asked[intent]} == set(SELDOM_SHOWN)
    assert all(0 < shown[intent] <= asked[intent] / 2 for intent in SELDOM_SHOWN)


def test_the_tasks_kept_aside_are_of_every_kind_and_none_of_them_is_trained_on():
    options = quickstart_options()
    tasks = load_tasks(quickstart_tasks(kept_aside=True))
    train, validation, heldout = choose_sides(tasks, options)
    assert (len(train), len(validation), len(heldout)) == (140, options.validation, 84)
    assert Counter(task.tags["intent"] for task in validation) == dict.fromkeys(INTENTS, 4)
    demonstrated = Counter(task.tags["intent"] for task in validation if task.demonstration)
    assert demonstrated == {intent: 2 if intent in SELDOM_SHOWN else 4 for intent in INTENTS}


def test_the_right_solution_of_every_task_fits_into_the_limits():
    from sdk.cli.token_costs import open_renderer
    from sdk.records import Task

    limits, renderer = quickstart_options().limits, open_renderer(None)
    for task in map(Task.model_validate, sandboxes.helpdesk.tasks(tiers=TIERS)):
        if task.tags["intent"] not in INTENTS:
            continue
        lengths = [len(renderer.encode_reply(message, [])) for message in task.demonstration]
        assert len(lengths) <= limits.max_turns
        assert max(lengths) <= limits.max_turn_tokens
        assert sum(lengths) <= limits.max_tokens
