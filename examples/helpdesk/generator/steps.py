"""Steps that the solutions share.

`what` is how the answer names the order: as the request did ("Order 4417", "The lamp"), so that an answer holds no
other numbers than those that were asked for.
"""

from __future__ import annotations

import re
from typing import Any

from .intents import Answer, GoldRun, Slots, Solve, says

_OTHER_STATUSES = ("processing", "shipped", "delivered")
"""Of a refusal's reason: a right answer may say that an order cannot be cancelled or refunded."""


def read(tool: str, field: str, sentence: str, **arguments: str) -> Solve:
    """One call and a sentence about one field of its result, `{found}`. `arguments`: argument to slot."""

    def solve(run: GoldRun, slots: Slots) -> Answer:
        found = run.call(tool, **{argument: slots[slot] for argument, slot in arguments.items()})[field]
        return says(found, sentence.format(**slots, found=found))

    return solve


def customer_by_email(run: GoldRun, slots: Slots) -> str:
    """The id of the customer with the e-mail."""
    return str(run.call("find_customer", query=slots["email"])["id"])


def order_by_product(run: GoldRun, slots: Slots, customer: str) -> dict[str, Any]:
    """The customer's order of the product, as the list shows it."""
    found: list[dict[str, Any]] = run.call("list_orders", customer_id=customer)
    return next(row for row in found if row["product"] == slots["product"])


def order_by_email(run: GoldRun, slots: Slots) -> str:
    """The id of the order of the product, by the customer with the e-mail."""
    return str(order_by_product(run, slots, customer_by_email(run, slots))["id"])


def order_by_customer(run: GoldRun, slots: Slots) -> str:
    """The id of the order of the product, by the customer with the id."""
    return str(order_by_product(run, slots, slots["customer"])["id"])


def the_product(slots: Slots) -> str:
    """The product as the subject of a sentence."""
    return f"The {slots['product']}"


def the_order(slots: Slots) -> str:
    """The order as the subject of a sentence."""
    return f"Order {slots['order']}"


def cancel(run: GoldRun, order: str, what: str) -> Answer:
    """Cancel, and say what is paid back."""
    back = run.call("cancel_order", order_id=order)["paid_back"]
    return says(back, f"{what} is cancelled, {back} paid back.")


def cannot_cancel(run: GoldRun, order: dict[str, Any], what: str) -> Answer:
    """Ask for the cancellation, be refused, and say why."""
    run.refused("cancel_order", order_id=order["id"])
    sentence = f"{what} is already {order['status']}, so it cannot be cancelled."
    return Answer(((order["status"],),), sentence, _OTHER_STATUSES)


def change_address(run: GoldRun, order: str, address: str, what: str) -> Answer:
    """Change the address, and say it."""
    found = run.call("change_address", order_id=order, address=address)["address"]
    return says(found, f"{what} goes to {found}.")


def refund(run: GoldRun, order: str, amount: int, what: str) -> Answer:
    """Refund, and say how much."""
    back = run.call("refund_order", order_id=order, amount=amount)["refunded"]
    return says(back, f"{what} is refunded {back}.")


def refund_in_full(run: GoldRun, order: str, what: str) -> Answer:
    """Read the total and refund it."""
    return refund(run, order, run.call("get_order", order_id=order)["total"], what)


def refund_by_policy(run: GoldRun, order: str, topic: str, what: str) -> Answer:
    """Refund the total, but no more than the policy allows."""
    total = run.call("get_order", order_id=order)["total"]
    most = run.call("get_policy", topic=topic)["max_refund"]
    return refund(run, order, min(total, most), what)


def cannot_refund(run: GoldRun, order: str, found: dict[str, Any], amount: int, what: str) -> Answer:
    """Ask for the refund, be refused, and say why."""
    refusal = run.refused("refund_order", order_id=order, amount=amount)
    if found["status"] != "delivered":
        sentence = f"{what} is {found['status']}, so it cannot be refunded."
        return Answer(((found["status"],),), sentence, (*_OTHER_STATUSES, "cancelled"))
    if "refunded" in found:
        return says(found["refunded"], f"{what} was already refunded {found['refunded']}.")
    # How long ago it was, or how long refunds are given: either is the reason.
    days, limit = re.findall(r"(\d+) days", refusal)
    return Answer(((days, limit),), f"{what} was delivered {days} days ago, so it cannot be refunded.")


def place(run: GoldRun, customer: str, product: str, quantity: int) -> Answer:
    """Place an order, and say its number."""
    order = run.call("place_order", customer_id=customer, product=product, quantity=quantity)["id"]
    return says(order, f"The new order is {order}.")
