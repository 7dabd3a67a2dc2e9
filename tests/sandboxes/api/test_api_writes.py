"""What is written is kept or refused, and an operation without effect is not answered as one that had it."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from small_apis import NUMBER, TEXT, api, content, crud, listed, operation, record, ref

import sdk
from mcp_bridge.errors import ToolFailure
from mcp_bridge.records import MADE_UP
from sandboxes.api import ApiCall, ApiTwin

Schema = dict[str, Any]

CURRENCY: Schema = {"type": "string", "enum": ["eur", "usd"]}
MAP: Schema = {"type": "object"}
CODES: Schema = {**MAP, "patternProperties": {"^x-": CURRENCY}, "additionalProperties": False}
LABEL = record(["id"], id={"type": "integer", "readOnly": True}, name=TEXT)


def ok(twin: ApiTwin, name: str, /, **arguments: Any) -> Any:
    result = twin.call_now(name, arguments)
    assert not result.is_error, result.text
    return result.structured


def prices(shown: Schema, sent: Schema = TEXT, **more: Schema) -> ApiTwin:
    """Prices whose field `of` is answered by one schema and sent by another."""
    body = record(of=sent, note=TEXT, **more)
    replaced = {**body, "required": ["note"]}
    changes = {"patch": body, "put": replaced}
    row = record(["id"], id=NUMBER, of=shown, note=TEXT)
    return ApiTwin(api(crud("/prices", "Price", row, body, kind=NUMBER, changes=changes)))


# -- what the answer's schema refuses ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shown", "sent", "value", "told"),
    [
        (CURRENCY, TEXT, "banana", """of: "banana" is not valid; it must be one of "eur", "usd\""""),
        ({"type": ["string", "null"], "enum": ["eur", None]}, TEXT, "usd", """of: "usd" is not valid; it must be"""),
        (CURRENCY, {"type": "string", "enum": ["usd", "gbp"]}, "gbp", 'it must be one of "usd"'),
        ({"type": "integer", "minimum": 1}, NUMBER, 0, "of: 0 is not valid (0 is less than the minimum of 1)"),
        ({"type": "string", "maxLength": 3}, TEXT, "long", """of: "long" is not valid ('long' is too long)"""),
        (record(of=record(code=CURRENCY)), record(of=record(code=TEXT)), {"of": {"code": "x"}}, 'of.of.code: "x" is'),
        (listed(CURRENCY), listed(TEXT), ["eur", "x"], 'of[1]: "x" is not valid; it must be one of "eur", "usd"'),
        (listed(record(code=CURRENCY)), listed(record(code=TEXT)), [{"code": "x"}], "of[0].code"),
        ({**listed(TEXT), "maxItems": 1}, listed(TEXT), ["a", "b"], "is too long"),
        ({**listed(TEXT), "uniqueItems": True}, listed(TEXT), ["a", "a"], "non-unique"),
        ({"oneOf": [CURRENCY, {"type": "boolean"}]}, TEXT, "x", 'it must be one of "eur", "usd"'),
        ({**TEXT, "not": {"enum": ["root"]}}, TEXT, "root", """of: "root" is not valid ('root' should not be valid"""),
        ({**listed(TEXT), "contains": {"const": "main"}}, listed(TEXT), ["x"], "does not contain items matching"),
        ({**MAP, "propertyNames": {"pattern": "^[A-Z]+$"}}, MAP, {"ab": 1}, "'ab' does not match '^[A-Z]+$'"),
        ({**MAP, "minProperties": 1}, MAP, {}, "of: {} is not valid"),
        (CODES, MAP, {"x-a": "banana"}, 'of.x-a: "banana" is not valid; it must be one of "eur", "usd"'),
    ],
)
def test_a_value_that_no_answer_could_show_is_refused_by_creation_update_and_replacement(
    shown: Schema, sent: Schema, value: Any, told: str
) -> None:
    twin = prices(shown, sent)
    made = ok(twin, "createPrice", note="n")
    before = twin.state()
    names = {"createPrice": {}, "patchPrice": {"id": made["id"]}, "putPrice": {"id": made["id"]}}
    for name, arguments in names.items():
        result = twin.call_now(name, {**arguments, "note": "m", "of": value})
        assert (result.is_error, result.text.startswith("422 Unprocessable Entity: ")) == (True, True), result.text
        assert told in result.structured["message"]
    assert twin.state() == before


@pytest.mark.parametrize(
    ("shown", "sent", "value", "kept"),
    [
        (CURRENCY, TEXT, "eur", "eur"),
        (CURRENCY, TEXT, "EUR", "eur"),
        (NUMBER, TEXT, "7", 7),
        (TEXT, NUMBER, 7, "7"),
        ({"type": "boolean"}, TEXT, "true", True),
        (record(value=CURRENCY, label={"enum": ["Eur", "Usd"]}), CURRENCY, "usd", {"value": "usd", "label": "Usd"}),
        (record(id=NUMBER, url=TEXT), NUMBER, 7, {"id": 7}),
        (listed(record(id=NUMBER)), listed(NUMBER), [7, 8], [{"id": 7}, {"id": 8}]),
        (listed(NUMBER), listed(record(id=NUMBER, name=TEXT)), [{"id": 7, "name": "a"}], [7]),
        (listed(TEXT), TEXT, "a", ["a"]),
        (CODES, MAP, {"x-a": "EUR"}, {"x-a": "eur"}),
    ],
)
def test_a_value_that_an_answer_writes_otherwise_is_kept(shown: Schema, sent: Schema, value: Any, kept: Any) -> None:
    twin = prices(shown, sent)
    made = ok(twin, "createPrice", of=value)
    assert made["of"] == kept
    assert ok(twin, "getPrice", id=made["id"]) == made
    assert ok(twin, "patchPrice", id=ok(twin, "createPrice", note="n")["id"], of=value)["of"] == kept


@pytest.mark.parametrize(
    ("form", "wrong", "right"),
    [
        ("date", "tomorrow", "2026-02-28"),
        ("date", "2026-02-30", "2026-02-28"),
        ("date-time", "soon", "2026-02-28T10:00:00+02:00"),
        ("email", "not an email", "ann@example.com"),
        ("uuid", "7", "00000000-0000-4000-8000-000000000000"),
        ("uri", "not a uri", "https://example.com/a"),
    ],
)
def test_a_text_of_another_format_is_refused(form: str, wrong: str, right: str) -> None:
    held = TEXT | {"format": form}
    row, sends = record(["id"], id=TEXT, value=held), record(value=held)
    twin = ApiTwin(api(crud("/notes", "Note", row, sends, changes={"patch": sends})))
    made = ok(twin, "createNote", value=right)
    assert made["value"] == right
    for name, more in (("createNote", {}), ("patchNote", {"id": made["id"]})):
        refused = twin.call_now(name, {**more, "value": wrong})
        assert refused.is_error
        assert f'value: "{wrong}" is not a valid {form}; ' in refused.text.replace("\\", "")
    assert not twin.report().broken


@pytest.mark.parametrize("method", ["put", "patch"])
def test_an_id_other_than_the_paths_is_refused(method: str) -> None:
    row = record(["id"], id=NUMBER, name=TEXT)
    twin = ApiTwin(api(crud("/customers", "Customer", row, row, kind=NUMBER, changes={method: row})))
    key, before = int(next(iter(twin.state()["customers"]))), twin.state()
    name = f"{method}Customer"
    refused = twin.call_now(name, {"id_in_path": key, "id_in_body": key + 100_000, "name": "Ann"})
    assert "is not the row's" in refused.text
    assert twin.state() == before
    assert ok(twin, name, id_in_path=key, id_in_body=key, name="Ann")["name"] == "Ann"


def test_a_value_is_kept_apart_where_an_answer_could_show_none_that_may_be_sent() -> None:
    twin = prices({"type": "string", "enum": ["on"]}, {"type": "string", "enum": ["enable"]})
    made = ok(twin, "createPrice", of="enable", note="n")
    assert twin.state()["prices"][str(made["id"])]["@of"] == "enable"


def test_what_is_not_sent_has_the_default_of_the_request_in_a_new_row_and_in_one_that_is_replaced() -> None:
    twin = prices({"type": "boolean"}, {"type": "boolean", "default": True})
    made = ok(twin, "createPrice", note="n")
    assert made["of"] is True
    assert ok(twin, "putPrice", id=made["id"], note="m", of=False)["of"] is False
    assert ok(twin, "putPrice", id=made["id"], note="m")["of"] is True


def test_a_default_of_the_request_that_no_answer_could_show_is_not_kept() -> None:
    twin = prices({"type": "string", "enum": ["eur", "usd"]}, {"type": "string", "default": "auto"})
    assert ok(twin, "createPrice", note="n").get("of") in (None, "eur", "usd")
    assert "auto" not in str(twin.state())


def test_a_null_empties_a_field_that_answers_have_no_null_for() -> None:
    twin = prices(TEXT, {"type": ["string", "null"]})
    made = ok(twin, "createPrice", of="a", note="n")
    assert "of" not in ok(twin, "patchPrice", id=made["id"], of=None)
    assert "of" not in ok(twin, "getPrice", id=made["id"])


def test_the_trial_sends_what_the_answer_can_show() -> None:
    row = record(["id", "of"], id=NUMBER, of=CURRENCY)
    twin = ApiTwin(api(crud("/prices", "Price", row, record(["of"], of=TEXT), kind=NUMBER)))
    assert [(one.problem, one.untried) for one in twin.report().round_trips] == [("", "")]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": 800, "maximum": 810, "not": {"maximum": 805}},
        {**listed(TEXT), "contains": {"const": "main"}},
        {**listed({**NUMBER, "maximum": 50}), "contains": {"minimum": 10}, "minContains": 2, "maxContains": 3},
        {**listed(record(["kind"], kind=CURRENCY)), "contains": record(["kind"], kind={"const": "usd"})},
        {**CODES, "minProperties": 1},
        {**CODES, "required": ["x-a"]},
        {**MAP, "propertyNames": {"pattern": "^[A-Z]+$"}, "additionalProperties": NUMBER, "minProperties": 1},
    ],
)
def test_answers_and_arguments_hold_whatever_keyword_they_are_described_with(schema: Schema) -> None:
    row = record(["id", "of"], id=NUMBER, of=schema, note=TEXT)
    things = crud("/things", "Thing", row, record(["of"], of=schema, note=TEXT), kind=NUMBER)
    twin = ApiTwin(api(things))
    assert [(one.problem, one.untried) for one in twin.report().round_trips] == [("", "")]
    found, kept = ok(twin, "listThings"), twin.state()["things"]
    assert {str(one["id"]): one["of"] for one in found} == {key: one["of"] for key, one in kept.items()}
    for one in found:
        jsonschema.Draft202012Validator(schema).validate(one["of"])


def test_what_a_row_must_not_have_together_is_refused_and_never_filled_in() -> None:
    row = {**record(["id"], id=NUMBER, all={"type": "boolean"}, some=TEXT), "not": {"required": ["all", "some"]}}
    sent = record(all={"type": "boolean"}, some=TEXT)
    twin = ApiTwin(api(crud("/scopes", "Scope", row, sent, kind=NUMBER, changes={"patch": sent})))
    made = ok(twin, "createScope", some="orders")
    assert made == {"id": made["id"], "some": "orders"}
    assert all(not {"all", "some"} <= one.keys() for one in twin.state()["scopes"].values())
    for name, arguments in {"createScope": {"some": "x"}, "patchScope": {"id": made["id"]}}.items():
        refused = twin.call_now(name, {**arguments, "all": True})
        assert refused.text.startswith("422 ")
        assert "the fields are not valid together" in refused.text
    assert ok(twin, "getScope", id=made["id"]) == made


def test_a_row_that_no_answer_can_show_is_a_failure_and_never_answered_with_another_row() -> None:
    needs_size = {"if": {"properties": {"kind": {"const": "box"}}}, "then": {"required": ["size"]}}
    row = {**record(["id", "kind"], id=NUMBER, kind=TEXT, size=TEXT), **needs_size}
    sent = record(["kind"], kind=TEXT, size=TEXT)
    twin = ApiTwin(api(crud("/parcels", "Parcel", row, sent, kind=NUMBER)))
    before = twin.state()
    with pytest.raises(ToolFailure, match="no answer was found that the document's schema allows"):
        twin.call_now("createParcel", {"kind": "box"})
    assert twin.state() == before
    made = ok(twin, "createParcel", kind="box", size="s")
    assert made == {"id": made["id"], "kind": "box", "size": "s"}


def test_rows_closed_beside_their_parts_and_times_that_only_the_server_sets_hold() -> None:
    hook = record(id=NUMBER, url=TEXT, lastModified=TEXT)
    row = {"allOf": [ref("Hook")], "additionalProperties": False, "required": ["id", "url"]}
    sent = record(["url", "lastModified"], url=TEXT, lastModified=TEXT)
    paths = crud("/hooks", "Hook", row, sent, kind=NUMBER, changes={"patch": record(url=TEXT)})
    (trip,) = ApiTwin(api(paths, Hook=hook)).report().round_trips
    assert (trip.problem, trip.untried) == ("", "")


def test_a_row_is_taken_back_as_the_twin_gave_it() -> None:
    """Lists of objects that show more of a row than what names it."""
    labels = crud("/labels", "Label", ref("Label"), record(name=TEXT), kind=NUMBER)
    sent = record(["name"], name=TEXT)
    item = record(["id"], id=NUMBER, labels=listed(ref("Label")), ports=listed(record(["name"], id=NUMBER, name=TEXT)))
    body = record(labels=listed(sent), ports=listed(sent))
    twin = ApiTwin(
        api({**labels, **crud("/items", "Item", item, body, kind=NUMBER, changes={"patch": body})}, Label=LABEL)
    )
    label = ok(twin, "createLabel", name="red")
    made = ok(twin, "createItem", labels=[{"name": "red"}], ports=[{"name": "eth0"}])
    assert (made["labels"], made["ports"]) == ([label], [{"name": "eth0"}])
    again = ok(twin, "patchItem", id=made["id"], ports=made["ports"], labels=[{"name": "red"}])
    assert again == made


# -- refusals ---------------------------------------------------------------------------------------------------------


CLOSED = {**record(code=TEXT, info=TEXT), "additionalProperties": False}


@pytest.mark.parametrize(
    "error",
    [
        None,
        record(["code"], code=NUMBER),
        record(["error"], error=record(code=TEXT)),
        {**record(["error"], error=CLOSED), "additionalProperties": False},
        {**record(error=record(message={**record(lang=TEXT, value=TEXT), "additionalProperties": False}))},
    ],
)
def test_a_missing_reference_is_refused_with_the_name_of_the_field(error: Schema | None) -> None:
    stations = crud("/stations", "Station", record(["id"], id=NUMBER, name=TEXT), record(name=TEXT), kind=NUMBER)
    row = record(["id"], id=NUMBER, station_id=NUMBER)
    partners = crud("/partners", "Partner", row, record(["station_id"], station_id=NUMBER), kind=NUMBER)
    refusal = {"description": "Not valid.", **(content(error) if error is not None else {})}
    partners["/partners"]["post"]["responses"]["422"] = refusal
    result = ApiTwin(api({**stations, **partners})).call_now("createPartner", {"station_id": 99_999})
    assert result.text.startswith("422 Unprocessable Entity")
    assert "station_id: there is no station 99999" in result.text


@pytest.mark.parametrize(("key", "is_link"), [("code", True), ("warehouse_code", True), ("name", False)])
def test_a_property_is_a_reference_by_a_key_of_any_name_but_a_word_of_all_things(key: str, is_link: bool) -> None:
    row = record([key], **{key: TEXT, "city": TEXT})
    paths = crud("/warehouses", "Warehouse", row, record(city=TEXT), parameter=key)
    named = key if key.startswith("warehouse") else f"warehouse_{key}"
    products = crud(
        "/products", "Product", record(["id"], id=NUMBER, **{named: TEXT}), record(**{named: TEXT}), kind=NUMBER
    )
    result = ApiTwin(api({**paths, **products})).call_now("createProduct", {named: "nowhere"})
    assert (f"{named}: there is no warehouse 'nowhere'" in result.text) is is_link
    assert result.is_error is is_link


def test_a_refusal_has_the_form_of_its_status() -> None:
    kinds = {404: "missing", 422: "invalid"}
    forms = [
        record(["status", "title"], status={"type": "integer", "enum": [one]}, title={"type": "string", "enum": [kind]})
        for one, kind in kinds.items()
    ]
    prices = crud("/prices", "Price", record(["id"], id=NUMBER, of=CURRENCY), record(of=TEXT), kind=NUMBER)
    prices["/prices"]["post"]["responses"]["422"] = {"description": "No.", **content({"anyOf": forms})}
    refused = ApiTwin(api(prices)).call_now("createPrice", {"of": "banana"})
    assert refused.text.startswith("422 Unprocessable Entity")
    assert '"status":422,"title":"invalid"' in refused.text


# -- answers that the document leaves open ----------------------------------------------------------------------------


def open_boards(answer: Schema | None = None) -> ApiTwin:
    """Boards, and lists on them, whose answers have no schema."""
    board, card = record(["name"], name=TEXT, desc=TEXT), record(name=TEXT, idBoard=TEXT)
    names = {"idBoard": TEXT}
    paths: dict[str, Schema] = {
        "/boards": {"post": operation("addBoard", sends=board, gives=answer)},
        "/boards/{idBoard}": {
            "get": operation("getBoard", names=names, gives=answer),
            "put": operation("putBoard", names=names, sends=board, gives=answer),
            "delete": operation("deleteBoard", names=names, gives=answer),
        },
        "/boards/{idBoard}/desc": {"put": operation("putDesc", names=names, sends=record(value=TEXT))},
        "/boards/{idBoard}/cards": {"get": operation("getBoardCards", names=names, gives=answer)},
        "/cards": {"post": operation("addCard", sends=card), "get": operation("listCards", gives=answer)},
        "/cards/{idCard}": {
            "get": operation("getCard", names={"idCard": TEXT}, gives=answer),
            "put": operation("putCard", names={"idCard": TEXT}, sends=card, gives=answer),
        },
    }
    return ApiTwin(api(paths))


@pytest.mark.parametrize("answer", [None, {}], ids=["no body", "any body"])
def test_what_was_written_is_read_where_the_document_has_no_schema_for_it(answer: Schema | None) -> None:
    twin = open_boards(answer)
    board = ok(twin, "addBoard", name="B", desc="d")
    assert board == {"id": board["id"], "name": "B", "desc": "d"}
    assert ok(twin, "getBoard", idBoard=board["id"]) == board
    ok(twin, "putBoard", idBoard=board["id"], name="C")
    ok(twin, "putDesc", idBoard=board["id"], value="new")
    assert ok(twin, "getBoard", idBoard=board["id"]) == {**board, "name": "C", "desc": "new"}
    card = ok(twin, "addCard", name="c", idBoard=board["id"])
    assert ok(twin, "getBoardCards", idBoard=board["id"]) == [card]
    assert card in ok(twin, "listCards")
    assert "idBoard: there is no board 'none'" in twin.call_now("addCard", {"idBoard": "none"}).text
    ok(twin, "deleteBoard", idBoard=board["id"])
    assert twin.call_now("getBoard", {"idBoard": board["id"]}).text.startswith("404 ")
    assert [(one.create, one.problem, one.untried) for one in twin.report().round_trips] == [
        ("addBoard", "", ""),
        ("addCard", "", ""),
    ]


def test_what_nobody_can_read_does_not_count_as_a_resource_that_holds() -> None:
    row, sent = record(["id"], id=NUMBER, name=TEXT), record(name=TEXT)
    page: Schema = {"description": "It.", **content(TEXT, "text/html")}
    for changes, told in {
        (): ("deleteNote changes nothing: the document shows no collection that this belongs to", ""),
        ("put",): ("", "getNote shows nothing of it, by its schema"),
    }.items():
        paths = crud("/notes", "Note", row, sent, kind=NUMBER, changes=dict.fromkeys(changes, sent))
        paths["/notes/{id}"]["get"]["responses"]["200"] = page
        (trip,) = ApiTwin(api(paths)).report().round_trips
        assert (trip.problem, trip.untried) == told


def test_a_change_of_what_a_get_reads_at_the_same_path_is_refused_where_it_cannot_be_made() -> None:
    paths = crud("/users", "User", record(["id"], id=NUMBER, name=TEXT), record(name=TEXT), kind=NUMBER)
    names = {"id": NUMBER}
    image: Schema = {"description": "It.", **content(TEXT, "image/png")}
    get = operation("getAvatar", names=names)
    get["responses"]["200"] = image
    paths["/users/{id}/avatar"] = {"get": get, "put": operation("putAvatar", names=names, sends=record(image=TEXT))}
    twin = ApiTwin(api(paths))
    user = ok(twin, "createUser", name="Ada")
    assert twin.call_now("putAvatar", {"id": user["id"], "image": "x"}).text.startswith("422 ")
    assert [one.operation for one in twin.report().refused] == ["putAvatar"]
    assert not twin.report().events


# -- documents of all kinds -------------------------------------------------------------------------------------------


def test_a_json_patch_is_refused_with_the_reason_and_changes_nothing() -> None:
    step = record(["op", "path"], op=TEXT, path=TEXT, value={})
    note = record(["id"], id=TEXT, text=TEXT)
    paths = crud("/notes", "Note", note, record(text=TEXT), changes={"patch": record(text=TEXT)})
    paths["/notes/{id}"]["patch"]["requestBody"] = content(listed(step), "application/json-patch+json")
    twin = ApiTwin(api(paths))
    (key, *_), before = twin.state()["notes"], twin.state()
    change = twin.call_now("patchNote", {"id": key, "body": [{"op": "replace", "path": "/text", "value": "new"}]})
    assert change.is_error
    assert "a list is sent, such as a JSON Patch" in change.text
    assert twin.state() == before
    assert [one.operation for one in twin.report().refused] == ["patchNote"]


def test_a_list_in_one_branch_of_an_answer_is_listed() -> None:
    row = record(["id"], id=NUMBER, name=TEXT)
    paths = crud("/tracks", "Track", ref("Track"), record(name=TEXT), kind=NUMBER)
    whole = record(["collection"], collection=listed(ref("Track")), next_href=TEXT)
    paths["/tracks"]["get"] = operation("listTracks", gives={"oneOf": [whole, record(["error"], error=TEXT)]})
    twin = ApiTwin(api(paths, Track=row))
    made = ok(twin, "createTrack", name="t")
    assert made in ok(twin, "listTracks")["collection"]


def test_rows_are_named_by_the_property_with_the_choices_of_the_paths_parameter() -> None:
    kinds: Schema = {"type": "string", "enum": ["validity", "compatibility"]}
    row = record(["type"], type=kinds, config=TEXT)
    paths = crud("/rules", "Rule", row, row, parameter="rule", kind=kinds, changes={"put": row})
    twin = ApiTwin(api(paths), scenario="empty")
    ok(twin, "createRule", type="validity", config="full")
    assert ok(twin, "getRule", rule="validity")["config"] == "full"
    assert twin.call_now("createRule", {"type": "validity"}).is_error


def test_the_trial_makes_rows_where_a_list_of_them_is_sent() -> None:
    row = record(["id"], id=NUMBER, email=TEXT)
    paths = crud("/members", "Member", ref("Member"), listed(record(email=TEXT)), kind=NUMBER)
    (trip,) = ApiTwin(api(paths, Member=row)).report().round_trips
    assert (trip.problem, trip.untried) == ("", "")


# -- rows under another row, and rows of several kinds -----------------------------------------------------------------


def test_a_row_names_the_row_that_its_path_names() -> None:
    owner = record(["id"], id=TEXT, city=TEXT)
    pet, sent = record(["id", "owner_id"], id=TEXT, title=TEXT, owner_id=TEXT), record(title=TEXT, owner_id=TEXT)
    pets = crud("/owners/{ownerId}/pets", "Pet", pet, sent, changes={"patch": sent})
    for item in pets.values():
        for one in item.values():
            one["parameters"].append({"name": "ownerId", "in": "path", "required": True, "schema": TEXT})
    twin = ApiTwin(api({**crud("/owners", "Owner", owner, record(city=TEXT)), **pets}))
    first, other = list(twin.state()["owners"])[:2]
    rows = twin.state()["pets"].values()
    assert rows
    assert all(row["owner_id"] == row["@in"] for row in rows)
    made = ok(twin, "createPet", ownerId=first, title="Rex")
    assert made["owner_id"] == first
    for call, more in (("createPet", {}), ("patchPet", {"id": made["id"]})):
        refused = twin.call_now(call, {"ownerId": first, "owner_id": other, **more})
        assert "owner_id: the path names another one" in refused.text
    assert ok(twin, "patchPet", ownerId=first, id=made["id"], title="Max") == {**made, "title": "Max"}


def test_a_merge_patch_changes_what_is_in_it_alone_at_any_depth() -> None:
    address = record(street=TEXT, city=TEXT, more=record(floor=TEXT, door=TEXT))
    row = record(["id"], id=TEXT, address=address)
    document = api(crud("/owners", "Owner", row, record(address=address), changes={"patch": record(address=address)}))
    body = document["paths"]["/owners/{id}"]["patch"]["requestBody"]["content"]
    body["application/merge-patch+json"] = body.pop("application/json")
    twin = ApiTwin(document)
    whole = {"street": "s", "city": "c", "more": {"floor": "1", "door": "2"}}
    made = ok(twin, "createOwner", address=whole)
    changed = ok(twin, "patchOwner", id=made["id"], address={"city": "d", "more": {"door": "3"}})
    assert changed["address"] == {"street": "s", "city": "d", "more": {"floor": "1", "door": "3"}}
    assert ok(twin, "getOwner", id=made["id"]) == changed


def test_rows_of_several_kinds_are_kept_side_by_side() -> None:
    dog = record(["kind", "name"], kind={"const": "dog"}, name=TEXT, breed=TEXT)
    cat = record(["kind", "name", "lives"], kind={"const": "cat"}, name=TEXT, lives=NUMBER, owner_id=TEXT)
    shown = [{**one, "properties": {"id": TEXT, **one["properties"]}} for one in (dog, cat)]
    changes = {"patch": record(kind=TEXT, name=TEXT, breed=TEXT, lives=NUMBER)}
    paths = crud("/pets", "Pet", ref("Pet"), {"oneOf": [dog, cat]}, changes=changes)
    paths["/pets"]["get"]["parameters"] = [{"name": "kind", "in": "query", "schema": TEXT}]
    paths |= crud("/owners", "Owner", record(["id"], id=TEXT, name=TEXT), record(name=TEXT))
    twin = ApiTwin(api(paths, Pet={"oneOf": shown}))
    assert {row["kind"] for row in ok(twin, "listPets")} == {"cat", "dog"}
    assert all("lives" in row for row in ok(twin, "listPets", kind="cat"))
    assert not any(row.keys() & {"lives", "owner_id"} for row in twin.state()["pets"].values() if row["kind"] == "dog")
    mia = ok(twin, "createPet", body={"kind": "cat", "name": "Mia", "lives": 9})
    rex = ok(twin, "createPet", body={"kind": "dog", "name": "Rex", "breed": "pug"})
    assert (mia["lives"], rex["breed"]) == (9, "pug")
    assert ok(twin, "patchPet", id=mia["id"], lives=8) == {**mia, "lives": 8}
    assert ok(twin, "patchPet", id=rex["id"], lives=8) == rex
    assert ok(twin, "patchPet", id=mia["id"], kind="dog")["kind"] == "dog"
    assert "lives" not in twin.state()["pets"][mia["id"]]
    assert ok(twin, "listPets", kind="dog")[-1] == rex


@pytest.mark.parametrize("is_named", [True, False])
def test_kinds_of_rows_that_only_a_discriminator_tells_apart_are_made_and_read(is_named: bool) -> None:
    base = record(["id", "kind"], id=NUMBER, kind=TEXT)
    kinds = {"Cat": {"allOf": [base, record(lives=NUMBER)]}, "Dog": {"allOf": [base, record(good={"type": "boolean"})]}}
    pet = {"oneOf": [ref("Cat"), ref("Dog")], "discriminator": {"propertyName": "kind"}}
    row = ref("Pet") if is_named else pet
    twin = ApiTwin(api(crud("/pets", "Pet", row, row, kind=NUMBER), **kinds, Pet=pet))
    kind = ok(twin, "listPets")[0]["kind"]
    assert kind in kinds
    assert ok(twin, "createPet", body={"id": 9_000_001, "kind": kind})["kind"] == kind
    assert ok(twin, "getPet", id=9_000_001)["kind"] == kind


@pytest.mark.parametrize("mapping", [{}, {"mapping": {"cat": "Cat", "dog": "#/components/schemas/Dog"}}])
def test_rows_are_of_the_kinds_that_inherit_from_their_schema(mapping: Schema) -> None:
    pet = record(["kind"], id={**NUMBER, "readOnly": True}, kind=TEXT)
    pet["discriminator"] = {"propertyName": "kind", **mapping}
    heirs = {"Cat": record(lives=NUMBER), "Dog": record(breed=TEXT)}
    schemas = {name: {"allOf": [ref("Pet"), one]} for name, one in heirs.items()}
    paths = crud("/pets", "Pet", ref("Pet"), ref("Pet"), kind=NUMBER, changes={"put": ref("Pet")})
    twin = ApiTwin(api(paths, Pet=pet, **schemas))
    cat, dog = mapping.get("mapping", schemas)
    properties = {cat: {"lives"}, dog: {"breed"}} | ({} if mapping else {"Pet": set()})
    shown = [(row["kind"], row.keys() - {"id", "kind"}) for row in ok(twin, "listPets")]
    assert {kind for kind, _ in shown} == properties.keys()
    assert all(names <= properties[kind] for kind, names in shown)
    mia = ok(twin, "createPet", body={"kind": cat, "lives": 9})
    assert mia == {"id": mia["id"], "kind": cat, "lives": 9}
    assert ok(twin, "getPet", id=mia["id"]) == mia
    rex = ok(twin, "putPet", id=mia["id"], body={"kind": dog, "breed": "pug"})
    assert rex == ok(twin, "getPet", id=mia["id"]) == {"id": mia["id"], "kind": dog, "breed": "pug"}


def test_a_row_shows_the_rows_that_are_nested_in_it_and_is_made_with_them() -> None:
    line = record(["sku"], sku=TEXT, qty=NUMBER)
    order = record(["id", "lines"], id=NUMBER, title=TEXT, lines=listed(ref("Line")))
    lines = listed(record(["sku"], id=NUMBER, sku=TEXT, qty=NUMBER))
    sends = record(["lines"], title=TEXT, lines=lines)
    paths = crud("/orders", "Order", ref("Order"), sends, kind=NUMBER, changes={"patch": record(lines=lines)})
    below = crud("/orders/{id}/lines", "Line", ref("Line"), line, parameter="line_id", kind=NUMBER)
    for item in below.values():
        for method in item.values():
            at = {"name": "id", "in": "path", "required": True, "schema": NUMBER}
            method["parameters"] = [*(one for one in method["parameters"] if one["name"] != "id"), at]
    shown = record(["id", "sku"], id=NUMBER, sku=TEXT, qty=NUMBER)
    twin = ApiTwin(api(paths | below, Order=order, Line=shown))
    assert [(one.problem, one.untried) for one in twin.report().round_trips] == [("", ""), ("", "")]

    def lines_of(key: int) -> Any:
        rows = ok(twin, "listLines", id=key)
        assert ok(twin, "getOrder", id=key)["lines"] == rows
        return rows

    assert lines_of(ok(twin, "listOrders")[0]["id"])
    made = ok(twin, "createOrder", title="Tea", lines=[{"sku": "A", "qty": 3}])["id"]
    (first,) = lines_of(made)
    assert (first["sku"], first["qty"]) == ("A", 3)
    second = ok(twin, "createLine", id=made, sku="B", qty=1)
    assert lines_of(made) == [first, second]
    twin.call_now("deleteLine", {"id": made, "line_id": first["id"]})
    assert lines_of(made) == [second]
    ok(twin, "patchOrder", id=made, lines=[{"id": second["id"], "sku": "C"}, {"sku": "D"}])
    assert [(one["id"] == second["id"], one["sku"]) for one in lines_of(made)] == [(True, "C"), (False, "D")]


# -- operations whose answers the document does not determine ----------------------------------------------------------


def visits() -> ApiTwin:
    """Rooms as usual; visits of guests whom no path reads, and an action on a visit that no path reads."""
    room, visit = record(["id"], id=TEXT, floor=NUMBER), record(["id"], id=TEXT, reason=TEXT)
    guest = {"guestId": TEXT}
    return ApiTwin(
        api(
            {
                **crud("/rooms", "Room", room, record(floor=NUMBER)),
                "/guests/{guestId}/visits": {"get": operation("listVisits", gives=listed(visit), names=guest)},
                "/stays/{stayId}/cancel": {"post": operation("cancelStay", gives=visit, names={"stayId": TEXT})},
            }
        )
    )


def test_tools_whose_results_are_made_up_say_so_until_a_rule_answers_and_no_task_asks_for_them() -> None:
    twin = visits()
    marks = {tool.name: tool.meta[MADE_UP] for tool in twin.tools if MADE_UP in tool.meta}
    assert marks == {
        "listVisits": "no path of the document reads what 'guestId' names, so it chooses no rows",
        "cancelStay": "the document shows no collection that this belongs to",
    }
    made = sdk.synthesize(twin, 4, max_calls=1)
    assert {call["name"] for task in made.tasks for call in task.expected["calls"]} <= {
        "getRoom",
        "createRoom",
        "deleteRoom",
        "listRooms",
    }
    assert {name: made.unused_tools[name] for name in marks} == {
        name: f"its results are made up: {why}" for name, why in marks.items()
    }

    @twin.rule("cancelStay", when="instead")
    def cancelled(call: ApiCall) -> dict[str, str]:
        return {"id": call.path["stayId"], "reason": "cancelled"}

    assert [tool.name for tool in twin.tools if MADE_UP in tool.meta] == ["listVisits"]


@pytest.mark.parametrize("kind", [NUMBER, TEXT], ids=["number", "text"])
def test_a_number_under_a_row_is_never_given_again(kind: Schema) -> None:
    paths = crud("/shops", "Shop", LABEL, record(["name"], name=TEXT), kind=NUMBER)
    row, shop = record(["number"], number=kind, title=TEXT), {"shop_id": NUMBER}
    paths["/shops/{shop_id}/issues"] = {
        "get": operation("listIssues", gives=listed(row), names=shop),
        "post": operation("createIssue", sends=record(title=TEXT), gives=row, status="201", names=shop),
    }
    paths["/shops/{shop_id}/issues/{number}"] = {
        "get": operation("getIssue", gives=row, names={**shop, "number": NUMBER}),
        "delete": operation("deleteIssue", status="204", names={**shop, "number": NUMBER}),
    }
    twin = ApiTwin(api(paths), scenario="empty")
    for shop_id in (ok(twin, "createShop", name=name)["id"] for name in "ab"):
        made = [int(ok(twin, "createIssue", shop_id=shop_id)["number"]) for _ in range(3)]
        ok(twin, "deleteIssue", shop_id=shop_id, number=3)
        assert [*made, int(ok(twin, "createIssue", shop_id=shop_id)["number"])] == [1, 2, 3, 4]


def test_a_row_that_was_given_another_number_does_not_keep_the_next_from_being_made() -> None:
    paths = crud("/shops", "Shop", LABEL, record(["name"], name=TEXT), kind=NUMBER)
    row, shop = record(["number"], number=NUMBER), {"shop_id": NUMBER}
    paths["/shops/{shop_id}/issues"] = {
        "get": operation("listIssues", gives=listed(row), names=shop),
        "post": operation("createIssue", sends=record(title=TEXT), gives=row, status="201", names=shop),
    }
    paths["/shops/{shop_id}/issues/{no}"] = {
        "get": operation("getIssue", gives=row, names={**shop, "no": NUMBER}),
        "patch": operation("patchIssue", sends=record(number=NUMBER), gives=row, names={**shop, "no": NUMBER}),
    }
    twin = ApiTwin(api(paths), scenario="empty")
    shop_id = ok(twin, "createShop", name="a")["id"]
    assert ok(twin, "createIssue", shop_id=shop_id) == {"number": 1}
    assert ok(twin, "patchIssue", shop_id=shop_id, no=1, number=2) == {"number": 2}
    assert ok(twin, "createIssue", shop_id=shop_id) == {"number": 3}


@pytest.mark.parametrize("text", ["inf", "-Infinity", "1e999"])
def test_a_text_that_is_no_number_of_json_is_kept_as_other_texts_where_a_number_is_shown(text: str) -> None:
    row = record(["id", "total"], id=TEXT, total={"type": "number"})
    twin = ApiTwin(api(crud("/orders", "Order", row, record(["total"], total=TEXT))))
    assert ok(twin, "createOrder", total=text)["total"] == ok(twin, "createOrder", total="many")["total"]
    assert ok(twin, "createOrder", total="1e3")["total"] == 1000


def test_a_merge_patch_of_what_is_not_there_holds_no_nulls() -> None:
    marks: Schema = {**MAP, "additionalProperties": TEXT}
    sent = record(marks={**MAP, "additionalProperties": {"type": ["string", "null"]}})
    row = record(["id"], id=TEXT, marks=marks)
    document = api(crud("/owners", "Owner", row, record(marks=marks), changes={"patch": sent}))
    body = document["paths"]["/owners/{id}"]["patch"]["requestBody"]["content"]
    body["application/merge-patch+json"] = body.pop("application/json")
    twin = ApiTwin(document)
    made = ok(twin, "createOwner")
    assert ok(twin, "patchOwner", id=made["id"], marks={"a": None, "b": "c"})["marks"] == {"b": "c"}


def test_a_value_of_a_map_is_kept_as_the_answer_writes_it_or_refused() -> None:
    row = record(["id"], id=TEXT, marks={**MAP, "additionalProperties": CURRENCY})
    twin = ApiTwin(api(crud("/orders", "Order", row, record(marks=MAP), changes={"patch": record(marks=MAP)})))
    made = ok(twin, "createOrder", marks={"a": "EUR", "b": None})
    assert made["marks"] == {"a": "eur"}
    for value in ("banana", {"c": "eur"}):
        refused = twin.call_now("patchOrder", {"id": made["id"], "marks": {"a": value}})
        assert refused.text.startswith("422 Unprocessable Entity")
        assert "marks.a: " in refused.text
    assert ok(twin, "getOrder", id=made["id"]) == made


def test_an_object_shows_the_fields_that_its_schema_takes_beside_its_own() -> None:
    fields = {**record(summary=TEXT), "additionalProperties": TEXT}
    row = record(["id"], id=TEXT, fields=fields)
    twin = ApiTwin(api(crud("/issues", "Issue", row, record(fields=fields))))
    made = ok(twin, "createIssue", fields={"summary": "s", "custom_1": "c"})
    assert made["fields"] == {"summary": "s", "custom_1": "c"}
    assert ok(twin, "getIssue", id=made["id"]) == made


@pytest.mark.parametrize(
    "errors",
    [
        {**MAP, "additionalProperties": listed(TEXT)},
        {**MAP, "additionalProperties": record(["reason"], reason=TEXT)},
        {**MAP, "additionalProperties": False},
        listed({**MAP, "additionalProperties": NUMBER}),
    ],
)
def test_a_refusal_whose_errors_are_a_map_is_valid_by_its_schema(errors: Schema) -> None:
    error = record(["message", "errors"], message=TEXT, errors=errors)
    prices = crud("/prices", "Price", record(["id"], id=NUMBER, of=CURRENCY), record(of=TEXT), kind=NUMBER)
    prices["/prices"]["post"]["responses"]["422"] = {"description": "No.", **content(error)}
    refused = ApiTwin(api(prices)).call_now("createPrice", {"of": "banana"})
    assert "banana" in refused.structured["message"]
    jsonschema.validate(refused.structured, error)


def test_a_refusal_of_numbers_alone_is_valid_by_its_schema() -> None:
    error = {**record(["code"], code=NUMBER), "additionalProperties": NUMBER}
    prices = crud("/prices", "Price", record(["id"], id=NUMBER, of=CURRENCY), record(of=TEXT), kind=NUMBER)
    prices["/prices"]["post"]["responses"]["422"] = {"description": "No.", **content(error)}
    assert ApiTwin(api(prices)).call_now("createPrice", {"of": "banana"}).structured == {"code": 422}


def test_what_goes_with_a_row_does_not_keep_it_from_being_deleted() -> None:
    paths = crud("/shops", "Shop", LABEL, record(["name"], name=TEXT), kind=NUMBER)
    rack = record(["id"], id=NUMBER, name=TEXT)
    book = record(["id", "rack_id"], id=NUMBER, rack_id=NUMBER)
    for word, row, sends in (("racks", rack, record(name=TEXT)), ("books", book, record(rack_id=NUMBER))):
        names = {"shop_id": NUMBER}
        paths[f"/shops/{{shop_id}}/{word}"] = {
            "get": operation(f"list_{word}", gives=listed(row), names=names),
            "post": operation(f"create_{word}", sends=sends, gives=row, status="201", names=names),
        }
        names = {**names, "id": NUMBER}
        paths[f"/shops/{{shop_id}}/{word}/{{id}}"] = {
            "get": operation(f"get_{word}", gives=row, names=names),
            "delete": operation(f"delete_{word}", status="204", names=names),
        }
    twin = ApiTwin(api(paths), scenario="empty")
    shop = ok(twin, "createShop", name="a")["id"]
    rack_id = ok(twin, "create_racks", shop_id=shop)["id"]
    ok(twin, "create_books", shop_id=shop, rack_id=rack_id)
    assert twin.call_now("delete_racks", {"shop_id": shop, "id": rack_id}).text.startswith("409")
    ok(twin, "deleteShop", id=shop)
    state = twin.state()
    assert state["shops"] == state["racks"] == state["books"] == {}


@pytest.mark.parametrize("key", ["plain", "50%"])
def test_a_deleted_row_is_named_nowhere_whatever_its_key_holds(key: str) -> None:
    customers = crud("/customers", "Customer", record(["id"], id=TEXT), record(["id"], id=TEXT))
    row = record(["id"], id=TEXT, customer_id=TEXT)
    orders = crud("/orders", "Order", row, record(customer_id=TEXT))
    twin = ApiTwin(api({**customers, **orders}), scenario="empty")
    ok(twin, "createCustomer", id=key)
    made = ok(twin, "createOrder", customer_id=key)
    assert made["customer_id"] == key
    ok(twin, "deleteCustomer", id=key)
    assert ok(twin, "getOrder", id=made["id"]) == {"id": made["id"]}


def test_a_row_is_named_by_the_rows_beside_it_where_another_parent_has_one_with_the_same_key() -> None:
    label = record(["slug"], slug=TEXT, colour=TEXT)
    card = record(["id"], id=NUMBER, label_slug=TEXT, label=ref("Label"))
    paths = crud("/repos", "Repo", record(["slug"], slug=TEXT), record(slug=TEXT), parameter="repo")
    cards = {"cards": ("id", ref("Card"), record(label_slug=TEXT)), "labels": ("label", ref("Label"), label)}
    for word, (parameter, row, sends) in cards.items():
        names: dict[str, Schema] = {"repo": TEXT}
        paths[f"/repos/{{repo}}/{word}"] = {
            "get": operation(f"list_{word}", gives=listed(row), names=names),
            "post": operation(f"create_{word}", sends=sends, gives=row, status="201", names=names),
        }
        names |= {parameter: NUMBER if parameter == "id" else TEXT}
        paths[f"/repos/{{repo}}/{word}/{{{parameter}}}"] = {
            "get": operation(f"get_{word}", gives=row, names=names),
            "delete": operation(f"delete_{word}", status="204", names=names),
        }
    of_label = operation("list_label_cards", gives=listed(ref("Card")), names={"repo": TEXT, "label": TEXT})
    paths["/repos/{repo}/labels/{label}/cards"] = {"get": of_label}
    twin = ApiTwin(api(paths, Label=label, Card=card), scenario="empty")
    for repo, colour in (("a", "red"), ("b", "blue")):
        ok(twin, "createRepo", slug=repo)
        ok(twin, "create_labels", repo=repo, slug="bug", colour=colour)
        made = ok(twin, "create_cards", repo=repo, label_slug="bug")
        assert made["label"] == {"slug": "bug", "colour": colour}
        assert ok(twin, "list_label_cards", repo=repo, label="bug") == [made]
    ok(twin, "delete_labels", repo="a", label="bug")
    assert ok(twin, "list_cards", repo="a") == [{"id": 1}]
    assert ok(twin, "list_cards", repo="b") == [made]


def test_a_field_that_no_answer_shows_moves_no_row_whatever_it_is_called() -> None:
    note, names = record(["id"], id=NUMBER, text=TEXT), {"id": NUMBER}
    paths = crud("/users", "User", record(["id"], id=NUMBER), record(name=TEXT), kind=NUMBER)
    paths |= crud("/entries", "Entry", note, record(text=TEXT), kind=NUMBER)
    del paths["/entries"]["post"]
    for word, field in (("entries", "users"), ("tasks", "in")):
        paths[f"/users/{{id}}/{word}"] = {
            "get": operation(f"list_{word}", gives=listed(note), names=names),
            "post": operation(f"create_{word}", sends=record(**{field: TEXT}), gives=note, status="201", names=names),
        }
    both = {**names, "task": NUMBER}
    paths["/users/{id}/tasks/{task}"] = {"get": operation("get_task", gives=note, names=both)}
    twin = ApiTwin(api(paths), scenario="empty")
    user = ok(twin, "createUser")["id"]
    for word, field in (("entries", "users"), ("tasks", "in")):
        made = ok(twin, f"create_{word}", id=user, **{field: "other"})
        assert ok(twin, f"list_{word}", id=user) == [made]
