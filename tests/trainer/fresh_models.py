"""A model that many tests begin with, read once: its tokenizer takes most of the time that such a test takes."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from pathlib import Path

from sdk.policies.models import LoadedModel, load_model


@cache
def _read(folder: Path) -> LoadedModel:
    return load_model(str(folder))


def fresh_model(folder: Path) -> LoadedModel:
    """With weights of its own."""
    read = _read(folder)
    return replace(read, model=copy.deepcopy(read.model), tokenizer=copy.copy(read.tokenizer))
