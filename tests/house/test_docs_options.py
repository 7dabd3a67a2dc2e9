"""The tables of options name every option once, with its real default; each table has the record's order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from project_files import read
from pydantic import BaseModel

from mcp_bridge.sources.specs import ServerOptions
from sdk import Limits, TrainConfig
from sdk.policies.vllm import VllmOptions

TABLES_OF_THEIR_OWN = (Limits, VllmOptions)


def tables(page: str, model: str) -> list[list[tuple[str, str]]]:
    """Name and default in each row of the tables after the comments that name `model`."""
    found = []
    for after in page.split(f"<!-- table of {model}:")[1:]:
        rows = []
        for line in after.split("-->", 1)[1].lstrip("\n").splitlines()[2:]:
            if not line.startswith("|"):
                break
            name, default = (cell.strip() for cell in line.strip("|").split("|")[:2])
            rows.append((name.strip("`"), default.strip("`")))
        found.append(rows)
    return found


def defaults(model: type[BaseModel]) -> list[tuple[str, str]]:
    rows = []
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if isinstance(default, BaseModel) and type(default) not in TABLES_OF_THEIR_OWN:
            rows += [(f"{name}.{inner}", shown) for inner, shown in defaults(type(default))]
        else:
            rows.append((name, "see below" if isinstance(default, BaseModel) else str(default)))
    return rows


@pytest.mark.parametrize(
    ("model", "page"),
    [(TrainConfig, "training"), (Limits, "training"), (ServerOptions, "tools"), (VllmOptions, "vllm")],
)
def test_the_tables_of_options_are_those_of_the_record(model: type[BaseModel], page: str) -> None:
    found = tables(read(Path(f"docs/{page}.md")), model.__name__)
    expected = defaults(model)
    assert sorted(row for table in found for row in table) == sorted(expected)
    assert all(table == [row for row in expected if row in table] for table in found)


OPTIONS_OF_EXAMPLES = [
    path
    for path in sorted(Path(__file__).parents[2].glob("examples/*/*.json"))
    if path.stem in ("options", "one_system") or path.stem.startswith("recipe_")
]


@pytest.mark.parametrize("path", OPTIONS_OF_EXAMPLES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_the_options_of_an_example_are_valid(path: Path) -> None:
    assert TrainConfig.of(path) != TrainConfig()


def test_each_example_that_trains_has_options_for_a_larger_model() -> None:
    of_larger = {path.parent.name for path in OPTIONS_OF_EXAMPLES if path.stem in ("recipe_4b", "recipe_7b")}
    assert of_larger == {"bfcl", "inbox", "papers", "workbench"}


def test_the_config_in_the_docs_is_named_where_training_is_explained() -> None:
    assert re.search(r"`sdk\.TrainConfig`", read(Path("docs/training.md")))
