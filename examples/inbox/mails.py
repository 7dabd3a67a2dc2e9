"""Inboxes made from a seed: threads, quotes, forwarded copies, and facts that a later mail corrects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random

NOW = datetime(2026, 3, 2, 9)
DAYS = 365
FIRST_NAMES = ("Anna", "Ben", "Clara", "David", "Elena", "Felix", "Greta", "Hugo", "Ines", "Jonas")
LAST_NAMES = (
    "Albers", "Brandt", "Castillo", "Demir", "Eriksen", "Fontaine", "Gruber", "Horvat", "Ivanova", "Jensen", "Keller",
    "Lindqvist", "Moreau", "Novak", "Okafor", "Petrov", "Quast", "Rossi", "Sato", "Tamm", "Urban", "Varga", "Weber",
)  # fmt: skip
"""Few first names for many people: two persons in a mail may share theirs."""
PROJECTS = (
    "Aurora", "Basalt", "Cobalt", "Dynamo", "Ember", "Fjord", "Garnet", "Harbor", "Indigo", "Juniper", "Krypton",
    "Lantern", "Meridian", "Nimbus", "Onyx", "Pioneer", "Quartz", "Rubicon", "Saffron", "Tundra", "Umbra", "Vertex",
    "Willow", "Xenon", "Yonder", "Zephyr",
)  # fmt: skip
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October")


@dataclass(frozen=True)
class Kind:
    """What can be asked about a project or a person."""

    name: str
    of_person: bool
    subjects: tuple[str, ...]
    sentences: tuple[str, ...]
    questions: tuple[str, ...]
    new_questions: tuple[str, ...]
    """Wordings of held-out tasks."""
    words: tuple[str, str]
    """What a demonstration searches for beside the name, one after the other."""
    value: Callable[[Random], str]
    is_held_out: bool = False


def _room(chance: Random) -> str:
    return f"{chance.choice('ABCDEFGH')}-{chance.randint(100, 499)}"


def _day(chance: Random) -> str:
    return f"{chance.randint(1, 28)} {chance.choice(MONTHS)}"


KINDS = (
    Kind(
        "review room", False, ("{who} review", "{who}: where we meet for the review"),
        ("The {who} review is in room {value}.", "We have room {value} for the {who} review."),
        ("In which room is the {who} review?", "Which room do we have for the {who} review?",
         "What is the room of the {who} review?", "Tell me the room for reviewing {who}.",
         "We review {who}: in which room?", "Which room was booked to review {who}?"),
        ("Where does the review of {who} take place?", "To which room do I go for the {who} review?",
         "Where do we meet to review {who}?", "{who} is reviewed in which room?"),
        ("review", "room"), _room,
    ),
    Kind(
        "deadline", False, ("{who} deadline", "{who}: date of delivery"),
        ("The deadline of {who} is {value}.", "{who} has to be delivered by {value}."),
        ("What is the deadline of {who}?", "By which day does {who} have to be delivered?",
         "On what day must {who} be finished?", "Tell me the deadline of {who}.",
         "{who} has to be ready: by which date?", "Which date of delivery does {who} have?"),
        ("When is {who} due?", "Until when can we work on {who}?", "When do we have to hand over {who}?",
         "What day is set for delivering {who}?"),
        ("deadline", "delivered"), _day,
    ),
    Kind(
        "budget", False, ("{who} budget", "{who}: what we may spend"),
        ("The budget of {who} is {value} euros.", "For {who} we may spend {value} euros."),
        ("How many euros is the budget of {who}?", "What is the budget of {who}, in euros?",
         "How much money is there for {who}?", "Tell me the budget of {who}.", "Which sum can be spent on {who}?",
         "How large is the budget for {who}?"),
        ("How many euros does {who} have?", "What may {who} cost, in euros?",
         "How much are we allowed to spend on {who}?", "What sum was granted to {who}?"),
        ("budget", "spend"),
        lambda chance: str(chance.randint(12, 480) * 500),
    ),
    Kind(
        "phone", True, ("New number", "{who}: telephone"),
        ("The new number of {who} is {value}.", "{who} can be reached at {value}."),
        ("What is the phone number of {who}?", "At which number can {who} be reached?",
         "I want to phone {who}. What is the number?", "Tell me the telephone number of {who}.",
         "Under which number does {who} answer the phone?", "What number does {who} have?"),
        ("Which number do I dial to call {who}?", "How do I reach {who} by phone?",
         "I need to ring {who}: on which number?", "What is the new telephone of {who}?"),
        ("number", "reached"),
        lambda chance: f"555-{chance.randint(1000, 9999)}",
    ),
    Kind(
        "flight", True, ("Arrival of {who}", "{who}: travel"),
        ("{who} arrives on flight {value}.", "The flight of {who} is {value}."),
        ("On which flight does {who} arrive?", "Which flight does {who} take?",
         "Tell me the flight number of {who}.", "{who} flies to us: on which flight?", "Which flight brings {who}?",
         "What flight was booked for {who}?"),
        ("What is the flight of {who}?", "With which flight does {who} come?", "{who} lands with which flight?",
         "Which flight is {who} on?"),
        ("flight", "travel"),
        lambda chance: f"{chance.choice(('LH', 'BA', 'AF', 'KL'))}{chance.randint(200, 3999)}",
    ),
    Kind(
        "badge", True, ("Badge", "{who}: access to the building"),
        ("The badge of {who} has the number {value}.", "{who} has badge {value}."),
        ("Which badge does {who} have?", "What is the number of the badge of {who}?"),
        ("What is written on the badge of {who}?", "Which number has the badge of {who}?",
         "Tell me the badge number of {who}.", "With which badge does {who} enter the building?"),
        ("badge", "access"),
        lambda chance: f"K{chance.randint(10_000, 99_999)}",
        is_held_out=True,
    ),
    Kind(
        "ticket", False, ("{who} ticket", "{who}: support case"),
        ("The support ticket of {who} is {value}.", "Support follows {who} under {value}."),
        ("Which support ticket does {who} have?", "Under which ticket does support follow {who}?"),
        ("What is the ticket of {who}?", "Which case number does {who} have at support?",
         "Tell me the support ticket for {who}.", "Under which number is the support case of {who}?"),
        ("ticket", "support"),
        lambda chance: f"T-{chance.randint(1000, 9999)}", is_held_out=True,
    ),
)  # fmt: skip

SMALL_TALK = (
    "I hope you had a good weekend.", "Let me know if anything is unclear.", "More on Monday.",
    "I am in the office until five.", "Please pass it on to whoever needs it.", "Sorry that it took so long.",
    "The coffee machine works again, by the way.", "Thanks for your patience.",
)  # fmt: skip
NOISE = (
    ("Lunch on Friday", "The {project} team goes for lunch on Friday. Who joins us?"),
    ("Newsletter", "This month: new plants in the lobby, and an interview with {person}."),
    ("{project} photos", "I put the photos of the {project} kick-off on the shared drive."),
    ("Parking", "Please keep the second row free this week; {person} expects a delivery."),
    ("Minutes", "The minutes of the meeting with {person} will follow."),
    ("{project} survey", "Please fill in the survey about {project} when you have five minutes."),
)


@dataclass(frozen=True)
class Mail:
    """A message. `id` is its place by time, from `m0001`."""

    id: str
    date: datetime
    sender: str
    subject: str
    body: str


@dataclass(frozen=True)
class Fact:
    """What the inbox last said of somebody or something; `value` is None where it never said it."""

    kind: Kind
    who: str
    value: str | None
    was_corrected: bool = False


@dataclass(frozen=True)
class Contents:
    """The mails, oldest first, and what can be asked."""

    mails: list[Mail]
    facts: list[Fact]


def make_contents(chance: Random, size: int = 2000) -> Contents:
    """An inbox of `size` mails. About half of all facts are never told; nearly a third of the others are corrected."""
    people = [f"{first} {last}" for first in FIRST_NAMES for last in chance.sample(LAST_NAMES, 4)]
    projects = chance.sample(PROJECTS, 20)
    drafts: list[tuple[datetime, str, str, str]] = []
    facts = []
    for kind in KINDS:
        for who in people if kind.of_person else projects:
            if chance.random() < 0.5:
                facts.append(Fact(kind, who, None))
            else:
                facts.append(_told(kind, who, people, drafts, chance))
    while len(drafts) < size:
        subject, text = chance.choice(NOISE)
        named = {"project": chance.choice(projects), "person": chance.choice(people)}
        body = _body(text.format(**named), chance)
        drafts.append((_time(chance, DAYS), chance.choice(people), subject.format(**named), body))
    drafts.sort(key=lambda draft: draft[0])
    mails = [Mail(f"m{place:04}", *draft) for place, draft in enumerate(drafts, start=1)]
    return Contents(mails, facts)


def _told(
    kind: Kind, who: str, people: list[str], drafts: list[tuple[datetime, str, str, str]], chance: Random
) -> Fact:
    """Write the mails that tell a fact: the first, maybe copies and replies, maybe a correction with a quote."""
    sender, reader = chance.sample(people, 2)
    subject = chance.choice(kind.subjects).format(who=who)
    value = kind.value(chance)
    sentence = chance.choice(kind.sentences).format(who=who, value=value)
    date, body = _time(chance, 200), _body(sentence, chance)
    drafts.append((date, sender, subject, body))
    if chance.random() < 0.25:
        date += timedelta(hours=chance.randint(1, 50))
        drafts.append((date, reader, f"Fwd: {subject}", f"For your information.\n\n{_quoted(sender, body)}"))
    if chance.random() < 0.25:
        date += timedelta(hours=chance.randint(1, 50))
        drafts.append((date, reader, f"Re: {subject}", f"Thank you!\n\n{_quoted(sender, body)}"))
    if chance.random() >= 0.3:
        return Fact(kind, who, value)
    while (corrected := kind.value(chance)) == value:
        pass
    now = chance.choice(kind.sentences).format(who=who, value=corrected)
    date += timedelta(days=chance.randint(1, 60))
    drafts.append((date, sender, f"Re: {subject}", f"This has changed. {now}\n\n{_quoted(sender, body)}"))
    return Fact(kind, who, corrected, was_corrected=True)


def _body(text: str, chance: Random) -> str:
    return " ".join([*chance.sample(SMALL_TALK, 1), text, *chance.sample(SMALL_TALK, chance.randint(0, 2))])


def _quoted(sender: str, body: str) -> str:
    return f"{sender} wrote:\n> {body}"


def _time(chance: Random, days: int) -> datetime:
    """At least 150 days are left for replies where `days` is 200."""
    return NOW - timedelta(days=DAYS) + timedelta(minutes=chance.randrange(days * 24 * 60))
