"""The process of a server that we start: its output in a file, ended with all that it started when we exit."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio
import anyio.to_thread
import httpx

from mcp_bridge.access.redaction import is_secret_name, shown_arguments, shown_text
from mcp_bridge.sessions.watchdog import watchdog

from ..errors import PolicyFailure
from ..progress import Progress

logger = logging.getLogger(__name__)

_TERM_S = 5.0
_KILL_S = 5.0
_POLL_S = 0.2
_LOOK_S = 0.5
_TELL_S = 15.0
_SHOWN_LINES = 12
_LONGEST_LOG = 10_000_000
_COPIED_S = 2.0
_SEGMENT = re.compile(r"/dev/shm/psm_\w+$", re.MULTILINE)


class ServerProcess:
    """One server. It is started again by making another; the port and the log file may be the same."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        url: str,
        log: Path | None,
        environment: Mapping[str, str],
        shows_log: bool = False,
    ) -> None:
        """Start it, without waiting.

        `url`: where the command lets it listen. `log`: None for a temporary file, which `stop` removes unless a text of
        `last_words` has named it. `shows_log`: our standard error gets it, too, and the file begins anew where it is
        long. `environment`: what it has beside ours. Raises `PolicyFailure` where it cannot be started.
        """
        self._log_goes, self._stopped = log is None, False
        if log is None:
            handle, place = tempfile.mkstemp(prefix=f"toolbake-{name.lower()}-", suffix=".log")
            os.close(handle)
            log = Path(place)
        self.name, self.url, self.log = name, url, log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            output.write(f"$ {typed(command, environment)}\n".encode())
            output.flush()
            self._log_start = output.tell()
            try:
                self._popen = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE if shows_log else output,
                    stderr=subprocess.STDOUT,
                    env=_environment(environment),
                    start_new_session=True,
                )
            except OSError as error:
                if self._log_goes:
                    log.unlink()
                raise PolicyFailure(f"{name} cannot be started with {command[0]!r}: {error}") from error
        watchdog.watch(self._popen.pid)
        self._copying = threading.Thread(target=self._copy, name=f"log of {name}", daemon=True) if shows_log else None
        if self._copying is not None:
            self._copying.start()

    def _copy(self) -> None:
        assert self._popen.stdout is not None
        with self._popen.stdout as pipe, self.log.open("ab") as kept:
            for line in pipe:
                with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
                    sys.stderr.write(line.decode(errors="replace"))
                    sys.stderr.flush()
                if kept.tell() > _LONGEST_LOG:
                    kept.truncate(0)
                    self._log_start = 0
                kept.write(line)
                kept.flush()

    @property
    def pid(self) -> int:
        """Of the server, and of the process group that it and what it starts make."""
        return self._popen.pid

    @property
    def ended(self) -> int | None:
        """How it ended: the exit status, negative for a signal. None while it runs."""
        return self._popen.poll()

    def wait(self) -> None:
        """Block until it exits."""
        self._popen.wait()

    def failure(self) -> str | None:
        """That it ended by itself, and its last words. None while it runs, and where it was stopped."""
        if self._stopped or self.ended is None:
            return None
        return f"{self.name} exited with status {self.ended}; {self.last_words()}"

    def is_ready(self, client: httpx.Client) -> bool:
        """Whether it answers. Raises `PolicyFailure` with the end of its log when it has ended instead."""
        if failure := self.failure():
            raise PolicyFailure(failure)
        try:
            return client.get(f"{self.url}/health", timeout=5.0).status_code == 200
        except httpx.HTTPError:
            return False

    def last_words(self) -> str:
        """The end of what it wrote, and where the rest is, which from now on stays there."""
        self._log_goes = False
        if self._copying is not None and self.ended is not None:
            self._copying.join(_COPIED_S)
        with self.log.open("rb") as file:
            file.seek(self._log_start)
            lines = file.read().decode(errors="replace").rstrip().splitlines()
        return f"the end of {self.log}:\n" + "\n".join(lines[-_SHOWN_LINES:])

    def stop(self, drain_s: float = 0.0) -> None:
        """End the whole group: SIGTERM, and SIGKILL where that is not heard. Bounded; twice is fine.

        `drain_s`: how long the server may first take to end by itself, with its other processes, which it tells. If it
        ended before, and nothing has named its temporary log, a warning does.
        """
        if self._log_goes and (failure := self.failure()):
            logger.warning("%s", failure)
        self._stopped = True
        segments = _segments(self.pid)
        if drain_s and self.ended is None:
            os.kill(self.pid, signal.SIGTERM)
            self._gone_within(drain_s)
        for number, limit_s in ((signal.SIGTERM, _TERM_S), (signal.SIGKILL, _KILL_S)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)
            if self._gone_within(limit_s):
                break
        for segment in segments:  # a process that is killed leaves them
            segment.unlink(missing_ok=True)
        if self._copying is not None:
            self._copying.join(_COPIED_S)
        if self._log_goes:
            self.log.unlink(missing_ok=True)
        watchdog.forget(self.pid)

    def _gone_within(self, limit_s: float) -> bool:
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            self._popen.poll()  # reaps it, so that the group can be empty
            try:
                os.killpg(self.pid, 0)
            except (ProcessLookupError, PermissionError):
                return True
            time.sleep(_POLL_S)
        return False


async def wait_until_ready(
    processes: Sequence[ServerProcess], timeout_s: float, progress: Progress, setting: str = ""
) -> None:
    """Wait until all answer, and say so meanwhile. Raises `PolicyFailure` where one does not, with the `setting` of the
    time."""
    name, log = processes[0].name, processes[0].log
    started = told = time.monotonic()
    progress.say(f"starting {name} ({len(processes)} on this machine), which takes a minute or more: {log}")
    waiting = list(processes)
    # Nothing secret is sent, and the certificate of a server with TLS is for the name that its clients use.
    with httpx.Client(verify=False) as client, progress.track(name, len(processes)) as step:
        while waiting:
            for process in list(waiting):
                if await anyio.to_thread.run_sync(process.is_ready, client):
                    waiting.remove(process)
                    step.advance(note=f"after {time.monotonic() - started:.0f} s")
            spent = time.monotonic() - started
            if waiting and spent > timeout_s:
                within = f"within {timeout_s:g} s of its start{setting and f' ({setting})'}"
                raise PolicyFailure(f"{name} did not answer {within}; {waiting[0].last_words()}")
            if time.monotonic() - told > _TELL_S:
                told = time.monotonic()
                step.advance(0, note=f"waiting for {spent:.0f} s")
            await anyio.sleep(_LOOK_S)


def _segments(group: int) -> set[Path]:
    """The shared memory by which the processes of a group speak with each other: files of Python's `multiprocessing`,
    as far as this system tells."""
    found: set[Path] = set()
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # one that has ended meanwhile, or is not ours
            if os.getpgid(int(place.name)) == group:
                found.update(map(Path, _SEGMENT.findall((place / "maps").read_text())))
    return found


def _environment(further: Mapping[str, str]) -> dict[str, str]:
    """What a server needs of ours, without what looks like a secret of another service."""
    return {
        # Threads that spin at barriers slow a shared machine down by a factor of ten and more.
        "OMP_WAIT_POLICY": "PASSIVE",
        "GOMP_SPINCOUNT": "3000",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        **{name: value for name, value in os.environ.items() if not is_secret_name(name)},
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        **further,
    }


def typed(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """A command as one would type it, with what it has beside this process's environment. Of what looks like a secret
    the value is left out."""
    named = [
        f"{name}={'...' if is_secret_name(name) else shlex.quote(shown_text(value))}"
        for name, value in environment.items()
    ]
    return " ".join([*named, shlex.join(shown_arguments(command))])


def free_port(address: str = "127.0.0.1") -> int:
    """A port of this machine at `address` that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port
