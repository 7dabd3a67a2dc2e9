"""The table of private names in docs/private-names.md holds those in use, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from private_names import private_names
from project_files import ROOT

MOST = 12
ROW = re.compile(r"\| [^|]+ \| (?P<names>[^|]+) \| `(?P<file>[^`|]+)` \| [^|]+ \| [^|]+ \| `(?P<test>[^`|]+)` \|")


def rows() -> list[re.Match[str]]:
    table = (ROOT / "docs/private-names.md").read_text().partition("| --- |")[2].splitlines()[1:]
    found = [ROW.fullmatch(line) for line in table]
    assert None not in found
    return [row for row in found if row is not None]


def test_the_table_holds_the_private_names_in_use_each_in_one_file_and_at_most_twelve() -> None:
    told = {(row["file"], name) for row in rows() for name in re.findall(r"`(?:[\w.]+\.)?(\w+)`", row["names"])}
    assert private_names(ROOT) == told
    assert len(told) == len({name for _, name in told}) <= MOST


def test_every_row_names_a_test_that_takes_the_name_away() -> None:
    for row in rows():
        file, _, test = row["test"].partition("::")
        assert f"def {test}(" in (ROOT / file).read_text(), row["test"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import torch\ntorch._C", {"_C"}),
        ("from re import _parser", {"_parser"}),
        ("import _sqlite3", {"_sqlite3"}),
        ("def f(one):\n    return getattr(one, '_hidden', None)", {"_hidden"}),
        ("def f(one):\n    for name in ('_a1', 'b'):\n        setattr(one, name, 0)", {"_a1"}),
        ("def f(one):\n    one._set = 1", {"_set"}),
        ("def f(one):\n    one.select(_as=True)", {"_as"}),
        ("import torch\nclass A(torch.nn.Module):\n    def f(self):\n        return self._buffers", {"_buffers"}),
        ("import torch\nclass A(torch.nn.Module):\n    def _apply(self, fn):\n        return self", {"_apply"}),
        ("class A:\n    def f(self, other):\n        self._own = other._own", set()),
    ],
)
def test_a_private_name_is_found_in_whatever_way_it_is_used(
    text: str, found: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"found_{abs(hash(text))}"
    (tmp_path / "sdk").mkdir()
    (tmp_path / "sdk" / f"{module}.py").write_text(text)
    monkeypatch.setattr("sdk.__path__", [str(tmp_path / "sdk")])
    assert private_names(tmp_path) == {(f"sdk/{module}.py", name) for name in found}
