"""SQLite connections over `Pages`, through SQLite's own interface for other kinds of file (https://sqlite.org/vfs.html).

The interface is C, and reached in the very library that the standard `sqlite3` module uses: so a world is an ordinary
`sqlite3.Connection`, whatever its pages are kept in. A Python whose SQLite shows no symbols cannot do that;
`open_pages` then raises `Unavailable`.

Locks do nothing: every connection is the only one of its pages. Journals and temporary tables stay in memory.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
import sqlite3
import sys
from collections.abc import Callable
from functools import cache
from threading import Lock
from typing import Any

from .pages import Pages

logger = logging.getLogger(__name__)

_NAME = b"toolbake-pages"
_REGISTERING = Lock()
_OK, _IOERR, _NOTFOUND, _CANTOPEN, _SHORT_READ = 0, 10, 12, 14, 522
_MAIN_DB = 0x100
_SECTOR_BYTES = 512
_LONGEST_NAME = 128
_SETTINGS = (
    "PRAGMA locking_mode = EXCLUSIVE",
    "PRAGMA journal_mode = MEMORY",
    "PRAGMA synchronous = OFF",
    "PRAGMA temp_store = MEMORY",
    "PRAGMA cache_size = -512",  # kB of pages that a connection has read; the rest stays where all share it
)

_INT, _LONG, _ANY = ctypes.c_int, ctypes.c_longlong, ctypes.c_void_p
_INT_OUT, _LONG_OUT = ctypes.POINTER(_INT), ctypes.POINTER(_LONG)

_METHODS: dict[str, Any] = {
    "xClose": ctypes.CFUNCTYPE(_INT, _ANY),
    "xRead": ctypes.CFUNCTYPE(_INT, _ANY, _ANY, _INT, _LONG),
    "xWrite": ctypes.CFUNCTYPE(_INT, _ANY, _ANY, _INT, _LONG),
    "xTruncate": ctypes.CFUNCTYPE(_INT, _ANY, _LONG),
    "xSync": ctypes.CFUNCTYPE(_INT, _ANY, _INT),
    "xFileSize": ctypes.CFUNCTYPE(_INT, _ANY, _LONG_OUT),
    "xLock": ctypes.CFUNCTYPE(_INT, _ANY, _INT),
    "xUnlock": ctypes.CFUNCTYPE(_INT, _ANY, _INT),
    "xCheckReservedLock": ctypes.CFUNCTYPE(_INT, _ANY, _INT_OUT),
    "xFileControl": ctypes.CFUNCTYPE(_INT, _ANY, _INT, _ANY),
    "xSectorSize": ctypes.CFUNCTYPE(_INT, _ANY),
    "xDeviceCharacteristics": ctypes.CFUNCTYPE(_INT, _ANY),
}
_XOPEN = ctypes.CFUNCTYPE(_INT, _ANY, ctypes.c_char_p, _ANY, _INT, _INT_OUT)
_XDELETE = ctypes.CFUNCTYPE(_INT, _ANY, ctypes.c_char_p, _INT)
_XACCESS = ctypes.CFUNCTYPE(_INT, _ANY, ctypes.c_char_p, _INT, _INT_OUT)
_XFULLPATHNAME = ctypes.CFUNCTYPE(_INT, _ANY, ctypes.c_char_p, _INT, _ANY)


class Unavailable(Exception):
    """This Python's SQLite cannot be given another kind of file."""


class _IoMethods(ctypes.Structure):
    """`sqlite3_io_methods`, version 1."""

    _fields_ = (("iVersion", _INT), *_METHODS.items())


class _Vfs(ctypes.Structure):
    """`sqlite3_vfs`, version 2. What is not ours is the default's, as it is."""

    _fields_ = (
        ("iVersion", _INT),
        ("szOsFile", _INT),
        ("mxPathname", _INT),
        ("pNext", _ANY),
        ("zName", ctypes.c_char_p),
        ("pAppData", _ANY),
        ("xOpen", _XOPEN),
        ("xDelete", _XDELETE),
        ("xAccess", _XACCESS),
        ("xFullPathname", _XFULLPATHNAME),
        *((name, _ANY) for name in ("xDlOpen", "xDlError", "xDlSym", "xDlClose", "xRandomness", "xSleep")),
        *((name, _ANY) for name in ("xCurrentTime", "xGetLastError", "xCurrentTimeInt64")),
    )


class _Files:
    """What SQLite has open, by the address of its file record. The methods with an x have SQLite's names."""

    def __init__(self) -> None:
        self.waiting: dict[bytes, Pages] = {}
        self._open: dict[int, Pages] = {}
        self._io = _IoMethods(iVersion=1, **{name: kind(getattr(self, name)) for name, kind in _METHODS.items()})
        self._address = ctypes.addressof(self._io)

    def open(self, _vfs: int, name: bytes | None, file: int, flags: int, out_flags: Any) -> int:
        record = ctypes.c_void_p.from_address(file)
        record.value = None  # without methods SQLite does not close what it could not open
        pages = self.waiting.pop(name, None) if name is not None and flags & _MAIN_DB else None
        if pages is None:
            return _CANTOPEN
        self._open[file] = pages
        record.value = self._address
        if out_flags:
            out_flags[0] = flags
        return _OK

    def xClose(self, file: int) -> int:
        self._open.pop(file, None)
        return _OK

    def xRead(self, file: int, into: int, amount: int, offset: int) -> int:
        try:
            found = self._open[file].read(offset, amount)
            ctypes.memmove(into, found, len(found))
            if len(found) == amount:
                return _OK
            ctypes.memset(into + len(found), 0, amount - len(found))
            return _SHORT_READ
        except Exception:
            return _broke("read")

    def xWrite(self, file: int, data: int, amount: int, offset: int) -> int:
        try:
            self._open[file].write(offset, ctypes.string_at(data, amount))
            return _OK
        except Exception:
            return _broke("write")

    def xTruncate(self, file: int, size: int) -> int:
        try:
            self._open[file].truncate(size)
            return _OK
        except Exception:
            return _broke("truncate")

    def xFileSize(self, file: int, out: Any) -> int:
        try:
            out[0] = self._open[file].size
            return _OK
        except Exception:
            return _broke("measure")

    def xSync(self, _file: int, _flags: int) -> int:
        return _OK

    def xLock(self, _file: int, _level: int) -> int:
        return _OK

    def xUnlock(self, _file: int, _level: int) -> int:
        return _OK

    def xCheckReservedLock(self, _file: int, out: Any) -> int:
        out[0] = 0
        return _OK

    def xFileControl(self, _file: int, _operation: int, _argument: int) -> int:
        return _NOTFOUND

    def xSectorSize(self, _file: int) -> int:
        return _SECTOR_BYTES

    def xDeviceCharacteristics(self, _file: int) -> int:
        return 0


def _broke(what: str) -> int:
    # Nothing may be raised into C. SQLite reports the code as an error of the disk.
    logger.exception("could not %s the pages of a world", what)
    return _IOERR


def _no_such_file(_vfs: int, _name: bytes, _flags: int, out: Any) -> int:
    out[0] = 0  # there is no journal to play back
    return _OK


def _as_it_is(_vfs: int, name: bytes, room: int, out: int) -> int:
    if len(name) >= room:
        return _CANTOPEN
    ctypes.memmove(out, name + b"\x00", len(name) + 1)
    return _OK


class _PageVfs:
    """The registered interface; SQLite keeps its address until the process ends, and so do we."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.files = _Files()
        self._numbers = itertools.count()
        find = library.sqlite3_vfs_find
        find.restype, find.argtypes = ctypes.POINTER(_Vfs), [ctypes.c_char_p]
        default = find(None)
        if not default:
            raise Unavailable("SQLite has no default VFS")
        self._vfs = _Vfs()
        known = _known_bytes(default.contents.iVersion)
        ctypes.memmove(ctypes.byref(self._vfs), default, known)
        self._vfs.iVersion = min(default.contents.iVersion, 2)
        self._vfs.szOsFile = ctypes.sizeof(_ANY)
        self._vfs.mxPathname = _LONGEST_NAME
        self._vfs.zName = _NAME
        self._vfs.xOpen = _XOPEN(self.files.open)
        self._vfs.xDelete = _XDELETE(lambda _vfs, _name, _sync: _OK)
        self._vfs.xAccess = _XACCESS(_no_such_file)
        self._vfs.xFullPathname = _XFULLPATHNAME(_as_it_is)
        library.sqlite3_vfs_register.argtypes = [_ANY, _INT]
        library.sqlite3_vfs_register(ctypes.addressof(self._vfs), 0)
        # Connections may be closed while the interpreter ends, when what only globals hold is gone already.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))

    def connect(self, pages: Pages) -> sqlite3.Connection:
        name = b"/%d" % next(self._numbers)
        self.files.waiting[name] = pages
        try:
            # A world may be opened in one thread and used in another; SQLite is built to serialize access.
            database = sqlite3.connect(f"file:{name.decode()}?vfs={_NAME.decode()}", uri=True, check_same_thread=False)
        finally:
            self.files.waiting.pop(name, None)
        for setting in _SETTINGS:
            database.execute(setting)
        return database


def _known_bytes(version: int) -> int:
    """Bytes of a `sqlite3_vfs` of that version which `_Vfs` knows."""
    return ctypes.sizeof(_Vfs) if version >= 2 else _Vfs.xCurrentTimeInt64.offset


@cache
def why_not() -> str:
    """Why this Python cannot open `Pages`; empty where it can. Logged when it is first asked."""
    vfs = _registered()
    if not isinstance(vfs, str):
        return ""
    logger.warning("forks of large SQLite worlds copy all of their pages: %s", vfs)
    return vfs


def open_pages(pages: Pages) -> sqlite3.Connection:
    """A connection that reads and writes `pages`. Raises `Unavailable`."""
    vfs = _registered()
    if isinstance(vfs, str):
        raise Unavailable(vfs)
    return vfs.connect(pages)


def _registered() -> _PageVfs | str:
    """The interface, or why there is none."""
    with _REGISTERING:
        return _register_once()


@cache
def _register_once() -> _PageVfs | str:
    own = _own_source_id()
    for library in _libraries():
        if isinstance(library, ctypes.CDLL) and _source_id(library) == own:
            vfs = _PageVfs(library)
            try:
                vfs.connect(Pages(_empty_image())).close()
            except sqlite3.OperationalError as error:  # the same version of SQLite, but another copy of it
                return f"the SQLite of this Python does not take another kind of file: {error}"
            return vfs
    return "the SQLite of this Python shows no symbols"


def _libraries() -> list[ctypes.CDLL]:
    import _sqlite3

    found = []
    for place in (getattr(_sqlite3, "__file__", None), "sqlite3.dll" if sys.platform == "win32" else None):
        try:
            found.append(ctypes.CDLL(place))
        except (OSError, TypeError):
            continue
    return found


def _source_id(library: ctypes.CDLL) -> str | None:
    try:
        read: Callable[[], bytes] = library.sqlite3_sourceid
        library.sqlite3_sourceid.restype = ctypes.c_char_p
        return read().decode()
    except AttributeError:
        return None


def _own_source_id() -> str:
    database = sqlite3.connect(":memory:")
    try:
        return str(database.execute("SELECT sqlite_source_id()").fetchone()[0])
    finally:
        database.close()


def _empty_image() -> bytes:
    database = sqlite3.connect(":memory:")
    try:
        database.execute("CREATE TABLE t (x)")
        return database.serialize()
    finally:
        database.close()
