"""Every public name can be imported, says what it is, and stands in the docs."""

from __future__ import annotations

import inspect
import re

import pytest
from project_files import pages, read

import mcp_bridge
import sandboxes
import sdk

NAMES = [(package, name) for package in (sdk, mcp_bridge, sandboxes) for name in package.__all__]
CONTRACT = {
    "train": ["tools", "prompts", "verifier", "model", "output_dir", "config"],
    "evaluate": ["tools", "prompts", "verifier"],
    "rollout": ["tools", "prompt"],
    "serve": ["model_dir", "host", "port", "api_key"],
}


@pytest.mark.parametrize(("package", "name"), NAMES, ids=[f"{p.__name__}.{n}" for p, n in NAMES])
def test_a_public_name_says_what_it_is(package: object, name: str) -> None:
    assert (getattr(package, name).__doc__ or "").strip()


@pytest.mark.parametrize("name", sdk.__all__)
def test_a_public_name_of_the_sdk_is_in_the_docs(name: str) -> None:
    assert any(re.search(rf"\b{name}\b", read(page)) for page in pages())


@pytest.mark.parametrize(("name", "parameters"), CONTRACT.items())
def test_the_main_functions_take_what_the_readme_says(name: str, parameters: list[str]) -> None:
    signature = inspect.signature(getattr(sdk, name))
    positional = [p for p in signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert [p.name for p in positional] == parameters
    required = {"train": 3, "evaluate": 3, "rollout": 2, "serve": 1}[name]
    assert all(p.default is not p.empty for p in list(signature.parameters.values())[required:])


@pytest.mark.parametrize("name", ["train", "evaluate", "rollout"])
def test_a_blocking_function_has_an_async_twin_with_the_same_parameters(name: str) -> None:
    twin = getattr(sdk, f"{name}_async")
    assert inspect.iscoroutinefunction(twin)
    assert inspect.signature(twin).parameters == inspect.signature(getattr(sdk, name)).parameters
