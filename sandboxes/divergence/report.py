"""The report of a comparison, to read and to compute with."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, Field

from mcp_bridge.safe_text import plural, shortened

from .differences import Difference

AnsweredBy = Literal["twin", "itself", "others"]

_MOST_SHOWN = 20
_MOST_OF_A_CALL = 10


class ToolDivergence(BaseModel):
    """The counts of one tool."""

    tool: str
    calls: int = 0
    compared: int = 0
    """Calls with a recorded answer."""
    without_answer: int = 0
    """Calls in the recording that have none, because the real tool broke."""
    scrubbed_arguments: int = 0
    """Calls of whose arguments a part was scrubbed. They are made with `***` in its place."""
    results_agree: int = 0
    """Calls whose results are equal, but for what is ignored."""
    errors_agree: int = 0
    """Calls that came back as an error in both, or in neither."""
    invalid_results: int = 0
    """Results of the twin that are not valid against the recorded output schema."""
    failures: int = 0
    """Calls for which the twin had no result at all."""
    is_missing: bool = False
    """The twin has no such tool."""
    schema_differences: list[Difference] = Field(default_factory=list)

    @property
    def agrees(self) -> bool:
        all_agree = self.results_agree == self.compared and not self.invalid_results
        return all_agree and not self.is_missing and not self.schema_differences


class CallDivergence(BaseModel, frozen=True):
    """One call whose answers differ."""

    session: str
    order: int
    tool: str
    arguments: dict[str, Any]
    """As recorded."""
    differences: list[Difference]
    failure: str | None = None
    """What the twin raised in place of a result."""


class DivergenceReport(BaseModel):
    """How often a twin answers as the real tools did."""

    cassette: str
    sessions: int
    tools: list[ToolDivergence]
    extra_tools: list[str] = Field(default_factory=list)
    """Tools of the twin that the recording does not have."""
    calls: list[CallDivergence]
    """The calls that differ, in the order in which they were replayed."""
    mapped_identifiers: int = 0
    """Identifiers of the recording for which the twin had others."""
    answered_by: AnsweredBy = "twin"
    """What answered: a twin, the recorded twin of these sessions itself, or to each session that of the others."""
    on_itself: float | None = None
    """Where the others answered, the `agreement` of the recorded twin of all sessions with what it is made of."""

    @property
    def compared(self) -> int:
        """Calls that have a recorded answer."""
        return sum(tool.compared for tool in self.tools)

    @property
    def agreement(self) -> float:
        """The share of compared calls whose results are equal; 1.0 where there are none."""
        return sum(tool.results_agree for tool in self.tools) / self.compared if self.compared else 1.0

    @property
    def sessions_agree(self) -> int:
        """Sessions with no call that differs."""
        return self.sessions - len({call.session for call in self.calls})

    @property
    def agrees(self) -> bool:
        """Whether every result, error and schema is the same."""
        return not self.calls and not self.extra_tools and all(tool.agrees for tool in self.tools)

    def to_json(self) -> str:
        """The whole report, with the differences of every call."""
        found = self.model_dump(exclude_defaults=True)
        return json.dumps({"agrees": self.agrees, "agreement": self.agreement, **found}, indent=2, ensure_ascii=False)

    def to_markdown(self) -> str:
        """A table of the tools and the differences to read, at most 20 calls with 10 differences each."""
        lines = [
            f"# Divergence from {_cell(self.cassette)}",
            "",
            *self._summary(),
            "",
            "| tool | calls | results agree | errors agree | schema |",
            "| --- | --- | --- | --- | --- |",
            *(_row(tool) for tool in self.tools),
        ]
        if self.extra_tools:
            lines += ["", f"Only the twin has: {', '.join(map(_cell, self.extra_tools))}."]
        if self.mapped_identifiers:
            lines += ["", f"{self.mapped_identifiers} identifiers have counterparts in the twin."]
        broken = sum(tool.without_answer for tool in self.tools)
        if broken:
            lines += ["", f"{broken} recorded calls have no answer to compare with: the real tool broke."]
        scrubbed = sum(tool.scrubbed_arguments for tool in self.tools)
        if scrubbed:
            lines += ["", f"{scrubbed} calls were made with `***` where a part of their arguments was scrubbed."]
        lines += _schemas(self.tools) + _calls(self.calls)
        return "\n".join(lines) + "\n"

    def _summary(self) -> list[str]:
        compared = f"{self.compared} calls in {self.sessions} {plural(self.sessions, 'session')} were compared"
        if self.answered_by != "others":
            lines = [f"{compared}: {self.agreement:.1%} of the results agree."]
            if self.answered_by == "itself":
                lines += ["", "The twin replays the sessions that it is made of. That says nothing of other sessions."]
            if self.answered_by == "itself" and self.sessions == 1:
                lines[-1] += " Record more: then each is answered by a twin of the others."
            return lines
        lines = [
            f"{compared}, each session with a twin of the others: {self.agreement:.1%} of the results agree, and "
            f"{self.sessions_agree} of {self.sessions} sessions as a whole.",
            "",
            f"The twin of all sessions replays {self.on_itself or 0:.1%} of them. That says nothing of other sessions.",
        ]
        if not self.agrees:
            lines += [
                "",
                "Record more sessions. If the server can be started for each rollout (`world` in an `mcp.json`), take "
                "it in place of a twin: it answers every call.",
            ]
        return lines


def _row(tool: ToolDivergence) -> str:
    schema = "missing" if tool.is_missing else f"{len(tool.schema_differences)} differences"
    if not tool.is_missing and not tool.schema_differences:
        schema = "agrees"
    if tool.invalid_results:
        schema += f", {tool.invalid_results} results against it"
    return (
        f"| {_cell(tool.tool)} | {tool.calls} | {_share(tool.results_agree, tool.compared)} "
        f"| {_share(tool.errors_agree, tool.compared)} | {schema} |"
    )


def _share(agree: int, compared: int) -> str:
    return f"{agree} of {compared}" if compared else "-"


def _schemas(tools: list[ToolDivergence]) -> list[str]:
    differing = [tool for tool in tools if tool.schema_differences]
    if not differing:
        return []
    lines = ["", "## Schemas"]
    for tool in differing:
        lines += ["", f"### {_cell(tool.tool)}", "", *_listed(tool.schema_differences)]
    return lines


def _calls(calls: list[CallDivergence]) -> list[str]:
    if not calls:
        return []
    lines = ["", "## Calls"]
    for call in calls[:_MOST_SHOWN]:
        told = _code(json.dumps(call.arguments, ensure_ascii=False), 300)
        lines += ["", f"### {_cell(call.tool)}, call {call.order} of session {_cell(call.session)}", "", told, ""]
        if call.failure is not None:
            lines.append(f"- the twin has no result: {_code(call.failure, 500)}")
        lines += _listed(call.differences)
    if len(calls) > _MOST_SHOWN:
        lines += ["", f"And {len(calls) - _MOST_SHOWN} more calls; the JSON has them all."]
    return lines


def _listed(found: list[Difference]) -> list[str]:
    lines = [f"- {_code(str(one), 600)}" for one in found[:_MOST_OF_A_CALL]]
    return [*lines, f"- and {len(found) - _MOST_OF_A_CALL} more"] if len(found) > _MOST_OF_A_CALL else lines


def _cell(text: str) -> str:
    """A text that no table or heading takes for marks of its own."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _code(text: str, most: int) -> str:
    """A text as code, on one line; tools may have written it to be anything."""
    text = shortened(" ".join(text.split()), most)
    marks = "`"
    while marks in text:
        marks += "`"
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{marks}{space}{text}{space}{marks}"
