"""Python functions as tools."""

import dataclasses
import functools
import sys
import threading
from typing import Annotated, Any, Literal, TypedDict

import anyio
import pytest
from pydantic import BaseModel, BeforeValidator, Field, computed_field

import mcp_bridge
from mcp_bridge import CallTimeout, SourceError, ToolFailure, ToolResult


class Address(BaseModel):
    street: str
    number: int = 1


def ship(
    order_id: Annotated[str, Field(description="As printed on the invoice.")],
    address: Address,
    speed: Literal["slow", "fast"] = "slow",
) -> dict[str, Any]:
    """Ship an order.

    Only once.
    """
    assert isinstance(address, Address)
    return {"order": order_id, "to": f"{address.street} {address.number}", "speed": speed}


async def test_name_docstring_and_hints_become_the_tool() -> None:
    async with mcp_bridge.connect(ship) as toolset:
        [tool] = toolset.tools
        assert tool.name == "ship"
        assert tool.description == "Ship an order.\n\nOnly once."
        properties = tool.input_schema["properties"]
        assert properties["order_id"] == {"type": "string", "description": "As printed on the invoice."}
        assert properties["speed"] == {"type": "string", "enum": ["slow", "fast"], "default": "slow"}
        assert tool.input_schema["required"] == ["order_id", "address"]
        assert tool.input_schema["additionalProperties"] is False


async def test_arguments_are_converted_to_the_hinted_types() -> None:
    async with mcp_bridge.connect(ship) as toolset:
        result = await toolset.call("ship", {"order_id": "A-1", "address": {"street": "Quay"}})
        assert result.structured == {"order": "A-1", "to": "Quay 1", "speed": "slow"}
        assert result.text == '{"order":"A-1","to":"Quay 1","speed":"slow"}'
        wrong = await toolset.call("ship", {"order_id": "A-1", "address": {"street": 4}, "speed": "now"})
        assert wrong.error_kind == "invalid_arguments"
        assert "address.street is 4; expected string" in wrong.text
        assert 'speed is "now"; expected one of "slow", "fast"' in wrong.text


@pytest.mark.parametrize("first", [1, 2**70, "\ud800"])
async def test_what_a_function_does_to_its_arguments_is_done_to_its_own(first: Any) -> None:
    kept: list[Any] = []

    def place(order: dict[str, Any], notes: Any) -> str:
        kept.append(order)
        order["items"].append("more")
        notes.clear()
        return "placed"

    given = {"order": {"items": [first]}, "notes": [[1]]}
    async with mcp_bridge.connect(place) as toolset:
        assert (await toolset.call("place", given)).text == "placed"
    assert kept[0]["items"] == [first, "more"]
    assert given == {"order": {"items": [first]}, "notes": [[1]]}


async def test_parameters_may_have_names_that_pydantic_keeps_for_itself() -> None:
    def odd(copy: int, _hidden: int, model_config: int, schema: int = 4) -> list[int]:
        return [copy, _hidden, model_config, schema]

    async with mcp_bridge.connect(odd) as toolset:
        result = await toolset.call("odd", {"copy": 1, "_hidden": 2, "model_config": 3})
        assert result.structured == [1, 2, 3, 4]


async def test_an_exception_of_a_function_is_readable_and_a_tool_failure_is_raised() -> None:
    def refund(order_id: str) -> str:
        if order_id == "down":
            raise ToolFailure("the billing system is down")
        raise ValueError(f"order {order_id} is already refunded")

    async with mcp_bridge.connect(refund) as toolset:
        result = await toolset.call("refund", {"order_id": "A-1"})
        assert (result.text, result.error_kind) == ("ValueError: order A-1 is already refunded", "tool_error")
        with pytest.raises(ToolFailure, match="billing system is down"):
            await toolset.call("refund", {"order_id": "down"})


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_a_function_that_wants_to_end_the_program_is_a_broken_tool(kind: str) -> None:
    def ends() -> str:
        sys.exit("usage: ends")

    async def ends_async() -> str:
        sys.exit("usage: ends")

    async with mcp_bridge.connect(ends if kind == "plain" else ends_async) as toolset:
        with pytest.raises(ToolFailure, match=r"tried to end the program \(SystemExit: usage: ends\)") as raised:
            await toolset.call(toolset.tools[0].name, {})
    assert raised.value.delivery == "answered"


async def test_sync_functions_run_in_threads_and_do_not_block_each_other() -> None:
    barrier = threading.Barrier(60, timeout=30)

    def meet() -> int:
        return barrier.wait()

    async with mcp_bridge.connect(meet) as toolset:
        places: set[int] = set()

        async def call() -> None:
            places.add((await toolset.call("meet", {})).structured)

        async with anyio.create_task_group() as group:
            for _ in range(60):
                group.start_soon(call)
        assert places == set(range(60))


async def test_a_sync_function_over_its_time_limit_is_abandoned() -> None:
    release = threading.Event()

    def slow() -> str:
        release.wait(30)
        return "late"

    async with mcp_bridge.connect(slow) as toolset:
        with pytest.raises(CallTimeout):
            await toolset.call("slow", {}, timeout_s=0.05)
        release.set()
        assert (await toolset.call("slow", {})).text == "late"


async def test_what_is_awaitable_is_awaited_however_it_is_written() -> None:
    async def plain() -> str:
        return "plain"

    class Callable:
        """A callable object."""

        async def __call__(self, number: int) -> str:
            return f"object {number}"

    def hidden() -> Any:
        return plain()

    async with mcp_bridge.connect([plain, Callable(), hidden]) as toolset:
        assert (await toolset.call("plain", {})).text == "plain"
        assert (await toolset.call("Callable", {"number": 2})).text == "object 2"
        assert (await toolset.call("hidden", {})).text == "plain"


async def test_partials_and_methods_are_functions_too() -> None:
    class Shop:
        def price(self, item: str) -> float:
            """The price."""
            return 1.5

    def scale(value: float, factor: float) -> float:
        """Multiply."""
        return value * factor

    async with mcp_bridge.connect([Shop().price, functools.partial(scale, factor=2.0)]) as toolset:
        assert [tool.description for tool in toolset.tools] == ["The price.", "Multiply."]
        assert (await toolset.call("price", {"item": "tea"})).text == "1.5"
        assert (await toolset.call("scale", {"value": 3})).text == "6.0"


async def test_what_a_partial_binds_is_neither_shown_nor_taken_from_a_call() -> None:
    def read(order: str, customer: str, key: threading.Event, most: int = 5) -> str:
        return f"{order} of {customer}, {most}, {key.is_set()}"

    read_own = functools.partial(functools.partial(read, key=threading.Event()), customer="C-1")
    async with mcp_bridge.connect(read_own) as toolset:
        assert list(toolset.tools[0].input_schema["properties"]) == ["order", "most"]
        assert (await toolset.call("read", {"order": "7", "most": 2})).text == "7 of C-1, 2, False"
        assert (await toolset.call("read", {"order": "7", "customer": "C-2"})).error_kind == "invalid_arguments"


@dataclasses.dataclass
class Point:
    x: int


@pytest.mark.parametrize(
    ("value", "text", "structured"),
    [
        ("as it is", "as it is", None),
        ("", "(empty result)", None),
        (None, "(empty result)", None),
        (True, "true", True),
        ([1, "ä"], '[1,"ä"]', [1, "ä"]),
        (Point(3), '{"x":3}', {"x": 3}),
        (ToolResult(text="mine", is_error=True, error_kind="tool_error"), "mine", None),
    ],
)
async def test_return_values_become_text(value: Any, text: str, structured: Any) -> None:
    def give() -> Any:
        return value

    async with mcp_bridge.connect(give) as toolset:
        result = await toolset.call("give", {})
        assert (result.text, result.structured) == (text, structured)


class Share(BaseModel):
    total: float
    parcels: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def mean(self) -> float:
        return self.total / self.parcels


def share(parcels: int) -> Share:
    return Share(total=3, parcels=parcels)


def rows(parcels: int) -> Any:
    for _ in range(2):
        yield {"mean": 3 / parcels}


@pytest.mark.parametrize("function", [share, rows])
async def test_what_a_result_raises_while_it_becomes_text_is_readable(function: Any) -> None:
    async with mcp_bridge.connect(function) as toolset:
        failed = await toolset.call(function.__name__, {"parcels": 0})
        assert (failed.error_kind, "ZeroDivisionError" in failed.text) == ("tool_error", True)
        assert not (await toolset.call(function.__name__, {"parcels": 3})).is_error


async def test_a_generator_runs_in_a_worker_thread() -> None:
    def where() -> Any:
        yield threading.current_thread() is threading.main_thread()

    async with mcp_bridge.connect(where) as toolset:
        assert (await toolset.call("where", {})).structured == [False]


async def test_the_error_in_a_group_counts_and_of_several_a_failure_of_the_tool() -> None:
    async def look_up(order: int) -> None:
        async def fail(error: Exception) -> None:
            raise error

        async with anyio.create_task_group() as group:
            group.start_soon(fail, ValueError("order 7 is not open"))
            if order == 8:
                group.start_soon(fail, ToolFailure("the database is down"))

    async with mcp_bridge.connect(look_up) as toolset:
        read = await toolset.call("look_up", {"order": 7})
        assert (read.error_kind, read.text) == ("tool_error", "ValueError: order 7 is not open")
        with pytest.raises(ToolFailure, match="the database is down"):
            await toolset.call("look_up", {"order": 8})


async def test_fields_as_defaults_are_those_of_the_schema() -> None:
    def find(
        city: str = Field(description="Where."),
        most: int = Field(default=5, ge=1),
        kinds: list[str] = Field(default_factory=list),  # noqa: B008 - people write so
    ) -> Any:
        return [city, most, kinds]

    def paged(page: Annotated[int, Field(default=2)]) -> int:
        return page

    async with mcp_bridge.connect([find, paged]) as toolset:
        schema = toolset.tools[0].input_schema
        assert schema["properties"]["city"] == {"type": "string", "description": "Where."}
        assert schema["properties"]["most"] == {"type": "integer", "default": 5, "minimum": 1}
        assert "city" in schema["required"]
        assert (await toolset.call("paged", {})).structured == 2
        assert (await toolset.call("find", {})).error_kind == "invalid_arguments"
        assert (await toolset.call("find", {"city": "Graz"})).structured == ["Graz", 5, []]
        assert (await toolset.call("find", {"city": "Graz", "most": 0})).error_kind == "invalid_arguments"


async def test_a_default_of_none_may_be_given() -> None:
    def find(city: str, most: int = None) -> str:  # type: ignore[assignment]  # noqa: RUF013 - people write so
        return f"{city} {most}"

    def shout(word: Annotated[str, BeforeValidator(str.strip)] = None) -> str:  # type: ignore[assignment]  # noqa: RUF013
        return f"{word}!"

    async with mcp_bridge.connect([find, shout]) as toolset:
        assert (await toolset.call("shout", {"word": " a "})).text == "a!"
        assert (await toolset.call("find", {"city": "Graz", "most": None})).text == "Graz None"
        assert (await toolset.call("find", {"city": "Graz", "most": "x"})).error_kind == "invalid_arguments"


async def test_a_return_value_without_a_json_form_is_a_failure_of_the_tool() -> None:
    def give() -> Any:
        return object()

    async with mcp_bridge.connect(give) as toolset:
        with pytest.raises(ToolFailure, match="'give' returned an object that has no JSON form"):
            await toolset.call("give", {})


def no_hint(order_id):  # type: ignore[no-untyped-def]
    return order_id


def star(*parts: str) -> str:
    return "".join(parts)


def positional(part: str, /) -> str:
    return part


def unknown_type(thing: object, lock: threading.Barrier) -> str:
    return ""


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (no_hint, "parameter 'order_id' has no type hint; write for example `order_id: str`"),
        (star, r"parameter '\*parts' has no name that a model can fill in"),
        (positional, "has no name that a model can fill in"),
        (
            unknown_type,
            "argument 'lock' of function 'unknown_type' has no JSON form: Unable .*Barrier.*; write it with",
        ),
        (lambda a: a, "a function named '<lambda>' cannot be a tool"),
    ],
)
async def test_a_function_that_cannot_be_a_tool_is_refused(function: Any, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        async with mcp_bridge.connect(function):
            pass


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="pydantic takes typing.TypedDict from Python 3.12 on")
async def test_a_typed_dict_that_cannot_be_read_is_refused_with_the_one_that_can() -> None:
    class Room(TypedDict):
        number: int

    def book(night: int, rooms: list[Room]) -> str:
        return ""

    with pytest.raises(SourceError, match=r"argument 'rooms' of function 'book' .* use typing_extensions\.TypedDict"):
        async with mcp_bridge.connect(book):
            pass
