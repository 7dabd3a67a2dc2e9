"""Rollouts with scripted policies in real sandboxes and functions: budgets, failures, isolation, scoring."""

import asyncio
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from mcp_bridge import ServerDied, ToolFailure, ToolResult, connect
from mcp_bridge.ledger import LedgerLine, digest_arguments, digest_text
from sandboxes.helpdesk import Helpdesk
from sdk.evaluation.report import call_facts
from sdk.policies.protocol import Sampling
from sdk.policies.scripted import ScriptedAgent
from sdk.records import Message, Rollout, Task, ToolCall
from sdk.rollouts.engine import RolloutEngine
from sdk.rollouts.episode import Job
from sdk.rollouts.limits import Limits

GREEDY = Sampling(temperature=0.0)
ROOMY = Limits(max_turn_tokens=10_000, max_tokens=100_000)


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def broken() -> str:
    """Always down."""
    raise ToolFailure("the backend is down")


def calling(*calls: tuple[str, dict[str, Any]]) -> Message:
    made = [ToolCall(id="", name=name, arguments=arguments) for name, arguments in calls]
    return Message(role="assistant", tool_calls=made)


async def play(
    script: Any,
    *,
    tools: Any = (add,),
    task: Task | None = None,
    verifier: Any = lambda rollout: 1.0,
    **limits: Any,
) -> Rollout:
    generous = {"max_turn_tokens": 10_000, "max_tokens": 100_000, **limits}
    async with connect(list(tools) if isinstance(tools, tuple) else tools) as source:
        engine = RolloutEngine(agent=ScriptedAgent(script), source=source, verifier=verifier, limits=Limits(**generous))
        return (await engine.run([Job(id="r", task=task or Task(prompt="go"), seed=0)], sampling=GREEDY))[0]


async def test_a_conversation_ends_with_its_answer_and_keeps_every_call() -> None:
    rollout = await play([calling(("add", {"a": 2, "b": 3})), "It is 5."])
    assert (rollout.stop_reason, rollout.answer, rollout.turns) == ("answered", "It is 5.", 2)
    assert [(r.call.name, r.result.text) for r in rollout.calls] == [("add", "5")]
    assert [m.role for m in rollout.messages] == ["user", "assistant", "tool", "assistant"]
    assert rollout.scored


async def waits_for_something_cancelled(_: Any) -> Any:
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    return await future


async def test_a_verifier_that_waits_for_something_cancelled_leaves_its_rollout_unscored_and_loses_none() -> None:
    rollout = await play(["It is 5."], verifier=waits_for_something_cancelled)
    assert rollout.failure is not None
    assert rollout.failure.boundary == "verifier"
    assert "waits_for_something_cancelled waited for something that was cancelled" in rollout.failure.message


async def test_a_policy_that_waits_for_something_cancelled_fails_its_rollout_and_loses_none() -> None:
    def cut_off(*_: Any) -> Message:
        raise asyncio.CancelledError

    rollout = await play(cut_off)
    assert rollout.failure is not None
    assert (rollout.failure.boundary, rollout.failure.kind) == ("policy", "cancelled")


async def test_a_rollout_keeps_what_the_policy_read_and_no_images() -> None:
    def shot() -> ToolResult:
        image = {"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"}
        return ToolResult(text="[image, image/png, 5 bytes]", content=(image,), meta={"at": 1})

    rollout = await play([calling(("shot", {})), "done"], tools=(shot,))
    assert rollout.calls[0].result.text == "[image, image/png, 5 bytes]"
    assert (rollout.calls[0].result.content, rollout.calls[0].result.meta) == (None, {})


async def test_later_user_turns_come_after_each_answer() -> None:
    rollout = await play(["one", "two", "three"], task=Task(prompt="a", later_turns=["b", "c"]))
    said = [(m.role, m.content) for m in rollout.messages]
    turns = [("a", "one"), ("b", "two"), ("c", "three")]
    assert said == [pair for user, policy in turns for pair in (("user", user), ("assistant", policy))]
    assert rollout.answer == "three"


async def test_the_policys_mistakes_come_back_as_text_it_can_act_on() -> None:
    wrong = calling(("ad", {}), ("add", {"a": "x"}))
    rollout = await play([wrong, "sorry"])
    assert rollout.error_kinds == {"unknown_tool": 1, "invalid_arguments": 1}
    assert "add" in rollout.messages[2].content
    assert rollout.scored


@pytest.mark.parametrize(
    ("script", "limits", "reason"),
    [
        ([calling(("add", {"a": 1, "b": 1}))] * 9, {"max_turns": 3}, "turn_limit"),
        ([calling(*[("add", {"a": 1, "b": 1})] * 5)], {"max_calls": 4}, "call_limit"),
        ([calling(("add", {"a": 1, "b": 1}))] * 9, {"max_tokens": 60}, "token_limit"),
    ],
)
async def test_every_spent_budget_has_its_stop_reason(script: Any, limits: dict[str, Any], reason: str) -> None:
    rollout = await play(script, **limits)
    assert rollout.stop_reason == reason
    assert rollout.answer == ""
    assert rollout.failure is None


async def test_calls_over_the_limit_are_not_made() -> None:
    made = []

    def note(number: int) -> int:
        """Note."""
        made.append(number)
        return number

    await play([calling(("note", {"number": 1})), calling(*[("note", {"number": 2})] * 4)], tools=(note,), max_calls=4)
    assert made == [1]


async def test_calls_of_one_turn_run_at_the_same_time() -> None:
    both = anyio.Event()
    arrived = []

    async def meet(name: str) -> str:
        """Return once two are here."""
        arrived.append(name)
        if len(arrived) == 2:
            both.set()
        with anyio.fail_after(60):
            await both.wait()
        return name

    rollout = await play([calling(("meet", {"name": "x"}), ("meet", {"name": "y"})), "done"], tools=(meet,))
    assert [r.result.text for r in rollout.calls] == ["x", "y"]


async def test_a_broken_tool_leaves_the_rollout_unscored_and_says_where() -> None:
    rollout = await play([calling(("broken", {})), "fine"], tools=(broken,))
    assert not rollout.scored
    assert rollout.verdict is None
    assert rollout.failure is not None
    assert (rollout.failure.boundary, rollout.stop_reason) == ("tools", "failed")
    assert "the backend is down" in rollout.failure.message


async def test_a_hung_tool_costs_the_call_and_leaves_the_rollout_unscored() -> None:
    async def hang() -> str:
        """Never returns."""
        await anyio.sleep_forever()
        return ""

    rollout = await play([calling(("hang", {})), "fine"], tools=(hang,), call_timeout_s=0.05)
    assert rollout.failure is not None
    assert (rollout.failure.boundary, rollout.failure.kind) == ("tools", "OutcomeUnknown")


async def test_a_rollout_keeps_the_ledger_of_its_calls_also_of_one_whose_outcome_is_unknown() -> None:
    heard: list[LedgerLine] = []

    async def charge(amount: int) -> str:
        """Charge; the second time the answer is lost."""
        assert heard[-1].event == "started"
        if amount == 2:
            raise ServerDied("the connection ended")
        return "charged"

    async with connect(charge) as source:
        script = [calling(("charge", {"amount": 1})), calling(("charge", {"amount": 2})), "done"]
        agent = ScriptedAgent(script)
        engine = RolloutEngine(agent=agent, source=source, verifier=lambda _: 1.0, on_call=heard.append, limits=ROOMY)
        rollout = (await engine.run([Job(id="r7", task=Task(prompt="go"), seed=0)], sampling=GREEDY))[0]
    assert [line.event for line in rollout.ledger] == ["started", "answered", "started", "unknown"]
    assert heard == rollout.ledger
    assert {line.rollout for line in heard} == {"r7"}
    assert rollout.ledger[0].call == f"r7/{rollout.calls[0].call.id}"
    assert rollout.ledger[0].arguments == digest_arguments(rollout.calls[0].call.arguments)
    assert rollout.ledger[1].result == digest_text(rollout.calls[0].result.text)
    assert rollout.failure is not None
    assert (rollout.failure.kind, rollout.scored) == ("OutcomeUnknown", False)
    assert "whether 'charge' took effect is unknown" in rollout.failure.message
    assert call_facts([rollout]) == call_facts(heard) == {"calls": {"answered": 1, "unknown": 1}}
    assert Rollout.model_validate_json(rollout.model_dump_json()).ledger == rollout.ledger


async def test_running_out_of_time_is_not_a_bad_answer() -> None:
    async def slow(messages: list[Message], seed: int) -> str:
        await anyio.sleep_forever()
        return ""

    rollout = await play(slow, max_seconds=0.05)
    assert (rollout.stop_reason, rollout.scored) == ("time_limit", False)
    assert rollout.failure is not None
    assert "max_seconds" in rollout.failure.message


async def test_a_timeout_error_of_the_users_own_code_is_not_taken_for_the_rollouts_budget() -> None:
    def slow() -> str:
        """Gives up by itself."""
        raise TimeoutError("the database did not answer")

    rollout = await play([calling(("slow", {})), "done"], tools=(slow,))
    assert rollout.stop_reason == "answered"
    assert "database did not answer" in rollout.calls[0].result.text


async def test_an_engine_that_breaks_leaves_the_rollout_unscored() -> None:
    rollout = await play([calling(("add", {"a": 1, "b": 2}))])  # the script runs out: a PolicyFailure
    assert rollout.failure is not None
    assert rollout.failure.boundary == "policy"


@pytest.mark.parametrize("returned", [None, float("nan"), float("inf"), "1.0", ValueError("boom")])
async def test_a_verifier_that_fails_leaves_the_rollout_unscored_and_says_so(returned: Any) -> None:
    def verify(rollout: Rollout) -> Any:
        if isinstance(returned, Exception):
            raise returned
        return returned

    rollout = await play(["hello"], verifier=verify)
    assert not rollout.scored
    assert rollout.failure is not None
    assert rollout.failure.boundary == "verifier"
    assert "verify" in rollout.failure.message


async def test_the_state_before_and_after_is_kept_from_the_world_itself() -> None:
    desk = Helpdesk()
    order = next(o for o, row in desk.state()["orders"].items() if row["status"] == "processing")
    rollout = await play([calling(("cancel_order", {"order_id": order})), "done"], tools=desk)
    assert rollout.initial_state is not None
    assert rollout.final_state is not None
    assert rollout.initial_state["orders"][order]["status"] == "processing"
    assert rollout.final_state["orders"][order]["status"] == "cancelled"


async def test_a_thousand_rollouts_in_flight_share_no_state() -> None:
    desk = Helpdesk()
    orders = [o for o, row in desk.state()["orders"].items() if row["status"] == "processing"]

    def script_for(order: str) -> Callable[[list[Message], int], Message | str]:
        def script(messages: list[Message], seed: int) -> Message | str:
            return calling(("cancel_order", {"order_id": order})) if len(messages) == 1 else "done"

        return script

    def by_prompt(messages: list[Message], seed: int) -> Message | str:
        return script_for(messages[0].content)(messages, seed)

    jobs = [Job(id=f"r{n}", task=Task(prompt=orders[n % len(orders)], id=f"t{n}"), seed=n) for n in range(1000)]
    engine = RolloutEngine(agent=ScriptedAgent(by_prompt), source=desk, verifier=None, concurrency=1000)
    rollouts = await engine.run(jobs, sampling=GREEDY)
    assert len(rollouts) == 1000
    for rollout in rollouts:
        changes = desk.diff(rollout.initial_state or {}, rollout.final_state or {})
        cancelled = [c["key"] for c in changes if c["table"] == "orders"]
        assert cancelled == [rollout.task.prompt]


async def test_at_most_concurrency_rollouts_are_in_flight_and_the_next_starts_when_one_ends() -> None:
    in_flight = [0]
    most = [0]
    release = {n: anyio.Event() for n in range(5)}
    started: list[int] = []

    async def script(messages: list[Message], seed: int) -> str:
        started.append(seed)
        in_flight[0] += 1
        most[0] = max(most[0], in_flight[0])
        await release[seed].wait()
        in_flight[0] -= 1
        return "done"

    async with connect([add]) as source:
        engine = RolloutEngine(agent=ScriptedAgent(script), source=source, verifier=None, concurrency=2)
        jobs = [Job(id=str(n), task=Task(prompt=str(n)), seed=n) for n in range(5)]
        ended: list[str] = []
        async with anyio.create_task_group() as group:

            async def run() -> None:
                rollouts = await engine.run(jobs, sampling=GREEDY, on_rollout=lambda r: ended.append(r.id))
                assert [r.id for r in rollouts] == ["0", "1", "2", "3", "4"]

            group.start_soon(run)
            release[1].set()  # the second ends first, and the third takes its place beside the first
            while 2 not in started:
                await anyio.lowlevel.checkpoint()
            assert ended == ["1"]
            for event in release.values():
                event.set()
    assert most == [2]
