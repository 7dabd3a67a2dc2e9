"""The conformance suite of all sandboxes, over API twins."""

from __future__ import annotations

from pathlib import Path

from sandbox_conformance import Call, SandboxConformance

from sandboxes.api import ApiCall, ApiTwin, Refused

SHOP = Path(__file__).parent / "shop.yaml"


def _order(twin: ApiTwin, status: str) -> int:
    return next(int(key) for key, row in twin.state()["orders"].items() if row["status"] == status)


class TestApiTwin(SandboxConformance):
    def make(self) -> ApiTwin:
        return ApiTwin(SHOP)

    def change(self) -> Call:
        return "cancelOrder", {"order_id": _order(self.make(), "shipped")}

    def calls(self) -> list[Call]:
        twin = self.make()
        customer = next(iter(twin.state()["customers"]))
        order = _order(twin, "shipped")
        return [
            ("listBooks", {"per_page": 3, "sort": "-price"}),
            ("createOrder", {"customer_id": customer, "note": "a gift", "gift_code": "G-1"}),
            ("createOrder", {"customer_id": "cus_nobody12"}),
            ("addLine", {"order_id": order, "book_id": int(next(iter(twin.state()["books"]))), "quantity": 2}),
            ("deleteCustomer", {"customer_id": customer}),
            ("deleteOrder", {"order_id": order}),
            ("refundOrder", {"order_id": order, "amount": 3}),
            ("getStatistics", {}),
            ("putSettings", {"currency": "EUR"}),
        ]


class TestApiTwinWithRules(SandboxConformance):
    """A twin whose rules refuse, write rows and answer for themselves keeps every promise too."""

    def make(self) -> ApiTwin:
        twin = ApiTwin(SHOP, rows=3)

        @twin.rule("createOrder", "before")
        def no_blank_notes(call: ApiCall) -> None:
            call.store.change("settings", "it", currency="XXX")
            if call.body.get("note") == "":
                raise Refused(422, "The note is blank.")

        @twin.rule("refundOrder", "instead")
        def refund(call: ApiCall) -> dict[str, object]:
            call.store.change("orders", call.path["order_id"], status="cancelled")
            return {"id": "00000000-0000-4000-8000-000000000000", "amount": call.body["amount"]}

        return twin

    def change(self) -> Call:
        return "createOrder", {"customer_id": next(iter(self.make().state()["customers"]))}

    def calls(self) -> list[Call]:
        customer = next(iter(self.make().state()["customers"]))
        order = int(next(iter(self.make().state()["orders"])))
        return [
            ("createOrder", {"customer_id": customer, "note": ""}),
            ("refundOrder", {"order_id": order, "amount": 2}),
            ("refundOrder", {"order_id": 1, "amount": 2}),
        ]
