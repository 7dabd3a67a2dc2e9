"""Who may call an API twin, and which values no two rows may share."""

from __future__ import annotations

from typing import Any

import pytest

import mcp_bridge
from mcp_bridge import SourceError
from sandboxes import SetupError
from sandboxes.api import ApiTwin
from sandboxes.api.http import HttpFace

TEXT = {"type": "string"}
USER = {
    "type": "object",
    "required": ["id", "email", "nick", "name"],
    "properties": {
        "id": {"type": "integer", "readOnly": True},
        "email": {"type": "string", "format": "email"},
        "nick": {"type": "string", "x-unique": True},
        "badge": {"type": "string", "description": "The number on the badge; must be unique."},
        "name": TEXT,
        "city": TEXT,
    },
}
REF = {"$ref": "#/components/schemas/User"}


def answers(schema: Any = REF, **more: str) -> dict[str, Any]:
    good = {"200": {"description": "ok", "content": {"application/json": {"schema": schema}}}}
    error = {"application/json": {"schema": {"type": "object", "properties": {"message": TEXT}}}}
    return {**good, **{status[1:]: {"description": said, "content": error} for status, said in more.items()}}


def document() -> dict[str, Any]:
    body = {"required": True, "content": {"application/json": {"schema": REF}}}
    one = [{"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}}]
    taken = "A user with this name already exists."
    return {
        "openapi": "3.1.0",
        "info": {"title": "People", "version": "1"},
        "security": [{"key": []}, {"login": ["users:read"]}],
        "paths": {
            "/users": {
                "get": {"operationId": "listUsers", "responses": answers({"type": "array", "items": REF}, _401="Who?")},
                "post": {
                    "operationId": "addUser",
                    "security": [{"login": ["users:write"]}],
                    "requestBody": body,
                    "responses": answers(_401="Who are you?", _403="You may not.", _409=taken),
                },
            },
            "/users/{id}": {
                "parameters": one,
                "put": {"operationId": "putUser", "requestBody": body, "responses": answers()},
                "get": {"operationId": "getUser", "security": [{}], "responses": answers(_404="None.")},
            },
        },
        "components": {
            "schemas": {"User": USER},
            "securitySchemes": {
                "key": {"type": "apiKey", "in": "header", "name": "X-Key"},
                "login": {
                    "type": "oauth2",
                    "flows": {
                        "clientCredentials": {
                            "tokenUrl": "https://login.example/token",
                            "scopes": {"users:read": "read", "users:write": "write"},
                        }
                    },
                },
            },
        },
    }


def person(**changed: str) -> dict[str, str]:
    return {"email": "ada@example.org", "nick": "ada", "badge": "b-1", "name": "Ada", "city": "London", **changed}


# -- credentials -------------------------------------------------------------------------------------------------------


def test_without_a_credential_an_operation_with_security_is_refused_and_nothing_changes() -> None:
    twin = ApiTwin(document(), scenario="signed_out")
    before = twin.state()
    listed, added = twin.call_now("listUsers", {}), twin.call_now("addUser", person())
    assert (listed.error_kind, listed.text[:16]) == ("tool_error", "401 Unauthorized")
    assert "key or login" in listed.text
    assert added.text.startswith("401 Unauthorized")
    assert twin.state() == before
    key = next(iter(before["users"]))
    assert not twin.call_now("getUser", {"id": int(key)}).is_error  # open to anybody


def test_the_rows_of_the_scenario_without_credential_are_those_with_one() -> None:
    assert ApiTwin(document(), scenario="signed_out").state() == ApiTwin(document()).state()


def test_a_credential_without_the_scope_is_refused_with_403() -> None:
    reader = ApiTwin(document(), credentials={"login": ["users:read"]})
    assert not reader.call_now("listUsers", {}).is_error
    refused = reader.call_now("addUser", person())
    assert refused.text.startswith("403 Forbidden")
    assert "users:write" in refused.text
    writer = ApiTwin(document(), credentials={"login": None})
    assert not writer.call_now("addUser", person()).is_error
    other = ApiTwin(document(), credentials={"key": None})
    assert other.call_now("addUser", person()).text.startswith("401 Unauthorized")


def test_who_calls_stays_through_forks_snapshots_and_resets() -> None:
    twin = ApiTwin(document(), scenario="signed_out")
    assert twin.fork().call_now("listUsers", {}).text.startswith("401")
    other = ApiTwin(document())
    other.restore(twin.snapshot())
    assert other.call_now("listUsers", {}).text.startswith("401")
    other.reset(seed=3)
    assert not other.call_now("listUsers", {}).is_error


async def test_a_task_says_by_its_setup_whether_the_caller_is_known() -> None:
    async with mcp_bridge.connect(ApiTwin(document())) as toolset:
        for scenario, refused in (("default", False), ("signed_out", True)):
            async with toolset.open_world(scenario, {"seed": 1, "scenario": scenario}) as world:
                assert (await world.call("listUsers", {})).is_error is refused


def test_what_no_document_asks_for_is_refused_as_a_scenario_and_as_a_credential() -> None:
    plain = {**document(), "security": []}
    del plain["paths"]["/users"]["post"]["security"]
    with pytest.raises(SetupError, match="no scenario 'signed_out'"):
        ApiTwin(plain, scenario="signed_out")
    with pytest.raises(SourceError, match=r"'logn'; the security schemes of the document are key, login.*'login'"):
        ApiTwin(document(), credentials={"logn": None})
    with pytest.raises(SourceError, match="must be a list"):
        ApiTwin(document(), credentials={"login": "users:read"})


@pytest.mark.parametrize(
    ("headers", "status"),
    [({}, 401), ({"x-key": "secret"}, 200), ({"authorization": "Bearer t"}, 200), ({"authorization": "Basic t"}, 401)],
)
def test_over_http_a_request_brings_its_own_credential(headers: dict[str, str], status: int) -> None:
    face = HttpFace(ApiTwin(document(), scenario="signed_out"))
    assert face.answer("GET", "/users", "", headers, b"").status == status


# -- uniqueness --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("again", "refused_for"),
    [
        ({"nick": "bea", "badge": "b-2", "name": "Bea"}, "email"),  # identifies, and the operation has a 409
        ({"email": "b@example.org", "badge": "b-2", "name": "Bea"}, "nick"),  # x-unique
        ({"email": "b@example.org", "nick": "bea", "name": "Bea"}, "badge"),  # its description
        ({"email": "b@example.org", "nick": "bea", "badge": "b-2"}, "name"),  # the words of the 409
        ({"email": "b@example.org", "nick": "bea", "badge": "b-2", "name": "Bea"}, None),  # the same city
    ],
)
def test_a_value_that_must_be_unique_is_refused_a_second_time(again: dict[str, str], refused_for: str | None) -> None:
    twin = ApiTwin(document(), scenario="empty")
    assert not twin.call_now("addUser", person()).is_error
    second = twin.call_now("addUser", person(**again))
    assert second.is_error is (refused_for is not None)
    if refused_for is not None:
        assert second.text.startswith("409 Conflict: ")
        assert f"{refused_for}: there is a user" in second.text
    assert len(twin.state()["users"]) == (1 if refused_for else 2)


def test_a_row_may_keep_its_own_value_and_not_take_anothers() -> None:
    twin = ApiTwin(document(), scenario="empty")
    twin.call_now("addUser", person())
    bea = person(email="b@example.org", nick="bea", badge="b-2", name="Bea")
    key = twin.call_now("addUser", bea).structured["id"]
    assert not twin.call_now("putUser", {"id": key, **bea, "city": "Rome"}).is_error
    taken = twin.call_now("putUser", {"id": key, **bea, "nick": "ada"})
    assert "nick: there is a user" in taken.text
    # Without a 409 the operation knows of no conflict over what only usually is unique.
    assert not twin.call_now("putUser", {"id": key, **bea, "email": "ada@example.org"}).is_error


def test_the_report_names_who_may_call_and_what_is_unique() -> None:
    report = ApiTwin(document()).report()
    by_name = {one.operation: one for one in report.operations}
    assert by_name["listUsers"].needs == "key or login"
    assert by_name["getUser"].needs == ""
    assert by_name["addUser"].unique == ("badge", "email", "name", "nick")
    assert by_name["putUser"].unique == ("badge", "nick")
    assert "3 operations need a credential" in str(report)
