"""Realistic values for properties, by their names and formats, and strings that match a regular expression."""

from __future__ import annotations

import base64
import functools
import re
import threading
from collections.abc import Callable
from datetime import date, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

_local = threading.local()


class Realistic:
    """Values that all come from `chance` and from the time `now`."""

    def __init__(self, chance: Random, now: datetime) -> None:
        self.chance = chance
        self.now = now

    @property
    def fake(self) -> Any:
        """Faker, drawing from `chance`. One of each thread, so that worlds in other threads draw from their own."""
        fake = getattr(_local, "fake", None)
        if fake is None:
            from faker.factory import Factory

            fake = _local.fake = Factory.create("en_US")
        fake.random = self.chance
        return fake

    def text(self, name: str, owner: str) -> str:
        """A string for the property `name` of an `owner`, such as `title` of an `issue`."""
        words = words_of(name)
        for pattern, make in _TEXTS:
            if pattern.search(" ".join(words)):
                return str(make(self))
        if words[-1:] == ["name"]:
            return self.name_of(" ".join(words[:-1]) or owner)
        return " ".join(self.fake.words(2))

    def name_of(self, owner: str) -> str:
        """A name of something: people and firms have others than things."""
        for pattern, make in _OWNERS:
            if pattern.search(" ".join(words_of(owner))):
                return str(make(self))
        return f"{self.chance.choice(_ADJECTIVES)} {self.chance.choice(_NOUNS)}"

    def formatted(self, format_name: str, name: str) -> str | None:
        """A string of a format of JSON Schema or OpenAPI, `None` for a format without a rule here."""
        make = _FORMATS.get(format_name)
        return None if make is None else str(make(self, name))

    def number(self, name: str, low: float, high: float, whole: bool) -> float:
        """A number for the property `name`, within its bounds where they leave room."""
        words = " ".join(words_of(name))
        for pattern, usual_low, usual_high in _NUMBERS:
            if pattern.search(words):
                narrow = max(low, usual_low), min(high, usual_high)
                if narrow[0] <= narrow[1]:
                    low, high = narrow
                break
        if whole:
            return self.chance.randint(int(-(-low // 1)), int(high // 1))
        return round(self.chance.uniform(low, high), 2)

    def moment(self, name: str) -> datetime:
        """A time: ahead of `now` for what is due or expires, else within the year before it."""
        minutes = self.chance.randrange(1, 60 * 24 * 300)
        ahead = _AHEAD.search(" ".join(words_of(name))) is not None
        return self.now + timedelta(minutes=minutes // 5) if ahead else self.now - timedelta(minutes=minutes)


def has_format(text: str, format_name: Any) -> bool:
    """Whether a text is of a format, as far as it can be checked."""
    try:
        if format_name == "date":
            date.fromisoformat(text)
        elif format_name == "date-time":
            datetime.fromisoformat(text)
        elif format_name == "uuid":
            UUID(text)
    except ValueError:
        return False
    return format_name not in _WRITTEN or _WRITTEN[format_name].fullmatch(text) is not None


_WRITTEN = {
    "email": re.compile(r"[^@\s]+@[^@\s]+"),
    "uri": re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:\S+"),
}


def stamp(moment: datetime) -> str:
    """A time as RFC 3339 writes it, in whole seconds of UTC."""
    return moment.replace(microsecond=0, tzinfo=None).isoformat() + "Z"


def words_of(name: str) -> list[str]:
    """`customerId`, `customer-id` and `CUSTOMER_ID` are `["customer", "id"]`, and `$` is `["$"]`."""
    return list(_words_of(name))


@functools.lru_cache(maxsize=20_000)
def _words_of(name: str) -> tuple[str, ...]:
    spaced = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1 \2", re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name))
    return tuple(word.lower() for word in re.split(r"[\W_]+", spaced) if word) or (name,) * bool(name)


_AHEAD = re.compile(r"\b(due|expires?|expiry|expiration|until|deadline|next|scheduled?|eta|end|ends)\b")

_ADJECTIVES = (
    "Amber", "Brisk", "Calm", "Clear", "Coastal", "Copper", "Crimson", "Deep", "Early", "Fine", "Golden", "Green",
    "High", "Lunar", "Mellow", "Modern", "Northern", "Open", "Plain", "Prime", "Quiet", "Rapid", "Silver", "Solid",
    "Southern", "Steady", "Sunny", "Swift", "Urban", "Vivid",
)  # fmt: skip
_NOUNS = (
    "Anchor", "Arrow", "Basin", "Beacon", "Bridge", "Canyon", "Cedar", "Comet", "Delta", "Ember", "Falcon", "Field",
    "Forest", "Garden", "Harbor", "Horizon", "Island", "Lantern", "Maple", "Meadow", "Orchard", "Pine", "Prairie",
    "Ridge", "River", "Signal", "Summit", "Tide", "Valley", "Willow",
)  # fmt: skip

_OWNERS: tuple[tuple[re.Pattern[str], Callable[[Realistic], Any]], ...] = tuple(
    (re.compile(pattern), make)
    for pattern, make in (
        (r"\b(user|person|people|customer|contact|member|employee|owner|author|assignee|patient|client|full)\b",
         lambda r: r.fake.name()),
        (r"\b(company|organi[sz]ation|org|account|vendor|supplier|tenant|merchant|business)\b",
         lambda r: r.fake.company()),
        (r"\b(pet|dog|cat|animal)\b", lambda r: r.fake.first_name()),
        (r"\b(city|region|site)\b", lambda r: r.fake.city()),
        (r"\b(country)\b", lambda r: r.fake.country()),
        (r"\b(file|attachment|document|asset)\b", lambda r: r.fake.file_name()),
        (r"\b(tag|label|topic|category|branch|key)\b", lambda r: r.fake.slug()),
        (r"\b(user|login|display)\b", lambda r: r.fake.user_name()),
    )
)  # fmt: skip

_TEXTS: tuple[tuple[re.Pattern[str], Callable[[Realistic], Any]], ...] = tuple(
    (re.compile(pattern), make)
    for pattern, make in (
        (r"\be ?mail( address)?$", lambda r: r.fake.ascii_safe_email()),
        (r"\b(first|given) ?name$|\bforename$", lambda r: r.fake.first_name()),
        (r"\b(last|family|sur) ?name$", lambda r: r.fake.last_name()),
        (r"\b(user ?name|login|login name|handle|nick(name)?|screen name)$", lambda r: r.fake.user_name()),
        (r"\b(full name|author|artist|director|contact|recipient)$", lambda r: r.fake.name()),
        (r"\b(person|guest|patient|attendee|participant|passenger|visitor|student|teacher|doctor|nurse|driver"
         r"|employee|customer|client)$|\b(booked|reserved|requested|approved|assigned|reported) (by|for|to)$",
         lambda r: r.fake.name()),
        (r"\b(company|organi[sz]ation)( name)?$", lambda r: r.fake.company()),
        (r"\b(phone|mobile|fax|telephone)( number)?$", lambda r: f"+1555{r.chance.randrange(10**7):07d}"),
        (r"\b(street|address)( ?line)?( 1)?$|\baddress1$", lambda r: r.fake.street_address()),
        (r"\bcity$|\btown$", lambda r: r.fake.city()),
        (r"\b(state|province|region)$", lambda r: r.fake.state_abbr()),
        (r"\b(zip|postal|postcode)( code)?$", lambda r: r.fake.postcode()),
        (r"\bcountry code$", lambda r: r.fake.country_code()),
        (r"\bcountry$", lambda r: r.fake.country()),
        (r"\bcurrency( code)?$", lambda r: r.chance.choice(("USD", "EUR", "GBP"))),
        (r"\b(locale|language|lang)( code)?$", lambda r: r.chance.choice(("en", "de", "fr", "es"))),
        (r"\btime ?zone$|\btz$", lambda r: r.chance.choice(("UTC", "Europe/Berlin", "America/New_York"))),
        (r"\b(url|uri|href|link|website|homepage|web ?page)$", lambda r: _url(r)),
        (r"\b(ip|ip address)$", lambda r: r.fake.ipv4_private()),
        (r"\bhost( ?name)?$|\bdomain$", lambda r: r.fake.domain_name()),
        (r"\b(sha|commit|oid|digest|etag)$", lambda r: f"{r.chance.getrandbits(160):040x}"),
        (r"\b(hash|checksum|fingerprint|md5)$", lambda r: f"{r.chance.getrandbits(128):032x}"),
        (r"\b(password|secret|token|key)$", lambda r: f"{r.chance.getrandbits(96):024x}"),
        (r"\b(slug|branch|ref)$", lambda r: r.fake.slug()),
        (r"\bcolou?r$", lambda r: f"{r.chance.randrange(2**24):06x}"),
        (r"\b(title|subject|headline|summary)$", lambda r: r.fake.sentence(4).rstrip(".")),
        (r"\b(description|body|comment|note|notes|message|content|text|bio|about|reason|details)$",
         lambda r: r.fake.sentence(9)),
        (r"\b(sku|code|reference)$", lambda r: f"{r.fake.lexify('???').upper()}-{r.chance.randrange(10**4):04d}"),
        (r"\bversion$", lambda r: f"{r.chance.randint(0, 4)}.{r.chance.randint(0, 20)}.{r.chance.randint(0, 9)}"),
        (r"\b(file ?name|filename)$", lambda r: r.fake.file_name()),
        (r"\bpath$", lambda r: r.fake.file_path(depth=2).lstrip("/")),
        (r"\b(mime|media|content) ?type$", lambda r: r.chance.choice(("text/plain", "application/json", "image/png"))),
        (r"\b(brand|make|manufacturer)$", lambda r: r.fake.company()),
        (r"\bbreed$", lambda r: r.chance.choice(("terrier", "spaniel", "siamese", "tabby"))),
        (r"\b(created|updated|modified|deleted|closed|started|finished)( at| on| time| date)?$|\b(time|date|at)$",
         lambda r: stamp(r.moment(""))),
        (r"\buuid$|\bguid$", lambda r: _uuid(r)),
        (r"\bid$", lambda r: f"{r.chance.getrandbits(48):012x}"),
        (r"\b(job|position|role) ?(title)?$", lambda r: r.fake.job().split(",")[0]),
        (r"\b(product|item)$", lambda r: r.name_of("thing")),
    )
)  # fmt: skip

_PLAIN_RANGES = ("a-z", "0-9", "A-Z")

_NUMBERS: tuple[tuple[re.Pattern[str], float, float], ...] = tuple(
    (re.compile(pattern), low, high)
    for pattern, low, high in (
        (r"\b(price|amount|total|cost|fee|balance|subtotal)\b", 1, 500),
        (r"\b(quantity|qty)\b", 1, 12),
        (r"\b(stock|inventory)\b", 0, 200),
        (r"\bage\b", 1, 80),
        (r"\byear\b", 2015, 2026),
        (r"\b(percent|percentage|progress|score)\b", 0, 100),
        (r"\brate|ratio\b", 0, 1),
        (r"\brating|stars?\b", 1, 5),
        (r"\b(lat|latitude)\b", -60, 70),
        (r"\b(lng|lon|longitude)\b", -180, 180),
        (r"\bport\b", 1024, 65535),
        (r"\b(size|bytes)\b", 100, 1_000_000),
        (r"\b(duration|seconds|minutes)\b", 1, 3600),
        (r"\b(timestamp|epoch|created|updated|at)$", 1_740_000_000, 1_767_000_000),
        (r"\bcount(er)?$|^num\b", 0, 40),
        (r"\bid$", 1, 100_000),
    )
)  # fmt: skip


def _url(r: Realistic) -> str:
    # Not Faker's: an API may have twenty in each row, and its own take a hundred times as long.
    host, page = (f"{r.chance.choice(_ADJECTIVES)}-{r.chance.choice(_NOUNS)}".lower() for _ in range(2))
    return f"https://{host}.example.com/{page}-{r.chance.randrange(1000)}"


def _uuid(r: Realistic) -> str:
    return str(UUID(int=r.chance.getrandbits(128), version=4))


_FORMATS: dict[str, Callable[[Realistic, str], Any]] = {
    **dict.fromkeys(("date-time", "datetime"), lambda r, name: stamp(r.moment(name))),
    "date": lambda r, name: r.moment(name).date().isoformat(),
    "time": lambda r, name: r.moment(name).time().replace(microsecond=0).isoformat() + "Z",
    "duration": lambda r, _: f"P{r.chance.randint(1, 30)}D",
    **dict.fromkeys(("email", "idn-email"), lambda r, _: r.fake.ascii_safe_email()),
    "uuid": lambda r, _: _uuid(r),
    **dict.fromkeys(("uri", "url", "iri", "uri-reference", "uri-template"), lambda r, _: _url(r)),
    **dict.fromkeys(("hostname", "idn-hostname"), lambda r, _: r.fake.domain_name()),
    **dict.fromkeys(("ipv4", "ip"), lambda r, _: r.fake.ipv4_private()),
    "ipv6": lambda r, _: r.fake.ipv6(),
    "byte": lambda r, _: base64.b64encode(r.fake.sentence(3).encode()).decode(),
    "binary": lambda r, _: r.fake.sentence(6),
    "password": lambda r, _: f"{r.chance.getrandbits(64):016x}",
    "phone": lambda r, _: f"+1555{r.chance.randrange(10**7):07d}",
    "int64": lambda r, _: str(r.chance.randrange(1, 10**6)),
    "decimal": lambda r, _: f"{r.chance.uniform(1, 500):.2f}",
    "json-pointer": lambda r, _: "/" + r.fake.slug(),
    "regex": lambda r, _: f"[{r.chance.choice(_PLAIN_RANGES)}]+",
}


# ---------------------------------------------------------------------------------------------------------------------
# Strings that match a regular expression, made along its parts until one is found to match. What JSON documents write
# is read here: literals, sets, groups, alternatives, repeats. Anchors and what looks around are passed over, and hold
# by chance or not at all.

_MOST_REPEATS = 8
_TRIES = 30
_MOST_LENGTH = 256
_PLAIN = "abcdefghijklmnopqrstuvwxyz0123456789"
_PRINTABLE = "".join(chr(code) for code in range(32, 127))
_CATEGORIES = {"d": "0123456789", "w": _PLAIN, "s": " ", "D": "abcdefghijklmnopqrstuvwxyz", "W": " -", "S": _PLAIN}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}
_PLACES = "bBAZz"
"""Escapes that match a place, and no character."""
_HEX_DIGITS = {"x": 2, "u": 4}
_REPEAT = re.compile(r"\{(\d*)(,?)(\d*)\}")
_GROUP = re.compile(r"\?(?:P?<\w+>|[aiLmsux-]*:|>)?")
_AROUND = re.compile(r"\?<?[=!]")
_NAMED_GROUP = re.compile(r"\(\?<(?![=!])")
_FLAGS = re.compile(r"\?[aiLmsux]+\)")

Part = Callable[[Random, int], str]
"""A part of a pattern: makes a string that it matches, of unbounded repeats at most so many."""


class _NotRead(Exception):
    """The pattern has a part of another kind."""


def matching(pattern: str, chance: Random, *, low: int = 0, high: int | None = None) -> str | None:
    """A string that `pattern` is found in, of `low` to `high` characters; `None` where none was found."""
    # What JavaScript writes in another way.
    written = _NAMED_GROUP.sub("(?P<", pattern.replace(r"\p{L}", "a-zA-Z").replace(r"\p{N}", "0-9"))
    try:
        compiled = re.compile(written)
        part = _Reader(written).alternatives()
    except (re.error, RecursionError, OverflowError, _NotRead):
        return None
    for _ in range(_TRIES):
        made = part(chance, max(_MOST_REPEATS, low))
        if len(made) >= low and (high is None or len(made) <= high) and compiled.search(made):
            return made
    for most in range(min(low if high is None else high, _MOST_LENGTH) + 1):
        made = part(_Longest(chance.random()), most)
        if len(made) >= low and (high is None or len(made) <= high) and compiled.search(made):
            return made
        if high is not None and len(made) > high:
            break
    return None


class _Longest(Random):
    """Repeats as often as may be: the more repeats are allowed, the longer is what is made."""

    def randint(self, a: int, b: int) -> int:  # noqa: ARG002 - the least does not count
        return b


class _Reader:
    """Reads a pattern that Python has found valid, from left to right."""

    def __init__(self, pattern: str) -> None:
        self._left = pattern

    def _take(self, count: int = 1) -> str:
        taken, self._left = self._left[:count], self._left[count:]
        return taken

    def alternatives(self) -> Part:
        """Up to the end of the group, which stays."""
        branches: list[list[Part]] = [[]]
        while self._left and self._left[0] != ")":
            if self._left[0] == "|":
                self._take()
                branches.append([])
            else:
                branches[-1].append(self._repeated(self._one()))
        joined = [_joined(parts) for parts in branches]
        return joined[0] if len(joined) == 1 else lambda chance, most: chance.choice(joined)(chance, most)

    def _one(self) -> Part:
        first = self._take()
        if first == "(":
            return self._group()
        if first == "[":
            return _any_of(self._set())
        if first == ".":
            return _any_of(_PLAIN)
        if first in "^$":
            return _nothing
        if first == "\\":
            if self._left[0] in _PLACES:
                self._take()
                return _nothing
            return _any_of(self._escaped())
        return _any_of(first)

    def _group(self) -> Part:
        if flags := _FLAGS.match(self._left):
            self._take(flags.end())
            return _nothing
        around = _AROUND.match(self._left)
        begun = around or _GROUP.match(self._left)
        self._take(begun.end() if begun else 0)
        if begun and begun[0] == "?":
            raise _NotRead
        inner = self.alternatives()
        self._take()
        return _nothing if around else inner

    def _escaped(self) -> str:
        """What the character after a backslash matches."""
        kind = self._take()
        if kind in _CATEGORIES:
            return _CATEGORIES[kind]
        if kind in _CONTROLS:
            return _CONTROLS[kind]
        if kind in _HEX_DIGITS:
            return chr(int(self._take(_HEX_DIGITS[kind]), 16))
        if kind.isdigit():
            raise _NotRead  # a group once more
        return kind

    def _set(self) -> str:
        """After its bracket."""
        negated = self._left[0] == "^"
        self._take(negated)
        found: list[str] = []
        while not found or self._left[0] != "]":
            if self._left[0] == "\\":
                self._take()
                low = self._escaped() if self._left[0] != "b" else self._take().replace("b", "\b")
            else:
                low = self._take()
            if self._left[0] == "-" and self._left[1] != "]" and len(low) == 1:
                self._take()
                high = self._take()
                high = self._escaped() if high == "\\" else high
                found += [chr(point) for point in range(ord(low), min(ord(high), ord(low) + 200) + 1)]
            else:
                found += low
        self._take()
        if negated:
            return "".join(one for one in _PRINTABLE if one not in found and one not in "<>\"'\\") or " "
        return "".join(sorted(set(found) & set(_PRINTABLE)) or found)

    def _repeated(self, part: Part) -> Part:
        """With the repeats that follow it."""
        written = _REPEAT.match(self._left)
        if self._left[:1] in ("*", "+", "?"):
            low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[self._take()]
        elif written and (written[1] or written[3]):
            self._take(written.end())
            low = int(written[1] or 0)
            high = (int(written[3]) if written[3] else None) if written[2] else low
        else:
            return part
        if self._left[:1] in ("?", "+"):
            self._take()  # as few as can be, or as many: the same strings match

        def several(chance: Random, most: int) -> str:
            times = chance.randint(low, low + most if high is None else min(high, low + most))
            return "".join([part(chance, most) for _ in range(times)])

        return several


def _nothing(_chance: Random, _most: int) -> str:
    return ""


def _any_of(characters: str) -> Part:
    return lambda chance, _most: chance.choice(characters) if len(characters) > 1 else characters


def _joined(parts: list[Part]) -> Part:
    return lambda chance, most: "".join([part(chance, most) for part in parts])
