"""1 024 rollouts in flight beside TRL's own loop, and sampling that goes on while the trainer works.

    python tests/benchmarks/rollout_engine.py [--rounds 3] [--in-flight 1024]

A policy that answers after 200 ms, a tool that takes 100 ms, 5 turns: 1.4 s a rollout if nothing else took time. Both
loops run in a process of their own with the embedded model's tokenizer, render each turn with a chat template, parse
real calls and keep real tokens; what samples is a sleep. Groups have prompts of their own, and no two calls in a row
the same arguments and result, so that nobody gains by remembering texts. TRL's loop is `_AsyncRolloutLoop`, as
shipped, with its request to vLLM replaced. The two alternate.

What is kept up is measured from when a third of the rollouts have ended until the last one begins, so while the full
number is in flight: ours over twelve times as many rollouts as are in flight, TRL's, which would take minutes for that,
over four times. The whole runs are told beside it; in them the first rollouts are opened all at once, and the last ones
end with ever fewer beside them.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the simulation is the tests' own

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

POLICY_S, TOOL_S, TURNS = 0.2, 0.1, 5
ROLLOUT_S = TURNS * POLICY_S + (TURNS - 1) * TOOL_S
GROUP = 8
KEYS = 10_000
"""Different calls; encoded before the clock starts."""
STEPS, STEP_S = 20, 0.5
OURS, TRLS = 12, 4
"""Rollouts of a run, in times of those in flight."""


async def lookup(key: str) -> str:
    """Look up a value.

    Args:
        key: Which one.
    """
    await asyncio.sleep(TOOL_S)
    return f"the value of {key}"


def _tokenizer() -> Any:
    from transformers import AutoTokenizer

    from sdk.policies.models.smollm2 import embedded_folder

    return AutoTokenizer.from_pretrained(embedded_folder())


def _ours(in_flight: int, total: int, *, virtual: bool) -> dict[str, float]:
    import anyio
    from simulation import run_virtual

    from mcp_bridge import connect
    from sdk.policies.models import load_model  # noqa: F401 - what is imported late is not part of the figure
    from sdk.policies.protocol import Completion, Sampling
    from sdk.policies.rendering import make_renderer
    from sdk.policies.token_agent import TokenAgent
    from sdk.records import Message, Task, ToolCall
    from sdk.rollouts.engine import RolloutEngine
    from sdk.rollouts.episode import Job
    from sdk.rollouts.limits import Limits

    tokenizer = _tokenizer()
    renderer = make_renderer(tokenizer)
    example = Message(role="assistant", tool_calls=[ToolCall(id="", name="lookup", arguments={"key": "k3"})])
    shown = tokenizer.decode(renderer.encode_reply(example, []))
    texts = [shown.replace("k3", f"k{n}") for n in range(KEYS)]
    calls = tokenizer(texts, add_special_tokens=False)["input_ids"]
    done = renderer.encode_reply(Message(role="assistant", content="done"), [])

    class Sleeper:
        context_tokens = 8192

        async def sample(self, prompt_ids: Any, *, sampling: Any, seed: int, stop_token_ids: Any = ()) -> Completion:
            await asyncio.sleep(POLICY_S)
            # The template begins each message with token 1: system, user, then two for each turn so far, and this one.
            last = prompt_ids.count(1) >= 2 * TURNS + 1
            said = done if last else calls[seed % KEYS]
            return Completion(said, [-0.5] * len(said), "stop")

    async def verify(_: Any) -> float:
        return 1.0

    async def run() -> dict[str, float]:
        async with connect([lookup]) as source:
            engine = RolloutEngine(
                agent=TokenAgent(Sleeper(), renderer),
                source=source,
                verifier=verify,
                limits=Limits(max_tokens=10_000),
                concurrency=in_flight,
            )
            tasks = [Task(prompt=f"go {n}", id=f"t{n}") for n in range(total // GROUP + 1)]
            made = [Job(id=f"r{n}", task=tasks[n // GROUP], seed=n) for n in range(total)]
            await engine.run(made[:GROUP], sampling=Sampling())
            ended: list[float] = []
            wall, cpu = anyio.current_time(), time.process_time()
            rollouts = await engine.run(
                made, sampling=Sampling(), on_rollout=lambda _: ended.append(anyio.current_time())
            )
            wall, cpu = anyio.current_time() - wall, time.process_time() - cpu
        assert {(r.turns, r.stop_reason) for r in rollouts} == {(TURNS, "answered")}
        return {"wall": wall, "cpu": cpu, "kept": _kept(ended, in_flight)}

    return run_virtual(run) if virtual else anyio.run(run)


def _kept(ended: list[float], in_flight: int) -> float:
    """The rate at which rollouts ended while `in_flight` were under way, over the ideal one. `ended`: seconds, rising.

    One begins whenever one ends, so the last one begins when all but `in_flight` have ended. What begins together may
    end together, so whole generations are counted: from the end of the one that a third of all belong to.
    """
    first, last = math.ceil(len(ended) / 3 / in_flight) * in_flight, len(ended) - in_flight
    return (last - first) / (ended[last - 1] - ended[first - 1]) * ROLLOUT_S / in_flight


def _trl(in_flight: int, total: int) -> dict[str, float]:
    import queue
    import threading
    import types

    import trl
    from accelerate import PartialState
    from datasets import Dataset
    from trl.experimental.async_grpo.async_rollout_worker import _AsyncRolloutLoop

    PartialState()  # its logger asks for one
    tokenizer = _tokenizer()
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    call = '<tool_call>\n{"name": "lookup", "arguments": {"key": "k3"}}\n</tool_call><|im_end|>'
    texts = [call.replace("k3", f"k{n}") for n in range(KEYS)]
    calls = tokenizer(texts, add_special_tokens=False)["input_ids"]
    done = tokenizer.encode("done<|im_end|>", add_special_tokens=False)
    number = itertools.count()
    turns: list[int] = []

    class Loop(_AsyncRolloutLoop):  # type: ignore[misc]
        async def _generate_one_turn(self, prompt_ids: list[int]) -> tuple[list[int], list[float]]:
            await asyncio.sleep(POLICY_S)
            last = prompt_ids.count(1) >= 2 * TURNS
            said = done if last else calls[next(number) % KEYS]
            return said, [-0.5] * len(said)

        async def _generate_one(self, *args: Any, **kwargs: Any) -> Any:
            found = await super()._generate_one(*args, **kwargs)
            turns.append(sum(message["role"] == "assistant" for message in found[0]))
            ended.append((time.perf_counter(), time.process_time()))
            if len(ended) == total:
                self._stop_event.set()
            return found

    ended: list[tuple[float, float]] = []
    loop = Loop(
        model_name="none",
        dataset=Dataset.from_list(
            [{"prompt": [{"role": "user", "content": f"go {n}"}]} for n in range(total // GROUP + 1)]
        ),
        reward_funcs=[lambda completions, **_: [1.0] * len(completions)],
        processing_class=tokenizer,
        eos_token_ids=[2],
        rollout_buffer=queue.Queue(),
        model_version_value=types.SimpleNamespace(value=0),
        heartbeat_value=types.SimpleNamespace(value=0.0),
        failed_event=threading.Event(),
        exception_info_queue=queue.Queue(),
        metrics_queue=queue.Queue(),
        tools=[lookup],
        num_generations=GROUP,
        max_inflight_tasks=in_flight,
    )
    wall, cpu = time.perf_counter(), time.process_time()
    loop.run()
    assert set(turns) == {TURNS}, set(turns)
    kept = _kept([at for at, _ in ended[:total]], in_flight)
    return {"wall": ended[total - 1][0] - wall, "cpu": ended[total - 1][1] - cpu, "kept": kept}


def _overlap(staleness: int, update_s: float) -> dict[str, float]:
    """Seconds of 20 steps whose update takes `update_s`, through the real collector; `waited`: for rollouts, a step."""
    import tempfile

    import anyio
    import anyio.to_thread
    from simulation import SimulatedPolicy, SlowTools, simulated_agent

    from sandboxes.helpdesk import Helpdesk
    from sdk.progress import Silent
    from sdk.records import Message, Task, ToolCall
    from sdk.rollouts.engine import RolloutEngine
    from sdk.rollouts.limits import Limits
    from sdk.rollouts.run_context import RunContext
    from sdk.traces import RunFolder
    from sdk.trainer.config import TrainConfig
    from sdk.trainer.curriculum import Curriculum
    from sdk.trainer.rollout_worker import Collector

    config = TrainConfig.of(
        {
            "off_policy.max_off_policy_steps": staleness,
            "grpo.max_steps": STEPS,
            "grpo.prompts_per_step": 2,
            "grpo.num_generations": 4,
            "limits": Limits(max_turn_tokens=1000),
        }
    )
    look = Message(role="assistant", tool_calls=[ToolCall(id="", name="get_order", arguments={"order_id": "1"})])
    policy = SimulatedPolicy(
        lambda turn, _: Message(role="assistant", content="done") if turn else look, latency_s=POLICY_S
    )

    async def verify(rollout: Any) -> float:
        return float(rollout.seed % 2)

    async def run() -> dict[str, float]:
        source = SlowTools(Helpdesk(), latency_s=TOOL_S)
        engine = RolloutEngine(agent=simulated_agent(policy), source=source, verifier=verify, limits=config.limits)
        curriculum = Curriculum([Task(prompt=f"p{n}") for n in range(8)], config)

        def train(collector: Collector, steps: range) -> list[float]:
            waited = []
            for step in steps:
                policy.publish({}, version=step)
                batch = collector(step)
                assert batch.stats.rollouts == 8
                waited.append(collector.rollout_seconds)
                time.sleep(update_s)
            return waited

        with tempfile.TemporaryDirectory() as place, Silent().track("", STEPS) as progress:
            with RunFolder.create_or_resume(Path(place) / "run", {}) as folder:
                context = RunContext(
                    tools=source, verifier=verify, limits=config.limits, concurrency=engine.concurrency, folder=folder
                )
                collector = Collector(engine, curriculum, config, context, step=progress)
                async with collector.sampling():
                    started = time.perf_counter()
                    waited = await anyio.to_thread.run_sync(train, collector, range(STEPS))
                    return {"wall": time.perf_counter() - started, "waited": statistics.median(waited)}

    return anyio.run(run)


def _measured(*what: str) -> dict[str, float]:
    """One measurement in a process of its own."""
    command = [sys.executable, __file__, "--child", *what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(what)} failed:\n{done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def section(*, rounds: int = 3, in_flight: int = 1024) -> str:
    """The results as Markdown."""
    return "\n".join([*_many_in_flight(rounds, in_flight), "", *_while_training(rounds)])


def _many_in_flight(rounds: int, in_flight: int) -> list[str]:
    runs = {"ours": ("ours", OURS), "TRL's asynchronous loop": ("trl", TRLS)}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, (what, times) in runs.items():
            found[name].append(_measured(what, str(in_flight), str(times * in_flight)))
    virtual = _measured("virtual", str(in_flight), str(OURS * in_flight))["wall"]
    lines = [
        f"## Rollouts: {in_flight} in flight",
        "",
        f"Rollouts of {TURNS} turns, {POLICY_S * 1000:.0f} ms a reply and {TOOL_S * 1000:.0f} ms a call: {in_flight} "
        f"in {ROLLOUT_S:.1f} s if nothing else took time. Kept up: from when a third has ended until the last one "
        "begins, so while all slots are taken. The whole run has the start in it, where all are opened at once, and "
        f"the end, where ever fewer are left. Median of {rounds}; lowest and highest in brackets. The processor's time "
        "says what a rollout costs whatever else the machine does; the last column is how many one core keeps up with.",
        "",
        "| | kept up, of the ideal | rollouts | the whole run, s | of the ideal | processor, ms a rollout | one core |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, (_, times) in runs.items():
        total = times * in_flight
        wall, cpu = [one["wall"] for one in found[name]], [1000 * one["cpu"] / total for one in found[name]]
        kept = [100 * one["kept"] for one in found[name]]
        keeps_up = 1000 * ROLLOUT_S / statistics.median(cpu)
        share = ROLLOUT_S * times / statistics.median(wall)
        lines.append(
            f"| {name} | {statistics.median(kept):.1f}% ({min(kept):.1f} to {max(kept):.1f}) | {total} "
            f"| {_spread(wall)} | {share:.0%} | {_spread(cpu)} | {keeps_up:.0f} |"
        )
    schedule = ROLLOUT_S * OURS / virtual
    return [*lines, "", f"By a clock that does not count computing, our schedule is {schedule:.1%} of the ideal."]


def _while_training(rounds: int) -> list[str]:
    """An update takes as long as a step's rollouts did in the same round, worlds, verdicts and traces included."""
    seconds: dict[int, list[float]] = {0: [], 1: [], 2: []}
    updates, ratios = [], {1: list[float](), 2: list[float]()}
    for _ in range(rounds):
        updates.append(_measured("overlap", "0", str(STEP_S))["waited"])
        for staleness, found in seconds.items():
            found.append(_measured("overlap", str(staleness), str(updates[-1]))["wall"])
        for staleness, found in ratios.items():
            found.append(seconds[0][-1] / seconds[staleness][-1])
    lines = [
        "## Rollouts: sampling while the trainer works",
        "",
        f"{STEPS} steps through the real collector. The update sleeps as long as a step's rollouts took in the same "
        f"round, here {_spread(updates)} s; {2 * STEPS / (STEPS + 1):.2f} times is the most there is, since the first "
        "step has nothing to overlap with.",
        "",
        "| `max_off_policy_steps` | seconds | times as fast, each round |",
        "| --- | --- | --- |",
        f"| 0 | {_spread(seconds[0])} | 1 |",
    ]
    for staleness, found in ratios.items():
        lines.append(f"| {staleness} | {_spread(seconds[staleness])} | {_spread(found)} |")
    return lines


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--in-flight", type=int, default=1024)
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is None:
        print(section(rounds=given.rounds, in_flight=given.in_flight))
        return
    what, *numbers = given.child
    if what == "overlap":
        found = _overlap(int(numbers[0]), float(numbers[1]))
    elif what == "trl":
        found = _trl(*map(int, numbers))
    else:
        found = _ours(*map(int, numbers), virtual=what == "virtual")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
