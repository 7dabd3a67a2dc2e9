"""Real processes, really killed: what they wrote is there, once, and the run goes on."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from sdk.errors import RunFolderError
from sdk.records import Rollout, Task
from sdk.traces import RunFolder

HEAD = """
import os, resource, signal, sys
from pathlib import Path
from sdk.records import Rollout, Task
from sdk.traces import RunFolder

def rollout(name, size=10):
    return Rollout(id=name, task=Task(prompt="x" * size))

run = RunFolder.create_or_resume(Path(sys.argv[1]), {"model": "m"})
"""


def child(path: Path, body: str) -> subprocess.Popen[str]:
    """A Python process that writes a run; its standard output is a pipe."""
    script = HEAD + textwrap.dedent(body)
    return subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )


def resume(path: Path) -> RunFolder:
    return RunFolder.create_or_resume(path, {"model": "m"})


def test_after_kill_9_every_acknowledged_rollout_is_there_once(tmp_path: Path) -> None:
    process = child(
        tmp_path,
        """
        n = 0
        while True:
            run.append_rollout("grpo", rollout(f"r{n}", size=200_000))
            print(n, flush=True)
            n += 1
        """,
    )
    assert process.stdout is not None
    acknowledged = [int(process.stdout.readline()) for _ in range(20)]
    process.send_signal(signal.SIGKILL)
    acknowledged += [int(line) for line in process.communicate()[0].split()]
    assert process.returncode == -signal.SIGKILL
    with resume(tmp_path) as run:
        ids = [r.id for r in run.read_rollouts("grpo")]
        assert ids[: len(acknowledged)] == [f"r{n}" for n in acknowledged]
        assert len(ids) - len(acknowledged) <= 1  # one may be written and not yet said
        run.append_rollout("grpo", Rollout(id="next", task=Task(prompt="x")))
        assert [r.id for r in run.read_rollouts("grpo")] == [*ids, "next"]


def test_a_line_torn_by_kill_9_is_cut_off_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    process = child(
        tmp_path,
        """
        run.append_rollout("grpo", rollout("whole"))
        write = os.write
        def half_then_die(fd, data):
            if not bytes(data).startswith(b'{"id":'):  # its announcement in the evidence
                return write(fd, data)
            write(fd, bytes(data)[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        os.write = half_then_die
        run.append_rollout("grpo", rollout("torn"))
        """,
    )
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    file = tmp_path / "rollouts" / "grpo.jsonl"
    assert not file.read_bytes().endswith(b"\n")
    with caplog.at_level(logging.WARNING), resume(tmp_path) as run:
        assert "cut off a last line of" in caplog.text
        assert [r.id for r in run.read_rollouts("grpo")] == ["whole"]
        run.append_rollout("grpo", Rollout(id="torn", task=Task(prompt="again")))
        assert [r.id for r in run.read_rollouts("grpo")] == ["whole", "torn"]


def test_a_write_that_stops_in_the_middle_leaves_no_half_line(tmp_path: Path) -> None:
    # A file-size limit makes the system take a part of the line and refuse the rest, as a full disk does.
    process = child(
        tmp_path,
        """
        run.append_rollout("grpo", rollout("small"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            run.append_rollout("grpo", rollout("large", size=1_000_000))
        except Exception as error:
            print(type(error).__name__, flush=True)
        run.append_rollout("grpo", rollout("small again"))
        """,
    )
    assert process.communicate(timeout=60)[0].split() == ["RunFolderError"]
    lines = (tmp_path / "rollouts" / "grpo.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["small", "small again"]


def test_two_processes_cannot_write_one_run(tmp_path: Path) -> None:
    process = child(tmp_path, "print('open', flush=True); sys.stdin.read()")
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    try:
        with pytest.raises(RunFolderError, match=rf"being written by process {process.pid} on .*another output_dir"):
            resume(tmp_path)
    finally:
        process.communicate(timeout=60)
    resume(tmp_path).close()


def test_the_lock_of_a_killed_process_is_taken_over_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    process = child(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    process.communicate(timeout=60)
    with caplog.at_level(logging.WARNING), resume(tmp_path):
        assert f"process {process.pid} on" in caplog.text
        assert "taken over" in caplog.text


def test_a_forked_child_that_outlives_a_killed_run_does_not_hold_its_lock(tmp_path: Path) -> None:
    process = child(
        tmp_path,
        """
        pid = os.fork()
        if pid == 0:
            print(os.getpid(), flush=True)
            sys.stdin.read()
            os._exit(0)
        signal.pause()
        """,
    )
    assert process.stdout is not None
    forked = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=60)
    os.kill(forked, 0)  # still there
    try:
        resume(tmp_path).close()
    finally:
        process.communicate(timeout=60)  # closes the pipe that the forked child reads


def test_one_process_cannot_open_a_run_twice_and_may_after_closing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = resume(tmp_path)
    with pytest.raises(RunFolderError, match="this process"):
        resume(tmp_path)
    run.close()
    run.close()
    with pytest.raises(RunFolderError, match="closed"):
        run.append_metrics({"step": 0})
    with caplog.at_level(logging.WARNING):
        resume(tmp_path).close()
    assert caplog.text == ""


def test_a_run_that_was_forgotten_does_not_keep_its_lock(tmp_path: Path) -> None:
    run = resume(tmp_path)
    del run
    resume(tmp_path).close()


CALLING = """
import sys
from functools import partial
from pathlib import Path
import anyio
from mcp_bridge import connect
from sdk.policies.protocol import Sampling
from sdk.policies.scripted import ScriptedAgent
from sdk.records import Message, Task, ToolCall
from sdk.rollouts.engine import RolloutEngine
from sdk.rollouts.episode import Job
from sdk.traces import RunFolder

def look() -> str:
    return "all is well"

async def charge() -> str:
    print("charging", flush=True)
    await anyio.sleep_forever()
    return ""

def calling(name):
    return Message(role="assistant", tool_calls=[ToolCall(id="", name=name)])

async def main(run):
    async with connect([look, charge]) as source:
        agent = ScriptedAgent([calling("look"), calling("charge"), "done"])
        engine = RolloutEngine(agent=agent, source=source, verifier=None, on_call=run.append_call)
        await engine.run([Job(id="r", task=Task(prompt="go"), seed=0)], sampling=Sampling(max_tokens=256))

with RunFolder.create_or_resume(Path(sys.argv[1]), {"model": "m"}) as run:
    anyio.run(main, run)
"""


def test_a_killed_run_shows_which_calls_it_had_begun_and_their_outcome_is_unknown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    process = subprocess.Popen([sys.executable, "-c", CALLING, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "charging\n"
    process.kill()
    process.communicate()
    before = RunFolder.open_to_read(tmp_path).read_calls()
    assert [(line.tool, line.event) for line in before] == [
        ("look", "started"),
        ("look", "answered"),
        ("charge", "started"),
    ]
    with caplog.at_level(logging.WARNING), resume(tmp_path) as run:
        assert [line.tool for line in run.interrupted_calls] == ["charge"]
        (last,) = run.read_calls()[3:]
        assert (last.event, last.key, last.note) == ("unknown", before[2].key, "the run was killed during the call")
    assert "calls under way when the run was killed: 1; whether they took effect is unknown: charge" in caplog.text
    with resume(tmp_path) as run:
        assert run.interrupted_calls == []
        assert len(run.read_calls()) == 4


def test_a_damaged_line_of_the_ledger_is_named(tmp_path: Path) -> None:
    with resume(tmp_path):
        (tmp_path / "calls.jsonl").write_text('{"rollout": "r"}\n')
    with pytest.raises(RunFolderError, match=r"calls\.jsonl has a damaged line"):
        resume(tmp_path)
