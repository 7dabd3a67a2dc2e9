"""Files of tasks and of labelled rows on the page: read, changed and labelled, and nothing else of them moves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, Route, expect

from sdk.errors import ConfigError, RunFolderError
from sdk.judging import labelled_examples
from sdk.tasks import load_tasks
from sdk.viewing import export_page, view
from sdk.viewing.row_file import RowChange, RowFile, RowFileChanged

OpenPage = Callable[..., Page]
Serve = Callable[..., str]

TASK = (
    '{"prompt": "Where is order 7?",  "expected": {"answer": "sent", "weight": 12345678901234567890.10}, '
    '"tags": {"kind": "status"}, "demonstration": [{"role": "assistant", "tool_calls": [{"id": "1", "name": '
    '"get_order", "arguments": {"order": 7}}]}, {"role": "assistant", "content": "It is sent."}]}'
)
OTHER = '{"prompt": "Cancel \u202eorder 8.", "tags": {"kind": "cancel"}, "expected": {"answer": "\\u00e9"}}'
BROKEN = '{"prompt": "Pay it back", '
LABELLED = '{"label": true, "prompt": "Why is it late?", "answer": "The driver was ill."}'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes("\r\n".join(["\ufeff" + TASK, OTHER, "", BROKEN, LABELLED]).encode())
    return path


def change(path: Path, line: int, **what: Any) -> dict[str, Any]:
    rows = RowFile(path)
    return rows.change(line, RowChange(version=rows.lines()["version"], **what))


def test_tasks_are_found_read_changed_and_labelled_in_the_browser(
    open_page: OpenPage, serve: Serve, file: Path
) -> None:
    page = open_page(serve(file), refused=(400, 409))
    expect(page.locator("nav a:visible")).to_have_text(["Rows"])
    expect(page.locator(".count")).to_have_text("4 of 4 · cannot be read: line 4")
    page.get_by_label("Tag").select_option("kind=status")
    expect(page.locator(".count")).to_contain_text("1 of 4")
    page.get_by_label("Tag").select_option("")
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type("cancel")
    expect(page.locator(".row .title")).to_have_text("Cancel \\u202eorder 8.")
    page.locator("#search").fill("")
    page.locator(".row").first.click()
    expect(page.locator(".turn.assistant").first).to_contain_text("get_order")
    expect(page.locator(".turn.assistant").last).to_contain_text("It is sent.")
    # What is not saved waits while another row is read.
    page.get_by_label("prompt").fill("Where is order 9?")
    page.locator(".row").nth(1).click()
    expect(page.get_by_label("prompt")).to_have_value('"Cancel \\u202eorder 8."')
    expect(page.locator(".row").first).to_contain_text("not saved")
    page.locator(".row").first.click()
    expect(page.get_by_label("prompt")).to_have_value("Where is order 9?")
    page.get_by_label("expected").fill("{")
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".detail [role=status]")).to_contain_text("not saved: line 1, expected: not JSON")
    page.get_by_label("expected").fill('{"answer":\n "lost"}')
    page.keyboard.press("Control+Enter")
    expect(page.locator(".detail [role=status]")).to_have_text("saved")
    page.keyboard.press("y")
    expect(page.locator(".row").first.locator(".label")).to_have_text("good")
    # A line that cannot be read is repaired as a whole.
    page.locator(".row").nth(2).click()
    page.get_by_label("whole line").fill('{"prompt": "Pay it back."}')
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".count")).to_have_text("4 of 4")
    lines = file.read_bytes().decode("utf-8-sig").split("\r\n")
    new = TASK.replace("order 7?", "order 9?").replace('"status"}', '"status", "label": "good"}')
    new = new.replace('{"answer": "sent", "weight": 12345678901234567890.10}', '{"answer": "lost"}')
    assert lines == [new, OTHER, "", '{"prompt": "Pay it back."}', LABELLED]
    # Another program writes the file: what was opened before is not saved over it.
    file.write_text(OTHER)
    page.keyboard.press("n")
    expect(page.locator(".detail [role=status]")).to_contain_text("changed by another program")
    assert file.read_text() == OTHER


def test_rows_are_labelled_faster_than_they_are_saved_and_each_label_is_of_its_own_row(
    open_page: OpenPage, serve: Serve, tmp_path: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f'{{"prompt": "number {n}"}}\n' for n in (1, 2, 3)))
    page = open_page(serve(file))
    held: list[Route] = []

    def hold_the_first_save(route: Route) -> None:
        if route.request.method == "POST" and not held:
            held.append(route)
        else:
            route.continue_()

    page.route("**/api/line?*", hold_the_first_save)
    expect(page.locator(".row")).to_have_count(3)
    page.keyboard.press("j")
    expect(page.locator(".detail h2")).to_contain_text("number 1")
    with page.expect_request(lambda request: request.method == "POST"):
        page.keyboard.press("y")
    page.keyboard.press("n")
    page.keyboard.press("j")
    held[0].continue_()
    expect(page.locator(".row .label")).to_have_text("bad")
    expect(page.locator(".detail h2")).to_contain_text("number 2")
    expect(page.locator(".detail [role=status]")).to_have_text("")
    page.keyboard.press("y")
    expect(page.locator(".detail [role=status]")).to_have_text("saved")
    assert [row.get("tags") for row in map(json.loads, file.read_text().splitlines())] == [
        {"label": "bad"},
        {"label": "good"},
        None,
    ]


def test_what_is_written_while_a_row_is_being_saved_stays(open_page: OpenPage, serve: Serve, file: Path) -> None:
    page = open_page(serve(file))
    held: list[Route] = []
    page.route(
        "**/api/line?*", lambda route: held.append(route) if route.request.method == "POST" else route.continue_()
    )
    page.locator(".row").first.click()
    prompt = page.get_by_label("prompt")
    prompt.fill("Where is order 9?")
    page.route("**/api/line?*", lambda route: held.append(route))
    with page.expect_request(lambda request: request.method == "POST"):
        page.get_by_role("button", name="Save").click()
    prompt.fill("Where is order 10?")
    held[0].continue_()
    expect(page.locator(".detail h2")).to_contain_text("Where is order 9?")
    expect(prompt).to_have_value("Where is order 10?")
    expect(page.locator(".row").first).to_contain_text("not saved")


def test_a_change_moves_no_other_byte_and_the_file_of_before_is_kept(file: Path) -> None:
    before = file.read_bytes()
    file.chmod(0o606)
    link = file.with_name("link.jsonl")
    link.symlink_to(file)
    rows = RowFile(link)
    version = rows.lines()["version"]
    version = rows.change(2, RowChange(version=version, fields={"family": '"cancel/1"'}))["version"]
    rows.change(1, RowChange(version=version, fields={"tags": '{\n"kind": "where"}'}))
    after = file.read_bytes()
    assert link.is_symlink()
    changed = before.replace(b'{"kind": "status"', b'{ "kind": "where"').replace(
        b'9"}}\r', b'9"}, "family": "cancel/1"}\r'
    )
    assert after == changed != before
    backup = file.with_name("tasks.jsonl.bak")
    assert backup.read_bytes() == before
    assert [path.stat().st_mode & 0o777 for path in (file, backup)] == [0o606, 0o606]
    with pytest.raises(RowFileChanged, match="nothing was saved"):
        rows.change(1, RowChange(version=version, label="good"))
    assert file.read_bytes() == after
    change(file, 1, label="good")
    assert backup.read_bytes() == before, "the page was opened again; the copy is that of the file before all changes"


@pytest.mark.parametrize(
    ("line", "what", "message"),
    [
        (1, {"fields": {"prompt": '""'}}, "line 1: prompt is '': .*the prompt is empty"),
        (1, {"fields": {"expect": "{}"}}, "unknown field 'expect'; did you mean 'expected'"),
        (1, {"fields": {"tags": "[1]"}, "label": "good"}, "line 1: tags"),
        (1, {"fields": {"expected": '{"a": NaN}'}}, "line 1, expected: NaN is not a JSON value"),
        (1, {"fields": {"expected": '{"a": 1, "a": 2}'}}, "the key 'a' occurs twice"),
        (1, {"fields": {"expected": '{}, "id": "x"'}}, "line 1, expected: not JSON: Extra data"),
        (5, {"fields": {"": "[1]"}}, "line 5: a list, not an object"),
        (4, {"label": "good"}, "line 4: not JSON"),
    ],
)
def test_what_would_break_a_line_is_refused_and_nothing_is_written(
    file: Path, line: int, what: dict[str, Any], message: str
) -> None:
    before = file.read_bytes()
    with pytest.raises(ConfigError, match=message):
        change(file, line, **what)
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == ["tasks.jsonl"]


def test_labels_are_where_the_judge_and_the_tasks_have_them(file: Path) -> None:
    file.write_text("\n".join([TASK, LABELLED, '{"prompt": "Why?", "answer": "No idea."}']) + "\n")
    assert change(file, 1, label="unsure")["row"]["label"] == "unsure"
    assert change(file, 2, label="bad")["row"]["label"] == "bad"
    assert change(file, 3, label="good")["row"]["label"] == "good"
    task, *rows = file.read_text().splitlines()
    assert json.loads(task)["tags"] == {"kind": "status", "label": "unsure"}
    file.write_text("\n".join(rows))
    assert [label for _, label in labelled_examples(file)] == [False, True]
    file.write_text(task + "\n")
    assert change(file, 1, label="")["row"]["label"] == ""
    assert file.read_text() == TASK + "\n"
    assert load_tasks(file)[0].tags == {"kind": "status"}


def test_a_file_is_read_and_written_by_the_page_alone(serve: Serve, file: Path) -> None:
    before = file.read_bytes()
    url = serve(file)
    version = httpx.get(f"{url}/api/lines?file=0").json()["version"]
    post = f"{url}/api/line?file=0&line=1"
    body = {"version": version, "label": "good"}
    assert httpx.get(f"{url}/api/lines?file=0", headers={"host": "evil.example"}).status_code == 421
    for headers in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}, {"host": "evil.example"}):
        assert httpx.post(post, json=body, headers=headers).status_code in (403, 421)
    text = httpx.post(post, content=json.dumps(body), headers={"content-type": "text/plain"})
    assert text.status_code == 415
    assert httpx.post(post, json={**body, "path": "/etc/passwd"}).status_code == 400
    half = httpx.post(
        post,
        content=f'{{"version": "{version}", "fields": {{"prompt": "\\"\\ud83d\\""}}}}',
        headers={"content-type": "application/json"},
    )
    assert half.status_code == 400
    for address in ("lines?file=1", "line?file=0&line=3", "line?file=0&line=9"):
        assert httpx.get(f"{url}/api/{address}").status_code == 404
    assert file.read_bytes() == before
    keyed = serve(file, api_key="secret")
    assert httpx.get(f"{keyed}/api/lines?file=0").status_code == 401
    assert httpx.post(f"{keyed}/api/line?file=0&line=1", json=body).status_code == 401
    assert file.read_bytes() == before


def test_files_of_other_formats_are_refused_by_name(tmp_path: Path, file: Path) -> None:
    (tmp_path / "tasks.csv").write_text("prompt\nWhere?\n")
    with pytest.raises(ConfigError, match=r"tasks.csv is not a .jsonl file; give a run"):
        view([tmp_path / "tasks.csv"], port=0)
    with pytest.raises(ConfigError, match=r"nowhere.jsonl cannot be read: No such file"):
        view([tmp_path / "nowhere.jsonl"], port=0)
    with pytest.raises(RunFolderError, match=r"tasks.jsonl is a file and no run"):
        export_page([file], tmp_path / "page.html")


def test_a_line_that_is_too_long_is_listed_and_cannot_be_cut_by_saving_a_part_of_it(file: Path) -> None:
    file.write_text(TASK + "\n" + json.dumps({"prompt": "x" * 2**20}) + "\n")
    found = RowFile(file).line(2)
    assert found["row"]["kind"] == "unread"
    assert "too long to be opened here" in found["row"]["problem"]
    assert found["fields"] == found["messages"] == []
