"""A domain of τ²-bench as an object twin, whose scenarios are the domain's tasks."""

from __future__ import annotations

import ast
import copy
import inspect
import json
import operator
from collections.abc import Mapping
from typing import Any

from domains import Environment, origin, package_tasks
from pydantic import BaseModel
from tau2.environment.toolkit import ToolKitBase as ToolKit
from tau2.environment.toolkit import ToolType

from mcp_bridge import Tool
from sandboxes import Refused
from sandboxes.changes import State
from sandboxes.objects import ObjectTwin

BEGINNING = "default"
"""The scenario of a domain as the package makes it, before a task changes it."""
USER = "user"
"""The object on the user's side of a world; its tools are the user's."""


class Rows(dict[str, Any]):
    """A table that shares its rows with other worlds: it copies a row before it gives it out.

    Loops over `values()` and `items()` see the shared rows: the package's tools only look at what they loop over.
    """

    def __init__(self, rows: Mapping[str, Any]) -> None:
        super().__init__(rows)
        self._own: set[str] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return Rows, (dict(self),)

    def __getitem__(self, key: str) -> Any:
        if key in self and key not in self._own:
            self[key] = copy.deepcopy(super().__getitem__(key))
        return super().__getitem__(key)

    def __setitem__(self, key: str, row: Any) -> None:
        super().__setitem__(key, row)
        self._own.add(key)

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401 - it is what this defines


class Tau2Twin(ObjectTwin):
    """The agent's tools of a domain and, in telecom, those of the user's phone, over one world."""

    def __init__(self, domain: str) -> None:
        self.domain = domain
        kits = kits_of(origin(domain))
        reads = {name for kit in kits.values() for name in kit.tools if kit.tool_type(name) is ToolType.READ}
        self._changing = {name for kit in kits.values() for name in kit.tools} - reads
        super().__init__(
            {name: lambda kit=kit: forked(kit) for name, kit in kits.items()},
            name=domain,
            load=self._prepare,
            scenarios=(BEGINNING, *package_tasks(domain)),
            methods=reads | self._changing,
            schemas={tool.name: tool for owner, kit in kits.items() for tool in _tools(owner, kit)},
            reads=reads,
            undo=False,  # the package takes nothing back after an exception; nor do we, to be comparable
            copy=lambda world: {name: forked(kit) for name, kit in world.items()},
        )

    def environment(self) -> Environment:
        """This world as the package sees it; what the agent's and the user's side have in common is made equal."""
        return _environment(self.domain, self.objects)

    def state(self) -> State:
        """The rows that are not as in the beginning; of tables that are lists, all."""
        state: State = {"clock": {"world": {"now": self.now.isoformat()}}}
        for owner, kit in self.objects.items():
            first = kits_of(origin(self.domain))[owner].db
            state |= {table: _rows(rows, getattr(first, table)) for table, rows in kit.db}
        return state

    def jsonable(self, value: Any) -> Any:
        return value if isinstance(value, str) else json.loads(Environment.to_json_str(value))

    def _prepare(self, world: dict[str, Any], seed: int, scenario: str) -> None:  # noqa: ARG002 - tasks have no seeds
        first = None if scenario == BEGINNING else package_tasks(self.domain)[scenario].initial_state
        if first is not None:
            _environment(self.domain, world).set_state(first.initialization_data, first.initialization_actions, [])

    def _run(self, name: str, arguments: dict[str, Any]) -> Any:
        if name == "calculate":
            return _calculated(arguments["expression"])
        bills = len(self.objects[self.domain].db.bills) if name == "refuel_data" else None
        try:
            found = super()._run(name, arguments)
        except Refused as refusal:
            raise Refused(f"Error: {refusal.__cause__}") from refusal  # as the package words it
        if name in self._changing:
            _name_new_bills(self.objects[self.domain], bills)
            self.environment()
        return found


def kits_of(environment: Environment) -> dict[str, ToolKit]:
    """The tool kits of an environment by the names of the objects in a world."""
    both = {environment.domain_name: environment.tools, USER: environment.user_tools}
    return {owner: kit for owner, kit in both.items() if kit is not None}


def forked(kit: ToolKit) -> ToolKit:
    """A tool kit of its own, over tables that share their rows with those of `kit`."""
    memo: dict[int, Any] = {}
    tables = {name: Rows(rows) if isinstance(rows, dict) else copy.deepcopy(rows, memo) for name, rows in kit.db}
    fork = type(kit)(kit.db.model_copy(update=tables))
    for name, value in inspect.getmembers_static(type(kit)):
        if isinstance(value, BaseModel):  # the package hands it out and changes it: each kit has a copy of its own
            setattr(fork, name, copy.deepcopy(getattr(kit, name), memo))
    return fork


def _environment(domain: str, world: Mapping[str, ToolKit]) -> Environment:
    return type(origin(domain))(domain, "", *world.values())


def _tools(owner: str, kit: ToolKit) -> list[Tool]:
    described = [tool.openai_schema["function"] for tool in kit.get_tools().values()]
    return [
        Tool(name=one["name"], description=one["description"], input_schema=one["parameters"], source=owner)
        for one in described
    ]


def _rows(rows: Any, first: Any) -> dict[str, dict[str, Any]]:
    if isinstance(rows, dict):
        changed = {key: _text(row) for key, row in rows.items() if row is not first.get(key)}
        return {key: json.loads(text) for key, text in changed.items() if key not in first or text != _text(first[key])}
    if isinstance(rows, list):
        return {str(place): json.loads(_text(row)) for place, row in enumerate(rows)}
    return {column: {"value": value} for column, value in json.loads(_text(rows)).items()}


def _text(row: Any) -> str:
    """What the package hashes of a row."""
    return json.dumps(row.model_dump(warnings=False), sort_keys=True, default=str)


def _name_new_bills(kit: ToolKit, known: int | None) -> None:
    """The package names a new bill by chance: the same calls would lead to another state each time."""
    for bill in [] if known is None else kit.db.bills[known:]:
        ids = kit.get_customer_by_id(bill.customer_id).bill_ids
        ids[ids.index(bill.bill_id)] = bill.bill_id = f"B{len(kit.db.bills):08}"


_ARITHMETIC = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


def _calculated(expression: str) -> str:
    """What the package's `calculate` returns. That one evaluates what the model wrote; this one only does sums."""
    try:
        if set(expression) - set("0123456789+-*/(). "):
            raise ValueError("Invalid characters in expression")
        return str(round(float(_value(ast.parse(expression.lstrip(), "<string>", "eval").body)), 2))
    except (ArithmeticError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Refused(f"Error: {error}") from error


def _value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.UnaryOp(op=sign, operand=one) if type(sign) in _ARITHMETIC:
            return _ARITHMETIC[type(sign)](_value(one))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _ARITHMETIC:
            return _ARITHMETIC[type(sign)](_value(left), _value(right))
    raise ValueError("Only numbers, +, -, *, / and parentheses are calculated")
