"""The page as people use it: in a real browser, with real rollouts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, Route, expect
from runs_to_view import helpdesk_rollouts, long_run, reported_run, run_apart

from sandboxes.helpdesk import Helpdesk
from sdk.evaluation.evaluation_run import rollout_async
from sdk.policies.scripted import ScriptedAgent
from sdk.records import Fact, Message, Task, ToolCall, User
from sdk.traces.run_folder import RunFolder

OpenPage = Callable[..., Page]
Serve = Callable[..., str]

CANCELLED = "#v=rollouts&q=cancel_order&result=right"


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def test_a_rollout_reads_as_a_conversation_with_its_verdict_and_what_it_changed(
    open_page: OpenPage, helpdesk_url: str
) -> None:
    page = open_page(helpdesk_url + CANCELLED)
    page.locator(".row").first.click()
    expect(page.locator(".turn.user")).to_contain_text("Cancel order 2138")
    expect(page.locator(".call-head")).to_contain_text("cancel_order")
    expect(page.locator(".call > .text")).to_have_text('{"order_id": "2138"}')
    expect(page.locator(".result")).to_contain_text('"paid_back": 153')
    expect(page.locator(".turn.assistant").last).to_contain_text("153 paid back")
    expect(page.locator(".score")).to_have_text("✓1")
    expect(page.locator(".components")).to_contain_text("the 2 expected changes and no others")
    expect(page.locator(".changes li", has_text="orders.2138.status")).to_have_text(
        re.compile('"processing"\\s*"cancelled"')
    )


def test_everything_is_reached_by_keys_alone_and_a_label_is_kept_beside_the_run(
    open_page: OpenPage, serve: Serve, desk: Path
) -> None:
    url = serve(desk)
    page = open_page(url)
    expect(page.locator(".stages")).to_contain_text("after_grpo")
    press(page, "2", "/")
    page.keyboard.type("refund demonstration")
    expect(page.locator(".count")).to_contain_text("5 of 30")
    press(page, "Escape", "j", "j")
    expect(page.locator(".row[aria-selected=true]")).to_have_attribute("aria-posinset", "2")
    expect(page.locator(".score")).to_have_text("✓1")
    press(page, "y")
    expect(page.locator("[data-label=good]")).to_have_attribute("aria-pressed", "true")
    press(page, "e")
    page.keyboard.type("reads the order first <b>")
    press(page, "Control+Enter")
    expect(page.locator(".row[aria-selected=true] .label")).to_have_text("good")
    expect(page.locator(".panel [role=status]")).to_have_text("saved")
    press(page, "p")
    expect(page.locator(".piece").first).to_be_visible()
    press(page, "b")
    expect(page.locator(".column")).to_have_count(4)
    press(page, "4", "j")
    expect(page.locator(".column")).to_have_count(2)
    expect(page.locator(".count")).to_contain_text("3 gained, 0 lost")
    press(page, "?")
    expect(page.locator("#help")).to_be_visible()
    press(page, "Escape", "1")
    expect(page.locator(".chart").first).to_be_visible()
    saved = [json.loads(line) for line in (desk / "labels.jsonl").read_text().splitlines()]
    assert [(line["label"], line["comment"]) for line in saved] == [("good", ""), ("good", "reads the order first <b>")]
    assert saved[0]["rollout"] == "grpo/1/refund_full-train-0/0"


def test_a_label_that_is_chosen_straight_after_its_comment_is_kept_with_it(
    open_page: OpenPage, serve: Serve, desk: Path
) -> None:
    page = open_page(serve(desk) + CANCELLED)
    page.locator(".row").first.click()
    page.locator("#comment").click()
    page.keyboard.type("paid back")
    page.locator("[data-label=good]").hover()
    page.mouse.down()  # leaves the comment, which is saved before the button is let go
    expect(page.locator(".panel [role=status]")).to_have_text("saved")
    page.mouse.up()
    expect(page.locator("[data-label=good]")).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".row[aria-selected=true] .label")).to_have_text("good")
    # A comment that follows before the label is saved leaves it as it is.
    held: list[Route] = []
    page.route(re.compile("/api/labels"), lambda route: route.continue_() if held else held.append(route))
    with page.expect_request(re.compile("/api/labels")):
        press(page, "n")
    press(page, "e")
    page.keyboard.type(" too late: ")
    press(page, "Control+Enter")
    held[0].continue_()
    expect(page.locator(".row[aria-selected=true] .label")).to_have_text("bad")
    expect(page.locator(".panel [role=status]")).to_have_text("saved")
    page.reload()
    expect(page.locator("[data-label=bad]")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#comment")).to_have_value(re.compile("paid back.* too late: |too late: .*paid back"))


def test_a_rollout_that_an_address_opens_has_its_label_however_late_the_labels_come(
    open_page: OpenPage, serve: Serve, desk: Path
) -> None:
    page = open_page(serve(desk) + CANCELLED)
    page.locator(".row").first.click()
    page.locator("#comment").fill("paid back")
    press(page, "Control+Enter")
    expect(page.locator(".panel [role=status]")).to_have_text("saved")
    asked: list[str] = []
    held: list[Route] = []
    address = page.url
    page.goto("about:blank")  # the page that is there asks for rows now and then
    page.route("**/api/rows?*", lambda route: (asked.append("rows"), route.continue_()))
    page.route(re.compile(r"/api/labels\?$"), lambda route: held.append(route) if asked else route.continue_())
    page.goto(address)
    expect(page.locator(".score")).to_have_text("✓1")
    for route in held:
        route.continue_()
    expect(page.locator("#comment")).to_have_value("paid back")


def test_a_search_of_whole_conversations_ends_with_its_words(open_page: OpenPage, helpdesk_url: str) -> None:
    page = open_page(helpdesk_url + "#v=rollouts")
    page.locator("#search").fill("paid_back")
    press(page, "Enter")
    expect(page.locator(".count")).to_have_text("5 of 30 · searched in whole conversations")
    press(page, "Escape", "1")
    page.locator(".stages a").first.click()
    expect(page.locator("#search")).to_have_value("")
    expect(page.locator(".count")).to_have_text("3 of 30")


def test_rollouts_that_are_written_meanwhile_appear_and_what_is_being_read_stays(
    open_page: OpenPage, serve: Serve, desk: Path
) -> None:
    url = serve(desk, look_every_s=0.05)
    page = open_page(url + CANCELLED)
    page.locator(".row").first.click()
    expect(page.locator(".score")).to_have_text("✓1")
    with RunFolder.create_or_resume(desk, {"model": None, "what": "desk"}) as folder:
        for rollout in run_apart(lambda: helpdesk_rollouts("later", right=(0,))):
            folder.append_rollout("later", rollout)
    expect(page.locator(".count")).to_have_text("6 of 33")
    expect(page.locator(".row[aria-selected=true]")).to_have_count(1)
    expect(page.locator(".turn.user")).to_contain_text("Cancel order 2138")
    # Written anew by its run, a file begins a new count.
    with RunFolder.create_or_resume(desk, {"model": None, "what": "desk"}) as folder:
        folder.drop_after("grpo", 0)
    expect(page.locator(".count")).to_have_text("3 of 21")


def test_a_run_with_a_report_leads_from_what_went_wrong_to_the_rollouts_that_did(
    open_page: OpenPage, serve: Serve, tmp_path: Path
) -> None:
    run = run_apart(lambda: reported_run(tmp_path / "desk"))
    page = open_page(serve(run))
    expect(page.locator(".next li")).to_have_text(["Raise <b>limits.max_turns</b>."])
    # Probes are folded, and stages have the report's names.
    expect(page.locator(".probes > summary")).to_have_text("1 degenerate probe: none of 3 rollouts earned the reward")
    names = page.locator(".stages").first.locator("tbody th").all_text_contents()
    assert (names[0], names[-1]) == ("before", "after GRPO")
    assert not [name for name in names if "probe" in name]
    faults = page.locator(".faults")
    assert faults.locator("thead th").all_text_contents() == ["rollouts", "before"]
    faults.locator("tr", has_text="ungrounded argument").locator("a").click()
    expect(page.locator(".count")).to_have_text("3 of 33")
    press(page, "j")
    panel = page.locator(".panel", has_text="What went wrong first")
    expect(panel).to_contain_text("ungrounded argument · turn 1 · get_order.order_id")
    # The stages compared at first are those with tasks in common, and probes are no group.
    press(page, "4")
    expect(page.locator(".count")).to_have_text("3 of 3 tasks · 3 gained, 0 lost")
    press(page, "G")
    expect(page.locator(".row[aria-selected=true]")).to_have_attribute("aria-posinset", "3")
    expect(page.locator(".column")).to_have_count(2)
    press(page, "3")
    expect(page.locator(".count")).to_have_text("6 of 6 groups")
    press(page, "G", "g", "End")
    expect(page.locator(".row[aria-selected=true]")).to_have_attribute("aria-posinset", "6")


def test_steps_and_a_report_that_are_written_meanwhile_appear_and_what_is_unfolded_stays(
    open_page: OpenPage, serve: Serve, desk: Path
) -> None:
    page = open_page(serve(desk, look_every_s=0.05))
    page.locator("summary", has_text="all settings").click()
    expect(page.locator(".chart", has_text="reward")).to_contain_text("step 1")
    with RunFolder.create_or_resume(desk, {"model": None, "what": "desk"}) as folder:
        folder.append_metrics({"stage": "grpo", "step": 7, "reward": 1.0, "loss": 0.0})
        folder.finish_stage("conditions", {"stages": {"in the end": "after_grpo"}})
        interval = {"low": 0.25, "estimate": 1.0, "high": 0.75}
        report = {"conditions": {"in the end": {"success": {"interval": interval}}}}
        folder.report_json.write_text(json.dumps(report))
    expect(page.locator(".chart", has_text="reward")).to_contain_text("step 7")
    expect(page.locator(".run .facts")).to_contain_text("conditions")
    expect(page.locator(".stages").first).to_contain_text("in the end")
    expect(page.locator(".whisker").last).to_have_attribute("title", "95 % interval 25 to 75 %, as reported")
    expect(page.locator(".run .code")).to_be_visible()


@pytest.mark.parametrize(("width", "dark"), [(390, False), (390, True), (1300, True)])
def test_it_is_readable_on_a_phone_and_in_the_dark(
    open_page: OpenPage, helpdesk_url: str, width: int, dark: bool, tmp_path: Path
) -> None:
    page = open_page(helpdesk_url + CANCELLED, width=width, height=844, dark=dark)
    page.locator(".row").first.click()
    expect(page.locator(".score")).to_be_visible()
    expect(page.locator(".list")).to_be_visible(visible=width > 720)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CONTRAST, ".turn.user .text") > 7
    assert page.evaluate(CONTRAST, ".panel .reason") > 4.5
    assert (page.evaluate(BRIGHTNESS) < 0.2) == dark
    assert len(page.screenshot(path=tmp_path / "page.png")) > 10_000
    press(page, "t")
    assert (page.evaluate(BRIGHTNESS) < 0.2) != dark
    if width < 720:
        page.locator(".back").click()
        expect(page.locator(".list")).to_be_visible()


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1300])
def test_every_view_fits_its_screen_and_is_painted(
    open_page: OpenPage, helpdesk_url: str, width: int, dark: bool, tmp_path: Path
) -> None:
    page = open_page(helpdesk_url, width=width, height=844, dark=dark)
    for number, (key, there) in enumerate({"1": ".chart", "2": ".rollout", "3": ".column", "4": ".column"}.items()):
        press(page, key)
        if key != "1":
            press(page, "j")
        expect(page.locator(there).first).to_be_visible()
        expect(page.locator(".columns .muted", has_text="…")).to_have_count(0)
        assert page.evaluate(BEYOND_THE_SCREEN) == []
        picture = tmp_path / f"{number}.png"
        page.screenshot(path=picture)
        shades, brightness = painted(picture)
        assert shades > 100  # letters have many, an empty page few
        assert (brightness < 0.4) == dark
        press(page, "Escape")


def painted(picture: Path) -> tuple[int, float]:
    """How many colours a screenshot has, and how bright it is, from 0 to 1."""
    with Image.open(picture) as image:
        colours = image.convert("RGB").getcolors(image.width * image.height)
        grey = image.convert("L").histogram()
    assert colours is not None
    return len(colours), sum(value * count for value, count in enumerate(grey)) / sum(grey) / 255


BEYOND_THE_SCREEN = """() => [...document.querySelectorAll("main *")].filter((node) => {
    const box = node.getBoundingClientRect();
    if (!box.width || !box.height) return false;
    for (let around = node.parentElement; around; around = around.parentElement) {
        if (/auto|scroll|hidden/.test(getComputedStyle(around).overflowX)) return false;
    }
    return box.right > innerWidth + 1 || box.left < -1;
}).map((node) => node.className)"""
"""What sticks out sideways, and cannot be scrolled to in a part of its own."""
BRIGHTNESS = """() => {
    const parts = getComputedStyle(document.body).backgroundColor.match(/[\\d.]+/g).map(Number);
    return parts.slice(0, 3).reduce((sum, one) => sum + one, 0) / 3 / 255;
}"""
CONTRAST = """(selector) => {
    const luminance = (color) => {
        const parts = color.match(/[\\d.]+/g).slice(0, 3).map((one) => {
            const share = one / 255;
            return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
    };
    const ink = luminance(getComputedStyle(document.querySelector(selector)).color);
    const paper = luminance(getComputedStyle(document.body).backgroundColor);
    return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
}"""
"""WCAG 2.2, relative luminance and contrast ratio."""


def test_ten_thousand_rollouts_keep_few_rows_in_the_page_and_one_is_found_among_them(
    open_page: OpenPage, serve: Serve, tmp_path: Path
) -> None:
    rollouts = run_apart(lambda: helpdesk_rollouts("grpo", step=0, right=(0, 2)))
    for rollout in rollouts:
        rollout.rows, rollout.ledger, rollout.initial_state, rollout.final_state = [], [], None, None
    url = serve(long_run(tmp_path / "long", rollouts, 10_000))
    page = open_page(f"{url}#v=rollouts")
    expect(page.locator(".count")).to_have_text("10,000 of 10,000", timeout=60_000)
    assert page.locator(".row").count() < 60
    press(page, "G")
    expect(page.locator(".row[aria-selected=true]")).to_have_attribute("aria-posinset", "10000")
    assert page.locator(".row").count() < 60
    page.locator("#search").fill("number=n4321")
    expect(page.locator(".count")).to_have_text("1 of 10,000")
    page.locator(".row").click()
    expect(page.locator(".detail header")).to_contain_text("grpo/67/4321")


def test_the_overview_has_the_intervals_of_the_report_and_counts_its_own_where_there_is_none(
    open_page: OpenPage, serve: Serve, desk: Path
) -> None:
    interval = {"low": 0.25, "estimate": 0.5, "high": 0.75}
    report = {"success_threshold": 1.0, "conditions": {"after GRPO": {"success": {"interval": interval}}}}
    (desk / "report.json").write_text(json.dumps(report))
    page = open_page(serve(desk))
    page.set_viewport_size({"width": 390, "height": 844})
    whiskers = page.locator(".whisker")
    expect(whiskers).to_have_count(2)
    # Wilson's interval of 0 of 3: 0 to 1.96^2 / (3 + 1.96^2) = 0.561.
    expect(whiskers.first).to_have_attribute("title", "95 % interval 0 to 56.1 %, tasks taken as independent")
    expect(whiskers.last).to_have_attribute("title", "95 % interval 25 to 75 %, as reported")
    expect(page.locator(".stages tbody tr")).to_have_count(4)
    # The report's figure, which averages the tries at a task first, and not the share of the rollouts.
    expect(page.locator(".stages tbody tr", has_text="after GRPO").locator(".figure").first).to_have_text("50 %")
    expect(page.locator(".run")).to_contain_text("toolbake verify")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_what_the_prompts_showed_of_the_tools_stands_with_the_run_and_with_each_rollout(
    open_page: OpenPage, serve: Serve, tmp_path: Path
) -> None:
    async def write() -> None:
        shares = {"full": 0.5, "names": 0.5}
        with RunFolder.create_or_resume(tmp_path / "desk", {"train": {"tool_prompt": shares}}) as run:
            first, *_ = await helpdesk_rollouts("untrained", right=(0,))
            run.append_rollout("untrained", first.model_copy(update={"tool_prompt": "names"}))

    run_apart(write)
    page = open_page(serve(tmp_path / "desk"))
    expect(page.locator(".run .facts")).to_contain_text("full schemas (50 %) and names only (50 %)")
    press(page, "2")
    page.locator(".row").first.click()
    expect(page.locator(".panel", has_text="tools in the prompt")).to_contain_text("names only")


def test_who_has_the_key_opens_the_page_with_it(
    browser: Browser, serve: Callable[..., str], helpdesk_folder: Path
) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(20_000)
    page.goto(serve(helpdesk_folder, api_key="secret"))
    for key, there in (("wrong", "input[name=key]"), ("secret", ".chart")):
        page.locator("input[name=key]").fill(key)
        page.get_by_role("button", name="Open").click()
        expect(page.locator(there).first).to_be_visible()
    context.close()


def test_what_a_user_called_said_and_ended_is_shown_as_its_own(
    open_page: OpenPage, serve: Serve, tmp_path: Path
) -> None:
    looks = Fact(call=ToolCall(id="", name="get_stock", arguments={"product": "lamp"}), asked_by=["look into the shop"])
    user = User(scenario="You stand in the shop.", facts={"stock": looks}, tools=["get_stock"])
    words = [("user", "Hello."), ("assistant", "What can I do?"), ("user", "Can I buy a lamp?")]
    prompt = [Message(role=role, content=content) for role, content in words]
    task = Task(prompt=prompt, setup={"seed": 43}, user=user)
    script = ScriptedAgent(["Could you look into the shop?", "There are some left."])
    rollout = run_apart(lambda: rollout_async(Helpdesk(), task, model=script))
    with RunFolder.create_or_resume(tmp_path / "run", {}) as run:
        run.append_rollout("evaluation", rollout)
    page = open_page(serve(tmp_path / "run") + "#v=rollouts")
    page.locator(".row").first.click()
    turns = page.locator(".turn")
    expect(turns).to_have_count(7)
    expect(turns.nth(2)).not_to_contain_text("by rules")
    expect(turns.nth(4)).to_have_class(re.compile("user"))
    expect(turns.nth(4)).to_contain_text("user by rules")
    expect(turns.nth(4).locator(".call-head")).to_contain_text("get_stock")
    expect(turns.nth(4).locator(".call > .text")).to_have_text('{"product": "lamp"}')
    expect(turns.nth(6)).to_contain_text("(ended the conversation)")
