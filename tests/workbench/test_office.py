"""What the tools find, answer, change and refuse, on a folder of a few rows."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clone import SYSTEMS
from office import PARTS, TOOLS, Office
from sandbox_conformance import Call, SandboxConformance

import mcp_bridge
import sdk
from sandboxes import diff


@pytest.fixture
def office(small: Path) -> Iterator[Office]:
    world = Office(small)
    yield world
    world.close()


def found(office: Office, name: str, **arguments: str) -> Any:
    result = office.call_now(name, arguments)
    assert not result.is_error, result.text
    return result.structured


def refused(office: Office, name: str, **arguments: str) -> str:
    before = office.state()
    result = office.call_now(name, arguments)
    assert result.is_error
    assert office.state() == before
    return result.text


class TestSandbox(SandboxConformance):
    seeds_differ = False
    scenarios_tried = ("default", "email+company_directory", "analytics")

    @pytest.fixture(autouse=True)
    def _small_folder(self, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SMALL_FOLDER", str(small))  # another process makes the same, too

    def make(self) -> Office:
        return Office(os.environ["SMALL_FOLDER"])

    def change(self) -> Call:
        return "delete_email", {"email_id": "00000008"}

    def calls(self) -> list[Call]:
        return [
            ("search_emails", {"query": "budget"}),
            ("send_email", {"recipient": "a@b.c", "subject": "s", "body": "b"}),
            ("delete_event", {"event_id": "7"}),
            ("update_task", {"task_id": "00000008", "field": "board", "new_value": "Back end"}),
            ("create_plot", {"time_min": "a", "time_max": "b", "value_to_plot": "c", "plot_type": "d"}),
        ]


def test_there_are_27_tools_and_a_scenario_has_those_of_its_parts(small: Path) -> None:
    assert len(TOOLS) == len({one.tool.name for one in TOOLS}) == 27
    some = Office(small, scenario="calendar+company_directory")
    assert {tool.source for tool in some.tools} == {"calendar", "company_directory"}
    assert some.call_now("search_emails", {}).error_kind == "unknown_tool"


def test_searches_give_five_and_the_search_of_tasks_gives_all(office: Office) -> None:
    assert [one["email_id"][-1] for one in found(office, "search_emails", query="BUDGET nadia")] == list("76543")
    assert [one["email_id"][-1] for one in found(office, "search_emails", date_max="2023-11-22")] == list("21")
    assert len(found(office, "search_customers", status="lead")) == 5
    assert len(found(office, "search_tasks", assigned_to_email="nadia")) == 7
    assert [one["event_id"][-1] for one in found(office, "search_events", query="raj")] == list("421")
    assert len(found(office, "search_events", time_min="2023-11-29 09:00:00", time_max="2023-12-01 09:00:00")) == 2
    assert found(office, "search_emails", query="nobody") == "No emails found."


def test_visits_are_counted_by_day(office: Office) -> None:
    assert found(office, "total_visits_count") == {"2023-11-27": 1, "2023-11-28": 2}
    assert found(office, "engaged_users_count", time_min="2023-11-28") == {"2023-11-28": 1}
    assert found(office, "traffic_source_count", traffic_source="direct") == {"2023-11-27": 0, "2023-11-28": 2}
    assert found(office, "get_average_session_duration", time_max="2023-11-27") == {"2023-11-27": 20.0}


def test_what_is_new_gets_the_next_id_and_the_present(office: Office) -> None:
    assert found(office, "create_event", event_name="E", participant_email="A@B.C", event_start="x", duration="30") == (
        "00000006"
    )
    found(office, "forward_email", email_id="00000008", recipient="Raj.Patel@atlas.com")
    (sent,) = found(office, "search_emails", query="FW:")
    assert (sent["email_id"], sent["sent_datetime"]) == ("9", "2023-11-30 00:00:00")
    assert (sent["sender/recipient"], sent["subject"]) == ("raj.patel@atlas.com", "FW: Gala")


def test_what_cannot_be_is_refused_with_the_choices(office: Office) -> None:
    assert "Backlog, In Progress" in refused(
        office, "update_task", task_id="00000001", field="list_name", new_value="Done"
    )
    assert "customer_phone" in refused(
        office, "update_customer", customer_id="00000001", field="town", new_value="Bern"
    )
    assert refused(office, "delete_task", task_id="9") == "Task not found."
    assert "email address" in refused(office, "send_email", recipient="raj", subject="s", body="b")
    assert "YYYY-MM-DD" in refused(office, "search_events", time_min="tomorrow")
    assert "team members" in refused(
        office,
        "create_task",
        task_name="t",
        assigned_to_email="x@y.z",
        list_name="Backlog",
        due_date="d",
        board="Design",
    )


def test_the_state_is_what_changed_in_any_case_but_that_of_three_fields(office: Office) -> None:
    start = office.state()
    found(office, "update_event", event_id="00000003", field="event_name", new_value="GALA")
    assert office.state() == start
    found(office, "update_task", task_id="00000008", field="list_name", new_value="Completed")
    ((key, row),) = office.state()["records"].items()
    assert key == "project_management/8"
    assert json.loads(row["record"])["list_name"] == "Completed"
    found(office, "update_task", task_id="00000008", field="list_name", new_value="In Progress")
    assert office.state() == start


def test_a_new_record_that_was_deleted_leaves_no_trace_and_an_old_one_does(office: Office) -> None:
    start = office.state()
    new = found(office, "add_customer", customer_name="Ann", assigned_to_email="a@b.c", status="Lead")
    found(office, "delete_customer", customer_id=new)
    assert office.state() == start
    found(office, "delete_customer", customer_id="00000001")
    assert [change["key"] for change in diff(start, office.state())] == ["customer_relationship_manager/1"]


def test_a_folder_without_the_tables_is_refused_with_the_way_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(sdk.ConfigError, match="git clone https"):
        Office(tmp_path)


EXAMPLE = Path(__file__).parents[2] / "examples" / "workbench"


async def test_each_part_is_a_server_of_its_own_and_all_are_one(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH", str(small))
    setup = {"scenario": "email+company_directory"}
    async with mcp_bridge.connect(EXAMPLE / "mcp.json", connect_timeout_s=90) as one:
        assert len(one.tools) == 27
        async with one.open_world("w", setup) as world:
            assert len(world.tools) == 7
            await world.call("delete_email", {"email_id": "00000008"})
            state = await world.state()
            assert state is not None
            assert state["records"] == {"email/8": {"record": None}}
    async with mcp_bridge.connect(EXAMPLE / "servers.json", connect_timeout_s=90) as six:
        assert {tool.name: tool.source.split()[0] for tool in six.tools} == {
            one.tool.name: one.tool.source for one in TOOLS
        }
    assert {*SYSTEMS} < {*PARTS}
