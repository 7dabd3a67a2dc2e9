"""Database files in memory whose copies share the pages that they have in common. SQLite opens them through its own
interface for other kinds of file (https://sqlite.org/vfs.html).

The interface is C, and reached in the very library that the standard `sqlite3` module uses: so a world is an ordinary
`sqlite3.Connection`, whatever its pages are kept in. A Python whose SQLite shows no symbols cannot do that.

Locks do nothing: every connection is the only one of its pages. Journals and temporary tables stay in memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import logging
import sqlite3
import sys
from collections.abc import Callable, Iterator
from functools import cache, wraps
from threading import Lock
from typing import Any, Self

HEADER = b"SQLite format 3\x00"


def page_size(image: bytes) -> int:
    """Bytes of one page, from the header of a SQLite database image; see https://sqlite.org/fileformat.html."""
    size = int.from_bytes(image[16:18], "big")
    return 65536 if size == 1 else size


class Pages:
    """An image that any number of copies share, and the pages in which this copy differs from it.

    Pages are never changed in place, so a copy shares them too: it costs what differs from the image, in references.
    """

    __slots__ = ("_changed", "_count", "_from_image", "_image", "page_size")

    def __init__(self, image: bytes) -> None:
        self.page_size = page_size(image)
        self._image = image
        self._changed: dict[int, bytes] = {}
        self._count = len(image) // self.page_size
        self._from_image = self._count  # a page from here on is not the image's any more, even if it was

    @property
    def size(self) -> int:
        """Bytes of the whole database."""
        return self._count * self.page_size

    @property
    def changed_bytes(self) -> int:
        """Bytes of the pages that are not the image's: what this copy may hold for itself."""
        return len(self._changed) * self.page_size

    def copy(self) -> Self:
        twin = type(self).__new__(type(self))
        twin.page_size, twin._image, twin._changed = self.page_size, self._image, self._changed.copy()
        twin._count, twin._from_image = self._count, self._from_image
        return twin

    def read(self, offset: int, amount: int) -> bytes:
        """`amount` bytes of one page, or fewer at the end of the database; of several pages, where VACUUM has given the
        database larger ones since."""
        if amount > self.page_size:
            return b"".join(self.read(at, self.page_size) for at in range(offset, offset + amount, self.page_size))
        number, start = divmod(offset, self.page_size)
        page = self._changed.get(number)
        if page is not None:
            return page[start : start + amount] if amount < self.page_size else page
        if number < self._from_image:
            return self._image[offset : offset + amount]
        # A page between the old end and one that was written beyond it has not been written itself.
        return bytes(amount) if number < self._count else b""

    def write(self, offset: int, page: bytes) -> None:
        """One page, or several as in `read`. Raises `ValueError` for what is not a whole page in its place."""
        if len(page) > self.page_size:
            for at in range(0, len(page), self.page_size):
                self.write(offset + at, page[at : at + self.page_size])
            return
        number, start = divmod(offset, self.page_size)
        if start or len(page) != self.page_size:
            raise ValueError(f"{len(page)} bytes at {offset} are not a page of {self.page_size} bytes")
        if number < self._from_image and self._image[offset : offset + self.page_size] == page:
            self._changed.pop(number, None)  # taken back: it need not be held any longer
        else:
            self._changed[number] = page
        self._count = max(self._count, number + 1)

    def truncate(self, size: int) -> None:
        """Cut everything from `size` bytes on."""
        count = -(-size // self.page_size)
        if count < self._count:
            self._changed = {number: page for number, page in self._changed.items() if number < count}
            self._from_image = min(self._from_image, count)
        self._count = count

    def image(self) -> bytes:
        """The whole database as one piece."""
        if not self._changed and self._count * self.page_size == len(self._image) and self._from_image == self._count:
            return self._image
        size, whole = self.page_size, bytearray(self._count * self.page_size)
        kept = self._from_image * size
        whole[:kept] = self._image[:kept]
        for number, page in self._changed.items():
            whole[number * size : (number + 1) * size] = page
        return bytes(whole)


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


def _reported(method: Callable[..., int]) -> Callable[..., int]:
    """Nothing may be raised into C: SQLite gets the code of an error of the disk, and the log what it was."""

    @wraps(method)
    def guarded(*arguments: Any) -> int:
        try:
            return method(*arguments)
        except Exception:
            logger.exception("%s of the pages of a world failed", method.__name__)
            return _IOERR

    return guarded


class _Files:
    """What SQLite has open, by the address of its file record. The methods with an x have SQLite's names."""

    def __init__(self) -> None:
        self.waiting: dict[bytes, Pages] = {}
        self._open: dict[int, Pages] = {}
        self._io = _IoMethods(
            iVersion=1, **{name: kind(getattr(self, name, _nothing)) for name, kind in _METHODS.items()}
        )
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

    @_reported
    def xRead(self, file: int, into: int, amount: int, offset: int) -> int:
        found = self._open[file].read(offset, amount)
        ctypes.memmove(into, found, len(found))
        if len(found) == amount:
            return _OK
        ctypes.memset(into + len(found), 0, amount - len(found))
        return _SHORT_READ

    @_reported
    def xWrite(self, file: int, data: int, amount: int, offset: int) -> int:
        self._open[file].write(offset, ctypes.string_at(data, amount))
        return _OK

    @_reported
    def xTruncate(self, file: int, size: int) -> int:
        self._open[file].truncate(size)
        return _OK

    @_reported
    def xFileSize(self, file: int, out: Any) -> int:
        out[0] = self._open[file].size
        return _OK

    def xCheckReservedLock(self, _file: int, out: Any) -> int:
        out[0] = 0
        return _OK

    def xFileControl(self, _file: int, _operation: int, _argument: int) -> int:
        return _NOTFOUND

    def xSectorSize(self, _file: int) -> int:
        return _SECTOR_BYTES


def _nothing(*_: int) -> int:
    return _OK


def _no_such_file(_vfs: int, _name: bytes, _flags: int, out: Any) -> int:
    out[0] = 0  # there is no journal to play back
    return _OK


def _as_it_is(_vfs: int, name: bytes, room: int, out: int) -> int:
    if len(name) >= room:
        return _CANTOPEN
    ctypes.memmove(out, name + b"\x00", len(name) + 1)
    return _OK


class PageVfs:
    """The registered interface; SQLite keeps its address until the process ends, and so do we."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.files = _Files()
        self._numbers = itertools.count()
        find = library.sqlite3_vfs_find
        find.restype, find.argtypes = ctypes.POINTER(_Vfs), [ctypes.c_char_p]
        default = find(None)
        if not default:
            raise sqlite3.OperationalError("it has no default VFS")
        self._vfs = _Vfs()
        known = ctypes.sizeof(_Vfs) if default.contents.iVersion >= 2 else _Vfs.xCurrentTimeInt64.offset
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
        """A connection that reads and writes `pages`."""
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


def registered_vfs() -> PageVfs | None:
    """The registered interface; None, with a warning in the log, where this Python's SQLite cannot be given one."""
    with _REGISTERING:
        return _registered()


@cache
def _registered() -> PageVfs | None:
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        own = database.execute("SELECT sqlite_source_id()").fetchone()[0]
        database.execute("CREATE TABLE t (x)")
        image = database.serialize()
    why_not = "the SQLite of this Python shows no symbols"
    for library in _libraries():
        source_id = getattr(library, "sqlite3_sourceid", None)
        if source_id is None:
            continue
        source_id.restype = ctypes.c_char_p
        if source_id().decode() != own:
            continue
        try:
            vfs = PageVfs(library)
            vfs.connect(Pages(image)).close()
            return vfs
        except sqlite3.OperationalError as error:  # the same version of SQLite, but another copy of it
            why_not = f"the SQLite of this Python does not accept another kind of file: {error}"
    logger.warning("forks of large SQLite worlds copy all of their pages: %s", why_not)
    return None


def _libraries() -> Iterator[ctypes.CDLL]:
    """Where SQLite may be: in the standard library's own module, in Python itself, in a library of its own."""
    try:
        import _sqlite3
    except ImportError:
        return
    for place in (getattr(_sqlite3, "__file__", None), "sqlite3.dll" if sys.platform == "win32" else None):
        with contextlib.suppress(OSError, TypeError):
            yield ctypes.CDLL(place)
