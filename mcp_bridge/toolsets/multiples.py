"""`multipleOf` by the numbers as they are written. `jsonschema` divides floats: to it 19.99 is no multiple of 0.01."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from jsonschema import ValidationError


def exact_multiple(step: int | float, times: int) -> int | float:
    """`times * step` as it is written: 57 times 0.01 is 0.57, and not 0.5700000000000001."""
    return step * times if isinstance(step, int) else float(_written(step) * times)


def multiple_of(validator: Any, step: Any, value: Any, _: Any) -> Iterator[ValidationError]:
    """The keyword, as `jsonschema` calls it."""
    if validator.is_type(value, "number") and not is_multiple(value, step):
        yield ValidationError(f"{value!r} is not a multiple of {step}")


def is_multiple(value: int | float, step: int | float) -> bool:
    """Whether the value, as it is written, is `step` times a whole number."""
    if isinstance(step, int):
        return not value % step
    is_number = isinstance(value, int) or math.isfinite(value)
    return is_number and (_written(value) / _written(step)).denominator == 1


def _written(number: int | float) -> Fraction:
    return Fraction(number) if isinstance(number, int) else Fraction(repr(number))
