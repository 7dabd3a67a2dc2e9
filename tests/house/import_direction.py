"""Who may import whom, read from the syntax tree: imports inside functions and under TYPE_CHECKING count too."""

from __future__ import annotations

import ast
from collections.abc import Iterator

ALLOWED = {"sdk": {"sandboxes", "mcp_bridge"}, "sandboxes": {"mcp_bridge"}, "mcp_bridge": set[str]()}
"""What each package may import of the project, beside itself."""

NEVER = {"tests", "examples"}


def violations(package: str, source: str, where: str) -> list[str]:
    """The imports in `source`, a file of `package`, that go in the wrong direction."""
    forbidden = (set(ALLOWED) | NEVER) - ALLOWED[package] - {package}
    return [
        f"{where}:{line}: {package} imports {module}"
        for line, module in _imports(ast.parse(source))
        if module.partition(".")[0] in forbidden
    ]


def _imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, node.module or ""
        elif isinstance(node, ast.Call) and node.args and _is_import_function(node.func):
            name = node.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield node.lineno, name.value


def _is_import_function(function: ast.expr) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in {"import_module", "__import__"}
