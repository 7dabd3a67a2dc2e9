"""A real browser, and pages that fail their test where a script goes wrong or somebody else is asked for something."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright
from runs_to_view import helpdesk_run, hostile_run, run_apart

from sdk.viewing import view

expect.set_options(timeout=60_000)  # five seconds by default, whatever the limit of a page is

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
REQUIRED = "TOOLBAKE_BROWSER_TESTS"
MISSING = (
    "there is no Chromium to open the page with; install it (Debian and Ubuntu: apt-get install chromium), or name it: "
    "TOOLBAKE_CHROMIUM=/path/to/chromium"
)

OpenPage = Callable[..., Page]


@pytest.fixture(scope="module")  # not longer: while it is open, no other test of this process can run a loop
def browser() -> Iterator[Browser]:
    """Chromium, with a profile of its own. Skipped where there is none, unless TOOLBAKE_BROWSER_TESTS=required."""
    found = os.environ.get("TOOLBAKE_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        if os.environ.get(REQUIRED) == "required":
            pytest.fail(f"{MISSING} ({REQUIRED}=required)")
        pytest.skip(MISSING)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Serve the page of a run until the test is over; returns its address.

    `tmp_path`: pytest deletes it only after this is closed; a page still asks for rollouts when its test ends.
    """
    with ExitStack() as servers:
        yield lambda run, **options: servers.enter_context(view([run], port=0, **options)).url


@pytest.fixture
def open_page(browser: Browser, serve: object) -> Iterator[OpenPage]:
    """Open an address; at the end, while its server is there, no script has failed and nobody else was asked.

    `refused`: the statuses with which the server is meant to answer.
    """
    contexts, troubles = [], []

    def hear(said: ConsoleMessage, refused: Sequence[int]) -> None:
        if said.type == "error" and not any(f"with a status of {status} " in said.text for status in refused):
            troubles.append(f"console: {said.text}")

    def open_page(
        url: str, *, width: int = 1300, height: int = 850, dark: bool = False, refused: Sequence[int] = ()
    ) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: troubles.append(f"script: {error}"))
        page.on("console", lambda said: hear(said, refused))
        page.on("dialog", lambda dialog: (troubles.append(f"dialog: {dialog.message}"), dialog.dismiss()))

        def ask(request: Request) -> None:
            if not request.url.startswith("data:") and urlsplit(request.url)[:2] != urlsplit(url)[:2]:
                troubles.append(f"asked {request.url}")

        context.on("request", ask)
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert troubles == []


@pytest.fixture(scope="session")
def helpdesk_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 30 rollouts. Tests that write use a copy."""
    path = tmp_path_factory.mktemp("runs") / "desk"
    return run_apart(lambda: helpdesk_run(path))


@pytest.fixture
def desk(helpdesk_folder: Path, tmp_path: Path) -> Path:
    """A copy of that run."""
    return Path(shutil.copytree(helpdesk_folder, tmp_path / "desk"))


@pytest.fixture(scope="session")
def helpdesk_url(helpdesk_folder: Path) -> Iterator[str]:
    with view([helpdesk_folder], port=0) as server:
        yield server.url


@pytest.fixture(scope="session")
def hostile_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile_run(tmp_path_factory.mktemp("runs") / "hostile")
