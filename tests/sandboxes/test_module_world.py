"""A module's functions as tools over variables that each world has for itself."""

from __future__ import annotations

import copy
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import garden
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sandbox_conformance import Call, SandboxConformance

import sdk
from mcp_bridge import SourceError
from mcp_bridge.errors import ToolFailure
from sandboxes import Sandbox
from sandboxes.objects import ObjectTwin
from sdk.policies.scripted import ScriptedAgent


def twin() -> ObjectTwin:
    return ObjectTwin(garden, shared=("pump",), state=lambda one: {"stock": one.STOCK, "orders": len(one.ORDERS)})


def order(number: int, plant: str = "rose") -> Call:
    return "order", {"wanted": {"plant": plant, "number": number}}


class TestModule(SandboxConformance):
    seeds_differ: ClassVar[bool] = False

    def make(self) -> Sandbox:
        return twin()

    def change(self) -> Call:
        return order(2)

    def calls(self) -> list[Call]:
        return [order(1, "fern"), ("stock", {}), ("cancel", {"order": 1}), ("sold", {})]


def test_tools_are_the_public_functions_that_the_module_defines() -> None:
    tools = {tool.name: tool for tool in twin().tools}
    assert list(tools) == ["stock", "order", "cancel", "sold", "open_gate"]
    assert tools["order"].input_schema["properties"]["size"]["enum"] == ["small", "large"]
    assert tools["cancel"].description == "Cancel an order."


def test_variables_of_every_kind_change_in_one_world_alone() -> None:
    one, other = twin(), twin()
    untouched = copy.deepcopy({name: vars(garden)[name] for name in ("STOCK", "ORDERS", "_SOLD")})
    assert one.call_now(*order(2)).text == "1"
    assert one.call_now(*order(1)).text == "2"
    assert one.call_now("open_gate", {}).text == "open"
    assert (one.call_now("sold", {}).text, other.call_now("sold", {}).text) == ("3", "0")
    assert one.call_now("stock", {}).structured == {"rose": 9, "fern": 3}  # two names of one object
    assert other.call_now("stock", {}).structured == {"rose": 12, "fern": 3}
    assert {name: vars(garden)[name] for name in untouched} == untouched
    assert not hasattr(garden, "GATE")
    assert one.objects["garden"].ORDERS[1] == garden.Order("rose", 2)


def test_an_exception_is_read_by_the_caller_and_what_was_changed_before_it_is_undone() -> None:
    world = twin()
    refused = world.call_now(*order(99))
    assert (refused.text, refused.error_kind) == ("ValueError: there are not as many", "tool_error")
    assert world.call_now("stock", {}).structured == {"rose": 12, "fern": 3}
    assert world.call_now("cancel", {"order": 7}).text == "KeyError: 7"


def test_worlds_in_threads_do_not_see_each_other() -> None:
    worlds = [twin() for _ in range(4)]

    def play(world: ObjectTwin) -> str:
        for _ in range(5):
            world.call_now(*order(1))
            world.call_now("cancel", {"order": 1})
            world.call_now(*order(2, "fern"))
            world.call_now("cancel", {"order": 1})
        return world.call_now("sold", {}).text

    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(play, worlds)) == {"15"}


STEPS = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from([order(1), order(2, "fern"), ("cancel", {"order": 1}), ("sold", {})]))
)


@settings(max_examples=50)
@given(STEPS)
def test_two_worlds_in_turns_answer_as_each_does_alone(steps: list[tuple[int, Call]]) -> None:
    together = [twin(), twin()]
    found: list[list[str]] = [[], []]
    for which, (name, arguments) in steps:
        found[which].append(together[which].call_now(name, arguments).text)
    for which in (0, 1):
        alone = twin()
        assert found[which] == [alone.call_now(*call).text for one, call in steps if one == which]
        assert together[which].state() == alone.state()


def test_rollouts_with_a_module_have_variables_of_their_own() -> None:
    task = sdk.Task(prompt="Order two roses.", expected={"calls": [{"name": "order", "arguments": order(2)[1]}]})
    call = sdk.Message(role="assistant", tool_calls=[sdk.ToolCall(id="", name=order(2)[0], arguments=order(2)[1])])
    made = [sdk.rollout(twin(), task, model=ScriptedAgent([call, "Done."])) for _ in range(2)]
    assert [one.calls[0].result.text for one in made] == ["1", "1"]
    assert all(one.final_state == made[0].final_state for one in made)


def test_a_variable_that_cannot_be_copied_is_an_error_that_names_it() -> None:
    with pytest.raises(SourceError, match=r"variable 'pump' of module garden cannot be copied .* shared=\('pump',\)"):
        ObjectTwin(garden)


def module(monkeypatch: pytest.MonkeyPatch, code: str) -> Any:
    made = types.ModuleType("made_here")
    monkeypatch.setitem(sys.modules, "made_here", made)
    exec(compile(code, "made_here.py", "exec"), vars(made))
    return made


def test_an_async_function_is_refused_by_name_and_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    made = module(monkeypatch, "async def wait() -> int:\n    return 1\n\ndef go() -> int:\n    return 2\n")
    with pytest.raises(SourceError, match=r"method 'wait' of made_here cannot be a tool: it is async"):
        ObjectTwin(made)
    assert ObjectTwin(made, methods=("go",)).call_now("go", {}).text == "2"


def test_a_module_without_functions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceError, match="no public methods, so there are no tools"):
        ObjectTwin(module(monkeypatch, "from os.path import join\nclass Shop: pass\nPRICE = 3\n"))


CACHED = """
import functools
import logging

log = logging.getLogger(__name__)
STOCK = {"rose": 3, "fern": 1}


@functools.lru_cache
def left(plant: str) -> int:
    log.info("looked")
    return STOCK[plant]


def take(plant: str) -> int:
    STOCK[plant] -= 1
    return left(plant)


def plants() -> list[str]:
    yield from STOCK


def square(digits: int) -> int:
    return 10**digits
"""


def test_a_cache_does_not_tell_a_world_of_another_and_a_logger_is_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("cached_garden")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(CACHED, vars(module))
    one = ObjectTwin(module)
    other = one.fork()
    assert [tool.name for tool in one.tools] == ["left", "take", "plants", "square"]
    assert [one.call_now("take", {"plant": "rose"}).text for _ in range(2)] == ["2", "1"]
    assert [world.call_now("left", {"plant": "rose"}).text for world in (one, other, one)] == ["1", "3", "1"]
    assert list(one.state()["cached_garden"]) == ["STOCK"]
    assert one.call_now("plants", {}).structured == ["rose", "fern"]
    with pytest.raises(ToolFailure, match="square broke: NoForm: an integer has 16610 bits"):
        one.call_now("square", {"digits": 5000})
