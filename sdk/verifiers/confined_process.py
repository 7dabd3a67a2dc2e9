"""A confined process for a program that nobody trusts. docs/verifiers.md describes how far the confinement goes."""

from __future__ import annotations

import builtins
import contextlib
import json
import os
import secrets
import signal
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..errors import VerifierError

_MB = 1 << 20
_MOST_CHARS = 300
"""The most characters that are kept of an exception's name and message."""
_LOOK_EVERY_S = 0.1
_PACKAGES = ("site-packages", "dist-packages")


@dataclass(frozen=True, kw_only=True)
class ConfinedLimits:
    """The limits of one run. `seconds` is wall time; memory and files are in MB.

    `file_mb` limits each file, by the kernel. `folder_mb` and `folder_files` limit all files and folders together,
    which are counted every tenth of a second. A removed file that is still open is not counted: the kernel limits those
    to `open_files` of `file_mb` each, 128 MB by default.
    """

    seconds: float = 10.0
    cpu_seconds: int = 5
    memory_mb: int = 512
    file_mb: int = 4
    folder_mb: int = 64
    folder_files: int = 1000
    open_files: int = 32


@dataclass(frozen=True)
class Outcome:
    """The outcome of a confined run. `problem` is None where it ended well."""

    returned: Any = None
    raised: tuple[str, ...] = ()
    """The exception's own name, and those of its built-in classes, the most special first."""
    stdout: str = ""
    problem: str | None = None


@dataclass(frozen=True)
class Confinement:
    """What the kernel of this machine refuses a confined program, measured by a program that tries it."""

    files: bool
    """Files other than the standard library and the program's own folder cannot be read or changed."""
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
    """The confinement of this machine, measured once: a program tries everything, without the interpreter's guard.

    Raises `VerifierError` where not even a confined program that does nothing can be run.
    """
    with tempfile.NamedTemporaryFile() as outside:
        outside.write(b"x")
        outside.flush()
        tries = _TRIES.replace("PARENT", str(os.getpid())).replace("OUTSIDE", repr(outside.name))
        found = run_confined(tries, limits=ConfinedLimits(seconds=60), audit=False)
    if found.problem is not None:
        raise VerifierError(
            f"no confined program can be run here: {found.problem}; it needs Linux or another Unix, "
            "and a Python that may be started in a folder for temporary files"
        )
    refused = set(found.stdout.split())
    return Confinement(
        files={"passwd", "parent", "root", "read", "truncate", "empty", "mode", "times"} <= refused,
        network="network" in refused,
        processes={"fork", "kill", "exec", "owner", "processors"} <= refused,
    )


_TRIES = """
import fcntl, os, socket
def attempt(name, action):
    try:
        action()
    except (OSError, AttributeError):  # refused, or unknown to this system
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
attempt("read", lambda: open(OUTSIDE).read())
attempt("truncate", lambda: os.truncate(OUTSIDE, 0))
attempt("empty", lambda: os.open(OUTSIDE, os.O_TRUNC | os.O_ACCMODE))
attempt("mode", lambda: os.chmod(OUTSIDE, 0o600))
attempt("times", lambda: os.utime(OUTSIDE))
attempt("network", network)
attempt("kill", lambda: os.kill(PARENT, 0))
attempt("owner", lambda: fcntl.fcntl(os.pipe()[0], 8, PARENT))  # F_SETOWN: who is sent a signal
attempt("processors", lambda: os.sched_setaffinity(PARENT, os.sched_getaffinity(PARENT)))
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
        "readable": list(_readable()),
        "limits": {
            "cpu_seconds": limits.cpu_seconds,
            "memory_bytes": limits.memory_mb * _MB,
            "file_bytes": limits.file_mb * _MB,
            "open_files": limits.open_files,
        },
    }
    folder = tempfile.mkdtemp(prefix="confined-")
    try:
        out = _run_in(folder, stdin, whole, limits)
    finally:
        left = _remove(folder)
    return out if left is None else Outcome(problem=f"it left what cannot be removed: {left}")


def _run_in(folder: str, stdin: str, job: Mapping[str, Any], limits: ConfinedLimits) -> Outcome:
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(5)]
        given, job_file, outcome, begun, printed = files
        for file, text in ((given, stdin), (job_file, json.dumps(job))):
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
        stopped = _wait(process, folder, limits)
        for file in (outcome, begun, printed):
            file.seek(0)
        if not begun.read():
            raise VerifierError(
                f"a confined program could not be started (exit code {process.returncode}, {stopped or 'it ended'}); "
                "give it more time"
            )
        return _outcome(process.returncode, stopped, outcome.read(), printed.read().decode(errors="replace"), limits)


def _wait(process: subprocess.Popen[bytes], folder: str, limits: ConfinedLimits) -> str | None:
    """Wait until the process exits, or stop it at a limit. Returns why it was stopped, or None."""
    ends = time.monotonic() + limits.seconds
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, min(_LOOK_EVERY_S, ends - time.monotonic())))
            if _is_too_full(folder, limits):
                return f"it wrote more than {limits.folder_mb} MB or {limits.folder_files} files and folders"
            if process.returncode is not None:
                return None
            if time.monotonic() >= ends:
                return f"it was not done after {limits.seconds:g} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _is_too_full(folder: str, limits: ConfinedLimits) -> bool:
    """Whether a folder holds more than the limits allow; one that cannot be listed does."""
    size, count, rest = 0, 0, [folder]
    while rest:
        try:
            with os.scandir(rest.pop()) as entries:
                for entry in entries:
                    count += 1
                    with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                        size += entry.stat(follow_symlinks=False).st_size
                    if size > limits.folder_mb * _MB or count > limits.folder_files:
                        return True
                    if entry.is_dir(follow_symlinks=False):
                        rest.append(entry.path)
        except FileNotFoundError:
            continue
        except OSError:
            return True
    return False


def _remove(folder: str) -> OSError | None:
    """Remove the folder of a process that has exited, however deep it is and whatever modes its files have.

    The folders inside a folder are moved to the top before it is removed: nothing recurses, and no path is long.
    """
    try:
        top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            while folders := _without_files(top):
                for name in folders:
                    inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=top)
                    try:
                        for below in _without_files(inner):
                            os.rename(below, secrets.token_hex(16), src_dir_fd=inner, dst_dir_fd=top)
                    finally:
                        os.close(inner)
                    os.rmdir(name, dir_fd=top)
        finally:
            os.close(top)
        os.rmdir(folder)
    except OSError as error:
        return error
    return None


def _without_files(folder: int) -> list[str]:
    """Remove the files in a folder. Returns its folders, which can be read and moved from now on."""
    folders = []
    for name in os.listdir(folder):
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            os.chmod(name, 0o700, dir_fd=folder)
            folders.append(name)
        else:
            os.unlink(name, dir_fd=folder)
    return folders


def _outcome(code: int, stopped: str | None, said: bytes, printed: str, limits: ConfinedLimits) -> Outcome:
    """The outcome. The code may have left anything, and nothing of that may pass for an error of the verifier."""
    if stopped is not None:
        return Outcome(stdout=printed, problem=stopped)
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
    if isinstance(raised, str):
        names = _exception_names(raised[:_MOST_CHARS], str(found.get("built_in")))
        message = str(found.get("message"))[:_MOST_CHARS]
        return Outcome(raised=names, stdout=printed, problem=f"it raised {raised[:_MOST_CHARS]}: {message}")
    if found.get("ended") is False:
        return Outcome(stdout=printed, problem="it ended with an error code")
    return Outcome(returned=found.get("returned"), stdout=printed)


@lru_cache(maxsize=1)
def _program() -> str:
    return Path(__file__).with_name("confined_child.py").read_text(encoding="utf-8")


def _exception_names(name: str, built_in: str) -> tuple[str, ...]:
    """The names under which a test may expect an exception: its own and those of the classes of `built_in`, which are
    looked up here. A class of the code's own that has the name of a built-in class does not count as that class."""
    found = getattr(builtins, built_in, None)
    classes = found.__mro__[:-2] if isinstance(found, type) and issubclass(found, BaseException) else ()
    own = () if hasattr(builtins, name) else (name,)
    return (*own, *(cls.__name__ for cls in classes))


@lru_cache(maxsize=1)
def _readable() -> tuple[str, ...]:
    """The files of the standard library and the system's shared libraries, without installed packages: Landlock cannot
    except a folder from one that may be read."""
    base = {"platbase": sys.base_exec_prefix}
    modules = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib", vars=base)]
    found = [entry.path for folder in modules for entry in _entries(folder) if entry.name not in _PACKAGES]
    found += [sysconfig.get_config_var("DESTSHARED"), "/etc/ld.so.cache", "/usr/share/zoneinfo", "/dev/null"]
    found += ["/dev/urandom"]
    for folder in ("/lib", "/lib64", "/usr/lib", "/usr/lib64", sysconfig.get_config_var("LIBDIR")):
        found += [entry.path for entry in _entries(folder) if ".so" in entry.name and entry.is_file()]
        found.append(os.path.join(str(folder), sysconfig.get_config_var("MULTIARCH") or "no folder"))
    return tuple(sorted({os.path.realpath(path) for path in found if path and os.path.exists(path)}))


def _entries(folder: str | None) -> Iterator[os.DirEntry[str]]:
    """The entries of a folder without links, which lead to what is listed elsewhere or must not be read."""
    with contextlib.suppress(OSError), os.scandir(folder or "no folder") as entries:
        yield from (entry for entry in entries if not entry.is_symlink())
