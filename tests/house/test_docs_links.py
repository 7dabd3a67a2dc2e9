"""Links in the docs lead somewhere: to a file of the project, and to a heading where they name one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from project_files import ROOT, pages, read

GENERATED = Path("docs/reference/commands.md")
"""Made of the commands' help when the site is built."""
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def prose(text: str) -> str:
    """The page without its code blocks, whose brackets are no links and whose comments no headings."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """The names GitHub gives to headings: lower case, spaces as dashes, other marks dropped."""
    headings = re.findall(r"^#+ +(.*)$", prose(text), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path, text: str) -> list[str]:
    broken = []
    for link in _LINK.findall(prose(text)):
        path, _, anchor = link.partition("#")
        if re.match(r"https?://", link):
            continue
        target = page if not path else page.parent / path
        if target == GENERATED:
            continue
        if not (ROOT / target).exists() or (anchor and anchor not in anchors(text if not path else read(target))):
            broken.append(link)
    return broken


@pytest.mark.parametrize("page", pages(), ids=str)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    assert broken_links(page, read(page)) == []


def test_a_link_to_nowhere_is_found() -> None:
    text = "# A heading, here\n[a](docs/nowhere.md) [b](LICENSE#x) [c](#a-heading-here) [d](#nothing) ![e](no.png)"
    assert broken_links(Path("README.md"), text) == ["docs/nowhere.md", "LICENSE#x", "#nothing", "no.png"]


def test_every_page_of_the_docs_is_in_the_sites_navigation() -> None:
    listed = set(re.findall(r"[\w/-]+\.md", read(Path("mkdocs.yml"))))
    assert {str(page.relative_to("docs")) for page in pages() if page.parts[0] == "docs"} <= listed
    assert "docs/index.md" in _LINK.findall(read(Path("README.md")))


def test_the_index_for_language_models_links_to_files_that_exist() -> None:
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "llms.txt").read_text(encoding="utf-8"))
    assert len(links) > 15
    assert [link for link in links if not (ROOT / link).is_file()] == []
