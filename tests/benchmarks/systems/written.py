"""Three systems written for this: meeting rooms, a library's loans, expense claims."""

from __future__ import annotations

import random
from typing import Any

from sandboxes.objects import ObjectTwin

from .system import Kind, System

PEOPLE = ("Ana", "Boris", "Chen", "Dora", "Emil", "Farah", "Goran", "Hana", "Ivo", "Jana", "Karim", "Lena")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")


class Rooms:
    """Meeting rooms and who has booked them."""

    def __init__(self) -> None:
        self.rooms: dict[str, dict[str, int]] = {}
        self.bookings: dict[str, dict[str, Any]] = {}

    def list_rooms(self) -> list[str]:
        """Names of all meeting rooms."""
        return sorted(self.rooms)

    def get_room(self, room: str) -> dict[str, int]:
        """Seats and floor of a meeting room."""
        if room not in self.rooms:
            raise ValueError(f"there is no room {room!r}; the rooms are {', '.join(sorted(self.rooms))}")
        return self.rooms[room]

    def find_rooms(self, seats: int) -> list[str]:
        """Names of the rooms with at least so many seats."""
        return sorted(name for name, room in self.rooms.items() if room["seats"] >= seats)

    def get_booking(self, booking_id: str) -> dict[str, Any]:
        """Room, day, hour and person of a booking."""
        if booking_id not in self.bookings:
            raise ValueError(f"there is no booking {booking_id!r}")
        return self.bookings[booking_id]

    def book_room(self, room: str, day: str, hour: int, person: str) -> str:
        """Book a room for a person. Returns the id of the booking.

        day: a weekday such as Monday
        hour: when it begins, 8 to 18
        """
        self.get_room(room)
        if any((one["room"], one["day"], one["hour"]) == (room, day, hour) for one in self.bookings.values()):
            raise ValueError(f"{room} is taken on {day} at {hour}")
        booking_id = f"B{len(self.bookings) + 101}"
        self.bookings[booking_id] = {"room": room, "day": day, "hour": hour, "person": person}
        return booking_id

    def cancel_booking(self, booking_id: str) -> str:
        """Cancel a booking."""
        self.get_booking(booking_id)
        del self.bookings[booking_id]
        return "cancelled"

    def move_booking(self, booking_id: str, day: str, hour: int) -> str:
        """Move a booking to another day and hour."""
        self.get_booking(booking_id).update(day=day, hour=hour)
        return "moved"


ROOM_NAMES = ("Amber", "Basalt", "Coral", "Dune", "Ember", "Fjord", "Grove", "Harbour")


def _fill_rooms(rooms: Rooms, seed: int, scenario: str = "default") -> None:
    draw = random.Random(seed)
    for name in draw.sample(ROOM_NAMES, 5):
        rooms.rooms[name] = {"seats": draw.randrange(4, 30), "floor": draw.randrange(1, 9)}
    for number in range(4):
        room = draw.choice(sorted(rooms.rooms))
        booking = {"room": room, "day": draw.choice(DAYS), "hour": 8 + number, "person": draw.choice(PEOPLE)}
        rooms.bookings[f"B{number + 101}"] = booking


def _rooms(seed: int) -> Rooms:
    rooms = Rooms()
    _fill_rooms(rooms, seed)
    return rooms


def _free(rooms: Rooms, draw: random.Random) -> dict[str, Any]:
    person, day = draw.choice(PEOPLE), draw.choice(DAYS)
    return {"room": draw.choice(sorted(rooms.rooms)), "day": day, "hour": draw.randrange(13, 19), "person": person}


def _booking(rooms: Rooms, draw: random.Random) -> dict[str, Any]:
    return {"id": draw.choice(sorted(rooms.bookings)), "day": draw.choice(DAYS), "hour": draw.randrange(13, 19)}


ROOMS = System(
    "meeting rooms",
    lambda: ObjectTwin(Rooms, load=_fill_rooms, reads=("list_rooms", "get_room", "find_rooms", "get_booking")),
    _rooms,
    (
        Kind(
            "seats",
            (
                "How many seats does the room {room} have?",
                "Tell me how many people fit into {room}.",
                "I need the number of seats in {room}.",
                "What is the capacity of {room}?",
                "How big a group can sit in {room}?",
                "Seats in {room}, please?",
            ),
            "get_room(room='{room}')",
            lambda world, draw: {"room": draw.choice(sorted(world.rooms))},
            "$.seats",
        ),
        Kind(
            "person",
            (
                "Who made booking {id}?",
                "Whose booking is {id}?",
                "Tell me the person behind booking {id}.",
                "For whom is {id} booked?",
                "Which colleague has booking {id}?",
                "I want to know who booked {id}.",
            ),
            "get_booking(booking_id='{id}')",
            _booking,
            "$.person",
        ),
        Kind(
            "book",
            (
                "Book {room} for {person} on {day} at {hour}.",
                "{person} needs {room} on {day} at {hour} o'clock.",
                "Please reserve {room} on {day}, {hour}:00, for {person}.",
                "On {day} at {hour}, {person} wants to meet in {room}. Book it.",
                "Get {person} the room {room}, {day} at {hour}.",
                "Reserve a slot in {room} for {person}: {day}, {hour} o'clock.",
            ),
            "book_room(room='{room}', day='{day}', hour={hour}, person='{person}')",
            _free,
            reply="{room} is booked for {person} on {day} at {hour}.",
        ),
        Kind(
            "cancel",
            (
                "Cancel booking {id}.",
                "Please delete the booking {id}.",
                "We no longer need {id}, cancel it.",
                "Booking {id} can go.",
                "Drop the reservation {id}, please.",
                "The meeting of {id} is off. Cancel it.",
            ),
            "cancel_booking(booking_id='{id}')",
            _booking,
            reply="Booking {id} is cancelled.",
        ),
        Kind(
            "move",
            (
                "Move booking {id} to {day} at {hour}.",
                "Please put {id} on {day}, {hour} o'clock instead.",
                "{id} should be on {day} at {hour}.",
                "Shift the booking {id} to {hour} on {day}.",
                "Can {id} take place {day} at {hour}? Change it.",
                "Reschedule {id}: {day}, {hour}:00.",
            ),
            "move_booking(booking_id='{id}', day='{day}', hour={hour})",
            _booking,
            reply="Booking {id} is now on {day} at {hour}.",
        ),
    ),
)


class Library:
    """Books, members and loans of a library."""

    def __init__(self) -> None:
        self.books: dict[str, dict[str, Any]] = {}
        self.members: dict[str, dict[str, str]] = {}
        self.loans: dict[str, dict[str, Any]] = {}

    def find_book(self, title: str) -> dict[str, Any]:
        """Look a book up by its title: its id, author, shelf and free copies."""
        for book_id, book in self.books.items():
            if book["title"].lower() == title.lower():
                return {"book_id": book_id, **book}
        raise ValueError(f"there is no book with the title {title!r}")

    def get_member(self, member_id: str) -> dict[str, str]:
        """Name and e-mail address of a member."""
        if member_id not in self.members:
            raise ValueError(f"there is no member {member_id!r}")
        return self.members[member_id]

    def lend_book(self, book_id: str, member_id: str) -> str:
        """Lend a book to a member. Returns the id of the loan."""
        self.get_member(member_id)
        if book_id not in self.books:
            raise ValueError(f"there is no book {book_id!r}; find_book knows the ids")
        self.books[book_id]["copies"] -= 1
        loan_id = f"L{len(self.loans) + 11}"
        self.loans[loan_id] = {"book_id": book_id, "member_id": member_id, "days": 14}
        return loan_id

    def return_book(self, loan_id: str) -> str:
        """Take back what was lent."""
        loan = self.loans.pop(self._known(loan_id))
        self.books[loan["book_id"]]["copies"] += 1
        return "returned"

    def extend_loan(self, loan_id: str, days: int) -> int:
        """Extend a loan by so many days. Returns the days that it now runs."""
        loan = self.loans[self._known(loan_id)]
        loan["days"] += days
        return int(loan["days"])

    def list_loans(self, member_id: str) -> list[str]:
        """The ids of a member's loans."""
        return [loan_id for loan_id, loan in self.loans.items() if loan["member_id"] == member_id]

    def _known(self, loan_id: str) -> str:
        if loan_id not in self.loans:
            raise ValueError(f"there is no loan {loan_id!r}")
        return loan_id


TITLES = ("Silent Rivers", "The Glass Tower", "Northern Lights", "A Quiet Storm", "Paper Boats", "The Last Orchard")
AUTHORS = ("Mira Holt", "Jon Reeve", "Sana Iqbal", "Otto Brandt", "Lucia Ferro", "Wen Tao")


def _fill_library(library: Library, seed: int, scenario: str = "default") -> None:
    draw = random.Random(seed)
    for number, title in enumerate(draw.sample(TITLES, 4)):
        shelf, copies = f"{draw.choice('ABCD')}{draw.randrange(1, 20)}", draw.randrange(1, 9)
        book = {"title": title, "author": draw.choice(AUTHORS), "shelf": shelf, "copies": copies}
        library.books[f"K{draw.randrange(100, 1000)}{number}"] = book
    for number, name in enumerate(draw.sample(PEOPLE, 4)):
        library.members[f"M{number + 21}"] = {
            "name": name,
            "email": f"{name.lower()}{draw.randrange(100)}@post.example",
        }
    for number in range(3):
        loan = {"book_id": draw.choice(sorted(library.books)), "member_id": draw.choice(sorted(library.members))}
        library.loans[f"L{number + 11}"] = {**loan, "days": 14}


def _library(seed: int) -> Library:
    library = Library()
    _fill_library(library, seed)
    return library


def _title(library: Library, draw: random.Random) -> dict[str, Any]:
    book_id = draw.choice(sorted(library.books))
    member = draw.choice(sorted(library.members))
    return {"title": library.books[book_id]["title"], "book": book_id, "member": member}


def _loan(library: Library, draw: random.Random) -> dict[str, Any]:
    return {"loan": draw.choice(sorted(library.loans)), "days": draw.randrange(3, 22)}


BORROWING = System(
    "library",
    lambda: ObjectTwin(Library, load=_fill_library, reads=("find_book", "get_member", "list_loans")),
    _library,
    (
        Kind(
            "author",
            (
                "Who wrote {title}?",
                "Which author has the book {title}?",
                "Name the author of {title}.",
                "{title}: by whom is it?",
                "I forgot who the writer of {title} is.",
                "The author of {title}, please?",
            ),
            "find_book(title='{title}')",
            _title,
            "$.author",
        ),
        Kind(
            "shelf",
            (
                "On which shelf is {title}?",
                "Where do I find {title}?",
                "Tell me the shelf of {title}.",
                "Which shelf holds the book {title}?",
                "I am looking for {title}. Which shelf?",
                "Give me the shelf for {title}.",
            ),
            "find_book(title='{title}')",
            _title,
            "$.shelf",
        ),
        Kind(
            "return",
            (
                "Loan {loan} came back.",
                "Take back the loan {loan}.",
                "Please book the return of {loan}.",
                "The book of loan {loan} was returned.",
                "{loan} is here again, note the return.",
                "Someone gave back {loan}. Enter it.",
            ),
            "return_book(loan_id='{loan}')",
            _loan,
            reply="Loan {loan} is returned.",
        ),
        Kind(
            "extend",
            (
                "Extend loan {loan} by {days} days.",
                "Give loan {loan} {days} more days.",
                "Please prolong {loan} by {days} days.",
                "{loan} needs another {days} days.",
                "Add {days} days to {loan}.",
                "The reader of {loan} asks for {days} days more. Grant it.",
            ),
            "extend_loan(loan_id='{loan}', days={days})",
            _loan,
            reply="Loan {loan} runs {days} days longer.",
        ),
        Kind(
            "lend",
            (
                "Lend {title} to member {member}.",
                "Member {member} wants to borrow {title}.",
                "Please give {title} out to {member}.",
                "{member} takes {title} home. Enter the loan.",
                "Make a loan of {title} for member {member}.",
                "Check out {title} for {member}.",
            ),
            "find_book(title='{title}'); lend_book(book_id='{book}', member_id='{member}')",
            _title,
            reply="{title} is lent to {member}.",
        ),
    ),
)


class Expenses:
    """Claims for expenses, and the budgets of departments."""

    def __init__(self) -> None:
        self.claims: dict[str, dict[str, Any]] = {}
        self.budgets: dict[str, dict[str, int]] = {}

    def get_claim(self, claim_id: int) -> dict[str, Any]:
        """Person, amount in euros, category and status of a claim."""
        if str(claim_id) not in self.claims:
            raise ValueError(f"there is no claim {claim_id}")
        return self.claims[str(claim_id)]

    def file_claim(self, person: str, amount: int, category: str) -> int:
        """File a claim. Returns its number.

        amount: in euros
        category: travel, meals or equipment
        """
        if category not in ("travel", "meals", "equipment"):
            raise ValueError(f"there is no category {category!r}; choose from travel, meals, equipment")
        number = 501 + len(self.claims)
        self.claims[str(number)] = {"person": person, "amount": amount, "category": category, "status": "open"}
        return number

    def approve_claim(self, claim_id: int) -> str:
        """Approve a claim."""
        self.get_claim(claim_id)["status"] = "approved"
        return "approved"

    def reject_claim(self, claim_id: int, reason: str) -> str:
        """Reject a claim for a reason."""
        self.get_claim(claim_id).update(status="rejected", reason=reason)
        return "rejected"

    def get_budget(self, department: str) -> dict[str, int]:
        """Limit and spending of a department, in euros."""
        if department not in self.budgets:
            raise ValueError(f"there is no department {department!r}; there are {', '.join(sorted(self.budgets))}")
        return self.budgets[department]

    def set_limit(self, department: str, limit: int) -> str:
        """Set the limit of a department's budget, in euros."""
        self.get_budget(department)["limit"] = limit
        return "set"

    def open_claims(self) -> list[int]:
        """The numbers of all claims that are neither approved nor rejected."""
        return [int(number) for number, claim in self.claims.items() if claim["status"] == "open"]


DEPARTMENTS = ("sales", "research", "legal", "support", "design", "finance")
REASONS = ("no receipt", "over the limit", "private purchase", "filed twice")


def _fill_expenses(expenses: Expenses, seed: int, scenario: str = "default") -> None:
    draw = random.Random(seed)
    for number in range(4):
        category, status = draw.choice(("travel", "meals", "equipment")), draw.choice(("open", "approved", "rejected"))
        claim = {"person": draw.choice(PEOPLE), "amount": draw.randrange(12, 900), "category": category}
        expenses.claims[str(501 + number)] = {**claim, "status": status}
    for name in draw.sample(DEPARTMENTS, 4):
        expenses.budgets[name] = {"limit": draw.randrange(20, 90) * 100, "spent": draw.randrange(100, 2000)}


def _expenses(seed: int) -> Expenses:
    expenses = Expenses()
    _fill_expenses(expenses, seed)
    return expenses


def _claim(expenses: Expenses, draw: random.Random) -> dict[str, Any]:
    undecided = [number for number, claim in expenses.claims.items() if claim["status"] == "open"]
    return {"claim": int(draw.choice(undecided or sorted(expenses.claims))), "reason": draw.choice(REASONS)}


def _department(expenses: Expenses, draw: random.Random) -> dict[str, Any]:
    return {"department": draw.choice(sorted(expenses.budgets)), "limit": draw.randrange(20, 90) * 100 + 50}


def _new_claim(expenses: Expenses, draw: random.Random) -> dict[str, Any]:
    category = draw.choice(("travel", "meals", "equipment"))
    return {"person": draw.choice(PEOPLE), "amount": draw.randrange(12, 900), "category": category}


EXPENSES = System(
    "expenses",
    lambda: ObjectTwin(Expenses, load=_fill_expenses, reads=("get_claim", "get_budget", "open_claims")),
    _expenses,
    (
        Kind(
            "amount",
            (
                "How much is claim {claim} about?",
                "What amount does claim {claim} have?",
                "Tell me the euros of claim {claim}.",
                "Claim {claim}: how many euros?",
                "Which sum was claimed in {claim}?",
                "I need to know what {claim} costs us.",
            ),
            "get_claim(claim_id={claim})",
            _claim,
            "$.amount",
        ),
        Kind(
            "spent",
            (
                "How much has {department} spent?",
                "What did the {department} department spend so far?",
                "Tell me the spending of {department}.",
                "Spent by {department}, in euros?",
                "How many euros went out in {department}?",
                "I need what {department} has used of its budget.",
            ),
            "get_budget(department='{department}')",
            _department,
            "$.spent",
        ),
        Kind(
            "file",
            (
                "File a claim of {amount} euros for {person}, category {category}.",
                "{person} paid {amount} euros for {category}. File it.",
                "Please enter {amount} euros of {category} for {person}.",
                "New claim: {person}, {category}, {amount} euros.",
                "{person} wants {amount} euros back for {category}.",
                "Put in a {category} claim over {amount} euros for {person}.",
            ),
            "file_claim(person='{person}', amount={amount}, category='{category}')",
            _new_claim,
            reply="The claim of {person} over {amount} euros is filed.",
        ),
        Kind(
            "reject",
            (
                "Reject claim {claim}: {reason}.",
                "Turn down claim {claim}, reason: {reason}.",
                "Claim {claim} is rejected because of: {reason}.",
                "Please refuse claim {claim}. Reason: {reason}.",
                "{claim} cannot be paid ({reason}). Reject it.",
                "Say no to claim {claim} with the reason {reason}.",
            ),
            "reject_claim(claim_id={claim}, reason='{reason}')",
            _claim,
            reply="Claim {claim} is rejected: {reason}.",
        ),
        Kind(
            "limit",
            (
                "Set the limit of {department} to {limit} euros.",
                "The budget limit of {department} is {limit} from now on.",
                "Please change the {department} limit to {limit}.",
                "Give {department} a limit of {limit} euros.",
                "{department} may spend {limit} euros. Set it.",
                "New limit for {department}: {limit}.",
            ),
            "set_limit(department='{department}', limit={limit})",
            _department,
            reply="The limit of {department} is {limit} euros.",
        ),
    ),
)
