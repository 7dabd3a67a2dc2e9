"""Finds files that all processes of a server use: then its worlds share state, although each has a process of its own.

No tool is called for this: one that writes would write for real. What is looked at is what the server was given, and
what changes on disk while the policy's own calls run.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..access.redaction import redacted
from ..sources.environment import WORLD_DIR, WORLD_DIR_PREFIX
from ..sources.specs import StdioSpec
from .stdio import group_members

logger = logging.getLogger(__name__)

_MOST_LOOKS = 20
"""How many calls are looked at: a server that writes to a file does so from the first ones on."""
_MOST_ENTRIES = 2000
"""A folder with more files is left alone: looking at them would hold up all rollouts."""
_DATABASE = re.compile(r"(?:sqlite|duckdb|file)[\w+]*:/{2,3}(?P<path>[^?#]+)", re.IGNORECASE)
_CODE = frozenset({".py", ".js", ".mjs", ".cjs", ".ts", ".jar", ".sh", ".rb", ".exe", ".whl"})
_SETTINGS = frozenset({".toml", ".yaml", ".yml", ".ini", ".cfg", ".conf", ".env", ".pem", ".crt", ".key"})
_NO_STATE = frozenset({".log", ".lock", ".pid", ".pyc"})
_PACKAGE = ("pyproject.toml", "package.json", "setup.py", "go.mod", "Cargo.toml")
_BEFORE_A_PROGRAM = frozenset({"", "--directory", "--project", "--prefix", "-C", "--from", "run", "--with-editable"})
_NOT_STATE = frozenset(
    {"PATH", "HOME", "TMPDIR", "TEMP", "TMP", "PYTHONPATH", "PYTHONHOME", "NODE_PATH", "VIRTUAL_ENV"}
    | {"LD_LIBRARY_PATH", "SHELL", "PWD"}
)
_FIX = (
    f"If it keeps state there, rollouts read what others wrote. Give each world a folder of its own: {WORLD_DIR} in "
    "command, args, env or cwd is a fresh one for each process"
)

Seen = dict[Path, tuple[int, int]]
"""Files with the time of their last change, in nanoseconds, and their size."""
_COARSE_NS = 50_000_000
"""By so much the time of a change may be early: file systems take it from a clock that ticks a few times a second."""


@dataclass(frozen=True)
class Look:
    """What there was before a call."""

    folders: set[Path]
    files: Seen
    at_ns: int

    def is_changed(self, path: Path, state: tuple[int, int]) -> bool:
        """Whether a file is new or another one. A process that the call started brings folders that were not looked at:
        there, whether it was changed since."""
        if path.parent in self.folders:
            return self.files.get(path) != state
        return state[0] >= self.at_ns - _COARSE_NS


class SharedFiles:
    """What was found out of one server that has a process for each world. Each path is told once, as a warning."""

    def __init__(self, spec: StdioSpec) -> None:
        self._spec = spec
        self._looks = 0
        self._holders: dict[tuple[int, int] | None, int] = {}
        """By device and inode of a file that a process holds open for writing: which process."""
        self.found: list[str] = []
        """What was told, each as a clause that goes on after "all worlds may share"."""
        self.may_be_written = False
        """Whether a file outside its world changed while it worked; something else may have written it."""
        self.is_held = False
        """Whether two of its processes had one file open for writing: then it is known that worlds share it."""
        self._own = _own_files(spec)
        if not spec.has_world_dir:
            for told in _named(spec):
                self._tell(told)

    def before(self, process: int | None) -> Look | None:
        """The files that a call in `process` may change; None where no more calls are looked at."""
        if process is None or self._looks >= _MOST_LOOKS:
            return None
        self._looks += 1
        members = group_members(process)
        self._look_at_open_files(process, members)
        folders, now = self._folders(members), time.time_ns()
        return Look(folders, _files(folders), now)

    def after(self, process: int, before: Look, tool: str) -> None:
        """`before`: the files as they were before a call of `tool`, which has ended."""
        ours = self._ours()
        for path, state in _files(self._folders(group_members(process))).items():
            if before.is_changed(path, state) and _identity(path) not in ours:
                self.may_be_written = True
                self._tell(f"{path}, which changed while {tool!r} ran")

    def _ours(self) -> set[tuple[int, int] | None]:
        return {None, *(_identity(path) for path in (*_open_files("self"), *self._own))}

    def _look_at_open_files(self, process: int, members: Iterable[int]) -> None:
        ours = self._ours()
        for member in members:
            for path in _open_files(str(member)):
                identity = _identity(path)
                if identity not in ours and self._holders.setdefault(identity, process) != process:
                    self.is_held = self.may_be_written = True
                    self._tell(f"{path}, which two of its processes opened for writing")

    def _folders(self, members: Iterable[int]) -> set[Path]:
        """Where a server keeps files without being told to: its working folder, and the folder of its program."""
        words = [(Path(self._spec.cwd or os.getcwd()), [self._spec.command, *self._spec.args])]
        for member in members:
            try:
                here = Path(os.readlink(f"/proc/{member}/cwd"))
                words.append((here, Path(f"/proc/{member}/cmdline").read_text(errors="replace").split("\0")))
            except OSError:
                continue
        found = {here for here, _ in words}
        found |= {
            Path(os.path.realpath(here / one)).parent
            for here, line in words
            for one in line
            if "/" in one and os.path.isfile(here / one)
        }
        return {folder for folder in found if os.access(folder, os.W_OK)}

    def _tell(self, what: str) -> None:
        path = what.partition(",")[0]
        if any(one.partition(",")[0] == path for one in self.found):
            return
        self.found.append(what)
        shown = redacted(what, self._spec.credentials)
        logger.warning("all worlds of %s may share %s. %s", self._spec.label, shown, _FIX)


def _named(spec: StdioSpec) -> Iterator[str]:
    """What the server was given that it may keep state in."""
    here = Path(spec.cwd or os.getcwd())
    for name, value in spec.env.items():
        # The value is not shown: those of `env` are not, in logs.
        if name not in _NOT_STATE and _is_state(value, here):
            yield f"the path that {name} in its env names"
    programs = [here / arg for arg in (spec.command, *spec.args) if Path(arg).suffix in _CODE]
    for before, arg in zip(("", *spec.args), spec.args, strict=False):
        if (
            before not in _BEFORE_A_PROGRAM
            and here / arg not in _own_files(spec)
            and _is_state(arg.partition("=")[2] or arg, here)
        ):
            yield f"{arg}, which stands in its args"
    is_package = any((here / name).exists() for name in _PACKAGE) or any(here in one.parents for one in programs)
    if spec.cwd is not None and not is_package and os.access(here, os.W_OK):
        yield f"{here}, which is its cwd"


def _own_files(spec: StdioSpec) -> frozenset[Path]:
    """The files of toolbake's own commands, such as a cassette: several processes may write to one, line by line."""
    words = (Path(spec.command).name, *spec.args)
    is_ours = words[0] == "toolbake" or words[1:3] == ("-m", "toolbake")
    if not is_ours or not {"record", "replay", "serve-tools"} & {*words}:
        return frozenset()
    return frozenset(Path(spec.cwd or os.getcwd()) / word for word in spec.args)


def _is_state(text: str, here: Path) -> bool:
    """Whether a text names a file or folder that the server may write to, and that is not its program."""
    database = _DATABASE.match(text)
    if ":" in text and database is None:
        return False
    path = here / os.path.expanduser(database["path"] if database else text)
    if not text or path.suffix in _CODE | _SETTINGS | _NO_STATE:
        return False
    try:
        if path.is_dir():
            return os.access(path, os.W_OK)
        if path.exists():
            return path.is_file() and os.access(path, os.W_OK) and not os.access(path, os.X_OK)
        # A file that the server makes when it first writes.
        is_path = database is not None or ("/" in text and path.suffix != "")
        return is_path and path.parent.is_dir() and os.access(path.parent, os.W_OK)
    except (OSError, ValueError):
        return False


def _files(folders: set[Path]) -> Seen:
    """The files that stand in the folders themselves; none of the folders of worlds."""
    found: Seen = {}
    for folder in folders:
        if any(part.startswith(WORLD_DIR_PREFIX) for part in folder.parts):
            continue
        try:
            with os.scandir(folder) as entries:
                for count, entry in enumerate(entries):
                    if count >= _MOST_ENTRIES:
                        break
                    if entry.is_file() and os.path.splitext(entry.name)[1] not in _NO_STATE:
                        status = entry.stat()
                        found[Path(entry.path)] = (status.st_mtime_ns, status.st_size)
        except OSError:
            continue
    return found


def _open_files(process: str) -> Iterator[Path]:
    """The files that a process holds open for writing, where the system tells (proc(5))."""
    try:
        numbers = os.listdir(f"/proc/{process}/fd")
    except OSError:
        return
    for number in numbers:
        try:
            path = Path(os.readlink(f"/proc/{process}/fd/{number}"))
            flags = re.search(r"flags:\s*([0-7]+)", Path(f"/proc/{process}/fdinfo/{number}").read_text())
        except OSError:
            continue
        writes = flags is not None and int(flags[1], 8) & os.O_ACCMODE != os.O_RDONLY
        is_world = any(part.startswith(WORLD_DIR_PREFIX) for part in path.parts)
        if writes and not is_world and path.suffix not in _NO_STATE:
            yield path


def _identity(path: Path) -> tuple[int, int] | None:
    """Of a regular file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None
