"""What the Linux kernel can be asked to refuse a process: rlimits, an empty network, Landlock, seccomp.

The child starts with the text of this file (`python -I -S -c`), so it imports nothing of the project. Each function
returns whether the kernel agreed; whether it holds is measured from outside, see `running.confinement`.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
from typing import Any

_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWUSER, _CLONE_NEWNET, _CLONE_NEWIPC = 0x10000000, 0x40000000, 0x08000000
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _SIGKILL = 1, 22, 38, 9
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_ACCESS_BY_ABI = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""How many kinds of access to files each version of Landlock handles; they are the lowest bits."""
_READ = 1 << 0 | 1 << 2 | 1 << 3
"""Execute, read a file, read a folder. (Loading a shared library asks for execute.)"""
_ON_FILES = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15

_REFUSED = {
    "x86_64": (
        0xC000003E,
        "29 30 41 42 44 46 49 50 53 56 57 58 59 62 64 68 101 129 135 155 160 161 165 166 169 175 200 234 240 248 249"
        " 250 272 297 298 302 304 308 310 311 312 313 317 321 322 323 424 425 434 435 438",
    ),
    "aarch64": (
        0xC00000B7,
        "39 40 41 51 92 97 105 117 129 130 131 138 142 164 180 186 190 194 196 198 199 200 201 203 206 211 217 218 219"
        " 220 221 240 241 261 265 268 270 271 272 273 277 280 281 282 424 425 434 435 438",
    ),
}
"""Machine -> its audit number, and the system calls that are refused: sockets; new processes, threads and programs;
signals to others; tracing and reading others' memory; raising limits; namespaces, mounts and modules; keys, BPF,
io_uring; shared memory and queues. From Linux's unistd.h and asm-generic/unistd.h."""


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


def die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)


def leave_network() -> bool:
    """Into a network without interfaces, and a user namespace without the rights of this one."""
    return bool(_LIBC.unshare(_CLONE_NEWUSER | _CLONE_NEWNET | _CLONE_NEWIPC) == 0)


def hide_files(readable: list[str], writable: str) -> bool:
    """From now on only `readable` and what is below can be read, and only `writable` changed (Landlock)."""
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
    """From now on the system calls in `_REFUSED` fail with EPERM (seccomp), on machines whose numbers are known."""
    if platform.machine() not in _REFUSED:
        return False
    audit, numbers = _REFUSED[platform.machine()]
    refused = [int(number) for number in numbers.split()]
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    kill, fail, allow = 0x80000000, 0x00050000 | 1, 0x7FFF0000
    steps = [(load, 0, 0, 4), (equal, 1, 0, audit), (give, 0, 0, kill), (load, 0, 0, 0)]
    steps += [(at_least, 0, 1, 0x40000000), (give, 0, 0, kill)]  # the x32 numbers of the same calls
    for number in refused:
        steps += [(equal, 0, 1, number), (give, 0, 0, fail)]
    steps.append((give, 0, 0, allow))
    program = _Program(len(steps), (_Step * len(steps))(*(_Step(*step) for step in steps)))
    _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return bool(_LIBC.prctl(_PR_SET_SECCOMP, 2, ctypes.byref(program), 0, 0) == 0)
