"""An agent of a user's beside the loop that comes with the library: the same tokens, no mix-up, and what its URL costs.

    python tests/benchmarks/agents_by_url.py [--model FOLDER] [--tasks 84] [--agents 64] [--calls 10000] [--turns 50]

The quickstart's held-out tasks are played by both, greedily and at temperature 1, with the quickstart's warm start
(made first where no folder is given). The plain agent is a loop around the `openai` client. Then many agents call
tools at once, each in a world of its own, and a program of its own measures requests without an engine behind them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import end_to_end  # its import sets what must be set before torch is loaded

sys.path.insert(0, str(Path(__file__).parents[1] / "agents"))

from orders import get_order
from plain_agent import as_function, model_at, plain_agent, tools_at

import sdk
from sandboxes.objects import ObjectTwin
from sdk.policies.scripted import ScriptedAgent
from sdk.traces import RunFolder

CLIENT = Path(__file__).with_name("url_client.py")
ROUNDS = 5


async def reading_agent(task: sdk.Task, endpoint: sdk.AgentEndpoint) -> str | None:
    """A plain agent that answers a call that cannot be read with what is wrong in it, as the library's loop does."""
    async with model_at(endpoint) as model, tools_at(endpoint) as client:
        tools = [as_function(tool) for tool in (await client.list_tools()).tools]
        messages: list[dict[str, Any]] = [message.as_openai() for message in task.opening()]
        while True:
            reply = await model.chat.completions.create(model=endpoint.model, messages=messages, tools=tools)
            message = reply.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return message.content
            said = reply.model_extra["toolbake"].get("invalid_calls", [])
            problems = {one["call"]: one["problem"] for one in said}
            for place, call in enumerate(message.tool_calls):
                text = problems.get(place)
                if text is None:
                    result = await client.call_tool(call.function.name, json.loads(call.function.arguments))
                    text = "".join(part.text for part in result.content)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": text})


def measured(tools: Any, tasks: Sequence[Any], verifier: Any, **options: Any) -> tuple[Any, dict[str, sdk.Rollout]]:
    """The success with its interval, and the rollouts by their ids."""
    with tempfile.TemporaryDirectory() as folder:
        report = sdk.evaluate(tools, tasks, verifier, output_dir=folder, **options)
        rollouts = RunFolder.open_to_read(folder).read_rollouts("evaluation")
    [condition] = report.conditions.values()
    return condition.success.interval, {rollout.id: rollout for rollout in rollouts}


def same_tokens(model: Path, tasks: Sequence[Any], temperature: float) -> list[str]:
    """A row of the table: the same tasks by the library's loop and by a plain client."""
    from sandboxes.helpdesk import Helpdesk
    from sdk.cli.quickstart_options import LIMITS, quickstart_verifier

    (success, own), (by_agents_success, by_agent) = (
        measured(
            Helpdesk(),
            tasks,
            quickstart_verifier(),
            model=model,
            agent=agent,
            temperature=temperature,
            limits=LIMITS,
        )
        for agent in (None, reading_agent)
    )
    assert own.keys() == by_agent.keys()
    pairs = [(own[name], by_agent[name]) for name in own]
    equal = [(one, other) for one, other in pairs if _ids(one) == _ids(other)]
    # A call without even a name is text for a client, which so ends.
    nameless = sum(one.turns > other.turns and other.stop_reason == "answered" for one, other in pairs)
    gaps = [
        abs(a - b)
        for one, other in equal
        for left, right in zip(one.rows, other.rows, strict=True)
        for a, b in zip(left.logprobs, right.logprobs, strict=True)
    ]
    return [
        f"{temperature:g}",
        str(sum(one.turns for one, _ in pairs)),
        f"{len(equal)} of {len(pairs)}",
        str(nameless),
        f"{max(gaps, default=0):.1g}",
        *(f"{100 * one.estimate:.0f} % ({100 * one.low:.0f} to {100 * one.high:.0f})"
          for one in (success, by_agents_success)),
    ]  # fmt: skip


def _ids(rollout: sdk.Rollout) -> list[Any]:
    return [(row.prompt_ids, row.completion_ids, row.sampled) for row in rollout.rows]


class Till:
    """A world that tells whose it is: it counts what was put in, and shows the last."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def put(self, note: str) -> str:
        """Put a note in."""
        self.notes.append(note)
        return f"{len(self.notes)}: {note}"


def crowd(agents: int, calls: int, *, at_a_time: int = 10) -> dict[str, Any]:
    """So many agents at once with so many calls in all. Which of their rollouts have anything of another's."""
    turns = -(-calls // agents // at_a_time)

    def say(messages: list[sdk.Message], seed: int) -> Any:
        number, turn = messages[0].content, sum(message.role == "assistant" for message in messages)
        if turn == turns:
            return f"{number} is done"
        return [
            sdk.ToolCall(id="", name="put", arguments={"note": f"{number}/{turn}/{place}"})
            for place in range(at_a_time)
        ]

    limits = {"max_turns": turns + 1, "max_calls": turns * at_a_time, "max_tokens": 10**9, "max_turn_tokens": 10**6}
    prompts = [f"agent {number:03}" for number in range(agents)]
    began = time.perf_counter()
    _, found = measured(
        ObjectTwin(Till),
        prompts,
        lambda rollout: 1.0,
        model=ScriptedAgent(say),
        agent=plain_agent,
        limits=limits,
        concurrency=agents,
    )
    seconds = time.perf_counter() - began
    rollouts = list(found.values())
    mixed = [rollout for rollout in rollouts if not _is_its_own(rollout, turns, at_a_time)]
    for rollout in mixed:
        print(_shown(rollout), file=sys.stderr)
    keys = [line.key for rollout in rollouts for line in rollout.ledger if line.event == "answered"]
    return {
        "agents": len(rollouts),
        "calls": sum(len(rollout.calls) for rollout in rollouts),
        "mixed_up": len(mixed) + len(keys) - len(set(keys)),
        "seconds": seconds,
    }


def _is_its_own(rollout: sdk.Rollout, turns: int, at_a_time: int) -> bool:
    """Whether world, answers, tokens and ledger have what this agent did, and nothing else."""
    number = rollout.task.prompt
    notes = [f"{number}/{turn}/{place}" for turn in range(turns) for place in range(at_a_time)]
    tokens = [token for row in rollout.rows for token in (*row.prompt_ids, *row.completion_ids)]
    said = bytes(token for token in tokens if token < 256).decode()
    return (
        rollout.failure is None
        and len(rollout.rows) == 1
        and rollout.answer == f"{number} is done"
        and [record.result.text for record in rollout.calls] == [f"{n}: {note}" for n, note in enumerate(notes, 1)]
        and rollout.final_state is not None
        and rollout.final_state["Till"]["notes"]["value"] == notes
        and said.count("agent ") == said.count(str(number))
        and {line.rollout for line in rollout.ledger} == {rollout.id}
        and len(rollout.ledger) == 2 * len(notes)
    )


def _shown(rollout: sdk.Rollout) -> str:
    """What there is to see of a rollout that is not as expected."""
    ended = rollout.failure or rollout.stop_reason
    last = [f"  {message.role}: {message.as_openai()}" for message in rollout.messages[-3:]]
    return "\n".join([f"{rollout.task.prompt}, {len(rollout.calls)} calls: {ended}", *last])


def url_times(turns: int) -> dict[str, float]:
    """Milliseconds of a turn without an engine: of the clock, for a request and a call by the URLs, and of this
    process's processor time, for both together and in the library's loop."""
    script = ScriptedAgent([sdk.ToolCall(id="", name="get_order", arguments={"order_id": "4417"})] * turns + ["Done."])
    limits = {"max_turns": turns + 1, "max_calls": turns, "max_tokens": 10**9}
    client = [sys.executable, str(CLIENT), str(turns)]
    found: dict[str, list[float]] = {"ask_ms": [], "call_ms": [], "by_url": [], "by_loop": []}
    for _ in range(ROUNDS):
        for name, agent in (("by_loop", None), ("by_url", client)):
            began = time.process_time()
            played = sdk.rollout(get_order, "Where is order 4417?", model=script, agent=agent, limits=limits)
            found[name].append(1000 * (time.process_time() - began) / turns)
            assert played.failure is None, played.failure
        for name, took in json.loads(played.answer).items():
            found[name].append(took)
    return {name: statistics.median(times) for name, times in found.items()}


def warm_started() -> Path:
    """The quickstart's warm start, which is kept."""
    folder = Path("runs/agents/warm_start").resolve()
    return end_to_end.warm_start(folder, 2)


def section(
    model: Path | None = None, *, tasks: int = 84, agents: int = 64, calls: int = 10_000, turns: int = 50
) -> str:
    """The section of the page."""
    from sdk.cli.quickstart_options import quickstart_tasks

    held_out = [task for task in quickstart_tasks() if task["tags"]["split"] == "heldout"][:tasks]
    model = model or warm_started()
    rows = [same_tokens(model, held_out, temperature) for temperature in (0.0, 1.0)]
    together = crowd(agents, calls)
    times = url_times(turns)
    return "\n".join(
        [
            "## Agents of the user's: the plain client by its URL beside the library's loop",
            "",
            f"The quickstart's warm start plays {len(held_out)} held-out tasks of the helpdesk by both:",
            "",
            "| temperature | turns | rollouts of equal token ids | where a call without a name ended the client | "
            "largest gap of log-probabilities | success, loop | success, client |",
            "| --- | --- | --- | --- | --- | --- | --- |",
            *(f"| {' | '.join(row)} |" for row in rows),
            "",
            f"{together['agents']} plain clients at once made {together['calls']:,} calls in {together['seconds']:.0f} "
            f"s; rollouts with a world, key, answer or token of another's: {together['mixed_up']}.",
            "",
            f"Without an engine, a request takes {times['ask_ms']:.1f} ms by the URL, and a call "
            f"{times['call_ms']:.1f} ms. Both take {times['by_url']:.1f} ms of toolbake's processor time, where the "
            f"library's loop takes {times['by_loop']:.1f} ms. These are medians of {ROUNDS} rollouts of {turns} turns, "
            "whose history grows, by a program with plain sockets.",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="the quickstart's warm start")
    for name, default in (("tasks", 84), ("agents", 64), ("calls", 10_000), ("turns", 50)):
        parser.add_argument(f"--{name}", type=int, default=default)
    print(section(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
