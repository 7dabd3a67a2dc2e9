"""Whatever single thing is changed in a run's files is found, and the file it is in is named."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from evidence_runs import EVIDENCE_FILES, named, says_shipped, verified
from hypothesis import given, settings
from hypothesis import strategies as st
from tampering import KINDS, make_signed_run, tamper

from sdk.errors import RunFolderError
from sdk.evidence.canonical import parse
from sdk.traces.json_text import dump_json


def test_a_run_as_it_was_written_holds_and_says_what_it_has(run: Path) -> None:
    found = verified(run, says_shipped)
    assert found.findings == []
    assert found.rollouts == {"grpo": 5, "after": 2}
    assert (found.rescored, found.calls) == (7, 9 * 2)


@pytest.fixture(scope="module")
def signed_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_signed_run(tmp_path_factory.mktemp("signed"))


@pytest.mark.parametrize("kind", KINDS)
def test_every_change_of_a_kind_is_found_in_the_file_it_was_made_in(signed_run: Path, kind: str) -> None:
    @settings(max_examples=12, deadline=None)
    @given(st.integers(min_value=0, max_value=2**32))
    def found_and_named(seed: int) -> None:
        done = tamper(signed_run, kind, random.Random(seed))
        if done is None:
            return
        name, undo = done
        try:
            found = verified(signed_run)
        finally:
            undo()
        assert name in {finding.file for finding in found.findings}, [str(finding) for finding in found.findings]

    found_and_named()
    assert verified(signed_run).holds


def test_a_root_that_is_another_and_of_more_entries_is_named_beside_the_evidence_it_may_be_right_about(
    run: Path,
) -> None:
    content = parse((run / "evidence.root.json").read_bytes())
    content["entries"] += 2
    content["root"] = content["root"][::-1]
    (run / "evidence.root.json").write_bytes(dump_json(content) + b"\n")
    kinds = {(finding.kind, finding.file) for finding in verified(run).findings}
    assert kinds == {("missing", "evidence.jsonl"), ("changed", "evidence.root.json")}


@pytest.mark.parametrize("name", EVIDENCE_FILES)
def test_a_file_that_is_gone_is_named(run: Path, name: str) -> None:
    (run / name).unlink()
    if name in ("run.json", "evidence.jsonl"):
        with pytest.raises(RunFolderError, match=name.replace(".", r"\.")):
            verified(run)
    else:
        found = verified(run)
        assert {finding.file for finding in found.findings if finding.kind == "missing"} == {name}


def edit(file: Path, number: int, change: Callable[[dict[str, Any]], object]) -> None:
    """Change line `number`, counted from 1, and write it as a run does."""
    lines = file.read_bytes().splitlines(keepends=True)
    line = parse(lines[number - 1])
    change(line)
    lines[number - 1] = dump_json(line) + b"\n"
    file.write_bytes(b"".join(lines))


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda line: line["verdict"].update(score=5.0), "verdict"),
        (lambda line: line.update(final_state={"paid": True}), "end"),
        (lambda line: line["task"].update(prompt="Another?"), "task"),
        (lambda line: line.update(shown_tools=[]), "tools"),
        (lambda line: line.update(tool_prompt="none"), "end"),
        (lambda line: line.update(seed=4), "start"),
        (lambda line: line["messages"][1].update(content="!"), "message 2"),
        (lambda line: line["messages"].pop(), "3 messages where 4 were recorded"),
        (lambda line: line["calls"][0]["result"].update(text="lost"), "call 1"),
        (lambda line: line["ledger"][1].update(result="0"), "ledger line 2"),
        (lambda line: line["rows"][0]["versions"].__setitem__(0, 9), "row 1, weights"),
        (lambda line: line.update(made_up=1), "end"),
    ],
)
def test_the_part_of_a_rollout_that_was_changed_is_named(run: Path, change: Callable[[Any], object], part: str) -> None:
    edit(run / "rollouts" / "grpo.jsonl", 2, change)
    finding = verified(run).findings[0]
    assert (finding.kind, finding.file, finding.line, finding.rollout) == ("changed", "rollouts/grpo.jsonl", 2, "b")
    assert finding.text == f"{part}: not as recorded"


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ([0, 2, 3, 4], ["missing rollouts/grpo.jsonl: b"]),
        ([0, 1, 2, 3], ["missing rollouts/grpo.jsonl: e"]),
        ([0, 2, 1, 3, 4], ["reordered rollouts/grpo.jsonl:3 b"]),
        ([0, 1, 1, 2, 3, 4], ["repeated rollouts/grpo.jsonl:3 b"]),
    ],
)
def test_rollouts_that_are_missing_moved_or_repeated_are_named(
    run: Path, order: list[int], expected: list[str]
) -> None:
    file = run / "rollouts" / "grpo.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[number] for number in order))
    assert named(verified(run)) == expected


def test_a_rollout_that_was_put_there_is_named_and_a_renamed_one_is_changed(run: Path) -> None:
    file = run / "rollouts" / "after.jsonl"
    whole = file.read_bytes()
    edit(file, 2, lambda line: line.update(id="x"))
    assert named(verified(run))[0] == "changed rollouts/after.jsonl:2 g"
    file.write_bytes(whole + file.read_bytes().splitlines(keepends=True)[1])
    assert named(verified(run))[0] == "added rollouts/after.jsonl:3 x"
    file.write_bytes(whole)
    (run / "rollouts" / "new.jsonl").write_bytes(whole)
    assert named(verified(run)) == ["added rollouts/new.jsonl:1 f", "added rollouts/new.jsonl:2 g"]


def test_evidence_and_calls_that_end_too_early_are_named(run: Path) -> None:
    for name, lines in (("evidence.jsonl", 17), ("calls.jsonl", 18)):
        file = run / name
        whole = file.read_bytes().splitlines(keepends=True)
        assert len(whole) == lines
        file.write_bytes(b"".join(whole[:-1]))
        missing, *unearned = named(verified(run))
        assert missing == f"missing {name}:{lines}"
        # The last call is that of whichever of the two rollouts ended last.
        last = {"evidence.jsonl": [[]], "calls.jsonl": [[f"unearned rollouts/after.jsonl:{n}"] for n in ("1 f", "2 g")]}
        assert unearned in last[name]
        file.write_bytes(b"".join(whole))


def test_the_end_of_every_file_cut_off_together_shows_only_against_a_root_noted_elsewhere(run: Path) -> None:
    # What no chain can show by itself; see docs/evidence.md.
    root = verified(run).root
    assert verified(run, root=root).holds
    assert verified(run, root=root.upper()).holds
    found = verified(run, root="0" * 64)
    assert named(found) == ["signature --root:"]
