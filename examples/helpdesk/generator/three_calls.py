"""Tier 3: three calls; in a request of two parts, two of them for the first and one for the second."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from sandboxes.changes import State

from . import one_call_lookups, one_call_reads, picking, steps, two_calls
from .intents import AMOUNT, HELD_AMOUNT, HELD_NUMBER, NUMBER, Answer, GoldRun, Intent, Slots, asking, by_email, says


def _email_order_total(run: GoldRun, slots: Slots) -> Answer:
    order = steps.order_by_email(run, slots)
    total = run.call("get_order", order_id=order)["total"]
    return says(total, f"The total of the {slots['product']} is {total}.")


def _email_cancel_refused(run: GoldRun, slots: Slots) -> Answer:
    order = steps.order_by_product(run, slots, steps.customer_by_email(run, slots))
    return steps.cannot_cancel(run, order, steps.the_product(slots))


def _email_address(run: GoldRun, slots: Slots) -> Answer:
    order = steps.order_by_email(run, slots)
    return steps.change_address(run, order, slots["address"], steps.the_product(slots))


def _reorder(run: GoldRun, slots: Slots) -> Answer:
    found = run.call("get_order", order_id=slots["order"])
    run.call("get_stock", product=found["product"])
    return steps.place(run, found["customer"], found["product"], found["quantity"])


_CANCEL = by_email(
    two_calls.CANCEL_PRODUCT,
    "email_cancel",
    lambda run, slots: steps.cancel(run, steps.order_by_email(run, slots), steps.the_product(slots)),
)

PRODUCT_REFUND = Intent(
    "product_refund",
    3,
    picking.orders(picking.refundable),
    lambda run, slots: steps.refund_in_full(run, steps.order_by_customer(run, slots), steps.the_product(slots)),
    asking(
        """
        Refund the total of the {product} order of customer {customer}.
        Please refund the {product} of customer {customer} in full.
        Give customer {customer} a full refund for the {product}.
        Customer {customer} should get a full refund for the {product}.
        Can you refund the {product} order of customer {customer} completely?
        I promised customer {customer} a full refund for the {product}. Do it.
        """,
        *AMOUNT,
    ),
    asking(
        """
        Pay back all the money for the {product} of customer {customer}.
        Return the whole amount of the {product} order to customer {customer}.
        Customer {customer} gets everything back for the {product}.
        """,
        *HELD_AMOUNT,
    ),
)

ONE_PART = (
    _CANCEL,
    replace(
        _CANCEL,
        name="email_cancel_refused",
        pick=picking.orders(picking.status_is("shipped", "delivered", "cancelled")),
        solve=_email_cancel_refused,
    ),
    by_email(two_calls.PRODUCT_TOTAL, "email_order_total", _email_order_total, held_facets=("cancelled",)),
    by_email(two_calls.ADDRESS_PRODUCT, "email_address", _email_address),
    PRODUCT_REFUND,
    Intent(
        "refund_by_policy",
        3,
        picking.with_policy(picking.orders(picking.refundable)),
        lambda run, slots: steps.refund_by_policy(run, slots["order"], slots["topic"], steps.the_order(slots)),
        asking(
            """
            Order {order} was {topic}. Refund the total, but no more than the {topic} policy allows.
            Refund order {order} up to the limit of the {topic} policy.
            Please refund order {order}, at most what the {topic} policy gives.
            The goods of order {order} were {topic}. Refund as much of the total as the {topic} policy allows.
            Give a refund for order {order}: the total or the limit of the {topic} policy, whichever is less.
            By the {topic} policy, refund as much of order {order} as you can.
            """,
            *AMOUNT,
        ),
        asking(
            """
            Pay back order {order} as far as our policy on {topic} goes.
            Order {order} arrived {topic}: return its total within the limit of that policy.
            Return the money for order {order}, capped by our policy for {topic}.
            """,
            *HELD_AMOUNT,
        ),
        facet="topic",
        held_facets=("late",),
    ),
    Intent(
        "reorder",
        3,
        picking.orders(picking.in_stock_again),
        _reorder,
        asking(
            """
            If enough is in stock, place order {order} once more.
            The customer of order {order} wants the same again. Check the stock, then place the order.
            Please repeat order {order} if the stock is enough.
            Check the stock and order the same as in order {order} again.
            Can you repeat order {order}? Look at the stock first.
            Place the same order as {order} for the same customer, if the stock allows it.
            """,
            *NUMBER,
        ),
        asking(
            """
            Order {order} should be made a second time, provided there is stock.
            Make a copy of order {order} after a look at the stock.
            See if we have enough, and then send what is in order {order} again as a new order.
            """,
            *HELD_NUMBER,
        ),
    ),
)

# Each part is seen in training, and in other pairs; these pairs are not.
_TRAIN_PAIRS = (
    ("email_order_number", "stock_count"),
    ("email_order_number", "policy_refund"),
    ("order_stock", "order_total"),
    ("order_city", "policy_days"),
    ("product_total", "product_price"),
    ("email_order_status", "policy_days"),
    ("email_order_status", "product_price"),
)
_HELD_PAIRS = (
    ("email_order_number", "policy_days"),
    ("order_stock", "policy_refund"),
    ("order_city", "stock_count"),
    ("product_total", "policy_refund"),
    ("email_order_status", "stock_count"),
)
_JOINED = (
    "{first} {second}",
    "{first} Also: {second}",
    "Two things. {first} {second}",
    "Please answer both: {first} {second}",
    "First: {first} Second: {second}",
    "{first} One more question: {second}",
)
_JOINED_HELD = (
    "I have two questions. {first} {second}",
    "{first} Besides that: {second}",
    "{first} And after that: {second}",
)


def _pair(first: Intent, second: Intent, *, held: bool) -> Intent:
    """A request of two parts about different things. Its wordings are never those of the other side."""

    def pick(state: State, chance: random.Random) -> Iterator[Slots]:
        split = "heldout" if held else "train"
        ones = [slots for slots in first.pick(state, chance) if first.asks(split, slots)]
        others = [slots for slots in second.pick(state, chance) if second.asks(split, slots)]
        for one, other in product(ones, others):
            if "order" in other and other["order"] == one["order"]:
                continue
            both = {**one, **{f"second_{key}": value for key, value in other.items()}}
            yield {**both, "pair": f"{first.name} + {second.name}"}

    def solve(run: GoldRun, slots: Slots) -> Answer:
        one = first.solve(run, slots)
        other = second.solve(run, {key.removeprefix("second_"): v for key, v in slots.items() if key[:7] == "second_"})
        return Answer((*one.parts, *other.parts), f"{one.sentence} {other.sentence}")

    def joined(split: str, frames: tuple[str, ...]) -> str:
        ones, others = first.phrasings(split), [text.replace("{", "{second_") for text in second.phrasings(split)]
        turns = range(max(len(ones), len(frames)))
        return "\n".join(
            frames[turn % len(frames)].format(first=ones[turn % len(ones)], second=others[(turn + 1) % len(others)])
            for turn in turns
        )

    name = f"{first.name}+{second.name}"
    train = "" if held else joined("train", _JOINED)
    heldout = joined("heldout", _JOINED_HELD) if held else ""
    return Intent(name, 3, pick, solve, train, heldout, facet="pair")


def _pairs(names: tuple[tuple[str, str], ...], *, held: bool) -> tuple[Intent, ...]:
    known = {i.name: i for i in (*one_call_reads.INTENTS, *one_call_lookups.INTENTS, *two_calls.READS)}
    return tuple(_pair(known[first], known[second], held=held) for first, second in names)


TWO_PARTS = (*_pairs(_TRAIN_PAIRS, held=False), *_pairs(_HELD_PAIRS, held=True))

INTENTS = (*ONE_PART, *TWO_PARTS)
