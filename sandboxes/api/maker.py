"""The maker of values that are valid under a schema."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime
from random import Random
from typing import Any

from mcp_bridge.toolsets.schema_checks import SchemaTimeout, exact_multiple, is_multiple, pattern_found

from .realistic import Realistic, matching
from .shapes import Shape, Shapes

NOTHING: Any = object()
"""No value at all, where null would be one."""

_DEEPEST = 7
_MOST_WHOLE = 10_000
_BRANCH_TRIES = 3
_RULE_TRIES = 20


class Maker:
    """Makes values that all come from `chance` and the time `now`.

    `rich`: with what is optional too, as a row that has been there for a while; else as a new one.
    """

    def __init__(self, shapes: Shapes, chance: Random, now: datetime, *, rich: bool) -> None:
        self.realistic = Realistic(chance, now)
        self._shapes = shapes
        self._chance = chance
        self._rich = rich

    def make(self, schema: Any, name: str = "", owner: str = "", depth: int = 0) -> Any:
        """A value for `schema`, of a property called `name` of an `owner`. `NOTHING` where there can be none."""
        return self.make_shape(self._shapes.of(schema), name, owner, depth)

    def make_shape(self, shape: Shape, name: str = "", owner: str = "", depth: int = 0) -> Any:
        """`make` for a shape."""
        made = self._tried(shape, name, owner, depth)
        rich = self._rich
        for _ in range(_RULE_TRIES if shape.rules else 0):
            if made is NOTHING or self._shapes.keeps_rules(shape, made):
                break
            self._rich = True  # what is made without chance is the same each time
            made = self._tried(shape, name, owner, depth)
        self._rich = rich
        return made if made is NOTHING or self._shapes.keeps_rules(shape, made) else NOTHING

    def _tried(self, shape: Shape, name: str, owner: str, depth: int) -> Any:
        if shape.impossible or depth > 3 * _DEEPEST:
            return NOTHING
        if shape.enum is not None:
            return self._of_enum(shape)
        if depth > _DEEPEST and shape.nullable:
            return None
        if shape.choices:
            return self._of_choices(shape, name, owner, depth)
        if not self._rich and "default" in shape.says and scalar_fits(shape, shape.says["default"]):
            return shape.says["default"]
        kind = shape.kind
        if kind == "object":
            return self._object(shape, name, owner, depth)
        if kind == "array":
            return self._array(shape, name, owner, depth)
        if kind == "string":
            return self._string(shape, name, owner)
        if kind in {"integer", "number"}:
            return self._number(shape, name)
        if kind == "boolean":
            return self._rich and self._chance.random() < 0.5
        return None

    def _of_enum(self, shape: Shape) -> Any:
        allowed = [one for one in shape.enum or () if _kind_of(one) & shape.kinds]
        real = [one for one in allowed if one is not None] or allowed
        if not real:
            return NOTHING
        return self._chance.choice(real) if self._rich else real[0]

    def _of_choices(self, shape: Shape, name: str, owner: str, depth: int) -> Any:
        """Tries branches in an order of chance until a value holds under the whole group."""
        rest, group = shape.choices[1:], shape.choices[0]
        base = replace(shape, choices=rest)
        order = list(group)
        if self._rich:
            self._chance.shuffle(order)
        made = NOTHING
        for branch in order[: 4 * _BRANCH_TRIES]:
            merged = self._shapes.with_branch(base, branch)
            if merged.impossible or merged.kinds == {"null"}:
                continue
            found = self.make_shape(_named_after(merged, branch, group, shape), name, owner, depth + 1)
            if found is NOTHING:
                continue
            if sum(self._shapes.validity.holds(one, found) for one in group) == 1:
                return found
            if made is NOTHING:
                made = found
        return None if made is NOTHING and "null" in shape.kinds else made

    def _object(self, shape: Shape, name: str, owner: str, depth: int) -> Any:
        value: dict[str, Any] = {}
        kind = shape.name or name or owner
        for key, schema in shape.properties.items():
            inner = self._shapes.of(schema)
            wanted = key in shape.required or (self._rich and depth < 2 and not inner.says.get("deprecated"))
            if not wanted or (inner.write_only and key not in shape.required):
                continue
            made = self.make_shape(inner, key, kind, depth + 1)
            if made is not NOTHING:
                value[key] = made
            elif key in shape.required:
                return NOTHING
        for key in sorted(shape.required - set(shape.properties)):
            schema = self._shapes.schema_at(shape, key)
            made = None if schema is True else self.make(schema, key, kind, depth + 1)
            if made is NOTHING:
                return NOTHING
            value[key] = made
        least = shape.says.get("minProperties", 0)
        patterns = [one for rule in shape.rules for one in rule.get("patternProperties", ())]
        is_open = shape.open not in (False, True) or patterns
        is_map = not shape.properties and is_open and self._rich and depth < 3
        for number in range(1, 1 + max(least, 2 if is_map else 0) - len(value)):
            key = self._key(shape, patterns, number)
            schema = self._shapes.schema_at(shape, key)
            made = self.make(schema, f"{name}_{number}", kind, depth + 1)
            if made is not NOTHING:
                value[key] = made
        return value

    def _key(self, shape: Shape, patterns: list[str], number: int) -> str:
        """A name for a property of a map."""
        names = [rule["propertyNames"] for rule in shape.rules if "propertyNames" in rule]
        if names:
            base = Shape(kinds=frozenset({"string"}), typed=True)
            made = self.make_shape(self._shapes.with_branch(base, names[0]), f"key_{number}")
        else:
            made = matching(patterns[0], self._chance) if patterns else None
        return made if isinstance(made, str) else f"key_{number}"

    def _array(self, shape: Shape, name: str, owner: str, depth: int) -> Any:
        low = int(shape.says.get("minItems", 0))
        high = int(shape.says.get("maxItems", max(low, 3)))
        wanted = low
        if self._rich and depth < 3:
            wanted = min(max(low, self._chance.randint(1, 2)), high)
        fixed = [self.make(one, name, owner, depth + 1) for one in shape.says.get("prefixItems", ())]
        items = [one for one in fixed if one is not NOTHING]
        for rule in shape.rules:
            if "contains" in rule:
                wanted_item = self._shapes.with_branch(self._shapes.of(shape.items), rule["contains"])
                needed = (
                    self.make_shape(wanted_item, name, owner, depth + 1) for _ in range(rule.get("minContains", 1))
                )
                items += [one for one in needed if one is not NOTHING]
        singular = name.removesuffix("s")
        for _ in range(10 * wanted):
            if len(items) >= wanted:
                break
            made = self.make(shape.items, singular, owner, depth + 1)
            if made is NOTHING:
                break
            if not shape.says.get("uniqueItems") or made not in items:
                items.append(made)
        return items if len(items) >= low else NOTHING

    def _string(self, shape: Shape, name: str, owner: str) -> Any:
        says = shape.says
        low, high = int(says.get("minLength", 0)), says.get("maxLength")
        made = None
        if isinstance(says.get("format"), str):
            made = self.realistic.formatted(says["format"], name)
        if "pattern" in says:
            text = made if made is not None else self.realistic.text(name, owner)
            if scalar_fits(shape, text):
                return text
            examples = [one for one in says.get("examples", ()) if scalar_fits(shape, one)]
            found = matching(says["pattern"], self._chance, low=low, high=high)
            return found if found is not None else examples[0] if examples else NOTHING
        if made is not None and low <= len(made) <= (len(made) if high is None else high):
            return made
        return sized(self.realistic.text(name, owner), low, high)

    def _number(self, shape: Shape, name: str) -> Any:
        whole = "number" not in shape.kinds or not shape.typed
        low, high = _bounds(shape, whole)
        step = shape.says.get("multipleOf")
        if low > high:
            return NOTHING
        if not self._rich:
            value: float = 0 if low <= 0 <= high else low
            if step:
                value = exact_multiple(step, math.ceil(value / step))
            return int(value) if whole else value
        if step:
            first, last = (math.ceil(low / step), math.floor(min(high, low + step * 1000) / step))
            value = exact_multiple(step, self._chance.randint(first, max(first, last)))
            return int(value) if whole or isinstance(step, int) else value
        made = self.realistic.number(name, low, high, whole)
        return int(made) if whole else min(max(made, low), high)


def scalar_fits(shape: Shape, value: Any) -> bool:
    """Whether a string, number, boolean or null is valid under a shape without choices."""
    if not _kind_of(value) & shape.kinds:
        return False
    if shape.enum is not None and not any(value == one and type(value) is type(one) for one in shape.enum):
        return False
    says = shape.says
    if isinstance(value, str):
        if not says.get("minLength", 0) <= len(value) <= says.get("maxLength", len(value)):
            return False
        try:
            return "pattern" not in says or pattern_found(says["pattern"], value)
        except SchemaTimeout:
            return True
    if isinstance(value, int | float) and not isinstance(value, bool):
        least, most = says.get("minimum", -math.inf), says.get("maximum", math.inf)
        above, below = says.get("exclusiveMinimum"), says.get("exclusiveMaximum")
        is_within = (above is None or above < value) and (below is None or value < below) and least <= value <= most
        step = says.get("multipleOf")
        return is_within and (not step or is_multiple(value, step))
    return True


def _kind_of(value: Any) -> frozenset[str]:
    if value is None:
        return frozenset({"null"})
    if isinstance(value, bool):
        return frozenset({"boolean"})
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return frozenset({"integer", "number"})
    if isinstance(value, float):
        return frozenset({"number"})
    return frozenset({"string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"})


def kind_fits(shape: Shape, value: Any) -> bool:
    """Whether the JSON type of `value` is one that the shape allows."""
    return bool(_kind_of(value) & shape.kinds)


def sized(text: str, low: int, high: int | None) -> str:
    """`text`, repeated or cut to `low` to `high` characters."""
    while len(text) < low:
        text += " " + text if text else "x"
    if high is not None and len(text) > high:
        text = text[:high].rstrip() if len(text[:high].rstrip()) >= low else text[:high]
    return text


def _bounds(shape: Shape, whole: bool) -> tuple[float, float]:
    says = shape.says
    nudge = 1 if whole else 1e-6
    lows = [says[key] + extra for key, extra in (("minimum", 0), ("exclusiveMinimum", nudge)) if key in says]
    highs = [says[key] - extra for key, extra in (("maximum", 0), ("exclusiveMaximum", nudge)) if key in says]
    low: float = max(lows) if lows else min(0, *highs) if highs else 0
    high: float = min(highs) if highs else max(low + 1000, _MOST_WHOLE)
    return (math.ceil(low), math.floor(high)) if whole else (low, high)


def _named_after(merged: Shape, branch: Any, group: list[Any], shape: Shape) -> Shape:
    """With a discriminator's property set to the value of the branch."""
    discriminator = shape.says.get("discriminator")
    if not isinstance(discriminator, dict) or not isinstance(discriminator.get("propertyName"), str):
        return merged
    reference = str(branch.get("$ref", "")) if isinstance(branch, dict) else ""
    name = reference.rpartition("/")[2]
    values = [
        key for key, target in (discriminator.get("mapping") or {}).items() if str(target).rpartition("/")[2] == name
    ]
    if not name or len(group) < 2:
        return merged
    key = discriminator["propertyName"]
    own = merged.properties.get(key, {})
    if isinstance(own, dict) and ("enum" in own or "const" in own):
        return merged
    merged.properties = {**merged.properties, key: {"const": (values or [name])[0]}}
    merged.required |= {key}
    return merged
