"""What is created can be read, listed, changed and deleted, however the document writes it."""

from __future__ import annotations

from typing import Any

import pytest
from small_apis import NUMBER, TEXT, api, crud, operation, record, ref

from sandboxes.api import ApiCall, ApiTwin

TASK = record(["id"], id=NUMBER, name=TEXT, notes=TEXT, done={"type": "boolean"})
FIELDS = record(name=TEXT, notes=TEXT, done={"type": "boolean"})
WHOLE = record(["name"], name=TEXT, notes=TEXT, done={"type": "boolean"})


def ok(twin: ApiTwin, name: str, /, **arguments: Any) -> Any:
    result = twin.call_now(name, arguments)
    assert not result.is_error, result.text
    return result.structured


def tasks(changes: dict[str, Any], **put: str) -> ApiTwin:
    """Tasks that can be changed by these methods. `put`: what the document says of its PUT."""
    paths = crud("/tasks", "Task", ref("Task"), WHOLE, kind=NUMBER, changes=changes)
    paths["/tasks/{id}"]["put"] |= put
    return ApiTwin(api(paths, Task=TASK))


# -- PUT --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [FIELDS, WHOLE, record(["data"], data=FIELDS)], ids=["free", "requires", "wrapped"])
def test_a_put_changes_only_what_it_is_sent_where_the_document_speaks_of_no_replacement(body: Any) -> None:
    twin = tasks({"put": body})
    made = ok(twin, "createTask", name="Buy milk", notes="2 l")
    sent = {"name": "Buy milk", "done": True}
    sent = {"data": sent} if "data" in body["properties"] else sent
    assert ok(twin, "putTask", id=made["id"], **sent) == {**made, "done": True}
    assert ok(twin, "getTask", id=made["id"])["notes"] == "2 l"
    assert "PUT: 0 replace the row, as the document says; 1 change only what they are sent" in str(twin.report())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"put": WHOLE, "patch": FIELDS}, {}),
        ({"put": FIELDS}, {"operationId": "putTask", "summary": "Replace a task"}),
        ({"put": FIELDS}, {"description": "Overwrites the task. It must exist."}),
        ({"put": FIELDS}, {"description": "Send what is new. The body is a full\nrepresentation of the task."}),
    ],
    ids=["beside a patch", "summary", "first sentence", "full representation"],
)
def test_a_put_replaces_the_row_where_the_document_says_so(changes: Any, words: dict[str, str]) -> None:
    twin = tasks(changes, **words)
    made = ok(twin, "createTask", name="Buy milk", notes="2 l")
    assert "notes" not in ok(twin, "putTask", id=made["id"], name="Buy tea")
    assert ok(twin, "getTask", id=made["id"]) == {"id": made["id"], "name": "Buy tea", "done": False}
    assert "PUT: 1 replace the row" in str(twin.report())


def test_a_replacement_of_one_field_is_no_replacement_of_the_row() -> None:
    twin = tasks({"put": FIELDS}, description="Updates a task. Please note that the present notes will be replaced.")
    made = ok(twin, "createTask", name="Buy milk", notes="2 l")
    assert ok(twin, "putTask", id=made["id"], name="Buy tea")["notes"] == "2 l"


# -- what the twin finds out about itself -----------------------------------------------------------------------------


def test_resources_that_hold_are_counted_and_nothing_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    report = tasks({"put": FIELDS}).report()
    assert [(one.create, one.problem, one.untried) for one in report.round_trips] == [("createTask", "", "")]
    assert report.round_trips[0].operations == {"createTask", "listTasks", "getTask", "putTask", "deleteTask"}
    assert "1 of 1 resources that can be created hold" in str(report)
    assert not caplog.records


def broken_tasks() -> ApiTwin:
    """Tasks whose creation and deletion answer with something that is no task."""
    job = record(["job"], job=TEXT)
    paths = crud("/tasks", "Task", ref("Task"), WHOLE, kind=NUMBER)
    paths["/tasks"]["post"] = operation("createTask", sends=WHOLE, gives=job)
    notes = crud("/notes", "Note", ref("Note"), FIELDS, kind=NUMBER)
    notes["/notes/{id}"]["patch"] = operation("patchNote", names={"id": NUMBER}, status="204")
    return ApiTwin(api({**paths, **notes}, Task=TASK, Note=record(["id"], id=NUMBER, name=TEXT)))


def test_a_resource_that_does_not_hold_is_warned_of_and_in_the_report(caplog: pytest.LogCaptureFixture) -> None:
    report = broken_tasks().report()
    (warning,) = caplog.messages
    assert warning.startswith("Small: 2 of 2 resources do not hold what is created, changed or deleted in this twin: ")
    for name, problem in {
        "createTask": "createTask changes nothing: what is sent is not a row of the collection",
        "createNote": "patchNote changes nothing: no field of the resource goes by the action's name",
    }.items():
        assert f"{name}: {problem}" in warning
        assert problem in str(report)
    assert "0 of 2 resources that can be created hold" in str(report)


def test_a_resource_with_a_rule_is_the_users_own() -> None:
    twin = broken_tasks()

    @twin.rule("createTask", "instead")
    def create(call: ApiCall) -> dict[str, str]:
        return {"job": call.store.add("tasks", call.body)}

    assert [one.create for one in twin.report().broken] == ["createNote"]


# -- what rows are called ---------------------------------------------------------------------------------------------


def holds(document: dict[str, Any]) -> ApiTwin:
    """A twin in which every resource that can be created holds."""
    twin = ApiTwin(document)
    trips = twin.report().round_trips
    assert trips
    assert [(one.create, one.problem, one.untried) for one in trips] == [(one.create, "", "") for one in trips]
    return twin


@pytest.mark.parametrize("named", ["name", "email", "title", "domain_name", "original_account"])
def test_rows_with_an_id_of_the_parameters_type_are_named_by_it(named: str) -> None:
    row = record(["id"], **{named: TEXT, "id": TEXT, "note": TEXT})
    sends = record(**{named: TEXT, "note": TEXT})
    for path, parameter in (("/accounts", "account"), ("/domains", "domain")):
        twin = holds(api(crud(path, "One", row, sends, parameter=parameter, changes={"post": sends})))
        made = ok(twin, "createOne", **{named: "Ann", "note": "new"})
        assert ok(twin, "getOne", **{parameter: made["id"]}) == made


def test_rows_are_named_by_what_the_description_of_the_parameter_says() -> None:
    paths = crud("/tags", "Tag", record(["id"], id=TEXT, name=TEXT), record(["name"], name=TEXT), parameter="tag")
    for method in ("get", "delete"):
        paths["/tags/{tag}"][method]["parameters"][0]["description"] = "name of the tag"
    twin = holds(api(paths))
    made = ok(twin, "createTag", name="v1")
    assert ok(twin, "getTag", tag="v1") == made


def test_an_id_shown_as_text_is_found_by_the_number_that_is_asked_for() -> None:
    row, sends = record(["id"], id=TEXT, name=TEXT), record(["name"], name=TEXT)
    for parameter in ("id", "issue"):
        twin = holds(
            api(crud("/issues", "Issue", row, sends, parameter=parameter, kind=NUMBER, changes={"put": sends}))
        )
        made = ok(twin, "createIssue", name="It leaks")
        assert ok(twin, "getIssue", **{parameter: int(made["id"])}) == made
        assert {table.key for table in twin.report().tables} == {"id"}
