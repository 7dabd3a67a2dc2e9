"""What rollouts cost, from the tokens they took and the prices that the user gives."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import ConfigError
from ..records import Rollout

_MILLION = 1_000_000


class Price(BaseModel):
    """Prices of a model per million tokens. Example: `Price(input=0.4, output=1.6)`

    A model of your own has a price, too: what its machine costs in an hour over what it does in an hour.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    input: float = Field(ge=0)
    """Of tokens in prompts. Every turn sends the conversation again; a cache's discount is not known here."""
    output: float = Field(ge=0)
    """Of sampled tokens."""

    def of(self, rollout: Rollout) -> float:
        """What a rollout cost."""
        return (self.input * rollout.prompt_tokens + self.output * rollout.sampled_tokens) / _MILLION


class Cost(BaseModel):
    """What a condition cost, in the currency of its price."""

    model_config = ConfigDict(frozen=True)

    price: Price
    per_rollout: float
    """The mean over all rollouts, unscored ones included: they are paid for, too."""
    per_success: float | None
    """All that was spent over the number of successes; None without one."""
    total: float


def cost_of(rollouts: Sequence[Rollout], successes: int, price: Price | None) -> Cost | None:
    """The cost of a condition; None without a price or rollouts.

    Raises `ConfigError` where a rollout sampled tokens but nothing counted its prompts: its cost is unknown.
    """
    if price is None or not rollouts:
        return None
    uncounted = [r.id for r in rollouts if price.input and r.sampled_tokens and not r.prompt_tokens]
    if uncounted:
        raise ConfigError(
            f"rollout {uncounted[0]!r} and {len(uncounted) - 1} more say nothing of their prompts' tokens, so their "
            "cost is unknown; the endpoint must report usage, or give an input price of 0"
        )
    total = math.fsum(price.of(rollout) for rollout in rollouts)
    return Cost(
        price=price,
        per_rollout=total / len(rollouts),
        per_success=total / successes if successes else None,
        total=total,
    )


def read_prices(prices: Mapping[str, Any] | None, names: Sequence[str]) -> dict[str, Price]:
    """Prices by the policy's name: `Price`s, `(input, output)` or mappings, per million tokens.

    Raises `ConfigError` for a name that is not evaluated, and for what is no price.
    """
    found = {}
    for name, given in (prices or {}).items():
        if name not in names:
            raise ConfigError(
                f"there is a price for {name!r}, which is not evaluated; the names are {', '.join(names)}"
            )
        found[name] = _price(name, given)
    return found


def _price(name: str, given: Any) -> Price:
    if isinstance(given, Price):
        return given
    try:
        if isinstance(given, tuple | list):
            input_price, output_price = given
            return Price(input=input_price, output=output_price)
        return Price.model_validate(given)
    except (ValueError, TypeError, ValidationError):
        raise ConfigError(
            f"the price of {name!r} is {given!r}; give (input, output) per million tokens, each 0 or more, "
            "such as (0.4, 1.6)"
        ) from None
