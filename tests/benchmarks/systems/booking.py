"""A booking service behind an MCP server of its own process, as a newcomer would bring it."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

from .booking_server import DAYS, PEOPLE, ROOMS, Service
from .system import Kind, System

SERVER = Path(__file__).with_name("booking_server.py")


def _booking(service: Service, draw: random.Random) -> dict[str, Any]:
    return {"id": draw.choice(sorted(service.bookings)), "day": draw.choice(DAYS), "hour": draw.randrange(8, 17)}


def _free(service: Service, draw: random.Random) -> dict[str, Any]:
    taken = {(one["room"], one["day"], one["start"]) for one in service.bookings.values()}
    slots = [(room, day, hour) for room in ROOMS for day in DAYS for hour in range(8, 17)]
    room, day, hour = draw.choice([slot for slot in slots if slot not in taken])
    return {"room": room, "day": day, "hour": hour, "person": draw.choice(PEOPLE)}


def _asked(service: Service, draw: random.Random) -> dict[str, Any]:
    """Half of the time an hour that is taken: then the answer is another one."""
    taken = [one for one in service.bookings.values() if one["start"] < 14]
    one = draw.choice(taken) if taken and draw.random() < 0.5 else _free(service, draw)
    return {"room": one["room"], "day": one["day"], "hour": one["start"] if "start" in one else min(one["hour"], 14)}


BOOKING = System(
    "booking service",
    lambda: {"mcpServers": {"bookings": {"command": sys.executable, "args": [str(SERVER)]}}},
    Service,
    (
        Kind(
            "person",
            (
                "Who made booking {id}?",
                "Whose booking is {id}?",
                "Tell me who booked {id}.",
                "Which person is booking {id} for?",
                "I need the name on booking {id}.",
                "Booking {id}: who is it?",
            ),
            "get_booking(booking='{id}')",
            _booking,
            "$.person",
        ),
        Kind(
            "slot",
            (
                "When is {room} free on {day} after {hour}?",
                "Find a free hour in {room} on {day}, {hour} or later.",
                "From {hour} on, when can I have {room} on {day}?",
                "What is the first free slot of {room} on {day} from {hour}?",
                "Is there an hour in {room} on {day}, not before {hour}? Which?",
                "I would like {room} on {day}. What is open from {hour}?",
            ),
            "find_free_slot(room='{room}', day='{day}', after={hour})",
            _asked,
        ),
        Kind(
            "book",
            (
                "Book {room} for {person} on {day} at {hour}.",
                "{person} needs {room} on {day} at {hour}.",
                "Please reserve {room} on {day} at {hour} for {person}.",
                "Get {person} a booking of {room}, {day}, {hour} o'clock.",
                "On {day} at {hour} {person} wants {room}. Book it.",
                "Reserve {room} for {person}: {day}, {hour}:00.",
            ),
            "book(room='{room}', day='{day}', start={hour}, person='{person}')",
            _free,
            reply="{room} is booked for {person} on {day} at {hour}.",
        ),
        Kind(
            "move",
            (
                "Move booking {id} to {day} at {hour}.",
                "Please put {id} on {day} at {hour} instead.",
                "Booking {id} has to be on {day}, {hour} o'clock.",
                "Can you shift {id} to {day} at {hour}?",
                "Change booking {id}: {day}, {hour}:00.",
                "{id} should take place on {day} at {hour}.",
            ),
            "move_booking(booking='{id}', day='{day}', start={hour})",
            _booking,
            reply="Booking {id} is now on {day} at {hour}.",
        ),
        Kind(
            "cancel",
            (
                "Cancel booking {id}.",
                "Please delete booking {id}.",
                "We do not need {id} any more.",
                "Booking {id} is off, cancel it.",
                "Remove the booking {id}.",
                "{id} can be cancelled.",
            ),
            "cancel_booking(booking='{id}')",
            _booking,
            reply="Booking {id} is cancelled.",
        ),
    ),
)
