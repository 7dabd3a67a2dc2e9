"""The tables of options name every option, with its real default and in its real order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from project_files import read
from pydantic import BaseModel

from mcp_bridge.sources.options import ServerOptions
from sdk import Limits, TrainConfig
from sdk.policies.vllm import VllmOptions


def table_rows(page: str, model: str) -> list[tuple[str, str]]:
    """Name and default in the table after the comment that names `model`."""
    after = page.split(f"<!-- table of {model}:", 1)[1].split("-->", 1)[1].lstrip("\n")
    rows = []
    for line in after.splitlines()[2:]:
        if not line.startswith("|"):
            break
        name, default = (cell.strip() for cell in line.strip("|").split("|")[:2])
        rows.append((name.strip("`"), default.strip("`")))
    return rows


def defaults(model: type[BaseModel]) -> list[tuple[str, str]]:
    rows = []
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        rows.append((name, "see below" if isinstance(default, BaseModel) else str(default)))
    return rows


@pytest.mark.parametrize(
    ("model", "page"),
    [(TrainConfig, "training"), (Limits, "training"), (ServerOptions, "tools"), (VllmOptions, "vllm")],
)
def test_the_table_of_options_is_that_of_the_record(model: type[BaseModel], page: str) -> None:
    assert table_rows(read(Path(f"docs/{page}.md")), model.__name__) == defaults(model)


def test_the_config_in_the_docs_is_named_where_training_is_explained() -> None:
    assert re.search(r"`sdk\.TrainConfig`", read(Path("docs/training.md")))
