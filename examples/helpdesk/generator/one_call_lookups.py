"""Tier 1, reads of products and policies: one call, then the answer."""

from __future__ import annotations

from . import picking, steps
from .intents import Intent

INTENTS = (
    Intent(
        "stock_count",
        1,
        picking.products,
        steps.read("get_stock", "stock", "The stock of the {product} is {found}.", product="product"),
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
        """,
        """
        How many units of the {product} remain?
        I need the stock level of the {product}.
        What quantity of the {product} is available?
        How many pieces of the {product} do we still hold?
        Tell me the amount of the {product} in the store.
        Check how many of the {product} can be had.
        """,
    ),
    Intent(
        "product_price",
        1,
        picking.products,
        steps.read("get_stock", "price", "The price of the {product} is {found}.", product="product"),
        """
        What is the price of the {product}?
        How much does the {product} cost?
        Tell me the price of one {product}.
        What do we charge for the {product}?
        A customer asks what the {product} costs.
        Please check the price for the {product}.
        """,
        """
        How expensive is the {product}?
        What would I pay for the {product}?
        I need the price tag of the {product}.
        """,
    ),
    Intent(
        "policy_days",
        1,
        picking.days_policies,
        steps.read("get_policy", "days", "The {topic} policy says {found} days.", topic="topic"),
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
        """,
        """
        How many days are written in our policy for {topic}?
        A customer asks about {topic}: how many days by our policy?
        For {topic}, what number of days do our rules name?
        What is the period, in days, of the {topic} policy?
        Tell me for how many days our {topic} rules hold.
        In the policy on {topic}, which number of days is given?
        """,
        facet="topic",
        held_facets=("warranty",),
    ),
    Intent(
        "policy_refund",
        1,
        picking.refund_policies,
        steps.read("get_policy", "max_refund", "The {topic} policy refunds at most {found}.", topic="topic"),
        """
        What is the most we refund under the {topic} policy?
        How much can be refunded by the {topic} policy?
        What is the maximum refund in the policy on {topic}?
        Tell me the refund limit of the {topic} policy.
        Up to what amount does the {topic} policy refund?
        Please check the refund limit in the policy on {topic}.
        """,
        """
        What is the highest refund our policy on {topic} allows?
        How far do refunds go in our policy for {topic}?
        A parcel was {topic}: what is the largest refund by our policy?
        """,
        facet="topic",
        held_facets=("faulty",),
    ),
)
