"""A booking desk for meeting rooms as an MCP server. Replace the backend and the tools by your own.

A tool refuses by `ToolError`. Of other exceptions the server logs a long traceback, which takes up to a second each.
"""

from __future__ import annotations

import random
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

import mcp_bridge

ROOMS = ("Oak", "Elm", "Ash", "Fir")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
PEOPLE = ("Ann", "Ben", "Cleo", "Dan")


class Desk:
    """The backend. Each rollout has one of its own; `seed` comes from the setup of its task."""

    def __init__(self, seed: int = 0) -> None:
        chance = random.Random(seed)
        self.rooms = {
            room: {"seats": chance.randrange(4, 31, 2), "floor": chance.randint(1, 9), "price": chance.randint(11, 99)}
            for room in ROOMS
        }
        places = chance.sample([(room, day) for room in ROOMS for day in DAYS], len(PEOPLE))
        self.bookings = {
            f"B-{10 + number}": {"room": room, "day": day, "person": person}
            for number, ((room, day), person) in enumerate(zip(places, PEOPLE, strict=True))
        }

    def tables(self) -> dict[str, Any]:
        """The whole state: table -> key -> column -> value. Verifiers compare it before and after a rollout."""
        return {"rooms": self.rooms, "bookings": self.bookings}


server = MCPServer("rooms", log_level="WARNING")
desk = mcp_bridge.worlds(server, make=Desk, state=Desk.tables)  # desk() is the Desk of the rollout that calls


@server.tool()
def get_room(room: str) -> dict[str, Any]:
    """Seats, floor and price of a meeting room: Oak, Elm, Ash or Fir."""
    if room not in desk().rooms:
        raise ToolError(f"there is no room {room!r}; the rooms are {', '.join(ROOMS)}")
    return desk().rooms[room]


@server.tool()
def get_booking(booking: str) -> dict[str, Any]:
    """Room, day and person of a booking, such as B-10."""
    if booking not in desk().bookings:
        raise ToolError(f"there is no booking {booking!r}")
    return desk().bookings[booking]


@server.tool()
def book_room(room: str, day: str, person: str) -> str:
    """Book a free room on a weekday for a person. Returns the booking."""
    if room not in ROOMS or day not in DAYS:
        raise ToolError(f"room must be one of {', '.join(ROOMS)}, day one of {', '.join(DAYS)}")
    if any((one["room"], one["day"]) == (room, day) for one in desk().bookings.values()):
        raise ToolError(f"{room} is booked on {day}")
    booking = f"B-{10 + len(desk().bookings)}"
    desk().bookings[booking] = {"room": room, "day": day, "person": person}
    return booking


@server.tool()
def move_booking(booking: str, day: str) -> str:
    """Move a booking to another weekday."""
    if booking not in desk().bookings or day not in DAYS:
        raise ToolError(f"there is no booking {booking!r}, or {day!r} is not one of {', '.join(DAYS)}")
    desk().bookings[booking]["day"] = day
    return "moved"


if __name__ == "__main__":
    server.run()
