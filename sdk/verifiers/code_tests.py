"""The verifier of code: a confined process runs the code against tests that it cannot see.

docs/verifiers.md describes how far the confinement goes.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import json
import os
import re
import secrets
import signal
import stat
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from mcp_bridge.safe_text import and_more, json_in

from ..errors import ConfigError, VerifierError
from ..records import Rollout, Verdict
from .calls import fits, holds_pattern
from .value_checks import same_json, shortened, wrong_expected
from .verifier import ReadyMade

_MB = 1 << 20
_MOST_SAID = 300
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
    known_as: ClassVar[str] = "sdk.verifiers.confined_process.ConfinedLimits"
    """By this name runs know it."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a confined run. `problem` is None where it ended well."""

    returned: Any = None
    raised: tuple[str, ...] = ()
    """The exception's own name, and those of its built-in classes, the most special first. Where a function is called,
    only what the call raises is here."""
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
    found = json_in(said)
    if not isinstance(found, dict):
        return Outcome(stdout=printed, problem="it left a result that cannot be read")
    raised = found.get("raised")
    if isinstance(raised, str):
        counts = found.get("counts") is True
        names = _exception_names(raised[:_MOST_SAID], str(found.get("built_in"))) if counts else ()
        what = f"{'' if counts else 'outside of the call, '}it raised {raised[:_MOST_SAID]}"
        return Outcome(raised=names, stdout=printed, problem=f"{what}: {str(found.get('message'))[:_MOST_SAID]}")
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


# ---------------------------------------------------------------------------------------------------------------------

Need = Literal["files", "network", "processes"]
_FENCED = re.compile(r"```(?:python3?|py)?[ \t\r]*\n(.*?)\n?```", re.DOTALL | re.IGNORECASE)
_FIRST_LINE = re.compile(r"^[ \t]*(?=\S)", re.MULTILINE)
"""The indentation of the first line that has something."""
_CALL_KEYS: dict[str, Any] = {"call": str, "args": (list, tuple), "kwargs": Mapping, "returns": object, "raises": str}
_PROGRAM_KEYS: dict[str, Any] = {"stdin": str, "prints": str}
_FORM = (
    "a list of {'call': name, 'args': [...], 'returns': value} (or 'raises': 'ValueError'), or of {'stdin': text, "
    "'prints': text}"
)
_LIMITS = ConfinedLimits()
_MOST_CODE_CHARS = 100_000
_SHOWN = 3
_TURNS = threading.BoundedSemaphore(os.cpu_count() or 1)
"""Of the processes of all rollouts. The wait for a turn is not the code's time."""


@dataclass(eq=False, repr=False)
class code_passes(ReadyMade):
    """A verifier: Python code passes every test in `task.expected["tests"]`, each in a confined process of its own.

    A test is `{"call": name, "args": [...], "kwargs": {...}, "returns": value}`, or with `"raises": "ValueError"` in
    place of `returns` (the exception's own class, or the built-in one that it derives from), or
    `{"stdin": text, "prints": text}` for a whole program. `returns` may be a pattern, such as
    `{"$near": 0.5, "within": 0.001}`. Arguments and results are JSON. The process is given the inputs only; what is
    expected is compared outside of it, so that code can neither read nor forge it.

    `limits.seconds` is the wall time of all tests together; a test that has not ended by then has failed. At most one
    process for each core runs at a time, so that many rollouts at once do not take each other's time.

    `source` takes the code from the rollout, for example from a call's argument; None takes the answer's only fenced
    block, or the whole answer. `limits`: a `ConfinedLimits`. `needs`: what the kernel must keep the code from; rollouts
    stay unscored on a machine that cannot. `docs/verifiers.md` describes how far the confinement goes.

    Example: `code_passes(limits={"cpu_seconds": 2})`
    """

    source: Callable[[Rollout], str] | None = None
    _: KW_ONLY
    limits: ConfinedLimits | Mapping[str, Any] = _LIMITS
    needs: Sequence[Need] = get_args(Need)

    def __post_init__(self) -> None:
        if self.source is not None and not callable(self.source):
            raise ConfigError(f"code_passes: source is {self.source!r}; give a function from the rollout to the code")
        if isinstance(self.needs, str) or not set(self.needs) <= set(get_args(Need)):
            raise ConfigError(f"code_passes: needs is {self.needs!r}; choose among {', '.join(get_args(Need))}")
        self.needs = tuple(self.needs)
        if not isinstance(self.limits, ConfinedLimits):
            names = [field.name for field in dataclasses.fields(ConfinedLimits)]
            if wrong := sorted(set(self.limits) - set(names)):
                raise ConfigError(f"code_passes: there is no limit {wrong[0]!r}; the limits are {', '.join(names)}")
            self.limits = ConfinedLimits(**self.limits)

    def verify(self, rollout: Rollout) -> Verdict:
        """1 if the code passes every test, 0 otherwise, with the first that fails."""
        assert isinstance(self.limits, ConfinedLimits)
        tests = _tests(rollout)
        self._require_confinement()
        code = self.source(rollout) if self.source is not None else _code(rollout)
        if code is None or not code.strip():
            return _verdict(0, len(tests), ["there is no code: write the whole answer as one fenced block"])
        if len(code) > _MOST_CODE_CHARS:
            return _verdict(0, len(tests), [f"the code has {len(code)} characters, more than {_MOST_CODE_CHARS}"])
        problems = []
        left = self.limits.seconds
        for number, test in enumerate(tests, start=1):
            problem: str | None = "no time was left"
            if number == 1 or left > 1:
                with _TURNS:
                    began = time.monotonic()
                    problem = self._problem(code, test, rollout, dataclasses.replace(self.limits, seconds=left))
                    left -= time.monotonic() - began
            problems += [f"test {number} of {len(tests)}: {problem}"] * (problem is not None)
        return _verdict(len(tests) - len(problems), len(tests), problems)

    def _problem(self, code: str, test: Mapping[str, Any], rollout: Rollout, limits: ConfinedLimits) -> str | None:
        """Why a test fails, or None. Each runs in a process of its own: nothing is kept from one to the next."""
        if "prints" in test:
            out = run_confined(code, test.get("stdin", ""), limits=limits)
            same = _lines(out.stdout) == _lines(test["prints"])
            return out.problem or (None if same else f"it printed {shortened(out.stdout, 80)}")
        args, kwargs = test.get("args", []), test.get("kwargs", {})
        out = call_confined(code, test["call"], args, kwargs, limits=limits)
        return _call_problem(out, test, f"task {rollout.task.id!r}: expected['tests']")

    def _require_confinement(self) -> None:
        missing = [need for need in self.needs if not getattr(confinement(), need)]
        if missing:
            raise VerifierError(
                f"code_passes: this machine cannot keep the code from {' and '.join(missing)} ({confinement()}); "
                f"run where it can (Linux 5.13 or newer), or accept it: needs={tuple(set(self.needs) - set(missing))!r}"
            )


def _call_problem(out: Outcome, test: Mapping[str, Any], where: str) -> str | None:
    if "raises" in test:
        if test["raises"] in out.raised:
            return None
        return out.problem or f"it returned {shortened(out.returned, 80)} instead of raising"
    if out.problem is not None:
        return out.problem
    wanted = test["returns"]
    # What is not a pattern is compared as it is: the nulls and times that `fits` takes for the same are those of calls.
    same = fits(wanted, out.returned, where) and (holds_pattern(wanted) or same_json(wanted, out.returned))
    return None if same else f"it returned {shortened(out.returned, 80)}"


def _tests(rollout: Rollout) -> list[Mapping[str, Any]]:
    tests = rollout.task.expected.get("tests")
    if not isinstance(tests, list) or not tests:
        raise wrong_expected(rollout.task, "tests", f"is {shortened(tests)}; it must be {_FORM}")
    for test in tests:
        keys = set(test) if isinstance(test, Mapping) else set()
        calls = {"call"} < keys <= set(_CALL_KEYS) and len(keys & {"returns", "raises"}) == 1
        known = {"prints"} <= keys <= set(_PROGRAM_KEYS) or calls
        if not known or not all(isinstance(test[key], {**_CALL_KEYS, **_PROGRAM_KEYS}[key]) for key in keys):
            raise wrong_expected(rollout.task, "tests", f"holds {shortened(test)}; write {_FORM}")
    return tests


def _code(rollout: Rollout) -> str | None:
    if rollout.stop_reason != "answered":
        return None
    blocks: list[str] = _FENCED.findall(rollout.answer)
    if len(blocks) == 1:
        first = _FIRST_LINE.search(blocks[0])
        margin = len(first[0]) if first is not None else 0  # in a list, the block is indented
        return re.sub(rf"^[ \t]{{{margin}}}", "", blocks[0], flags=re.MULTILINE)
    return None if blocks or "```" in rollout.answer else rollout.answer


def _verdict(passed: int, tests: int, problems: Sequence[str]) -> Verdict:
    said = and_more(problems, _SHOWN, ";") or f"all {tests} tests"
    return Verdict(score=float(passed == tests), components={"tests": passed / tests}, explanation=said)


def _lines(text: str) -> list[str]:
    """The printed lines, without blanks at their ends and without empty lines at the end."""
    return [line.rstrip() for line in text.rstrip().splitlines()]
