"""Every Python block of the README, the docs and the examples' pages runs, with nothing but what the page shows."""

from __future__ import annotations

import json
import re
import traceback
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from doc_blocks import Block, blocks
from doc_running import run_page
from project_files import pages, read

from mcp_bridge.sources.mcp_json import read_config

DAY = timedelta(days=1)


def blocks_in(page: Path, language: str) -> list[Block]:
    return [block for block in blocks(read(page), str(page)) if block.language == language]


@pytest.mark.parametrize("page", [page for page in pages() if blocks_in(page, "python")], ids=str)
def test_the_python_blocks_of_a_page_run(page: Path, workspace: Path) -> None:
    run_page(blocks_in(page, "python"), str(page))


@pytest.mark.parametrize("page", [page for page in pages() if blocks_in(page, "json")], ids=str)
def test_the_json_blocks_of_a_page_are_what_they_claim(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for block in blocks_in(page, "json"):
        for name in re.findall(r"\$\{(\w+)\}", block.code):
            monkeypatch.setenv(name, "secret")
        for file, content in certificate_and_key().items():
            for name in re.findall(rf'"([\w-]+\.{file})"', block.code):
                (tmp_path / name).write_bytes(content)
        for folder in re.findall(r'"folder": "([\w-]+)/?"', block.code):
            (tmp_path / folder).mkdir()
        found = json.loads(block.code)
        if "mcpServers" in found:
            assert len(read_config(found, where=str(page), folder=tmp_path)) == len(found["mcpServers"])


def certificate_and_key() -> dict[str, bytes]:
    """A certificate (`pem`) and its private key (`key`), both in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "example")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + DAY)
    return {
        "pem": builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
        "key": key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    }


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
