"""What can be asked in a world: orders in some state, customers, products, policies."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from typing import Any

from sandboxes.changes import State
from sandboxes.helpdesk import BRANCHES

from .intents import Pick, Slots

OrderTest = Callable[[State, dict[str, Any]], bool]


def orders(*tests: OrderTest, other_product: bool = False) -> Pick:
    """Orders that pass every test, with their customer. `other_product` adds one that is in stock in that number."""

    def pick(state: State, chance: random.Random) -> Iterator[Slots]:
        for order in state["orders"].values():
            if not all(test(state, order) for test in tests):
                continue
            slots = {**_of_customer(state["customers"][order["customer"]]), **_of_order(order)}
            slots["address"] = _new_address(state, chance)
            slots["amount"] = chance.randrange(1, order["total"] + 1)
            if other_product:
                enough = [p["name"] for p in state["products"].values() if p["stock"] >= order["quantity"]]
                slots["other"] = chance.choice([name for name in enough if name != order["product"]])
            yield slots

    return pick


def with_policy(pick: Pick) -> Pick:
    """Adds a policy that limits refunds."""

    def pick_both(state: State, chance: random.Random) -> Iterator[Slots]:
        for slots in pick(state, chance):
            yield {**slots, "topic": chance.choice(["damaged", "late", "faulty"])}

    return pick_both


def customers(state: State, _chance: random.Random) -> Iterable[Slots]:
    """Every customer."""
    return [_of_customer(row) for row in state["customers"].values()]


def products(state: State, _chance: random.Random) -> Iterable[Slots]:
    """Every product."""
    return [{"product": name} for name in state["products"]]


def days_policies(state: State, _chance: random.Random) -> Iterable[Slots]:
    """The policies that give a number of days."""
    return [{"topic": topic} for topic, row in state["policies"].items() if row["days"] is not None]


def refund_policies(state: State, _chance: random.Random) -> Iterable[Slots]:
    """The policies that limit a refund."""
    return [{"topic": topic} for topic, row in state["policies"].items() if row["max_refund"] is not None]


def purchases(state: State, chance: random.Random) -> Iterator[Slots]:
    """A customer, a product and a quantity that is in stock."""
    for customer in state["customers"].values():
        product = chance.choice([row for row in state["products"].values() if row["stock"] > 0])
        quantity = chance.randrange(1, min(9, product["stock"]) + 1)
        yield {**_of_customer(customer), "product": product["name"], "quantity": quantity}


def status_is(*statuses: str) -> OrderTest:
    """Orders of one of these statuses."""
    return lambda _state, order: order["status"] in statuses


def refundable(state: State, order: dict[str, Any]) -> bool:
    """Delivered, not yet refunded, and not too long ago."""
    return order["status"] == "delivered" and not order["refunded"] and not too_old(state, order)


def not_refundable(state: State, order: dict[str, Any]) -> bool:
    """What the rules forbid to refund."""
    return not refundable(state, order)


def too_old(state: State, order: dict[str, Any]) -> bool:
    """Delivered longer ago than goods can be returned."""
    if order["delivered"] is None:
        return False
    now = date.fromisoformat(state["clock"]["world"]["now"][:10])
    return bool((now - date.fromisoformat(order["delivered"])).days > state["policies"]["returns"]["days"])


def in_stock_again(state: State, order: dict[str, Any]) -> bool:
    """The same quantity is in stock."""
    return bool(state["products"][order["product"]]["stock"] >= order["quantity"])


def short_of_stock(state: State, order: dict[str, Any]) -> bool:
    """The same quantity is not in stock."""
    return not in_stock_again(state, order)


def other_in_stock(state: State, order: dict[str, Any]) -> bool:
    """Another product is in stock in the order's quantity."""
    others = [row for name, row in state["products"].items() if name != order["product"]]
    return any(row["stock"] >= order["quantity"] for row in others)


def _of_customer(row: dict[str, Any]) -> Slots:
    return {"customer": row["id"], "name": row["name"], "email": row["email"], "city": row["city"]}


def _of_order(row: dict[str, Any]) -> Slots:
    return {"order": row["id"], "product": row["product"], "status": row["status"]}


def _new_address(state: State, chance: random.Random) -> str:
    """An address in the style of the branch whose products these are."""
    sold = next(iter(state["products"]))
    branch = next(branch for branch in BRANCHES.values() if sold in branch.products)
    return f"{chance.randrange(1, 100)} {chance.choice(branch.streets)}"
