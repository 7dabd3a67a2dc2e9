"""How a recorded twin finds the answer to a call."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

import anyio
import pytest
from full_disk import files_of_at_most
from hypothesis import given, settings
from hypothesis import strategies as st
from noting import Notes, record_notes

import mcp_bridge
import sdk
from mcp_bridge import connect
from mcp_bridge.errors import SourceError, ToolFailure
from sandboxes.helpdesk import Helpdesk
from sandboxes.recorded import Cassette, NotRecorded, RecordedTwin, record
from sandboxes.recorded.call_index import similarity
from sandboxes.recorded.cassette import canonical
from sdk.policies.scripted import ScriptedAgent

ADD = ("add_note", {"text": "milk"})
READ = ("get_note", {"note_id": "$0"})
LIST: tuple[str, dict[str, Any]] = ("list_notes", {})
SESSION = [LIST, ADD, READ, LIST, ("change_note", {"note_id": "$0", "text": "bread"}), READ]


HEADER = '{"kind":"header","format":"toolbake cassette","version":1,'
TOOL = '{"name":"get","input_schema":{"type":"object"}}'


@pytest.fixture
async def cassette(tmp_path: Path) -> Path:
    await record_notes(tmp_path / "notes.jsonl", SESSION)
    return tmp_path / "notes.jsonl"


def texts(result: Any) -> str:
    return str(result.structured["text"])


async def test_a_read_is_answered_by_what_was_changed_before_it(cassette: Path) -> None:
    twin = RecordedTwin(cassette)
    assert twin.call_now(*LIST).structured == {"notes": []}
    twin.call_now(*ADD)
    assert twin.call_now(*LIST).structured["notes"] == [{"note_id": "n-100", "text": "milk"}]
    fork = twin.fork()
    assert texts(twin.call_now("get_note", {"note_id": "n-100"})) == "milk"
    twin.call_now("change_note", {"note_id": "n-100", "text": "bread"})
    assert texts(twin.call_now("get_note", {"note_id": "n-100"})) == "bread"
    assert texts(fork.call_now("get_note", {"note_id": "n-100"})) == "milk"


async def test_reads_in_another_order_and_number_than_recorded_are_answered(cassette: Path) -> None:
    twin = RecordedTwin(cassette)
    twin.call_now(*ADD)
    for _ in range(3):
        assert texts(twin.call_now("get_note", {"note_id": "n-100"})) == "milk"
        assert len(twin.call_now(*LIST).structured["notes"]) == 1
    assert twin.report()["answers"] == {"recorded": 3, "repeated": 4}


async def test_a_call_made_again_at_the_same_place_gets_the_answers_one_after_the_other(tmp_path: Path) -> None:
    await record_notes(tmp_path / "ticks.jsonl", [("tick", {}), ("tick", {}), ("tick", {})])
    twin = RecordedTwin(tmp_path / "ticks.jsonl")
    assert [twin.call_now("tick", {}).structured["tick"] for _ in range(5)] == [1, 2, 3, 3, 3]
    assert [twin.fork().call_now("tick", {}).structured["tick"] for _ in range(2)] == [3, 3]
    twin.reset()
    assert twin.call_now("tick", {}).structured["tick"] == 1


async def test_what_was_never_recorded_leaves_the_rollout_unscored_and_is_counted(cassette: Path) -> None:
    twin = RecordedTwin(cassette)
    with pytest.raises(NotRecorded, match=r"add_note.*was not recorded.*'milk'.*`unseen`"):
        twin.call_now("add_note", {"text": "silk"})
    with pytest.raises(NotRecorded):
        twin.call_now("get_note", {"note_id": "n-100"})  # recorded, but only after the note was added
    async with connect(twin) as toolset, toolset.open_world("w") as world:
        with pytest.raises(ToolFailure, match="never called in the recording"):
            await world.call("tick", {})
    assert twin.report()["answers"] == {"not_recorded": 3}, "it is not tried again"
    assert [*twin.report()["tools"]] == ["add_note", "get_note", "tick"]


def test_a_rollout_in_a_twin_is_scored_where_its_calls_were_recorded_and_unscored_where_not(tmp_path: Path) -> None:
    anyio.run(record_notes, tmp_path / "notes.jsonl", SESSION)
    twin = RecordedTwin(tmp_path / "notes.jsonl")
    for text, is_scored in (("milk", True), ("silk", False)):
        agent = ScriptedAgent([sdk.ToolCall(id="1", name="add_note", arguments={"text": text}), "Done."])
        rollout = sdk.rollout(twin, "Remember it.", model=agent, verifier=lambda rollout: 1.0)
        assert (rollout.verdict is not None) is is_scored
        assert (rollout.failure is None) is is_scored
    near = RecordedTwin(tmp_path / "notes.jsonl", unseen="nearest")
    agent = ScriptedAgent([sdk.ToolCall(id="1", name="add_note", arguments={"text": "silk"}), "Done."])
    rollout = sdk.rollout(near, "Remember it.", model=agent, verifier=lambda rollout: 1.0)
    assert rollout.calls[0].result.notes[0].startswith("recorded twin: nearest (the nearest recorded call, 0.")
    assert rollout.verdict is not None


async def test_mistakes_of_the_policy_are_told_to_it_though_they_were_not_recorded(cassette: Path) -> None:
    twin = RecordedTwin(cassette)
    assert twin.call_now("add_not", {}).error_kind == "unknown_tool"
    assert twin.call_now("add_note", {"txt": "milk"}).error_kind == "invalid_arguments"
    assert twin.call_now("add_note", {"text": 5}).error_kind == "invalid_arguments", "a server may convert it"
    assert twin.report()["answers"] == {"mistake": 3}


def test_a_tool_that_never_answered_in_the_recording_is_told_apart_from_one_that_was_never_called(
    tmp_path: Path,
) -> None:
    call = '{"kind":"call","session":"a","order":0,"tool":"get","arguments":{},"duration_s":0.1,'
    lines = [
        HEADER + f'"recorded_at":"2026-01-05T00:00:00Z","tools":[{TOOL}],"source":"x"}}',
        '{"kind":"session","session":"a","setup":{}}',
        call + '"failure":{"type":"ServerDied","text":"exit code 1"}}',
    ]
    (tmp_path / "died.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(NotRecorded, match=r"was called in the recording, and no call was answered \(failed: 1\)"):
        RecordedTwin(tmp_path / "died.jsonl").call_now("get", {})


async def test_the_nearest_answer_is_given_where_that_is_chosen_and_says_so(
    cassette: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    twin = RecordedTwin(cassette, unseen="nearest")
    assert twin.call_now("add_note", {"text": "silk"}).structured == {"note_id": "n-100"}
    assert texts(twin.call_now("get_note", {"note_id": "n-100"})) == "milk", "it goes on as in the recording"
    with pytest.raises(NotRecorded, match="near"):
        twin.call_now("change_note", {"note_id": "another", "text": "nothing like it at all, and longer"})
    report = twin.report()
    assert report["answers"] == {"nearest": 1, "recorded": 1, "not_recorded": 1}
    assert "add_note answered nearest" in caplog.text
    assert "'text': 'milk'" in caplog.text
    assert twin.state()["changes"]["000001"]["answer"] == "nearest"


async def test_sessions_that_were_told_different_things_are_not_mixed(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    await record_notes(path, [ADD, READ], [ADD, READ])  # the second note is n-101
    first = RecordedTwin(path)
    assert first.call_now(*ADD).structured == {"note_id": "n-100"}
    assert texts(first.call_now("get_note", {"note_id": "n-100"})) == "milk"
    with pytest.raises(NotRecorded):
        first.call_now("get_note", {"note_id": "n-101"})
    given_ids = set()
    for seed in range(8):
        first.reset(seed)
        note_id = first.call_now(*ADD).structured["note_id"]
        assert texts(first.call_now("get_note", {"note_id": note_id})) == "milk"
        given_ids.add(note_id)
    assert given_ids == {"n-100", "n-101"}, "the seed chooses whose answers are given"


async def test_worlds_begin_with_a_setup_that_was_recorded(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    setup = {"notes": {"n-1": "old"}}
    await record_notes(path, [LIST], setup=setup)
    twin = RecordedTwin(path)
    async with twin.open_world("w", setup) as world:
        assert (await world.call(*LIST)).structured["notes"] == [{"note_id": "n-1", "text": "old"}]
    with pytest.raises(SourceError, match=r"was not recorded; those that were: .*'n-1'"):
        async with twin.open_world("w", {"notes": {}}):
            pass


async def test_a_tool_that_says_nothing_counts_as_changing_something_unless_told(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    await record_notes(path, [("tick", {}), LIST])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for tool in lines[0]["tools"]:
        if tool["name"] == "tick":
            tool.pop("annotations")
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    strict = RecordedTwin(path)
    assert strict.report()["counted_as_changes"] == ["tick"]
    with pytest.raises(NotRecorded):
        strict.call_now(*LIST)
    assert RecordedTwin(path, reads=["ti*"]).call_now(*LIST).structured == {"notes": []}
    with pytest.raises(SourceError, match="'tack', which is not a tool; the tools are add_note"):
        RecordedTwin(path, reads=["tack"])


async def test_errors_were_recorded_too_and_count_as_no_change(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    wrong = ("change_note", {"note_id": "n-7", "text": "x"})
    await record_notes(path, [LIST, wrong, ADD])
    twin = RecordedTwin(path)
    result = twin.call_now(*wrong)
    assert (result.is_error, result.error_kind, result.text) == (True, "tool_error", "There is no note n-7.")
    assert twin.call_now(*LIST).structured == {"notes": []}
    careful = RecordedTwin(path, errors_change=True)
    careful.call_now(*wrong)
    with pytest.raises(NotRecorded):
        careful.call_now(*LIST)


async def test_a_scrubbed_part_of_an_argument_matches_whatever_stands_there(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    await record_notes(path, [("add_note", {"text": "/srv/notes/a.txt"}), ("add_note", {"text": "password=hunter22"})])
    text = path.read_text().replace("/srv/notes", "***")
    assert "hunter22" not in text
    path.write_text(text)
    twin = RecordedTwin(path)
    assert not twin.call_now("add_note", {"text": "/home-of-anyone/a.txt"}).is_error
    assert not twin.call_now("add_note", {"text": "password=other"}).is_error
    with pytest.raises(NotRecorded):
        twin.fork().call_now("add_note", {"text": "/home-of-anyone/b.txt"})


async def test_many_scrubbed_parts_are_matched_at_once_and_between_quotes_too(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    lines = "".join(f"key{number}: ***\n" for number in range(20))
    await record_notes(path, [("add_note", {"text": f"{lines}end"}), ("add_note", {"text": 'say "***"'})])
    twin = RecordedTwin(path)
    found = twin.fork().call_now("add_note", {"text": f"{lines.replace('***', 'key1: x')}end"})
    assert not found.is_error
    with pytest.raises(NotRecorded):
        twin.fork().call_now("add_note", {"text": "".join(f"key{n % 20}: x\n" for n in range(400))})
    twin.call_now("add_note", {"text": lines + "end"})
    with pytest.raises(NotRecorded):
        twin.fork().call_now("add_note", {"text": 'say "a" or "b'})
    assert not twin.call_now("add_note", {"text": 'say "it"'}).is_error


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "does not begin with the header"),
        ("no json\n", "line 1 of the cassette"),
        ('{"kind":"call"}\n', "line 1 of the cassette"),
        ('{"kind":"tape"}\n', "is not a line of a cassette .header, session, call.; give a file"),
        ('{"kind":"call","arguments":' + "[" * 9000 + "]" * 9000 + "}\n", "line 1 of the cassette"),
        (f'{HEADER}"recorded_at":"yesterday","source":"","tools":[]}}\n', "recorded_at.*isoformat"),
        (f'{HEADER}"recorded_at":"2026-01-05","source":"","tools":[{TOOL},{TOOL}]}}\n', "two tools 'get'"),
    ],
)
def test_a_file_that_is_no_cassette_is_refused_with_its_line(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "x.jsonl").write_text(text)
    with pytest.raises(SourceError, match=complaint):
        Cassette.read(tmp_path / "x.jsonl")
    with pytest.raises(SourceError, match="there is no cassette"):
        Cassette.read(tmp_path / "y.jsonl")


async def test_a_twin_without_sessions_and_a_wrong_choice_are_refused(tmp_path: Path, cassette: Path) -> None:
    await record_notes(tmp_path / "empty.jsonl")
    with pytest.raises(SourceError, match="holds no session"):
        RecordedTwin(tmp_path / "empty.jsonl")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"unseen": "ask"}, "'ask'; choose 'error', 'nearest'"),
        ({"unseen": None}, "None; choose 'error', 'nearest'"),
        ({"nearest_at_least": 7}, "is 7; it must be a number from 0 to 1"),
        ({"nearest_at_least": 0.9}, "is 0.9 and does nothing without unseen='nearest'"),
        ({"nearest_at_least": float("nan")}, "is nan; it must be"),
        ({"reads": "get_*"}, r"it must be a list of tools: \['get_\*'\]"),
    ]
    for options, complaint in wrong:
        with pytest.raises(SourceError, match=complaint):
            RecordedTwin(cassette, **options)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


steps = st.lists(
    st.sampled_from(
        [
            *[("add_note", {"text": text}) for text in ("milk", "bread")],
            *[("change_note", {"note_id": f"n-{n}", "text": "tea"}) for n in (100, 101)],
            *[("get_note", {"note_id": f"n-{n}"}) for n in (100, 101, 102)],
            ("list_notes", {}),
        ]
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=60)
@given(steps, st.randoms(use_true_random=False))
def test_any_session_with_its_reads_in_any_order_and_number_is_answered_as_the_real_thing_would(
    calls: list[tuple[str, dict[str, Any]]], chance: random.Random
) -> None:
    async def play() -> None:
        with tempfile.TemporaryDirectory() as folder:
            await record_notes(Path(folder) / "notes.jsonl", calls)
            twin = RecordedTwin(Path(folder) / "notes.jsonl")
        shuffled: list[tuple[str, dict[str, Any]]] = []
        reads: list[tuple[str, dict[str, Any]]] = []
        for call in [*calls, None]:
            if call is not None and call[0] in ("get_note", "list_notes"):
                reads.append(call)
                continue
            shuffled += chance.choices(reads, k=chance.randrange(4)) if reads else []
            reads = []
            shuffled += [call] if call is not None else []
        async with Notes().open_world("real") as real, twin.open_world("twin") as world:
            for call in shuffled:
                lived, played = await real.call(*call), await world.call(*call)
                assert (played.text, played.structured, played.is_error) == (
                    lived.text,
                    lived.structured,
                    lived.is_error,
                )

    anyio.run(play)


@settings(deadline=None)
@given(json_values, json_values)
def test_nearness_is_one_for_equal_values_and_between_nothing_and_one_for_others(left: Any, right: Any) -> None:
    assert similarity(left, left) == pytest.approx(1.0)
    assert 0.0 <= similarity(left, right) <= 1.0
    assert similarity(left, right) == pytest.approx(similarity(right, left), abs=0.5)
    if canonical(left) == canonical(right):
        assert similarity(left, right) == pytest.approx(1.0)


def test_a_number_that_no_fraction_reaches_is_near_to_none() -> None:
    assert similarity({"n": 10**400}, {"n": 1.5}) == 0.0


async def test_a_full_disk_loses_the_call_that_did_not_fit_and_leaves_the_cassette_whole(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    async with record(Notes(), path).open_world("w") as world:
        await world.call("list_notes", {})
        with (
            files_of_at_most(path.stat().st_size + 40),
            pytest.raises(SourceError, match=r"cannot be written: .*large"),
        ):
            await world.call(*ADD)
        await world.call("tick", {})
    found = Cassette.read(path)
    assert [call.tool for call in found.calls] == ["list_notes", "tick"]
    assert path.read_bytes().endswith(b"\n")


async def test_a_last_line_without_a_line_break_is_one_where_it_is_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "notes.jsonl"
    await record_notes(path, [ADD, ("list_notes", {})])
    path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    assert [call.tool for call in Cassette.read(path).calls] == ["add_note", "list_notes"]
    await record_notes(path, [("tick", {})])
    assert sorted(call.tool for call in Cassette.read(path).calls) == ["add_note", "list_notes", "tick"]
    assert not caplog.text


async def test_a_cassette_given_as_a_source_is_told_what_it_is(tmp_path: Path) -> None:
    await record_notes(tmp_path / "notes.jsonl", [ADD])
    with pytest.raises(SourceError, match=r"has lines of JSON.*RecordedTwin"):
        async with mcp_bridge.connect(str(tmp_path / "notes.jsonl")):
            pass


async def test_what_was_recorded_after_other_changes_is_told_so(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    await record_notes(path, [ADD, ADD, ("list_notes", {})])
    twin = RecordedTwin(path, writes=("list_notes",))
    twin.call_now(*ADD)
    with pytest.raises(NotRecorded, match=r"the same call was recorded after other changes.*in `reads`"):
        twin.call_now("list_notes", {})


async def test_a_line_that_another_recorder_left_cut_off_is_left_out_before_the_next_is_written(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    async with record(Notes(), path).open_world("w") as world:
        await world.call("list_notes", {})
        with path.open("ab") as other:
            other.write(b'{"kind":"call","session":"0123')
        await world.call("tick", {})
    assert [call.tool for call in Cassette.read(path).calls] == ["list_notes", "tick"]


async def test_a_call_that_a_killed_recorder_never_wrote_is_told_and_nothing_after_it_is_answered_as_before_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "notes.jsonl"
    await record_notes(path, [LIST, ADD, LIST])
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if '"tool":"add_note"' not in line))
    [session] = Cassette.read(path).sessions
    assert session.gaps == [(1, 1)]
    assert f"{path}: the session {session.name} lacks calls" in caplog.text
    assert "killed: order 1." in caplog.text
    twin = RecordedTwin(path)
    assert [twin.call_now(*LIST).structured["notes"] for _ in range(2)] == [[], []]
    only_read = RecordedTwin(path, reads=["*"])
    assert [len(only_read.call_now(*LIST).structured["notes"]) for _ in range(2)] == [0, 1]


async def test_a_call_that_cannot_be_matched_leaves_no_gap(tmp_path: Path) -> None:
    async with (
        connect(Helpdesk()) as toolset,
        record(toolset, tmp_path / "desk.jsonl").open_world("w") as world,
    ):
        await world.call("get_order", "no object")  # type: ignore[arg-type]
        await world.call("get_order", {"order_id": "A-1"})
    assert [call.order for call in Cassette.read(tmp_path / "desk.jsonl").calls] == [0]
