"""`--config`, `--set name=value` and `--limit name=value`: JSON values under dotted names."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from ..rollouts.limits import Limits
    from ..trainer.config import TrainConfig


def train_config(file: Path | None, assignments: Sequence[str]) -> TrainConfig:
    """The options of the file, with those of `assignments` in their place. Raises `ConfigError`."""
    from ..trainer.config import TrainConfig

    given = TrainConfig.of(file).model_dump(mode="json", exclude_unset=True) if file is not None else {}
    return TrainConfig.of(assign(given, assignments, "--set"))


def limits(assignments: Sequence[str]) -> Limits:
    """The limits of a rollout. Raises `ConfigError`."""
    from ..trainer.config import TrainConfig

    return TrainConfig.of({"limits": assign({}, assignments, "--limit")}).limits


def assign(values: dict[str, Any], assignments: Sequence[str], option: str) -> dict[str, Any]:
    """`values` with `a.b=1` for each assignment. Raises `ConfigError` for another form, or one name set twice.

    A value is JSON; what is no JSON is taken as a string, so that `loss_type=grpo` needs no quotes.
    """
    result: dict[str, Any] = json.loads(json.dumps(values))
    seen: set[str] = set()
    for assignment in assignments:
        name, sign, text = assignment.partition("=")
        name = name.strip()
        if not sign or not all(name.split(".")):
            raise ConfigError(f"{option} is {assignment!r}; it must look like name=value, such as {_EXAMPLES[option]}")
        if name in seen:
            raise ConfigError(f"{option} sets {name!r} twice; keep one of them")
        inner = next((other for other in seen if other.startswith(f"{name}.")), None)
        if inner is not None:
            raise ConfigError(f"{option} sets {inner!r}, and then {name!r} in its place; keep one of them")
        seen.add(name)
        *path, last = name.split(".")
        place = result
        for part in path:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise ConfigError(f"{option} {assignment}: {part!r} is {place!r} and has no options of its own")
        place[last] = _value(text)
    return result


_EXAMPLES = {"--set": "grpo_steps=40 or limits.max_turns=6", "--limit": "max_turns=6"}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def describe_settings() -> str:
    """Every option of training with its default and what it does, one a paragraph."""
    from ..trainer.config import TrainConfig

    return "\n".join(_described(TrainConfig, ""))


def _described(model: type[BaseModel], prefix: str) -> list[str]:
    from pydantic import BaseModel

    docs = _field_docs(model)
    lines, inner = [], []
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if isinstance(default, BaseModel):
            inner += _described(type(default), f"{prefix}{name}.")
            continue
        lines.append(f"{prefix}{name}={json.dumps(default)}")
        if docs.get(name):
            lines.append(f"    {docs[name]}")
    return [*lines, *inner]


def _field_docs(model: type[BaseModel]) -> dict[str, str]:
    """The docstrings under a record's fields."""
    body = ast.parse(inspect.getsource(model)).body[0]
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for field, after in zip(body.body, body.body[1:], strict=False):
        match field, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docs[name] = " ".join(text.split())
    return docs
