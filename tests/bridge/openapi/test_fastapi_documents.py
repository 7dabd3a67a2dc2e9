"""The document that FastAPI writes works as it comes: live, and as a twin."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from other_environments import python_of

from mcp_bridge import SourceError, connect
from sandboxes.api import ApiTwin
from sandboxes.api.http import HttpFace

APP = Path(__file__).parent / "booking_app.py"
NAMES = {
    "rooms",
    "read_room",
    "book_room",
    "cancel",
    # Two functions have this name.
    "everything_bookings_get",
    "everything_people_get",
}
BOOKING = {"person": "Ann", "day": "Monday", "start": 9}


@pytest.fixture(scope="module")
def bookings() -> Iterator[str]:
    """The URL of the service."""
    with subprocess.Popen([str(python_of("fastapi")), str(APP)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(process.stdout.readline())}"
        with contextlib.ExitStack() as stack:
            stack.callback(process.kill)
            yield url


@pytest.fixture(scope="module")
def document(bookings: str) -> Any:
    return httpx.get(f"{bookings}/openapi.json").json()


async def test_the_url_of_the_document_alone_gives_live_tools_with_the_names_of_the_functions(bookings: str) -> None:
    async with connect(f"{bookings}/openapi.json") as toolset:
        assert {tool.name for tool in toolset.tools} == NAMES
        made = await toolset.call("book_room", {"room_id": 2, **BOOKING})
        assert made.structured == {"id": 1, "room": 2, **BOOKING}
        assert json.loads((await toolset.call("everything_people_get", {})).text) == ["Ann"]
        assert not (await toolset.call("cancel", {"booking_id": 1})).is_error


async def test_a_file_that_names_no_server_says_where_a_url_or_a_twin_belongs(document: Any, tmp_path: Path) -> None:
    assert "servers" not in document
    path = tmp_path / "openapi.json"
    path.write_text(json.dumps(document))
    with pytest.raises(SourceError, match=r"names no server; give .*base_url.*sandboxes\.api\.ApiTwin"):
        async with connect(str(path)):
            pass


async def test_a_twin_has_the_same_tools_and_names_of_people(document: Any) -> None:
    async with connect(ApiTwin(document)) as toolset, toolset.open_world("one", {"seed": 1}) as world:
        assert {tool.name for tool in toolset.tools} == NAMES
        state = await world.state()
        assert state is not None
        people = {row["person"] for row in state["bookings"].values()}
        assert people
        assert all(name.istitle() or name[0].isupper() for name in people)
        assert all(len(name.split()) >= 2 for name in people)


REFUSED: list[tuple[str, str, Any, list[Any]]] = [
    ("POST", "/rooms/1/bookings", {"day": "Monday", "start": 9}, ["body", "person"]),
    ("POST", "/rooms/1/bookings", {**BOOKING, "start": 7}, ["body", "start"]),
    ("POST", "/rooms/0/bookings", BOOKING, ["path", "room_id"]),
]


@pytest.mark.parametrize(("method", "path", "body", "place"), REFUSED)
def test_a_twin_says_what_of_a_request_is_wrong_where_fastapi_does(
    method: str, path: str, body: Any, place: list[Any], bookings: str, document: Any
) -> None:
    real = httpx.request(method, f"{bookings}{path}", json=body)
    assert (real.status_code, real.json()["detail"][0]["loc"]) == (422, place)
    face = HttpFace(ApiTwin(document))
    told = face.answer(method, path, "", {"content-type": "application/json"}, json.dumps(body).encode())
    assert (told.status, told.body["detail"][0]["loc"]) == (422, place)


def test_what_a_twin_does_not_find_has_the_body_of_fastapis_errors(bookings: str, document: Any) -> None:
    real = httpx.get(f"{bookings}/rooms/999999")
    told = HttpFace(ApiTwin(document)).answer("GET", "/rooms/999999", "", {}, b"")
    assert real.status_code == told.status == 404
    assert isinstance(real.json()["detail"], str)
    assert isinstance(told.body["detail"], str)
    assert set(told.body) == {"detail"}
