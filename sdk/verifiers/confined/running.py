"""Starting a confined child, waiting for it, and measuring what holds it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...errors import VerifierError

_FOLDER = Path(__file__).parent
_MB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ConfinedLimits:
    """What one run may use. `seconds` is wall time; memory and files in MB, each file alone."""

    seconds: float = 10.0
    cpu_seconds: int = 5
    memory_mb: int = 512
    file_mb: int = 4
    open_files: int = 32


@dataclass(frozen=True)
class Outcome:
    """How a confined run ended. `ended`: by itself and well; `problem` says otherwise."""

    returned: Any = None
    raised: tuple[str, ...] = ()
    """The names of the exception's classes, the most special first."""
    stdout: str = ""
    problem: str | None = None


@dataclass(frozen=True)
class Confinement:
    """What the kernel of this machine refuses a confined program, as measured by a program that tries."""

    files: bool
    """Files other than the standard library and the program's own folder cannot be read."""
    network: bool
    """No connection can be made."""
    processes: bool
    """No process can be started, signalled or read."""

    def __str__(self) -> str:
        held = [name for name, holds in asdict(self).items() if holds]
        missing = [name for name, holds in asdict(self).items() if not holds]
        return f"kept from {', '.join(held) or 'nothing'}" + (f"; not from {', '.join(missing)}" if missing else "")


def call_confined(
    code: str,
    function: str,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    limits: ConfinedLimits,
) -> Outcome:
    """Run `code` in a process of its own and call `function`; arguments and result are JSON."""
    return _run(code, "", limits, call=function, args=list(args), kwargs=dict(kwargs or {}))


def run_confined(code: str, stdin: str = "", *, limits: ConfinedLimits, audit: bool = True) -> Outcome:
    """Run `code` as a program that reads `stdin`. `audit=False`: without the guard in the interpreter."""
    return _run(code, stdin, limits, audit=audit)


@lru_cache(maxsize=1)
def confinement() -> Confinement:
    """What holds on this machine, measured once: a program tries each, without the guard in the interpreter.

    Raises `VerifierError` where not even a confined program that does nothing can be run.
    """
    found = run_confined(_TRIES.replace("PARENT", str(os.getpid())), limits=ConfinedLimits(seconds=60), audit=False)
    if found.problem is not None or found.raised:
        raise VerifierError(
            f"no confined program can be run here: {found.problem or found.raised}; it needs Linux or another Unix, "
            "and a Python that may be started in a folder for temporary files"
        )
    refused = set(found.stdout.split())
    return Confinement(
        files={"passwd", "parent", "root"} <= refused,
        network="network" in refused,
        processes={"fork", "kill", "exec"} <= refused,
    )


_TRIES = """
import os, socket
def attempt(name, action):
    try:
        action()
    except OSError:
        print(name)
def fork():
    if os.fork() == 0:
        os._exit(0)
def network():
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.connect(("192.0.2.1", 9))  # an address for documentation (RFC 5737): a datagram socket sends nothing yet
attempt("passwd", lambda: open("/etc/passwd").read())
attempt("parent", lambda: open("/proc/PARENT/environ").read())
attempt("root", lambda: os.listdir("/"))
attempt("network", network)
attempt("kill", lambda: os.kill(PARENT, 0))
attempt("fork", fork)
attempt("exec", lambda: os.execv("/bin/sh", ["sh", "-c", "exit 0"]))
"""


def _run(code: str, stdin: str, limits: ConfinedLimits, **job: Any) -> Outcome:
    whole = {
        "code": code,
        "call": None,
        "args": [],
        "kwargs": {},
        "audit": True,
        **job,
        "readable": _readable(),
        "limits": {
            "cpu_seconds": limits.cpu_seconds,
            "memory_bytes": limits.memory_mb * _MB,
            "file_bytes": limits.file_mb * _MB,
            "open_files": limits.open_files,
        },
    }
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="confined-", ignore_cleanup_errors=True))
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(5)]
        given, job_file, outcome, begun, printed = files
        for file, text in ((given, stdin), (job_file, json.dumps(whole))):
            file.write(text.encode(errors="surrogatepass"))
            file.seek(0)
        # The child prints into a file, whose size is limited: nobody has to read while it runs.
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-c", _program(), *(str(file.fileno()) for file in files[1:4])],
            stdin=given,
            stdout=printed,
            stderr=subprocess.DEVNULL,
            pass_fds=tuple(file.fileno() for file in files[1:4]),
            cwd=folder,
            env={},
            start_new_session=True,
        )
        in_time = _wait(process, limits.seconds)
        for file in (outcome, begun, printed):
            file.seek(0)
        if not begun.read():
            when = "" if in_time else f" within {limits.seconds:g} s"
            raise VerifierError(
                f"a confined program could not be started{when} (exit code {process.returncode}); give it more time"
            )
        return _outcome(process.returncode, in_time, outcome.read(), printed.read().decode(errors="replace"), limits)


def _wait(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for the end, or bring it about. Whether it came by itself."""
    try:
        process.wait(seconds)
        return True
    except subprocess.TimeoutExpired:
        return False
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _outcome(code: int, in_time: bool, said: bytes, printed: str, limits: ConfinedLimits) -> Outcome:
    """How it ended. What the code left may be anything: nothing of it may pass for a failure of ours."""
    if not in_time:
        return Outcome(stdout=printed, problem=f"it was not done after {limits.seconds:g} s")
    if not said:
        by = f"signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"exit code {code}"
        return Outcome(
            stdout=printed,
            problem=f"it ended by {by} without a result (limits: {limits.cpu_seconds} s of CPU, {limits.memory_mb} MB)",
        )
    try:
        found: Any = json.loads(said)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return Outcome(stdout=printed, problem="it left a result that cannot be read")
    raised = found.get("raised")
    if isinstance(raised, list):
        names = tuple(map(str, raised))
        return Outcome(raised=names, stdout=printed, problem=f"it raised {names[:1]}: {found.get('message')}")
    if found.get("ended") is False:
        return Outcome(stdout=printed, problem="it ended with an error code")
    return Outcome(returned=found.get("returned"), stdout=printed)


@lru_cache(maxsize=1)
def _program() -> str:
    kernel, child = ((_FOLDER / name).read_text(encoding="utf-8") for name in ("kernel.py", "child.py"))
    return kernel + child.replace("from __future__ import annotations\n", "", 1)


def _readable() -> list[str]:
    """The folders of the standard library and of the system's shared libraries."""
    paths = sysconfig.get_paths()
    library = [paths["stdlib"], paths["platstdlib"], sysconfig.get_config_var("DESTSHARED")]
    system = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/usr/share/zoneinfo"]
    system += [sysconfig.get_config_var("LIBDIR"), "/dev/null", "/dev/urandom"]
    return sorted({os.path.realpath(str(path)) for path in library + system if path})
