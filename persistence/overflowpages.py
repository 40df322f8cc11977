"""Verifies the first overflow page of a large value before LMDB frees the value's pages.

LMDB frees the pages that the header of the first page names: its number and the number of pages. If this header is
damaged, LMDB frees pages of other values, which a later transaction overwrites. See ``lmdbpages`` for the format.

Rule 1: a transaction calls check() before it overwrites or deletes a value, and check_all() before it empties a
database.
Rule 2: a damaged header is written again if the pages are certain to be the value's own: a node names its first ID, any
other value has a valid crc. The number of pages is that of the value's length. If an earlier transaction left the value
more pages, those remain unused, which is safe (see ``lmdbpages``).
Decision: a value's page follows from the address of the value in the map, because py-lmdb returns no page numbers. The
header is read through the map, too: LMDB reads it there next. The usual case is written in C (``_overflow.c``): 0.2
microseconds for a value instead of 2. Values of this transaction are outside of the map, or have new headers.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final
from zlib import crc32

import lmdb

from persistence.layout import CRC, NODE_KEY
from persistence.lmdbpages import HEAD, OVERFLOW, DamageError
from resp.errors import REMEDY, CorruptError
from storage.nodes.node import HEADER, MAGIC

LARGE: Final = 1500  # bytes; a shorter value is always in the page of its key


class _Buffer(ctypes.Structure):
    """Py_buffer of CPython."""

    _fields_ = (
        ("buf", ctypes.c_void_p), ("obj", ctypes.c_void_p), ("len", ctypes.c_ssize_t), ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int), ("ndim", ctypes.c_int), ("format", ctypes.c_void_p), ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p), ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p),
    )  # fmt: skip


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, ctypes.POINTER(_Buffer), ctypes.c_int]
_release = ctypes.pythonapi.PyBuffer_Release
_release.argtypes = [ctypes.POINTER(_Buffer)]
_release.restype = None


def _address(value: bytes | memoryview) -> int:
    buffer = _Buffer()
    _get_buffer(value, ctypes.byref(buffer), 0)
    address: int = buffer.buf
    _release(ctypes.byref(buffer))
    return address


def sound_in_python(value: bytes | memoryview, base: int, size: int, page_size: int) -> bool:
    """Return whether LMDB frees the value's own pages. ``base``, ``size``: the address and the size of the map."""
    address = _address(value)
    at = address - base - HEAD.size
    if not 0 < at < size or at % page_size:  # of this transaction, or in the page of its key
        return True
    number, _, flags, low, high = HEAD.unpack(ctypes.string_at(address - HEAD.size, HEAD.size))
    return (number, flags, low | high << 16) == (at // page_size, OVERFLOW, pages_of(len(value), page_size))


sound: Callable[[bytes | memoryview, int, int, int], bool] = sound_in_python
try:
    from persistence._overflow import sound as sound_in_c

    sound = sound_in_c
except ImportError:  # nothing is compiled here
    pass


class OverflowPages:
    """The overflow pages of the values that a transaction overwrites or deletes. Close it before the transaction."""

    def __init__(self, path: Path, txn: lmdb.Transaction, some: lmdb._Database) -> None:
        """``txn``: has ``buffers`` and has written nothing. ``some``: a database that has entries if any has.

        Raises OSError, CorruptError.
        """
        self._path = path
        self._page_size: int = txn.stat(some)["psize"]
        self._base = 0  # address of the map
        self._bytes = 0  # of the file; 0 if it has no entries
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            cursor = txn.cursor(db=some)
            if cursor.first():
                address = _address(cursor.key()) // self._page_size * self._page_size
                head = ctypes.string_at(address, HEAD.size)
                at = HEAD.unpack(head)[0] * self._page_size
                self._base, self._bytes = address - at, os.fstat(self._fd).st_size
                if not 0 < at < self._bytes or os.pread(self._fd, HEAD.size, at) != head:
                    raise CorruptError(f"{path}: a page of its metadata is damaged: {REMEDY}")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> OverflowPages:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check(self, key: bytes, value: bytes | memoryview, is_node: bool) -> None:
        """Verify the header of a value of at least LARGE bytes. Write it again if it is damaged (Rule 2).

        Raises CorruptError, OSError.
        """
        if sound(value, self._base, self._bytes, self._page_size):
            return
        size = len(value)
        page = (_address(value) - self._base) // self._page_size

        def owned(start: bytes) -> bool:
            if is_node:
                return names_id(start, int.from_bytes(NODE_KEY.unpack(key)[2], "big"))
            return bool(CRC.unpack_from(start)[0] == crc32(memoryview(start)[CRC.size :], crc32(key)))

        try:
            own(self._fd, page, size, self._page_size, HEADER.size if is_node else size, owned)
        except DamageError as error:
            raise CorruptError(
                f"{self._path}: page {page} of the entry {key!r} is damaged: {error}: {REMEDY}"
            ) from error

    def check_all(self, txn: lmdb.Transaction, db: lmdb._Database, are_nodes: bool) -> None:
        """Verify the headers of all large values of a database. Raises CorruptError, OSError, lmdb.Error."""
        if txn.stat(db)["overflow_pages"]:
            for key, value in txn.cursor(db=db):
                if len(value) >= LARGE:
                    self.check(bytes(key), value, are_nodes)


def pages_of(size: int, page_size: int) -> int:
    """Return the number of overflow pages of a value of ``size`` bytes."""
    return (HEAD.size + size - 1) // page_size + 1


def names_id(start: bytes, first_id: int) -> bool:
    """Return whether a blob that begins with ``start`` is that of a node with this first ID."""
    magic, *_, ms, seq = HEADER.unpack_from(start)
    return bool(magic == MAGIC and ms << 64 | seq == first_id)


def own(fd: int, page: int, size: int, page_size: int, begin: int, owned: Callable[[bytes], bool]) -> None:
    """Make sure that LMDB frees the value's own pages: write their header again if it is damaged.

    ``page``: the first one. ``size``: of the value. ``owned``: called with the first ``begin`` bytes of the value;
    returns whether the pages are the value's own. They are also its own if the disk cannot read them at all.
    Raises DamageError if they are not, OSError.
    """
    at, pages = page * page_size, pages_of(size, page_size)
    head = HEAD.pack(page, 0, OVERFLOW, pages & 0xFFFF, pages >> 16)
    try:
        raw = os.pread(fd, HEAD.size + begin, at)
    except OSError:
        os.pwrite(fd, head.ljust(page_size, b"\0"), at)
        return
    if len(raw) < HEAD.size + begin:
        raise DamageError("its pages are beyond the end of the file")
    if not owned(raw[HEAD.size :]):
        raise DamageError("the store may refer to the pages of another node")
    if raw[: HEAD.size] != head:
        os.pwrite(fd, head, at)
