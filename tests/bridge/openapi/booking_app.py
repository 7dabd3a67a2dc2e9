"""A booking service as people write it with FastAPI. Run with the port's number on stdout."""

import socket
from typing import Annotated

import uvicorn
from fastapi import APIRouter, FastAPI, HTTPException, Path
from pydantic import BaseModel, Field

app = FastAPI(title="Bookings")
people = APIRouter(prefix="/people")


class Room(BaseModel):
    id: int
    name: str
    seats: int


class NewBooking(BaseModel):
    person: str
    day: str
    start: Annotated[int, Field(ge=8, le=17)]


class Booking(NewBooking):
    id: int
    room: int


ROOMS = {number: Room(id=number, name=name, seats=seats) for number, name, seats in ((1, "Oak", 4), (2, "Elm", 8))}
BOOKINGS: dict[int, Booking] = {}


@app.get("/rooms")
def rooms() -> list[Room]:
    """All rooms."""
    return list(ROOMS.values())


@app.get("/rooms/{room_id}")
def read_room(room_id: int) -> Room:
    """One room."""
    if room_id not in ROOMS:
        raise HTTPException(404, "There is no such room")
    return ROOMS[room_id]


@app.post("/rooms/{room_id}/bookings", status_code=201)
def book_room(room_id: Annotated[int, Path(ge=1)], booking: NewBooking) -> Booking:
    """Book a room."""
    made = Booking(id=len(BOOKINGS) + 1, room=read_room(room_id).id, **booking.model_dump())
    BOOKINGS[made.id] = made
    return made


@app.delete("/bookings/{booking_id}", status_code=204)
def cancel(booking_id: int) -> None:
    """Cancel a booking."""
    if BOOKINGS.pop(booking_id, None) is None:
        raise HTTPException(404, "There is no such booking")


@app.get("/bookings")
def everything() -> list[Booking]:
    """All bookings."""
    return list(BOOKINGS.values())


@people.get("")
def everything() -> list[str]:  # noqa: F811 - people do so, and FastAPI takes it
    """Everyone who has booked."""
    return sorted({booking.person for booking in BOOKINGS.values()})


app.include_router(people)

if __name__ == "__main__":
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run([listening])
