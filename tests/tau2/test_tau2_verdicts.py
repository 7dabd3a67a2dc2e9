"""Our verdict beside those of the package's evaluators: `python examples/tau2/compare.py` does the same with more."""

from __future__ import annotations

from functools import partial

import pytest

pytest.importorskip("tau2.environment", reason="pip install --no-deps -r examples/tau2/requirements.txt")

from compare import MUTATIONS, compared, gold_steps, mutated, package_says, played, quick_environment
from domains import DOMAINS, origin, package_environment, package_tasks
from reward import play, reward_parts


@pytest.mark.parametrize("domain", DOMAINS)
def test_verdicts_are_those_of_the_package_and_no_call_changes_what_worlds_share(domain: str) -> None:
    tasks = list(package_tasks(domain).values())
    gold = compared(domain, (("gold", one, gold_steps(one)) for one in tasks), partial(quick_environment, domain))
    assert gold == {"all": len(tasks), "equal": len(tasks), "right": len(tasks)}
    cases = ((kind, one, mutated(domain, one, kind, 0)) for kind in MUTATIONS for one in tasks[:: len(tasks) // 12])
    found = compared(domain, cases, partial(quick_environment, domain))
    assert found["equal"] == found["all"] > 70
    assert found["all"] * 0.2 < found["right"] < found["all"] * 0.9
    fresh = package_environment(domain)
    assert (origin(domain).get_db_hash(), origin(domain).get_user_db_hash()) == (
        fresh.get_db_hash(),
        fresh.get_user_db_hash(),
    )


def test_the_package_as_it_is_gives_the_same_verdicts() -> None:
    task = package_tasks("retail")["5"]
    for steps, reward in ((gold_steps(task), 1), (gold_steps(task)[:-1], 0)):
        mine = played("retail", task, steps)
        theirs = package_says(task, mine.messages, partial(package_environment, "retail"))
        assert (mine.ours, theirs) == (reward, reward)


def test_a_result_that_the_package_would_not_give_is_noticed() -> None:
    task = package_tasks("retail")["5"]
    messages = played("retail", task, gold_steps(task)).messages
    messages[2].content = messages[2].content.replace("mei_kovacs_8020", "mei_kovacs_8021")
    with pytest.raises(ValueError, match="mei_kovacs_8021"):
        package_says(task, messages, partial(quick_environment, "retail"))


def test_each_part_of_a_reward_is_shown() -> None:
    parts = reward_parts("3", play("retail", "3", ()), [], ["Ten of them: 10."])
    assert parts == {"DB": 0.0, "COMMUNICATE": 1.0}


def test_sums_are_calculated_and_nothing_else_is_evaluated() -> None:
    world = play("retail", "3", ())
    assert world.call_now("calculate", {"expression": "-(2 + 3) * 4 / 8"}).text == "-2.5"
    for expression in ("9**9**9", "1 if 1 else 2", "().__class__", "(1).real", "1/0", "(" * 300, "1_000", "2(3)", ""):
        assert world.call_now("calculate", {"expression": expression}).text.startswith("Error: "), expression


@pytest.mark.parametrize(("domain", "paid"), [("airline", 19), ("retail", 7), ("telecom", 0)])
def test_some_tasks_pay_an_agent_that_does_nothing(domain: str, paid: int) -> None:
    found = [reward_parts(task_id, play(domain, task_id, ()), [], ["Done."]) for task_id in package_tasks(domain)]
    assert sum(all(parts.values()) for parts in found) == paid
