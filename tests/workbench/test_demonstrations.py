"""Tasks and their demonstrations, from gold calls alone, on the folder of a few rows and on the benchmark's."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from clone import SYSTEMS, Call, Query, queries
from derive import Derivation
from office import Office
from office_tasks import split, tasks
from outcome import verify
from small_folder import QUERIES, write_queries, write_small_folder, write_table

import sdk
from sdk.policies.scripted import replay_demonstration


def query(system: str, wording: str, *gold: Call, **values: str) -> Query:
    return Query(wording.format(**values), system, (system,), "template", wording, gold)


def paths(folder: Path, *found: Query) -> list[str]:
    """The calls of each demonstration in short; empty where there is none."""
    made = Derivation(folder, f"{found[0].domain}+company_directory", found).paths()
    return [shown(made[one.text]) if one.text in made else "" for one in found]


def shown(path: Sequence[sdk.Message]) -> str:
    calls = [f"{c.name}({json.dumps(c.arguments)[1:-1]})" for message in path for c in message.tool_calls]
    return " > ".join(calls)


def delete(number: int) -> Call:
    return "delete_email", {"email_id": f"0000000{number}"}


def test_ids_are_looked_up_with_what_the_request_says(small: Path) -> None:
    found = [
        query("email", "Delete my last email from {name}", delete(7), name="nadia"),
        query("email", "Delete my last email from {name}", delete(8), name="raj"),
    ]
    assert paths(small, *found) == [
        'search_emails("query": "nadia") > delete_email("email_id": "00000007")',
        'search_emails("query": "raj") > delete_email("email_id": "00000008")',
    ]


def test_a_rule_has_the_bounds_that_find_what_a_shorter_one_misses(small: Path) -> None:
    wording = "Delete the email from {name} on {date}"
    days = [query("email", wording, delete(n), name="nadia", date=f"November 2{n}") for n in (1, 4)]
    looked = (
        'search_emails("date_min": "2023-11-2{0}", "date_max": "2023-11-2{0}") > delete_email("email_id": "0000000{0}")'
    )
    assert paths(small, *days) == [looked.format(n) for n in (1, 4)]


def test_the_address_of_who_is_named_comes_from_the_directory(small: Path) -> None:
    gold = ("forward_email", {"email_id": "00000003", "recipient": "raj.patel@atlas.com"})
    wording = "Forward the email about '{subject}' to {recipient}"
    (path,) = paths(small, query("email", wording, gold, subject="Budget 3", recipient="raj"))
    assert [call.partition("(")[0] for call in path.split(" > ")] == [
        "search_emails", "find_email_address", "forward_email",
    ]  # fmt: skip


def test_what_a_search_of_five_does_not_show_is_looked_up_again(small: Path) -> None:
    system = "customer_relationship_manager"
    set_to = {"field": "assigned_to_email", "new_value": "raj.patel@atlas.com"}
    gold = [("update_customer", {"customer_id": f"0000000{number}", **set_to}) for number in range(1, 7)]
    wording = "Give all of {name}'s leads that want {product} to {other}"
    (path,) = paths(small, query(system, wording, *gold, name="nadia", product="hardware", other="raj"))
    calls = [call.partition("(")[0] for call in path.split(" > ")]
    assert calls == [
        "find_email_address", "search_customers", "find_email_address", *["update_customer"] * 5,
        "search_customers", "update_customer",
    ]  # fmt: skip


def test_a_condition_is_looked_up_and_nothing_done_where_it_is_not_met(small: Path) -> None:
    wording = "If I haven't met with {name} in the last {days} days, book 'catch-up' with them tomorrow at 10"
    event = {"event_name": "catch-up", "participant_email": "nadia.moreau@atlas.com"}
    gold = ("create_event", event | {"event_start": "2023-12-01 10:00:00", "duration": "30"})
    met, not_met = paths(
        small,
        query("calendar", wording, name="raj", days="3"),
        query("calendar", wording, gold, name="nadia", days="4"),
    )
    looked = 'search_events("query": "{}", "time_min": "2023-11-{} 00:00:00", "time_max": "2023-11-30 00:00:00")'
    assert met == looked.format("raj", 27)
    assert not_met.startswith(looked.format("nadia", 26) + " > find_email_address")


def test_figures_are_looked_up_with_the_tool_of_their_name_over_the_plotted_period(small: Path) -> None:
    wording = "If {metric} was more than {least} since {date}, make a line plot of it since then"
    period = {"time_min": "2023-11-27", "time_max": "2023-11-29"}
    plot = ("create_plot", period | {"value_to_plot": "user_engaged", "plot_type": "line"})
    none, plotted = paths(
        small,
        query("analytics", wording, metric="total visits", least="9", date="November 28"),
        query("analytics", wording, plot, metric="engaged users", least="0", date="November 27"),
    )
    assert none == 'total_visits_count("time_min": "2023-11-28")'
    assert plotted.startswith('engaged_users_count("time_min": "2023-11-27") > create_plot(')


def test_a_task_whose_gold_calls_nothing_explains_gets_no_demonstration(small: Path) -> None:
    gold = ("add_customer", {"customer_name": "Ann", "assigned_to_email": "raj.patel@atlas.com", "status": "Lead"})
    wording = "Add {name} as a lead for whoever has the fewest tasks"
    assert paths(small, query("customer_relationship_manager", wording, gold, name="Ann")) == [""]


def test_a_template_trains_on_at_most_five_tasks_and_holds_other_wordings_out() -> None:
    def of(*counts: int) -> Counter[tuple[str, str]]:
        found = [
            query("email", f"wording {place} {{n}}", n=str(n))
            for place, count in enumerate(counts)
            for n in range(count)
        ]
        sides = split(found)
        seen = {one.wording for one in found if sides[one.text][0] == "train"}
        assert seen.isdisjoint(one.wording for one in found if sides[one.text][0] == "heldout")
        return Counter(sides.values())

    train, held_out = ("train", "train"), ("heldout", "wordings")
    assert of(5, 2, 3) == {train: 5, held_out: 5}
    assert of(8, 1, 1) == {train: 2, held_out: 8}
    assert of(6, 4) == {train: 4, held_out: 6}
    assert of(10) == {held_out: 10}


@pytest.fixture(scope="module")
def with_tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("with_tasks")
    write_small_folder(folder)
    write_queries(folder)
    return folder


def played(folder: Path, task: sdk.Task) -> float:
    rollout = sdk.rollout(Office(folder), task, model=replay_demonstration(task), verifier=verify)
    assert rollout.verdict is not None, rollout.failure
    return rollout.verdict.score


def test_two_templates_of_a_system_are_held_out_and_demonstrations_are_right(with_tasks: Path) -> None:
    made = list(tasks(with_tasks))
    assert Counter(task.tags["set"] for task in made) == {"templates": 8, "train": 2, "wordings": 2}
    assert len({task.id for task in made}) == 12
    assert {task.setup["scenario"] for task in made} == {"email+company_directory"}
    trained = [task for task in made if task.demonstration]
    assert {task.tags["set"] for task in trained} == {"train"}
    assert [played(with_tasks, task) for task in trained] == [1.0, 1.0]


def test_a_rollout_that_changes_the_wrong_thing_is_wrong_with_side_effects(with_tasks: Path) -> None:
    task = next(task for task in tasks(with_tasks) if task.demonstration)
    (_, act, end) = task.demonstration
    wrong = act.tool_calls[0].model_copy(update={"arguments": {"email_id": "00000001"}})
    other = task.model_copy(update={"demonstration": [act.model_copy(update={"tool_calls": [wrong]}), end]})
    rollout = sdk.rollout(Office(with_tasks), other, model=replay_demonstration(other), verifier=verify)
    assert rollout.verdict is not None
    assert rollout.verdict.score == 0
    assert rollout.verdict.components["side_effects"] == 1


def test_a_rollout_that_meets_a_limit_is_wrong_though_its_office_is_right(with_tasks: Path) -> None:
    task = next(task for task in tasks(with_tasks) if task.demonstration)
    agent = replay_demonstration(task)
    rollout = sdk.rollout(Office(with_tasks), task, model=agent, verifier=verify, limits={"max_turns": 2})
    assert rollout.verdict is not None
    assert (rollout.stop_reason, rollout.verdict.score) == ("turn_limit", 0)
    assert rollout.verdict.components["side_effects"] == 0


@pytest.mark.timeout(1800)
def test_all_training_tasks_of_one_system_have_a_demonstration_that_is_right(benchmark_folder: Path) -> None:
    made = list(tasks(benchmark_folder, SYSTEMS))
    trained = [task for task in made if task.tags["split"] == "train"]
    assert Counter(task.tags["set"] for task in made) == {"train": 166, "wordings": 214, "templates": 100}
    assert max(Counter(task.tags["template"] for task in trained).values()) == 5
    assert [task.id for task in trained if not task.demonstration] == []
    assert [task.id for task in trained[::4] if played(benchmark_folder, task) != 1] == []


def test_the_files_of_the_clone_are_read_with_the_systems_other_names(tmp_path: Path) -> None:
    write_queries(tmp_path)
    row = ["Delete Ann", "[]", "Delete {name}", "Delete {name}", "['crm', 'email']"]
    write_table(tmp_path / "queries_and_answers" / "multi_domain_queries_and_answers.csv", [QUERIES, row])
    last = queries(tmp_path)[-1]
    assert (last.domain, last.systems) == ("multi_domain", ("email", "customer_relationship_manager"))
