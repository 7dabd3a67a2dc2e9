"""Progress on a terminal and in a log: what users call things is shown as it is."""

from __future__ import annotations

import io

import pytest

from sdk.progress import Console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _a_plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", ["large [v2]", "odd[/b]", "the :key: one"])
def test_a_bar_shows_any_name_and_note_as_it_is(name):
    stream = Terminal()
    with Console(stream).track(name, 2) as step:
        step.advance(2, note=f"{name} is right")
    last = stream.getvalue().rpartition("\x1b[2K")[2]
    assert last.startswith(name)
    assert f"{name} is right" in last


def test_a_line_is_neither_cut_nor_read_as_markup():
    stream = io.StringIO()
    text = "going on from runs/:key:/[red]first" + "/of/many" * 30
    Console(stream).say(text)
    assert stream.getvalue() == f"{text}\n"
