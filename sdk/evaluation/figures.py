"""Numbers as people read them."""

from __future__ import annotations

from .conditions import Spread, SuccessRate
from .statistics import Interval

NONE = "–"


def percent(share: float) -> str:
    """`0.125` as `12.5 %`."""
    return f"{share * 100:.1f} %"


def percent_range(interval: Interval) -> str:
    """The ends of an interval of a share: `73.1 to 90.2 %`."""
    return f"{interval.low * 100:.1f} to {interval.high * 100:.1f} %"


def points(difference: float) -> str:
    """A difference of two shares in percentage points, with its sign: `+12.5`."""
    return f"{_no_minus_zero(difference * 100, 1):+.1f}"


def points_range(interval: Interval) -> str:
    """The ends of an interval of a difference, in percentage points: `+3.1 to +20.2`."""
    return f"{points(interval.low)} to {points(interval.high)}"


def success(rate: SuccessRate | None) -> str:
    """`82.5 % (73.1 to 90.2 %)`, and `, at worst 60.0 %` where unscored rollouts could make it less."""
    if rate is None:
        return NONE
    shown = percent(rate.interval.estimate)
    worst = shown if rate.worst_case is None else percent(rate.worst_case)
    return f"{shown} ({percent_range(rate.interval)})" + (f", at worst {worst}" if worst != shown else "")


def decimal(value: float | None, digits: int = 3) -> str:
    """A number with so many decimals, a dash for none."""
    return NONE if value is None else f"{_no_minus_zero(value, digits):,.{digits}f}"


def signed_range(interval: Interval, digits: int = 3) -> str:
    """A difference and its interval: `+0.120 (+0.040 to +0.200)`."""
    low, middle, high = (_no_minus_zero(v, digits) for v in (interval.low, interval.estimate, interval.high))
    return f"{middle:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"


def spread(value: Spread | None, digits: int = 1) -> str:
    """Mean, median and largest: `3.2 / 3 / 8`."""
    if value is None:
        return NONE
    return f"{value.mean:,.{digits}f} / {value.median:,.{digits}f} / {value.max:,.{digits}f}"


def p_value(value: float | None) -> str:
    """A p-value to three digits; tiny ones by their size only."""
    if value is None:
        return NONE
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}"


def count(number: int | None) -> str:
    """A count with separators for thousands."""
    return NONE if number is None else f"{number:,}"


def duration(seconds: float) -> str:
    """`75` as `1 min 15 s`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _no_minus_zero(value: float, digits: int) -> float:
    return round(value, digits) + 0.0
