"""Tiers 4 and 5: four and five calls, each resting on those before."""

from __future__ import annotations

from dataclasses import replace

from . import picking, steps, three_calls
from .intents import AMOUNT, HELD_AMOUNT, HELD_NUMBER, NUMBER, Answer, GoldRun, Intent, Slots, asking, by_email, says


def _email_refund_refused(run: GoldRun, slots: Slots) -> Answer:
    order = steps.order_by_email(run, slots)
    found = run.call("get_order", order_id=order)
    return steps.cannot_refund(run, order, found, found["total"], steps.the_product(slots))


def _swap(run: GoldRun, slots: Slots, customer: str, order: str) -> Answer:
    quantity = run.call("get_order", order_id=order)["quantity"]
    run.call("cancel_order", order_id=order)
    return steps.place(run, customer, slots["other"], quantity)


def _email_swap(run: GoldRun, slots: Slots) -> Answer:
    customer = steps.customer_by_email(run, slots)
    return _swap(run, slots, customer, steps.order_by_product(run, slots, customer)["id"])


def _email_repeat(run: GoldRun, slots: Slots) -> Answer:
    customer = steps.customer_by_email(run, slots)
    order = steps.order_by_product(run, slots, customer)["id"]
    quantity = run.call("get_order", order_id=order)["quantity"]
    return steps.place(run, customer, slots["product"], quantity)


def _email_reorder(run: GoldRun, slots: Slots) -> Answer:
    customer = steps.customer_by_email(run, slots)
    order = steps.order_by_product(run, slots, customer)["id"]
    quantity = run.call("get_order", order_id=order)["quantity"]
    stock = run.call("get_stock", product=slots["product"])["stock"]
    if stock < quantity:
        return says(stock, f"The stock of the {slots['product']} is {stock}, so it cannot be ordered.")
    return steps.place(run, customer, slots["product"], quantity)


def _email_policy_refused(run: GoldRun, slots: Slots) -> Answer:
    order = steps.order_by_email(run, slots)
    found = run.call("get_order", order_id=order)
    most = run.call("get_policy", topic=slots["topic"])["max_refund"]
    return steps.cannot_refund(run, order, found, min(found["total"], most), steps.the_product(slots))


_REFUND = by_email(
    three_calls.PRODUCT_REFUND,
    "email_refund",
    lambda run, slots: steps.refund_in_full(run, steps.order_by_email(run, slots), steps.the_product(slots)),
)

_REORDER = Intent(
    "email_reorder",
    5,
    picking.orders(picking.in_stock_again),
    _email_reorder,
    asking(
        """
        {email} wants the same {product} order again. Check the stock, then place the order.
        If enough is in stock, place the {product} order of {email} once more.
        Please repeat the {product} order of {email} if the stock is enough.
        Check the stock and order the same quantity of the {product} for {email} again.
        Can you repeat the {product} order of {email}? Look at the stock first.
        Place the same {product} order for {email} again, if the stock allows it.
        """,
        *NUMBER,
    ),
    asking(
        """
        The {product} order by {email} should be made a second time, provided there is stock.
        Make a copy of the {product} order by {email} after a look at the stock.
        See if we have enough, and then send {email} as many of the {product} as in the order before.
        """,
        *HELD_NUMBER,
    ),
)

_REFUND_BY_POLICY = Intent(
    "email_refund_by_policy",
    5,
    picking.with_policy(picking.orders(picking.refundable)),
    lambda run, slots: steps.refund_by_policy(
        run, steps.order_by_email(run, slots), slots["topic"], steps.the_product(slots)
    ),
    asking(
        """
        The {product} of {email} was {topic}. Refund the total, but no more than the {topic} policy allows.
        Refund the {product} order of {email} up to the limit of the {topic} policy.
        Please refund the {product} of {email}, at most what the {topic} policy gives.
        {email} got a {topic} {product}. Refund as much of the total as the {topic} policy allows.
        Give {email} a refund for the {product}: the total or the limit of the {topic} policy, whichever is less.
        By the {topic} policy, refund {email} as much of the {product} order as you can.
        """,
        *AMOUNT,
    ),
    asking(
        """
        Pay {email} back for the {product} as far as our policy on {topic} goes.
        The {product} for {email} arrived {topic}: return its total within the limit of that policy.
        Return to {email} the money for the {product}, capped by our policy for {topic}.
        """,
        *HELD_AMOUNT,
    ),
    facet="topic",
    held_facets=("damaged",),
)

_SWAP = Intent(
    "swap",
    4,
    picking.orders(picking.status_is("processing"), picking.other_in_stock, other_product=True),
    lambda run, slots: _swap(run, slots, slots["customer"], steps.order_by_customer(run, slots)),
    asking(
        """
        Cancel the {product} order of customer {customer} and order as many of the {other} instead.
        Customer {customer} wants the {other} instead of the {product}, in the same quantity. Change the order.
        Please swap the {product} of customer {customer} for the same number of the {other}.
        For customer {customer}, cancel the {product} and place an order for as many of the {other}.
        Replace the {product} order of customer {customer} by one for the same quantity of the {other}.
        Can you cancel the {product} of customer {customer} and order the same number of the {other}?
        """,
        *NUMBER,
    ),
    asking(
        """
        Customer {customer} chose wrongly: not the {product} but the {other}, as many. Put it right.
        Call off the {product} for customer {customer}; the {other} shall come in its place, same quantity.
        Turn the {product} order by customer {customer} into one of equal size for the {other}.
        """,
        *HELD_NUMBER,
    ),
)

FOUR = (
    _REFUND,
    replace(
        _REFUND,
        name="email_refund_refused",
        pick=picking.orders(picking.not_refundable),
        solve=_email_refund_refused,
    ),
    replace(
        _REORDER,
        name="email_reorder_refused",
        tier=4,
        pick=picking.orders(picking.short_of_stock),
    ),
    Intent(
        "email_repeat",
        4,
        picking.orders(picking.in_stock_again),
        _email_repeat,
        asking(
            """
            Order the same quantity of the {product} for {email} as in the {product} order before.
            {email} wants the {product} order once again. Place it.
            Please repeat the {product} order of {email}.
            Place another {product} order for {email}, as large as the first.
            Can you place the {product} order of {email} a second time?
            {email} needs as many of the {product} as were in the {product} order. Order them.
            """,
            *NUMBER,
        ),
        asking(
            """
            Double what {email} has of the {product}: make one more order of the same size.
            Send {email} the {product} again, as many as in the earlier order.
            The {product} order by {email} should be made once more.
            """,
            *HELD_NUMBER,
        ),
    ),
    Intent(
        "product_refund_by_policy",
        4,
        picking.with_policy(picking.orders(picking.refundable)),
        lambda run, slots: steps.refund_by_policy(
            run, steps.order_by_customer(run, slots), slots["topic"], steps.the_product(slots)
        ),
        asking(
            """
            The {product} of customer {customer} was {topic}. Refund the total up to the limit of the {topic} policy.
            Refund the {product} order of customer {customer} up to the limit of the {topic} policy.
            Please refund the {product} of customer {customer}, at most what the {topic} policy gives.
            Customer {customer} got a {topic} {product}. Refund as much of the total as the {topic} policy allows.
            Refund customer {customer} the total of the {product} or the limit of the {topic} policy, whichever is less.
            By the {topic} policy, refund customer {customer} as much of the {product} order as you can.
            """,
            *AMOUNT,
        ),
        asking(
            """
            Pay customer {customer} back for the {product} as far as our policy on {topic} goes.
            The {product} for customer {customer} arrived {topic}: return its total within the limit of that policy.
            Return to customer {customer} the money for the {product}, capped by our policy for {topic}.
            """,
            *HELD_AMOUNT,
        ),
        facet="topic",
        held_facets=("faulty",),
    ),
    _SWAP,
)

FIVE = (
    _REFUND_BY_POLICY,
    replace(
        _REFUND_BY_POLICY,
        name="email_policy_refused",
        pick=picking.with_policy(picking.orders(picking.not_refundable)),
        solve=_email_policy_refused,
    ),
    _REORDER,
    by_email(_SWAP, "email_swap", _email_swap),
)

INTENTS = (*FOUR, *FIVE)
