"""A verifier's verdict is taken exactly, and whatever it does wrong is one clear error."""

import math
import threading
from decimal import Decimal
from functools import partial

import anyio
import numpy
import pytest
import torch

from sdk.errors import ConfigError, VerifierError
from sdk.records import Rollout, Task, Verdict
from sdk.verifiers import all_of, check_verifier, run_verifier


def a_rollout(**fields):
    return Rollout(id="r1", task=Task(prompt="p"), answer="shipped", **fields)


def sync_function(rollout):
    return rollout.answer == "shipped"


async def async_function(rollout):
    await anyio.lowlevel.checkpoint()
    return 0.5


class SyncObject:
    def verify(self, rollout):
        return Verdict(score=0.25, components={"a": 1.0}, explanation="why")


class AsyncCallable:
    async def __call__(self, rollout):
        return 1


@pytest.mark.parametrize(
    ("verifier", "verdict"),
    [
        (sync_function, Verdict(score=1.0)),
        (async_function, Verdict(score=0.5)),
        (SyncObject(), Verdict(score=0.25, components={"a": 1.0}, explanation="why")),
        (AsyncCallable(), Verdict(score=1.0)),
        (lambda rollout: async_function(rollout), Verdict(score=0.5)),
        (partial(lambda bonus, rollout: bonus, 0.75), Verdict(score=0.75)),
        (lambda rollout: numpy.float32(0.5), Verdict(score=0.5)),
        (lambda rollout: numpy.bool_(True), Verdict(score=1.0)),
        (lambda rollout: torch.tensor(0.25), Verdict(score=0.25)),
        (lambda rollout: -2, Verdict(score=-2.0)),
        (lambda rollout: Decimal("0.5"), Verdict(score=0.5)),
        (lambda rollout: False, Verdict(score=0.0)),
    ],
)
async def test_functions_and_objects_sync_or_async_give_a_verdict(verifier, verdict):
    check_verifier(verifier)
    assert await run_verifier(verifier, a_rollout()) == verdict


class Unreadable:
    def __getattr__(self, name):
        raise RuntimeError("no attribute")


class Unshown:
    def __repr__(self):
        raise RuntimeError("no text")


class Unsaid(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def yields(rollout):
    yield 1.0


async def yields_async(rollout):
    yield 1.0


def spoiled_verdict():
    verdict = Verdict(score=1.0)
    verdict.score = math.nan
    return verdict


@pytest.mark.parametrize(
    ("returned", "shown"),
    [
        (None, "returned None; return a finite float"),
        (math.nan, "returned nan"),
        (math.inf, "returned inf"),
        (-math.inf, "returned -inf"),
        (10**400, "returned 1000"),
        pytest.param(10**9000, r"returned \(its text cannot be shown: ValueError\)", id="too long to show"),
        (Decimal("nan"), "returned Decimal"),
        (-1e200, r"returned -1e\+200, and a score is from -1e\+15 to 1e\+15"),
        (Verdict.model_construct(score=1e16), r"score is 1e\+16; it must be a number from -1e\+15 to 1e\+15"),
        (Verdict.model_construct(score=1.0, components={"a": 1e300}), r"component 'a' is 1e\+300; it must be"),
        pytest.param(
            Unreadable(), r"returned a Unreadable that cannot be read: RuntimeError: no attribute", id="unreadable"
        ),
        pytest.param(Unshown(), r"returned \(its text cannot be shown: RuntimeError\) \(", id="unshown"),
        ("1.0", r"returned '1\.0' \(builtins\.str\)"),
        ({"score": 1}, r"returned \{'score': 1\} \(builtins\.dict\)"),
        ((1.0, "why"), r"\(builtins\.tuple\)"),
        (1j, r"\(builtins\.complex\)"),
        (spoiled_verdict(), "score is nan"),
    ],
)
async def test_what_is_no_score_is_named_with_the_verifier_and_the_fix(returned, shown):
    def my_check(rollout):
        return returned

    with pytest.raises(VerifierError, match=shown) as caught:
        await run_verifier(my_check, a_rollout())
    assert "the verifier my_check" in str(caught.value)
    assert "return a finite float, a bool, or sdk.Verdict" in str(caught.value)


async def fails_async(rollout):
    return {}["missing"]


def fails_sync(rollout):
    return 1 / 0


def mistypes_a_field(rollout):
    return rollout.anser == "shipped"


@pytest.mark.parametrize(
    ("verifier", "parts"),
    [
        (fails_sync, ["fails_sync raised ZeroDivisionError: division by zero", "return 1 / 0", "in fails_sync"]),
        (
            mistypes_a_field,
            ["'Rollout' object has no attribute 'anser' (", "in mistypes_a_field: return rollout.anser"],
        ),
        (fails_async, ["fails_async raised KeyError: 'missing'", "test_running_verifiers.py:", "in fails_async"]),
    ],
)
async def test_an_exception_inside_carries_type_message_and_line(verifier, parts):
    with pytest.raises(VerifierError) as caught:
        await run_verifier(verifier, a_rollout())
    assert all(part in str(caught.value) for part in parts), str(caught.value)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("error", [SystemExit(3), pytest.fail.Exception("not so"), Unsaid()])
async def test_no_exception_of_a_verifier_takes_the_run_down(error):
    def leaves(rollout):
        raise error

    async def leaves_async(rollout):
        raise error

    for verifier in (leaves, leaves_async):
        with pytest.raises(VerifierError, match=r"SystemExit: 3|Failed: not so|its text cannot be shown"):
            await run_verifier(verifier, a_rollout())


async def test_ctrl_c_while_an_async_verifier_runs_is_no_fault_of_the_verifier():
    async def interrupted(rollout):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await run_verifier(interrupted, a_rollout())


@pytest.mark.parametrize("wrap", [lambda verifier: verifier, all_of])
async def test_a_verifier_cannot_alter_the_trace(wrap):
    def cheat(rollout):
        rollout.answer = "altered"
        rollout.task.expected["answer"] = "altered"
        rollout.messages.clear()
        return True

    rollout = a_rollout()
    before = rollout.model_dump_json()
    await run_verifier(wrap(cheat), rollout)
    assert rollout.model_dump_json() == before


async def test_a_sync_verifier_does_not_block_the_loop():
    began, proceed = threading.Event(), threading.Event()

    def waits(rollout):
        began.set()
        return proceed.wait(60)

    verdicts = []

    async def judge():
        verdicts.append(await run_verifier(waits, a_rollout()))

    async with anyio.create_task_group() as group:
        group.start_soon(judge)
        await anyio.to_thread.run_sync(began.wait)
        proceed.set()  # in time only because the loop is free
    assert [verdict.score for verdict in verdicts] == [1]


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_verifier_that_never_answers_is_given_up(kind):
    let_go = threading.Event()

    def hangs(rollout):
        let_go.wait(30)

    async def hangs_async(rollout):
        await anyio.sleep_forever()

    with pytest.raises(VerifierError, match=r"gave no verdict within 0\.05 s on rollout 'r1'"):
        await run_verifier(hangs if kind == "sync" else hangs_async, a_rollout(), timeout_s=0.05)
    let_go.set()


async def test_a_timeout_of_the_verifiers_own_is_its_own_error():
    async def times_out(rollout):
        raise TimeoutError("the judge did not answer")

    with pytest.raises(VerifierError, match="raised TimeoutError: the judge did not answer"):
        await run_verifier(times_out, a_rollout())


async def test_as_many_sync_verifiers_as_rollouts_are_in_flight_by_default_run_at_once():
    together = threading.Barrier(64)

    def meets(rollout):
        return together.wait(30) >= 0

    verdicts = []

    async def judge():
        verdicts.append(await run_verifier(meets, a_rollout()))

    async with anyio.create_task_group() as group:
        for _ in range(64):
            group.start_soon(judge)
    assert [verdict.score for verdict in verdicts] == [1] * 64


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (None, r"the verifier is None \(NoneType\)"),
        ("verify", r"'verify' \(str\)"),
        (SyncObject, r"is the class SyncObject; give an instance: SyncObject\(\)"),
        (lambda: True, "called with one argument, the rollout"),
        (yields, "the verifier yields yields, so that it gives no score; let it return one"),
        (yields_async, "yields_async yields"),
        (lambda rollout, gold: True, "missing a required argument: 'gold'"),
    ],
)
def test_what_cannot_be_a_verifier_is_found_before_any_work(wrong, message):
    with pytest.raises(ConfigError, match=message):
        check_verifier(wrong)
