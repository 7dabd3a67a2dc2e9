"""No process of a server outlives the program that started it, however that ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from mcp_bridge.sessions import watchdog

WATCHDOG = Path(watchdog.__file__)
LOOP = Path(__file__).parent / "servers" / "rollout_loop.py"
SOON_S = 20.0


class Program:
    """A program in the midst of its rollouts."""

    def __init__(self, file: Path, how: str) -> None:
        self._file = file
        self.process = subprocess.Popen(
            [sys.executable, str(LOOP), str(file), how], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "up\n", self.process.communicate()[1]
        self.servers = [int(line) for line in file.read_text().split()]
        self.children = (
            [one.pid for one in psutil.Process(self.process.pid).children(recursive=True)] if how == "wait" else []
        )

    def pids(self) -> set[int]:
        # Read again: processes may have been started since.
        return {*(int(line) for line in self._file.read_text().split()), *self.children}

    def left(self) -> list[int]:
        return [pid for pid in self.pids() if _lives(pid)]


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "pids"
    yield path
    for line in path.read_text().split():
        if _lives(int(line)):
            psutil.Process(int(line)).kill()


def left_soon(program: Program) -> list[int]:
    """What is left of the servers once they had their time."""
    deadline = time.monotonic() + SOON_S
    while program.left() and time.monotonic() < deadline:
        time.sleep(0.05)
    return program.left()


@pytest.mark.parametrize(("how", "status"), [("return", 0), ("raise", 1)])
def test_none_is_left_when_a_program_ends_in_order_or_by_an_exception(file: Path, how: str, status: int) -> None:
    program = Program(file, how)
    _, said = program.process.communicate(timeout=60)
    assert program.process.returncode == status, said
    # At once, not soon: the program ended after its servers.
    assert not program.left()
    assert "ResourceWarning" not in said


def test_none_is_left_after_ctrl_c_in_the_midst_of_rollouts(file: Path) -> None:
    program = Program(file, "wait")
    assert len(program.children) >= 6
    program.process.send_signal(signal.SIGINT)
    _, said = program.process.communicate(timeout=60)
    assert "KeyboardInterrupt" in said
    assert not left_soon(program)


def test_none_is_left_after_a_second_ctrl_c_while_the_first_is_being_heard(file: Path) -> None:
    program = Program(file, "wait")
    program.process.send_signal(signal.SIGINT)
    # The server ends with its input; what it started needs SIGKILL, four seconds later.
    while _lives(program.servers[0]):
        time.sleep(0.01)
    program.process.send_signal(signal.SIGINT)
    program.process.communicate(timeout=60)
    assert not left_soon(program)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_none_is_left_after_a_program_is_killed(file: Path, number: signal.Signals) -> None:
    program = Program(file, "wait")
    assert all(_lives(pid) for pid in program.servers)
    program.process.send_signal(number)
    program.process.communicate(timeout=60)
    assert not left_soon(program)


def test_none_is_left_after_a_program_that_says_no_goodbye(file: Path) -> None:
    program = Program(file, "exit")
    program.process.communicate(timeout=60)
    assert program.process.returncode == 7
    assert not left_soon(program)


def test_a_group_that_a_program_named_last_before_it_was_killed_is_ended_too() -> None:
    # The watching process comes to look for its parent only when that is gone; a fork of it holds the pipe open.
    late = (
        "import os, runpy, sys\nparents = [1, 2, 2, 2]\nos.getppid = lambda: parents.pop(0)\n"
        "runpy.run_path(sys.argv[1], run_name='__main__')\n"
    )
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as server:
        told, tell = os.pipe()
        os.write(tell, f"+{server.pid}\n".encode())
        subprocess.run([sys.executable, "-c", late, str(WATCHDOG)], stdin=told, timeout=60, check=True)
        for end in (told, tell):
            os.close(end)
        assert server.wait(60) == -signal.SIGTERM


TWO_WORLDS = """
import anyio, sys, mcp_bridge
config = {"mcpServers": {"s": {"command": sys.executable, "args": sys.argv[1:], "toolbake": {"warm": 0}}}}
async def main():
    async with mcp_bridge.connect(config) as toolset, toolset.open_world("one") as one:
        await one.call("read", {})
        print("one", flush=True)
        input()
        async with toolset.open_world("two") as two:
            await two.call("read", {})
            print("two", flush=True)
            await anyio.sleep_forever()
anyio.run(main)
"""


def test_none_is_left_where_the_process_that_watches_was_killed_before_the_program(file: Path) -> None:
    server = [str(LOOP.with_name("breaking.py")), "--grandchild", str(file)]
    command = [sys.executable, "-c", TWO_WORLDS, *server]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stdout.readline() == "one\n"
        (watching,) = [one for one in psutil.Process(program.pid).children() if str(WATCHDOG) in one.cmdline()]
        watching.kill()
        while _lives(watching.pid):
            time.sleep(0.01)
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.stdout.readline() == "two\n"
        pids = [int(line) for line in file.read_text().split()]
        assert len(pids) >= 8
        program.kill()
    deadline = time.monotonic() + SOON_S
    while any(map(_lives, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(_lives, pids))
