"""Every Python block of the README and the docs runs, page by page, with nothing but what the page shows."""

from __future__ import annotations

import json
import traceback
from pathlib import Path

import pytest
from doc_blocks import Block, blocks
from doc_running import run_page
from project_files import pages, read

from mcp_bridge.mcp_json import read_config


def blocks_in(page: Path, language: str) -> list[Block]:
    return [block for block in blocks(read(page), str(page)) if block.language == language]


@pytest.mark.parametrize("page", [page for page in pages() if blocks_in(page, "python")], ids=str)
def test_the_python_blocks_of_a_page_run(page: Path, workspace: Path) -> None:
    run_page(blocks_in(page, "python"), str(page))


@pytest.mark.parametrize("page", [page for page in pages() if blocks_in(page, "json")], ids=str)
def test_the_json_blocks_of_a_page_are_what_they_claim(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ORDERS_TOKEN", "STOCK_TOKEN"):
        monkeypatch.setenv(name, "secret")
    for block in blocks_in(page, "json"):
        found = json.loads(block.code)
        if "mcpServers" in found:
            assert len(read_config(found, where=str(page), folder=Path.cwd())) == len(found["mcpServers"])


def page_of(code: str, comment: str = "") -> str:
    return f"# A page\n\n{comment}\n```python\n{code}\n```\n"


def test_a_block_that_fails_is_found_with_its_line() -> None:
    with pytest.raises(AssertionError) as caught:
        run_page(blocks(page_of("assert 1 == 1\nassert 1 == 2")), "planted.md")
    place = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (place.filename, place.lineno) == ("planted.md", 6)


def test_a_block_sees_what_the_one_before_it_defined_and_may_await() -> None:
    first, second = page_of("import anyio\nx = 1"), page_of("await anyio.lowlevel.checkpoint()\ny = x + 1")
    assert run_page(blocks(first + second), "planted.md")["y"] == 2


def test_a_block_that_is_not_run_is_still_compiled() -> None:
    assert "x" not in run_page(blocks(page_of("x = 1", "<!-- not run: needs a cluster -->")), "planted.md")
    with pytest.raises(SyntaxError):
        run_page(blocks(page_of("x = = 1", "<!-- not run: needs a cluster -->")), "planted.md")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (page_of("x = 1", "<!-- not run -->"), "gives no reason"),
        (page_of("x = 1", "<!-- shortened: -->"), "gives no reason"),
        ("```\nx = 1\n```\n", "a block in ''"),
        ("```python\nx = 1\n", "not closed"),
        ("<!-- not run: why -->\nSome words.\n```python\n```\n", "right before its block"),
    ],
)
def test_a_page_that_the_runner_would_misread_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        blocks(text)
