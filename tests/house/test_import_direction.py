"""sdk may import sandboxes and mcp_bridge, sandboxes may import mcp_bridge, and mcp_bridge neither."""

from __future__ import annotations

import pytest
from import_direction import ALLOWED, violations
from project_files import product_files, read


def test_imports_go_in_one_direction() -> None:
    found = [line for path in product_files() for line in violations(path.parts[0], read(path), str(path))]
    assert found == []


def test_every_package_is_looked_at() -> None:
    assert {path.parts[0] for path in product_files()} == set(ALLOWED)


@pytest.mark.parametrize(
    ("package", "planted"),
    [
        ("mcp_bridge", "import sdk"),
        ("mcp_bridge", "import json, sandboxes.sql as s"),
        ("mcp_bridge", "from sandboxes import diff"),
        ("mcp_bridge", "def late():\n    from sdk.records import Task\n    return Task"),
        ("sandboxes", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from sdk import Rollout"),
        ("sandboxes", "import importlib\nasync def late():\n    return importlib.import_module('sdk.records')"),
        ("sandboxes", "class A:\n    def f(self):\n        return __import__('sdk')"),
        ("sdk", "from tests.house import project_files"),
        ("sdk", "def late():\n    import examples.helpdesk.server"),
    ],
)
def test_a_planted_violation_is_found(package: str, planted: str) -> None:
    assert len(violations(package, planted, "planted.py")) == 1


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        ("sdk", "import sandboxes\nfrom mcp_bridge import connect"),
        ("sandboxes", "from mcp_bridge.records import Tool\nfrom . import sql"),
        ("mcp_bridge", "from .records import Tool\nimport sdk_of_somebody_else\nfrom . import sdk"),
    ],
)
def test_what_is_allowed_is_left_alone(package: str, allowed: str) -> None:
    assert violations(package, allowed, "allowed.py") == []
