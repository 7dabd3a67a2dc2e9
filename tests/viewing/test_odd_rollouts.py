"""Rollouts that are odd and not hostile: steep JSON, names that every object has, scores a hair too low."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from runs_to_view import hostile_rollout

from sdk.evaluation import build_report
from sdk.evaluation.report import note_conditions
from sdk.records import Rollout, Task, Verdict
from sdk.traces.run_folder import RunFolder
from sdk.viewing import export_page
from sdk.viewing.index import RunIndex

OpenPage = Callable[..., Page]

STEEP = "[" * 2900 + "]" * 2900


def scored(name: str, score: float, **verdict: object) -> Rollout:
    return Rollout(id=name, task=Task(prompt=f"{name}:", id=name), answer=name, verdict=Verdict(score=score, **verdict))


BEYOND = """detail => [...detail.querySelectorAll("*")]
  .filter(one => one.getBoundingClientRect().right > innerWidth + 1 || one.scrollWidth > innerWidth)
  .map(one => `${one.tagName} ${one.className}`)"""
"""What of the detail reaches beyond the window."""


@pytest.fixture(scope="module")
def odd_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "odd"
    components = {"toString": 1.0, "kept": 0.5}
    rollouts = [
        hostile_rollout("steep", STEEP),
        scored("constructor", 1.0, components=components, explanation="valueOf 1: what the verifier says"),
        scored("rounded", 1.0 - 1e-12),
        scored("wrong", 0.9),
    ]
    with RunFolder.create_or_resume(path, {"model": "none", "what": "odd"}) as run:
        for rollout in rollouts:
            run.append_rollout("odd", rollout)
        note_conditions(run, {"odd": "odd"}, [])
        build_report({"odd": rollouts}).write(path)
    return path


def opened(page: Page, name: str) -> Page:
    page.locator("#search").fill(f"{name}:")
    page.locator(".row").first.click()
    expect(page.locator(".detail h2")).to_contain_text(f"{name}:")
    return page


def test_json_that_is_nested_without_end_is_shown_as_it_was_written(
    open_page: OpenPage, serve: Callable[[Path], str], odd_run: Path
) -> None:
    page = opened(open_page(f"{serve(odd_run)}#v=rollouts"), "steep")
    assert page.locator(".result > .text").first.text_content() == STEEP


def test_names_that_every_object_has_are_names_like_others(
    open_page: OpenPage, serve: Callable[[Path], str], odd_run: Path
) -> None:
    page = opened(open_page(f"{serve(odd_run)}#v=rollouts"), "constructor")
    expect(page.locator(".verdict")).to_contain_text("valueOf 1: what the verifier says")
    expect(page.locator(".verdict")).not_to_contain_text("What went wrong first")


def test_a_score_that_misses_the_threshold_by_rounding_is_right_as_in_the_report(
    open_page: OpenPage, serve: Callable[[Path], str], odd_run: Path
) -> None:
    page = open_page(f"{serve(odd_run)}#v=rollouts")
    for name, outcome in (("rounded", "right"), ("wrong", "wrong")):
        expect(opened(page, name).locator(".detail h2 .mark")).to_have_attribute("aria-label", outcome)


@pytest.mark.parametrize("width", [380, 1300])
def test_a_word_without_end_stays_within_the_window(
    open_page: OpenPage, serve: Callable[[Path], str], tmp_path: Path, width: int
) -> None:
    with RunFolder.create_or_resume(tmp_path / "run", {"model": "none"}) as run:
        run.append_rollout("odd", hostile_rollout("long", "a" * 3000))
    page = open_page(f"{serve(tmp_path / 'run')}#v=rollouts", width=width)
    page.locator(".row").first.click()
    expect(page.locator(".detail h2")).to_contain_text("long:")
    assert page.locator(".detail").evaluate(BEYOND) == []


def test_an_address_with_a_view_that_does_not_exist_shows_the_overview(
    open_page: OpenPage, serve: Callable[[Path], str], odd_run: Path
) -> None:
    page = open_page(f"{serve(odd_run)}#v=constructor")
    expect(page.locator("nav a[aria-current=page]")).to_have_attribute("data-view", "overview")


def test_who_goes_back_to_the_list_goes_on_from_where_they_were(
    open_page: OpenPage, serve: Callable[[Path], str], odd_run: Path
) -> None:
    page = open_page(f"{serve(odd_run)}#v=rollouts")
    expect(page.locator(".row")).to_have_count(4)
    for key in ("j", "j", "Escape", "j"):
        page.keyboard.press(key)
    expect(page.locator(".detail h2")).to_contain_text("rounded:")


def test_stages_with_tasks_in_common_are_compared_whatever_comes_after_them(
    open_page: OpenPage, serve: Callable[[Path], str], tmp_path: Path
) -> None:
    with RunFolder.create_or_resume(tmp_path / "run", {"model": "none"}) as run:
        for stage, name, score in (("a_before", "one", 0.0), ("b_after", "one", 1.0), ("c_other", "two", 1.0)):
            run.append_rollout(stage, scored(name, score).model_copy(update={"id": f"{stage}/{name}"}))
            run.finish_stage(stage, {})
    page = open_page(f"{serve(tmp_path / 'run')}#v=compare")
    expect(page.locator(".count")).to_have_text("1 of 1 tasks · 1 gained, 0 lost")
    assert [page.get_by_label(side).input_value() for side in ("Before", "After")] == ["a_before", "b_after"]


def test_a_line_that_is_nested_without_end_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    with RunFolder.create_or_resume(tmp_path / "run", {"model": "none"}) as run:
        run.append_rollout("odd", scored("one", 1.0))
    with open(tmp_path / "run" / "rollouts" / "odd.jsonl", "ab") as file:
        file.write(b'{"id":"deep","calls":' + b"[" * 50_000 + b"]" * 50_000 + b"}\n")
        file.write(b'{"id":"last"}\n')
    index = RunIndex([tmp_path / "run"])
    index.refresh()
    assert [place.id for place in index.content.places] == ["one", "last"]
    assert index.content.problems == ["odd.jsonl, line 2, cannot be read: it is nested too deeply"]


ASTRAL = "".join(f"{number:05} \U0001f600\U0001f680" for number in range(5_000))
"""40,000 characters as the server counts them, 50,000 as a browser does; no piece of it comes twice."""


def test_texts_and_values_of_the_state_come_whole_whatever_characters_they_have(
    open_page: OpenPage, serve: Callable[[Path], str], tmp_path: Path
) -> None:
    told = hostile_rollout("astral", ASTRAL).model_copy(
        update={"initial_state": {"notes": {"1": {"text": "x"}}}, "final_state": {"notes": {"1": {"text": ASTRAL}}}}
    )
    with RunFolder.create_or_resume(tmp_path / "run", {"model": "none"}) as run:
        run.append_rollout("odd", told)
    assert export_page([tmp_path / "run"], tmp_path / "page.html") == 1
    for url in (serve(tmp_path / "run"), (tmp_path / "page.html").as_uri()):
        page = opened(open_page(f"{url}#v=rollouts"), "astral")
        for place, whole in ((".result", ASTRAL), (".after", f'"{ASTRAL}"')):
            node = page.locator(place).first
            expect(node.locator(".rest")).to_contain_text(f"of {len(whole):,} characters")
            more = node.locator("button.more").first
            while more.count():
                said = node.locator(".rest").text_content()
                more.click()
                expect(node.locator(".rest")).not_to_have_text(said or "")
            assert node.locator(".text").first.text_content() == whole
