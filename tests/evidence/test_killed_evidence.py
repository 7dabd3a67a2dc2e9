"""Runs that were killed and went on: their evidence holds, and says what the kill cost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from evidence_runs import CONFIG, make_run, named, play, says_shipped, verified

from sdk.errors import RunFolderError
from sdk.records import Rollout, Task
from sdk.traces import RunFolder

KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from evidence_runs import CONFIG, play
from sdk.traces import RunFolder

BEGINS = {"announcing": b'{"data":{"calls"', "storing": b'{"id"', "calling": b'{"arguments"'}

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def killed(where):
    run = RunFolder.create_or_resume(Path(sys.argv[1], where), CONFIG)
    play(run, "grpo", ["a", "b"], step=0)
    write = os.write
    def half_then_die(fd, data):
        data = bytes(data)
        if not data.startswith(BEGINS[where]):
            return write(fd, data)
        write(fd, data[: len(data) // 2])
        die()
    if where in BEGINS:
        os.write = half_then_die
    if where in ("moving", "finishing"):
        os.replace = die
        run.drop_after("grpo", -1) if where == "moving" else run.finish_stage("grpo", {})
    play(run, "grpo", ["c"], step=0)
    die()

# One process that has imported everything, and a child of it for each kill.
for where in sys.argv[3:]:
    child = os.fork()
    if child == 0:
        try:
            killed(where)
        finally:
            os._exit(1)
    print(where, os.waitpid(child, 0)[1], flush=True)
"""

KILLS = {
    "between": ([], 0),
    "calling": (["changed calls.jsonl:5"], 0),
    "announcing": (["changed evidence.jsonl:5"], 0),
    "storing": (["changed rollouts/grpo.jsonl:3 c"], 1),
    "finishing": (["missing stages/grpo.json:"], 1),
    "moving": (["added rollouts/grpo.jsonl:1 a", "added rollouts/grpo.jsonl:2 b"], 0),
}
"""Where the kill comes -> what a verification names before the run goes on, and what is lost."""


@pytest.fixture(scope="module")
def killed_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    words = [sys.executable, "-c", KILLED, str(folder), str(Path(__file__).parent), *KILLS]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert done.stdout.split("\n")[:-1] == [f"{where} 9" for where in KILLS], done.stderr
    return folder


@pytest.mark.parametrize("where", KILLS)
def test_a_killed_run_says_what_is_open_and_holds_again_once_it_went_on(killed_runs: Path, where: str) -> None:
    path = killed_runs / where
    while_killed, lost = KILLS[where]
    found = verified(path)
    assert named(found) == while_killed
    assert any("the run was not closed" in note for note in found.notes)

    with RunFolder.create_or_resume(path, CONFIG) as run:
        known = {rollout.id for rollout in run.iter_rollouts("grpo")}
        missing = [name for name in ("a", "b", "c") if name not in known]
        play(run, "grpo", missing, step=0)
        if where == "finishing":
            run.finish_stage("grpo", {})
    found = verified(path, says_shipped)
    assert found.findings == []
    assert found.rollouts == {"grpo": 3}
    assert sum("announced and never stored" in note for note in found.notes) == lost
    assert not any("not closed" in note for note in found.notes)


def test_calls_of_a_run_that_was_killed_after_its_root_was_noted_are_no_finding(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    root = verified(run).root
    killed = f"""
import os, sys
sys.path[:0] = {sys.path!r}
from pathlib import Path
from evidence_runs import CONFIG, RunFolder, play
with RunFolder.create_or_resume(Path({str(run)!r}), CONFIG) as folder:
    folder.append_rollout = lambda *_: os._exit(9)
    play(folder, "after", ["h"])
"""
    assert subprocess.run([sys.executable, "-c", killed], timeout=60).returncode == 9
    found = verified(run, root=root)
    assert found.calls > 18
    assert found.findings == []


def test_a_rollout_removed_before_a_resume_is_not_taken_for_one_that_a_kill_lost(tmp_path: Path) -> None:
    with RunFolder.create_or_resume(tmp_path, CONFIG) as run:
        play(run, "grpo", ["a", "b"])
    file = tmp_path / "rollouts" / "grpo.jsonl"
    file.write_bytes(file.read_bytes().splitlines(keepends=True)[1])
    with RunFolder.create_or_resume(tmp_path, CONFIG) as run:
        play(run, "grpo", ["a"])
    assert named(verified(tmp_path)) == ["missing rollouts/grpo.jsonl: a"]


def test_a_line_that_a_full_disk_refused_is_lost_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rollout(name: str) -> Rollout:
        return Rollout(id=name, task=Task(prompt="x"))

    real = os.write

    def full(fd: int, data: Any) -> int:
        if bytes(data).startswith(b'{"id":"refused"'):
            raise OSError(28, "No space left on device")
        return real(fd, data)

    with RunFolder.create_or_resume(tmp_path, CONFIG) as run:
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(Exception, match="no space left"):
            run.append_rollout("grpo", rollout("refused"))
        run.append_rollout("grpo", rollout("taken"))
    found = verified(tmp_path)
    assert found.findings == []
    assert "rollout 'refused' of stage 'grpo'" in found.notes[0]


def test_a_folder_that_is_taken_over_begins_its_evidence_anew(tmp_path: Path) -> None:
    with RunFolder.create_or_resume(tmp_path, {"model": "mistyped"}):
        pass
    with RunFolder.create_or_resume(tmp_path, CONFIG) as run:
        play(run, "grpo", ["a"])
    assert verified(tmp_path).findings == []


def test_a_run_from_before_evidence_was_kept_says_what_it_does_not_cover(tmp_path: Path) -> None:
    with RunFolder.create_or_resume(tmp_path, CONFIG) as run:
        play(run, "grpo", ["old"])
    (tmp_path / "evidence.jsonl").unlink()
    with RunFolder.create_or_resume(tmp_path, CONFIG) as run:
        play(run, "grpo", ["new"])
    assert named(verified(tmp_path)) == ["added rollouts/grpo.jsonl:1 old"]


@pytest.mark.parametrize(
    "entry",
    [
        {"kind": "rollout", "hash": "0", "prev": "0"},
        {"kind": "set_aside", "hash": "0", "prev": "0", "data": {"stage": "../../outside", "sha256": ["0"]}},
    ],
)
def test_evidence_that_was_tampered_with_leads_no_resume_out_of_its_folder(tmp_path: Path, entry: object) -> None:
    with RunFolder.create_or_resume(tmp_path / "run", CONFIG) as run:
        play(run, "grpo", ["a"])
    with open(tmp_path / "run" / "evidence.jsonl", "a") as file:
        file.write(json.dumps(entry) + "\n")
    with pytest.raises(RunFolderError, match="`toolbake verify` names where"):
        RunFolder.create_or_resume(tmp_path / "run", CONFIG)
    assert named(verified(tmp_path / "run")) == ["changed evidence.jsonl:5"]


def test_names_in_the_evidence_lead_no_verification_out_of_the_folder(tmp_path: Path) -> None:
    with RunFolder.create_or_resume(tmp_path / "run", CONFIG) as run:
        play(run, "grpo", ["a"])
        run._evidence.weights("../..", 1, {"secret": "0"})  # type: ignore[union-attr]
        run._evidence.weights("model", 1, {"../../secret": "0"})  # type: ignore[union-attr]
    findings = verified(tmp_path / "run").findings
    assert ["leads out of the run's folder" in finding.text for finding in findings] == [True, True]
