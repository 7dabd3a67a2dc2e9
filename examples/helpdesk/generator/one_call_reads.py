"""Tier 1, reads of orders and customers: one call, then the answer."""

from __future__ import annotations

from . import picking, steps
from .intents import Answer, GoldRun, Intent, Slots, says


def _order_number(run: GoldRun, slots: Slots) -> Answer:
    order = steps.order_by_customer(run, slots)
    return says(order, f"The {slots['product']} is order {order}.")


ORDER_NUMBER = Intent(
    "order_number",
    1,
    picking.orders(),
    _order_number,
    """
    What is the order number for the {product} of customer {customer}?
    Which order of customer {customer} is the {product}?
    Customer {customer} bought the {product}. Which order is it?
    Tell me the number of the {product} order of customer {customer}.
    Find the order in which customer {customer} bought the {product}.
    Please check which order has the {product} for customer {customer}.
    """,
    """
    Under what number did customer {customer} order the {product}?
    I need the id of the {product} order by customer {customer}.
    Customer {customer} asks for the number of the order with the {product}.
    """,
)

INTENTS = (
    Intent(
        "order_status",
        1,
        picking.orders(),
        steps.read("get_order", "status", "Order {order} is {found}.", order_id="order"),
        """
        What is the status of order {order}?
        Is order {order} on its way? Tell me its status.
        Please check how order {order} is doing.
        Where does order {order} stand?
        Tell me the status of order {order}.
        I am waiting for order {order}. What is its status?
        Has order {order} left already? Give me its status.
        Is there any progress on order {order}?
        Look up order {order} and tell me its state.
        The customer wonders what happens with order {order}. What is the status?
        Update me on order {order}, please.
        How is order {order} coming along?
        Status check for order {order}.
        Did order {order} arrive, or is it still on the road?
        Somebody called about order {order}. What state is it in?
        What is new with order {order}?
        In what state is order {order} at the moment?
        Can you tell me where order {order} is in the process?
        What do our records say about the progress of order {order}?
        Is order {order} still with us, or has it been sent?
        Find out for me how order {order} stands.
        Was order {order} shipped yet? I need its status.
        Let me know about order {order}: what is its state?
        Check on order {order} for me.
        """,
        """
        Any news about order {order}?
        How far along is order {order}?
        Could you look up the state of order {order}?
        What has become of order {order}?
        Give me the current state of order {order}.
        A buyer asks whether order {order} was sent. What is its status?
        """,
    ),
    Intent(
        "order_total",
        1,
        picking.orders(),
        steps.read("get_order", "total", "The total of order {order} is {found}.", order_id="order"),
        """
        What is the total of order {order}?
        How much did order {order} cost?
        Tell me the amount of order {order}.
        What did the customer pay for order {order}?
        How much money was order {order}?
        Please check the total for order {order}.
        What is the bill of order {order}?
        Which sum was charged for order {order}?
        How high is the invoice for order {order}?
        Give me the price of the whole order {order}.
        What amount stands on the bill for order {order}?
        Tell me the sum that order {order} comes to.
        How expensive did order {order} turn out?
        What does order {order} add up to?
        The customer asks what was charged for order {order}.
        I am writing the invoice for order {order}. What is the sum?
        """,
        """
        What was the bill for order {order}?
        How expensive was order {order}?
        I need the sum of order {order}.
        """,
        facet="status",
        held_facets=("shipped",),
    ),
    Intent(
        "order_address",
        1,
        picking.orders(),
        steps.read("get_order", "address", "Order {order} goes to {found}.", order_id="order"),
        """
        What is the address of order {order}?
        Where is order {order} sent to?
        Which address is on order {order}?
        Tell me where order {order} goes.
        To which street is order {order} delivered?
        Please read me the address for order {order}.
        Where will order {order} be delivered?
        What destination does order {order} have?
        Look up the delivery address of order {order}.
        Order {order} is going where?
        At which address does order {order} arrive?
        The driver asks where to bring order {order}.
        Give me the street for order {order}.
        Where should order {order} end up?
        The parcel of order {order} travels to which address?
        Name the place order {order} is shipped to.
        """,
        """
        What is the destination of order {order}?
        Order {order} goes to which address?
        I want to know where order {order} will arrive.
        """,
        facet="status",
        held_facets=("processing",),
    ),
    Intent(
        "customer_id",
        1,
        picking.customers,
        steps.read("find_customer", "id", "The customer id is {found}.", query="email"),
        """
        What is the customer id of {email}?
        Which customer has the e-mail {email}?
        Find the customer id for {email}.
        Tell me the id of the customer with the e-mail {email}.
        Who is {email}? Give me the customer id.
        Please check which id belongs to {email}.
        """,
        """
        Under which id do we know {email}?
        A mail came from {email}. What is the sender's customer id?
        I need the customer number of {email}.
        """,
        facet="city",
    ),
    Intent(
        "customer_city",
        1,
        picking.customers,
        steps.read("find_customer", "city", "{name} lives in {found}.", query="name"),
        """
        In which city does {name} live?
        What is the city of {name}?
        Where does our customer {name} live?
        Tell me the city of the customer {name}.
        Which city is {name} from?
        Please check the city for {name}.
        What town does {name} live in?
        {name} is from which town?
        In what city is the home of {name}?
        I need the home city of our customer {name}.
        Look up {name} and name the city.
        Where is {name} at home? Name the city.
        Which town stands in the file of {name}?
        Tell me in which city {name} is living.
        Name the town of {name}.
        The driver asks in what city {name} lives.
        What is the home town of {name}?
        To which city does {name} belong?
        What city do our records have for {name}?
        Find the customer {name} and tell me the town.
        Where do we find {name}? I need the city.
        Which city is given for the customer {name}?
        Say in what town our customer {name} lives.
        {name} wants to know which city we have noted. Tell me.
        """,
        """
        What town is on file for {name}?
        {name} is a customer in which city?
        I need to know where {name} is living.
        From what city does our customer {name} come?
        Tell me which town {name} calls home.
        {name} lives in what city?
        """,
        facet="city",
    ),
    ORDER_NUMBER,
)
