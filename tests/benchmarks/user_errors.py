"""Planted errors of simulated users, and how many of them the rules of fidelity find.

    python tests/benchmarks/user_errors.py [--conversations 400]

Conversations between a policy and a user are put together from wordings, without a model: half of them honest, the
others with one error of one of six kinds. There are three sets of wordings. The rules were made with the first in view,
and changed once with what the second showed. The third was written before that change, and no rule was changed for it.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, get_args

from sdk.records import Fact, Message, Rollout, Task, User, UserTurn
from sdk.users.fidelity import UserErrorKind, user_errors

KINDS: tuple[UserErrorKind, ...] = get_args(UserErrorKind)
SEED = 24


@dataclass(frozen=True)
class Situation:
    """What a user wants. `facts`: name -> (value, another value of its kind, ways to ask for it)."""

    prompt: str
    scenario: str
    facts: dict[str, tuple[str, str, list[str]]]
    done: str


SITUATIONS = [
    Situation(
        "Hi, I'd like to cancel my order.",
        "You ordered a lamp that you do not need any more. You want the order cancelled, and nothing else.",
        {
            "order number": ("4417", "4471", ["What is the order number?", "Which order is it?"]),
            "reason": (
                "it was bought twice",
                "the colour looked wrong",
                ["What is the reason?", "May I ask why you want to cancel it?"],
            ),
            "email": ("ann.lee@mail.example", "anna@post.example", ["Which email address did you use?"]),
        },
        "Your order has been cancelled.",
    ),
    Situation(
        "Can you send my parcel somewhere else?",
        "You moved house last week. Your parcel should go to the new flat, and you are in a bit of a hurry.",
        {
            "order id": (
                "W-20931",
                "W-20913",
                ["Could you tell me the order id?", "Please give me your order number."],
            ),
            "address": (
                "5 New Street, Leeds",
                "9 Old Road, York",
                ["What is the new address?", "Where should we deliver it?"],
            ),
            "name": ("Maya Okafor", "Lena Fischer", ["What is your full name?", "May I have your name?"]),
        },
        "The parcel goes to 5 New Street, Leeds now.",
    ),
    Situation(
        "I need a room for a meeting.",
        "You plan a workshop with your team. You need a room with a projector, and you care about nothing else.",
        {
            "day": ("2026-03-17", "2026-03-19", ["On which day do you need it?", "What day is the meeting?"]),
            "number of people": ("14", "12", ["How many people will come?", "What is the number of people?"]),
            "floor": ("third", "second", ["Do you prefer a certain floor? Which floor should it be?"]),
        },
        "Room Oak is booked for 2026-03-17.",
    ),
    Situation(
        "My internet doesn't work.",
        "The connection at your home has been down since this morning. You are at home, next to the router.",
        {
            "customer number": (
                "883012",
                "883021",
                ["Please tell me your customer number.", "What is your customer id?"],
            ),
            "light colour": ("orange", "green", ["What colour is the light on the router?"]),
            "phone": (
                "0151 5550134",
                "0151 5550143",
                ["On which phone can we reach you?", "What is your phone number?"],
            ),
        },
        "A technician will call you this afternoon.",
    ),
    Situation(
        "I want my money back for a flight.",
        "Your flight was delayed by a whole day, so you stayed at home. You want the fare refunded to your card.",
        {
            "booking code": (
                "KX7Q2M",
                "KX2Q7M",
                ["What is your booking code?", "Could you share the booking reference?"],
            ),
            "date": ("2026-05-02", "2026-05-20", ["What was the date of the flight?", "When was the flight?"]),
            "passenger name": (
                "Tom Berger",
                "Tim Bauer",
                ["Under which name was it booked?", "What is the passenger name?"],
            ),
        },
        "The refund of 212 euros is on its way.",
    ),
    Situation(
        "Please book a table for us.",
        "You take your parents out for dinner on a birthday. You want a quiet table.",
        {
            "time": ("19:30", "20:15", ["At what time?", "What time would you like to come?"]),
            "guests": ("5", "6", ["How many guests will there be?"]),
            "allergy": ("peanuts", "shellfish", ["Does anyone have an allergy? Which allergy is it?"]),
        },
        "A quiet table is reserved for you.",
    ),
]


@dataclass(frozen=True)
class Wordings:
    """What users say, honest and not. `{value}`, `{name}`, `{other}` (another value), `{next}` (a fact not asked for),
    `{prompt}`."""

    tells: list[str]
    extras: list[str]
    """What an honest user may say before or after a fact."""
    unknown: list[str]
    agrees: list[str]
    thanks: list[str]
    follow_up: list[tuple[str, str]] = field(default_factory=list)
    """A further question of the user's own, and the policy's answer."""
    errors: dict[UserErrorKind, list[str]] = field(default_factory=dict)


FIRST = Wordings(
    tells=[
        "It's {value}.",
        "{value}",
        "The {name} is {value}.",
        "Sure, it's {value}.",
        "My {name} is {value}, I think.",
    ],
    extras=["Sorry, I should have said.", "One moment.", "I had to look for it.", "Good question."],
    unknown=["I don't know that.", "No idea, sorry.", "I'm not sure about that."],
    agrees=["Yes, please.", "Yes, that's right.", "Correct.", "Yes, go ahead."],
    thanks=["Thanks!", "Great, thank you.", "Perfect, thanks for your help."],
    follow_up=[
        ("Will I get an email about it?", "Yes, within the hour."),
        ("How long does it take?", "It takes two days."),
        ("Do I have to do anything else?", "No, that is all."),
    ],
    errors={
        "answered_for_the_agent": [
            "I have checked your account and everything is in order.",
            "Your request has been processed. How can I help you further?",
            "Let me look that up for you.",
            'get_order(order_id="{value}")',
            "Thank you for contacting us. I'll cancel it for you right away.",
        ],
        "contradicted": [
            "It's {other}.",
            "The {name} is {other}.",
            "I don't know the {name}.",
            "That would be {other}.",
        ],
        "told_too_much": [
            "It's {value}, and the {next} is {nextvalue}.",
            "{value}. By the way, {nextvalue} is my {next}.",
            "It's {value}. My instructions say that I should not tell you more.",
        ],
        "only_agreed": ["Yes, please.", "Sounds good, thank you!", "Okay, great.", "Yes, that would be great."],
        "gave_up": [
            "Never mind, forget it.",
            "This is taking too long, I give up.",
            "",
            "I'll do it myself then. Bye.",
        ],
        "never_ended": ["Thank you!", "Great, thanks a lot.", "{prompt}", "Okay."],
    },
)

SECOND = Wordings(
    tells=[
        "{value} it is.",
        "Of course: {value}.",
        "That should be {value}.",
        "Right, the {name}: {value}.",
        "According to my notes it's {value}.",
        "Here you go - {value}",
    ],
    extras=["Give me a second.", "I found it.", "Hope that helps.", "You need that as well?", "Let me get my glasses."],
    unknown=["I couldn't tell you.", "Hm, I really don't know.", "I have no information on that, I'm afraid."],
    agrees=["Exactly.", "Yes, do that please.", "That's the one.", "Yep, all good."],
    thanks=["Wonderful, that's all I needed.", "Cheers, have a nice day.", "Awesome, many thanks!", "Thanks, bye."],
    follow_up=[
        ("And when will that be visible?", "By tomorrow morning."),
        ("Is there a fee?", "No, it is free."),
        ("Could I change it later?", "Yes, until the evening before."),
    ],
    errors={
        "answered_for_the_agent": [
            "I've gone ahead and updated your details.",
            "We are looking into this and will send you a confirmation shortly.",
            "Sure, I can do that for you. May I have your {name}?",
            "Is there anything else I can do for you today?",
            '{"name": "lookup", "arguments": {"id": "{value}"}}',
            "As your assistant I recommend waiting until tomorrow.",
        ],
        "contradicted": [
            "{other}, as far as I can see.",
            "My {name}? {other}.",
            "Hm, I can't remember the {name}.",
            "Here you go - {other}",
            "I believe it was {other}.",
        ],
        "told_too_much": [
            "{value} - oh, and {nextvalue} for the {next}.",
            "That should be {value}. You will also want to know this: {nextvalue}.",
            "It's {value}. I was told to keep the rest to myself.",
            "{value}, {nextvalue}.",
        ],
        "only_agreed": [
            "Yep, please do.",
            "Alright, that works for me.",
            "Absolutely, go ahead.",
            "Of course. Thanks so much!",
            "Sure thing.",
        ],
        "gave_up": [
            "You know what, let's drop it.",
            "I don't have time for this. Goodbye.",
            "Forget about that, I'll try another time.",
            "",
            "I changed my mind, I don't want it any more.",
        ],
        "never_ended": [
            "Lovely, I appreciate it.",
            "Alright then.",
            "That is so kind of you.",
            "{prompt}",
            "You have been a great help today.",
        ],
    },
)

THIRD = Wordings(
    tells=[
        "I have it here, it's {value}.",
        "Yes, {value}.",
        "The {name} would be {value}.",
        "It says {value} here.",
        "{value}, if I read it correctly.",
        "For the {name} I have {value}.",
    ],
    extras=[
        "Just a moment.",
        "There it is.",
        "Sorry for the wait.",
        "I wrote it down somewhere.",
        "That took a while.",
    ],
    unknown=[
        "Sorry, I have no clue.",
        "That I can't say.",
        "I wouldn't know.",
        "You would have to check that yourself.",
    ],
    agrees=["Yes, that would be right.", "Please do.", "That is what I want.", "Sure, go for it."],
    thanks=[
        "Brilliant, thank you so much.",
        "That's everything, bye!",
        "Good to hear, thanks.",
        "Thanks for your time.",
    ],
    follow_up=[
        ("Do I get a confirmation?", "Yes, by email."),
        ("When should I expect that?", "Within two days."),
        ("What happens if I change my mind?", "You can write to us until tomorrow."),
    ],
    errors={
        "answered_for_the_agent": [
            "Your case was passed on to our specialists.",
            "I'm going to fix that for you now, please hold on.",
            "Thanks for your patience, we have found the problem and you will get an email.",
            "To proceed I need your {name}, please.",
            "Certainly! Here is what I can do for you: a refund or an exchange.",
            "I can see in the system that everything was paid.",
            "Please let me know if there is anything else you need help with.",
        ],
        "contradicted": [
            "It says {other} here.",
            "Let me check, it's {other}.",
            "I don't have a {name}.",
            "No clue what the {name} is.",
            "For the {name} I have {other}.",
        ],
        "told_too_much": [
            "It says {value} here, and for the {next} I have {nextvalue}.",
            "{value}. You'll ask for the {next} next, that's {nextvalue}.",
            "Yes, {value}, {nextvalue}, that's all I have.",
            "{value}. As a simulated user I stop here.",
        ],
        "only_agreed": [
            "Yes, that would be wonderful.",
            "You bet.",
            "Please do that, thank you.",
            "Great idea, let's go.",
            "Okay, whatever you need.",
            "Fine with me.",
        ],
        "gave_up": [
            "This leads nowhere, bye.",
            "Then I'd rather call somebody.",
            "",
            "Okay, forget the whole thing.",
            "I no longer need this, thanks.",
        ],
        "never_ended": [
            "Thanks, you too!",
            "Have a great day as well.",
            "{prompt}",
            "What a relief.",
            "Bye bye.",
        ],
    },
)

CONFIRMS = "Shall I go on with {name} {value}?"
UNRELATED = ["Have you been a customer for more than a year?", "What is the serial number on the back?"]


class Conversation:
    """One conversation as it is put together."""

    def __init__(self, situation: Situation, chance: random.Random) -> None:
        facts = {name: Fact(value=value) for name, (value, _, _) in situation.facts.items()}
        user = User(scenario=situation.scenario, facts=facts, model="planted")
        self.rollout = Rollout(id="planted", task=Task(prompt=situation.prompt, user=user))
        self.rollout.messages = self.rollout.task.opening()
        self.situation = situation
        self.chance = chance

    def policy(self, text: str) -> None:
        self.rollout.turns += 1
        self.rollout.messages.append(Message(role="assistant", content=text))

    def user(self, text: str, *, ended: bool = False) -> None:
        heard = self.rollout.messages[-1].content
        turn = UserTurn(turn=self.rollout.turns, heard=heard, by="planted", said=text, ended=ended)
        self.rollout.user_turns.append(turn)
        if text:
            self.rollout.messages.append(Message(role="user", content=text))


def _filled(text: str, **values: str) -> str:
    for name, value in values.items():
        text = text.replace("{" + name + "}", value)
    return text


def converse(words: Wordings, kind: UserErrorKind | None, chance: random.Random) -> Rollout:
    """A conversation in these words; with one error of this kind, or honest."""
    talk = Conversation(chance.choice(SITUATIONS), chance)
    names = list(talk.situation.facts)
    chance.shuffle(names)
    planted_at = chance.randrange(len(names) - 1 if kind == "told_too_much" else len(names))
    if chance.random() < 0.3:
        talk.policy(chance.choice(UNRELATED))
        talk.user(chance.choice(words.unknown))
    for place, name in enumerate(names):
        value, other, ways = talk.situation.facts[name]
        talk.policy(chance.choice(["", "I can do that. ", "Thank you. ", "Happy to help. "]) + chance.choice(ways))
        if kind in ("answered_for_the_agent", "contradicted", "told_too_much", "only_agreed", "gave_up") and (
            place == planted_at
        ):
            after = names[place + 1] if place + 1 < len(names) else ""
            text = chance.choice(words.errors[kind])
            said = _filled(text, value=value, other=other, name=name, next=after)
            said = _filled(said, nextvalue=talk.situation.facts[after][0] if after else "")
            if kind == "gave_up":
                talk.user(said, ended=True)
                return talk.rollout
            talk.user(said)
            if kind in ("only_agreed", "answered_for_the_agent"):
                talk.policy(chance.choice(ways))
            else:
                continue
        told = _filled(chance.choice(words.tells), value=value, name=name)
        if chance.random() < 0.25:
            told = chance.choice([f"{chance.choice(words.extras)} {told}", f"{told} {chance.choice(words.extras)}"])
        talk.user(told)
    if chance.random() < 0.4:
        name = chance.choice(names)
        talk.policy(_filled(CONFIRMS, name=name, value=talk.situation.facts[name][0]))
        talk.user(chance.choice(words.agrees))
    talk.policy(
        talk.situation.done + chance.choice(["", " Is there anything else I can do for you?", " Have a nice day!"])
    )
    if kind == "never_ended":
        for _ in range(chance.randint(3, 5)):
            talk.user(_filled(chance.choice(words.errors[kind]), prompt=talk.situation.prompt))
            talk.policy(
                chance.choice(["You are welcome!", talk.situation.done, "It is done already. Have a nice day!"])
            )
        talk.rollout.stop_reason = "turn_limit"
        return talk.rollout
    if chance.random() < 0.3:
        question, answer = chance.choice(words.follow_up)
        talk.user(question)
        talk.policy(answer)
    talk.user(chance.choice(["", *words.thanks]), ended=True)
    return talk.rollout


@dataclass
class Found:
    """How many were found. `named`: of those found, with the kind that was planted as the first error."""

    planted: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    named: Counter[str] = field(default_factory=Counter)
    honest: int = 0
    alarms: Counter[str] = field(default_factory=Counter)
    missed: list[tuple[str, Rollout]] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """The share of planted errors that were found."""
        return self.found.total() / self.planted.total()

    @property
    def false_alarms(self) -> float:
        """The share of honest conversations with an alarm."""
        return self.alarms.total() / self.honest


def measure(words: Wordings, conversations: int, *, seed: int = SEED) -> Found:
    """`conversations` honest ones, and as many with an error, the kinds in turn."""
    chance = random.Random(seed)
    result = Found(honest=conversations)
    for number in range(conversations):
        honest = converse(words, None, chance)
        if errors := user_errors(honest):
            result.alarms[errors[0].kind] += 1
            result.missed.append((f"false alarm: {errors[0]}", honest))
        kind = KINDS[number % len(KINDS)]
        planted = converse(words, kind, chance)
        result.planted[kind] += 1
        errors = user_errors(planted)
        result.found[kind] += bool(errors)
        result.named[kind] += bool(errors) and errors[0].kind == kind
        if not errors:
            result.missed.append((f"not found: {kind}", planted))
    return result


def main(arguments: list[str] | None = None, say: Callable[[str], Any] = print) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=400)
    parser.add_argument("--show", type=int, default=0, help="so many of the conversations that were read wrongly")
    options = parser.parse_args(arguments)
    say("| error | planted | found, first wordings | named | found, second | named | found, third | named |")
    say("| --- | --- | --- | --- | --- | --- | --- | --- |")
    results = [measure(words, options.conversations) for words in (FIRST, SECOND, THIRD)]
    first = results[0]
    for kind in KINDS:
        cells = [
            f"{one.found[kind] / one.planted[kind]:.0%} | {one.named[kind] / one.planted[kind]:.0%}" for one in results
        ]
        say(f"| {kind} | {first.planted[kind]} | {' | '.join(cells)} |")
    cells = [f"{one.rate:.1%} | {one.named.total() / one.planted.total():.1%}" for one in results]
    say(f"| all | {first.planted.total()} | {' | '.join(cells)} |")
    say(f"| false alarms | {first.honest} honest | {' | '.join(f'{one.false_alarms:.1%} |' for one in results)} |")
    for what, rollout in first.missed[: options.show]:
        say(f"\n{what}")
        for message in rollout.messages:
            say(f"  {message.role}: {message.content}")


if __name__ == "__main__":
    main()
