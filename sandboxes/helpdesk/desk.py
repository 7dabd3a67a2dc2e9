"""The helpdesk: an order desk of nine tools over SQLite."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Mapping
from datetime import datetime
from importlib.resources import files
from typing import Any, ClassVar

from mcp_bridge.records import Tool, ToolAnnotations

from ..sql import SqlSandbox, SqlTool
from . import acting, reading
from . import seed_data as seeding
from .names import BRANCHES

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 1, "maximum": 1_000_000}

_READS = ToolAnnotations(read_only=True, destructive=False, idempotent=True, open_world=False)
_ADDS = ToolAnnotations(read_only=False, destructive=False, idempotent=False, open_world=False)
# A second cancellation or refund changes nothing, but it answers with an error: only the address can be set again.
_ACTS = ToolAnnotations(read_only=False, destructive=True, idempotent=False, open_world=False)
_SETS = ToolAnnotations(read_only=False, destructive=True, idempotent=True, open_world=False)


def _tool(run: Callable[..., Any], says: str, behaviour: ToolAnnotations, **arguments: Any) -> SqlTool:
    schema = {
        "type": "object",
        "properties": arguments,
        "required": list(arguments),
        "additionalProperties": False,
    }
    tool = Tool(name=run.__name__, description=says, input_schema=schema, annotations=behaviour, source=Helpdesk.name)
    return SqlTool(tool, run)


class Helpdesk(SqlSandbox):
    """An order desk. `Helpdesk(seed=7)` has other customers, orders, prices and policies than `Helpdesk(seed=8)`.

    The scenario `second_branch` is a shop of the same rules with other names, products and numbers throughout.
    """

    name = "helpdesk"
    scenarios = tuple(BRANCHES)
    schema = files(__package__).joinpath("schema.sql").read_text(encoding="utf-8")
    reads: ClassVar[Mapping[str, str]] = {
        "customers": "SELECT id AS key, * FROM customers",
        "products": "SELECT name AS key, * FROM products",
        "orders": "SELECT id AS key, * FROM orders",
        "policies": "SELECT topic AS key, * FROM policies",
    }

    def populate(self, database: sqlite3.Connection, chance: random.Random, scenario: str) -> datetime:
        """See `SqlSandbox.populate`."""
        return seeding.populate(database, chance, scenario)


# Every word of a description is read by the model in every rollout: one short sentence each.
Helpdesk.sql_tools = (
    _tool(reading.find_customer, "Find a customer by e-mail, name or id.", _READS, query=_TEXT),
    _tool(reading.list_orders, "List a customer's last 4 orders.", _READS, customer_id=_TEXT),
    _tool(reading.get_order, "Read an order.", _READS, order_id=_TEXT),
    _tool(reading.get_stock, "Stock and price of a product.", _READS, product=_TEXT),
    _tool(reading.get_policy, "Read the policy on a topic.", _READS, topic=_TEXT),
    _tool(acting.cancel_order, "Cancel an order.", _ACTS, order_id=_TEXT),
    _tool(acting.refund_order, "Refund an order.", _ACTS, order_id=_TEXT, amount=_COUNT),
    _tool(acting.change_address, "Change an order's address.", _SETS, order_id=_TEXT, address=_TEXT),
    _tool(acting.place_order, "Place a new order.", _ADDS, customer_id=_TEXT, product=_TEXT, quantity=_COUNT),
)
