"""The quickstart: its tasks and options, and never at the cost of an older run."""

from __future__ import annotations

from collections import Counter

import anyio
from command_line import toolbake

import sandboxes.helpdesk
from mcp_bridge import connect
from sdk.cli.commands.quickstart import finished_run, fresh_folder
from sdk.cli.quickstart_options import (
    INTENTS,
    SELDOM_SHOWN,
    TIERS,
    quickstart_options,
    quickstart_tasks,
    quickstart_verifier,
)
from sdk.tasks import load_tasks
from sdk.trainer.task_splits import settle, split_for_training


def test_a_folder_with_another_quickstart_is_refused(tmp_path, monkeypatch):
    from sdk.traces.run_folder import RunFolder

    monkeypatch.chdir(tmp_path)
    with RunFolder.create_or_resume(tmp_path / "runs" / "quickstart", {"train": {"grpo": {"max_steps": 99}}}) as run:
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
    from sdk.traces.run_folder import RunFolder
    from sdk.trainer.compute_plan import settle_sampler
    from sdk.trainer.run_identity import train_identity

    sides = split_for_training(ORDERS, quickstart_options(steps=1))
    options, _ = settle_sampler(None, settle(quickstart_options(steps=1), sides)[0])
    train, _, heldout = sides

    async def known() -> dict:
        async with connect([get_order]) as tools:
            return train_identity(options, model=None, verifier=says_shipped, train=train, heldout=heldout, tools=tools)

    identity = anyio.run(known)
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
    other_gold = [{**ORDERS[0], "expected": {"answer": "lost"}}, *ORDERS[1:]]
    for changed in (
        {"tools": [get_order, cancel_order]},
        {"prompts": ORDERS[1:]},
        {"prompts": other_gold},
        {"verifier": says_anything},
    ):
        assert finished_run(tmp_path, options, **asked(**changed)) is None, changed


def test_a_shorter_try_bounds_both_stages_and_leaves_the_rest():
    whole, short = quickstart_options(), quickstart_options(steps=2, heldout=5, prompts=3)
    assert (short.warm_start.max_steps, short.grpo.max_steps, short.grpo.prompts_per_step) == (2, 2, 3)
    assert (whole.evaluation.validation, short.evaluation.validation) == (28, 0)
    assert short.evaluation.max_heldout == 5
    changed = {
        "warm_start": {"max_steps", "batch_size"},
        "grpo": {"max_steps", "prompts_per_step"},
        "batching": {"micro_batches"},
        "evaluation": {"max_heldout", "validation"},
    }
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
    train, validation, heldout = split_for_training(tasks, options)
    assert (len(train), len(validation), len(heldout)) == (140, options.evaluation.validation, 84)
    assert Counter(task.tags["intent"] for task in validation) == dict.fromkeys(INTENTS, 4)
    demonstrated = Counter(task.tags["intent"] for task in validation if task.demonstration)
    assert demonstrated == {intent: 2 if intent in SELDOM_SHOWN else 4 for intent in INTENTS}


def test_the_right_solution_of_every_task_fits_into_the_limits():
    from sdk.cli.commands.tools import open_renderer
    from sdk.records import Task

    limits, renderer = quickstart_options().limits, open_renderer(None)
    for task in map(Task.model_validate, sandboxes.helpdesk.tasks(tiers=TIERS)):
        if task.tags["intent"] not in INTENTS:
            continue
        lengths = [len(renderer.encode_reply(message, [])) for message in task.demonstration]
        assert len(lengths) <= limits.max_turns
        assert max(lengths) <= limits.max_turn_tokens
        assert sum(lengths) <= limits.max_tokens
