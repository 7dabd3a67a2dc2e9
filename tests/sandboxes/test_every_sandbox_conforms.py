"""No sandbox of the package is left out of the conformance suite."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import sys
from pathlib import Path
from typing import Any

import pytest
from sandbox_conformance import SandboxConformance

import sandboxes
from sandboxes import Sandbox

HERE = Path(__file__).parent


def concrete_sandboxes() -> list[type[Sandbox]]:
    """Those of the package, wherever in it they stand."""
    for module in pkgutil.walk_packages(sandboxes.__path__, "sandboxes."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found: list[type[Sandbox]] = []
    waiting: list[Any] = [Sandbox]
    while waiting:
        kinds = [one for one in waiting.pop().__subclasses__() if one.__module__.startswith("sandboxes.")]
        waiting += kinds
        found += [one for one in kinds if not inspect.isabstract(one)]
    return found


def suites(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The suites in this folder and those below it."""
    found: list[Any] = []
    for path in HERE.rglob("test_*.py"):
        if path == Path(__file__) or "(SandboxConformance)" not in path.read_text(encoding="utf-8"):
            continue
        monkeypatch.syspath_prepend(str(path.parent))
        module = importlib.import_module(path.stem) if path.stem in sys.modules else _loaded(path)
        kinds = [one for one in vars(module).values() if inspect.isclass(one) and issubclass(one, SandboxConformance)]
        found += [kind() for kind in kinds if kind is not SandboxConformance]
    return found


def _loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"loaded_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_every_sandbox_of_the_package_has_a_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = concrete_sandboxes()
    assert {"Helpdesk", "ObjectTwin", "ApiTwin", "RecordedTwin"} <= {kind.__name__ for kind in kinds}
    tried = [suite.make() for suite in suites(monkeypatch)]
    for kind in kinds:
        assert any(isinstance(one, kind) for one in tried), f"no suite makes a {kind.__name__}"
    for one in tried:
        one.close()
