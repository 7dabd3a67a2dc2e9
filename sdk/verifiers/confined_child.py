"""The confined process: it gives up what the kernel can take from it, runs the code and reports the outcome.

The process starts with the text of this file (`python -I -S -c`), so the file imports nothing of the project. The job
is on the descriptor named in `argv[1]`, the outcome goes to that in `argv[2]`. What the kernel agreed to goes to that
in `argv[3]`, which is closed before the code runs: code may spoil its outcome, and cannot make it look as if it had
never begun. The job holds inputs only: what is expected never comes here.
"""

from __future__ import annotations

import builtins
import ctypes
import json
import os
import platform
import resource
import sys
import types
from collections.abc import Callable
from importlib.machinery import PathFinder
from typing import Any

# The kernel's part: resource limits, an empty network, Landlock, seccomp. Each function returns whether the kernel
# agreed; whether it holds is measured from outside, see `code_tests.confinement`.

_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWUSER, _CLONE_NEWNET, _CLONE_NEWIPC = 0x10000000, 0x40000000, 0x08000000
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _SIGKILL = 1, 22, 38, 9
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_ACCESS_BY_ABI = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Version of Landlock -> how many kinds of file access it handles; they are the lowest bits."""
_READ = 1 << 0 | 1 << 2 | 1 << 3
"""Execute, read a file, read a folder. (Loading a shared library asks for execute.)"""
_ON_FILES = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15

_MACHINES = {"x86_64": (1, 0xC000003E), "aarch64": (2, 0xC00000B7)}
"""Machine -> the column of its numbers in `_ALLOWED`, and its audit number."""
_ALLOWED = """
read 0 63, write 1 64, close 3 57, lseek 8 62, pread64 17 67, pwrite64 18 68, readv 19 65, writev 20 66,
preadv 295 69, pwritev 296 70, preadv2 327 286, pwritev2 328 287, sendfile 40 71, copy_file_range 326 285,
dup 32 23, dup2 33 -, dup3 292 24, pipe 22 -, pipe2 293 59, close_range 436 436, flock 73 32, fsync 74 82,
fdatasync 75 83, ftruncate 77 46, fallocate 285 47, fadvise64 221 223,
stat 4 -, fstat 5 80, lstat 6 -, newfstatat 262 79, statx 332 291, access 21 -, faccessat 269 48, faccessat2 439 439,
readlink 89 -, readlinkat 267 78, statfs 137 43, fstatfs 138 44, getdents64 217 61, getcwd 79 17, chdir 80 49,
fchdir 81 50, mkdir 83 -, mkdirat 258 34, rmdir 84 -, unlink 87 -, unlinkat 263 35, rename 82 -, renameat 264 38,
renameat2 316 276, link 86 -, linkat 265 37, symlink 88 -, symlinkat 266 36, creat 85 -, umask 95 166,
mmap 9 222, munmap 11 215, mprotect 10 226, mremap 25 216, madvise 28 233, msync 26 227, brk 12 214,
poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72, epoll_create1 291 20, epoll_ctl 233 21, epoll_wait 232 -,
epoll_pwait 281 22, eventfd2 290 19, futex 202 98, membarrier 324 283, set_robust_list 273 99, rseq 334 293,
gettid 186 178, restart_syscall 219 128, sched_yield 24 124, sched_getaffinity 204 123, getcpu 309 168,
rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigpending 127 136, rt_sigtimedwait 128 137,
sigaltstack 131 132, pause 34 -, alarm 37 -, getitimer 36 102, setitimer 38 103, nanosleep 35 101,
clock_nanosleep 230 115, clock_gettime 228 113, clock_getres 229 114, gettimeofday 96 169, time 201 -, times 100 153,
getrandom 318 278, getpid 39 172, getppid 110 173, getuid 102 174, geteuid 107 175, getgid 104 176, getegid 108 177,
getresuid 118 148, getresgid 120 150, getgroups 115 158, getpgid 121 155, getpgrp 111 -, getsid 124 156,
getrusage 98 165, sysinfo 99 179, uname 63 160, exit 60 93, exit_group 231 94
"""
"""The system calls of a Python program that computes, and reads and writes its own files, with their numbers on x86-64
and arm64 (from Linux's unistd.h). All others are refused: they start processes, send signals, open sockets, or change
what Landlock does not guard, such as the mode, times and attributes of any file."""
_CHECKED = {
    "fcntl 72 25": (1, (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030)),
    "ioctl 16 29": (1, (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)),
}
"""System call -> the number of an argument, and its allowed values: for descriptors, flags and locks, whether a file is
a terminal, and how much can be read. Others make the kernel send signals to any process (F_SETOWN, FIOSETOWN)."""
_OPENING = {"open 2 -": 1, "openat 257 56": 2}
"""System call -> the number of the argument with the flags."""
_ACCESS_MODE, _TRUNCATE = 3, 0o1000


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Rule(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


class _Step(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("k", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("steps", ctypes.POINTER(_Step)))


def limit(limits: dict[str, Any]) -> None:
    """Set the limits for good: seconds of CPU, bytes of memory and of each file, open files; no process, no core."""
    cpu = int(limits["cpu_seconds"])
    values = {
        resource.RLIMIT_CPU: (cpu, cpu + 1),
        resource.RLIMIT_AS: (limits["memory_bytes"],) * 2,
        resource.RLIMIT_FSIZE: (limits["file_bytes"],) * 2,
        resource.RLIMIT_NOFILE: (limits["open_files"],) * 2,
        resource.RLIMIT_NPROC: (0, 0),
        resource.RLIMIT_CORE: (0, 0),
    }
    for which, value in values.items():
        resource.setrlimit(which, value)


def leave_network() -> bool:
    """Move into a network without interfaces, and into a user namespace without the rights of this one."""
    return bool(_LIBC.unshare(_CLONE_NEWUSER | _CLONE_NEWNET | _CLONE_NEWIPC) == 0)


def hide_files(readable: list[str], writable: str) -> bool:
    """Let only `readable` and the files below be read, and only `writable` be changed (Landlock)."""
    _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    abi = _LIBC.syscall(_LANDLOCK_CREATE, None, 0, 1)
    if abi < 1:
        return False
    everything = (1 << _ACCESS_BY_ABI.get(abi, 16)) - 1
    ruleset = _Ruleset(everything, 0b11 if abi >= 4 else 0, 0b11 if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    handle = _LIBC.syscall(_LANDLOCK_CREATE, ctypes.byref(ruleset), size, 0)
    if handle < 0:
        return False
    for path in readable:
        _allow(handle, path, _READ & everything)
    _allow(handle, writable, everything)
    done = bool(_LIBC.syscall(_LANDLOCK_RESTRICT, handle, 0) == 0)
    os.close(handle)
    return done


def _allow(handle: int, path: str, access: int) -> None:
    try:
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what is not there need not be readable
    if not os.path.isdir(path):
        access &= _ON_FILES
    rule = _Rule(access, folder)
    _LIBC.syscall(_LANDLOCK_ADD, handle, 1, ctypes.byref(rule), 0)
    os.close(folder)


def refuse_calls() -> bool:
    """Let all system calls but those above fail with EPERM (seccomp), on machines whose numbers are known."""
    if platform.machine() not in _MACHINES:
        return False
    column, audit = _MACHINES[platform.machine()]
    load, equal, mask, give = 0x20, 0x15, 0x54, 0x06
    kill, fail, allow = (give, 0, 0, 0x80000000), (give, 0, 0, 0x00050000 | 1), (give, 0, 0, 0x7FFF0000)

    def numbers(call: str) -> list[int]:
        return [int(number) for number in call.split()[column : column + 1] if number != "-"]

    steps = [(load, 0, 0, 4), (equal, 1, 0, audit), kill, (load, 0, 0, 0)]
    for number in [number for call in _ALLOWED.split(",") for number in numbers(call)]:
        steps += [(equal, 0, 1, number), allow]
    for call, (argument, values) in _CHECKED.items():
        for number in numbers(call):
            steps += [(equal, 0, 2 * len(values) + 2, number), (load, 0, 0, 16 + 8 * argument)]
            steps += [step for value in values for step in ((equal, 0, 1, value), allow)] + [fail]
    for call, argument in _OPENING.items():
        # Without the right to write, a file can be emptied all the same; Landlock sees that since Linux 6.2.
        for number in numbers(call):
            steps += [(equal, 0, 7, number), (load, 0, 0, 16 + 8 * argument)]
            steps += [(mask, 0, 0, _TRUNCATE | _ACCESS_MODE), (equal, 2, 0, _TRUNCATE)]
            steps += [(mask, 0, 0, _ACCESS_MODE), (equal, 0, 1, _ACCESS_MODE), fail, allow]
    steps.append(fail)
    program = _Program(len(steps), (_Step * len(steps))(*(_Step(*step) for step in steps)))
    _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return bool(_LIBC.prctl(_PR_SET_SECCOMP, 2, ctypes.byref(program), 0, 0) == 0)


# ---------------------------------------------------------------------------------------------------------------------
# The job.

_REFUSED_EVENTS = (
    *("socket.", "ctypes.", "subprocess.", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.system", "os.kill"),
    *("pty.", "gc.get_", "code.__new__", "os.chroot", "os.setxattr", "os.removexattr", "syslog."),
)
_WRITING_EVENTS = frozenset(
    f"os.{name}"
    for name in ("remove", "rename", "rmdir", "mkdir", "link", "symlink", "truncate", "chmod", "chown", "utime")
)
_LOOKING_EVENTS = frozenset({"os.listdir", "os.scandir", "os.chdir", "glob.glob"})


def watch(readable: tuple[str, ...], writable: str) -> None:
    """Refuse in the interpreter, too: its errors are readable, and it is the only guard where the kernel has none.

    By Python's documentation, audit hooks are not a sandbox: this stops accidents and simple tries.
    """

    def inside(path: Any, roots: tuple[str, ...], real: Callable[[str], str] = os.path.realpath) -> bool:
        if isinstance(path, int) or path is None:
            return True
        found = real(os.fsdecode(path))
        return any(found == root or found.startswith(root + "/") for root in roots)

    def hook(event: str, given: tuple[Any, ...]) -> None:
        if event.startswith(_REFUSED_EVENTS):
            raise PermissionError(f"{event} is not allowed here")
        if event == "open":
            wants_to_write = isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            roots = (writable,) if wants_to_write else (*readable, writable)
            if not inside(given[0], roots):
                raise PermissionError(f"{given[0]!r} is outside of what this program may open")
        elif event in _WRITING_EVENTS and not all(inside(path, (writable,)) for path in given[:1]):
            raise PermissionError(f"{event} of {given[0]!r} is not allowed here")
        elif event in _LOOKING_EVENTS and not inside(given[0], (*readable, writable)):
            raise PermissionError(f"{given[0]!r} is outside of what this program may see")

    sys.addaudithook(hook)


def confine(job: dict[str, Any]) -> dict[str, bool]:
    """Give up everything that the process can give up. Returns what the kernel agreed to, by name."""
    job_readable, writable = job["readable"], os.path.realpath(os.getcwd())
    # Lists the folders of modules, which can be read afterwards and no longer be listed: packages lie there, too.
    PathFinder.find_spec("solution")
    _LIBC.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)  # it ends with its parent
    held = {"network": leave_network()}
    limit(job["limits"])
    held["files"] = hide_files(job_readable, writable)
    held["calls"] = refuse_calls()
    if job["audit"]:
        watch(tuple(job_readable), writable)
    del globals()["_LIBC"]  # the code sees what is global here
    return held


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Run the code; where the job names a function, call it. Returns the outcome as plain JSON."""
    module = types.ModuleType("solution")
    # What is raised before the call, or because its result is not JSON, is not raised by it.
    counts = job["call"] is None
    sys.modules["solution"] = module
    vars(builtins).update(exit=sys.exit, quit=sys.exit)  # `site`, which adds them, is not loaded
    try:
        code = compile(job["code"], "solution.py", "exec", dont_inherit=True)
        if job["call"] is None:
            module.__name__ = "__main__"
            module.__dict__["__name__"] = "__main__"
            sys.modules["__main__"] = module
        exec(code, module.__dict__)
        if job["call"] is None:
            return {"ended": True}
        function = module.__dict__[job["call"]]
        counts = True
        returned = function(*job["args"], **job["kwargs"])
        counts = False
        return {"returned": json.loads(json.dumps(returned, allow_nan=False))}
    except SystemExit as stop:
        return {"ended": stop.code in (None, 0)} if job["call"] is None else _raised(stop, counts)
    except BaseException as error:
        return _raised(error, counts)


def _raised(error: BaseException, counts: bool) -> dict[str, Any]:
    """The exception's own name, and the name of its first built-in class, compared by identity."""
    classes = type(error).__mro__
    built_in = next(cls.__name__ for cls in classes if vars(builtins).get(cls.__name__) is cls)
    return {"raised": classes[0].__name__, "built_in": built_in, "message": str(error)[:300], "counts": counts}


def main() -> None:
    with open(int(sys.argv[1]), encoding="utf-8") as file:
        job = json.load(file)
    with os.fdopen(int(sys.argv[3]), "w", encoding="utf-8") as begun:
        begun.write(json.dumps({"held": confine(job)}))
    outcome = os.fdopen(int(sys.argv[2]), "w", encoding="utf-8")
    outcome.write(json.dumps(run(job)) + "\n")
    outcome.flush()
    sys.stdout.flush()
    if job["call"] is not None:
        os._exit(0)
    # A program ends as Python ends it: what it prints at exit is printed, too.


if __name__ == "__main__":
    main()
