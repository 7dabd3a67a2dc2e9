"""What runs in the child, after `kernel.py`: read the job, give everything up, run the code, say how it ended.

Starts with the texts of both files, so it imports nothing of the project. The job is on the descriptor named in
`argv[1]`, the outcome goes to that in `argv[2]`. What the kernel agreed to goes to that in `argv[3]`, which is closed
before the code runs: code may spoil its outcome, and cannot make it look as if it had never begun. The job holds
inputs only: what is expected never comes here.
"""

from __future__ import annotations

import builtins
import json
import os
import sys
import types
from collections.abc import Callable
from importlib.machinery import PathFinder
from typing import Any

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
    """Refuse in the interpreter, too: readable errors, and the only guard of files where the kernel has none.

    Python says of audit hooks that they are no sandbox: this stops accidents and simple tries.
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
    """Give up everything that can be. What the kernel agreed to, by name."""
    job_readable, writable = job["readable"], os.path.realpath(os.getcwd())
    # Lists the folders of modules, which can be read afterwards and no longer be listed: packages lie there, too.
    PathFinder.find_spec("solution")
    die_with_parent()  # type: ignore[name-defined]  # noqa: F821 - of kernel.py, whose text stands before this one
    held = {"network": leave_network()}  # type: ignore[name-defined]  # noqa: F821
    limit(job["limits"])  # type: ignore[name-defined]  # noqa: F821
    held["files"] = hide_files(job_readable, writable)  # type: ignore[name-defined]  # noqa: F821
    held["calls"] = refuse_calls()  # type: ignore[name-defined]  # noqa: F821
    if job["audit"]:
        watch(tuple(job_readable), writable)
    del globals()["_LIBC"]  # the code sees what is global here
    return held


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Run the code; where the job names a function, call it. What came of it, as plain JSON."""
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    try:
        code = compile(job["code"], "solution.py", "exec")
        if job["call"] is None:
            module.__name__ = "__main__"
            module.__dict__["__name__"] = "__main__"
            sys.modules["__main__"] = module
        exec(code, module.__dict__)
        if job["call"] is None:
            return {"ended": True}
        function = module.__dict__[job["call"]]
        returned = function(*job["args"], **job["kwargs"])
        return {"returned": json.loads(json.dumps(returned, allow_nan=False))}
    except SystemExit as stop:
        return {"ended": stop.code in (None, 0)} if job["call"] is None else _raised(stop)
    except BaseException as error:
        return _raised(error)


def _raised(error: BaseException) -> dict[str, Any]:
    """The exception's own name, and that of the first of its classes that is built in, by identity."""
    classes = type(error).__mro__
    built_in = next(cls.__name__ for cls in classes if vars(builtins).get(cls.__name__) is cls)
    return {"raised": classes[0].__name__, "built_in": built_in, "message": str(error)[:300]}


def main() -> None:
    with open(int(sys.argv[1]), encoding="utf-8") as file:
        job = json.load(file)
    with os.fdopen(int(sys.argv[3]), "w", encoding="utf-8") as begun:
        begun.write(json.dumps({"held": confine(job)}))
    outcome = os.fdopen(int(sys.argv[2]), "w", encoding="utf-8")
    outcome.write(json.dumps(run(job)) + "\n")
    outcome.flush()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
