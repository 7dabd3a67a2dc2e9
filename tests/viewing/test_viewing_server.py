"""Reading runs, keeping labels, and who may ask for what: without a browser."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from sdk.cli.app import app
from sdk.errors import ConfigError, RunFolderError
from sdk.judging import labelled_examples
from sdk.records import Rollout
from sdk.traces.run_folder import RunFolder
from sdk.viewing import export_page, view
from sdk.viewing.index import RunIndex, find_runs
from sdk.viewing.labels import Label, Labels, facts_of, labels_of
from sdk.viewing.page_files import one_script
from sdk.viewing.rollout_view import cut_texts, text_at

Serve = Callable[..., str]


def whole_rows(url: str) -> dict[str, Any]:
    """All rows of the page, whose files are read while it is served."""
    rows: dict[str, Any] = {"whole": False}
    while not rows["whole"]:
        rows = httpx.get(f"{url}/api/rows?generation=0&start=0").json()
    return rows


def ids(index: RunIndex) -> list[str]:
    return [place.id for place in index.content.places]


def test_a_line_is_read_once_it_is_whole_and_a_damaged_one_is_named(desk: Path) -> None:
    index = RunIndex([desk])
    index.refresh()
    assert len(ids(index)) == 30
    with open(desk / "rollouts" / "grpo.jsonl", "ab") as file:
        file.write(b'{"id": "torn"')
        file.flush()
        index.refresh()
        assert len(ids(index)) == 30
        file.write(b'}\n{"id": 7}\nno json\n[]\n{"id": "half \\ud83d"}\n')
    index.refresh()
    assert ids(index)[30:] == ["torn", "half \ud83d"]
    assert [problem.partition(" cannot")[0] for problem in index.content.problems] == [
        f"grpo.jsonl, line {number}," for number in (26, 27, 28)
    ]
    assert index.content.unread == 3
    _place, line, raw = index.line(1, 30)
    assert (line, raw) == ({"id": "torn"}, b'{"id": "torn"}\n')


def test_stages_come_in_the_order_in_which_they_ended(desk: Path) -> None:
    index = RunIndex([desk])
    index.refresh()
    assert list(dict.fromkeys(place.stage for place in index.content.places)) == ["untrained", "grpo", "after_grpo"]


def test_a_file_that_was_written_anew_begins_a_new_generation_and_old_numbers_are_refused(desk: Path) -> None:
    index = RunIndex([desk])
    index.refresh()
    with RunFolder.create_or_resume(desk, {"model": None, "what": "desk"}) as run:
        run.drop_after("grpo", 0)
    with pytest.raises(LookupError):
        index.line(1, 20)  # the place holds another rollout, or none
    index.refresh()
    assert index.content.generation == 2
    assert len(ids(index)) == 18
    with pytest.raises(LookupError, match="no rollout 0 in generation 1"):
        index.line(1, 0)


def test_whole_conversations_are_searched_for_any_text(desk: Path) -> None:
    index = RunIndex([desk])
    index.refresh()
    assert len(index.containing(1, "NO ORDER 'nowhere'")) == 15
    assert len(index.containing(1, '"paid_back":153')) == 5
    assert index.containing(1, "in none of them") == []


def test_a_search_does_not_look_at_token_ids(desk: Path) -> None:
    lines = (desk / "rollouts" / "grpo.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    first["rows"] = [{"token_ids": [734256]}]
    (desk / "rollouts" / "grpo.jsonl").write_text("\n".join([json.dumps(first), *lines[1:]]) + "\n")
    index = RunIndex([desk])
    index.refresh()
    assert index.containing(1, "734256") == []


def test_runs_in_folders_of_one_name_are_told_apart(desk: Path, tmp_path: Path) -> None:
    other = tmp_path / "second" / desk.name
    shutil.copytree(desk, other)
    index = RunIndex([desk, other])
    names = [run["name"] for run in facts_of(index.runs, [Labels(run) for run in index.runs])]
    assert names == [f"{desk.parent.name}/{desk.name}", f"second/{desk.name}"]


def test_a_label_is_of_the_conversation_that_was_read(
    desk: Path, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    url = serve(desk)
    rows = whole_rows(url)
    first = dict(zip(rows["fields"], rows["rows"][0], strict=True))
    body = {"stage": first["stage"], "rollout": first["id"], "label": "bad", "comment": "rude"}
    assert httpx.post(f"{url}/api/labels?generation=1&n=0", json=body).status_code == 200
    assert len(httpx.get(f"{url}/api/labels.jsonl").text.splitlines()) == 1
    path = desk / "rollouts" / f"{first['stage']}.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    (again,) = [line for line in lines if line["id"] == first["id"]]
    again["messages"][-1]["content"] = "Something else."
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    labels = [Labels(RunFolder.open_to_read(desk))]
    assert list(labels[0].examples()) == []
    assert "has a label, and is no longer there" in caplog.text
    index = RunIndex([desk])
    index.refresh()
    assert labels_of(labels, index) == []


def test_a_label_that_an_editor_wrote_without_a_line_break_is_kept(desk: Path) -> None:
    labels = Labels(RunFolder.open_to_read(desk))
    labels.write(Label(stage="grpo", rollout="first", label="good"))
    with open(desk / "labels.jsonl", "a") as file:
        file.write('{"stage": "grpo", "rollout": "by hand", "label": "bad"}')
    assert [rollout for _, rollout in labels.read()] == ["first", "by hand"]
    labels.write(Label(stage="grpo", rollout="last", label="good"))
    assert [rollout for _, rollout in labels.read()] == ["first", "by hand", "last"]
    with open(desk / "labels.jsonl", "a") as file:
        file.write('{"stage": "grpo", "roll')
    assert len(labels.read()) == 3
    labels.write(Label(stage="grpo", rollout="next", label="good"))
    assert [rollout for _, rollout in labels.read()] == ["first", "by hand", "last", "next"]


def test_a_folder_of_runs_stands_for_its_runs_and_another_folder_is_refused(desk: Path, tmp_path: Path) -> None:
    assert find_runs([tmp_path]) == find_runs([desk, desk]) == [desk.resolve()]
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunFolderError, match="holds no run"):
        find_runs([tmp_path / "empty"])
    (tmp_path / "rows.jsonl").touch()
    with pytest.raises(RunFolderError, match=r"rows\.jsonl is a file and no run; give the output_dir of a run"):
        find_runs([tmp_path / "rows.jsonl"])


texts = st.recursive(
    st.text("ab \n\u202e\U0001f600", max_size=60) | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=5), inner, max_size=3),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from("abcd"), texts), st.integers(1, 40))
def test_what_is_cut_from_a_rollout_is_named_and_can_be_had(shown: dict, most: int) -> None:
    short = cut_texts(shown, most)
    cut = short.pop("cut")
    assert all(len(text_at(short, one["at"])) == most for one in cut)
    for one in cut:
        assert len(text_at(shown, one["at"])) == one["chars"] > most
        assert text_at(shown, one["at"]).startswith(text_at(short, one["at"]))
    assert (short == shown) == (not cut)


def test_a_page_of_another_site_reads_and_writes_nothing(desk: Path, serve: Serve) -> None:
    url = serve(desk)
    label = {"stage": "grpo", "rollout": "x", "label": "good"}
    assert httpx.get(f"{url}/api/runs", headers={"host": "evil.example"}).status_code == 421
    assert httpx.get(f"{url}/api/runs", headers={"host": f"localhost:{url.rpartition(':')[2]}"}).status_code == 200
    for headers in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}, {"origin": "null"}):
        answer = httpx.post(f"{url}/api/labels?generation=1&n=3", json=label, headers=headers)
        assert answer.status_code == 403
    form = httpx.post(f"{url}/api/labels?generation=1&n=3", content=b"{}", headers={"content-type": "text/plain"})
    assert form.status_code == 415
    assert not (desk / "labels.jsonl").exists()


@pytest.mark.parametrize("path", ["/page/../app.py", "/page/%2e%2e%2fapp.py", "/page/main.py", "/page/", "/run.json"])
def test_only_files_of_the_page_are_served(helpdesk_url: str, path: str) -> None:
    assert httpx.get(httpx.URL(helpdesk_url + path)).status_code == 404


@pytest.mark.parametrize(
    "path",
    [
        "rollout?generation=1&n=99",
        "rollout?generation=9&n=0",
        "rollout?generation=1&n=-1",
        f"rollout?generation=1&n={'9' * 4400}",
        "text?generation=1&n=0&start=0&at=\u00b2",
        f"text?generation=1&n=0&start=0&at={'9' * 4400}",
    ],
)
def test_a_rollout_that_is_not_there_is_an_error_that_says_so(helpdesk_url: str, path: str) -> None:
    answer = httpx.get(f"{helpdesk_url}/api/{path}")
    assert answer.status_code in (400, 404)
    assert "n" in answer.text


def test_other_machines_need_the_key_which_the_page_asks_for(desk: Path, serve: Serve) -> None:
    with pytest.raises(ConfigError, match="there is no key"):
        view([desk], host="0.0.0.0", port=0)
    url = serve(desk, api_key="secret")
    with httpx.Client(base_url=url) as client:
        assert client.get("/").status_code == client.get("/api/runs").status_code == 401
        assert client.post("/key", data={"key": "wrong"}).status_code == 401
        assert client.get("/api/runs", headers={"authorization": "Bearer secret"}).status_code == 200
        welcome = client.post("/key", data={"key": "secret"})
        assert (welcome.status_code, welcome.headers["location"]) == (303, "/")
        assert "secret" not in str(welcome.headers)
        assert client.get("/api/runs").status_code == 200


def test_labels_are_given_out_as_scored_rollouts_a_judge_can_be_checked_with(
    desk: Path, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    url = serve(desk)
    rows = whole_rows(url)
    named = [dict(zip(rows["fields"], row, strict=True)) for row in rows["rows"]]
    for n, label in ((0, "good"), (0, "bad"), (4, "good"), (5, None), (6, "unsure")):
        body = {"stage": named[n]["stage"], "rollout": named[n]["id"], "label": label, "comment": f"is {label}"}
        assert httpx.post(f"{url}/api/labels?generation=1&n={n}", json=body).status_code == 200
    wrong = {"stage": "grpo", "rollout": "another", "label": "good"}
    assert httpx.post(f"{url}/api/labels?generation=1&n=0", json=wrong).status_code == 409
    target = desk.parent / "judge.jsonl"
    with open(desk / "labels.jsonl", "a") as file:
        file.write('{"stage": "grpo", "rollout": "set aside", "label": "good", "comment": "", "at": ""}\n')
    done = CliRunner().invoke(app, ["view", str(desk), "--export-labels", str(target)])
    assert done.exit_code == 0, done.output
    assert "set aside of stage grpo has a label, and is no longer there" in caplog.text
    examples = [json.loads(line) for line in target.read_text("utf-8").splitlines()]
    assert httpx.get(f"{url}/api/labels.jsonl").text == target.read_text("utf-8")
    assert sorted(label for _, label in labelled_examples(target)) == [False, True]
    found = {(Rollout.model_validate(one["rollout"]).id, one["score"], one["comment"]) for one in examples}
    assert found == {
        (named[0]["id"], 0.0, "is bad"),
        (named[4]["id"], 1.0, "is good"),
        (named[6]["id"], None, "is unsure"),
    }


def test_the_evidence_says_whether_a_rollout_is_as_it_was_announced(desk: Path, serve: Serve) -> None:
    def status(n: int) -> str:
        return httpx.get(f"{url}/api/rollout?generation=1&n={n}").json()["evidence"]["status"]

    file = desk / "rollouts" / "untrained.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b'"score":0.0', b'"score":1.0')
    file.write_bytes(b"".join(lines))
    url = serve(desk)
    httpx.get(f"{url}/api/rows?generation=0&start=0")
    assert [status(0), status(1)] == [
        "As the evidence announced it.",
        "Changed: the evidence announced another line.",
    ]


def test_the_command_writes_the_page_as_one_file(desk: Path) -> None:
    target = desk.parent / "page.html"
    done = CliRunner().invoke(app, ["view", str(desk), "--export", str(target)])
    assert (done.exit_code, done.stdout) == (0, f"{target}: 30 rollouts\n")
    assert one_script() in target.read_text("utf-8")


def test_the_modules_of_the_page_fit_into_one_script() -> None:
    script = one_script()
    names = [line.split()[1 if not line.startswith("async") else 2] for line in script.splitlines() if _declares(line)]
    names = [name.partition("(")[0] for name in names]
    assert len(names) > 50
    assert sorted(names) == sorted(set(names))
    assert "import " not in script.replace("important", "")
    assert "innerHTML" not in script
    assert "</script" not in script


def _declares(line: str) -> bool:
    return line.startswith(("function ", "async function ", "const ", "let ", "class "))


def test_a_file_that_cannot_be_opened_is_named_once_and_keeps_nothing_else_from_being_read(desk: Path) -> None:
    (desk / "rollouts" / "a_folder.jsonl").mkdir()
    (desk / "stages" / "damaged.json").write_text("{")
    index = RunIndex([desk])
    for _ in range(2):
        index.refresh()
        assert (len(ids(index)), index.content.whole, index.content.unread) == (30, True, 1)
        assert index.content.problems == ["a_folder.jsonl cannot be read: Is a directory"]


def test_an_export_is_not_written_over_a_file_of_a_run(desk: Path) -> None:
    (desk / "labels.jsonl").write_text('{"stage": "grpo", "rollout": "1", "label": "good"}\n')
    before = {path: path.read_bytes() for path in desk.rglob("*") if path.is_file()}
    for option, name in (("--export-labels", "labels.jsonl"), ("--export", "evidence.jsonl"), ("--export", "run.json")):
        done = CliRunner().invoke(app, ["view", str(desk), option, str(desk / name)])
        assert (done.exit_code, "is a file of the run" in done.output) == (1, True), done.output
    assert {path: path.read_bytes() for path in desk.rglob("*") if path.is_file()} == before


def test_a_label_that_was_edited_into_none_is_named(desk: Path, tmp_path: Path) -> None:
    (desk / "labels.jsonl").write_text('{"stage": "grpo", "rollout": "1", "label": "great"}\n')
    done = CliRunner().invoke(app, ["view", str(desk), "--export-labels", str(tmp_path / "labels.jsonl")])
    assert done.exit_code == 1
    assert "labels.jsonl, line 1, is not a label (label: Input should be" in " ".join(done.output.split())
    assert list(tmp_path.glob("*labels*")) == []


def test_a_line_that_is_no_label_is_named_on_the_page_beside_the_labels_that_can_be_read(
    desk: Path, serve: Serve, tmp_path: Path
) -> None:
    good = '{"stage": "grpo", "rollout": "1", "label": "good"}'
    (desk / "labels.jsonl").write_text("\n".join([good, '{"stage": "grpo", ', "7", *["{}"] * 30, ""]))
    url = serve(desk)
    assert [(one["rollout"], one["label"]) for one in httpx.get(f"{url}/api/labels").json()] == [("1", "good")]
    problems = httpx.get(f"{url}/api/runs").json()[0]["problems"]
    assert problems[0].startswith(f"{desk / 'labels.jsonl'}, line 2, is not a label (line: Invalid JSON")
    assert ", line 3, is not a label" in problems[1]
    assert (len(problems), problems[-1]) == (21, "and 12 more of its lines")
    assert httpx.get(f"{url}/api/labels.jsonl").status_code == 500, (
        "nothing is left out of what a judge is checked with"
    )
    assert export_page([desk], tmp_path / "page.html") > 0


@pytest.mark.parametrize("wrong", [7, "text", {"a": 1}, [7], [{"prompt_ids": 7}]])
def test_a_line_whose_parts_are_of_another_kind_is_shown_as_far_as_it_is_understood(
    desk: Path, serve: Serve, wrong: object
) -> None:
    line = {"id": "edited", "rows": wrong, "calls": wrong, "messages": wrong, "task": wrong, "verdict": wrong}
    with open(desk / "rollouts" / "grpo.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")
    url = serve(desk)
    rows = whole_rows(url)
    n = [row[rows["fields"].index("id")] for row in rows["rows"]].index("edited")
    for address in ("rollout", "tokens"):
        assert httpx.get(f"{url}/api/{address}?generation=1&n={n}").status_code == 200
