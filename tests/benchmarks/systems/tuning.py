"""Two systems on which default options are chosen, so that nothing is chosen on the others: a courier and a pantry."""

from __future__ import annotations

import random
from typing import Any

from sandboxes.objects import ObjectTwin

from .system import Kind, System
from .written import DAYS, PEOPLE

CITIES = ("Bergen", "Cork", "Graz", "Lyon", "Porto", "Turku", "Utrecht", "Vilnius")


class Courier:
    """Parcels, where they go, and pickups."""

    def __init__(self) -> None:
        self.parcels: dict[str, dict[str, Any]] = {}
        self.pickups: dict[str, dict[str, Any]] = {}

    def track(self, parcel: str) -> dict[str, Any]:
        """City, weight in kilograms, day of delivery and state of a parcel."""
        if parcel not in self.parcels:
            raise ValueError(f"there is no parcel {parcel!r}")
        return self.parcels[parcel]

    def parcels_to(self, city: str) -> list[str]:
        """The numbers of all parcels that go to a city."""
        return sorted(number for number, parcel in self.parcels.items() if parcel["city"] == city)

    def redirect(self, parcel: str, city: str) -> str:
        """Send a parcel to another city."""
        self.track(parcel)["city"] = city
        return "redirected"

    def hold(self, parcel: str, day: str) -> str:
        """Keep a parcel back until a weekday."""
        self.track(parcel).update(day=day, state="held")
        return "held"

    def send_back(self, parcel: str) -> str:
        """Send a parcel back to its sender."""
        self.track(parcel)["state"] = "going back"
        return "going back"

    def order_pickup(self, person: str, city: str, day: str, parcels: int) -> str:
        """Have parcels picked up at a person's door. Returns the number of the pickup.

        day: a weekday such as Monday
        parcels: how many
        """
        number = f"U{len(self.pickups) + 41}"
        self.pickups[number] = {"person": person, "city": city, "day": day, "parcels": parcels}
        return number

    def cancel_pickup(self, pickup: str) -> str:
        """Cancel a pickup."""
        if pickup not in self.pickups:
            raise ValueError(f"there is no pickup {pickup!r}")
        del self.pickups[pickup]
        return "cancelled"


def _fill_courier(courier: Courier, seed: int, scenario: str = "default") -> None:
    draw = random.Random(seed)
    for number in range(4):
        parcel = {"city": draw.choice(CITIES), "kilograms": draw.randrange(1, 30), "day": draw.choice(DAYS)}
        courier.parcels[f"P{draw.randrange(100, 1000)}{number}"] = {**parcel, "state": "on its way"}
    for number in range(2):
        pickup = {"person": draw.choice(PEOPLE), "city": draw.choice(CITIES), "day": draw.choice(DAYS)}
        courier.pickups[f"U{number + 41}"] = {**pickup, "parcels": draw.randrange(1, 9)}


def _courier(seed: int) -> Courier:
    courier = Courier()
    _fill_courier(courier, seed)
    return courier


def _parcel(courier: Courier, draw: random.Random) -> dict[str, Any]:
    parcel = draw.choice(sorted(courier.parcels))
    elsewhere = [city for city in CITIES if city != courier.parcels[parcel]["city"]]
    return {"parcel": parcel, "city": draw.choice(elsewhere), "day": draw.choice(DAYS)}


def _pickup(courier: Courier, draw: random.Random) -> dict[str, Any]:
    where = {"person": draw.choice(PEOPLE), "city": draw.choice(CITIES), "day": draw.choice(DAYS)}
    return {**where, "parcels": draw.randrange(1, 9), "pickup": draw.choice(sorted(courier.pickups))}


COURIER = System(
    "courier",
    lambda: ObjectTwin(Courier, load=_fill_courier, reads=("track", "parcels_to")),
    _courier,
    (
        Kind(
            "weight",
            (
                "How heavy is parcel {parcel}?",
                "What does {parcel} weigh?",
                "Tell me the weight of {parcel}.",
                "I need to know how many kilograms {parcel} has.",
                "Parcel {parcel}: the kilograms, please.",
                "Is {parcel} heavy? Give me its weight.",
            ),
            "track(parcel='{parcel}')",
            _parcel,
            "$.kilograms",
        ),
        Kind(
            "city",
            (
                "Where does parcel {parcel} go?",
                "Which city is {parcel} for?",
                "Name the destination of {parcel}.",
                "To which town is {parcel} sent?",
                "Look up where {parcel} is headed.",
                "The city of {parcel}, please?",
            ),
            "track(parcel='{parcel}')",
            _parcel,
            "$.city",
        ),
        Kind(
            "redirect",
            (
                "Send parcel {parcel} to {city} instead.",
                "Please change where {parcel} goes: {city}.",
                "{parcel} should go to {city}.",
                "Reroute {parcel} to {city}.",
                "The customer of {parcel} has moved to {city}. Change it.",
                "Let {parcel} be delivered in {city}.",
            ),
            "redirect(parcel='{parcel}', city='{city}')",
            _parcel,
            reply="Parcel {parcel} now goes to {city}.",
        ),
        Kind(
            "hold",
            (
                "Hold parcel {parcel} until {day}.",
                "Keep {parcel} back until {day}, please.",
                "Nobody is at home before {day}. Hold {parcel}.",
                "{parcel} must not come before {day}.",
                "Wait with {parcel} until {day}.",
                "Can {parcel} stay with you till {day}?",
            ),
            "hold(parcel='{parcel}', day='{day}')",
            _parcel,
            reply="Parcel {parcel} is held until {day}.",
        ),
        Kind(
            "pickup",
            (
                "Pick up {parcels} parcels from {person} in {city} on {day}.",
                "{person} in {city} has {parcels} parcels to collect on {day}.",
                "Order a pickup on {day}: {person}, {city}, {parcels} parcels.",
                "Please fetch {parcels} parcels at {person}'s in {city}, {day}.",
                "On {day} someone must get {parcels} parcels from {person}, {city}.",
                "Collect from {person} ({city}) {day}, {parcels} parcels.",
            ),
            "order_pickup(person='{person}', city='{city}', day='{day}', parcels={parcels})",
            _pickup,
            reply="{parcels} parcels will be picked up from {person} on {day}.",
        ),
    ),
)

FOODS = ("barley", "beans", "flour", "honey", "lentils", "oats", "olives", "rice", "sugar", "tomatoes")
PLACES = ("cellar", "kitchen", "loft", "shed")


class Pantry:
    """What is in store, where, and what is to be bought."""

    def __init__(self) -> None:
        self.stock: dict[str, dict[str, Any]] = {}
        self.shopping: dict[str, int] = {}

    def look_up(self, food: str) -> dict[str, Any]:
        """Grams, place and month of expiry of a food."""
        if food not in self.stock:
            raise ValueError(f"there is no {food}; there are {', '.join(sorted(self.stock))}")
        return self.stock[food]

    def contents(self, place: str) -> list[str]:
        """The foods that are kept at a place."""
        return sorted(food for food, kept in self.stock.items() if kept["place"] == place)

    def take(self, food: str, grams: int) -> int:
        """Take so many grams of a food. Returns the grams that are left."""
        kept = self.look_up(food)
        if kept["grams"] < grams:
            raise ValueError(f"there are only {kept['grams']} grams of {food}")
        kept["grams"] -= grams
        return int(kept["grams"])

    def put(self, food: str, grams: int) -> int:
        """Add so many grams to a food. Returns the grams that there are now."""
        kept = self.look_up(food)
        kept["grams"] += grams
        return int(kept["grams"])

    def carry(self, food: str, place: str) -> str:
        """Carry a food to another place: cellar, kitchen, loft or shed."""
        if place not in PLACES:
            raise ValueError(f"there is no place {place!r}; choose from {', '.join(PLACES)}")
        self.look_up(food)["place"] = place
        return "carried"

    def shopping_list(self) -> dict[str, int]:
        """What is to be bought, in grams."""
        return self.shopping

    def want(self, food: str, grams: int) -> str:
        """Write a food on the shopping list."""
        self.shopping[food] = grams
        return "noted"

    def unwant(self, food: str) -> str:
        """Strike a food off the shopping list."""
        if food not in self.shopping:
            raise ValueError(f"{food} is not on the list")
        del self.shopping[food]
        return "struck off"


def _fill_pantry(pantry: Pantry, seed: int, scenario: str = "default") -> None:
    draw = random.Random(seed)
    for food in draw.sample(FOODS, 5):
        kept = {"grams": draw.randrange(10, 60) * 50, "place": draw.choice(PLACES)}
        pantry.stock[food] = {**kept, "month": draw.choice(("March", "April", "May", "June", "July"))}
    for food in draw.sample(FOODS, 3):
        pantry.shopping[food] = draw.randrange(2, 20) * 50


def _pantry(seed: int) -> Pantry:
    pantry = Pantry()
    _fill_pantry(pantry, seed)
    return pantry


def _food(pantry: Pantry, draw: random.Random) -> dict[str, Any]:
    food = draw.choice(sorted(pantry.stock))
    listed = draw.choice(sorted(pantry.shopping))
    elsewhere = [place for place in PLACES if place != pantry.stock[food]["place"]]
    values = {"food": food, "grams": draw.randrange(2, 10) * 50, "place": draw.choice(elsewhere)}
    return {**values, "listed": listed, "wanted": draw.choice([one for one in FOODS if one not in pantry.shopping])}


PANTRY = System(
    "pantry",
    lambda: ObjectTwin(Pantry, load=_fill_pantry, reads=("look_up", "contents", "shopping_list")),
    _pantry,
    (
        Kind(
            "amount",
            (
                "How many grams of {food} are there?",
                "How much {food} do we have?",
                "Tell me the amount of {food}.",
                "What is left of the {food}, in grams?",
                "Is there enough {food}? I need the grams.",
                "Grams of {food}, please.",
            ),
            "look_up(food='{food}')",
            _food,
            "$.grams",
        ),
        Kind(
            "take",
            (
                "Take {grams} grams of {food}.",
                "I have used {grams} g of {food}.",
                "We ate {grams} grams of the {food}.",
                "{grams} grams of {food} went into the soup.",
                "Note that {grams} g {food} are gone.",
                "Subtract {grams} grams from the {food}.",
            ),
            "take(food='{food}', grams={grams})",
            _food,
            reply="{grams} grams of {food} are taken.",
        ),
        Kind(
            "put",
            (
                "Add {grams} grams of {food}.",
                "There are {grams} more grams of {food}.",
                "I bought {grams} g of {food}.",
                "Put {grams} grams of {food} into the store.",
                "{grams} g of {food} came today.",
                "We got another {grams} grams of {food}. Enter it.",
            ),
            "put(food='{food}', grams={grams})",
            _food,
            reply="{grams} grams of {food} are added.",
        ),
        Kind(
            "carry",
            (
                "Carry the {food} to the {place}.",
                "Move {food} into the {place}.",
                "The {food} should be in the {place}.",
                "Please bring the {food} to the {place}.",
                "Store {food} in the {place} from now on.",
                "From today the {food} has its place in the {place}.",
            ),
            "carry(food='{food}', place='{place}')",
            _food,
            reply="The {food} is in the {place}.",
        ),
        Kind(
            "list",
            (
                "Write {grams} grams of {wanted} on the shopping list.",
                "We need to buy {grams} g of {wanted}.",
                "Put {wanted} on the list, {grams} grams.",
                "Remember to buy {wanted}: {grams} grams.",
                "Next time I want {grams} grams of {wanted} from the shop.",
                "Shopping: {wanted}, {grams} g.",
            ),
            "want(food='{wanted}', grams={grams})",
            _food,
            reply="{wanted} is on the shopping list.",
        ),
    ),
)
