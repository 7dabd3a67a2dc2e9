"""The domains as sandboxes: what every sandbox must do, and what their worlds share."""

from __future__ import annotations

import pytest

pytest.importorskip("tau2.environment", reason="pip install --no-deps -r examples/tau2/requirements.txt")

from domain_twin import Tau2Twin
from sandbox_conformance import Call, SandboxConformance


class TestRetail(SandboxConformance):
    seeds_differ = False
    scenarios_tried = ("default", "0")

    def make(self) -> Tau2Twin:
        return Tau2Twin("retail")

    def change(self) -> Call:
        return "cancel_pending_order", {"order_id": "#W5918442", "reason": "no longer needed"}

    def calls(self) -> list[Call]:
        return [
            ("get_order_details", {"order_id": "#W5918442"}),
            ("find_user_id_by_email", {"email": "nobody@example.com"}),
            ("list_all_product_types", {}),
            ("calculate", {"expression": "(2 + 3) * 4"}),
        ]


def test_worlds_of_telecom_are_apart_and_the_same_calls_lead_to_the_same_world() -> None:
    twin = Tau2Twin("telecom").prepare(
        {"scenario": "[mobile_data_issue]data_mode_off|data_usage_exceeded[PERSONA:None]"}
    )
    first, calls = twin.state(), [("refuel_data", {"customer_id": "C1002", "line_id": "L1004", "gb_amount": 2.0})]
    calls += [("toggle_data", {}), ("get_details_by_id", {"id": "C1002"}), ("enable_roaming", {"line_id": "L9"})]
    worlds = [twin.fork(), twin.fork()]
    texts = [[world.call_now(*call).text for call in calls] for world in worlds]
    assert texts[0] == texts[1]
    assert worlds[0].state() == worlds[1].state() != first == twin.state()
    assert {change["table"] for change in twin.diff(first, worlds[0].state())} == {
        "bills",
        "customers",
        "device",
        "lines",
    }
