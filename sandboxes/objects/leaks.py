"""What Python lets all objects of a class share, though no world may: default arguments and class attributes."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

from mcp_bridge.errors import ToolFailure

_CONTAINERS = (list, dict, set, bytearray)


def mutable_defaults(method: Callable[..., Any]) -> dict[str, Any]:
    """Parameter -> default, of those that a method could change for every later call: `def post(tags=[])`."""
    defaults = {}
    for parameter in inspect.signature(method).parameters.values():
        if parameter.default is not parameter.empty:
            twin = copy.deepcopy(parameter.default)
            if twin is not parameter.default:
                defaults[parameter.name] = twin
    return defaults


class ClassAttributes:
    """The containers that a class and its bases hold for all of their objects."""

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self._pristine = {
            (base, name): copy.deepcopy(value)
            for base in kind.__mro__
            for name, value in vars(base).items()
            if isinstance(value, _CONTAINERS) and not (name.startswith("__") and name.endswith("__"))
        }

    def require_unchanged(self) -> None:
        """Raises `ToolFailure` where a call has changed one, and puts it back as it was."""
        changed = [place for place, value in self._pristine.items() if vars(place[0]).get(place[1]) != value]
        for base, name in changed:
            setattr(base, name, copy.deepcopy(self._pristine[base, name]))
        if changed:
            names = ", ".join(f"{base.__name__}.{name}" for base, name in changed)
            raise ToolFailure(
                f"{self._kind.__name__} changed {names}, which all worlds share; set it in `__init__` instead",
                delivery="answered",
            )
