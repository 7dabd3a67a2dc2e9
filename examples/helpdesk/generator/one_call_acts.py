"""Tier 1, acts: one call, then the answer."""

from __future__ import annotations

from . import picking, steps
from .intents import HELD_NUMBER, NUMBER, Intent, asking

PLACE = Intent(
    "place",
    1,
    picking.purchases,
    lambda run, slots: steps.place(run, slots["customer"], slots["product"], slots["quantity"]),
    asking(
        """
        Order {quantity} of the {product} for customer {customer}.
        Customer {customer} wants {quantity} of the {product}. Place the order.
        Please place an order of {quantity} of the {product} for customer {customer}.
        Place a new order for customer {customer}: {quantity} of the {product}.
        Can you order the {product}, {quantity} of it, for customer {customer}?
        Make a new order with {quantity} of the {product} for customer {customer}.
        """,
        *NUMBER,
    ),
    asking(
        """
        Customer {customer} would like to buy {quantity} of the {product}.
        Put in an order by customer {customer} for {quantity} of the {product}.
        Send {quantity} of the {product} to customer {customer} as a new order.
        """,
        *HELD_NUMBER,
    ),
)

INTENTS = (
    Intent(
        "cancel",
        1,
        picking.orders(picking.status_is("processing")),
        lambda run, slots: steps.cancel(run, slots["order"], steps.the_order(slots)),
        asking(
            """
            Cancel order {order}.
            Please cancel order {order}.
            I want to cancel order {order}.
            The customer does not want order {order} any more. Cancel it.
            Can you cancel order {order}?
            Order {order} should be cancelled.
            Order {order} is not needed, please stop it.
            Call order {order} off.
            Drop order {order}, the buyer changed his mind.
            Take back order {order}, it was placed by mistake.
            The buyer has called off order {order}. Cancel it for him.
            Please stop order {order} before it is shipped.
            Order {order} was wrong, annul it.
            Do not send order {order}, cancel it instead.
            Nobody wants order {order}. Take it off the list.
            Revoke order {order} for me.
            Order {order} is no longer needed. Cancel it, please.
            Annul order {order} before it leaves the house.
            The customer regrets order {order}. Cancel it.
            Order {order} was sent in by accident, so call it off.
            Someone ordered twice: undo order {order}.
            Halt order {order}. The buyer does not want it now.
            Withdraw order {order}, it was an error.
            We were asked to strike order {order}. Do that.
            """,
            "How much is paid back?",
            "Tell me the amount paid back.",
            "What does the customer get back?",
            "Which sum is returned to the buyer?",
            "How much money goes back?",
        ),
        asking(
            """
            Stop order {order}, it is not wanted.
            Call off order {order}, please.
            Order {order} was a mistake. Take it back.
            Scrap order {order}, nobody needs it.
            The customer changed her mind about order {order}. Stop it.
            Please see to it that order {order} is called off.
            """,
            "What sum goes back to the customer?",
        ),
    ),
    Intent(
        "refund",
        1,
        picking.orders(picking.refundable),
        lambda run, slots: steps.refund(run, slots["order"], slots["amount"], steps.the_order(slots)),
        """
        Refund {amount} for order {order}.
        Please refund {amount} on order {order}.
        Give the customer a refund of {amount} for order {order}.
        Order {order} should get a refund of {amount}.
        Can you refund order {order} with {amount}?
        I promised a refund of {amount} on order {order}. Do it.
        """,
        """
        Pay {amount} back for order {order}.
        Return {amount} to the customer of order {order}.
        Order {order} gets {amount} of its money back.
        """,
    ),
    Intent(
        "change_address",
        1,
        picking.orders(picking.status_is("processing")),
        lambda run, slots: steps.change_address(run, slots["order"], slots["address"], steps.the_order(slots)),
        """
        Change the address of order {order} to {address}.
        Please send order {order} to {address}.
        Order {order} should go to {address}.
        Set the address of order {order} to {address}.
        The new address for order {order} is {address}.
        Can you change where order {order} goes? It should be {address}.
        """,
        """
        Redirect order {order} to {address}.
        The customer moved. Deliver order {order} to {address}.
        Update order {order}: ship it to {address}.
        """,
    ),
    PLACE,
)
