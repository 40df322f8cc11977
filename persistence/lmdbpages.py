"""Verifies the pages of an LMDB file before LMDB opens it. LMDB maps the file and trusts its contents: a wrong length
or offset causes SIGBUS, SIGSEGV, or silently wrong data. A damaged separator or name can hide data. Every page of the
trees is therefore verified first, with plain reads. This takes about a microsecond per node at the start.

The format, in the machine's byte order, for 64 bits (liblmdb 0.9, data version 1):

    a page     number u64 | pad u16 | flags u16 (1 branch, 2 leaf, 4 overflow, 8 meta) | lower u16 | upper u16
               | positions of nodes u16 ...
    a meta     page header | magic u32 0xBEEFC0DE | version u32 | address u64 | map size u64
    (0 and 1)  | 2 databases (free pages, main) | last page u64 | transaction u64       the higher transaction counts
    a database pad u32 (of the first: page size) | flags u16 | depth u16 | branch, leaf, overflow pages u64
               | entries u64 | root u64
               of an overflow page, lower | upper << 16 is the number of pages that belong to the value
    a node     at its position in the page: low u16 | high u16 | flags u16 | key length u16 | key | data
               branch: the child's page is low | high << 16 | flags << 32
               leaf: length of data is low | high << 16; flags 1: data is the first overflow page; 2: data is a database

A file is valid if every tree has the number of pages and entries, and the depth, that its database states; if each page
has its own number and is in the file; and if no page is used twice, or both used and free. Keys ascend within a page
and from page to page: the keys of a page are between the two enclosing keys of its parent, since LMDB would otherwise
search them on another page. (The first key of a branch page is ignored; LMDB may leave any bytes there.) Nodes fill the
space between "upper" and the end of the page without gaps, at even positions. The caller knows the names of all
databases. Values are not read here; their readers check the crc.

A file can be shorter than "last page" states, because pages that are allocated and freed in one transaction are never
written. It must contain every page in use. All pages up to the last one are in use or free, so that "last page" cannot
be far off. Cost: about a microsecond per entry, and one read per tree page.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from operator import lt
from pathlib import Path
from struct import Struct, unpack_from
from sys import byteorder
from typing import Any

HEAD = Struct("=QHHHH")
META = Struct("=IIQQ48s48sQQ")
DATABASE = Struct("=IHHQQQQQ")
NODE = Struct("=HHHH") if byteorder == "little" else Struct(">HHHH")
PAGE_NO = Struct("=Q")
MAGIC, DATA_VERSION = 0xBEEFC0DE, 1
BRANCH, LEAF, OVERFLOW = 1, 2, 4  # flags of a page
BIG, SUB = 1, 2  # flags of a node
FREE_FLAGS = 8  # flags of the database of free pages, whose keys are numbers
NO_ROOT = (1 << 64) - 1
MAX_DEPTH = 32  # the same limit as that of LMDB's own cursors
LOST_PAGES = 1 << 10  # maximum pages that are neither used nor free, although LMDB is not known to lose pages


class DamageError(Exception):
    """The file is damaged or not an LMDB file. The text does not contain the file's name."""


def verify(
    path: Path, keys_of: bytes = b"", key_size: int = 0, known: Collection[bytes] = (), newer: Collection[bytes] = ()
) -> bytes:
    """Verify every tree page of a file that is not being written. Raises DamageError, OSError.

    Returns the joined keys of the database ``keys_of`` in order, which must have ``key_size`` bytes each. A cursor of
    py-lmdb would also access the pages of the values. ``known``: the names of all databases that the file may have; ()
    for any. Those in ``newer`` may be missing.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return Walk(fd).run(keys_of, key_size, known, newer)
    finally:
        os.close(fd)


class Database:
    """The stated and the found numbers of a database, and lists for the contents of its leaves."""

    __slots__ = ("claimed", "depth", "found", "keys", "numbers", "root", "subs", "values")

    def __init__(self, raw: bytes, flags: int = 0) -> None:
        pad, its_flags, self.depth, *claimed, self.root = DATABASE.unpack(raw)
        if its_flags != flags or (pad and not flags):
            raise DamageError("a database of an unknown kind")
        self.numbers = flags == FREE_FLAGS  # its keys are ordered as numbers, not as bytes
        self.claimed: list[int] = claimed  # branch pages, leaf pages, overflow pages, entries
        self.found = [0, 0, 0, 0]
        # Lists for collected contents; None: they are not collected.
        self.keys: list[bytes] | None = None
        self.values: list[bytes] | None = None
        self.subs: list[tuple[bytes, Database]] | None = None


class Walk:
    """Reads and verifies the pages of a file. ``lmdbreads`` uses parts of it on a file that is in use."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._bytes = os.fstat(fd).st_size
        self._page_size = 4096  # bytes
        self._last = 0
        self._end = 0  # pages before this number are in the file
        self._used = bytearray()  # for each page: 1 if it is in use or free
        # number of pages that are free, or belong to a value that does not need them, and are not in _used
        self._unwritten = 0

    def run(self, keys_of: bytes, key_size: int, known: Collection[bytes], newer: Collection[bytes]) -> bytes:
        free, main = self._metas()
        self._used = bytearray(min(self._last, self._bytes // self._page_size) + 2)
        self._used[0] = self._used[1] = 1
        self._end = min(self._last + 1, self._bytes // self._page_size)
        subs = main.subs = []
        try:
            self._tree(main)
        except DamageError:
            if known and subs:  # a problem with a name is more specific than a wrong order
                _check_names([name for name, _ in subs], known, newer)
            raise
        if known:
            _check_names([name for name, _ in subs], known, newer)
        keys: list[bytes] = []
        for name, sub in subs:
            if name == keys_of:
                sub.keys = keys
            self._tree(sub)
        if not {key_size}.issuperset(map(len, keys)):
            raise DamageError(f"a key of the wrong size in {keys_of.decode()}")
        lists = free.values = []
        self._tree(free)
        for pages in lists:
            self._free(pages)
        if self._last + 1 - self._used.count(1) - self._unwritten > LOST_PAGES:
            raise DamageError(f"a meta page is damaged: its number of pages, {self._last + 1}, is impossible")
        return b"".join(keys)

    def _metas(self) -> tuple[Database, Database]:
        """Return the databases of free pages and of names, as of the last transaction. Raises DamageError."""
        return self._as_of(max(self._both_metas(), key=lambda meta: int(meta[7])))

    def _as_of(self, meta: tuple[Any, ...]) -> tuple[Database, Database]:
        """Return the two databases of a meta page, and read pages as of it. Raises DamageError."""
        self._last = meta[6]
        if self._last > 1 << 47:
            raise DamageError("the number of its last page is invalid")
        return Database(meta[4], FREE_FLAGS), Database(meta[5])

    def _both_metas(self) -> list[tuple[Any, ...]]:
        """Read both meta pages. Raises DamageError."""
        first = os.pread(self._fd, 4096, 0)
        if len(first) < HEAD.size + META.size:
            raise DamageError("truncated or empty")
        if int.from_bytes(first[16:20], byteorder) != MAGIC:
            raise DamageError("not an LMDB file, or its beginning is damaged")
        page = int.from_bytes(first[40:44], byteorder)
        if page not in (4096, 8192, 16384, 32768):
            raise DamageError("the first meta page is damaged")
        second = os.pread(self._fd, 4096, page)
        if len(second) < HEAD.size + META.size:
            raise DamageError("truncated")
        metas = []
        for number, raw in enumerate((first, second)):
            its_number, _, flags, _, _ = HEAD.unpack_from(raw)
            meta = META.unpack_from(raw, HEAD.size)
            its_page = int.from_bytes(meta[4][:4], byteorder)
            if meta[0] != MAGIC or its_number != number or flags != 8 or its_page != page:
                raise DamageError(f"meta page {number} is damaged")
            if meta[1] != DATA_VERSION:
                raise DamageError(f"LMDB data version {meta[1]}, which this liblmdb cannot read")
            metas.append(meta)
        even, odd = metas[0][7], metas[1][7]
        if even % 2 or (odd and not odd % 2) or abs(even - odd) > 1:  # transaction n is written to page n % 2
            raise DamageError("its meta pages do not match: one is damaged or outdated")
        self._page_size = page
        return metas

    def _claim(self, first: int, count: int = 1) -> None:
        """Mark pages as used. Raises DamageError if they are not in the file, or used already."""
        end = first + count
        if first < 2 or end > self._last + 1:
            raise DamageError(f"an invalid reference to page {first}")
        if end * self._page_size > self._bytes:
            missing = f"page {end - 1} of {self._page_size} bytes is missing"
            raise DamageError(f"truncated: {self._bytes} bytes, and {missing}")
        if any(self._used[first:end]):
            raise DamageError(f"page {first} is used twice")
        self._used[first:end] = b"\1" * count

    def _tree(self, database: Database) -> None:
        """Verify all pages of a database, and collect the requested contents."""
        if database.root == NO_ROOT:
            if any(database.claimed):
                raise DamageError("a database with entries but without a root")
            return
        if not 0 < database.depth <= MAX_DEPTH:
            raise DamageError("a database with an invalid depth")
        todo: list[tuple[int, int, bytes, bytes | None]] = [(database.root, 1, b"", None)]
        while todo:
            number, level, low, high = todo.pop()
            self._claim(number)
            if level == database.depth:
                self._in_order(number, self._leaf(database, number), database.numbers, low, high)
            else:
                todo += self._branch(database, number, level, low, high)
        # A value that became smaller in the transaction that wrote it keeps all of its overflow pages.
        found, claimed = database.found, database.claimed
        if found[:2] != claimed[:2] or found[3] != claimed[3] or found[2] > claimed[2]:
            raise DamageError(f"a database has {database.found} pages and entries instead of {database.claimed}")
        self._unwritten += claimed[2] - found[2]

    def _branch(
        self, database: Database, number: int, level: int, low: bytes, high: bytes | None
    ) -> list[tuple[int, int, bytes, bytes | None]]:
        """Verify a branch page. Return its children, last one first: number, level, and the bounds of their keys."""
        database.found[0] += 1
        page, positions, room = self._page(number, BRANCH)
        keys: list[bytes] = []
        pages: list[int] = []
        size = 0
        for position in positions:
            child_low, child_high, top, length = NODE.unpack_from(page, position)
            if position + NODE.size + length > self._page_size:
                raise DamageError(f"page {number} is damaged: a key exceeds it")
            pages.append(child_low | child_high << 16 | top << 32)
            keys.append(page[position + NODE.size : position + NODE.size + length])
            size += NODE.size + length + (length & 1)
        if size != room:
            raise DamageError(f"page {number} is damaged: its keys have wrong sizes")
        keys = self._in_order(number, keys[1:], database.numbers, low, high)
        return [*zip(pages, [level + 1] * len(pages), [low, *keys], [*keys, high], strict=True)][::-1]

    def _in_order(self, number: int, keys: list[bytes], numbers: bool, low: bytes, high: bytes | None) -> list[bytes]:
        """Check that keys ascend from ``low`` to before ``high``. Return them in a form that sorts as bytes."""
        if numbers and byteorder == "little":
            keys = [key[::-1] for key in keys]
        if keys and not (low <= keys[0] and (high is None or keys[-1] < high) and all(map(lt, keys, keys[1:]))):
            raise DamageError(f"page {number} is damaged: its keys are out of order")
        return keys

    def _page(self, number: int, kind: int) -> tuple[bytes, tuple[int, ...], int]:
        """Read a page of a tree. Also return the positions of its nodes and their size. Raises DamageError."""
        size = self._page_size
        page = os.pread(self._fd, size, number * size)
        its_number, _, flags, lower, upper = HEAD.unpack_from(page)
        count = (lower - HEAD.size) >> 1
        if its_number != number or flags != kind or lower & 1 or count < 1 or not lower <= upper <= size:
            raise DamageError(f"page {number} is damaged")
        positions = unpack_from(f"={count}H", page, HEAD.size)
        if min(positions) < upper or max(positions) > size - NODE.size:
            raise DamageError(f"page {number} is damaged: a node is outside of it")
        return page, positions, size - upper

    def _leaf(self, database: Database, number: int) -> list[bytes]:
        """Verify the nodes of a leaf page, and collect the requested contents. Return the keys of the page."""
        page, positions, room = self._page(number, LEAF)
        database.found[1] += 1
        database.found[3] += len(positions)
        unpack, size = NODE.unpack_from, self._page_size
        values, subs = database.values, database.subs
        plain = values is None and subs is None
        keys: list[bytes] = []
        total = 0
        for position in positions:
            low, high, flags, length_of_key = unpack(page, position)
            at = position + 8 + length_of_key
            length = low | high << 16
            end = at + (8 if flags == BIG else length)
            total += end - position + 1 & -2
            if end > size:
                raise DamageError(f"page {number} is damaged: an entry exceeds it")
            key = page[position + 8 : at]
            keys.append(key)
            if not flags and plain:
                continue
            if flags == BIG:
                first = self._big(database, page, at, length)
                if values is not None:
                    values.append(os.pread(self._fd, length, first * size + HEAD.size))
                continue
            if flags != (0 if subs is None else SUB):
                raise DamageError(f"page {number} is damaged: an entry has an unknown kind")
            if subs is not None:
                if length != DATABASE.size:
                    raise DamageError(f"page {number} is damaged: a database has the wrong size")
                subs.append((key, Database(page[at:end])))
            if values is not None:
                values.append(page[at:end])
        if total != room:
            raise DamageError(f"page {number} is damaged: its entries have wrong sizes")
        if database.keys is not None:
            database.keys += keys
        return keys

    def _big(self, database: Database, page: bytes, at: int, length: int) -> int:
        """Verify and mark the overflow pages of a value of ``length`` bytes stated at ``at``. Return the first page."""
        used, size = self._used, self._page_size
        pages = (15 + length) // size + 1
        first = int(PAGE_NO.unpack_from(page, at)[0])
        if database.keys is None:  # otherwise, this would read a page of each node, which is too slow for a start
            head = os.pread(self._fd, HEAD.size, first * size) if 2 <= first < self._end else b""
            its_number, _, flags, low, high = HEAD.unpack(head.ljust(HEAD.size, b"\0"))
            if len(head) == HEAD.size and (its_number != first or flags != OVERFLOW or low | high << 16 < pages):
                raise DamageError(f"page {first} is damaged")
            pages = max(pages, low | high << 16)
        if first < 2 or first + pages > self._end or used.find(1, first, first + pages) >= 0:
            self._claim(first, pages)  # raises the specific error
        used[first : first + pages] = b"\1" * pages
        database.found[2] += pages
        return first

    def _free(self, pages: bytes) -> None:
        """Verify a list of free pages: their number, then the page numbers in descending order."""
        if len(pages) < 8 or len(pages) % 8 or len(pages) != 8 * (PAGE_NO.unpack_from(pages)[0] + 1):
            raise DamageError("a list of free pages is damaged")
        used, known = self._used, len(self._used)
        before = self._last + 1
        for number in unpack_from(f"={len(pages) // 8 - 1}Q", pages, 8):
            if not 2 <= number < before:
                raise DamageError("a list of free pages is damaged")
            before = number
            if number >= known:
                self._unwritten += 1
            elif used[number]:
                raise DamageError(f"page {number} is both free and in use")
            else:
                used[number] = 1


def _check_names(names: Sequence[bytes], known: Collection[bytes], newer: Collection[bytes]) -> None:
    """Check the names of databases. Raises DamageError if one is missing or unknown."""
    strange = [name for name in names if name not in known]
    missing = [name for name in known if name not in names and (strange or name not in newer)]
    if strange or missing:
        lost = [f"its database {_shown(name)} is missing" for name in missing]
        found = [f"it has a database {_shown(name)}, which this tidelog does not know" for name in strange]
        raise DamageError("; ".join(lost + found))


def _shown(name: bytes) -> str:
    return repr(name.decode("ascii", "backslashreplace"))
