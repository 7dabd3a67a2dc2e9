"""A function called in a daemon thread blocks neither the loop nor the exit."""

import subprocess
import sys
import threading

import anyio
import pytest

from mcp_bridge.daemon_threads import call_in_daemon_thread

INTERRUPTED = """
import os, signal, time
import anyio
from mcp_bridge.daemon_threads import call_in_daemon_thread

signal.signal(signal.SIGINT, signal.default_int_handler)

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(3600)

anyio.run(lambda: call_in_daemon_thread(interrupt, name="test"))
"""


def test_ctrl_c_ends_a_program_whose_thread_never_returns() -> None:
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60)
    assert "KeyboardInterrupt" in ended.stderr
    assert ended.returncode != 0


async def test_what_the_function_returns_or_raises_reaches_the_caller() -> None:
    assert await call_in_daemon_thread(lambda: 7, name="test") == 7
    with pytest.raises(ZeroDivisionError):
        await call_in_daemon_thread(lambda: 1 // 0, name="test")
    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        await call_in_daemon_thread(lambda: sys.exit(3), name="test")


async def test_a_call_that_is_cancelled_does_not_wait_for_its_function() -> None:
    release = threading.Event()
    with anyio.move_on_after(0.05) as scope:
        await call_in_daemon_thread(lambda: release.wait(60), name="test")
    assert scope.cancelled_caught
    release.set()
