"""A garden centre in a module: its variables are the whole state."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Literal

Size = Literal["small", "large"]


@dataclass
class Order:
    plant: str
    number: int


STOCK = {"rose": 12, "fern": 3}
NAMES = STOCK  # the same object twice
ORDERS: dict[int, Order] = {}
_SOLD = 0
CATALOGUE = ("rose", "fern")
pump = threading.Lock()


def stock() -> dict[str, int]:
    """What is there."""
    return NAMES


def order(wanted: Order, size: Size = "small") -> int:
    """Order plants. Gives the number of the order."""
    global _SOLD
    STOCK[wanted.plant] -= wanted.number
    if STOCK[wanted.plant] < 0:
        raise ValueError("there are not as many")
    _SOLD += wanted.number
    ORDERS[_next()] = wanted if isinstance(wanted, Order) else Order("none", 0)
    return len(ORDERS)


def cancel(order: int) -> str:
    """Cancel an order."""
    gone = ORDERS.pop(order)
    STOCK[gone.plant] += gone.number
    return "cancelled"


def sold() -> int:
    """How many plants were sold."""
    with pump:
        return _SOLD


def open_gate() -> str:
    """Opens the gate: the variable is there from now on."""
    global GATE
    GATE = "open"
    return GATE


def _next() -> int:
    return len(ORDERS) + 1
