"""Python functions as tools: the name, the docstring and the type hints become the tool; `behaves`
adds its annotations."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import re
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Optional, TypeVar

import anyio
import anyio.to_thread
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUndefinedAnnotation, PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import PydanticSerializationError, to_jsonable_python

from ..errors import CallTimeout, ServerDied, SourceError, ToolFailure, kind_of
from ..records import EMPTY, Tool, ToolAnnotations, ToolResult, WorldKind, compact_json, error_result
from ..toolsets.schema_checks import compiled_schema, schema_errors
from ..world import Setup, SharedWorld

_MARK = "__toolbake_annotations__"

Function = TypeVar("Function", bound=Callable[..., Any])


def behaves(
    *,
    read_only: bool | None = None,
    destructive: bool | None = None,
    idempotent: bool | None = None,
    open_world: bool | None = None,
) -> Callable[[Function], Function]:
    """A decorator that says of a function what it does, for the guard and for calls after a lost answer.

        @mcp_bridge.behaves(read_only=True)
        def get_order(order_id: str) -> str: ...

    Raises `SourceError` where nothing is said, or that it only reads and destroys.
    """
    said = ToolAnnotations(read_only=read_only, destructive=destructive, idempotent=idempotent, open_world=open_world)
    if said == ToolAnnotations():
        raise SourceError("behaves() says nothing; give read_only, destructive, idempotent or open_world")
    if read_only and destructive:
        raise SourceError("behaves() has both read_only and destructive; what only reads destroys nothing")

    def mark(function: Function) -> Function:
        setattr(function, _MARK, said)
        return function

    return mark


def behaviour_of(function: Callable[..., Any]) -> ToolAnnotations:
    """What was said of a function, or of the one inside a `partial`."""
    while isinstance(function, functools.partial) and not hasattr(function, _MARK):
        function = function.func
    found = getattr(function, _MARK, None)
    return found if isinstance(found, ToolAnnotations) else ToolAnnotations()


_MOST_THREADS = 256
"""Sync functions that run at once; further calls wait for a thread within their time limit."""

_TOOL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")


class FunctionTool:
    """One function as a tool. Sync functions run in a worker thread, so a slow one blocks nobody."""

    def __init__(self, function: Callable[..., Any]) -> None:
        """Raises `SourceError` where the function cannot be a tool: no name, a parameter without a hint."""
        self._function = function
        self._is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - the method is looked at, not tested for
        )
        name = function_name(function)
        if not _TOOL_NAME.fullmatch(name):
            raise SourceError(
                f"a function named {name!r} cannot be a tool: give it a name with `def`, of letters, digits and '_'"
            )
        if inspect.isasyncgenfunction(function):
            raise SourceError(f"function {name!r} cannot be a tool: it is an async generator; return a list")
        self._arguments, self._declared = _argument_model(name, function)
        self._parameters = {field: one.alias or field for field, one in self._arguments.model_fields.items()}
        self.tool = Tool(
            name=name,
            description=inspect.getdoc(_documented(function)) or "",
            input_schema=_schema(name, self._arguments),
            output_schema=_output_schema(function),
            annotations=behaviour_of(function),
            source=f"function {function.__module__}.{name}" if hasattr(function, "__module__") else f"function {name}",
        )

    async def call(self, arguments: Mapping[str, Any], *, threads: anyio.CapacityLimiter) -> ToolResult:
        """Convert the arguments to the hinted types and call.

        An exception of the function comes back as a `tool_error` that the policy reads; a `ToolFailure` is raised. What
        the function is given is its own: what it changes there, or keeps, is not what the policy is said to have given.
        """
        try:
            own = copy.deepcopy(dict(arguments))
        except RecursionError:
            return error_result(f"{self.tool.name}: the arguments are nested too deeply", "invalid_arguments")
        converted = self.convert(own)
        if isinstance(converted, ToolResult):
            return converted
        try:
            bound = functools.partial(self._function, **converted)
            value = await (bound() if self._is_async else self._in_thread(bound, threads))
            return self._to_result(value)  # which runs code of the function's own, such as computed fields
        except Exception as raised:
            problem = _in_group(raised)
            if not isinstance(problem, ToolFailure):
                return error_result(f"{type(problem).__name__}: {problem}", "tool_error")
            if problem.delivery == "unknown" and not isinstance(problem, CallTimeout | ServerDied):
                problem.delivery = "answered"  # it came back, and says that it failed
            raise problem from problem.__cause__
        except SystemExit as problem:
            # Code that was written for a command line must not end a run of thousands of rollouts.
            raise ToolFailure(
                f"function {self.tool.name!r} tried to end the program (SystemExit: {problem})", delivery="answered"
            ) from problem

    def convert(self, arguments: Mapping[str, Any]) -> dict[str, Any] | ToolResult:
        """The arguments in the hinted types, by name; or the error that the caller reads."""
        try:
            model = self._arguments.model_validate(dict(arguments))
        except ValidationError as problem:
            return error_result(_conversion_problem(self.tool.name, problem), "invalid_arguments")
        # Only what was given: the function's own defaults stay the function's own, but for those of a `Field`.
        given = model.model_fields_set | self._declared
        return {name: getattr(model, field) for field, name in self._parameters.items() if field in given}

    async def _in_thread(self, bound: Callable[[], Any], threads: anyio.CapacityLimiter) -> Any:
        # Abandoned on a time limit: a thread cannot be stopped, but nobody waits for it any more.
        def work() -> Any:
            value = bound()
            return list(value) if inspect.isgenerator(value) else value

        value = await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=threads)
        return await value if isinstance(value, Awaitable) else value

    def _to_result(self, value: Any) -> ToolResult:
        if isinstance(value, ToolResult):
            return value
        if isinstance(value, str):
            return ToolResult(text=value or EMPTY, structured=None if self.tool.output_schema is None else value)
        if value is None:
            return ToolResult(text=EMPTY)
        try:
            structured = to_jsonable_python(value)
            return ToolResult(text=compact_json(structured), structured=structured)
        except (PydanticSerializationError, TypeError, ValueError) as problem:
            raise ToolFailure(
                f"function {self.tool.name!r} returned {kind_of(value)} that has no JSON form ({problem}); "
                "return a string, numbers, lists, dicts, a dataclass or a pydantic model",
                delivery="answered",
            ) from problem


class FunctionSource:
    """Functions as a source of worlds. The functions, and whatever they change, are shared by all worlds."""

    has_state = False
    can_setup = False

    def __init__(self, functions: Sequence[Callable[..., Any]]) -> None:
        self._tools = [FunctionTool(function) for function in functions]
        self._threads = anyio.CapacityLimiter(_MOST_THREADS)

    @property
    def tools(self) -> list[Tool]:
        return [one.tool for one in self._tools]

    @property
    def world_kind(self) -> WorldKind:
        only_reads = all(tool.annotations.read_only for tool in self.tools)
        return WorldKind(source="functions", kind="shared", is_fresh=only_reads)

    @contextlib.asynccontextmanager
    async def open_world(self, world_id: str, setup: Setup | None = None) -> AsyncIterator[SharedWorld]:  # noqa: ARG002
        tools = {one.tool.name: one for one in self._tools}
        yield SharedWorld(self.tools, lambda name, arguments, _: tools[name].call(arguments, threads=self._threads))


def function_name(function: Callable[..., Any]) -> str:
    """The name of a function, of the function in a `partial`, or of a callable object's class."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def _documented(function: Callable[..., Any]) -> Any:
    """The thing whose docstring describes the tool; a `partial`'s own docstring is about `partial`."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _in_group(error: Exception) -> Exception:
    """The first tool failure of an exception group, or its first error; the error itself where it is not a group."""
    if not isinstance(error, ExceptionGroup):
        return error
    failures, _ = error.split(ToolFailure)
    return _in_group((failures or error).exceptions[0])


def _argument_model(name: str, function: Callable[..., Any]) -> tuple[type[BaseModel], set[str]]:
    """The model of the arguments, and those of its fields whose default is in a `Field`, of which the function knows
    nothing."""
    try:
        parameters = inspect.signature(function).parameters
        hints = _hints(function)
    except (NameError, TypeError, ValueError) as problem:
        raise SourceError(f"the type hints of function {name!r} cannot be read: {problem}") from problem
    fields: dict[str, Any] = {}
    unknown_to_the_function: set[str] = set()
    # Python would let a call replace what a `partial` binds, and the schema would show it: a customer's id, or a key.
    bound = _bound(function)
    for parameter in parameters.values():
        if parameter.name in bound:
            continue
        _accept(name, parameter, hints)
        # Fields get neutral names with the real one as alias: a parameter may be called `copy` or `_id`.
        field, hint, default = f"argument_{len(fields)}", hints[parameter.name], parameter.default
        if isinstance(default, FieldInfo):  # `count: int = Field(default=5, ge=1)`
            fields[field] = (Annotated[hint, default], Field(alias=parameter.name))
            unknown_to_the_function.add(field)
        elif default is inspect.Parameter.empty:
            fields[field] = (hint, Field(alias=parameter.name))
            unknown_to_the_function.add(field)
        else:
            if default is None and not _takes_none(hint):  # `limit: int = None`
                hint = Optional[hint]  # noqa: UP045 - a hint may be text, which has no `|`
            fields[field] = (hint, Field(default, alias=parameter.name))
    try:
        model = create_model(
            name,
            __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=False, protected_namespaces=()),
            **fields,
        )
        return model, {field for field in unknown_to_the_function if not model.model_fields[field].is_required()}
    except (PydanticUserError, PydanticUndefinedAnnotation) as problem:
        hinted = {parameter: hints[parameter] for parameter in parameters if parameter not in bound}
        raise _no_json_form(name, hinted, problem) from problem


def _bound(function: Callable[..., Any]) -> set[str]:
    """The names of the arguments that a `partial` binds by keyword; its positional ones are not in its signature."""
    return set(function.keywords) if isinstance(function, functools.partial) else set()


def _takes_none(hint: Any) -> bool:
    try:
        TypeAdapter(hint).validate_python(None)
    except ValidationError:
        return False
    except PydanticUserError:  # it has no JSON form, as will be said
        return True
    except Exception:  # a validator of the user's, which was not made for None
        return False
    return True


def _accept(name: str, parameter: inspect.Parameter, hints: Mapping[str, Any]) -> None:
    if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY}:
        shown = str(parameter.replace(annotation=parameter.empty))
        raise SourceError(
            f"function {name!r} cannot be a tool: parameter '{shown}' has no name that a model can fill in; "
            "write each argument as a named parameter"
        )
    if parameter.name not in hints:
        raise SourceError(
            f"function {name!r} cannot be a tool: parameter {parameter.name!r} has no type hint; "
            f"write for example `{parameter.name}: str`"
        )


def _schema(name: str, model: type[BaseModel]) -> dict[str, Any]:
    try:
        schema = model.model_json_schema(by_alias=True)
    except PydanticInvalidForJsonSchema as problem:
        hinted = {one.alias or field: one.annotation for field, one in model.model_fields.items()}
        raise _no_json_form(name, hinted, problem) from problem
    schema.pop("title", None)
    schema.setdefault("properties", {})
    for argument in schema["properties"].values():
        # pydantic derives titles from the names; to a model they are noise.
        argument.pop("title", None)
    return schema


def _no_json_form(name: str, hinted: Mapping[str, Any], problem: Exception) -> SourceError:
    """The error that names the argument, which pydantic does not. `hinted`: argument -> type hint."""
    place = next((f"argument {one!r} of " for one, hint in hinted.items() if not _has_json_form(hint)), "")
    told = str(problem).partition("\n")[0].partition(". ")[0].rstrip(".")
    fix = "write it with str, int, float, bool, list, dict, a dataclass or a pydantic model"
    if isinstance(problem, PydanticUserError) and problem.code == "typed-dict-version":
        told = "it has a typing.TypedDict"
        fix = "before Python 3.12 use typing_extensions.TypedDict: `from typing_extensions import TypedDict`"
    return SourceError(f"the type hint of {place}function {name!r} has no JSON form: {told}; {fix}")


def _has_json_form(hint: Any) -> bool:
    try:
        TypeAdapter(hint).json_schema()
    except (PydanticUserError, PydanticUndefinedAnnotation):
        return False
    return True


class _OfAnswers(GenerateJsonSchema):
    """Without the formats that a time without a zone is against: some clients judge answers by them."""

    def datetime_schema(self, schema: Any) -> JsonSchemaValue:  # noqa: ARG002
        return {"type": "string"}

    time_schema = datetime_schema


def _output_schema(function: Callable[..., Any]) -> dict[str, Any] | None:
    """What the function returns, by its type hint; None where that may be any text or nothing, which is text alone."""
    hint = _hints(function).get("return", Any)
    if hint in (Any, str, None, type(None), ToolResult):
        return None
    try:
        schema = TypeAdapter(hint).json_schema(mode="serialization", schema_generator=_OfAnswers)
    except (PydanticUserError, PydanticUndefinedAnnotation, TypeError):
        return None
    validator = compiled_schema(schema, is_known_valid=True)
    return None if any(not schema_errors(validator, one, most=1) for one in ("any text", None)) else schema


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    hinted = _documented(function)
    if not inspect.isroutine(hinted):
        hinted = type(hinted).__call__
    return typing.get_type_hints(hinted, include_extras=True)


def _conversion_problem(name: str, problem: ValidationError) -> str:
    lines = [f"Invalid arguments for {name}; nothing was called."]
    for one in problem.errors(include_url=False, include_context=False, include_input=False):
        lines.append(f"- {'.'.join(str(part) for part in one['loc']) or 'the arguments'}: {one['msg']}")
    return "\n".join(lines)
