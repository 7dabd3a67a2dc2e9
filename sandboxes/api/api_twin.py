"""An API twin: a simulated backend with the tools of the live API, from its OpenAPI document alone."""

from __future__ import annotations

import copy
import difflib
import functools
import hashlib
import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self

from mcp_bridge.errors import SourceError
from mcp_bridge.extras import require_extra
from mcp_bridge.guard import choose
from mcp_bridge.openapi.document import Document, Operation, read_document
from mcp_bridge.openapi.requests import Unwritable, prepare
from mcp_bridge.openapi.responses import Answer, to_result
from mcp_bridge.openapi.tools import OF_OTHER_TAGS, OperationTool, ToolMaker, legal_name
from mcp_bridge.records import MADE_UP, LeftOut, Tool, ToolResult
from mcp_bridge.sources.specs import ServerOptions, read_options
from mcp_bridge.toolsets.schema_checks import split_usable

from ..changes import State
from ..sandbox import InvalidArguments, Sandbox, SetupError
from .answerer import EVENTS, Answerer
from .maker import NOTHING
from .model import LINK, Plan, holds_link
from .open_answers import with_answers, with_values_of_choices
from .paths import names_of
from .planner import infer
from .requests import (
    SIGNED_OUT,
    Held,
    Problem,
    Refusals,
    Reply,
    Request,
    asks_for_credentials,
    held_credentials,
    require_access,
)
from .round_trips import round_trips
from .rules import Refused, RowStore, Rule, Rules, When
from .shapes import Shapes
from .store import Seeds, Store, beginning
from .twin_report import Report, report_of

logger = logging.getLogger(__name__)

DEFAULT, EMPTY = "default", "empty"


class Blueprint:
    """What all worlds of an API twin share: document, tools, inferred backend, and the rows of each seed.

    Read once, and never written to apart from what is made on demand.
    """

    def __init__(
        self,
        document: str | Path | Mapping[str, Any] | Document,
        *,
        name: str | None,
        rows: int,
        tags: Collection[str],
        chosen: ServerOptions,
        follow_urls: bool,
    ) -> None:
        self.document = document if isinstance(document, Document) else read_document(document, follow_urls=follow_urls)
        self.name = legal_name(name or self.document.title or "api")
        self._rows = rows
        answering = with_answers(with_values_of_choices(self.document))
        self.shapes = Shapes(answering)
        self.backend = infer(answering, self.shapes)
        self.refusals = Refusals(self.document, self.shapes)
        # Keys of the API are the configuration's business, in a twin as on the live API.
        keys = {
            (scheme.location, scheme.parameter.lower())
            for scheme in self.document.security_schemes.values()
            if scheme.kind == "apiKey"
        }
        self.maker = ToolMaker(self.document, source=self.name, tags=tags, fixed=keys)
        made, left_out = self.maker.make(lambda _: None)
        usable, unusable = split_usable([one.tool for one in made], self.name)
        left_out += unusable
        usable, denied = choose(usable, chosen, self.name, within="")
        if not usable:
            reasons = "; ".join(dict.fromkeys(one.reason for one in [*left_out, *denied])) or "it has none"
            raise SourceError(f"{self.name}: no operation is left: {reasons}")
        names = {tool.name for tool in usable}
        self.tools: dict[str, OperationTool] = {one.tool.name: one for one in made if one.tool.name in names}
        self.left_out = [one for one in left_out if not one.reason.startswith(OF_OTHER_TAGS)]
        if self.left_out:
            told = "; ".join(f"{one.tool} ({one.reason})" for one in self.left_out)
            logger.warning("%s: operations that cannot be used are left out: %s", self.name, told)
        self.left_out += denied
        self._seeds = functools.lru_cache(maxsize=64)(self._made_seeds)
        # Resources are tried in a world of few rows, whatever the size of the user's.
        self.few_rows = Seeds(self.backend.tables, self.shapes, name=self.document.title, seed=0, rows=2)

    def seeds(self, seed: int, scenario: str) -> Seeds:
        """The rows that a world of this seed and scenario begins with."""
        return self._seeds(seed, self.data_of(scenario))

    def _made_seeds(self, seed: int, scenario: str) -> Seeds:
        rows = 0 if scenario == EMPTY else self._rows
        name = f"{self.document.title}/{scenario}"
        return Seeds(self.backend.tables, self.shapes, name=name, seed=seed, rows=rows)

    @staticmethod
    def data_of(scenario: str) -> str:
        """The scenario whose rows a scenario has: who calls changes none of them."""
        return DEFAULT if scenario == SIGNED_OUT else scenario

    def fingerprint(self) -> str:
        """Of what a snapshot hangs on: which tables there are, and how many rows they begin with."""
        tables = {table.name: [table.path, table.parent] for table in self.backend.tables.values()}
        said = json.dumps([self.document.title, self.document.version, tables, self._rows])
        return hashlib.sha256(said.encode()).hexdigest()


CLOCK = "@clock"
_MAGIC = b"api-twin 1 "
_MOST_WARNED = 3
_DIGEST = hashlib.sha256().digest_size


class ApiTwin(Sandbox):
    """A stateful simulated backend of an API.

    `document`: path or URL of an OpenAPI 3.0 or 3.1 or Swagger 2.0 document, or the document itself. `rows`: how many
    rows a collection at the top begins with. `tags`: only operations with one of them; all by default. `allow`, `deny`
    and `only_read_only` choose among the tools by name, as for the live API: names may hold `*` and `?`. The scenario
    `empty` begins without rows; in the scenario `signed_out`, which documents with security have, the caller has no
    credential. `credentials`: the security schemes that the caller has otherwise, each with its scopes (None: all of
    them); all schemes by default. What is asked for without a credential is refused with 401, without its scope with
    403. What was inferred, and what could not be, is in `report()`.

    Raises `SourceError` where the document cannot be read.
    """

    scenarios: tuple[str, ...] = ("default", EMPTY)

    def __init__(
        self,
        document: str | Path | Mapping[str, Any] | Document,
        *,
        seed: int = 0,
        scenario: str = "default",
        rows: int = 8,
        name: str | None = None,
        tags: Collection[str] = (),
        allow: Sequence[str] | None = None,
        deny: Sequence[str] = (),
        only_read_only: bool = False,
        credentials: Mapping[str, Collection[str] | None] | None = None,
        follow_urls: bool = False,
    ) -> None:
        require_extra("twins", "ApiTwin", SourceError)
        if isinstance(rows, bool) or not isinstance(rows, int) or not 1 <= rows <= 1_000_000:
            raise SourceError(f"rows is {rows!r}; it must be a whole number from 1 to 1000000")
        given = {"allow": allow, "deny": deny, "only_read_only": only_read_only}
        chosen = read_options({key: one for key, one in given.items() if one is not None}, "ApiTwin")
        self.blueprint = Blueprint(document, name=name, rows=rows, tags=tags, chosen=chosen, follow_urls=follow_urls)
        self.name = self.blueprint.name
        if asks_for_credentials(self.blueprint.document):
            self.scenarios = (*type(self).scenarios, SIGNED_OUT)
        self._credentials = held_credentials(self.blueprint.document, credentials, name=self.name)
        self._rules = Rules()
        self._tools = self._marked_tools()
        super().__init__()
        self._first = (seed, scenario)
        self.reset()
        self.round_trips = round_trips(self.blueprint, self._trial)
        self._warn()

    def __repr__(self) -> str:
        return f"ApiTwin({self.name!r}, {len(self._tools)} tools, seed={self._beginning[0]})"

    # -- the protocol of sandboxes ------------------------------------------------------------------------------------

    @property
    def tools(self) -> Sequence[Tool]:
        return self._tools

    def _marked_tools(self) -> tuple[Tool, ...]:
        """The tools, with a mark on those whose answers the document does not determine."""
        ruled = {name for name, _, _ in self._rules.rules}
        made = []
        for one in self.blueprint.tools.values():
            plan = self.blueprint.backend.plans[one.operation.operation_id]
            why = "" if plan.operation.operation_id in ruled else self._made_up(plan)
            made.append(one.tool.model_copy(update={"meta": {**one.tool.meta, MADE_UP: why}}) if why else one.tool)
        return tuple(made)

    def _made_up(self, plan: Plan) -> str:
        """Why the answers of an operation are not those of the API, or nothing."""
        if plan.role in ("event", "answer"):
            return plan.because
        if plan.role not in ("list", "create") or plan.context is not None or plan.table is None:
            return ""
        parts = {part.parameter for part in self.blueprint.backend.tables[plan.table].parts}
        idle = [name for name in names_of(plan.operation.path) if name not in parts]
        return f"no path of the document reads what {idle[0]!r} names, so it chooses no rows" if idle else ""

    @property
    def left_out(self) -> Sequence[LeftOut]:
        """Operations of the document that cannot be used, with the reason."""
        return self.blueprint.left_out

    @property
    def now(self) -> datetime:
        return self._store.now

    def _reset(self, seed: int, scenario: str) -> None:
        self._own(seed, scenario, Store(self.blueprint.seeds(seed, scenario), beginning(seed)))

    def _own(self, seed: int, scenario: str, store: Store) -> None:
        self._beginning = (seed, scenario)
        self._store = store
        world = f"{self.blueprint.document.title}/{self.blueprint.data_of(scenario)}/{seed}"
        self._answerer = Answerer(self.blueprint.shapes, store, world)

    def _advance(self, by: timedelta) -> None:
        self._store.now += by

    def fork(self) -> Self:
        twin = copy.copy(self)
        twin._own(*self._beginning, self._store.fork())
        return twin

    def snapshot(self) -> bytes:
        seed, scenario = self._beginning
        saved = {"api": self.blueprint.fingerprint(), "seed": seed, "scenario": scenario, **self._store.saved()}
        content = json.dumps(saved, separators=(",", ":")).encode()
        return _MAGIC + hashlib.sha256(content).digest() + content

    def _restore(self, snapshot: bytes) -> None:
        place = len(_MAGIC) + _DIGEST
        content = snapshot[place:]
        if snapshot[:place] != _MAGIC + hashlib.sha256(content).digest():
            raise SetupError(f"this is not a snapshot of {self.name}, or a damaged one; give what snapshot() returned")
        saved = json.loads(content)
        if saved["api"] != self.blueprint.fingerprint():
            raise SetupError(f"this snapshot is of another API, or of another version of it, than {self.name}")
        store = Store(self.blueprint.seeds(saved["seed"], saved["scenario"]), self.now)
        store.load(saved)
        self._own(saved["seed"], saved["scenario"], store)

    def state(self) -> State:
        state: State = {CLOCK: {"world": {"now": self.now.isoformat()}}}
        for table in (*self.blueprint.backend.tables, EVENTS):
            state[table] = {key: _copied(row) for key, row in self._store.items(table)}
        return state

    def _run(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        tool = self.blueprint.tools[name]
        reply = self._perform(self._request(tool, arguments), self._held)
        content = reply.text.encode() if reply.body is NOTHING else json.dumps(reply.body).encode()
        operation = tool.operation
        return to_result(
            Answer(reply.status, {"content-type": reply.kind} if content else {}, content),
            f"{operation.method.upper()} {operation.path} of {self.name}",
            needs="",
            tells_401=True,
            declared=str(reply.status) in operation.responses,
            prune=lambda value: self.blueprint.maker.pruned(operation, reply.status, value),
        )

    def _request(self, tool: OperationTool, arguments: Mapping[str, Any]) -> Request:
        """The request that the live source would send."""
        operation, arguments = tool.operation, copy.deepcopy(dict(arguments))  # rows keep parts of them
        try:
            prepared = prepare(operation, tool.plan, arguments)
            self.blueprint.maker.refuse_read_only(tool, prepared)
            if prepared.body is not None and holds_link(prepared.value):
                raise Unwritable(f"an object whose only property is {LINK!r} is a reference here; send another name")
        except Unwritable as problem:
            text = f"Invalid arguments for {tool.tool.name}; nothing was called.\n- {problem}"
            raise InvalidArguments(text) from problem
        given: dict[str, dict[str, Any]] = {"path": {}, "query": {}, "header": {}, "cookie": {}}
        for argument, parameter in tool.plan.parameters.items():
            if argument in arguments and (parameter.location == "path" or arguments[argument] not in (None, [], {})):
                given[parameter.location][parameter.name] = _as_sent(arguments[argument])
        return Request(
            self.blueprint.backend.plans[operation.operation_id],
            {name: given["path"][name] for name in names_of(operation.path)},
            given["query"],
            NOTHING if prepared.body is None else prepared.value,
        )

    # -- requests and rules -------------------------------------------------------------------------------------------

    def perform_tool(
        self, tool: OperationTool, arguments: Mapping[str, Any], invalid: tuple[int, ...], brought: Held | None = None
    ) -> Reply:
        """Answer a call as the API itself would: what is invalid is refused with one of the statuses `invalid`.

        `brought`: the credentials that came with the request, beside those that the caller has anyway.
        """
        operation, held = tool.operation, {**(brought or {}), **self._held}
        try:
            require_access(operation, held)
            if problem := self._checker.problem(tool.tool.name, arguments):
                raise Problem(invalid, problem, _place(tool, self._checker.place(tool.tool.name, arguments)))
            request = self._request(tool, arguments)
        except Problem as refusal:
            return self.refuse(operation, refusal)
        except InvalidArguments as unfit:
            return self.refuse(operation, Problem(invalid, str(unfit)))
        return self._perform(request, held)

    @property
    def _held(self) -> Held:
        return {} if self._beginning[1] == SIGNED_OUT else self._credentials

    def refuse(self, operation: Operation, problem: Problem) -> Reply:
        """The refusal of an operation, in the shape that the document gives it."""
        return self.blueprint.refusals.reply(operation, problem, self.now)

    def _perform(self, request: Request, held: Held) -> Reply:
        """Answer a request with its rules. A refusal has changed nothing. Raises `ToolFailure` where a rule breaks."""
        store, operation = self._store, request.plan.operation
        try:
            require_access(operation, held)
            with store.all_or_nothing():
                if self._rules.has(operation.operation_id):
                    self._answerer.check_path(request)
                    if request.plan.role == "refused":  # what it does is the rules' business now
                        request = replace(request, plan=replace(request.plan, role="event"))
                answer = functools.partial(self._answerer.answer, request)
                return self._rules.apply(request, RowStore(store), self.now, answer)
        except Problem as problem:
            return self.refuse(operation, problem)
        except Refused as refusal:
            return self.refuse(operation, Problem((refusal.status,), str(refusal)))

    def rule(self, operation: str, when: When = "after") -> Callable[[Rule], Rule]:
        """Adds a rule to an operation, by its id or its tool's name; use it as a decorator.

        The rule is called with an `ApiCall`, `before`, `after` or `instead` of what the twin would do, and may read and
        write the world's rows, return another body (`after`, `instead`), or raise `Refused(status, message)`. It must
        take all chance and time from the call. Forks and worlds have the rules that their origin had when they began.

        Raises `SourceError` for an operation that the document does not have.
        """
        by_name = {name: one.operation.operation_id for name, one in self.blueprint.tools.items()}
        wanted = by_name.get(operation, operation)
        if wanted not in self.blueprint.backend.plans:
            near = difflib.get_close_matches(operation, list(by_name), n=3)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise SourceError(f"{self.name} has no operation {operation!r}{hint}")
        if when not in ("before", "after", "instead"):
            raise SourceError(f"when is {when!r}; it must be before, after or instead")

        def add(rule: Rule) -> Rule:
            self._rules = self._rules.plus(wanted, when, rule)
            self._tools = self._marked_tools()
            return rule

        return add

    def _trial(self) -> tuple[Self, Store]:
        """A small world of its own, in which the caller may do everything."""
        twin = copy.copy(self)
        twin._credentials = held_credentials(self.blueprint.document, None, name=self.name)
        store = Store(self.blueprint.few_rows, beginning(0))
        twin._own(0, "default", store)
        return twin, store

    def _warn(self) -> None:
        broken = [one for one in self.round_trips if one.problem]
        if broken:
            more = f"; and {len(broken) - _MOST_WARNED} more" if len(broken) > _MOST_WARNED else ""
            logger.warning(
                "%s: %d of %d resources do not hold what is created, changed or deleted in this twin: %s%s. report() "
                "names them all; leave their tools out, or add rules",
                self.name,
                len(broken),
                len(self.round_trips),
                "; ".join(f"{one.create}: {one.problem}" for one in broken[:_MOST_WARNED]),
                more,
            )

    def report(self) -> Report:
        """What was inferred, operation by operation, what could not be, and which resources do not hold."""
        return report_of(self.name, self.blueprint.backend, self._rules, self.blueprint.shapes, self.round_trips)


def _as_sent(value: Any) -> Any:
    """A parameter's value as its text says it to the live API: 643.0 is 643."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_as_sent(one) for one in value]
    return {name: _as_sent(one) for name, one in value.items()} if isinstance(value, dict) else value


def _place(tool: OperationTool, way: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """What of a request does not fit: where it is sent, its name there, and the `way` into it."""
    if not way:
        return ()
    first = str(way[0])
    parameter, body = tool.plan.parameters.get(first), tool.plan.body
    if parameter is not None:
        return (parameter.location, parameter.name, *way[1:])
    if body is None or first == body.whole:
        return ("body", *way[1:])
    return ("body", body.properties.get(first, first), *way[1:])


def _copied(value: Any) -> Any:
    # `copy.deepcopy` looks for more than JSON can hold, and takes ten times as long for the state of a large world.
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    return [_copied(inner) for inner in value] if isinstance(value, list) else value
