"""Round trips of resources: each is created, read, listed, changed and deleted by the twin's tools."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

from mcp_bridge.errors import ToolFailure
from mcp_bridge.openapi.document import Parameter
from mcp_bridge.records import ToolResult

from .maker import NOTHING, Maker, kind_fits, scalar_fits
from .model import IDENTIFIERS, KEY_TAILS, LINK, Item, Plan, Role, Table
from .paths import Steps, are_alike, is_object, names_of, steps_of
from .realistic import words_of
from .shapes import Shape, Shapes
from .store import Store
from .tables import nested_in
from .writes import CHANGED

if TYPE_CHECKING:
    from .api_twin import ApiTwin, Blueprint

_TRIES = 4
_MOST_FIELDS = 3
_MOST_ROWS = 100
_EFFECTLESS = frozenset(["event", "refused"])
_NUMBERED = frozenset(["index", "number", "iid", "no", "version"])
_SHAPING = frozenset(["enum", "const", "format", "pattern", "oneOf", "anyOf", "allOf"])


@dataclass(frozen=True)
class RoundTrip:
    """What came of one resource. `create`: the operation that makes it; `operations`: all that were looked at.

    `problem`: what does not hold; empty where all does. `untried`: what could not be tried, and why.
    """

    create: str
    path: str
    operations: frozenset[str]
    problem: str
    untried: str


class _Untried(Exception):
    pass


class _Broken(Exception):
    pass


def round_trips(blueprint: Blueprint, world: Callable[[], tuple[ApiTwin, Store]]) -> tuple[RoundTrip, ...]:
    """Try each resource that the tools can create. `world`: a new world with its rows."""
    api = _Api(blueprint)
    found = []
    for create in api.creates():
        trip = _Trip(api, create, *world())
        problem = ""
        try:
            trip.run()
        except _Broken as broken:
            problem = str(broken)
        except _Untried as reason:
            trip.untried = str(reason)
        except ToolFailure as failure:
            problem = str(failure)
        except Exception as error:  # no document is refused because it could not be tried
            trip.untried = f"trying it broke: {type(error).__name__}: {error}"
        operation = create.operation
        found.append(RoundTrip(operation.operation_id, operation.path, trip.operations, problem, trip.untried))
    return tuple(found)


class _Api:
    """The operations that have a tool, by what they are about."""

    def __init__(self, blueprint: Blueprint) -> None:
        self.tools = {one.operation.operation_id: one for one in blueprint.tools.values()}
        self.plans = [plan for name, plan in blueprint.backend.plans.items() if name in self.tools]
        self.at: dict[Steps, list[Plan]] = {}
        self.home: dict[str, Steps] = {}
        for plan in self.plans:
            steps = steps_of(plan.operation.path)
            self.at.setdefault(steps, []).append(plan)
            if plan.role == "read" and plan.table is not None and plan.item is not None and plan.item.lookups:
                self.home[plan.table] = min(steps, self.home.get(plan.table, steps), key=len)

    def creates(self) -> Iterator[Plan]:
        """What creates a row that can be read, and what should, because the path below names one.

        What creates the row that its path names counts where nothing else creates such rows.
        """
        posted = {plan.table for plan in self.plans if plan.role == "create"}
        read = {plan.table for plan in self.plans if plan.role in {"read", "list"}}
        for steps, plans in self.at.items():
            names_rows = any(plan.role == "read" and plan.item is not None for plan in self.at.get((*steps, "{}"), ()))
            for plan in plans:
                is_lost = plan.role in _EFFECTLESS and plan.operation.method == "post" and names_rows
                makes = plan.role == "create" or (plan.makes and plan.table not in posted)
                if is_lost or (makes and plan.table in read):
                    yield plan


class _Trip:
    """One resource, from its creation to its end."""

    def __init__(self, api: _Api, create: Plan, world: ApiTwin, store: Store) -> None:
        self._create, self._tools, self._world, self._store = create, api.tools, world, store
        self._blueprint = world.blueprint
        self._tables = world.blueprint.backend.tables
        self.untried = ""
        steps = steps_of(create.operation.path)
        steps = steps if create.item is None else steps[: -len(create.item.lookups)]
        self._own = api.at.get((*steps, "{}") if create.item is None else steps_of(create.operation.path), [])
        if create.table in api.home and not any(plan.role == "read" for plan in self._own):
            self._own = [plan for plan in api.at[api.home[create.table]] if plan.item is not None]
        above = api.at.get(steps, [])
        self._list = next((plan for plan in above if plan.role == "list"), None)
        reads = (plan for plan in above if plan.role == "answer" and plan.operation.method == "get")
        self._frozen = next((plan for plan in reads if self._shows_rows(plan)), None)
        own = [create, *self._own, *(one for one in (self._list, self._frozen) if one is not None)]
        self.operations = frozenset(plan.operation.operation_id for plan in own)

    def run(self) -> None:
        """Raises `_Broken` where something does not hold, `_Untried` where that could not be found out."""
        create = self._create
        self._refuse_events([create])
        table = self._tables[str(create.table)]
        before = {key for key, _ in self._store.items(table.name)}
        sent, made = self._created(create, table)
        key = next((key for key, _ in self._store.items(table.name) if key not in before), None)
        if key is None:
            raise _Broken(f"{create.operation.operation_id} makes no {table.singular}")
        if (read := self._of("read")) is not None:
            path = self._path(read, key, made)
            row = self._found(read, path)
            for name, value in sent.items():
                if not _reads_as(row.get(name), value):
                    raise _Broken(f"{read.operation.operation_id} gives {name} {row.get(name)!r}; {value!r} was sent")
        self._check_list(table, key, made)
        if read is not None:
            self._check_change(read, path, table)
            self._check_delete(read, key, made, path)
        self._refuse_events(self._own)

    def _shows_rows(self, plan: Plan) -> bool:
        """Whether a GET of the collection answers with objects, which should be its rows."""
        shapes, envelope = self._blueprint.shapes, plan.envelope
        if envelope is None or self._create.table is None:
            return False
        inner = (shapes.of(one) for one in shapes.of(envelope.item).properties.values())
        lists = any(one.kind == "array" and is_object(shapes, one.items) for one in inner)
        return lists or envelope.is_list or are_alike(shapes, envelope.item, self._tables[self._create.table].schema)

    def _refuse_events(self, plans: list[Plan]) -> None:
        for plan in plans:
            if plan.role in _EFFECTLESS:
                raise _Broken(f"{plan.operation.operation_id} changes nothing: {plan.because}")

    # -- one step after the other -------------------------------------------------------------------------------------

    def _created(self, create: Plan, table: Table) -> tuple[dict[str, Any], Mapping[str, Any]]:
        """Create a row: what was sent of its columns, and the row that was returned."""
        above = None if create.context is None else next(iter(self._store.items(create.context.table)), None)
        if create.context is not None and above is None:
            raise _Untried(f"there is no {self._tables[create.context.table].singular} that it could be made in")
        values = self._values(create.context, above[0]) if above is not None else []
        for attempt in range(_TRIES):
            fields = self._plain_fields(create, table)
            more = list(fields.items())[:_MOST_FIELDS] if attempt < _TRIES - 2 else []
            maker = self._maker(create, attempt)
            given = {argument: maker.make(schema, name, table.singular, 1) for name, (argument, schema) in more}
            full = self._maker(create, 1)
            given |= {one: full.make(schema, one, table.singular, 1) for one, schema in self._listed_by(create).items()}
            arguments = self._arguments(create, values, attempt, given)
            held = sum(1 for _ in self._store.items(table.name))
            result = self._call(create, arguments)
            is_empty = create.many and held == sum(1 for _ in self._store.items(table.name))  # an empty list was sent
            if not result.is_error and not is_empty:
                sent = {name: arguments[argument] for name, (argument, _) in fields.items() if argument in arguments}
                return {**self._scalars(create, table, arguments), **sent}, self._row(create, result)
        raise _Untried(f"no call of {create.operation.operation_id} was accepted: {result.text[:200]}")

    def _listed_by(self, create: Plan) -> dict[str, Any]:
        """Arguments of the creation, with their schemas, for the columns that the list must be called with."""
        tool, lists = self._tools[create.operation.operation_id], self._list
        if lists is None or tool.plan.body is None:
            return {}
        needed = {one.name for one in lists.operation.parameters if one.location == "query" and one.required}
        listed = {one.column for one in lists.query.filters if one.parameter in needed and one.key is None}
        properties = tool.tool.input_schema["properties"]
        return {one: properties[one] for one, name in tool.plan.body.properties.items() if name in listed}

    def _found(self, read: Plan, path: list[Any]) -> Mapping[str, Any]:
        result = self._call(read, self._arguments(read, path, 0))
        if result.is_error:
            raise _Broken(f"{read.operation.operation_id} does not find it by {path[-1]!r}: {_short(result)}")
        if not (row := self._row(read, result)):
            raise _Untried(f"{read.operation.operation_id} shows nothing of it, by its schema")
        return row

    def _check_list(self, table: Table, key: str, made: Mapping[str, Any]) -> None:
        plan = self._list
        if plan is None and self._frozen is not None:
            frozen = self._frozen.operation.operation_id
            raise _Broken(f"{frozen} shows the same, whatever is made: {self._frozen.because}")
        if plan is None or plan.table != table.name:
            return
        row = self._store.get(table.name, key) or {}
        above = self._above(plan.context, table, row)
        values = self._values(plan.context, above) if above is not None else []
        arguments = self._arguments(plan, values, 0)
        tool = self._tools[plan.operation.operation_id]
        columns = {one.parameter: one.column for one in plan.query.filters if one.key is None}
        for argument, parameter in tool.plan.parameters.items():
            schema = tool.tool.input_schema["properties"][argument]
            is_set = argument in arguments or "default" in schema
            if is_set and parameter.location == "query" and parameter.name == plan.query.limit:
                most = schema.get("maximum", schema.get("exclusiveMaximum", _MOST_ROWS + 1) - 1)
                sizes = schema.get("enum", [most])  # numbers, numbers as texts, or null
                arguments[argument] = max(sizes, key=lambda one: int(one) if str(one).isdigit() else 0)
            if is_set and parameter.location == "query" and parameter.name in columns:
                value = self._store.value(row.get(columns[parameter.name]))
                if isinstance(value, dict):
                    value = next((value[one] for one in IDENTIFIERS if one in value), None)
                if argument not in arguments and value not in schema.get("enum", [schema["default"]]):
                    continue  # only a choice of which one is the default hides the others
                if not isinstance(value, str | int | float):
                    self.untried = f"{plan.operation.operation_id} asks for {parameter.name}, which the row has not"
                    return
                arguments[argument] = _as_wanted(schema, value)
        name = next((one for one in (*IDENTIFIERS, table.key.column) if made.get(one) is not None), None)
        seen, count = 0, sum(1 for _ in self._store.items(table.name))
        while True:
            result = self._call(plan, arguments)
            if result.error_kind == "invalid_arguments":
                self.untried = _short(result)
                return
            if result.is_error:
                raise _Broken(f"{plan.operation.operation_id} refuses: {_short(result)}")
            shown = self._inside(plan, result)
            if not isinstance(shown, list) and not made:
                raise _Untried(
                    f"neither {self._create.operation.operation_id} nor {plan.operation.operation_id} shows a row"
                )
            items = [one for one in shown if isinstance(one, dict)] if isinstance(shown, list) else []
            if name is None or (items and name not in items[0]):
                return
            if any(str(one.get(name)) == str(made[name]) for one in items):
                return
            seen += len(items)
            if not items or seen >= count or not self._turn(plan, arguments, items[-1].get(table.key.column), seen):
                raise _Broken(f"{plan.operation.operation_id} does not show it")

    def _turn(self, plan: Plan, arguments: dict[str, Any], last: Any, seen: int) -> bool:
        """Set what asks for the page after the row with the key `last`. `seen`: the rows until there."""
        tool = self._tools[plan.operation.operation_id]
        for argument, parameter in tool.plan.parameters.items():
            schema = tool.tool.input_schema["properties"][argument]
            if parameter.location != "query":
                continue
            if parameter.name == plan.query.cursor and last is not None:
                value = last
            elif parameter.name == plan.query.page:
                first = next((one for one in map(schema.get, ("default", "minimum")) if isinstance(one, int)), 1)
                value = max(int(arguments.get(argument, first)), first) + 1
            elif parameter.name == plan.query.offset:
                value = seen
            else:
                continue
            arguments[argument] = _as_wanted(schema, value)
            return True
        return False

    def _check_change(self, read: Plan, path: list[Any], table: Table) -> None:
        change = self._of("update") or self._of("replace")
        if change is None:
            return
        before = self._found(read, path)
        name = change.operation.operation_id
        lookups = change.item.lookups if change.item is not None else ()
        keys = {table.key.column, *(column for _, column in lookups)}
        fields = {
            one: field for one, field in self._plain_fields(change, table).items() if one in before and one not in keys
        }
        if not fields:
            return
        body = self._tools[name].plan.body
        assert body is not None  # it has fields
        field, (argument, schema) = next(iter(fields.items()))
        own = (keys | fields.keys()) & before.keys() - {field}
        kept = {one: before[column] for one, column in body.properties.items() if column in own}
        for attempt in range(_TRIES):
            new = self._maker(change, attempt + _TRIES).make(schema, field, table.singular, 1)
            new = not before[field] if isinstance(new, bool) else new
            arguments = self._arguments(change, path, attempt, {argument: new})
            arguments |= {one: value for one, value in kept.items() if one in arguments}
            result = self._call(change, arguments)
            if not result.is_error and new != before[field]:
                break
        else:
            self.untried = f"no call of {name} was accepted: {_short(result)}"
            return
        after = self._found(read, path)
        if after.get(field) != new:
            raise _Broken(
                f"{name} was sent {field} {new!r}, and {read.operation.operation_id} gives {after.get(field)!r}"
            )
        if change.role == "update":
            given = [words_of(body.properties.get(one, one))[-1:] for one in arguments]
            for other, value in before.items():
                if (
                    words_of(other)[-1:] not in given
                    and "".join(words_of(other)) not in CHANGED
                    and after.get(other) != value
                    and not isinstance(value, dict | list)
                ):
                    raise _Broken(f"{name} was not sent {other}, and changes it from {value!r} to {after.get(other)!r}")

    def _check_delete(self, read: Plan, key: str, made: Mapping[str, Any], path: list[Any]) -> None:
        delete = self._of("delete")
        if delete is None:
            return
        result = self._call(delete, self._arguments(delete, self._path(delete, key, made), 0))
        if result.is_error:
            raise _Broken(f"{delete.operation.operation_id} refuses: {_short(result)}")
        again = self._call(read, self._arguments(read, path, 0))
        if not again.is_error:
            raise _Broken(f"{read.operation.operation_id} still finds it after {delete.operation.operation_id}")

    # -- calls --------------------------------------------------------------------------------------------------------

    def _of(self, role: Role) -> Plan | None:
        return next((plan for plan in self._own if plan.role == role), None)

    def _call(self, plan: Plan, arguments: Mapping[str, Any]) -> ToolResult:
        return self._world.call_now(self._tools[plan.operation.operation_id].tool.name, arguments)

    def _inside(self, plan: Plan, result: ToolResult) -> Any:
        """What an answer's envelope holds."""
        found: Any = result.structured
        for step in plan.envelope.path if plan.envelope is not None else ():
            found = found.get(step) if isinstance(found, dict) else None
        return found

    def _row(self, plan: Plan, result: ToolResult) -> Mapping[str, Any]:
        found = self._inside(plan, result)
        found = found[0] if isinstance(found, list) and len(found) == 1 else found
        return found if isinstance(found, dict) else {}

    def _maker(self, plan: Plan, attempt: int) -> Maker:
        tool = self._tools[plan.operation.operation_id].tool
        schemas = tool.input_schema.get("$defs", {})
        document = replace(self._blueprint.document, schemas=schemas, operations=())
        return Maker(Shapes(document), Random(f"{tool.name}/{attempt}"), self._world.now, rich=attempt % 2 == 1)

    def _arguments(
        self, plan: Plan, path: list[Any], attempt: int, given: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The arguments that a call needs beside those `given`. `path`: the values of its path, in order."""
        tool = self._tools[plan.operation.operation_id]
        maker, schema = self._maker(plan, attempt), tool.tool.input_schema
        singular = self._tables[plan.table].singular if plan.table is not None else ""
        known = {
            name: value for name, value in zip(names_of(plan.operation.path), path, strict=False) if value is not None
        }
        found = {name: value for name, value in (given or {}).items() if value is not NOTHING}
        together = (other for name in list(found) for other in schema.get("dependentRequired", {}).get(name, ()))
        for name in [*schema.get("required", ()), *together]:
            if name in found:
                continue
            made = maker.make(schema["properties"][name], name, singular, 1)
            if made is not NOTHING:
                found[name] = self._showable(plan, name, made)
        body = tool.plan.body
        if plan.table is not None and body is not None:
            inside: Any = found
            for step in plan.body_path:
                inside = found.get(next((one for one, own in body.properties.items() if own == step), "body"), {})
            for row in inside if isinstance(inside, list) else [inside]:
                if isinstance(row, dict):
                    self._refer(self._tables[plan.table], row)
            if body.whole is not None and isinstance(found.get(body.whole), dict):
                self._refer(self._tables[plan.table], found[body.whole])
        for argument, parameter in tool.plan.parameters.items():
            if parameter.location == "path" and parameter.name in known:
                found[argument] = _as_wanted(schema["properties"][argument], known[parameter.name])
            elif parameter.location == "path" and isinstance(found.get(argument), str):
                found[argument] = found[argument].replace("/", "-")  # one step of the path
        return found

    def _showable(self, plan: Plan, argument: str, made: Any) -> Any:
        """A value for an argument that the row's schema takes, too, where what was made by the request's is none."""
        body = self._tools[plan.operation.operation_id].plan.body
        if body is None or plan.table is None or plan.body_path:
            return made
        shapes = self._blueprint.shapes
        name = body.properties.get(argument, argument)
        shown = shapes.of(shapes.of(self._tables[plan.table].schema).properties.get(name, True))
        asked = self._tools[plan.operation.operation_id].tool.input_schema["properties"][argument]
        is_other = isinstance(asked, dict) and "type" in asked and not kind_fits(shown, made)
        if isinstance(made, dict | list) or is_other or scalar_fits(shown, made):
            return made
        other = Maker(shapes, Random(argument), self._world.now, rich=True).make_shape(shown, name)
        return made if other is NOTHING else other

    def _refer(self, table: Table, values: dict[str, Any]) -> None:
        """Name rows that exist where a row must name others."""
        for name in list(values):
            column = next((one for one in table.links if words_of(one) == words_of(name)), None)
            if column is None or column in nested_in(table, self._tables):
                continue
            link = table.links[column]
            key = next((key for key, _ in self._store.items(link.table)), None)
            if key is None:
                continue
            value = self._store.value({LINK: [link.table, key]})
            held = values[name]
            if isinstance(held, dict):
                held[self._tables[link.table].key.column] = value
            else:
                values[name] = [value] if isinstance(held, list) else value

    def _sent_and_read(self, plan: Plan, table: Table) -> Iterator[tuple[str, str, Shape, Shape]]:
        """Argument, column, and the column's shapes in a row and where it is read: of the columns that are both sent
        and read, and name no other row."""
        tool, read, shapes = self._tools[plan.operation.operation_id], self._of("read"), self._blueprint.shapes
        if read is None or read.envelope is None or tool.plan.body is None:
            return
        row, shown = shapes.of(table.schema).properties, shapes.of(read.envelope.item).properties
        kept = {*table.links, *(part.column for part in table.parts)}
        for argument, name in tool.plan.body.properties.items():
            if name in row and name in shown and name not in kept:
                yield argument, name, shapes.of(row[name]), shapes.of(shown[name])

    def _plain_fields(self, plan: Plan, table: Table) -> dict[str, tuple[str, Any]]:
        """Column -> argument and schema, of the plain texts and flags that are both sent and read."""
        schemas = self._tools[plan.operation.operation_id].tool.input_schema["properties"]
        found: dict[str, tuple[str, Any]] = {}
        for argument, name, *both in self._sent_and_read(plan, table):
            schema, kinds = schemas[argument], [_plain_kind(one) for one in both]
            if isinstance(schema, dict) and kinds[0] and set(kinds) == _types(schema) and not _SHAPING & schema.keys():
                found[name] = (argument, schema)
        return found

    def _scalars(self, plan: Plan, table: Table, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Column -> what was sent of it, of the columns that are read as one value and name no other row."""
        return {
            name: arguments[argument]
            for argument, name, _, shown in self._sent_and_read(plan, table)
            if isinstance(arguments.get(argument), str | int | float)
            if not shown.write_only and shown.kinds & {"string", "integer", "number", "boolean"}
        }

    # -- what a row is called -----------------------------------------------------------------------------------------

    def _values(self, item: Item | None, key: str) -> list[Any]:
        """The values of a path that leads to the row `key`; None for those that no row has."""
        if item is None:
            return []
        table = self._tables[item.table]
        row = self._store.get(item.table, key) or {}
        above = self._above(item.context, table, row)
        values = self._values(item.context, above) if above is not None else []
        own = [self._store.value(row.get(column)) for _, column in item.lookups]
        unknown = len(names_of(item.path)) - len(values) - len(own)
        return [*values, *[None] * unknown, *own]

    def _above(self, context: Item | None, table: Table, row: Mapping[str, Any]) -> str | None:
        if context is None:
            return None
        rows = (key for key, _ in self._store.items(context.table))
        return next((key for key in rows if self._store.belongs(table, dict(row), context.table, key)), None)

    def _path(self, plan: Plan, key: str, made: Mapping[str, Any]) -> list[Any]:
        """The path to the new row, by what the answer calls it."""
        values = self._values(plan.item, key)
        names = names_of(plan.operation.path)
        if values and plan.item is not None:
            parameter = next(
                one for one in plan.operation.parameters if (one.location, one.name) == ("path", names[-1])
            )
            said = _said(made, parameter, self._tables[plan.item.table].singular)
            values[-1] = values[-1] if said is None else said
        return values


def _said(row: Mapping[str, Any], parameter: Parameter, singular: str) -> Any:
    """What an answer gives for a path's parameter: the property of its name, or else the id, where its type fits."""
    words, own, schema = words_of(parameter.name), words_of(singular), parameter.schema
    wanted = [words, words[len(own) :] if words[: len(own)] == own else [], [*own, *words]]
    wanted += [words[-1:]] if set(words[-1:]) & KEY_TAILS and words != own else []
    wanted += [[one] for one in words_of(parameter.description) if one in KEY_TAILS]
    is_text = _types(schema) == {"string"}
    inner = row.get("metadata")
    for candidate in filter(None, [*wanted, *([one] for one in IDENTIFIERS if not _NUMBERED & set(words))]):
        for held in (row, inner if isinstance(inner, Mapping) else {}):
            for name, value in held.items():
                fits = isinstance(value, str) or (isinstance(value, int) and (candidate in wanted or not is_text))
                if words_of(name) == candidate and fits and not isinstance(value, bool):
                    return value
    return None


def _reads_as(shown: Any, sent: Any) -> bool:
    """Whether one value is the other in the form of an answer: `EUR` as `eur`, `"7"` as `7`, `7` as `{"id": 7}`."""
    if isinstance(shown, dict | list):
        inside = shown.values() if isinstance(shown, dict) else shown
        return any(_reads_as(one, sent) for one in inside)
    return shown == sent or words_of(str(shown)) == words_of(str(sent))


def _types(schema: Any) -> set[Any]:
    kind = schema.get("type") if isinstance(schema, dict) else None
    return set(kind) - {"null"} if isinstance(kind, list) else {kind}


def _plain_kind(shape: Shape) -> str | None:
    """The type of a text or a flag that may have any value and that a caller may set."""
    is_free = shape.enum is None and not shape.choices and not _SHAPING & shape.says.keys()
    is_free = is_free and not shape.read_only and not shape.write_only
    return shape.kind if is_free and shape.kind in {"string", "boolean"} else None


def _as_wanted(schema: Any, value: Any) -> Any:
    """A value in the type that the tool asks for, where it has one."""
    kinds = _types(schema) - {None}
    if isinstance(value, str) and "string" not in kinds and "integer" in kinds and value.isdigit():
        return int(value)
    return str(value) if isinstance(value, int) and kinds and not {"integer", "number"} & kinds else value


def _short(result: ToolResult) -> str:
    return " ".join(result.text.split())[:160]
