"""The data of a helpdesk: customers, products, orders and policies from a seed, for each of two branches.

The branches have no names in common: train at one, test at the other.
"""

from __future__ import annotations

import random
import sqlite3
from dataclasses import dataclass
from datetime import datetime, timedelta


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
MOST_ORDERS = 4  # of one customer at the start; a list of them stays short to read

_FIRST_DAY = datetime(2026, 1, 5, 9, 0)


def populate(database: sqlite3.Connection, chance: random.Random, scenario: str) -> datetime:
    """Fill the empty tables and return the time at which the world begins."""
    branch = BRANCHES[scenario]
    now = _FIRST_DAY + timedelta(days=chance.randrange(300))
    customers = _add_customers(database, chance, branch)
    prices = _add_products(database, chance, branch)
    return_days = _add_policies(database, chance)
    _add_orders(database, chance, branch, now, customers, prices, return_days)
    return now


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
    counts = [chance.randrange(1, MOST_ORDERS + 1) for _ in customers]
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
