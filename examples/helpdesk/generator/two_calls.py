"""Tier 2: the second call rests on the first one's result."""

from __future__ import annotations

from dataclasses import replace

from . import one_call_acts, one_call_reads, picking, steps
from .intents import AMOUNT, HELD_AMOUNT, Answer, GoldRun, Intent, Slots, asking, by_email, says


def _email_order_number(run: GoldRun, slots: Slots) -> Answer:
    order = steps.order_by_email(run, slots)
    return says(order, f"The {slots['product']} is order {order}.")


def _email_order_status(run: GoldRun, slots: Slots) -> Answer:
    status = steps.order_by_product(run, slots, steps.customer_by_email(run, slots))["status"]
    return says(status, f"{steps.the_product(slots)} is {status}.")


def _order_stock(run: GoldRun, slots: Slots) -> Answer:
    product = run.call("get_order", order_id=slots["order"])["product"]
    stock = run.call("get_stock", product=product)["stock"]
    return says(stock, f"The stock of the {product} is {stock}.")


def _order_city(run: GoldRun, slots: Slots) -> Answer:
    customer = run.call("get_order", order_id=slots["order"])["customer"]
    found = run.call("find_customer", query=customer)
    return says(found["city"], f"{found['name']} lives in {found['city']}.")


def _product_total(run: GoldRun, slots: Slots) -> Answer:
    order = steps.order_by_customer(run, slots)
    total = run.call("get_order", order_id=order)["total"]
    return says(total, f"The total of the {slots['product']} is {total}.")


def _refund_refused(run: GoldRun, slots: Slots) -> Answer:
    found = run.call("get_order", order_id=slots["order"])
    return steps.cannot_refund(run, slots["order"], found, found["total"], steps.the_order(slots))


def _cancel_refused(run: GoldRun, slots: Slots) -> Answer:
    order = steps.order_by_product(run, slots, slots["customer"])
    return steps.cannot_cancel(run, order, steps.the_product(slots))


def _address_product(run: GoldRun, slots: Slots) -> Answer:
    order = steps.order_by_customer(run, slots)
    return steps.change_address(run, order, slots["address"], steps.the_product(slots))


PRODUCT_TOTAL = Intent(
    "product_total",
    2,
    picking.orders(),
    _product_total,
    """
    What is the total of the {product} order of customer {customer}?
    How much did customer {customer} pay for the {product} order?
    Customer {customer} ordered the {product}. What was the total?
    Tell me the total of the order of customer {customer} with the {product}.
    How much money was the {product} order of customer {customer}?
    Please check the total for the {product} order of customer {customer}.
    """,
    """
    What was the bill when customer {customer} ordered the {product}?
    How expensive was the {product} order by customer {customer}?
    I need the sum of the {product} order that customer {customer} made.
    """,
    facet="status",
    held_facets=("delivered",),
)

READS = (
    by_email(one_call_reads.ORDER_NUMBER, "email_order_number", _email_order_number),
    Intent(
        "email_order_status",
        2,
        picking.orders(),
        _email_order_status,
        """
        What is the status of the {product} ordered by {email}?
        {email} is waiting for the {product}. What is its status?
        Please check how the {product} order of {email} is doing.
        Where does the {product} order of {email} stand?
        Tell me the status of the {product} order of {email}.
        Is the {product} for {email} on its way? Tell me its status.
        """,
        """
        Any news about the {product} for {email}?
        How far along is the {product} order by {email}?
        Could you look up the state of the {product} that {email} ordered?
        """,
    ),
    Intent(
        "order_stock",
        2,
        picking.orders(),
        _order_stock,
        """
        How many of the product in order {order} are in stock?
        What is the stock of the product in order {order}?
        Do we have more of what is in order {order}? How many?
        Tell me how many are left of the product in order {order}.
        Please check the stock for the product of order {order}.
        Order {order}: how many of its product are in stock?
        How many units do we have of the item in order {order}?
        What quantity is left of what order {order} contains?
        Look at order {order} and tell me the stock level of its item.
        Is the article of order {order} still available, and in what number?
        The item from order {order} is wanted again. How many remain?
        How large is our supply of the product that was bought in order {order}?
        Order {order} should be sent twice. How many of its item can we deliver?
        What amount is available of the article in order {order}?
        How many pieces are there of the thing in order {order}?
        I need to know how many units of order {order}'s product are on the shelf.
        Which stock is left of the product that order {order} is for?
        Check order {order}: how many of that product do we still have?
        What was bought in order {order}, and how many of it are in stock?
        For the item of order {order}, give me the number in stock.
        Could we fill order {order} again? How many of its product are there?
        The product in order {order}: what is its stock level?
        Say how many pieces we hold of the product from order {order}.
        How many more of the article in order {order} could we sell?
        """,
        """
        How many units remain of what order {order} contains?
        I need the stock level of the item in order {order}.
        What quantity is available of the item from order {order}?
        Of the product that was bought in order {order}, how many are left?
        Tell me how much stock there is of the article in order {order}.
        How many pieces of the product from order {order} do we still hold?
        """,
    ),
    Intent(
        "order_city",
        2,
        picking.orders(),
        _order_city,
        """
        In which city does the customer of order {order} live?
        What is the city of the customer with order {order}?
        Where does the customer of order {order} live?
        Tell me the city of the customer who placed order {order}.
        Which city is the customer of order {order} from?
        Please check the customer's city for order {order}.
        What town does the buyer of order {order} live in?
        Who placed order {order}, and in which city is the home?
        In what city is the person who bought order {order}?
        I need the home city of the customer behind order {order}.
        Look up the buyer in order {order} and name the city.
        The buyer of order {order} is from what town?
        Where is the home of the person who placed order {order}? Name the city.
        Which town is on file for the customer of order {order}?
        Tell me in which city whoever ordered {order} is living.
        Name the customer's town for order {order}.
        From which city comes the customer of order {order}?
        Order {order} was placed by someone: in what city does the buyer live?
        Find the customer of order {order} and tell me the city.
        Which city does the buyer with order {order} call home?
        For order {order}, what is the home town of the customer?
        Whoever bought order {order}: which town is home?
        Say where the customer behind order {order} lives, by city.
        Check who ordered {order} and give me the customer's city.
        """,
        """
        What town is on file for the buyer in order {order}?
        The person behind order {order} is living in which city?
        I need to know the home city of whoever placed order {order}.
        In what town does the customer with order {order} live?
        Tell me the home city of the buyer of order {order}.
        Order {order}: which city is its customer from?
        """,
        facet="city",
    ),
    PRODUCT_TOTAL,
)

_REFUND = Intent(
    "refund_full",
    2,
    picking.orders(picking.refundable),
    lambda run, slots: steps.refund_in_full(run, slots["order"], steps.the_order(slots)),
    asking(
        """
        Refund the total of order {order}.
        Please refund order {order} in full.
        Give the customer a full refund for order {order}.
        Order {order} should get a full refund.
        Can you refund order {order} completely?
        I promised a full refund on order {order}. Do it.
        Pay the whole sum of order {order} back.
        Return all the money paid for order {order}.
        The buyer of order {order} gets the full amount back.
        Send everything that was paid for order {order} back to the customer.
        Order {order} broke. Give all of the money back.
        Please pay back order {order}, the whole of it.
        Return the full price of order {order} to the buyer.
        The customer wants all the money for order {order} back. Pay it.
        Reimburse order {order} fully.
        Nothing of order {order} shall be charged: refund everything.
        Order {order} arrived damaged. Refund all of it.
        Every cent paid for order {order} should go back.
        Hand the buyer of order {order} all the money again.
        A complete refund is due on order {order}. Make it.
        Transfer the entire price of order {order} back to the customer.
        Compensate the customer of order {order} for the full price.
        The goods of order {order} came back. Repay the full sum.
        Order {order} is to be repaid entirely.
        """,
        *AMOUNT,
    ),
    asking(
        """
        Pay back all the money for order {order}.
        Return the whole amount of order {order}.
        The customer of order {order} gets everything back.
        Give back all that was paid for order {order}.
        The buyer of order {order} is owed the full price. Pay it out.
        Issue a refund over the entire sum of order {order}.
        """,
        *HELD_AMOUNT,
    ),
)

CANCEL_PRODUCT = Intent(
    "cancel_product",
    2,
    picking.orders(picking.status_is("processing")),
    lambda run, slots: steps.cancel(run, steps.order_by_customer(run, slots), steps.the_product(slots)),
    asking(
        """
        Cancel the {product} order of customer {customer}.
        Please cancel the {product} for customer {customer}.
        Customer {customer} wants to cancel the {product}.
        Customer {customer} does not want the {product} any more. Cancel it.
        Can you cancel the {product} order of customer {customer}?
        The {product} order of customer {customer} should be cancelled.
        """,
        "How much is paid back?",
        "Tell me the amount paid back.",
    ),
    asking(
        """
        Stop the {product} order by customer {customer}, it is not wanted.
        Call off the {product} for customer {customer}, please.
        The {product} of customer {customer} was a mistake. Take the order back.
        """,
        "What sum goes back to the customer?",
    ),
)

ADDRESS_PRODUCT = Intent(
    "address_product",
    2,
    picking.orders(picking.status_is("processing")),
    _address_product,
    """
    Change the address of the {product} order of customer {customer} to {address}.
    Please send the {product} of customer {customer} to {address}.
    The {product} order of customer {customer} should go to {address}.
    Set the address of the {product} for customer {customer} to {address}.
    The new address for the {product} of customer {customer} is {address}.
    Can you send the {product} order of customer {customer} to {address}?
    """,
    """
    Redirect the {product} order by customer {customer} to {address}.
    Customer {customer} moved. Deliver the {product} to {address}.
    Update the {product} order of customer {customer}: ship it to {address}.
    """,
)

_PLACE = by_email(
    one_call_acts.PLACE,
    "place_by_email",
    lambda run, slots: steps.place(run, steps.customer_by_email(run, slots), slots["product"], slots["quantity"]),
)

ACTS = (
    _REFUND,
    CANCEL_PRODUCT,
    ADDRESS_PRODUCT,
    _PLACE,
    # Nothing in the words of a request tells that the rules forbid it.
    replace(_REFUND, name="refund_refused", pick=picking.orders(picking.not_refundable), solve=_refund_refused),
    replace(
        CANCEL_PRODUCT,
        name="cancel_refused",
        pick=picking.orders(picking.status_is("shipped", "delivered", "cancelled")),
        solve=_cancel_refused,
    ),
)

INTENTS = (*READS, *ACTS)
