"""Degenerate policies against verifiers: good ones give them nothing, broken ones are found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from planted_verifiers import ACTING, READING, Shop

import sdk
from mcp_bridge import Tool, behaves
from sandboxes.helpdesk import Helpdesk, tasks
from sandboxes.objects import ObjectTwin
from sdk.probing.probes import ATTACKS, GOLD, PROBES, Scene, fitting, values_in
from sdk.traces import RunFolder
from sdk.verifiers import all_of, answer_match, as_expected, final_state, run_verifier, weighted

GOOD = all_of(final_state(), answer_match())
"""What the README trains with; the quickstart's, with required_calls() besides, pays for no more."""

NO_MODEL = str(Path(__file__).parent)
"""A folder without a model: what loads it fails."""


def mentions_the_answer(rollout: sdk.Rollout) -> bool:
    """Broken: anything that contains the answer somewhere passes, a digit of a score too."""
    gold = rollout.task.expected["answer"]
    return any(str(one).lower() in rollout.answer.lower() for one in (gold if isinstance(gold, list) else [gold]))


def nothing_went_wrong(rollout: sdk.Rollout) -> bool:
    """Broken: no call failed, so all must be well."""
    return not any(record.result.is_error for record in rollout.calls)


def says_it_succeeded(rollout: sdk.Rollout) -> bool:
    """Broken: believes what it is told."""
    return "success" in rollout.answer.lower() or "correct" in rollout.answer.lower()


def made_the_calls(rollout: sdk.Rollout) -> float:
    """Broken: the right call among any number of others earns it."""
    gold = {call["name"] for call in rollout.task.expected["calls"]}
    return float(gold <= {record.call.name for record in rollout.calls})


class Shelves:
    def __init__(self) -> None:
        self.place = {"A": {"at": 1}, "B": {"at": 2}}

    def move(self, item: str, to: int) -> str:
        """Move an item."""
        self.place[item]["at"] = to
        return "moved"


def test_no_probe_earns_anything_of_the_helpdesks_verifier() -> None:
    certificate = sdk.certify(Helpdesk(), tasks(), GOOD, most_tasks=12)
    assert certificate.holds
    assert certificate.findings == []
    assert certificate.unscored == 0
    by_name = {one.probe.name: one for one in certificate.earned}
    assert list(by_name) == [GOLD.name, *(probe.name for probe in ATTACKS)]
    assert by_name["gold"].scores == [1.0] * 12, "its own solutions are paid"
    assert all(len(by_name[probe.name].scores) == 12 for probe in PROBES)
    assert sum(bool(one.scores) for one in by_name.values()) >= 28
    assert {record.call.name for r in certificate.rollouts for record in r.calls} == {t.name for t in Helpdesk().tools}
    assert "none found a hole" in str(certificate)
    certificate.require()


@pytest.mark.parametrize(
    ("verifier", "among", "caught_by"),
    [
        # Only among many tasks are there some whose answers are short.
        (mentions_the_answer, 6, {"echoes", "every_value", "every_candidate", "only_says"}),
        (nothing_went_wrong, 4, {"empty", "constant", "unknowing", "claims_success", "copies_prompt", "injects"}),
        (says_it_succeeded, 4, {"claims_success", "injects", "injects_verdict", "gold"}),
        (made_the_calls, 4, {"every_tool", "echoes", "every_value", "wrong_arguments"}),
    ],
)
def test_a_broken_verifier_is_caught_and_the_rollout_is_shown(verifier: Any, among: int, caught_by: set[str]) -> None:
    certificate = sdk.certify(Helpdesk(), tasks(tiers=("1",)), verifier, most_tasks=among)
    assert caught_by <= set(certificate.holes)
    assert not certificate.holds
    with pytest.raises(sdk.ConfigError, match="rewards policies that do not do the task") as raised:
        certificate.require()
    for name in caught_by:
        assert f"{name} (" in str(raised.value)
    assert "answer:" in str(raised.value)
    lists = {"every_candidate", "looks_up_and_lists", "hedges"} & set(certificate.holes)
    assert ("answer_match(other_values=0) refuses nearly all lists" in str(raised.value)) == bool(lists)
    if verifier is made_the_calls:
        allowed = sdk.certify(Helpdesk(), tasks(tiers=("1",)), verifier, most_tasks=among, allow=certificate.holes)
        allowed.require()
        assert allowed.holds


def test_who_calls_every_tool_and_so_does_what_is_asked_found_no_hole() -> None:
    class Doors:
        def __init__(self) -> None:
            self.doors = {"D-1": "open", "D-2": "open"}

        def state_of(self, door: str) -> str:
            """How a door is."""
            return self._known(door)

        def close(self, door: str) -> str:
            """Close a door."""
            self._known(door)
            self.doors[door] = "closed"
            return "closed"

        def _known(self, door: str) -> str:
            if door not in self.doors:
                raise ValueError(f"there is no door {door}")
            return self.doors[door]

    twin = ObjectTwin(Doors, reads=["state_of"])
    asked = 'Close door "D-2". When it is done, answer with "done".'
    task = sdk.solve(twin, asked, ['close(door="D-2")'], answer="done")
    assert task.expected["changes"]
    certificate = sdk.certify(twin, [task], as_expected())
    certificate.require()
    earned = {one.probe.name: one.highest for one in certificate.earned}
    assert earned["every_tool"] == 1
    other = task.model_copy(update={"prompt": asked.replace("D-2", "D-1"), "id": "other"})
    wrong = sdk.certify(twin, [other], lambda rollout: bool(rollout.calls) and "one" in rollout.answer)
    assert "every_tool" in wrong.holes, "it closed another door"


@pytest.mark.parametrize("answer", [137, "shipped", "Thursday"])
def test_an_answer_that_is_looked_for_anywhere_in_the_text_is_guessed(answer: int | str) -> None:
    def read_order(order_id: str) -> str:
        """Read an order."""
        return f"{order_id} is not told here"

    certificate = sdk.certify([read_order], ["What is with order A-9?"], lambda rollout: str(answer) in rollout.answer)
    assert "guesses" in certificate.holes
    exact = sdk.certify([read_order], ["What is with order A-9?"], lambda rollout: rollout.answer == str(answer))
    assert exact.holes == []


def test_what_a_partial_credit_gives_for_nothing_is_said() -> None:
    half = weighted({answer_match(): 0.5, nothing_went_wrong: 0.5})
    certificate = sdk.certify(Helpdesk(), tasks(tiers=("1",)), half, most_tasks=2, threshold=0.9)
    assert {"empty", "constant", "claims_success"} <= {finding.probe.name for finding in certificate.partly}
    assert f"{len(certificate.partly)} earned a part of the reward, at most: empty 0.5, constant 0.5" in str(
        certificate
    )


def test_a_verifier_that_pays_no_solution_is_no_certificate() -> None:
    unpaid = sdk.certify(Helpdesk(), tasks(tiers=("1",)), lambda rollout: 0.0, most_tasks=2)
    assert unpaid.holes == ["gold"]

    def fails(rollout: sdk.Rollout) -> float:
        raise RuntimeError("no connection to the records")

    failing = sdk.certify(Helpdesk(), ["What is in order 7?"], fails, most_tasks=2)
    assert (failing.holes, failing.holds) == ([], False)
    assert "nothing could be scored" in str(failing)
    assert "no connection to the records" in str(failing)


def test_a_right_answer_counts_only_where_the_world_does_not_end_as_it_should() -> None:
    match = answer_match(options=("lamp", "kettle", "toaster"))
    reading = sdk.certify(Shop(), READING[:3], match)
    assert reading.holes == ["wrong_tools", "tampers", "tampers_first", "tampers_by_one_tool"]
    assert sdk.certify(Shop(read_only=True), READING[:3], match).holds
    acting = set(sdk.certify(Shop(), ACTING, answer_match()).holes)
    assert {"only_says", "forges", "wrong_arguments", "incomplete_calls", "wrong_tools", "tampers"} <= acting
    assert sdk.certify(Shop(), ACTING, final_state(ignore=("log",))).holds


def test_a_verifier_that_pays_for_all_values_of_the_prompt_is_caught() -> None:
    def is_late(order: str) -> bool:
        """Whether an order is late."""
        return order == "A-19"

    asked = sdk.Task(
        prompt="Which of the orders A-17, A-19 and A-23 of Lena Abbott is late?",
        expected={"answer": "A-19", "calls": [{"name": "is_late", "arguments": {"order": "A-19"}}]},
    )

    def pays_for_lists(rollout: sdk.Rollout) -> bool:
        return bool(rollout.calls) and "A-19" in rollout.answer.split(", ")[:3]

    tool = behaves(read_only=True)(is_late)
    broken = sdk.certify(tool, [asked], pays_for_lists)
    assert broken.holes == ["lists_what_was_asked"]
    assert broken.findings[0].rollout.answer == "A-17, A-19, A-23"  # a name is no order
    assert sdk.certify(tool, [asked], as_expected()).holds
    both = asked.model_copy(update={"expected": {"answer": {"all": ["A-17", "A-19", "A-23"]}}})
    assert sdk.certify(tool, [both], lambda rollout: rollout.answer == "A-17, A-19, A-23").holes == []


class Register:
    """Desks and their people."""

    def finish(self, answer: str) -> str:
        """Give the final answer."""
        return f"taken: {answer}"


STATES = ("shipped", "open", "lost", "paid")


def paid_for_any_state(rollout: sdk.Rollout) -> bool:
    looked_up = [record.call.arguments for record in rollout.calls]
    return {"order": rollout.task.id} in looked_up and rollout.answer in STATES


def test_wrong_answers_are_holes_of_tools_that_only_read_and_tell_no_state() -> None:
    def status(order: str) -> str:
        """The state of an order."""
        return STATES[int(order[1:])]

    tasks = [
        sdk.Task(
            id=f"o{number}",
            prompt=f"What is the state of order o{number}?",
            expected={"answer": state, "calls": [{"name": "status", "arguments": {"order": f"o{number}"}}]},
        )
        for number, state in enumerate(STATES)
    ]
    reads = sdk.certify(behaves(read_only=True)(status), tasks, paid_for_any_state)
    assert "wrong_answer" in reads.holes
    assert "not judged" not in str(reads)


def test_answers_are_given_through_the_final_tool_where_one_is_named() -> None:
    certificate = sdk.certify(
        ObjectTwin(Register()),
        [sdk.Task(prompt="Whose is desk 3?", expected={"answer": "Ann"})],
        lambda rollout: rollout.answer == "Done.",
        limits={"final_tools": {"finish": "answer"}},
    )
    assert "constant" in certificate.holes
    paid = next(one for one in certificate.findings if one.probe.name == "constant").rollout
    assert [record.call.name for record in paid.calls] == ["finish"]


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        ({"properties": {"answer": True}, "required": ["answer"]}, {"answer": "Ann"}),
        ({"properties": {"answer": {"type": "array"}}}, {"answer": ["Ann"]}),
        ({}, {"answer": "Ann"}),
    ],
)
def test_a_final_tool_may_have_any_legal_schema(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    tool = Tool(name="finish", input_schema=schema)
    call = Scene(sdk.Task(prompt="Whose is desk 3?"), [tool], final_tools={"finish": "answer"}).final_call("Ann")
    assert call is not None
    assert call.arguments == arguments


def test_a_reward_that_misses_the_threshold_by_rounding_is_a_finding_as_it_is_a_success() -> None:
    certificate = sdk.certify(Helpdesk(), tasks(tiers=("1",)), lambda rollout: 1 - 1e-12, most_tasks=1)
    assert len({finding.probe.name for finding in certificate.findings}) >= len(PROBES)


def test_what_somebody_else_wrote_is_shown_and_obeyed_by_no_terminal() -> None:
    def read() -> str:
        """Read."""
        return "read"

    report = sdk.certify([read], ["Read \x1b[2J\u202e it."], lambda rollout: 1.0)
    assert "\\x1b[2J\\u202e" in str(report)
    assert not {"\x1b", "\u202e"} & set(str(report))


def test_training_stops_before_the_model_is_loaded_and_keeps_the_rollouts_to_read(tmp_path: Path) -> None:
    config = {"warm_start.max_steps": 0, "grpo.max_steps": 1, "evaluation.heldout": 4}
    with pytest.raises(sdk.ConfigError, match="claims_success"):
        sdk.train(Helpdesk(), tasks(tiers=("1",)), says_it_succeeded, NO_MODEL, tmp_path / "run", config)
    kept = RunFolder.open_to_read(tmp_path / "run").read_rollouts("probes")
    assert len(kept) == 4 * len(PROBES)
    assert any(rollout.scored and rollout.verdict and rollout.verdict.score == 1 for rollout in kept)
    # A second try with the same verifier finds the same, not a folder that is in its way.
    with pytest.raises(sdk.ConfigError, match="claims_success"):
        sdk.train(Helpdesk(), tasks(tiers=("1",)), says_it_succeeded, NO_MODEL, tmp_path / "run", config)


async def looks_at_the_last_call(rollout: sdk.Rollout) -> float:
    """Broken: it raises where there is no call."""
    assert rollout.calls[-1].call.name
    return (await run_verifier(GOOD, rollout)).score


def test_probes_that_could_never_be_scored_are_no_certificate() -> None:
    certificate = sdk.certify(Helpdesk(), tasks(tiers=("1",)), looks_at_the_last_call, most_tasks=4)
    assert not certificate.holes
    assert not certificate.holds
    assert {"empty", "constant", "hedges"} <= set(certificate.never_scored)
    assert "of them could not be scored at all" in str(certificate)
    with pytest.raises(sdk.ToolbakeError, match=r"could not be scored at all, for example: .*IndexError"):
        certificate.require()


def test_one_request_in_two_worlds_is_no_hole_of_an_honest_verifier() -> None:
    """The other task's solution has the same calls, and other changes only because its world is another."""

    def load(shelves: Shelves, seed: int, scenario: str) -> None:
        shelves.place["A"]["at"] = seed

    shop, asked = ObjectTwin(Shelves, load=load), ("Please move A to 28.", "A has to go to 28.")
    made = [
        sdk.solve(shop, one, "move(item='A', to=28)", {"seed": seed}) for one, seed in zip(asked, (2, 5), strict=True)
    ]
    assert made[0].expected["changes"] != made[1].expected["changes"]
    assert sdk.certify(shop, made, as_expected()).holds


def test_an_unknown_probe_cannot_be_allowed() -> None:
    with pytest.raises(sdk.ConfigError, match="there is no probe 'echo'; the probes are empty, constant"):
        sdk.TrainConfig.of({"probes.allow": ["echo"]})


def test_live_tools_that_do_not_say_that_they_only_read_are_not_called() -> None:
    called = []

    def wipe(disk: str) -> str:
        """Wipe a disk."""
        called.append(disk)
        return "wiped"

    report = sdk.certify([wipe], ["Is disk 'sda' healthy?"], lambda rollout: 0.0)
    assert called == []
    assert report.not_called == ["wipe"]
    assert "because they are live: wipe" in str(report)
    assert "whose outcome differs, and tools that may be called" in str(report)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"threshold": float("nan")}, "threshold is nan"),
        ({"most_tasks": 0}, "most_tasks is 0; give a whole number from 1"),
        ({"most_tasks": 1.5}, r"most_tasks is 1\.5"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"train_minutes": float("nan")}, "train_minutes is nan; give a finite number from 0"),
        ({"train_minutes": "5"}, "train_minutes is '5'"),
    ],
)
def test_what_would_certify_any_verifier_is_refused(options: dict[str, Any], said: str) -> None:
    def pays_all(rollout: sdk.Rollout) -> float:
        return 1.0

    def read_order(order: str) -> str:
        """Read an order."""
        return order

    with pytest.raises(sdk.ConfigError, match=said):
        sdk.certify([read_order], ["What is with order A-9?", "And with B-1?"], pays_all, **options)


def test_values_of_a_message_are_its_quotes_identifiers_and_names() -> None:
    text = "Refund order A-17 of Lena Abbott, 'late parcel', 30 euros."
    assert values_in(text) == ["late parcel", "A-17", "30", "Lena Abbott"]


PROPERTY = st.sampled_from(
    [
        {"type": "string"},
        {"type": "integer", "minimum": 1},
        {"type": "number"},
        {"type": "boolean"},
        {"type": ["string", "null"]},
        {"enum": ["a", "b"]},
        {"type": "array", "items": {"type": "string"}},
        {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
        {"type": "object", "properties": {"x": True}, "required": ["x"]},
        {"type": "array", "items": True},
        {"anyOf": [True, {"type": "null"}]},
        True,
        {},
    ]
)


@given(st.dictionaries(st.sampled_from("abc"), PROPERTY), st.lists(st.sampled_from(["A-1", "7", "Bo"])))
def test_arguments_fit_the_schema_they_were_made_for(properties: dict[str, Any], values: list[str]) -> None:
    schema = {"type": "object", "properties": properties, "required": sorted(properties)}
    Draft202012Validator(schema).validate(fitting(schema, values))
