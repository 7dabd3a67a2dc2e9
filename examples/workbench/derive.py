"""Demonstrations, derived: what to look up before the gold calls of a task, found by trying.

The gold calls name ids and addresses that a request does not. A rule is a lookup whose arguments are made from the
request: `search_events(query=<name>, time_min=<now>)`. A template gets the shortest rule that finds what the gold calls
of its training tasks need, or whose answer is empty exactly where the gold calls are missing. Nothing is written by
hand for a template, and tasks that are not trained on are not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from itertools import permutations, product
from pathlib import Path
from typing import Any

from clone import DIRECTORY, Call, Query, addresses
from gold import Replay
from office import CHOICES, NOW, Office

import sdk
from mcp_bridge import Tool

Form = tuple[str, ...]
"""How an argument is made from a request: `("text", "subject")`, `("day", "0", " 00:00:00")`."""
Rule = tuple[str, tuple[tuple[str, Form], ...]]
"""The name of a tool that reads, and its arguments."""

_MONTHS = ["january", "february", "march", "april", "may", "june", "july", "august", "september", "october"]
_MONTHS += ["november", "december"]
_DAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
_DATES = re.compile(
    rf"(?P<iso>\d{{4}}-\d\d-\d\d)|(?P<month>{'|'.join(_MONTHS)}) (?P<day>\d+)|"
    rf"(?P<weekday>{'|'.join(_DAYS)})|(?P<tomorrow>tomorrow)",
    re.IGNORECASE,
)
_SPANS = re.compile(r"(?P<count>\d+) (?P<unit>day|week)s|(?P<word>last week|fortnight)", re.IGNORECASE)
_START, _END = " 00:00:00", " 23:59:59"
_EACH_ARGUMENT = 20
"""Characters of results that an argument has to save, to be worth writing."""
_SOURCES = ("direct", "referral", "search engine", "social media")
_DONE, _NOTHING = "Done.", "There was nothing to do."


@dataclass(frozen=True)
class Clues:
    """What a request gives to look things up with."""

    query: Query
    folder: str

    @cached_property
    def people(self) -> dict[str, str]:
        """First name -> address, of everybody whom the request names."""
        words = {*re.findall(r"[a-z]+", self.query.text.lower())}
        known = {address.partition(".")[0]: address for address in addresses(self.folder)}
        return {name: address for name, address in known.items() if name in words}

    @cached_property
    def texts(self) -> dict[str, str]:
        """What the request has in the places of its template: `{"subject": "Update on the gala"}`."""
        seen: set[str] = set()
        pattern = ""
        for place, part in enumerate(re.split(r"\{(\w+)\}", self.query.wording)):
            if place % 2 == 0:
                pattern += re.escape(part)
            else:
                pattern += f"(?P={part})" if part in seen else f"(?P<{part}>.+?)"
                seen.add(part)
        found = re.fullmatch(pattern, self.query.text, re.DOTALL)
        return found.groupdict() if found else {}

    @cached_property
    def dates(self) -> list[datetime]:
        """The days that the request names, in its order; a weekday is the last, the one before, and the next."""
        days: list[datetime] = []
        for found in _DATES.finditer(self.query.text):
            if found["iso"]:
                days.append(datetime.fromisoformat(found["iso"]))
            elif found["month"]:
                days.append(datetime(NOW.year, _MONTHS.index(found["month"].lower()) + 1, int(found["day"])))
            elif found["tomorrow"]:
                days.append(NOW + timedelta(days=1))
            else:
                back = (NOW.weekday() - _DAYS.index(found["weekday"].lower()) - 1) % 7 + 1
                days += [NOW - timedelta(days=one) for one in (back, back + 7, back - 7)]
        return days

    @cached_property
    def spans(self) -> list[datetime]:
        """The days with which the spans begin that the request names, such as `the last 5 days`."""
        return [NOW - timedelta(days=_days_of(found)) for found in _SPANS.finditer(self.query.text)]

    def values(self, form: Form) -> list[str] | None:
        """The values of an argument; one call is made for each. None where the request lacks what the form takes."""
        match form:
            case ("text", *slots):
                words = [self.texts.get(slot, "") for slot in slots]
                return [" ".join(words)] if all(words) else None
            case ("address", slot):
                address = self.people.get(self.texts.get(slot, "").lower())
                return [address] if address else None
            case ("day" | "since" as kind, number, time):
                days = self.dates if kind == "day" else self.spans
                return [f"{days[int(number)]:%Y-%m-%d}{time}"] if int(number) < len(days) else None
            case ("now", time):
                return [f"{NOW:%Y-%m-%d}{time}"]
            case ("choice", name):
                return self.choices(name) or None
            case ("constant", value):
                return [value]
        raise ValueError(f"{form!r} is no form")

    def choices(self, field_name: str) -> list[str]:
        """The values of a field that the request names."""
        said = self.query.text.lower().replace("-", " ")
        return [value for value in CHOICES[field_name] if value.lower() in said]

    def calls(self, rule: Rule) -> list[Call] | None:
        """The calls of a rule; None where the request lacks something."""
        name, arguments = rule
        values = [self.values(form) for _, form in arguments]
        if any(one is None for one in values):
            return None
        names = [argument for argument, _ in arguments]
        return [(name, dict(zip(names, one, strict=True))) for one in product(*(one or [] for one in values))]


def _days_of(found: re.Match[str]) -> int:
    if found["word"]:
        return 7 if found["word"].lower() == "last week" else 14
    return int(found["count"]) * (7 if found["unit"].lower() == "week" else 1)


# ---------------------------------------------------------------------------------------------------------------------
# Rules to try


def rules(tools: Sequence[Tool], clues: Sequence[Clues]) -> Iterator[Rule]:
    """All lookups that the requests of a template give arguments for: the searches of its systems, with every choice
    of arguments."""
    for tool in tools:
        properties = tool.input_schema["properties"]
        if tool.source == DIRECTORY or not tool.annotations.read_only or tool.input_schema["required"]:
            continue
        bounds = [name.removesuffix("_min") for name in properties if name.endswith("_min")]
        plain = [name for name in properties if not name.endswith(("_min", "_max", "_date"))]
        with_time = "HH" in str(properties.get("time_min", ""))
        periods = [()] + [one for bound in bounds for one in _periods(bound, clues[0], with_time=with_time)]
        for chosen in product(*([None, *_forms(name, clues)] for name in plain)):
            texts = tuple((name, form) for name, form in zip(plain, chosen, strict=True) if form is not None)
            for period in periods:
                if texts or period:
                    yield tool.name, (*texts, *period)


def _forms(argument: str, clues: Sequence[Clues]) -> Iterator[Form]:
    said = clues[0].texts
    people = [slot for slot, text in said.items() if text.lower() in clues[0].people]
    if argument in CHOICES:
        yield "choice", argument
        # One value, where every request has it: "move all tasks that are in progress to in review".
        yield from (("constant", one) for one in CHOICES[argument] if all(one in c.choices(argument) for c in clues))
    elif argument.endswith("_email"):
        yield from (("address", slot) for slot in people)
    elif argument == "query":
        yield from (("text", slot) for slot in said)
        yield from (("text", *slots) for slots in permutations(said, 2))
    elif argument != "traffic_source":
        yield from (("text", slot) for slot in said if slot not in people)


def _periods(bound: str, clues: Clues, *, with_time: bool) -> Iterator[tuple[tuple[str, Form], ...]]:
    """From a bound, to a bound, or between two of them."""
    least, most = f"{bound}_min", f"{bound}_max"
    start, end = (_START, _END) if with_time else ("", "")
    days: list[tuple[str, str]] = [("day", str(number)) for number in range(len(clues.dates))]
    spans = [("since", str(number)) for number in range(len(clues.spans))]
    yield from (((least, (*day, start)),) for day in (*days, *spans))
    yield from (((most, (*day, end)),) for day in (*days, *spans))
    yield from (((least, (*day, start)), (most, (*day, end))) for day in days)
    yield from (((least, (*day, start)), (most, ("now", start))) for day in (*days, *spans))
    yield ((least, ("now", start)),)
    yield ((most, ("now", start)),)


# ---------------------------------------------------------------------------------------------------------------------
# Paths


@dataclass
class Attempt:
    """Lookups and acts of one task, played in a world of its own."""

    world: Office
    messages: list[sdk.Message] = field(default_factory=list)
    read: str = ""
    """All that was answered."""

    def make(self, calls: Sequence[Call]) -> list[Any]:
        """Make calls in one message; their results as JSON."""
        first = sum(len(message.tool_calls) for message in self.messages)
        made = [
            sdk.ToolCall(id=f"call_{first + place}", name=name, arguments=arguments)
            for place, (name, arguments) in enumerate(calls)
        ]
        results = [self.world.call_now(name, arguments) for name, arguments in calls]
        self.read += "\n".join(result.text for result in results)
        self.messages.append(sdk.Message(role="assistant", tool_calls=made))
        return [result.structured for result in results]


class Derivation:
    """The demonstrations of the training tasks of one template."""

    def __init__(self, folder: str | Path, scenario: str, tasks: Sequence[Query]) -> None:
        self.tasks = {task.text: Clues(task, str(folder)) for task in tasks}
        replay = Replay(folder, scenario)
        self._office = replay.office
        self._gold = {task.text: replay.end(task.gold) for task in tasks}
        self._everybody = {*addresses(folder)}
        self._asks = any(re.search(r"\bif\b", task.wording, re.IGNORECASE) for task in tasks)

    def paths(self) -> dict[str, list[sdk.Message]]:
        """Request -> demonstration, of the tasks that get one."""
        rule = self._rule()
        found = {}
        for text, clues in self.tasks.items():
            path = self._play(clues, rule)
            if path is not None:
                found[text] = path.messages
        return found

    def _rule(self) -> Sequence[Rule] | None:
        """What is looked up first; None where no rule is found that all tasks agree on."""
        clues = list(self.tasks.values())
        needs_ids = any(_ids(one.query.gold) for one in clues)
        evidence = self._evidence(clues)
        if evidence:
            return evidence
        if not needs_ids and not self._asks:
            return ()
        fits = self._finds if needs_ids else self._tells
        best: tuple[int, int, Rule] | None = None
        for number, rule in enumerate(rules(self._office.tools, clues)):
            cost = fits(rule, best[0] if best else None)
            if cost is not None and (best is None or cost < best[0]):
                best = (cost, number, rule)
        return None if best is None else (best[2],)

    def _finds(self, rule: Rule, most: int | None) -> int | None:
        """Characters of all results, where the rule finds every id; None where it does not, or for more than `most`."""
        cost = 0
        for clues in sorted(self.tasks.values(), key=lambda one: -len(one.query.gold)):
            path = self._play(clues, (rule,))
            if path is None:
                return None
            cost += len(path.read) + _EACH_ARGUMENT * len(rule[1])
            if most is not None and cost >= most:
                return None
        return cost

    def _tells(self, rule: Rule, most: int | None) -> int | None:
        """Characters of all results, where they are empty exactly for the tasks without gold calls, or exactly for
        those with; None where they are not, or for more than `most`."""
        answers: set[tuple[bool, bool]] = set()
        cost = 0
        for clues in self.tasks.values():
            calls = clues.calls(rule)
            if calls is None:
                return None
            path = Attempt(self._office.fork())
            answers.add((bool(clues.query.gold), all(_is_empty(result) for result in path.make(calls))))
            path.world.close()
            cost += len(path.read) + _EACH_ARGUMENT * len(rule[1])
            if most is not None and cost >= most:
                return None
        tells = len(answers) == 2 and all(len(set(one)) == 2 for one in zip(*answers, strict=True))
        return cost if tells else None

    def _evidence(self, clues: Sequence[Clues]) -> list[Rule]:
        """Lookups of figures: tools whose names have the words of a value in the request, over the plotted period."""
        shows = [call for one in clues for call in one.query.gold if call[0] == "create_plot"]
        readable = [tool for tool in self._office.tools if tool.annotations.read_only and tool.source == "analytics"]
        if not readable or not (self._asks or any(not _is_said(call, clues) for call in shows)):
            return []
        period = self._period(clues)
        found: list[Rule] = []
        for slot in clues[0].texts:
            said = {one.texts.get(slot, "") for one in clues}
            named = [tool for tool in readable if all(_named(tool, value) for value in said)]
            named = named or [tool for tool in readable if any(_named(tool, value) for value in said)]
            found += [("", (("metric", ("text", slot)), *period))] * bool(named)
            found += [("traffic_source_count", (*period, ("traffic_source", ("text", slot))))] * bool(
                said <= {*_SOURCES}
            )
        if not found and all("traffic source" in one.query.text for one in clues):
            found = [
                ("traffic_source_count", (*period, ("traffic_source", ("constant", source)))) for source in _SOURCES
            ]
        return found

    def _period(self, clues: Sequence[Clues]) -> tuple[tuple[str, Form], ...]:
        """The days that the gold plots begin and end with, as forms; a day of the request where nothing is plotted."""
        chosen: list[tuple[str, Form]] = []
        for argument in ("time_min", "time_max"):
            longest = max(max(len(one.dates), len(one.spans)) for one in clues)
            for form in [(kind, str(number), "") for number in range(longest) for kind in ("day", "since")]:
                told = [
                    one.values(form) == [call[1][argument]]
                    for one in clues
                    for call in one.query.gold
                    if argument in call[1]
                ]
                there = all(one.values(form) is not None for one in clues)
                if there and all(told) and (told or argument == "time_min"):
                    chosen.append((argument, form))
                    break
        return tuple(chosen)

    def _play(self, clues: Clues, rule: Sequence[Rule] | None) -> Attempt | None:
        """Look up, act on what was found, and look again while gold calls are left. None where that does not lead to
        the gold state, or the rule cannot be applied."""
        if rule is None:
            return None
        lookups: list[Call] = []
        for one in rule:
            calls = self._metric_calls(clues, one) if not one[0] else clues.calls(one)
            if calls is None:
                return None
            lookups += [call for call in calls if call not in lookups]
        path = Attempt(self._office.fork())
        try:
            return path if self._walk(path, clues, lookups) else None
        finally:
            path.world.close()

    def _metric_calls(self, clues: Clues, rule: Rule) -> list[Call] | None:
        """The calls for a metric that each request names in its own words: its tool's name has them."""
        (_, (_, slot)), *period = rule[1]
        tools = [tool for tool in self._office.tools if _named(tool, clues.texts.get(slot, ""))]
        return clues.calls((tools[0].name, tuple(period))) if tools else None

    def _walk(self, path: Attempt, clues: Clues, lookups: Sequence[Call]) -> bool:
        left = list(clues.query.gold)
        for call in lookups:
            for value in call[1].values():
                self._find_address(path, clues, value)
        while True:
            if lookups:
                path.make(lookups)
            self._find_free_time(path, clues, left)
            now = [call for call in left if self._is_known(call, path, clues)]
            for call in now:
                for value in call[1].values():
                    self._find_address(path, clues, value)
            if now:
                path.make(now)
            left = [call for call in left if call not in now]
            if not left or not now:
                break
        path.messages.append(sdk.Message(role="assistant", content=_DONE if clues.query.gold else _NOTHING))
        return not left and path.world.state() == self._gold[clues.query.text]

    def _is_known(self, call: Call, path: Attempt, clues: Clues) -> bool:
        """Whether the ids and addresses of a call were read, or belong to people whom the request names."""
        found = [*_ids([call]), *(value for value in call[1].values() if value in self._everybody)]
        return all(value in path.read or value in clues.people.values() for value in found)

    def _find_address(self, path: Attempt, clues: Clues, value: str) -> None:
        """Look an argument up that is the address of somebody whom the request names, unless it was read."""
        name = next((name for name, address in clues.people.items() if address == value), None)
        if name is not None and value not in path.read:
            path.make([("find_email_address", {"name": name})])

    def _find_free_time(self, path: Attempt, clues: Clues, left: Sequence[Call]) -> None:
        """Look at the day of a meeting whose hour the request does not say."""
        hours = {int(number) % 12 for number in re.findall(r"\d+", clues.query.text)}
        for name, arguments in left:
            if name == "create_event" and datetime.fromisoformat(arguments["event_start"]).hour % 12 not in hours:
                day = arguments["event_start"][:10]
                path.make([("search_events", {"time_min": f"{day}{_START}", "time_max": f"{day}{_END}"})])


def _ids(calls: Sequence[Call]) -> list[str]:
    return [value for _, arguments in calls for name, value in arguments.items() if name.endswith("_id")]


def _is_empty(result: Any) -> bool:
    return not result or (isinstance(result, str) and result.startswith("No "))


def _named(tool: Tool, value: str) -> bool:
    """Whether a tool's name has all words of a value: `total visits`, total_visits_count."""
    return bool(value) and {*value.lower().split()} <= {*tool.name.split("_")}


def _is_said(call: Call, clues: Sequence[Clues]) -> bool:
    """Whether a request names what a call plots."""
    words = call[1]["value_to_plot"].removeprefix("visits_").replace("_seconds", "").split("_")
    stems = [word.rstrip("s")[:6] for word in words]
    return any(call in one.query.gold and all(stem in one.query.text.lower() for stem in stems) for one in clues)
