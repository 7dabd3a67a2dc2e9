"""The page with 10 000 rollouts in headless Chromium: first view, filter, opening a rollout.

    python tests/benchmarks/viewing.py [--rollouts 10000] [--rounds 15]

The rollouts are real ones of the helpdesk, with their states, ledgers and tokens, repeated under other ids.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1] / "viewing"))
from conftest import FLAGS, MISSING, NAMES
from runs_to_view import helpdesk_rollouts, long_run, run_apart

from sdk.viewing import view
from sdk.viewing.index import RunIndex

_KEPT_TOKENS = 400
"""Prompt tokens of a scripted rollout are bytes, thousands; a model's are about as many as this."""


def after_frame(page: Page, act: str, settled: str) -> float:
    """Milliseconds, in the browser's clock, from an action until what it brings is painted."""
    return float(
        page.evaluate(
            f"""async () => {{
                const painted = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
                const start = performance.now();
                {act}
                do {{
                    if (performance.now() - start > 60000) throw new Error("nothing came of it");
                    await painted();
                }} while (!({settled}));
                return performance.now() - start;
            }}"""
        )
    )


def typed(text: str) -> str:
    """Typing into the search, as one event."""
    return (
        f"const box = document.querySelector('#search'); box.value = {text!r}; "
        "box.dispatchEvent(new Event('input', {bubbles: true}));"
    )


def longest_frame(page: Page, act: str, times: int) -> float:
    """Milliseconds of the longest frame while `act` is done once in each of `times` frames; `i` is its number."""
    return float(
        page.evaluate(
            f"""async () => {{
                const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
                let last = await frame();
                let longest = 0;
                for (let i = 0; i < {times}; i += 1) {{
                    {act}
                    const now = await frame();
                    longest = Math.max(longest, now - last);
                    last = now;
                }}
                return longest;
            }}"""
        )
    )


def first_view(page: Page, url: str, count: str) -> tuple[float, float]:
    """Milliseconds from the navigation until the list is painted, and until every rollout is in it."""
    page.goto(f"{url}#v=rollouts", wait_until="commit")
    after_frame(page, "", "document.querySelector('.row')")
    listed = float(page.evaluate("performance.now()"))
    after_frame(page, "", counts(f"{count} of"))
    whole = float(page.evaluate("performance.now()"))
    page.close()
    return listed, whole


def counts(text: str) -> str:
    return f"document.querySelector('.count')?.textContent.startsWith('{text}')"


def section(*, rollouts: int = 10_000, rounds: int = 15) -> str:
    """The result as Markdown."""
    found = os.environ.get("TOOLBAKE_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        raise SystemExit(MISSING)
    played = run_apart(lambda: helpdesk_rollouts("grpo", step=0, right=(0, 2)))
    for rollout in played:
        for row in rollout.rows:
            row.prompt_ids = row.prompt_ids[:_KEPT_TOKENS]
    with tempfile.TemporaryDirectory() as folder:
        run = long_run(Path(folder) / "long", played, rollouts)
        megabytes = (run / "rollouts" / "grpo.jsonl").stat().st_size / 1e6
        started = time.perf_counter()
        RunIndex([run]).refresh()
        indexed = time.perf_counter() - started
        with sync_playwright() as playwright, ExitStack() as until_end:
            browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
            page = browser.new_page(viewport={"width": 1300, "height": 850})
            started = time.perf_counter()
            server = until_end.enter_context(view([run], port=0))
            page.goto(f"{server.url}#v=rollouts")
            page.wait_for_selector(".row")
            from_nothing = time.perf_counter() - started
            after_frame(page, "", counts(f"{rollouts:,} of"))
            views = [first_view(browser.new_page(), server.url, f"{rollouts:,}") for _ in range(max(3, rounds // 3))]
            filters = [
                after_frame(page, typed(f"number=n{n}"), counts("1 of")) for n in range(rollouts - rounds, rollouts)
            ]
            after_frame(page, typed(""), counts(f"{rollouts:,} of"))
            opened = [after_frame(page, click(place), is_open(place)) for place in range(1, rounds + 1)]
            frames = [longest_frame(page, SCROLL, 120) for _ in range(max(3, rounds // 5))]
            switched = [after_frame(page, go(name), settled) for name, settled in VIEWS.items()]
            browser.close()
    lines = [
        f"## The page: {rollouts:,} rollouts",
        "",
        f"`toolbake view` on a run of {megabytes:.0f} MB, in headless Chromium on the same machine; median of {rounds} "
        "(and the slowest).",
        "",
        "| | milliseconds |",
        "| --- | --- |",
        f"| first view: from opening the page to the painted list | {shown([listed for listed, _ in views])} |",
        f"| until all rows are in it | {shown([whole for _, whole in views])} |",
        f"| first rows on the screen after `toolbake view` has begun to read the run | {from_nothing * 1000:,.0f} |",
        f"| filter: from a keystroke to the painted list | {shown(filters)} |",
        f"| opening a rollout: from a click to the painted conversation | {shown(opened)} |",
        f"| scrolling through all rows, 120 frames: the longest frame | {shown(frames)} |",
        f"| changing to groups, compare, overview and back | {shown(switched)} |",
        f"| reading the run once, in the background | {indexed * 1000:,.0f} |",
    ]
    return "\n".join(lines)


SCROLL = "const list = document.querySelector('.list'); list.scrollTop = (i / 120) * list.scrollHeight;"
VIEWS = {
    "groups": "/groups$/.test(document.querySelector('.count')?.textContent ?? '')",
    "compare": "/lost$/.test(document.querySelector('.count')?.textContent ?? '')",
    "overview": "document.querySelector('.overview .stages')",
    "rollouts": "/^[0-9,]+ of [0-9,]+$/.test(document.querySelector('.count')?.textContent ?? '')",
}
"""What is there once a view is drawn."""


def go(view_name: str) -> str:
    return f"location.hash = 'v={view_name}';"


def click(place: int) -> str:
    """Choose a row in sight by its place."""
    return f"document.querySelector('[data-place=\"{place}\"]').click();"


def is_open(place: int) -> str:
    """Whether that rollout is read: its id is the number of its place."""
    return f"(document.querySelector('.detail header')?.textContent ?? '').includes('grpo/0/{place} ')"


def shown(milliseconds: list[float]) -> str:
    return f"{statistics.median(milliseconds):.0f} ({max(milliseconds):.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    print(section(rollouts=given.rollouts, rounds=given.rounds))


if __name__ == "__main__":
    main()
