"""What is created can be read, listed, changed and deleted, however the document writes it."""

from __future__ import annotations

from typing import Any

import pytest
from small_apis import NUMBER, TEXT, api, crud, record, ref

from sandboxes.api import ApiTwin

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
