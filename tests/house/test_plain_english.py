"""Texts that users read, in the words of the field: a value is not valid JSON, not "no JSON"."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from project_files import product_files, read

UNWANTED = re.compile(r"(?<![Tt]here )\b(?:is|are) no (?!longer\b|more\b)\w+|\bstands? for\b|\bmend(?:s|ed|ing)?\b")


def texts(source: str) -> Iterator[tuple[int, str]]:
    """The literal texts of a file with their lines, but for docstrings."""
    tree = ast.parse(source)
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.lineno, node.value


def test_messages_tell_what_a_value_is_not_in_the_words_of_the_field() -> None:
    found = [
        f"{path}:{line}: {match[0]!r}"
        for path in product_files()
        for line, text in texts(read(path))
        for match in UNWANTED.finditer(text)
    ]
    assert found == []


def test_a_planted_phrase_is_found() -> None:
    planted = 'def f(text):\n    """What is no JSON."""\n    raise ValueError(f"{text!r} is no JSON")\n'
    assert [line for line, text in texts(planted) if UNWANTED.search(text)] == [3]
