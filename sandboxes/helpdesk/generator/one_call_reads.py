"""Tier 1, reads: one call, then the answer."""

from __future__ import annotations

from . import picking
from .intents import Answer, GoldRun, Intent, Slots, lines, says


def _order_status(run: GoldRun, slots: Slots) -> Answer:
    status = run.call("get_order", order_id=slots["order"])["status"]
    return says(status, f"Order {slots['order']} is {status}.")


def _order_total(run: GoldRun, slots: Slots) -> Answer:
    total = run.call("get_order", order_id=slots["order"])["total"]
    return says(total, f"The total of order {slots['order']} is {total}.")


def _order_address(run: GoldRun, slots: Slots) -> Answer:
    address = run.call("get_order", order_id=slots["order"])["address"]
    return says(address, f"Order {slots['order']} goes to {address}.")


def _stock_count(run: GoldRun, slots: Slots) -> Answer:
    stock = run.call("get_stock", product=slots["product"])["stock"]
    return says(stock, f"The stock of the {slots['product']} is {stock}.")


def _product_price(run: GoldRun, slots: Slots) -> Answer:
    price = run.call("get_stock", product=slots["product"])["price"]
    return says(price, f"The price of the {slots['product']} is {price}.")


def _policy_days(run: GoldRun, slots: Slots) -> Answer:
    days = run.call("get_policy", topic=slots["topic"])["days"]
    return says(days, f"The {slots['topic']} policy says {days} days.")


def _policy_refund(run: GoldRun, slots: Slots) -> Answer:
    most = run.call("get_policy", topic=slots["topic"])["max_refund"]
    return says(most, f"The {slots['topic']} policy refunds at most {most}.")


def _customer_id(run: GoldRun, slots: Slots) -> Answer:
    found = run.call("find_customer", query=slots["email"])["id"]
    return says(found, f"The customer id is {found}.")


def _customer_city(run: GoldRun, slots: Slots) -> Answer:
    city = run.call("find_customer", query=slots["name"])["city"]
    return says(city, f"{slots['name']} lives in {city}.")


def _order_number(run: GoldRun, slots: Slots) -> Answer:
    found = run.call("list_orders", customer_id=slots["customer"])
    order = next(row["id"] for row in found if row["product"] == slots["product"])
    return says(order, f"The {slots['product']} is order {order}.")


INTENTS = (
    Intent(
        "order_status",
        1,
        picking.orders(),
        _order_status,
        lines(
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
            """
        ),
        lines(
            """
            Any news about order {order}?
            How far along is order {order}?
            Could you look up the state of order {order}?
            What has become of order {order}?
            Give me the current state of order {order}.
            A buyer asks whether order {order} was sent. What is its status?
            """
        ),
    ),
    Intent(
        "order_total",
        1,
        picking.orders(),
        _order_total,
        lines(
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
            """
        ),
        lines(
            """
            What was the bill for order {order}?
            How expensive was order {order}?
            I need the sum of order {order}.
            """
        ),
        facet="status",
        held_facets=("shipped",),
    ),
    Intent(
        "order_address",
        1,
        picking.orders(),
        _order_address,
        lines(
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
            """
        ),
        lines(
            """
            What is the destination of order {order}?
            Order {order} goes to which address?
            I want to know where order {order} will arrive.
            """
        ),
        facet="status",
        held_facets=("processing",),
    ),
    Intent(
        "stock_count",
        1,
        picking.products,
        _stock_count,
        lines(
            """
            What is the stock of the {product}?
            How many of the {product} are in stock?
            Do we have the {product} in stock, and how many?
            Tell me how many of the {product} are left.
            How many of the {product} can we sell?
            Please check the stock for the {product}.
            How many units of the {product} do we have?
            What quantity of the {product} is on the shelf?
            Is the {product} available, and in what number?
            Tell me the stock level for the {product}.
            How many pieces of the {product} remain in the store?
            Count the {product} for me: how many are there?
            What amount of the {product} is available now?
            A shop wants the {product}. How many can we deliver?
            How large is our supply of the {product}?
            Are there any of the {product}? Say how many units.
            How many {product} units are there right now?
            Give me the number in stock for the {product}.
            The {product}: how many pieces are left?
            What is our inventory of the {product}?
            Look up the {product} and say how many we have.
            If someone asks for the {product}, how many could we send?
            How well are we supplied with the {product}? Name the number.
            What count does the store show for the {product}?
            """
        ),
        lines(
            """
            How many units of the {product} remain?
            I need the stock level of the {product}.
            What quantity of the {product} is available?
            How many pieces of the {product} do we still hold?
            Tell me the amount of the {product} in the store.
            Check how many of the {product} can be had.
            """
        ),
    ),
    Intent(
        "product_price",
        1,
        picking.products,
        _product_price,
        lines(
            """
            What is the price of the {product}?
            How much does the {product} cost?
            Tell me the price of one {product}.
            What do we charge for the {product}?
            A customer asks what the {product} costs.
            Please check the price for the {product}.
            """
        ),
        lines(
            """
            How expensive is the {product}?
            What would I pay for the {product}?
            I need the price tag of the {product}.
            """
        ),
    ),
    Intent(
        "policy_days",
        1,
        picking.days_policies,
        _policy_days,
        lines(
            """
            How many days does the {topic} policy give?
            What does the policy on {topic} say, in days?
            Tell me the number of days in the {topic} policy.
            How long is it under our {topic} policy?
            Which number of days does the {topic} policy set?
            Please check the days in the policy on {topic}.
            By our rules on {topic}, how many days are there?
            What number of days is written down for {topic}?
            A customer wants to know the days our {topic} policy names.
            For {topic}, how many days does the policy allow?
            Look up {topic} in the policies. How many days is it?
            How many days do customers have according to the policy for {topic}?
            Our policy about {topic}: what is the number of days?
            What do the rules say about {topic}? I need the days.
            Within how many days, says the {topic} policy?
            Name the days in our rules for {topic}.
            How much time, in days, does the {topic} policy allow?
            Give me the figure in days from the {topic} policy.
            Counted in days, what does our policy for {topic} grant?
            I have to tell somebody the days for {topic}. How many are they?
            Read the {topic} policy and tell me its days.
            What is the time limit for {topic}, in days?
            The number of days under {topic}, please.
            Which period in days is fixed for {topic}?
            """
        ),
        lines(
            """
            How many days are written in our policy for {topic}?
            A customer asks about {topic}: how many days by our policy?
            For {topic}, what number of days do our rules name?
            What is the period, in days, of the {topic} policy?
            Tell me for how many days our {topic} rules hold.
            In the policy on {topic}, which number of days is given?
            """
        ),
        facet="topic",
        held_facets=("warranty",),
    ),
    Intent(
        "policy_refund",
        1,
        picking.refund_policies,
        _policy_refund,
        lines(
            """
            What is the most we refund under the {topic} policy?
            How much can be refunded by the {topic} policy?
            What is the maximum refund in the policy on {topic}?
            Tell me the refund limit of the {topic} policy.
            Up to what amount does the {topic} policy refund?
            Please check the refund limit in the policy on {topic}.
            """
        ),
        lines(
            """
            What is the highest refund our policy on {topic} allows?
            How far do refunds go in our policy for {topic}?
            A parcel was {topic}: what is the largest refund by our policy?
            """
        ),
        facet="topic",
        held_facets=("faulty",),
    ),
    Intent(
        "customer_id",
        1,
        picking.customers,
        _customer_id,
        lines(
            """
            What is the customer id of {email}?
            Which customer has the e-mail {email}?
            Find the customer id for {email}.
            Tell me the id of the customer with the e-mail {email}.
            Who is {email}? Give me the customer id.
            Please check which id belongs to {email}.
            """
        ),
        lines(
            """
            Under which id do we know {email}?
            A mail came from {email}. What is the sender's customer id?
            I need the customer number of {email}.
            """
        ),
        facet="city",
    ),
    Intent(
        "customer_city",
        1,
        picking.customers,
        _customer_city,
        lines(
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
            """
        ),
        lines(
            """
            What town is on file for {name}?
            {name} is a customer in which city?
            I need to know where {name} is living.
            From what city does our customer {name} come?
            Tell me which town {name} calls home.
            {name} lives in what city?
            """
        ),
        facet="city",
    ),
    Intent(
        "order_number",
        1,
        picking.orders(),
        _order_number,
        lines(
            """
            What is the order number for the {product} of customer {customer}?
            Which order of customer {customer} is the {product}?
            Customer {customer} bought the {product}. Which order is it?
            Tell me the number of the {product} order of customer {customer}.
            Find the order in which customer {customer} bought the {product}.
            Please check which order has the {product} for customer {customer}.
            """
        ),
        lines(
            """
            Under what number did customer {customer} order the {product}?
            I need the id of the {product} order by customer {customer}.
            Customer {customer} asks for the number of the order with the {product}.
            """
        ),
    ),
)
