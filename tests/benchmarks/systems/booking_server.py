"""A booking service of one's own: an MCP server whose state is a class, as in docs/your-own-tools.md."""

import random
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

import mcp_bridge

ROOMS = ("Maple", "Cedar", "Birch", "Aspen", "Willow")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
PEOPLE = ("Ann", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gita", "Hugo")


class Service:
    """Rooms that are booked by the hour, from 8 to 17."""

    def __init__(self, seed: int = 0) -> None:
        draw = random.Random(seed)
        self.bookings: dict[str, dict[str, Any]] = {}
        for number in draw.sample(range(1000, 10_000), 12):
            booking = {"room": draw.choice(ROOMS), "day": draw.choice(DAYS), "start": draw.randrange(8, 17)}
            self.bookings[str(number)] = {**booking, "person": draw.choice(PEOPLE)}

    def tables(self) -> dict[str, Any]:
        """What a rollout may change."""
        return {"bookings": self.bookings}


server = MCPServer("bookings", log_level="WARNING")
service = mcp_bridge.worlds(server, make=Service, state=Service.tables)


@server.tool()
def get_booking(booking: str) -> dict[str, Any]:
    """Room, day, start and person of a booking, such as 4711."""
    if booking not in service().bookings:
        raise ToolError(f"there is no booking {booking!r}")
    return service().bookings[booking]


@server.tool()
def list_bookings(person: str) -> list[str]:
    """Numbers of the bookings of a person."""
    return sorted(number for number, one in service().bookings.items() if one["person"] == person)


@server.tool()
def find_free_slot(room: str, day: str, after: int) -> int:
    """The first hour from `after` on at which a room is free on a day."""
    taken = {one["start"] for one in service().bookings.values() if (one["room"], one["day"]) == (room, day)}
    free = [hour for hour in range(max(after, 8), 17) if hour not in taken]
    if room not in ROOMS or day not in DAYS or not free:
        raise ToolError(f"no slot in {room!r} on {day!r}; rooms: {', '.join(ROOMS)}; days: {', '.join(DAYS)}")
    return free[0]


@server.tool()
def book(room: str, day: str, start: int, person: str) -> str:
    """Book a room for an hour. Returns the number of the booking."""
    if find_free_slot(room, day, start) != start:
        raise ToolError(f"{room} is taken on {day} at {start}")
    number = str(max(map(int, service().bookings)) + 1)
    service().bookings[number] = {"room": room, "day": day, "start": start, "person": person}
    return number


@server.tool()
def move_booking(booking: str, day: str, start: int) -> str:
    """Move a booking to another day and hour."""
    get_booking(booking).update(day=day, start=start)
    return "moved"


@server.tool()
def cancel_booking(booking: str) -> str:
    """Cancel a booking."""
    get_booking(booking)
    del service().bookings[booking]
    return "cancelled"


if __name__ == "__main__":
    server.run()
