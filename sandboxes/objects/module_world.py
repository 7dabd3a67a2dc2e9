"""A module as an object: its functions are the methods, its variables the attributes, and every world has its own."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import logging
import sys
import threading
from collections.abc import Callable, Collection
from types import ModuleType
from typing import Any

from mcp_bridge.errors import SourceError

_LOCK = threading.RLock()
"""Held during a call: the module has one world's variables at a time."""


def module_world(module: ModuleType, shared: Collection[str]) -> Callable[[], Any]:
    """A function that makes objects whose attributes are copies of the module's variables, as they are now.

    A function runs with the variables of its object in the module, so what it changes there, `global` included, is
    changed for that object alone. `shared`: variables that nobody changes; they stay in the module. Raises
    `SourceError` for a variable that cannot be copied.
    """
    kind = _kind(module, frozenset(shared))
    first: dict[str, Any] = {}
    memo: dict[int, Any] = {}  # what two variables share, they share in the copy too
    for name, value in _variables(module, kind).items():
        try:
            first[name] = copy.deepcopy(value, memo)
        except Exception as error:
            raise SourceError(
                f"variable {name!r} of module {module.__name__} cannot be copied for each world ({error}); make it "
                f"inside the functions, or name it in shared=({name!r},) if no function changes it"
            ) from error
    return lambda: _made(kind, copy.deepcopy(first))


_MODULE, _SHARED = "_module_of_this_world", "_shared_with_other_worlds"


@functools.cache
def _kind(module: ModuleType, shared: frozenset[str]) -> type:
    """The class whose methods are the public functions that the module itself defines."""
    functions = {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isfunction(value) or _is_cached(value))
        and value.__module__ == module.__name__
    }
    methods = {name: _Method(module, function) for name, function in functions.items()}
    members = {_MODULE: module, _SHARED: shared, "__module__": module.__name__, "__reduce__": _reduced}
    return type(module.__name__.rpartition(".")[2], (), {**members, **methods})


def _reduced(self: Any) -> tuple[Any, ...]:
    return _restored, (getattr(self, _MODULE).__name__, getattr(self, _SHARED), vars(self))


def _restored(module: str, shared: frozenset[str], variables: dict[str, Any]) -> Any:
    return _made(_kind(sys.modules.get(module) or importlib.import_module(module), shared), variables)


def _made(kind: type, variables: dict[str, Any]) -> Any:
    one = kind()
    vars(one).update(variables)
    return one


class _Method:
    """A function of a module as a method: it runs with the variables of its object in the module."""

    def __init__(self, module: ModuleType, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)  # type: ignore[arg-type]  # the stubs want a function
        self._module, self._function = module, function

    def __get__(self, one: Any, kind: type) -> Callable[..., Any]:
        function = self._function
        if one is None or inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            return function  # an async one is refused with its name, as an async method is

        @functools.wraps(function)
        def method(*positional: Any, **named: Any) -> Any:
            with _LOCK:
                outside, variables = _variables(self._module, kind), vars(one)
                _put(self._module, outside, variables)
                try:
                    for cache in _caches(self._module):
                        cache.cache_clear()  # what another world was told
                    found = function(*positional, **named)
                    return list(found) if inspect.isgenerator(found) else found
                finally:
                    inside = _variables(self._module, kind)
                    variables.clear()
                    variables.update(inside)
                    _put(self._module, inside, outside)

        return method


def _is_cached(value: Any) -> bool:
    """Whether this is a function with `functools.cache` or `lru_cache`."""
    return hasattr(value, "cache_clear") and inspect.isfunction(getattr(value, "__wrapped__", None))


def _caches(module: ModuleType) -> list[Any]:
    return [value for value in vars(module).values() if _is_cached(value)]


def _put(module: ModuleType, before: dict[str, Any], after: dict[str, Any]) -> None:
    for name in before.keys() - after.keys():
        delattr(module, name)
    vars(module).update(after)


def _variables(module: ModuleType, kind: type) -> dict[str, Any]:
    """Its data: neither functions, classes, modules and loggers nor what type hints use, nor what worlds share."""
    shared = vars(kind)[_SHARED]
    return {
        name: value
        for name, value in vars(module).items()
        if not (name in shared or (name.startswith("__") and name.endswith("__")))
        and not isinstance(value, type | ModuleType)
        and not inspect.isroutine(value)
        and not isinstance(value, logging.Logger)
        and not hasattr(value, "__wrapped__")
        and type(value).__module__ not in _OF_HINTS
    }


_OF_HINTS = ("typing", "types", "__future__")
