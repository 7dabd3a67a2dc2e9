"""The tools that change something, and the rules that refuse. A refusal says why, and nothing has changed."""

from __future__ import annotations

import sqlite3
from typing import Any

from ..sandbox import Refused
from ..sql import read_clock
from .reading import check_customer, days_since_delivery, read_order, read_product


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
