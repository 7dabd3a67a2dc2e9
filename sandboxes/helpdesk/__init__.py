"""The helpdesk: an order desk of nine tools over SQLite, its data from a seed, and the tasks for it.

The data are customers, products, orders and policies, for each of two branches, which have no names in common: train at
one, test at the other.
"""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, Literal

from mcp_bridge.records import Tool, ToolAnnotations

from ..sandbox import Refused
from ..sql import SqlSandbox, SqlTool, read_clock


@dataclass(frozen=True)
class Branch:
    """The names at one branch. Ids are drawn so that `id % 3 == 0` holds at the second branch and never at the first:
    any digit is as likely at one as at the other, and no id is at both.
    """

    first_names: tuple[str, ...]
    last_names: tuple[str, ...]
    products: tuple[str, ...]
    cities: tuple[str, ...]
    streets: tuple[str, ...]
    id_remainders: tuple[int, ...]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _listed(text: str) -> tuple[str, ...]:
    return tuple(text.split(", "))


MAIN = Branch(
    first_names=_words(
        "Ana Ben Carla David Emma Felix Grace Hugo Ines Jonas Kate Leo Maria Noah Olga Paul Rosa Sam Tina Victor"
        " Alice Bruno Clara Daniel Eva Frank Greta Henry Ida Jack Laura Marco Nina Oscar Petra Ralf Sara Tom Vera Will"
    ),
    last_names=_words(
        "Adler Baker Costa Diaz Evans Fischer Garcia Hall Ivanov Jones Keller Lopez Moreau Novak Olsen Parker"
        " Ruiz Smith Turner Weber Young Zimmer Bell Clark Dubois Ferrari Green Hansen Jansen King"
    ),
    products=_words(
        "lamp kettle chair desk mirror clock blanket pillow toaster blender fan heater radio camera printer"
        " keyboard monitor backpack umbrella bicycle helmet tent rug vase"
    ),
    cities=_words("Lyon Porto Berlin Madrid Oslo Vienna Prague Dublin Milan Geneva Athens Warsaw"),
    streets=_listed(
        "Oak Street, Mill Lane, High Street, Lake Road, Park Avenue, Church Street, Garden Road, Hill Street,"
        " River Lane, Station Road"
    ),
    id_remainders=(1, 2),
)

SECOND = Branch(
    first_names=_words(
        "Arthur Bella Cesar Diana Elias Flora George Hanna Ivan Julia Kurt Lena Martin Nora Otto Paula Robert"
        " Sofia Theo Ursula Walter Yara Adam Beth"
    ),
    last_names=_words(
        "Abbott Blanc Carter Dahl Engel Ford Gomez Hughes Irving Jensen Koch Lang Meyer Nilsson Ortiz Perez"
        " Roberts Silva Thomas Vogel Wagner Walker"
    ),
    products=_words(
        "sofa mattress shelf curtain scale mixer grill drill ladder hammer speaker tablet wallet jacket watch"
    ),
    cities=_words("Paris Rome Lisbon Zurich Hamburg Seville Turin Cork Bergen Ghent"),
    streets=_listed(
        "Elm Road, King Street, Bridge Lane, Forest Avenue, Market Street, Castle Road, Harbor Street, Meadow Lane"
    ),
    id_remainders=(0,),
)

BRANCHES = {"default": MAIN, "second_branch": SECOND}

MAIL_DOMAINS = ("mail.test", "post.test")
"""The top-level domain `.test` is reserved (RFC 2606): no such address exists."""


CUSTOMERS = 8
PRODUCTS = 9
MOST_ORDERS_AT_START = 4  # of one customer; a list of them stays short to read

_FIRST_DAY = datetime(2026, 1, 5, 9, 0)


def _add_customers(database: sqlite3.Connection, chance: random.Random, branch: Branch) -> list[str]:
    numbers = [number for number in range(10, 100) if number % 3 in branch.id_remainders]
    ids = [f"C{number}" for number in chance.sample(numbers, CUSTOMERS)]
    firsts, lasts = chance.sample(branch.first_names, CUSTOMERS), chance.sample(branch.last_names, CUSTOMERS)
    for customer, first, last in zip(ids, firsts, lasts, strict=True):
        email = f"{first}.{last}@{chance.choice(MAIL_DOMAINS)}".lower()
        row = (customer, f"{first} {last}", email, chance.choice(branch.cities))
        database.execute("INSERT INTO customers VALUES (?, ?, ?, ?)", row)
    return ids


def _add_products(database: sqlite3.Connection, chance: random.Random, branch: Branch) -> dict[str, int]:
    prices = {}
    for name in chance.sample(branch.products, PRODUCTS):
        prices[name] = chance.randrange(6, 90)
        # One product in four is nearly sold out, so that asking for the stock matters.
        stock = chance.randrange(0, 3) if chance.random() < 0.25 else chance.randrange(3, 60)
        database.execute("INSERT INTO products VALUES (?, ?, ?)", (name, prices[name], stock))
    return prices


def _add_policies(database: sqlite3.Connection, chance: random.Random) -> int:
    """Returns the number of days within which goods can be returned."""
    return_days = chance.randrange(14, 61)
    days = {"returns": return_days, "shipping": chance.randrange(2, 15), "warranty": chance.randrange(180, 900, 5)}
    for topic, count in days.items():
        database.execute("INSERT INTO policies VALUES (?, ?, NULL)", (topic, count))
    for topic in ("damaged", "late", "faulty"):
        database.execute("INSERT INTO policies VALUES (?, NULL, ?)", (topic, chance.randrange(10, 121, 5)))
    return return_days


def _add_orders(
    database: sqlite3.Connection,
    chance: random.Random,
    branch: Branch,
    now: datetime,
    customers: list[str],
    prices: dict[str, int],
    return_days: int,
) -> None:
    counts = [chance.randrange(1, MOST_ORDERS_AT_START + 1) for _ in customers]
    numbers = [number for number in range(1000, 9900) if number % 3 in branch.id_remainders]
    ids = iter(sorted(chance.sample(numbers, sum(counts))))  # later orders have higher numbers
    owners = [customer for customer, count in zip(customers, counts, strict=True) for _ in range(count)]
    chance.shuffle(owners)
    unordered = {customer: chance.sample(sorted(prices), len(prices)) for customer in customers}
    for owner in owners:
        product = unordered[owner].pop()  # a customer orders a product once, so it names the order
        quantity = chance.randrange(1, 6)
        status = chance.choice(("processing", "shipped", "delivered", "delivered", "cancelled"))
        age = chance.randrange(0, 2 * return_days if chance.random() < 0.3 else return_days)
        delivered = now - timedelta(days=age) if status == "delivered" else None
        placed = (delivered or now) - timedelta(days=chance.randrange(1, 9))
        total = quantity * prices[product]
        refunded = total if delivered and chance.random() < 0.15 else 0
        address = f"{chance.randrange(1, 100)} {chance.choice(branch.streets)}"
        days = placed.date().isoformat(), delivered.date().isoformat() if delivered else None
        row = (next(ids), owner, product, quantity, total, status, address, *days, refunded)
        database.execute("INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (str(row[0]), *row[1:]))


_MOST_MATCHES = 4
_MOST_ORDERS = 4


def find_customer(database: sqlite3.Connection, query: str) -> Any:
    """One customer as an object; several whose name holds `query` as a list."""
    wanted = query.strip().lower()
    if not wanted:
        raise Refused("query is empty; give an e-mail, a name or a customer id.")
    exact = "SELECT id, name, email, city FROM customers WHERE lower(id) = ? OR lower(email) = ? OR lower(name) = ?"
    rows = database.execute(exact, (wanted, wanted, wanted)).fetchall()
    if not rows:
        part = "SELECT id, name, email, city FROM customers WHERE instr(lower(name), ?) > 0 ORDER BY id"
        rows = database.execute(part, (wanted,)).fetchall()
    if not rows:
        raise Refused(f"No customer matches {query!r}.")
    if len(rows) > _MOST_MATCHES:
        raise Refused(f"{len(rows)} customers match {query!r}; give the full name or the e-mail.")
    found = [{"id": row[0], "name": row[1], "email": row[2], "city": row[3]} for row in rows]
    return found[0] if len(found) == 1 else found


def list_orders(database: sqlite3.Connection, customer_id: str) -> list[dict[str, Any]]:
    """A customer's newest orders, newest first, at most four."""
    check_customer(database, customer_id)
    select = "SELECT id, product, status FROM orders WHERE customer = ? ORDER BY CAST(id AS INTEGER) DESC LIMIT ?"
    rows = database.execute(select, (customer_id, _MOST_ORDERS)).fetchall()
    return [{"id": row[0], "product": row[1], "status": row[2]} for row in rows]


def get_order(database: sqlite3.Connection, order_id: str) -> dict[str, Any]:
    """An order; the days since delivery and the refund only where there are any."""
    order = read_order(database, order_id)
    found = {key: order[key] for key in ("customer", "product", "quantity", "total", "status", "address")}
    if order["delivered"]:
        found["delivered_days_ago"] = days_since_delivery(database, order)
    if order["refunded"]:
        found["refunded"] = order["refunded"]
    return found


def get_stock(database: sqlite3.Connection, product: str) -> dict[str, Any]:
    """How many are in stock, and the price of one."""
    row = read_product(database, product)
    return {"stock": row["stock"], "price": row["price"]}


def get_policy(database: sqlite3.Connection, topic: str) -> dict[str, Any]:
    """The rule of a topic: a number of days or the most that is refunded."""
    row = database.execute("SELECT days, max_refund FROM policies WHERE topic = ?", (topic.strip().lower(),)).fetchone()
    if row is None:
        topics = [name for (name,) in database.execute("SELECT topic FROM policies ORDER BY topic")]
        raise Refused(f"No policy {topic!r}. Topics: {', '.join(topics)}.")
    return {"days": row[0]} if row[0] is not None else {"max_refund": row[1]}


def check_customer(database: sqlite3.Connection, customer_id: str) -> None:
    """Refuses an id that no customer has."""
    if database.execute("SELECT 1 FROM customers WHERE id = ?", (customer_id,)).fetchone() is None:
        raise Refused(f"No customer {customer_id!r}.")


def read_order(database: sqlite3.Connection, order_id: str) -> dict[str, Any]:
    """All columns of an order. Refuses an id that no order has."""
    return _row(database.execute("SELECT * FROM orders WHERE id = ?", (order_id,)), f"No order {order_id!r}.")


def read_product(database: sqlite3.Connection, product: str) -> dict[str, Any]:
    """All columns of a product. Refuses a name that no product has."""
    cursor = database.execute("SELECT * FROM products WHERE name = ?", (product.strip().lower(),))
    return _row(cursor, f"No product {product!r}.")


def days_since_delivery(database: sqlite3.Connection, order: dict[str, Any]) -> int:
    """Whole days from the delivery to the world's present day."""
    # SQLite's julianday() on two plain dates: their difference is a whole number.
    row = database.execute(
        "SELECT CAST(julianday(?) - julianday(?) AS INTEGER)",
        (read_clock(database).date().isoformat(), order["delivered"]),
    ).fetchone()
    return int(row[0])


def _row(cursor: sqlite3.Cursor, missing: str) -> dict[str, Any]:
    row = cursor.fetchone()
    if row is None:
        raise Refused(missing)
    return dict(zip([column[0] for column in cursor.description], row, strict=True))


def place_order(database: sqlite3.Connection, customer_id: str, product: str, quantity: int) -> dict[str, Any]:
    """A new order, sent to where the customer's newest order went, or else to the customer's city."""
    check_customer(database, customer_id)
    goods = read_product(database, product)
    if quantity > goods["stock"]:
        raise Refused(f"Only {goods['stock']} in stock.")
    # Numbers go up in steps of three, so that a branch never issues one of the other's.
    order_id = database.execute("SELECT CAST(max(CAST(id AS INTEGER)) + 3 AS TEXT) FROM orders").fetchone()[0]
    address = database.execute(
        "SELECT coalesce((SELECT address FROM orders WHERE customer = :id ORDER BY CAST(id AS INTEGER) DESC LIMIT 1),"
        " (SELECT city FROM customers WHERE id = :id))",
        {"id": customer_id},
    ).fetchone()[0]
    total = quantity * goods["price"]
    today = read_clock(database).date().isoformat()
    database.execute(
        "INSERT INTO orders VALUES (?, ?, ?, ?, ?, 'processing', ?, ?, NULL, 0)",
        (order_id, customer_id, goods["name"], quantity, total, address, today),
    )
    database.execute("UPDATE products SET stock = stock - ? WHERE name = ?", (quantity, goods["name"]))
    return {"id": order_id}


def cancel_order(database: sqlite3.Connection, order_id: str) -> dict[str, Any]:
    """Only while the order is processing. The goods go back into stock."""
    order = read_order(database, order_id)
    if order["status"] != "processing":
        raise Refused(f"Order {order_id} is {order['status']}; only processing orders can be cancelled.")
    database.execute("UPDATE orders SET status = 'cancelled' WHERE id = ?", (order_id,))
    database.execute("UPDATE products SET stock = stock + ? WHERE name = ?", (order["quantity"], order["product"]))
    return {"status": "cancelled", "paid_back": order["total"]}


def refund_order(database: sqlite3.Connection, order_id: str, amount: int) -> dict[str, Any]:
    """Only a delivered order, once, within the days for returns, and no more than its total."""
    order = read_order(database, order_id)
    if order["status"] != "delivered":
        raise Refused(f"Order {order_id} is {order['status']}; only delivered orders can be refunded.")
    if order["refunded"]:
        raise Refused(f"Order {order_id} was already refunded {order['refunded']}.")
    if amount > order["total"]:
        raise Refused(f"{amount} is more than the total {order['total']}.")
    limit = database.execute("SELECT days FROM policies WHERE topic = 'returns'").fetchone()[0]
    age = days_since_delivery(database, order)
    if age > limit:
        raise Refused(f"Order {order_id} was delivered {age} days ago; refunds end after {limit} days.")
    database.execute("UPDATE orders SET refunded = ? WHERE id = ?", (amount, order_id))
    return {"refunded": amount}


def change_address(database: sqlite3.Connection, order_id: str, address: str) -> dict[str, Any]:
    """Only before the order is shipped."""
    order = read_order(database, order_id)
    if order["status"] != "processing":
        raise Refused(f"Order {order_id} is {order['status']}; only processing orders can change address.")
    if not address.strip():
        raise Refused("address is empty.")
    database.execute("UPDATE orders SET address = ? WHERE id = ?", (address.strip(), order_id))
    return {"address": address.strip()}


FILE = Path(__file__).with_name("tasks.jsonl")
_TIERS = ("1", "2", "3", "4", "5")

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 1, "maximum": 1_000_000}

_READS = ToolAnnotations(read_only=True, destructive=False, idempotent=True, open_world=False)
_ADDS = ToolAnnotations(read_only=False, destructive=False, idempotent=False, open_world=False)
# A second cancellation or refund changes nothing, but it answers with an error: only the address can be set again.
_ACTS = ToolAnnotations(read_only=False, destructive=True, idempotent=False, open_world=False)
_SETS = ToolAnnotations(read_only=False, destructive=True, idempotent=True, open_world=False)


def _tool(run: Callable[..., Any], says: str, behaviour: ToolAnnotations, **arguments: Any) -> SqlTool:
    schema = {"type": "object", "properties": arguments, "required": list(arguments), "additionalProperties": False}
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
        branch = BRANCHES[scenario]
        now = _FIRST_DAY + timedelta(days=chance.randrange(300))
        customers = _add_customers(database, chance, branch)
        prices = _add_products(database, chance, branch)
        return_days = _add_policies(database, chance)
        _add_orders(database, chance, branch, now, customers, prices, return_days)
        return now


# Every word of a description is read by the model in every rollout: one short sentence each.
Helpdesk.sql_tools = (
    _tool(find_customer, "Find a customer by e-mail, name or id.", _READS, query=_TEXT),
    _tool(list_orders, "List a customer's last 4 orders.", _READS, customer_id=_TEXT),
    _tool(get_order, "Read an order.", _READS, order_id=_TEXT),
    _tool(get_stock, "Stock and price of a product.", _READS, product=_TEXT),
    _tool(get_policy, "Read the policy on a topic.", _READS, topic=_TEXT),
    _tool(cancel_order, "Cancel an order.", _ACTS, order_id=_TEXT),
    _tool(refund_order, "Refund an order.", _ACTS, order_id=_TEXT, amount=_COUNT),
    _tool(change_address, "Change an order's address.", _SETS, order_id=_TEXT, address=_TEXT),
    _tool(place_order, "Place a new order.", _ADDS, customer_id=_TEXT, product=_TEXT, quantity=_COUNT),
)


def tasks(
    tiers: Collection[str] = ("1", "2"), split: Literal["train", "heldout"] | None = None
) -> list[dict[str, Any]]:
    """The tasks of these tiers, as dicts in the shape of `sdk.records.Task`; both sides of the split for `None`.

    The tier is the number of calls of the right solution.
    """
    if isinstance(tiers, str) or (unknown := sorted({*tiers} - {*_TIERS})):
        wrong = repr(tiers) if isinstance(tiers, str) else ", ".join(map(repr, unknown))
        raise ValueError(f"tiers has {wrong}; give a list of some of {', '.join(_TIERS)} as strings")
    if split not in (None, "train", "heldout"):
        raise ValueError(f"split is {split!r}; choose 'train', 'heldout' or None for both")
    with FILE.open(encoding="utf-8") as lines:
        every = map(json.loads, lines)
        return [task for task in every if task["tags"]["tier"] in tiers and split in (None, task["tags"]["split"])]
