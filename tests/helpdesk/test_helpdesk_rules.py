from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_bridge.records import ToolResult
from sandboxes.helpdesk import Helpdesk


def _make(**columns: Any) -> tuple[Helpdesk, str]:
    """A helpdesk, and an order of it with these columns."""
    desk = Helpdesk(seed=3)
    order = next(iter(desk.state()["orders"]))
    settled = {"status": "processing", "refunded": 0, "delivered": None, "quantity": 2, "total": 50, **columns}
    desk.database.execute(
        "UPDATE orders SET status = :status, refunded = :refunded, delivered = :delivered, quantity = :quantity,"
        " total = :total WHERE id = :id",
        {**settled, "id": order},
    )
    desk.database.commit()
    return desk, order


def _days_ago(days: int) -> str:
    desk = Helpdesk(seed=3)
    return str(desk.database.execute("SELECT date(now, ?) FROM clock", (f"-{days} days",)).fetchone()[0])


def _return_days() -> int:
    return int(Helpdesk(seed=3).state()["policies"]["returns"]["days"])


def _refuses(desk: Helpdesk, name: str, **arguments: Any) -> str:
    before = desk.state()
    result = desk.call_now(name, arguments)
    assert (result.is_error, result.error_kind) == (True, "tool_error"), result.text
    assert desk.state() == before, "a refusal changes nothing"
    return result.text


def _does(desk: Helpdesk, name: str, **arguments: Any) -> list[tuple[str, str, Any, Any]]:
    before = desk.state()
    result = desk.call_now(name, arguments)
    assert not result.is_error, result.text
    return [(c["table"], c["column"], c["before"], c["after"]) for c in desk.diff(before, desk.state())]


def test_a_processing_order_is_cancelled_and_its_goods_go_back_into_stock() -> None:
    desk, order = _make()
    product = desk.state()["orders"][order]["product"]
    stock = desk.state()["products"][product]["stock"]
    assert _does(desk, "cancel_order", order_id=order) == [
        ("orders", "status", "processing", "cancelled"),
        ("products", "stock", stock, stock + 2),
    ]


@pytest.mark.parametrize("status", ["shipped", "delivered", "cancelled"])
@pytest.mark.parametrize(("tool", "more"), [("cancel_order", {}), ("change_address", {"address": "1 Oak Street"})])
def test_only_a_processing_order_is_cancelled_or_sent_elsewhere(status: str, tool: str, more: dict[str, str]) -> None:
    desk, order = _make(status=status)
    assert f"Order {order} is {status}" in _refuses(desk, tool, order_id=order, **more)


def test_an_address_is_changed_before_shipping() -> None:
    desk, order = _make()
    old = desk.state()["orders"][order]["address"]
    assert _does(desk, "change_address", order_id=order, address="1 Oak Street") == [
        ("orders", "address", old, "1 Oak Street")
    ]
    assert "empty" in _refuses(desk, "change_address", order_id=order, address=" ")


def test_a_delivered_order_is_refunded_up_to_its_total() -> None:
    desk, order = _make(status="delivered", delivered=_days_ago(3))
    assert "more than the total 50" in _refuses(desk, "refund_order", order_id=order, amount=51)
    assert _does(desk, "refund_order", order_id=order, amount=50) == [("orders", "refunded", 0, 50)]
    assert "already refunded 50" in _refuses(desk, "refund_order", order_id=order, amount=1)


@pytest.mark.parametrize("status", ["processing", "shipped", "cancelled"])
def test_what_was_not_delivered_is_not_refunded(status: str) -> None:
    desk, order = _make(status=status)
    assert "only delivered" in _refuses(desk, "refund_order", order_id=order, amount=1)


def test_refunds_end_after_the_days_of_the_returns_policy() -> None:
    desk, order = _make(status="delivered", delivered=_days_ago(_return_days() + 1))
    assert f"refunds end after {_return_days()} days" in _refuses(desk, "refund_order", order_id=order, amount=1)
    desk, order = _make(status="delivered", delivered=_days_ago(_return_days()))
    assert _does(desk, "refund_order", order_id=order, amount=1) == [("orders", "refunded", 0, 1)]


@pytest.mark.parametrize("amount", [0, -5, 1.5, "10", True, None])
def test_an_amount_that_is_no_positive_whole_number_is_an_invalid_argument(amount: Any) -> None:
    desk, order = _make(status="delivered", delivered=_days_ago(3))
    before = desk.state()
    result = desk.call_now("refund_order", {"order_id": order, "amount": amount})
    assert result.error_kind == "invalid_arguments"
    assert "amount" in result.text
    assert desk.state() == before


def test_an_order_takes_its_goods_out_of_stock_and_no_more_than_there_are() -> None:
    desk, order = _make()
    state = desk.state()
    customer = state["orders"][order]["customer"]
    product, row = next((name, row) for name, row in state["products"].items() if row["stock"] > 1)
    wanted = {"customer_id": customer, "product": product}
    text = _refuses(desk, "place_order", **wanted, quantity=row["stock"] + 1)
    assert text == f"Only {row['stock']} in stock."
    placed = desk.call_now("place_order", {**wanted, "quantity": row["stock"]}).structured["id"]
    after = desk.state()
    assert after["products"][product]["stock"] == 0
    assert after["orders"][placed]["total"] == row["stock"] * row["price"]
    assert after["orders"][placed]["placed"] == desk.now.date().isoformat()
    assert desk.call_now("list_orders", {"customer_id": customer}).structured[0]["id"] == placed


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("find_customer", {"query": "nobody@mail.test"}),
        ("find_customer", {"query": " "}),
        ("list_orders", {"customer_id": "C1"}),
        ("get_order", {"order_id": "0001"}),
        ("get_stock", {"product": "unicorn"}),
        ("get_policy", {"topic": "love"}),
        ("cancel_order", {"order_id": "0001"}),
        ("place_order", {"customer_id": "C1", "product": "lamp", "quantity": 1}),
    ],
)
def test_what_does_not_exist_is_said_so(tool: str, arguments: dict[str, Any]) -> None:
    assert _refuses(Helpdesk(seed=3), tool, **arguments)


@pytest.mark.parametrize("text", ["' OR 1=1 --", "%", "_", '"; DROP TABLE orders; --', "\x00", "🦄"])
def test_text_of_the_caller_is_never_part_of_the_sql(text: str) -> None:
    desk = Helpdesk(seed=3)
    for tool, argument in [("find_customer", "query"), ("get_order", "order_id"), ("get_stock", "product")]:
        _refuses(desk, tool, **{argument: text})


def test_a_customer_is_found_by_e_mail_name_id_or_a_part_of_the_name() -> None:
    desk = Helpdesk(seed=3)
    row = next(iter(desk.state()["customers"].values()))
    for query in (row["email"], row["name"], row["id"], row["email"].upper(), row["name"].lower()):
        assert desk.call_now("find_customer", {"query": query}).structured["id"] == row["id"]
    found = desk.call_now("find_customer", {"query": row["name"].split()[0]}).structured
    assert row["id"] in [one["id"] for one in (found if isinstance(found, list) else [found])]


def test_several_matches_are_listed_and_too_many_refused() -> None:
    desk = Helpdesk(seed=3)
    assert "give the full name" in _refuses(desk, "find_customer", query="e")


def _arguments(desk: Helpdesk) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    state = desk.state()
    orders = st.sampled_from([*state["orders"], "9999"])
    customers = st.sampled_from([*state["customers"], "C1"])
    products = st.sampled_from([*state["products"], "unicorn"])
    number = st.integers(-1, 400)

    def call(name: str, **arguments: Any) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
        return st.tuples(st.just(name), st.fixed_dictionaries(arguments))

    return st.one_of(
        call("cancel_order", order_id=orders),
        call("refund_order", order_id=orders, amount=number),
        call("change_address", order_id=orders, address=st.text(max_size=12)),
        call("place_order", customer_id=customers, product=products, quantity=st.integers(0, 30)),
        call("get_order", order_id=orders),
        call("list_orders", customer_id=customers),
    )


_DESK = Helpdesk(seed=9)


@settings(max_examples=60, deadline=None)
@given(calls=st.lists(_arguments(_DESK), max_size=25), split=st.integers(0, 25))
def test_no_sequence_of_calls_breaks_the_books_and_equal_calls_give_equal_states(
    calls: list[tuple[str, dict[str, Any]]], split: int
) -> None:
    desk = _DESK.fork()
    goods = _goods(desk)
    for call in calls[:split]:
        desk.call_now(*call)
    twin = desk.fork()
    for call in calls[split:]:
        _check_call(desk, call)
    for call in calls[split:]:
        twin.call_now(*call)
    assert desk.state() == twin.state()
    assert _goods(desk) == goods, "goods are in stock or in orders that stand, and none is lost"
    desk.close()
    twin.close()


def _check_call(desk: Helpdesk, call: tuple[str, dict[str, Any]]) -> None:
    before = desk.state()
    result: ToolResult = desk.call_now(*call)
    state = desk.state()
    reads = {tool.name for tool in desk.tools if tool.annotations.read_only}
    assert (state == before) or (not result.is_error and call[0] not in reads)
    assert all(row["stock"] >= 0 for row in state["products"].values())
    for order in state["orders"].values():
        assert 0 <= order["refunded"] <= order["total"]
        assert order["status"] == "delivered" or not order["refunded"]
        assert order["address"].strip()


def _goods(desk: Helpdesk) -> dict[str, int]:
    state = desk.state()
    counts = {name: row["stock"] for name, row in state["products"].items()}
    for order in state["orders"].values():
        if order["status"] != "cancelled":
            counts[order["product"]] += order["quantity"]
    return counts
