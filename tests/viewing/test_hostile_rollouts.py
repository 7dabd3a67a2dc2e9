"""Whatever a tool returned is shown and never run: by the server's page, and by an export."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect
from runs_to_view import HOSTILE

from sdk.viewing import export_page, view

OpenPage = Callable[..., Page]

MOST_EXTERNAL = re.compile(r"""(?:src|href|url\()\s*=?\s*["']?(?:https?:)?//""")


@pytest.fixture(scope="module")
def addresses(hostile_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The same hostile run as a server shows it, and as one file."""
    exported = tmp_path_factory.mktemp("exported") / "page.html"
    assert export_page([hostile_folder], exported) == len(HOSTILE) + 1
    with view([hostile_folder], port=0) as server:
        yield {"server": server.url, "export": exported.as_uri()}


def open_rollout(page: Page, name: str) -> None:
    page.locator("#search").fill(f"{name}:")
    page.locator(".row").first.click()
    expect(page.locator(".conversation")).to_contain_text(f"{name}: ")


@pytest.mark.parametrize("kind", ["server", "export"])
def test_no_text_of_a_rollout_becomes_markup_or_runs(open_page: OpenPage, addresses: dict[str, str], kind: str) -> None:
    page = open_page(f"{addresses[kind]}#v=rollouts")
    scripts = page.locator("script").count()
    for name in HOSTILE:
        open_rollout(page, name)
        expect(page.locator(".panel", has_text="What went wrong first")).to_be_visible()
        for details in page.locator(".detail details > summary").all():
            details.click()
        expect(page.locator(".piece").first).to_be_visible()
        assert page.locator(".detail").locator("script, iframe, img, style, object, a, b, i, svg, form").count() == 0
    for view_name in ("overview", "groups", "compare"):
        page.keyboard.press("Escape")
        page.evaluate("name => { location.hash = `v=${name}` }", view_name)
        expect(page.locator(f"nav a[data-view={view_name}]")).to_have_attribute("aria-current", "page")
    assert page.evaluate("[window.ran, window.parent.ran, ({}).ran]") == [None, None, None]
    assert page.locator("script").count() == scripts


def test_what_cannot_be_seen_is_shown_as_escapes(open_page: OpenPage, addresses: dict[str, str]) -> None:
    page = open_page(f"{addresses['server']}#v=rollouts")
    for name, escapes in {
        "ansi": ["\\x1b", "\\x07", "\\x9b"],
        "bidi": ["\\u202e", "\\u2066", "\\u200b", "\\ufeff", "\\u2028"],
        "nulls": ["\\x00", "\\x7f"],
        "surrogates": ["\\ud83d", "\\udc00"],
    }.items():
        open_rollout(page, name)
        shown = page.locator(".turn.user .escape").all_text_contents()
        assert all(escape in shown for escape in escapes), (name, shown)
        assert not re.search("[\x00-\x08\x0e-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069]", page.inner_text("body"))


def test_numbers_that_a_browser_would_round_are_shown_as_they_are(
    open_page: OpenPage, addresses: dict[str, str]
) -> None:
    page = open_page(f"{addresses['server']}#v=rollouts")
    open_rollout(page, "json")
    expect(page.locator(".result > .text").first).to_contain_text('"n": 12345678901234567890')
    page.locator(".result summary", has_text="structured").first.click()
    expect(page.locator(".result details").first).to_contain_text('"big": 1180591620717411303424')


@pytest.mark.parametrize("kind", ["server", "export"])
def test_a_result_of_20_mb_is_shown_piece_by_piece_and_says_how_long_it_is(
    open_page: OpenPage, addresses: dict[str, str], kind: str
) -> None:
    page = open_page(f"{addresses[kind]}#v=rollouts")
    open_rollout(page, "huge")
    rest = page.locator(".result .rest").first
    expect(rest).to_contain_text("6,000 of 19,999,998 characters")
    assert len(page.content()) < 1_000_000 or kind == "export"
    for count in ("20,000", "40,000", "60,000") if kind == "server" else ("26,000", "46,000"):
        rest.locator("button").click()
        expect(rest).to_contain_text(f"{count} of 19,999,998")


def test_the_policy_allows_the_page_itself_and_nothing_else(addresses: dict[str, str]) -> None:
    headers = httpx.get(addresses["server"]).headers
    rules = dict(rule.strip().partition(" ")[::2] for rule in headers["content-security-policy"].split(";"))
    assert rules["default-src"] == "'none'"
    assert {rules[name] for name in ("script-src", "style-src", "connect-src", "img-src")} == {"'self'"}
    assert rules["require-trusted-types-for"] == "'script'"
    assert headers["x-content-type-options"] == "nosniff"


def test_an_export_is_one_file_that_names_nobody_else(addresses: dict[str, str]) -> None:
    text = Path(addresses["export"].removeprefix("file://")).read_text("utf-8")
    assert "unsafe" not in text.partition("</head>")[0]
    assert not MOST_EXTERNAL.search(text)
    assert text.count("</script>") == text.count("<script ")
    assert not re.search(r"\son\w+\s*=\s*[\"']", text)
