"""Three of BFCL's APIs, from the package `bfcl-eval`: support tickets, posts and a car."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sandboxes.objects import ObjectTwin
from sandboxes.sandbox import Refused

from .system import Kind, System

sys.path.append(str(Path(__file__).resolve().parents[3] / "examples" / "bfcl"))

from dataset import api_class
from worlds import tool_schemas

Start = Callable[[random.Random], dict[str, Any]]


class _Twin(ObjectTwin):
    """What the package answers as an error is one here, too."""

    def _run(self, name: str, arguments: dict[str, Any]) -> Any:
        found = super()._run(name, arguments)
        if isinstance(found, dict) and found.get("error"):
            raise Refused(json.dumps(found))
        return found


def _published(name: str, api: str, start: Start, methods: tuple[str, ...], kinds: tuple[Kind, ...]) -> System:
    def load(one: Any, seed: int, scenario: str = "default") -> None:
        one._load_scenario(start(random.Random(seed)))

    def world(seed: int) -> Any:
        one = api_class(api)()
        load(one, seed)
        return one

    schemas = {method: tool for method, tool in tool_schemas().items() if method in methods}

    def twin() -> ObjectTwin:
        # The classes set their attributes when they are loaded, not when they are made.
        return _Twin(lambda: world(0), load=load, methods=methods, schemas=schemas, undo=False)

    return System(name, twin, world, kinds)


SUBJECTS = ("broken screen", "slow network", "lost badge", "paper jam", "wrong invoice", "noisy fan", "locked account")


def _tickets(draw: random.Random) -> dict[str, Any]:
    queue = []
    for number in range(4):
        title, status, by = draw.choice(SUBJECTS), draw.choice(("Open", "Pending")), draw.choice(("ann", "bob", "eve"))
        ticket = {"id": 300 + draw.randrange(20) + 20 * number, "title": title, "description": f"about a {title}"}
        queue.append({**ticket, "status": status, "priority": draw.randrange(1, 6), "created_by": by})
    return {"ticket_queue": queue, "ticket_counter": 400, "current_user": "ann"}


def _ticket(world: Any, draw: random.Random) -> Mapping[str, Any]:
    how = draw.choice(("replaced the part", "restarted it", "sent a new one", "reset the password"))
    return {"id": draw.choice(world.ticket_queue)["id"], "how": how}


def _new_ticket(world: Any, draw: random.Random) -> Mapping[str, Any]:
    return {"title": draw.choice(SUBJECTS), "priority": draw.randrange(2, 6)}


TICKETS = _published(
    "tickets (BFCL)",
    "TicketAPI",
    _tickets,
    ("create_ticket", "get_ticket", "close_ticket", "resolve_ticket", "edit_ticket", "get_user_tickets"),
    (
        Kind(
            "priority",
            (
                "What priority does ticket {id} have?",
                "Tell me the priority of ticket {id}.",
                "How urgent is ticket {id}? Give the priority.",
                "Ticket {id}: which priority?",
                "I need the priority of number {id}.",
                "Which priority was given to ticket {id}?",
            ),
            "get_ticket(ticket_id={id})",
            _ticket,
            "$.priority",
        ),
        Kind(
            "title",
            (
                "What is the title of ticket {id}?",
                "Tell me the title of ticket {id}.",
                "How is ticket {id} called?",
                "Ticket {id}: what does the title say?",
                "Which title stands on number {id}?",
                "Read me the title of {id}.",
            ),
            "get_ticket(ticket_id={id})",
            _ticket,
            "$.title",
        ),
        Kind(
            "create",
            (
                "Create a ticket '{title}' with priority {priority}.",
                "Open a new ticket titled '{title}', priority {priority}.",
                "Please file '{title}' as a ticket of priority {priority}.",
                "New ticket: '{title}', priority {priority}.",
                "Report '{title}' at priority {priority}.",
                "I want a priority {priority} ticket with the title '{title}'.",
            ),
            "create_ticket(title='{title}', priority={priority})",
            _new_ticket,
            reply="The ticket '{title}' is created.",
        ),
        Kind(
            "close",
            (
                "Close ticket {id}.",
                "Please close the ticket {id}.",
                "Ticket {id} can be closed.",
                "We are done with ticket {id}, close it.",
                "Shut ticket {id}.",
                "Number {id} needs closing.",
            ),
            "close_ticket(ticket_id={id})",
            _ticket,
            reply="Ticket {id} is closed.",
        ),
        Kind(
            "resolve",
            (
                "Resolve ticket {id} with '{how}'.",
                "Mark ticket {id} as resolved: '{how}'.",
                "Ticket {id} is resolved, the resolution is '{how}'.",
                "Please resolve {id}; note '{how}'.",
                "Set {id} to resolved with the note '{how}'.",
                "For {id} enter the resolution '{how}'.",
            ),
            "resolve_ticket(ticket_id={id}, resolution='{how}')",
            _ticket,
            reply="Ticket {id} is resolved.",
        ),
    ),
)

NAMES = ("maria", "dev_guru", "tomas", "skywatch", "nora", "pixel_art", "rob", "chef_lin")
TEXTS = ("Good morning all", "New release is out", "Rain again today", "Join our meetup", "Lunch was great")


def _posts(draw: random.Random) -> dict[str, Any]:
    tweets: dict[str, Any] = {}
    for number in range(4):
        text, by = draw.choice(TEXTS), draw.choice(NAMES)
        tweets[str(10 + number)] = {"id": 10 + number, "username": by, "content": text, "tags": [], "mentions": []}
    following = draw.sample(NAMES, 4)
    start = {"username": "me", "password": "secret-enough", "authenticated": True, "tweet_counter": 14}
    return {**start, "tweets": tweets, "comments": {}, "retweets": {}, "following_list": following}


def _post(world: Any, draw: random.Random) -> Mapping[str, Any]:
    text = draw.choice(("Well said", "I agree", "Thanks for this", "See you there"))
    return {"id": draw.choice(sorted(world.tweets)), "text": text}


POSTS = _published(
    "posts (BFCL)",
    "TwitterAPI",
    _posts,
    (
        *("post_tweet", "retweet", "comment", "follow_user", "unfollow_user", "list_all_following", "get_tweet"),
        *("get_tweet_comments", "get_user_stats"),
    ),
    (
        Kind(
            "writer",
            (
                "Who wrote tweet {id}?",
                "Which user posted tweet {id}?",
                "Tell me the username behind tweet {id}.",
                "Tweet {id}: whose is it?",
                "By whom is tweet {id}?",
                "I want to know who posted {id}.",
            ),
            "get_tweet(tweet_id={id})",
            _post,
            "$.username",
        ),
        Kind(
            "follow",
            (
                "Follow {name}.",
                "Please follow the user {name}.",
                "I want to follow {name}.",
                "Add {name} to those I follow.",
                "Start following {name}.",
                "Make me a follower of {name}.",
            ),
            "follow_user(username_to_follow='{name}')",
            lambda world, draw: {"name": draw.choice([one for one in NAMES if one not in world.following_list])},
            reply="You follow {name} now.",
        ),
        Kind(
            "unfollow",
            (
                "Unfollow {name}.",
                "Please stop following {name}.",
                "I no longer want to follow {name}.",
                "Remove {name} from those I follow.",
                "End my following of {name}.",
                "{name} posts too much, unfollow.",
            ),
            "unfollow_user(username_to_unfollow='{name}')",
            lambda world, draw: {"name": draw.choice(world.following_list)},
            reply="You no longer follow {name}.",
        ),
        Kind(
            "comment",
            (
                "Comment '{text}' on tweet {id}.",
                "Write '{text}' under tweet {id}.",
                "Please leave the comment '{text}' on tweet {id}.",
                "Tweet {id} gets the comment '{text}'.",
                "Answer tweet {id} with '{text}'.",
                "Add a comment to {id}: '{text}'.",
            ),
            "comment(tweet_id={id}, comment_content='{text}')",
            _post,
            reply="The comment is on tweet {id}.",
        ),
        Kind(
            "retweet",
            (
                "Retweet {id}.",
                "Please retweet number {id}.",
                "Share tweet {id} as a retweet.",
                "I want to retweet {id}.",
                "Pass tweet {id} on to my followers.",
                "Give tweet {id} a retweet.",
            ),
            "retweet(tweet_id={id})",
            _post,
            reply="Tweet {id} is retweeted.",
        ),
    ),
)

CITIES = (
    "Rivermist",
    "Stonebrook",
    "Maplecrest",
    "Silverpine",
    "Shadowridge",
    "Oakendale",
    "Willowbend",
    "Autumnville",
)


def _car(draw: random.Random) -> dict[str, Any]:
    pressures = {f"{place}TirePressure": float(draw.randrange(28, 37)) for place in ("frontLeft", "rearLeft")}
    pressures |= {f"{place}TirePressure": float(draw.randrange(28, 37)) for place in ("frontRight", "rearRight")}
    brake = {"parkingBrakeStatus": draw.choice(("engaged", "released"))}
    return {"fuelLevel": float(draw.randrange(3, 20)), "destination": "None", **brake, **pressures}


def _tire(world: Any, draw: random.Random) -> Mapping[str, Any]:
    side = draw.choice(("front left", "front right", "rear left", "rear right"))
    first, second = side.split()
    return {"side": side, "key": f"{first}{second.title()}TirePressure"}


def _brake(world: Any, draw: random.Random) -> Mapping[str, Any]:
    return {"how": "release" if world.parkingBrakeStatus == "engaged" else "engage"}


CAR = _published(
    "car (BFCL)",
    "VehicleControlAPI",
    _car,
    (
        *("fillFuelTank", "setHeadlights", "gallon_to_liter", "get_zipcode_based_on_city", "set_navigation"),
        *("activateParkingBrake", "check_tire_pressure", "find_nearest_tire_shop"),
    ),
    (
        Kind(
            "fuel",
            (
                "Fill {gallons} gallons into the tank.",
                "Please add {gallons} gallons of fuel.",
                "Put {gallons} more gallons into the car.",
                "The car needs {gallons} gallons, fill them in.",
                "Refuel with {gallons} gallons.",
                "Top up by {gallons} gallons of fuel.",
            ),
            "fillFuelTank(fuelAmount={gallons})",
            lambda world, draw: {"gallons": draw.randrange(2, 29)},
            reply="{gallons} gallons are in the tank.",
        ),
        Kind(
            "zipcode",
            (
                "What is the zipcode of {city}?",
                "Tell me the zipcode for {city}.",
                "Which zipcode does {city} have?",
                "I need the zipcode of {city}.",
                "{city}: what zipcode is that?",
                "Look up the postal code of {city}.",
            ),
            "get_zipcode_based_on_city(city='{city}')",
            lambda world, draw: {"city": draw.choice(CITIES)},
            "$.zipcode",
        ),
        Kind(
            "navigate",
            (
                "Navigate to {number} Oak Street, {city}.",
                "Take me to {number} Oak Street, {city}.",
                "Set the navigation to {number} Oak Street, {city}.",
                "I want to drive to {number} Oak Street, {city}.",
                "Guide me to {number} Oak Street, {city}.",
                "Our destination is {number} Oak Street, {city}.",
            ),
            "set_navigation(destination='{number} Oak Street, {city}')",
            lambda world, draw: {"city": draw.choice(CITIES), "number": draw.randrange(2, 300)},
            reply="Navigating to {number} Oak Street, {city}.",
        ),
        Kind(
            "pressure",
            (
                "What is the pressure of the {side} tire?",
                "Tell me the {side} tire's pressure.",
                "How much pressure is in the {side} tire?",
                "Check the pressure of the {side} tire.",
                "The {side} tire: how many psi?",
                "Psi in the {side} tire, please.",
            ),
            "check_tire_pressure()",
            _tire,
            "$.{key}",
        ),
        Kind(
            "brake",
            (
                "{how} the parking brake.",
                "Please {how} the parking brake now.",
                "The parking brake: {how} it.",
                "I want you to {how} the parking brake.",
                "Would you {how} the parking brake?",
                "{how} the brake for parking.",
            ),
            "activateParkingBrake(mode='{how}')",
            _brake,
            reply="The parking brake is set: {how}.",
        ),
    ),
)
