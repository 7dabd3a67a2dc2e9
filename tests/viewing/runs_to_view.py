"""Run folders to look at: real rollouts of the helpdesk, hostile ones, and as many as a long training leaves."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio

from mcp_bridge import connect
from mcp_bridge.records import ToolResult
from sandboxes.helpdesk import Helpdesk
from sdk.evaluation import build_report
from sdk.evaluation.faults import find_faults
from sdk.evaluation.report import note_conditions
from sdk.policies.scripted import ScriptedAgent, replay_demonstration
from sdk.progress import Silent
from sdk.records import CallRecord, Message, Rollout, Task, TokenRow, ToolCall, Verdict
from sdk.rollouts.episode import Job
from sdk.rollouts.limits import Limits
from sdk.rollouts.run_context import RunContext, play_scripts
from sdk.tasks import load_tasks
from sdk.traces.run_folder import RunFolder
from sdk.verifiers import all_of, answer_match, final_state, required_calls

HELPDESK = Path(__file__).parents[2] / "examples" / "helpdesk" / "tasks.jsonl"
INTENTS = ("cancel", "order_status", "refund_full")
GROUP = 4


def helpdesk_tasks() -> list[Task]:
    """One task of each of three kinds: two that change the world, one that only reads."""
    tasks = load_tasks(HELPDESK)
    return [next(task for task in tasks if task.tags["intent"] == intent) for intent in INTENTS]


def run_apart(work: Callable[[], Awaitable[Any]]) -> Any:
    """What `work` returns, awaited in another thread: where a browser is driven, the main one has its loop."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(anyio.run, work).result()


async def helpdesk_rollouts(stage: str, *, step: int = -1, right: Iterable[int] = ()) -> list[Rollout]:
    """A group for each task: members whose number is in `right` play its demonstration, the others make a mistake."""
    members = range(GROUP) if step >= 0 else range(1)
    plays = []
    for task in helpdesk_tasks():
        for member in members:
            job = Job(
                id=f"{stage}/{step}/{task.id}/{member}",
                task=task,
                seed=member,
                group=f"{step}/{task.id}",
                step=step,
            )
            wrong = ScriptedAgent(
                [ToolCall(id="c1", name="get_order", arguments={"order_id": "nowhere"}), "I could not find it."]
            )
            plays.append((job, replay_demonstration(task) if member in set(right) else wrong))
    verifier = all_of(final_state(), required_calls(), answer_match())
    async with connect(Helpdesk()) as source:
        with Silent().track("plays", len(plays)) as progress:
            context = RunContext(tools=source, verifier=verifier, limits=Limits(), concurrency=4)
            return await play_scripts(plays, context, progress)


async def helpdesk_run(path: Path) -> Path:
    """Untrained all wrong, two steps of groups, trained all right."""
    with RunFolder.create_or_resume(path, {"model": None, "what": path.name}) as run:
        for stage, step, right in (
            ("untrained", -1, ()),
            ("grpo", 0, (1,)),
            ("grpo", 1, (0, 1, 3)),
            ("after_grpo", -1, (0,)),
        ):
            for rollout in await helpdesk_rollouts(stage, step=step, right=right):
                run.append_rollout(stage, rollout)
            if stage == "grpo":
                run.append_metrics({"stage": stage, "step": step, "reward": len(right) / GROUP, "loss": 0.1 * step})
            if stage != "grpo" or step == 1:
                run.finish_stage(stage, {})
    return path


MARKUP = '<script>window.ran=1</script><img src="http://192.0.2.1/x.png" onerror="window.ran=2"><svg onload="ran=3"/>'
HOSTILE = {
    "markup": MARKUP
    + '</script><style>*{display:none}</style><iframe srcdoc="<script>parent.ran=4</script>"></iframe>',
    "links": "[a](javascript:window.ran=5) http://192.0.2.1/track javascript:window.ran=6 data:text/html,<script>1",
    "template": "${window.ran=7} {{constructor.constructor('window.ran=8')()}} <%= 1 %> \\u003cscript>",
    "ansi": "\x1b[31mred\x1b[0m \x1b]8;;http://192.0.2.1\x07link\x1b]8;;\x07 \x9b2J",
    "bidi": "safe\u202etxt.exe\u202c \u2066isolate\u2069 \u200bzero\ufeffwidth\u2028line",
    "nulls": "a\x00b\x00\x00c\x7f",
    "surrogates": "half \ud83d of a pair, and \udc00 the other",
    "json": json.dumps(
        {"<b>key</b>": "<script>window.ran=9</script>", "__proto__": {"ran": 10}, "n": 12345678901234567890}
    ),
    "deep": "[" * 5000 + "]" * 5000,
}


async def reported_run(path: Path) -> Path:
    """The same with a training's probes, which come first, and with its report."""
    with RunFolder.create_or_resume(path, {"model": None, "what": path.name}) as run:
        for rollout in await helpdesk_rollouts("probes"):
            run.append_rollout("probes", rollout.model_copy(update={"policy": "probe empty"}))
        run.finish_stage("probes", {})
    await helpdesk_run(path)
    with RunFolder.create_or_resume(path, {"model": None, "what": path.name}) as run:
        note_conditions(run, {"before": "untrained", "after GRPO": "after_grpo"}, Helpdesk().tools)
        conditions = {"before": [*run.iter_rollouts("untrained")], "after GRPO": [*run.iter_rollouts("after_grpo")]}
        tools = Helpdesk().tools
        faults = {name: find_faults(rollouts, threshold=1.0, tools=tools) for name, rollouts in conditions.items()}
        report = build_report(conditions, faults=faults)
        report.next_steps = ["Raise <b>limits.max_turns</b>."]
        report.write(path)
    return path


def hostile_rollout(name: str, text: str, *, stage: str = "hostile") -> Rollout:
    """A rollout in which every place that holds text of others holds `text`."""
    call = ToolCall(id=text[:200], name=f"tool {text[:200]}", arguments={text[:200]: text[:2000]})
    structured = {"value": text[:2000], "$cut": 1, "big": 2**70}
    result = ToolResult(text=text, structured=structured, is_error=True, error_kind="tool_error", notes=(text[:200],))
    prompt = f"{name}: {text[:2000]}"
    return Rollout(
        id=f"{name} {text[:100]}",
        task=Task(prompt=prompt, id=f"{name} {text[:50]}", tags={text[:50] or "x": text[:50]}, setup={"a": text[:100]}),
        policy=text[:100],
        group=text[:100],
        messages=[
            Message(role="system", content=text[:2000]),
            Message(role="user", content=prompt),
            Message(role="assistant", content=text[:2000], reasoning=text[:2000], tool_calls=[call]),
            Message(role="tool", content=text, tool_call_id=call.id),
            Message(role="tool", content=text[:500], tool_call_id="of no call", name=text[:20]),
            Message(role="assistant", content=text[:5000]),
        ],
        calls=[CallRecord(turn=0, call=call, result=result)],
        answer=text[:5000],
        initial_state={"table": {text[:50]: {"column": text[:50]}}},
        final_state={"table": {text[:60] + "2": {text[:50]: text[:50]}}},
        rows=[TokenRow(prompt_ids=[1, 2], completion_ids=[3], sampled=[True], logprobs=[-0.5], versions=[0])],
        verdict=Verdict(score=0.5, components={text[:60]: -0.5}, explanation=text[:2000]),
        turns=2,
    )


def hostile_run(path: Path) -> Path:
    """Every hostile text in a rollout of its own, with a report of them, and a result of 20 MB."""
    with RunFolder.create_or_resume(path, {"model": "none", "what": MARKUP}) as run:
        rollouts = [hostile_rollout(name, text) for name, text in HOSTILE.items()]
        for rollout in rollouts:
            run.append_rollout("hostile", rollout)
        note_conditions(run, {MARKUP: "hostile"}, [])
        build_report({MARKUP: rollouts}).write(path)
        huge = "<i>0123456789</i>\n" * (20_000_000 // 18)
        run.append_rollout("hostile", hostile_rollout("huge", huge))
    return path


def long_run(path: Path, rollouts: list[Rollout], count: int) -> Path:
    """`count` rollouts: those given, again and again, in groups of eight under other ids."""
    kept: list[dict[str, Any]] = [rollout.model_dump(mode="json") for rollout in rollouts]
    with RunFolder.create_or_resume(path, {"model": None, "count": count}):
        with open(path / "rollouts" / "grpo.jsonl", "w", encoding="utf-8") as file:
            for number in range(count):
                line = kept[(number // 8) % len(kept)] if number % 3 else kept[number % len(kept)]
                step = number // 64
                line |= {"id": f"grpo/{step}/{number}", "group": f"{step}/{number // 8}", "step": step}
                line["task"]["tags"]["number"] = f"n{number}"
                file.write(json.dumps(line) + "\n")
    return path
