"""What all records of options have in common."""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


class Options(BaseModel):
    """Options by their names alone, whose numbers are finite and no booleans."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_bool_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        wanted = str(cls.model_fields[str(info.field_name)].annotation)
        if isinstance(value, bool) and re.search(r"\b(int|float)\b", wanted) and "bool" not in wanted:
            raise ValueError("give a number (YAML reads yes, no, on and off as true and false)")
        return value
