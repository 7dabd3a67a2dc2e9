"""Whatever is asked, an answer keeps to the document. The check shares no code with the twin (`random_calls`)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_calls import RandomCalls, play

from mcp_bridge.errors import ToolFailure
from mcp_bridge.openapi.document import Document, read_document
from mcp_bridge.records import ToolResult
from sandboxes.api import ApiTwin

SHOP = Path(__file__).parent / "shop.yaml"
GITEA = Path(__file__).parent / "published" / "gitea.openapi.json"


@pytest.fixture(scope="module")
def shop() -> RandomCalls:
    document = read_document(SHOP)
    return RandomCalls(ApiTwin(document), document)


@pytest.fixture(scope="module")
def gitea() -> RandomCalls:
    document = read_document(GITEA)
    return RandomCalls(ApiTwin(document), document)


def check(calls: RandomCalls, twin: ApiTwin, seed: int, count: int) -> Counter[str]:
    seen: Counter[str] = Counter()
    for call, result in play(calls, twin, seed, count):
        assert not isinstance(result, ToolFailure), (call, str(result))
        assert calls.problem(call, result) is None, (call, result.text[:500])
        seen["refused" if result.is_error else "done"] += 1
    return seen


def said(result: ToolResult | ToolFailure) -> str:
    return result.text if isinstance(result, ToolResult) else str(result)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), world=st.integers(0, 3), scenario=st.sampled_from(["default", "empty"]))
def test_no_answer_breaks_its_schema_and_no_status_is_made_up(
    shop: RandomCalls, seed: int, world: int, scenario: str
) -> None:
    twin = shop.twin.fork()
    twin.reset(world, scenario)
    assert check(shop, twin, seed, 25).total() == 25


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(0, 30))
def test_a_list_holds_exactly_what_exists(shop: RandomCalls, seed: int, steps: int) -> None:
    twin = shop.twin.fork()
    for _ in play(shop, twin, seed, steps):
        pass
    state = twin.state()
    assert [str(one["id"]) for one in twin.call_now("listOrders", {}).structured] == list(state["orders"])
    assert [str(one["id"]) for one in twin.call_now("listBooks", {}).structured["items"]] == list(state["books"])
    for order in state["orders"]:
        lines = twin.call_now("listLines", {"order_id": int(order)}).structured
        own = [key for key in state["lines"] if key.startswith(f"{order}/")]
        assert [f"{order}/{one['number']}" for one in lines] == own


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_same_calls_have_the_same_answers_in_every_fork(shop: RandomCalls, seed: int) -> None:
    one, other = shop.twin.fork(), shop.twin.fork()
    before = shop.twin.state()
    played = [[(call, said(result)) for call, result in play(shop, twin, seed, 20)] for twin in (one, other)]
    assert played[0] == played[1]
    assert one.state() == other.state()
    assert shop.twin.state() == before


# -- a document that this project did not write -----------------------------------------------------------------------


def operations_of(document: Document) -> int:
    return len(document.operations)


def test_a_published_api_is_mostly_stateful(gitea: RandomCalls) -> None:
    report = gitea.twin.report()
    assert operations_of(gitea.document) == len(report.operations) == len(gitea.twin.tools) == 346
    assert (report.stateful, len(report.events), len(report.refused), len(report.answers)) == (284, 25, 12, 25)
    assert len(report.round_trips) == 43
    assert not report.broken
    assert all(one.because for one in [*report.events, *report.refused, *report.answers])


@pytest.mark.parametrize("part", range(4))
def test_every_operation_of_a_published_api_answers_by_its_document(gitea: RandomCalls, part: int) -> None:
    import random

    chance = random.Random(part)
    done = Counter[str]()
    for name in [tool.name for tool in gitea.twin.tools][part::4]:
        twin = gitea.twin.fork()
        for _ in range(2):
            call = gitea.call(chance, name, twin)
            result = twin.call_now(*call)
            assert gitea.problem(call, result) is None, (call, result.text[:500])
            done["refused" if result.is_error else "done"] += 1
    assert done["done"] > 2 * done["refused"]


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_published_api_keeps_to_its_document_from_call_to_call(gitea: RandomCalls, seed: int) -> None:
    assert check(gitea, gitea.twin.fork(), seed, 30).total() == 30


def test_an_issue_tracker_works_as_one_would_expect(gitea: RandomCalls) -> None:
    twin = gitea.twin.fork()
    path = next(key for key in twin.state()["repos"])
    owner, repo = path.split("/")
    where = {"owner": owner, "repo": repo}
    label = twin.call_now("issueCreateLabel", {**where, "name": "bug", "color": "ff0000"}).structured
    made = twin.call_now("issueCreateIssue", {**where, "title": "It leaks", "labels": [label["id"]]}).structured
    assert (made["title"], [one["name"] for one in made["labels"]]) == ("It leaks", ["bug"])
    at = {**where, "index": made["number"]}
    twin.call_now("issueCreateComment", {**at, "body": "Which valve?"})
    assert [one["body"] for one in twin.call_now("issueGetComments", at).structured] == ["Which valve?"]
    assert twin.call_now("issueEditIssue", {**at, "state": "closed"}).structured["state"] == "closed"
    closed = twin.call_now("issueListIssues", {**where, "state": "closed"}).structured
    assert made["id"] in [one["id"] for one in closed]
    assert not twin.call_now("repoDelete", where).is_error
    assert twin.call_now("issueGetIssue", at).text.startswith("404 Not Found")
