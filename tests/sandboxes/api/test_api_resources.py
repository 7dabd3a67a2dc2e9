"""What is created can be read, listed, changed and deleted, however the document writes it."""

from __future__ import annotations

from typing import Any

import pytest
from small_apis import NUMBER, TEXT, api, content, crud, listed, operation, record, ref

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
    """Tasks whose creation sends and gives what is no task, and notes whose change sends nothing."""
    job = record(["job"], job=TEXT)
    paths = crud("/tasks", "Task", ref("Task"), WHOLE, kind=NUMBER)
    paths["/tasks"]["post"] = operation("createTask", sends=job, gives=job)
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
    assert twin.call_now("createTask", {"job": "j1"}).is_error  # it would answer as if there were a task

    @twin.rule("createTask", "instead")
    def create(call: ApiCall) -> dict[str, str]:
        return {"job": call.store.add("tasks", {"id": 77, "name": call.body["job"]})}

    assert [one.create for one in twin.report().broken] == ["createNote"]
    assert not twin.call_now("createTask", {"job": "j1"}).is_error


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


def test_an_id_or_a_key_in_one_parameter_is_either() -> None:
    row, sends = record(["id", "key"], id=TEXT, key=TEXT, name=TEXT), record(["name"], name=TEXT)
    twin = holds(api(crud("/issues", "Issue", row, sends, parameter="issueIdOrKey")))
    made = ok(twin, "createIssue", name="It leaks")
    assert ok(twin, "getIssue", issueIdOrKey=made["id"]) == ok(twin, "getIssue", issueIdOrKey=made["key"]) == made


def test_a_name_in_the_metadata_names_the_row() -> None:
    row = record(["metadata"], metadata=record(name=TEXT, labels={"type": "object"}), spec=record(size=NUMBER))
    paths = crud("/nodes", "Node", row, row, parameter="name", changes={"put": row, "patch": row})
    twin = holds(api(paths))
    assert all(one["metadata"]["name"] for one in ok(twin, "listNodes"))
    made = ok(twin, "createNode", metadata={"name": "n1"}, spec={"size": 2})
    assert ok(twin, "getNode", name="n1") == made
    assert ok(twin, "patchNode", name="n1", metadata={"labels": {"a": "b"}})["metadata"]["name"] == "n1"
    assert ok(twin, "createNode", metadata={"labels": {}})["metadata"]["name"]
    assert twin.call_now("createNode", {"metadata": {"name": "n1"}}).text.startswith("409")


# -- paths ------------------------------------------------------------------------------------------------------------


def test_paths_that_end_in_json_are_paths() -> None:
    row, sends = record(["sid"], sid=TEXT, body=TEXT), record(["Body"], Body=TEXT)
    account, by_account = record(["sid"], sid=TEXT), {"AccountSid": TEXT}
    message = {**by_account, "Sid": TEXT}
    paths = {
        "/Accounts.json": {"get": operation("listAccounts", gives=listed(account))},
        "/Accounts/{AccountSid}.json": {"get": operation("getAccount", gives=account, names=by_account)},
        "/Accounts/{AccountSid}/Messages.json": {
            "get": operation("listMessages", gives=record(messages=listed(row), page=NUMBER), names=by_account),
            "post": operation("createMessage", sends=sends, gives=row, names=by_account, status="201"),
        },
        "/Accounts/{AccountSid}/Messages/{Sid}.json": {
            "get": operation("getMessage", gives=row, names=message),
            "delete": operation("deleteMessage", names=message, status="204"),
        },
    }
    twin = holds(api(paths))
    sid = ok(twin, "listAccounts")[0]["sid"]
    made = ok(twin, "createMessage", AccountSid=sid, Body="Hi")
    assert made["body"] == "Hi"
    assert made in ok(twin, "listMessages", AccountSid=sid)["messages"]
    assert not twin.report().events


PET = record(
    ["name", "photoUrls"],
    id=NUMBER,
    name=TEXT,
    photoUrls=listed(TEXT),
    status={"type": "string", "enum": ["available", "pending", "sold"]},
    tags=listed(record(id=NUMBER, name=TEXT)),
)


def pets() -> ApiTwin:
    """Pets as in a well-known example: no list of all of them, a PUT of the collection, changes by query."""
    names, form = {"petId": NUMBER}, {"name": TEXT, "status": TEXT}
    pet = ref("Pet")
    paths = {
        "/pet": {
            "post": operation("addPet", sends=pet, gives=pet),
            "put": operation("updatePet", sends=pet, gives=pet),
        },
        "/pet/findByStatus": {"get": operation("findPetsByStatus", gives=listed(pet), query={"status": TEXT})},
        "/pet/findByTags": {"get": operation("findPetsByTags", gives=listed(pet), query={"tags": listed(TEXT)})},
        "/pet/sold": {"get": operation("listSoldPets", gives=listed(pet))},
        "/pet/{petId}": {
            "get": operation("getPetById", gives=pet, names=names),
            "post": operation("updatePetWithForm", gives=pet, names=names, query=form),
            "delete": operation("deletePet", names=names),
        },
    }
    return holds(api(paths, Pet=PET))


def test_a_put_of_the_collection_changes_the_row_that_it_names() -> None:
    twin = pets()
    made = ok(twin, "addPet", name="Rex", photoUrls=[], status="available")
    changed = ok(twin, "updatePet", id=made["id"], name="Max", photoUrls=["a"])
    assert changed == {**made, "name": "Max", "photoUrls": ["a"]} == ok(twin, "getPetById", petId=made["id"])
    assert twin.call_now("updatePet", {"id": 1, "name": "Max", "photoUrls": []}).text.startswith("404")
    assert twin.call_now("updatePet", {"name": "Max", "photoUrls": []}).is_error
    assert not twin.report().events


def test_columns_may_be_sent_in_the_query() -> None:
    twin = pets()
    made = ok(twin, "addPet", name="Rex", photoUrls=[], status="available")
    assert ok(twin, "updatePetWithForm", petId=made["id"], name="Max") == {**made, "name": "Max"}


def test_a_literal_path_below_a_collection_lists_its_rows() -> None:
    twin = pets()
    made = ok(twin, "addPet", name="Rex", photoUrls=[], status="sold", tags=[{"id": 1, "name": "kind"}])
    other = ok(twin, "addPet", name="Max", photoUrls=[], status="pending")
    sold = ok(twin, "findPetsByStatus", status="sold")
    assert made in sold
    assert {pet["status"] for pet in sold} == {"sold"}
    assert sold == ok(twin, "listSoldPets")
    assert ok(twin, "findPetsByTags", tags=["kind"]) == [made]
    assert other in ok(twin, "findPetsByStatus")
    assert {table.table for table in twin.report().tables} == {"pet"}


def test_a_creation_that_answers_one_of_several_things_creates() -> None:
    row = record(["id"], id=NUMBER, name=TEXT, region=TEXT)
    names = record(["names"], names=listed(TEXT), region=TEXT)
    paths = crud("/droplets", "Droplet", record(droplet=ref("Droplet")), TEXT, parameter="droplet_id", kind=NUMBER)
    several = record(["droplets"], droplets=listed(ref("Droplet")), links={"type": "object"})
    one = record(["droplet"], droplet=ref("Droplet"), links={"type": "object"})
    paths["/droplets"] = {
        "get": operation("listDroplets", gives=several),
        "post": operation(
            "createDroplet",
            sends={"oneOf": [record(["name"], name=TEXT, region=TEXT), names]},
            gives={"oneOf": [one, several]},
            status="202",
        ),
    }
    twin = holds(api(paths, Droplet=row))
    made = ok(twin, "createDroplet", body={"name": "web1", "region": "fra"})["droplet"]
    assert (made["name"], made["region"]) == ("web1", "fra")
    assert ok(twin, "getDroplet", droplet_id=made["id"])["droplet"] == made
    assert made in ok(twin, "listDroplets")["droplets"]


def test_a_row_that_may_also_be_a_deleted_one_is_a_row() -> None:
    row = record(["id"], id=TEXT, name=TEXT, email=TEXT)
    gone = record(["id", "deleted"], id=TEXT, deleted={"type": "boolean", "enum": [True]})
    paths = crud("/customers", "Customer", row, record(name=TEXT, email=TEXT), parameter="customer")
    paths["/customers/{customer}"]["get"] = operation(
        "getCustomer", gives={"anyOf": [ref("Customer"), gone]}, names={"customer": TEXT}
    )
    twin = holds(api(paths, Customer=row))
    made = ok(twin, "createCustomer", name="Ann", email="ann@example.com")
    assert ok(twin, "getCustomer", customer=made["id"]) == made


def test_a_default_of_a_filter_hides_no_row_that_it_says_nothing_of() -> None:
    row = record(["id"], id=NUMBER, name=TEXT, type=NUMBER, role=TEXT)
    paths = crud("/users", "User", row, record(["name"], name=TEXT, type=NUMBER), kind=NUMBER)
    paths["/users"]["get"] = operation(
        "listUsers",
        gives=listed(row),
        query={"role": {**TEXT, "default": "member"}, "type": {**TEXT, "default": "live"}},
    )
    twin = holds(api(paths))
    made = ok(twin, "createUser", name="Ann", type=2)
    assert made in ok(twin, "listUsers")
    assert made not in ok(twin, "listUsers", role="member")


def test_a_state_that_only_a_filter_names_has_the_filters_values() -> None:
    row = record(["id", "state"], id=NUMBER, name=TEXT, state=TEXT)
    paths = crud(
        "/issues", "Issue", row, record(["name"], name=TEXT), kind=NUMBER, changes={"patch": record(state=TEXT)}
    )
    states = {"type": "string", "enum": ["all", "closed", "open"], "default": "open"}
    paths["/issues"]["get"] = operation("listIssues", gives=listed(row), query={"state": states})
    twin = holds(api(paths))
    assert {issue["state"] for issue in ok(twin, "listIssues", state="all")} == {"open", "closed"}
    made = ok(twin, "createIssue", name="It leaks")
    assert made["state"] == "open"
    assert made in ok(twin, "listIssues")
    closed = ok(twin, "patchIssue", id=made["id"], state="closed")
    assert closed not in ok(twin, "listIssues")
    assert closed in ok(twin, "listIssues", state="closed")


# -- answers ----------------------------------------------------------------------------------------------------------

META = record(count=NUMBER, next=TEXT)
NODE = record(["id", "apiVersion"], id=TEXT, apiVersion=TEXT, name=TEXT)
BARE = record(["id"], id=TEXT, name=TEXT)


@pytest.mark.parametrize(
    "lists",
    [
        record(["items"], apiVersion=TEXT, kind=TEXT, metadata=META, items=listed(ref("Node"))),
        record(result=listed(ref("Node")), _metadata=META),
        record(nodes=listed(ref("Node")), errors=listed(record(code=TEXT))),
        record(startAt=NUMBER, maxResults=NUMBER, values=listed(ref("Node"))),
        {"oneOf": [listed(ref("Node")), listed(ref("Bare"))]},  # a row without apiVersion is of the second kind alone
    ],
    ids=["versioned", "metadata", "errors", "paged", "choice"],
)
def test_a_list_is_a_list_whatever_stands_beside_its_rows(lists: Any) -> None:
    paths = crud("/nodes", "Node", ref("Node"), record(["name"], name=TEXT))
    paths["/nodes"]["get"] = operation("listNodes", gives=lists)
    twin = holds(api(paths, Node=NODE, Bare=BARE))
    made = ok(twin, "createNode", name="n1")
    shown = ok(twin, "listNodes")
    rows = shown if isinstance(shown, list) else next(one for one in shown.values() if isinstance(one, list))
    assert made["id"] in [row["id"] for row in rows]


def test_what_an_answer_says_of_the_call_is_no_row() -> None:
    answer = record(order=ref("Order"), errors=listed(record(["code"], code=TEXT)))
    paths = crud("/orders", "Order", answer, record(["note"], note=TEXT))
    twin = holds(api(paths, Order=record(["id"], id=TEXT, note=TEXT)))
    made = ok(twin, "createOrder", note="now")["order"]
    assert ok(twin, "getOrder", id=made["id"]) == {"order": made}


# -- creations --------------------------------------------------------------------------------------------------------

RULE = record(["id", "ip"], id=NUMBER, ip=TEXT, note=TEXT)
GIVEN = record(["ip"], ip=TEXT, note=TEXT)


def rules(creates: dict[str, Any], *, shown: Any = RULE, **more: Any) -> ApiTwin:
    """Rules whose creation is written in this way."""
    paths = crud("/rules", "Rule", shown, GIVEN, parameter="rule_id", kind=NUMBER)
    paths["/rules"]["post"] = operation("createRule", status="201", **creates)
    return ApiTwin(api(paths, **more))


@pytest.mark.parametrize("gives", [RULE, listed(RULE), record(job=TEXT), {"type": "object"}, {}, None], ids=str)
def test_what_a_creation_answers_decides_nothing_where_its_rows_can_be_read(gives: Any) -> None:
    twin = rules({"sends": GIVEN, "gives": gives})
    before = ok(twin, "listRules")
    answer = ok(twin, "createRule", ip="192.0.2.1", note="home")
    (made,) = [one for one in ok(twin, "listRules") if one not in before]
    assert (made["ip"], made["note"]) == ("192.0.2.1", "home")
    assert ok(twin, "getRule", rule_id=made["id"]) == made
    shows = {str(RULE): made, str(listed(RULE)): [made], "{'type': 'object'}": made, "{}": made}
    assert str(gives) not in shows or answer == shows[str(gives)]


def test_a_creation_may_make_several_rows_at_once() -> None:
    several = record(["ips"], ips=listed(GIVEN))
    twin = rules({"sends": several, "gives": record(result=listed(RULE))})
    made = ok(twin, "createRule", ips=[{"ip": "192.0.2.1"}, {"ip": "192.0.2.2", "note": "work"}])["result"]
    assert [one["ip"] for one in made] == ["192.0.2.1", "192.0.2.2"]
    assert ok(twin, "getRule", rule_id=made[1]["id"]) == made[1]
    assert all(one in ok(twin, "listRules") for one in made)
    bare = rules({"sends": listed(GIVEN), "gives": listed(RULE)})
    assert [one["ip"] for one in ok(bare, "createRule", body=[{"ip": "192.0.2.3"}])] == ["192.0.2.3"]


@pytest.mark.parametrize("gives", [RULE, listed(RULE), None], ids=["row", "rows", "nothing"])
def test_rows_may_be_made_by_a_path_below_their_collection(gives: Any) -> None:
    paths = crud("/rules", "Rule", ref("Rule"), GIVEN, parameter="rule_id", kind=NUMBER)
    paths["/rules/createWithList"] = {"post": operation("createRules", sends=listed(GIVEN), gives=gives)}
    twin = ApiTwin(api(paths, Rule=RULE))
    before = ok(twin, "listRules")
    ok(twin, "createRules", body=[{"ip": "192.0.2.1"}, {"ip": "192.0.2.2"}])
    assert [one["ip"] for one in ok(twin, "listRules") if one not in before] == ["192.0.2.1", "192.0.2.2"]


def test_numbers_that_name_rows_keep_the_bounds_of_the_paths_parameter() -> None:
    twin = holds(api(crud("/rules", "Rule", RULE, GIVEN, kind={**NUMBER, "minimum": 1, "maximum": 10})))
    assert [one["id"] for one in ok(twin, "listRules")] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert ok(twin, "getRule", id=ok(twin, "createRule", ip="192.0.2.1")["id"])["ip"] == "192.0.2.1"


def test_numbers_that_begin_high_name_as_many_rows_and_are_found_at_once() -> None:
    kind = {**NUMBER, "minimum": 10**9}
    twin = holds(api(crud("/rules", "Rule", record(["id"], id=kind, ip=TEXT), GIVEN, kind=kind)))
    seeded = [one["id"] for one in ok(twin, "listRules")]
    made = [ok(twin, "createRule", ip="192.0.2.1")["id"] for _ in range(2)]
    assert (len({*seeded, *made}), min(seeded) >= 10**9) == (10, True)


@pytest.mark.parametrize("scenario", ["default", "empty"])
@pytest.mark.parametrize(
    ("kind", "most"),
    [
        ({**NUMBER, "maximum": 3}, 3),
        ({**NUMBER, "multipleOf": 10}, None),
        ({**NUMBER, "exclusiveMinimum": 50}, None),
        ({**TEXT, "pattern": "^[a-c]$"}, 3),
        ({**TEXT, "maxLength": 3}, None),
    ],
)
def test_every_row_has_a_key_that_its_schema_allows_and_none_is_made_without(
    kind: dict[str, Any], most: int | None, scenario: str
) -> None:
    row = record(["id"], id=kind, ip=TEXT)
    twin = ApiTwin(api(crud("/rules", "Rule", row, GIVEN, kind=kind)), scenario=scenario)
    before = len(ok(twin, "listRules"))
    answers = [twin.call_now("createRule", {"ip": f"192.0.2.{number}"}) for number in range(5)]
    rows = ok(twin, "listRules")
    assert [ok(twin, "getRule", id=one["id"]) for one in rows] == rows
    assert len(rows) == most or (most is None and len(rows) == before + 5)
    refused = [one.text for one in answers if one.is_error]
    assert len(refused) == before + 5 - len(rows)
    assert all("There is no id left for another rule." in text for text in refused)


def test_rows_may_be_made_of_their_keys_alone() -> None:
    row = record(["recipient_email"], recipient_email=TEXT)
    sends = record(["recipient_emails"], recipient_emails=listed(TEXT))
    paths = crud("/blocked", "Blocked", row, sends, parameter="email")
    paths["/blocked"]["post"] = operation("createBlocked", sends=sends, gives=sends)
    twin = ApiTwin(api(paths))
    given = ["ann@example.com", "bob@example.com"]
    assert ok(twin, "createBlocked", recipient_emails=given) == {"recipient_emails": given}
    assert ok(twin, "getBlocked", email=given[1]) == {"recipient_email": given[1]}


def test_a_creation_may_send_nothing() -> None:
    row = record(["batch_id"], batch_id=TEXT)
    paths = crud("/batch", "Batch", row, row, parameter="batch_id")
    del paths["/batch"]["get"]
    paths["/batch"]["post"] = operation("createBatch", gives=row)
    twin = holds(api(paths))
    made = ok(twin, "createBatch")
    assert ok(twin, "getBatch", batch_id=made["batch_id"]) == made


def test_a_post_that_searches_makes_nothing() -> None:
    twin = rules({"sends": GIVEN, "gives": listed(RULE), "summary": "Search for rules"})
    before = ok(twin, "listRules")
    ok(twin, "createRule", ip="192.0.2.1")
    assert ok(twin, "listRules") == before


def test_a_post_below_a_collection_makes_one_of_its_rows_where_its_name_says_so() -> None:
    order = record(["id"], id=NUMBER, note=TEXT)
    paths = crud("/orders", "Order", ref("Order"), record(["note"], note=TEXT), kind=NUMBER)
    paths["/orders/calculate"] = {"post": operation("calculate", sends=record(note=TEXT), gives=ref("Order"))}
    twin = ApiTwin(api(paths, Order=order))
    before = ok(twin, "listOrders")
    ok(twin, "calculate", note="now")
    assert ok(twin, "listOrders") == before
    paths["/orders/import"] = {"post": operation("importOrder", sends=record(note=TEXT), gives=ref("Order"))}
    twin = ApiTwin(api(paths, Order=order))
    assert ok(twin, "importOrder", note="now") in ok(twin, "listOrders")


def test_what_is_made_below_a_row_changes_nothing_of_the_row() -> None:
    disk = record(["id", "label"], id=NUMBER, label=TEXT, size=NUMBER)
    backup = record(["id", "label"], id=NUMBER, label=TEXT, created=TEXT)
    names = {"disk_id": NUMBER}
    paths = crud("/disks", "Disk", disk, record(["label"], label=TEXT), parameter="disk_id", kind=NUMBER)
    paths["/disks/{disk_id}/backups"] = {
        "get": operation("listBackups", gives=listed(backup), names=names),
        "post": operation("createBackup", sends=record(["label"], label=TEXT), gives={"type": "object"}, names=names),
        "delete": operation("deleteBackups", sends=record(label=TEXT), gives={"type": "object"}, names=names),
    }
    paths["/disks/{disk_id}/backups/{backup_id}"] = {
        "get": operation("getBackup", gives=backup, names={**names, "backup_id": NUMBER})
    }
    twin = ApiTwin(api(paths))
    made = ok(twin, "createDisk", label="d1")
    ok(twin, "createBackup", disk_id=made["id"], label="b1")
    refused = twin.call_now("deleteBackups", {"disk_id": made["id"], "label": "x"})
    assert refused.text.startswith('422 Unprocessable Entity: {"message":"This simulation cannot do it')
    assert [one.operation for one in twin.report().refused] == ["deleteBackups"]
    assert ok(twin, "getDisk", disk_id=made["id"]) == made
    assert [one["label"] for one in ok(twin, "listBackups", disk_id=made["id"])] == ["b1"]


@pytest.mark.parametrize("name", ["order", "purchase_order"])
def test_the_row_may_be_sent_and_shown_beside_other_things(name: str) -> None:
    order = record(id=TEXT, note=TEXT, location_id=TEXT)
    sends = record(["key", name], key=TEXT, **{name: ref("Order")})
    moves = listed(record(before=TEXT, after=TEXT))
    answer = record(**{name: ref("Order"), "moves": moves, "errors": listed(record(code=TEXT))})
    paths = crud("/orders", "Order", answer, sends, parameter="order_id")
    paths["/orders"]["get"] = operation("listOrders", gives=record(orders=listed(ref("Order"))))
    twin = holds(api(paths, Order=order))
    made = ok(twin, "createOrder", key="k", **{name: {"note": "now", "location_id": "l1"}})[name]
    assert (made["note"], made["location_id"]) == ("now", "l1")
    assert ok(twin, "getOrder", order_id=made["id"])[name] == made
    assert made in ok(twin, "listOrders")["orders"]


def test_a_key_that_a_row_shows_as_read_only_may_be_sent_where_the_body_has_it() -> None:
    row = record(["id"], id=TEXT, key={**TEXT, "readOnly": True}, name=TEXT)
    paths = crud("/projects", "Project", row, record(["key"], key=TEXT, name=TEXT), parameter="projectIdOrKey")
    twin = holds(api(paths))
    made = ok(twin, "createProject", key="AB", name="Ann")
    assert made["key"] == "AB"
    assert ok(twin, "getProject", projectIdOrKey="AB") == made


def test_an_identifier_that_is_sent_names_the_object_that_is_shown() -> None:
    row = record(["id"], id=TEXT, name=TEXT, parent=record(gid=TEXT, kind=TEXT))
    paths = crud("/notes", "Note", row, record(["name", "parent"], name=TEXT, parent=TEXT))
    paths["/notes"]["get"] = operation("listNotes", gives=listed(row), query={"parent": TEXT})
    twin = holds(api(paths))
    made = ok(twin, "createNote", name="n1", parent="7")
    assert made["parent"] == {"gid": "7"}
    assert ok(twin, "listNotes", parent="7") == [made]


def test_one_of_a_few_values_is_never_taken() -> None:
    row = record(["id"], id=TEXT, scope={"type": "string", "enum": ["own", "global"]})
    paths = crud("/policies", "Policy", row, record(["scope"], scope=row["properties"]["scope"]))
    paths["/policies"]["post"]["responses"]["409"] = {"description": "A policy with this scope is there already."}
    twin = ApiTwin(api(paths))
    for _ in range(3):
        ok(twin, "createPolicy", scope="global")


def test_a_row_that_a_rule_dropped_is_in_no_collection() -> None:
    names, both = {"id": NUMBER}, {"id": NUMBER, "user_id": NUMBER}
    paths = crud("/users", "User", ref("User"), record(name=TEXT), kind=NUMBER)
    paths |= crud("/teams", "Team", record(["id"], id=NUMBER), record(name=TEXT), kind=NUMBER)
    paths["/teams/{id}/users"] = {"get": operation("listTeamUsers", gives=listed(ref("User")), names=names)}
    paths["/teams/{id}/users/{user_id}"] = {"put": operation("addTeamUser", status="204", names=both)}
    paths["/users/{id}/ban"] = {"post": operation("banUser", status="204", names=names)}
    twin = ApiTwin(api(paths, User=record(["id"], id=NUMBER, name=TEXT)), scenario="empty")

    @twin.rule("banUser")
    def ban(call: ApiCall) -> None:
        call.store.drop("users", call.path["id"])

    team, user = ok(twin, "createTeam")["id"], ok(twin, "createUser", name="Ann")
    ok(twin, "addTeamUser", id=team, user_id=user["id"])
    assert ok(twin, "listTeamUsers", id=team) == [user]
    ok(twin, "banUser", id=user["id"])
    assert ok(twin, "listTeamUsers", id=team) == []


# -- reads ------------------------------------------------------------------------------------------------------------


def test_a_read_may_answer_with_a_list_of_the_one_row() -> None:
    key = record(["key_id"], key_id=TEXT, name=TEXT)
    paths = crud("/keys", "Key", key, record(["name"], name=TEXT), parameter="key_id")
    shown = record(result=listed({**key, "required": ["key_id", "name"]}))
    paths["/keys/{key_id}"]["get"] = operation("getKey", gives=shown, names={"key_id": TEXT})
    paths["/keys/{key_id}"]["patch"] = operation("patchKey", sends=record(name=TEXT), gives=key, names={"key_id": TEXT})
    twin = holds(api(paths))
    made = ok(twin, "createKey", name="k1")
    assert ok(twin, "getKey", key_id=made["key_id"]) == {"result": [made]}


def test_rows_under_a_row_are_listed_without_it_too() -> None:
    pod = record(["id"], id=TEXT, name=TEXT)
    names = {"space_id": TEXT}
    paths = crud("/spaces", "Space", record(["id"], id=TEXT, name=TEXT), record(name=TEXT), parameter="space_id")
    paths["/spaces/{space_id}/pods"] = {
        "get": operation("listPods", gives=listed(ref("Pod")), names=names),
        "post": operation("createPod", sends=record(["name"], name=TEXT), gives=ref("Pod"), names=names, status="201"),
    }
    paths["/spaces/{space_id}/pods/{id}"] = {"get": operation("getPod", gives=ref("Pod"), names={**names, "id": TEXT})}
    paths["/pods"] = {"get": operation("listAllPods", gives=listed(ref("Pod")))}
    twin = holds(api(paths, Pod=pod))
    space = ok(twin, "listSpaces")[0]["id"]
    assert ok(twin, "createPod", space_id=space, name="p1") in ok(twin, "listAllPods")


@pytest.mark.parametrize(
    ("parameter", "key"),
    [("floating_ip", "ip"), ("ip_address", "ip"), ("status_gid", "gid"), ("bucket", "label"), ("idOrUrl", "id")],
)
def test_more_names_of_keys(parameter: str, key: str) -> None:
    row = record([key], **{key: TEXT, "url": TEXT, "note": TEXT, "status": TEXT, "title": TEXT})
    sends = record(["note"], **{"note": TEXT, "title": TEXT, **({"label": TEXT} if key == "label" else {})})
    twin = holds(api(crud(f"/{parameter.partition('_')[0]}s", "One", row, sends, parameter=parameter)))
    made = ok(twin, "createOne", note="new")
    assert ok(twin, "getOne", **{parameter: made[key]}) == made


def test_a_key_of_two_parts_is_found_by_what_the_row_shows() -> None:
    bucket = record(["cluster", "label"], cluster=TEXT, label=TEXT)
    both = {"clusterId": TEXT, "bucket": TEXT}
    paths = {
        "/buckets": {
            "get": operation("listBuckets", gives=listed(ref("Bucket"))),
            "post": operation("createBucket", sends=ref("Bucket"), gives=ref("Bucket")),
        },
        "/buckets/{clusterId}/{bucket}": {"get": operation("getBucket", gives=ref("Bucket"), names=both)},
    }
    twin = ApiTwin(api(paths, Bucket=bucket))
    made = ok(twin, "createBucket", cluster="us-1", label="b1")
    assert ok(twin, "getBucket", clusterId="us-1", bucket="b1") == made


def test_a_key_that_only_the_creation_shows_is_the_key() -> None:
    part = record(["name"], name=TEXT)
    whole = {"allOf": [ref("Part"), record(["id"], id=NUMBER)]}
    paths = crud("/parts", "Part", ref("Part"), ref("Part"), parameter="part_id", kind=NUMBER)
    paths["/parts"]["post"] = operation("createPart", sends=ref("Part"), gives=ref("WholePart"))
    twin = ApiTwin(api(paths, Part=part, WholePart=whole))
    made = ok(twin, "createPart", name="p1")
    assert ok(twin, "getPart", part_id=made["id"]) == {"name": "p1"}


def test_a_key_never_has_a_slash() -> None:
    row = record(["id"], id={**TEXT, "examples": ["linode/debian11"]}, note=TEXT)
    twin = holds(api(crud("/images", "Image", row, record(["note"], note=TEXT))))
    assert ok(twin, "getImage", id=ok(twin, "createImage", note="new")["id"])


def test_versions_in_paths_are_of_one_resource() -> None:
    row, sends = record(["id"], id=TEXT, name=TEXT), record(["name"], name=TEXT)
    old, new = (crud(f"/v{number}/projects", "Project", row, sends) for number in (2, 10))
    paths = {
        "/v2/projects": {"get": old["/v2/projects"]["get"]},
        "/v10/projects": {"post": new["/v10/projects"]["post"]},
        "/v2/projects/{id}": {"delete": old["/v2/projects/{id}"]["delete"]},
        "/v10/projects/{id}": {"get": new["/v10/projects/{id}"]["get"]},
    }
    twin = holds(api(paths))
    made = ok(twin, "createProject", name="p1")
    assert made in ok(twin, "listProjects")
    ok(twin, "deleteProject", id=made["id"])
    assert twin.call_now("getProject", {"id": made["id"]}).text.startswith("404")


def test_a_row_is_shown_where_two_branches_of_a_choice_would_hold() -> None:
    card, wallet = (record(None, **{name: TEXT}) for name in ("last_four", "wallet_id"))
    row = record(["id"], id=NUMBER, label=TEXT, data={"oneOf": [card, wallet]})
    public = record(["id"], id=NUMBER, label=TEXT)
    paths = crud("/methods", "Method", row, record(["label"], label=TEXT, data={"type": "object"}), kind=NUMBER)
    full = {**row, "required": ["id", "secret"], "properties": {**row["properties"], "secret": TEXT}}
    paths["/methods/{id}"]["get"] = operation("getMethod", gives={"oneOf": [full, public]}, names={"id": NUMBER})
    twin = ApiTwin(api(paths))
    made = ok(twin, "createMethod", label="m1", data={"card_number": "1"})
    assert made["label"] == "m1"
    shown = ok(twin, "getMethod", id=made["id"])
    assert (shown["id"], shown["label"]) == (made["id"], "m1")


def test_a_default_of_a_filter_hides_no_row_with_a_value_that_it_does_not_know() -> None:
    row = record(["id"], id=NUMBER, name=TEXT, redirect=TEXT)
    paths = crud("/domains", "Domain", row, record(["name"], name=TEXT, redirect=TEXT), kind=NUMBER)
    redirects = {"type": "string", "enum": ["true", "false"], "default": "true"}
    paths["/domains"]["get"] = operation("listDomains", gives=listed(row), query={"redirects": redirects})
    twin = holds(api(paths))
    made = ok(twin, "createDomain", name="d1", redirect="example.com")
    assert made in ok(twin, "listDomains")


# -- lists ------------------------------------------------------------------------------------------------------------


def pages(*, beside: dict[str, Any], query: dict[str, Any], rows: str = "data") -> ApiTwin:
    """Tasks whose list answers with `rows` and what stands `beside` them, and takes `query`."""
    paths = crud("/tasks", "Task", ref("Task"), WHOLE, kind=NUMBER)
    paths["/tasks"]["get"] = operation(
        "listTasks", gives=record([rows], **{rows: listed(ref("Task")), **beside}), query=query
    )
    return holds(api(paths, Task=TASK))


def test_what_is_read_one_by_one_below_a_collection_is_its_list_whatever_stands_beside_it() -> None:
    odd = {"mood": TEXT, "weather": record(sky=TEXT), "others": listed(record(colour=TEXT, weight=NUMBER))}
    twin = pages(beside=odd, query={}, rows="entities")
    made = ok(twin, "createTask", name="Buy milk")
    assert made in ok(twin, "listTasks")["entities"]


def test_pages_by_a_token_of_any_name_hold_every_row_once_and_end() -> None:
    beside = {"bookmark": {"type": ["string", "null"]}, "done": {"type": "boolean"}}
    twin = pages(beside=beside, query={"bookmark": TEXT, "pagesize": NUMBER})
    seen, page = [], ok(twin, "listTasks", pagesize=3)
    while not page["done"]:
        assert len(page["data"]) == 3
        seen += page["data"]
        page = ok(twin, "listTasks", pagesize=3, bookmark=page["bookmark"])
    everything = ok(twin, "listTasks")["data"]
    assert len(seen) > 3
    assert sorted(one["id"] for one in seen + page["data"]) == sorted(one["id"] for one in everything)


def test_filters_may_be_marked_as_such_or_name_the_id_of_what_a_row_shows() -> None:
    owner = record(["id"], id=NUMBER, name=TEXT)
    task = record(["id"], id=NUMBER, name=TEXT, owner=owner)
    paths = crud("/tasks", "Task", task, record(["name"], name=TEXT, owner=owner), kind=NUMBER)
    paths["/tasks"]["get"] = operation(
        "listTasks", gives=listed(task), query={"filter[name]": TEXT, "owner_id": NUMBER, "count": {"type": "boolean"}}
    )
    twin = holds(api(paths))
    made = ok(twin, "createTask", name="Buy milk", owner={"id": 77, "name": "Ann"})
    assert ok(twin, "listTasks", filter_name="Buy milk", count=True) == [made]
    assert ok(twin, "listTasks", owner_id=77) == [made]
    assert ok(twin, "listTasks", owner_id=78) == []
    assert [one.ignored for one in twin.report().operations if one.operation == "listTasks"] == [("count",)]


def test_a_list_that_never_shows_what_was_made_is_named_by_the_trial() -> None:
    paths = crud("/tasks", "Task", ref("Task"), WHOLE, kind=NUMBER)
    paths["/tasks"]["get"] = operation("listTasks", gives=ref("Task"))  # some generators forget that it is a list
    (trip,) = ApiTwin(api(paths, Task=TASK)).report().broken
    assert trip.problem.startswith("listTasks shows the same, whatever is made: ")


def test_a_value_that_is_read_otherwise_than_it_was_sent_is_named_by_the_trial() -> None:
    row = record(["id", "amount"], id=NUMBER, amount={"type": ["number", "null"]})
    money = record(["amount"], amount={"type": "string", "pattern": r"^\$[0-9]+$"})
    (trip,) = ApiTwin(api(crud("/payments", "Payment", row, money, kind=NUMBER))).report().broken
    assert trip.problem.startswith("getPayment gives amount None; '$")


def test_the_trial_sends_the_key_of_the_row_where_a_change_repeats_it() -> None:
    thing = record(["thing_id", "kind"], thing_id=TEXT, kind=TEXT)
    changes = {"patch": record(["thing_id", "kind"], thing_id=TEXT, kind=TEXT)}
    holds(api(crud("/things", "Thing", thing, thing, parameter="thing_id", changes=changes)))
    held = record(["id", "name"], id=NUMBER, name=TEXT)
    holds(api(crud("/things", "Thing", held, held, kind=NUMBER, changes={"put": held})))


def test_the_trial_reads_back_nothing_that_is_only_written() -> None:
    secret = TEXT | {"writeOnly": True}
    user = record(["id", "email", "password"], id=NUMBER | {"readOnly": True}, email=TEXT, password=secret)
    holds(api(crud("/users", "User", ref("User"), ref("User"), kind=NUMBER), User=user))


def test_the_trial_makes_what_a_path_names_in_one_step() -> None:
    paths = crud("/files", "File", ref("File"), ref("File"), parameter="path")
    paths["/files/{path}"]["put"] = operation(
        "putFile", sends=record(text=TEXT), gives=ref("File"), status="201", names={"path": TEXT}
    )
    del paths["/files"]["post"]
    holds(api(paths, File=record(["path"], path=TEXT, text=TEXT)))


@pytest.mark.parametrize(
    "query",
    [
        {"page": NUMBER | {"default": 0}, "size": NUMBER | {"enum": [1, 2], "default": 1}},
        {"page": TEXT, "limit": NUMBER | {"maximum": 2, "default": 2}},
        {"offset": NUMBER, "limit": NUMBER | {"maximum": 3, "default": 2}},
        {"cursor": TEXT, "limit": NUMBER | {"maximum": 3, "default": 2}},
        {"limit": NUMBER | {"default": 2}},
    ],
)
def test_the_trial_looks_for_what_it_made_on_every_page(query: dict[str, Any]) -> None:
    assert not orders(query).report().broken


@pytest.mark.parametrize(
    "limit",
    [
        {"type": "string", "enum": ["1", "2", "10"], "default": "1"},
        {"type": ["integer", "null"], "enum": [None, 1, 50], "default": 1},
        {"type": "integer", "exclusiveMaximum": 50, "default": 1},
    ],
)
def test_the_trial_asks_for_as_many_rows_as_a_page_may_have(limit: Any) -> None:
    row = record(["id"], id=TEXT, title=TEXT)
    paths = crud("/things", "Thing", row, record(["title"], title=TEXT))
    paths["/things"]["get"] = operation("listThings", gives={"type": "array", "items": row}, query={"limit": limit})
    found = str(ApiTwin(api(paths)).report())
    assert "1 of 1 resources that can be created hold" in found
    assert "could not be tried" not in found


def test_an_id_beside_the_key_is_the_same_as_text_and_as_a_number() -> None:
    row = record(["id", "key"], id=TEXT, key=TEXT, name=TEXT)
    paths = crud("/projects", "Project", row, record(["key"], key=TEXT, name=TEXT), parameter="key")
    paths["/projects"]["post"]["responses"]["201"] = {"description": "It.", **content(record(id=NUMBER, key=TEXT))}
    twin = holds(api(paths))
    made = ok(twin, "createProject", key="ABC", name="Abc")
    assert ok(twin, "getProject", key="ABC")["id"] == str(made["id"])


def test_rows_of_which_a_list_may_show_nothing_are_listed_without_it() -> None:
    shown = {**record(["name"], name={**TEXT, "writeOnly": True}), "additionalProperties": False}
    task = record(["id"], id=NUMBER, name=TEXT)
    paths = crud("/tasks", "Task", task, record(["name"], name=TEXT), kind=NUMBER)
    paths["/tasks"]["get"] = operation("listTasks", gives=record(["values"], values=listed(shown)))
    twin = ApiTwin(api(paths))
    ok(twin, "createTask", name="Buy milk")
    assert ok(twin, "listTasks")["values"] == [{}] * 9


# -- rows that are made under their name ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "statuses"), [("createOrUpdateQueue", ("200",)), ("putQueue", ("200", "201"))], ids=["by name", "by 201"]
)
def test_a_put_makes_the_row_that_its_path_names(named: str, statuses: tuple[str, ...]) -> None:
    queue = record(["name"], name=TEXT, size=NUMBER)
    paths = crud("/queues", "Queue", queue, record(size=NUMBER), parameter="name")
    del paths["/queues"]["post"]
    put = operation(named, sends=record(size=NUMBER), gives=queue, names={"name": TEXT})
    put["responses"] |= dict.fromkeys(statuses, put["responses"]["200"])
    paths["/queues/{name}"]["put"] = put
    twin = holds(api(paths))
    assert twin.call_now("getQueue", {"name": "mail"}).is_error
    assert ok(twin, named, name="mail", size=3) == {"name": "mail", "size": 3}
    assert ok(twin, named, name="mail", size=4) == ok(twin, "getQueue", name="mail") == {"name": "mail", "size": 4}
    assert sum(one["name"] == "mail" for one in ok(twin, "listQueues")) == 1
    ok(twin, "deleteQueue", name="mail")
    assert twin.call_now("getQueue", {"name": "mail"}).is_error


def test_a_put_of_a_missing_row_is_refused_where_the_document_speaks_of_no_creation() -> None:
    assert tasks({"put": FIELDS}).call_now("putTask", {"id": 4711, "name": "Buy tea"}).text.startswith("404")


# -- actions ----------------------------------------------------------------------------------------------------------

SERVER = record(
    ["id", "status"],
    id=NUMBER,
    status={"type": "string", "enum": ["booting", "running", "rebuilding", "off", "disabling", "disabled"]},
    previous_status={"type": "string", "enum": ["started", "shutdown"]},
    rescue_enabled={"type": "boolean"},
    auto_upgrade={"type": "boolean"},
    backup_window=TEXT,
)


@pytest.mark.parametrize(
    ("action", "sets"),
    [
        ("actions/poweron", {"status": "running"}),
        ("actions/power-off", {"status": "off"}),
        ("disable", {"status": "disabled"}),
        ("enable_rescue", {"rescue_enabled": True}),
        ("rescue/disable", {"rescue_enabled": False}),
        ("enable_backup", None),
        ("backups/disable", None),
        ("upgrade", None),
        ("rebuild", None),
    ],
)
def test_an_action_sets_what_its_whole_name_means_and_nothing_else(action: str, sets: dict[str, Any] | None) -> None:
    paths = crud("/servers", "Server", SERVER, record(backup_window=TEXT), kind=NUMBER)
    paths[f"/servers/{{id}}/{action}"] = {"post": operation("act", status="204", names={"id": NUMBER})}
    twin = ApiTwin(api(paths))
    made = ok(twin, "createServer", backup_window="02-06")
    ok(twin, "act", id=made["id"])
    assert ok(twin, "getServer", id=made["id"]) == {**made, **(sets or {})}
    assert [one.operation for one in twin.report().events] == ([] if sets else ["act"])


USER = record(["id", "name", "active"], id=TEXT, name=TEXT, active={"type": "boolean"}, manager_id=TEXT)


@pytest.mark.parametrize(("action", "active"), [("activate", True), ("deactivate", False), ("remind", None)])
def test_an_action_answers_with_the_row_that_its_path_names_inside_its_envelope(
    action: str, active: bool | None
) -> None:
    paths = crud("/users", "User", record(["data"], data=ref("User")), record(["name"], name=TEXT))
    told = record(["data"], data=ref("User"))
    paths["/users"]["get"] = operation("listUsers", gives=record(["data"], data=listed(ref("User"))))
    paths[f"/users/{{id}}/{action}"] = {"post": operation("act", gives=told, names={"id": TEXT})}
    twin = ApiTwin(api(paths, User=USER))
    user = ok(twin, "listUsers")["data"][1]
    assert ok(twin, "act", id=user["id"])["data"] == {**user, **({} if active is None else {"active": active})}


def test_a_manager_is_one_of_the_users() -> None:
    twin = ApiTwin(api(crud("/users", "User", USER, record(["name"], name=TEXT, manager_id=TEXT))))
    assert "there is no user 'ghost'" in twin.call_now("createUser", {"name": "Ann", "manager_id": "ghost"}).text


@pytest.mark.parametrize(
    ("rows", "one"),
    [
        ("sizes", "size"),
        ("buses", "bus"),
        ("abuses", "abuse"),
        ("companies", "company"),
        ("boxes", "box"),
        ("os", "os"),
        ("event-buses", "event-bus"),
    ],
)
def test_a_missing_row_is_called_by_the_word_for_one_of_its_collection(rows: str, one: str) -> None:
    twin = ApiTwin(api(crud(f"/{rows}", "Row", TASK, FIELDS, kind=NUMBER)))
    assert f"There is no {one} " in twin.call_now("getRow", {"id": 10**6}).text


def test_rows_that_are_made_several_at_once_are_tried_with_the_rows_that_they_name() -> None:
    paths = crud("/users", "User", USER, record(["name"], name=TEXT))
    row = record(["id", "title"], id=TEXT, title=TEXT, owner_id=TEXT)
    paths |= crud("/tasks", "Task", row, record(["title"], title=TEXT, owner_id=TEXT))
    sends = record(["tasks"], tasks=listed(record(["title", "owner_id"], title=TEXT, owner_id=TEXT)))
    paths["/tasks/bulk"] = {"post": operation("bulk", sends=sends, gives=listed(row), status="201")}
    assert [(one.problem, one.untried) for one in ApiTwin(api(paths)).round_trips] == [("", "")] * 3


@pytest.mark.parametrize("name", ["limit", "size", "count", "page_size"])
def test_a_number_with_a_default_or_a_maximum_is_of_the_page_also_where_rows_have_its_name(name: str) -> None:
    row = {"id": NUMBER, name: NUMBER}
    paths = crud("/accounts", "Account", record(["id", name], **row), record([name], **{name: NUMBER}), kind=NUMBER)
    list_accounts = paths["/accounts"]["get"]
    for bound in ({"default": 50}, {"maximum": 100}):
        list_accounts["parameters"] = [{"name": name, "in": "query", "schema": NUMBER | bound}]
        twin = ApiTwin(api(paths))
        assert len(ok(twin, "listAccounts")) == len(twin.state()["accounts"]) > 3
        assert len(ok(twin, "listAccounts", **{name: 3})) == 3
    list_accounts["parameters"] = [{"name": name, "in": "query", "schema": NUMBER}]
    twin = ApiTwin(api(paths))
    made = ok(twin, "createAccount", **{name: 3})
    assert made in ok(twin, "listAccounts", **{name: 3})
    assert {one[name] for one in ok(twin, "listAccounts", **{name: 3})} == {3}


# -- what a list is asked for -----------------------------------------------------------------------------------------

MOMENT = {"type": "string", "format": "date-time"}
DATE = {"type": "string", "format": "date"}
ORDER = record(["id", "name", "total", "created_at"], id=NUMBER, name=TEXT, total={"type": "number"}, created_at=MOMENT)


def orders(query: dict[str, Any], gives: Any = None, **options: Any) -> ApiTwin:
    """Orders, in a list that takes this query."""
    sends = record(["name"], name=TEXT, total={"type": "number"})
    paths = crud("/orders", "Order", ref("Order"), sends, kind=NUMBER)
    paths["/orders"]["get"] = operation("listOrders", gives=gives or listed(ref("Order")), query=query)
    return ApiTwin(api(paths, Order=ORDER), **options)


def asked(twin: ApiTwin, **query: Any) -> list[int]:
    return [one["id"] for one in ok(twin, "listOrders", **query)]


@pytest.mark.parametrize(
    "bounds",
    [("from", "to"), ("after", "before"), ("start", "end"), ("from_date", "to_date"), ("startTime", "endTime")],
)
def test_times_bound_a_list_whatever_the_bounds_are_called(bounds: tuple[str, str]) -> None:
    twin = orders(dict.fromkeys(bounds, MOMENT))
    made = sorted((one["created_at"], one["id"]) for one in ok(twin, "listOrders"))
    middle = made[len(made) // 2][0]
    assert sorted(asked(twin, **{bounds[0]: middle})) == sorted(key for time, key in made if time >= middle)
    assert sorted(asked(twin, **{bounds[1]: middle})) == sorted(key for time, key in made if time <= middle)


def test_a_day_as_an_upper_bound_is_included() -> None:
    twin = orders({"since": DATE, "until": DATE})
    row = ok(twin, "listOrders")[0]
    day = row["created_at"][:10]
    assert row["id"] in asked(twin, since=day, until=day)


def test_an_object_in_the_query_filters_by_each_of_its_properties() -> None:
    created = {"anyOf": [record(gte=MOMENT, lt=MOMENT), MOMENT]}
    total = record(gt={"type": "number"}, eq={"type": "number"})
    twin = orders({"filter": record(name=TEXT), "created_at": created, "total": total})
    first, *_, last = sorted(ok(twin, "listOrders"), key=lambda one: one["created_at"])
    made = ok(twin, "createOrder", name="Tea", total=7_000_000)["id"]
    assert asked(twin, filter={"name": "Tea"}) == asked(twin, total={"gt": 6_000_000}) == [made]
    assert asked(twin, total={"eq": 7_000_000}) == [made]
    between = asked(twin, created_at={"gte": first["created_at"], "lt": last["created_at"]})
    assert first["id"] in between
    assert last["id"] not in between
    assert asked(twin, created_at=first["created_at"]) == [first["id"]]


LINK = {"type": ["string", "null"], "format": "uri"}
PAGED = {"page": NUMBER, "size": NUMBER}


def paged(query: dict[str, Any], sent: dict[str, Any], **beside: Any) -> dict[str, Any]:
    """What an answer tells beside a page of 7 orders."""
    twin = orders(query, record(["items", *beside], items=listed(ref("Order")), **beside), rows=7)
    found = ok(twin, "listOrders", **sent)
    return {name: value for name, value in found.items() if name != "items"}


def test_links_to_other_pages_lead_there_and_end_with_the_list() -> None:
    names = dict.fromkeys(("next", "previous", "first", "last", "self"), LINK)
    page = "/orders?page={}&size=3".format
    told = paged(PAGED, {"page": 2, "size": 3}, **names)
    assert told == {"next": page(3), "previous": page(1), "first": page(1), "last": page(3), "self": page(2)}
    assert paged(PAGED, {"page": 3, "size": 3}, **names)["next"] is None
    assert paged(PAGED, {"page": 1, "size": 3}, **names)["previous"] is None
    links = record(["next"], next=record(["href"], href=TEXT))
    assert paged(PAGED, {"page": 1, "size": 3}, _links=links) == {"_links": {"next": {"href": page(2)}}}
    assert paged(PAGED, {"page": 3, "size": 3}, next=TEXT | {"format": "uri"}) == {"next": ""}


def test_numbers_of_the_next_page_are_those_of_the_request() -> None:
    query, nothing = {"offset": NUMBER, "limit": NUMBER}, {"type": ["integer", "null"]}
    names = {"next_offset": nothing, "next_page": nothing, "page": NUMBER, "next": LINK}
    told = paged(query, {"offset": 3, "limit": 3}, **names)
    assert told == {"next_offset": 6, "next_page": 3, "page": 2, "next": "/orders?offset=6&limit=3"}
    told = paged(query, {"offset": 6, "limit": 3}, **names)
    assert told == {"next_offset": None, "next_page": None, "page": 3, "next": None}


def test_a_token_of_the_next_page_is_never_made_up() -> None:
    query = {"cursor": TEXT, "limit": NUMBER}
    token = paged(query, {"limit": 5}, next_cursor=TEXT, next=TEXT)
    assert token["next_cursor"] == token["next"] != ""
    assert paged(query, {"limit": 5, "cursor": token["next"]}, next_cursor=TEXT, next=TEXT) == {
        "next_cursor": "",
        "next": "",
    }


def test_pages_without_a_size_are_of_one_size() -> None:
    twin = orders({"page": NUMBER}, rows=70)
    pages = [asked(twin, page=number) for number in (1, 2, 3, 4)]
    assert [len(one) for one in pages] == [30, 30, 10, 0]
    assert [key for page in pages for key in page] == asked(twin)


@pytest.mark.parametrize(
    ("query", "column"),
    [
        ({"sort": "desc"}, "id"),
        ({"order": "-name"}, "name"),
        ({"sort": "name,desc"}, "name"),
        ({"sort": "id,desc"}, "id"),
    ],
)
def test_a_list_is_sorted_downwards_however_that_is_written(query: dict[str, str], column: str) -> None:
    twin = orders(dict.fromkeys(query, TEXT))
    rows = ok(twin, "listOrders")
    shown = [one[column] for one in ok(twin, "listOrders", **query)]
    assert shown == sorted((one[column] for one in rows), reverse=True) != [one[column] for one in rows]


def test_pages_by_cursor_go_back_and_outlive_the_row_that_the_cursor_names() -> None:
    twin = orders({"starting_after": TEXT, "ending_before": TEXT, "limit": NUMBER}, rows=7)
    ids = asked(twin)
    assert asked(twin, ending_before=str(ids[5]), limit=2) == ids[3:5]
    assert asked(twin, ending_before=str(ids[1]), limit=2) == ids[:1]
    twin.call_now("deleteOrder", {"id": ids[3]})
    assert asked(twin, starting_after=str(ids[3]), limit=2) == ids[4:6]
    assert asked(twin, ending_before=str(ids[3]), limit=2) == ids[1:3]
    assert twin.call_now("listOrders", {"starting_after": "none"}).is_error


def test_equal_numbers_and_days_are_found_however_they_are_written() -> None:
    twin = orders({"total": {"type": "number"}, "created_at": DATE})
    made = [ok(twin, "createOrder", name="a", total=total) for total in (7_000_000, 7_000_000.0)]
    assert asked(twin, total=7_000_000) == asked(twin, total=7_000_000.0) == [one["id"] for one in made]
    assert made[0]["id"] in asked(twin, created_at=made[0]["created_at"][:10])


def test_large_whole_numbers_are_compared_to_the_last_digit() -> None:
    number, many = {"type": "integer", "format": "int64"}, [2**53 + 1, 2**53, 2**53 + 2]
    row = record(["id", "account"], id=TEXT, account=number)
    paths = crud("/orders", "Order", row, record(["account"], account=number))
    query = {"account": number, "min_account": number, "sort": TEXT}
    paths["/orders"]["get"] = operation("listOrders", gives=listed(row), query=query)
    twin = ApiTwin(api(paths), scenario="empty")
    for one in many:
        ok(twin, "createOrder", account=one)

    def accounts(**query: Any) -> list[int]:
        return [one["account"] for one in ok(twin, "listOrders", **query)]

    assert accounts(account=2**53 + 1) == [2**53 + 1]
    assert accounts(min_account=2**53 + 1) == [2**53 + 1, 2**53 + 2]
    assert accounts(sort="account") == sorted(many)


def test_a_cursor_outlives_its_row_whatever_the_key_holds() -> None:
    paths = crud("/labels", "Label", record(["name"], name=TEXT), record(["name"], name=TEXT), parameter="name")
    paths["/labels"]["get"]["parameters"] = [
        {"name": name, "in": "query", "schema": kind} for name, kind in (("cursor", TEXT), ("limit", NUMBER))
    ]
    twin = ApiTwin(api(paths), scenario="empty")
    for name in ("a", "50%", "c"):
        ok(twin, "createLabel", name=name)
    ok(twin, "deleteLabel", name="50%")
    assert ok(twin, "listLabels", cursor="50%") == [{"name": "c"}]


def test_a_cursor_outlives_its_row_where_another_parent_has_one_with_its_number() -> None:
    issue, names = record(["number"], number=NUMBER), {"repo": TEXT}
    paths = crud("/repos", "Repo", record(["slug"], slug=TEXT), record(slug=TEXT), parameter="repo")
    paths["/repos/{repo}/issues"] = {
        "get": operation("listIssues", gives=listed(issue), names=names, query={"cursor": TEXT, "limit": NUMBER}),
        "post": operation("createIssue", sends=issue, gives=issue, status="201", names=names),
    }
    paths["/repos/{repo}/issues/{number}"] = {
        "get": operation("getIssue", gives=issue, names={**names, "number": NUMBER}),
        "delete": operation("deleteIssue", status="204", names={**names, "number": NUMBER}),
    }
    twin = ApiTwin(api(paths), scenario="empty")
    for repo in ("a", "b"):
        ok(twin, "createRepo", slug=repo)
        for number in (1, 2, 3):
            ok(twin, "createIssue", repo=repo, number=number)
    ok(twin, "deleteIssue", repo="b", number=2)
    assert ok(twin, "listIssues", repo="b", limit=1, cursor="2") == [{"number": 3}]


def test_pages_of_rows_of_several_parents_hold_each_once_though_their_numbers_begin_anew() -> None:
    issue, names = ref("Issue"), {"repo": TEXT}
    paths = crud("/repos", "Repo", record(["slug"], slug=TEXT), record(slug=TEXT), parameter="repo")
    paths["/repos/{repo}/issues"] = {
        "post": operation("createIssue", sends=issue, gives=issue, status="201", names=names),
    }
    paths["/repos/{repo}/issues/{number}"] = {
        "get": operation("getIssue", gives=issue, names={**names, "number": NUMBER}),
    }
    page = record(["issues"], issues=listed(issue), next_cursor={"type": ["string", "null"]})
    paths["/issues"] = {"get": operation("listIssues", gives=page, query={"cursor": TEXT, "limit": NUMBER})}
    twin = ApiTwin(api(paths, Issue=record(["number"], number=NUMBER)), scenario="empty")
    for repo in ("a", "b"):
        ok(twin, "createRepo", slug=repo)
        for number in (1, 2, 3):
            ok(twin, "createIssue", repo=repo, number=number)
    pages = [ok(twin, "listIssues", limit=2)]
    while (cursor := pages[-1]["next_cursor"]) is not None and len(pages) < 9:
        pages.append(ok(twin, "listIssues", limit=2, cursor=cursor))
    assert [[one["number"] for one in page["issues"]] for page in pages] == [[1, 2], [3, 1], [2, 3]]
    own = [one["number"] for one in ok(twin, "listIssues", limit=2, cursor="2")["issues"]]
    assert own == [3, 1], "an id is a cursor, too: that of the first row with it"


def test_sorted_pages_by_cursor_go_on_where_the_row_of_the_cursor_is_no_longer_listed() -> None:
    paths = crud("/tasks", "Task", ref("Task"), FIELDS, kind=NUMBER, changes={"patch": FIELDS})
    query = {"cursor": TEXT, "limit": NUMBER, "sort": TEXT, "done": {"type": "boolean"}}
    paths["/tasks"]["get"]["parameters"] = [
        {"name": name, "in": "query", "schema": kind} for name, kind in query.items()
    ]
    twin = ApiTwin(api(paths, Task=TASK), scenario="empty")
    made = {name: ok(twin, "createTask", name=name, done=False)["id"] for name in ("c", "a", "d", "b")}

    def page(**more: Any) -> list[str]:
        return [one["name"] for one in ok(twin, "listTasks", sort="name", done=False, limit=2, **more)]

    assert page() == ["a", "b"]
    for name in ("a", "b"):
        ok(twin, "patchTask", id=made[name], done=True)
    assert page(cursor=str(made["b"])) == ["c", "d"]
    ok(twin, "deleteTask", id=made["b"])
    refused = twin.call_now("listTasks", {"sort": "name", "cursor": str(made["b"])})
    assert refused.is_error
    assert "its row was deleted and the list is sorted" in refused.text


def test_what_the_live_api_is_not_sent_is_not_sent_here() -> None:
    paths = crud("/tasks", "Task", ref("Task"), FIELDS, kind={"type": "number"})
    maybe = {"anyOf": [{"type": "boolean"}, {"type": "null"}]}
    query = {"done": maybe, "name": listed(TEXT), "limit": {"anyOf": [NUMBER, {"type": "null"}], "default": 2}}
    paths["/tasks"]["get"]["parameters"] = [
        {"name": name, "in": "query", "schema": kind} for name, kind in query.items()
    ]
    twin = ApiTwin(api(paths, Task=TASK), scenario="empty")
    made = [ok(twin, "createTask", name=name, done=False) for name in ("a", "b", "c")]
    first = ok(twin, "listTasks")
    assert len(first) == 2
    for arguments in ({"done": None}, {"name": []}, {"limit": None}, {"done": None, "name": [], "limit": None}):
        assert ok(twin, "listTasks", **arguments) == first
    assert ok(twin, "getTask", id=float(made[0]["id"])) == made[0]


def test_rows_keep_nothing_of_what_the_caller_may_change() -> None:
    paths = crud("/tasks", "Task", ref("Task"), FIELDS | record(name=TEXT, more={"type": "object"}), kind=NUMBER)
    task = record(["id"], id=NUMBER, name=TEXT, more={"type": "object"})
    twin = ApiTwin(api(paths, Task=task), scenario="empty")
    more = {"tags": ["x"]}
    made = ok(twin, "createTask", name="a", more=more)
    before = twin.state()
    more["tags"].append("y")
    assert twin.state() == before
    assert ok(twin, "getTask", id=made["id"])["more"] == {"tags": ["x"]}


def test_a_name_that_python_reads_as_a_number_is_sorted_as_a_text() -> None:
    paths = crud("/people", "Person", record(["id"], id=NUMBER, name=TEXT), record(name=TEXT), kind=NUMBER)
    paths["/people"]["get"]["parameters"] = [{"name": "sort", "in": "query", "schema": TEXT}]
    twin = ApiTwin(api(paths), scenario="empty")
    for name in ("Zoe", "9", "Nan", "10", "Infinity", "1_0", "Ida"):
        ok(twin, "createPerson", name=name)
    shown = [one["name"] for one in ok(twin, "listPersons", sort="name")]
    assert shown == ["9", "10", "1_0", "Ida", "Infinity", "Nan", "Zoe"]


def test_a_link_to_the_next_page_may_be_an_object_or_null() -> None:
    link = record(["href"], href=TEXT)
    following = {"href": "/orders?page=3&size=3"}
    for either, at_the_end in (
        (record(["next"], next={"oneOf": [{"type": "null"}, link]}), {"next": None}),
        (record(next=link), {}),
        (record(["next"], next=link), {"next": {"href": ""}}),
    ):
        assert paged(PAGED, {"page": 2, "size": 3}, links=either) == {"links": {"next": following}}
        assert paged(PAGED, {"page": 3, "size": 3}, links=either) == {"links": at_the_end}


def test_an_object_called_page_tells_of_the_page() -> None:
    page = record(size=NUMBER, number=NUMBER, totalElements=NUMBER, totalPages=NUMBER)
    told = paged(PAGED, {"page": 2, "size": 3}, page=page)
    assert told == {"page": {"size": 3, "number": 2, "totalElements": 7, "totalPages": 3}}


def test_a_link_to_the_next_page_has_the_query_as_the_document_writes_it() -> None:
    row = record(["id", "status"], id=NUMBER, status=TEXT)
    paths = crud("/orders", "Order", row, record(["status"], status=TEXT), kind=NUMBER)
    pages = record(["items", "next"], items=listed(row), next=TEXT)
    paths["/orders"]["get"] = operation("listOrders", gives=pages, query=PAGED)
    paths["/orders"]["get"]["parameters"] += [
        {"name": name, "in": "query", "explode": False, "style": style, "schema": listed(kind)}
        for name, style, kind in (("status", "form", TEXT), ("flags", "pipeDelimited", {"type": "boolean"}))
    ]
    twin = ApiTwin(api(paths), scenario="empty")
    for status in ("a", "b", "c"):
        ok(twin, "createOrder", status=status)
    told = ok(twin, "listOrders", page=1, size=1, status=["a", "b"], flags=[True, False])
    assert told["next"] == "/orders?page=2&size=1&status=a,b&flags=true%7Cfalse"


def test_times_are_found_however_they_are_written_and_codes_of_digits_are_no_times() -> None:
    time = {"type": "string", "format": "date-time"}
    row = record(["id"], id=TEXT, starts=time, code=TEXT)
    paths = crud("/meetings", "Meeting", row, record(starts=time, code=TEXT))
    paths["/meetings"]["get"] = operation("listMeetings", gives=listed(row), query={"starts": time, "sort": TEXT})
    twin = ApiTwin(api(paths), scenario="empty")
    codes = ["99887766", "20231201", "10000101"]
    for code in codes:
        ok(twin, "createMeeting", starts=f"2026-03-01T{code[:2].replace('99', '09')}:00:00Z", code=code)
    assert [one["code"] for one in ok(twin, "listMeetings", sort="code")] == sorted(codes)
    for same in ("2026-03-01T10:00:00.000Z", "2026-03-01T12:00:00+02:00"):
        assert [one["code"] for one in ok(twin, "listMeetings", starts=same)] == ["10000101"]


def test_names_in_other_letters_and_of_signs_alone_are_names() -> None:
    sent = record(["名前"], **{"名前": TEXT, "größe": TEXT, "_": TEXT})
    row = record(["id"], id=TEXT, **sent["properties"])
    parts = operation("getPart", gives=record(**{"国": TEXT, "市": TEXT}), names={"国": TEXT, "市": TEXT})
    one = operation("getOne", gives=record(name=TEXT), names={"$": TEXT})
    paths = crud("/items", "Item", row, sent, changes={"patch": sent})
    twin = ApiTwin(api({**paths, "/parts/{国}/{市}": {"get": parts}, "/all/{$}": {"get": one}}))
    assert "1 of 1 resources that can be created hold" in str(twin.report())
    assert "could not be tried" not in str(twin.report())
