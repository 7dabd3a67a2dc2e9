"""The tools that only read. Results are small on purpose: few fields, no echo of what was asked."""

from __future__ import annotations

import sqlite3
from typing import Any

from ..sandbox import Refused
from ..sql import read_clock

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
