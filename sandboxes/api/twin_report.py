"""The report of a twin: what was inferred of an API, operation by operation, and what could not be."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from .model import STATEFUL, Backend, Plan, Role
from .requests import INVALID, MISSING, needs, status_for
from .round_trips import RoundTrip
from .rules import Rules
from .shapes import Shapes
from .tables import unique_properties


@dataclass(frozen=True)
class OperationReport:
    """One operation. `because`: why it is no more than an `event` or an `answer`, or `refused`.

    `ignored`: query parameters that are accepted and do nothing. `needs`: which credentials, in words. `unique`: what
    it refuses to make equal to another row's. `undeclared`: statuses that the twin may answer with although the
    document does not have them for the operation. `rules`: how many were added in Python.
    """

    operation: str
    method: str
    path: str
    role: Role
    table: str | None
    because: str
    ignored: tuple[str, ...]
    needs: str
    unique: tuple[str, ...]
    undeclared: tuple[int, ...]
    rules: int

    @property
    def stateful(self) -> bool:
        """Whether it reads or changes rows, or has a rule."""
        return self.role in STATEFUL or self.rules > 0


@dataclass(frozen=True)
class TableReport:
    """One table. `key`: the property that names its rows; `guessed` where none has the path parameter's name."""

    table: str
    path: str
    key: str
    guessed: bool
    parent: str | None
    links: dict[str, str]


@dataclass(frozen=True)
class Report:
    """All operations and tables, and what came of each resource that can be created. `str()` of it is for people."""

    api: str
    operations: tuple[OperationReport, ...]
    tables: tuple[TableReport, ...]
    round_trips: tuple[RoundTrip, ...]

    @property
    def broken(self) -> list[RoundTrip]:
        """Resources that do not hold what is put into them. Those with rules are left out: they were not tried."""
        ruled = {one.operation for one in self.operations if one.rules}
        return [one for one in self.round_trips if one.problem and not ruled & one.operations]

    @property
    def roles(self) -> dict[str, int]:
        """Role -> how many operations have it, the most frequent first."""
        return dict(Counter(one.role for one in self.operations).most_common())

    @property
    def stateful(self) -> int:
        """How many operations read or change rows."""
        return sum(one.stateful for one in self.operations)

    @property
    def events(self) -> list[OperationReport]:
        """Operations that are recorded and answered by their schema: what they change, the document does not say."""
        return [one for one in self.operations if one.role == "event" and not one.rules]

    @property
    def refused(self) -> list[OperationReport]:
        """Operations that would change rows in a way that the document does not show: refused with 422 or 400."""
        return [one for one in self.operations if one.role == "refused" and not one.rules]

    @property
    def answers(self) -> list[OperationReport]:
        """Operations that read what no collection holds: answered by their schema."""
        return [one for one in self.operations if one.role == "answer" and not one.rules]

    def __str__(self) -> str:
        total = len(self.operations)
        lines = [
            f"{self.api}: {total} operations, {len(self.tables)} tables",
            f"  {self.stateful} work on rows ({', '.join(f'{count} {role}' for role, count in self.roles.items())})",
            f"  {len(self.events)} are recorded as events and answered by their schema",
            f"  {len(self.refused)} are refused, because what they change in rows cannot be known",
            f"  {len(self.answers)} are answered by their schema alone",
        ]
        puts = Counter(one.role for one in self.operations if one.method == "put")
        if puts["replace"] or puts["update"]:
            replacing = f"{puts['replace']} replace the row, as the document says"
            lines.append(f"  PUT: {replacing}; {puts['update']} change only what they are sent")
        if self.round_trips:
            held = f"{len(self.round_trips) - len(self.broken)} of {len(self.round_trips)}"
            lines.append(
                f"  {held} resources that can be created hold: created, read, listed, changed and deleted, as far "
                "as the API has that"
            )
        untried = [one for one in self.round_trips if one.untried]
        lines += _section(
            "Resources that do not hold:", [f"{one.create} ({one.path}): {one.problem}" for one in self.broken]
        )
        lines += _section(
            "Resources that could not be tried:", [f"{one.create} ({one.path}): {one.untried}" for one in untried]
        )
        sections = ("Events:", self.events), ("Refused:", self.refused), ("Answered by schema:", self.answers)
        for title, ones in sections:
            told = [f"{one.method.upper()} {one.path} ({one.operation}): {one.because}" for one in ones]
            lines += _section(title, told)
        lines += _section("Keys that were guessed:", [f"{one.table}: {one.key}" for one in self.tables if one.guessed])
        lines += _section("Query parameters that do nothing:", self._each("ignored"))
        secured = sum(bool(one.needs) for one in self.operations)
        lines += ["", f"{secured} operations need a credential (scenario signed_out: 401)"] if secured else []
        lines += _section("Refused where another row has the same:", self._each("unique"))
        lines += _section("Statuses that the document does not have:", self._each("undeclared"))
        return "\n".join(lines)

    def _each(self, field: str) -> list[str]:
        found = [(one.operation, getattr(one, field)) for one in self.operations]
        return [f"{operation}: {', '.join(map(str, values))}" for operation, values in found if values]


def _section(title: str, rows: list[str]) -> list[str]:
    return ["", title, *(f"  {row}" for row in rows)] if rows else []


def report_of(api: str, backend: Backend, rules: Rules, shapes: Shapes, round_trips: tuple[RoundTrip, ...]) -> Report:
    """The report of a twin."""
    operations = tuple(
        OperationReport(
            operation=plan.operation.operation_id,
            method=plan.operation.method,
            path=plan.operation.path,
            role=plan.role,
            table=plan.table,
            because=plan.because,
            ignored=plan.query.unknown,
            needs=needs(plan.operation),
            unique=_unique(plan, backend, shapes),
            undeclared=_undeclared(plan),
            rules=sum(1 for name, _, _ in rules.rules if name == plan.operation.operation_id),
        )
        for plan in backend.plans.values()
    )
    tables = tuple(
        TableReport(
            table=table.name,
            path=table.path,
            key="" if table.single or table.members else table.key.column,
            guessed=table.guessed_key,
            parent=table.parent,
            links={name: link.table for name, link in table.links.items()},
        )
        for table in backend.tables.values()
    )
    return Report(api, operations, tables, round_trips)


def _unique(plan: Plan, backend: Backend, shapes: Shapes) -> tuple[str, ...]:
    if plan.role not in {"create", "replace", "update"} or plan.table is None:
        return ()
    return tuple(sorted(unique_properties(shapes, backend.tables[plan.table].schema, plan.operation)))


def _undeclared(plan: Plan) -> tuple[int, ...]:
    """What the operation may be refused with, as far as the document does not have it."""
    wanted = []
    is_named = plan.item is not None and (plan.item.lookups or plan.item.context is not None)
    if plan.context is not None or is_named:
        wanted.append(MISSING)
    if plan.role in {"create", "replace", "update", "move", "refused"}:
        wanted.append(INVALID)
    found = (status_for(plan.operation, one) for one in wanted)
    return tuple(status for status, declared in found if not declared)
