"""Classes that the tests of object twins wrap: what somebody might have, written without a thought of twins."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Literal


class NoSuchItem(Exception):
    """Raised for an item that is not there."""


@dataclass
class Item:
    name: str
    price: Decimal
    tags: set[str] = field(default_factory=set)
    _bought_for: int = 0


class Shop:
    """A shop with items that know their shop."""

    def __init__(self, city: str = "Bath", size: int = 3) -> None:
        self.city = city
        self.items = {number: Item(f"item {number}", Decimal(number) / 4) for number in range(size)}
        self.sold: list[Item] = []
        self.open = True
        self.home = self
        self._secret = "s3cret"

    def rename(self, number: int, name: str, tag: Literal["new", "old"] = "new") -> dict[str, str]:
        """Give an item a name and a tag."""
        item = self._item(number)
        item.tags |= {tag, f"was {item.name}"}
        item.name = name
        if name == "":
            raise ValueError("a name cannot be empty")
        return {"name": name}

    def sell(self, number: int) -> Item:
        """Sell an item."""
        self.sold.append(self._item(number))
        del self.items[number]
        return self.sold[-1]

    def stock(self, numbers: list[int], notes: list[str] = []) -> int:  # noqa: B006 - as careless as others
        """Order items; both lists are kept, and grow."""
        self.ordered, self.notes = numbers, notes
        numbers.append(-1)
        notes.append("ordered")
        return len(notes)

    def find(self, name: str) -> list[int]:
        """Numbers of the items of a name."""
        return [number for number, item in self.items.items() if item.name == name]

    def count(self) -> int:
        """How many items there are."""
        return len(self.items)

    def everything(self) -> Shop:
        """The shop itself."""
        return self

    def price(self, number: int) -> Decimal:
        """The price of an item; for one that is not there, the bug of somebody who forgot to ask."""
        self.open = False
        return self.items[number].price

    @staticmethod
    def motto() -> str:
        """What is over the door."""
        return "Buy!"

    def _item(self, number: int) -> Item:
        if number not in self.items:
            raise NoSuchItem(f"there is no item {number}")
        return self.items[number]


class Till:
    """Money, counted by the shop."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.cents = 0
        self.rates: dict[str, float] = {}

    def take(self, cents: int) -> int:
        """Take money."""
        self.cents += cents
        return self.cents


def fill(shop: Shop, seed: int, scenario: str) -> datetime:
    chance = random.Random(f"{scenario}/{seed}")
    for item in shop.items.values():
        item.name = f"{scenario} {chance.randrange(10**6)}"
    return datetime(2026, 3, 1 + seed % 20)


def raise_prices(shop: Shop, before: datetime, after: datetime) -> None:
    for item in shop.items.values():
        item.price += (after - before).days
