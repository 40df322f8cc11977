"""Checks the pages of an LMDB file before LMDB opens it. LMDB maps the file and believes what it finds there: a wrong
length or offset ends in SIGBUS, SIGSEGV or silently wrong data. So every page of the trees is checked first, with
plain reads.

The format, in the machine's byte order, for 64 bits (liblmdb 0.9, data version 1):

    a page     number u64 | pad u16 | flags u16 (1 branch, 2 leaf, 4 overflow, 8 meta) | lower u16 | upper u16
               | positions of nodes u16 ...
    a meta     page header | magic u32 0xBEEFC0DE | version u32 | address u64 | map size u64
    (0 and 1)  | 2 databases (free pages, main) | last page u64 | transaction u64       the higher transaction counts
    a database pad u32 (of the first: page size) | flags u16 | depth u16 | branch, leaf, overflow pages u64
               | entries u64 | root u64
    a node     at its position in the page: low u16 | high u16 | flags u16 | key length u16 | key | data
               branch: the child's page is low | high << 16 | flags << 32
               leaf: length of data is low | high << 16; flags 1: data is the first overflow page; 2: data is a database

A file is valid if every tree has as many pages and entries as its database says, at the depth that it says; each page
carries its own number and lies in the file; and no page is used twice, or both used and free. Values are not read here:
whoever uses them checks their crc.

A file may be shorter than "last page" says, because pages taken and freed in one transaction are never written. It must
hold every page that is in use. Cost: about a microsecond for each entry, and one read for each tree page."""

from __future__ import annotations

import os
from pathlib import Path
from struct import Struct, unpack_from
from sys import byteorder

HEAD = Struct("=QHHHH")
META = Struct("=IIQQ48s48sQQ")
DATABASE = Struct("=IHHQQQQQ")
NODE = Struct("=HHHH") if byteorder == "little" else Struct(">HHHH")
PAGE_NO = Struct("=Q")
MAGIC, DATA_VERSION = 0xBEEFC0DE, 1
BRANCH, LEAF = 1, 2  # flags of a page
BIG, SUB = 1, 2  # flags of a node
FREE_FLAGS = 8  # of the database of free pages: its keys are numbers
NO_ROOT = (1 << 64) - 1
MAX_DEPTH = 32  # that of LMDB's own cursors


class DamageError(Exception):
    """The file is damaged or no LMDB file; the text says why, without the file's name."""


def verify(path: Path, keys_of: bytes = b"", key_size: int = 0) -> bytes:
    """Check every tree page of a file that nobody is writing. Raises DamageError, OSError.

    Returns the keys of the database ``keys_of``, in order and joined; each must be ``key_size`` bytes long. A cursor of
    py-lmdb would have to touch the pages of the values, too.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _Walk(fd).run(keys_of, key_size)
    finally:
        os.close(fd)


class _Database:
    """What a database says about itself, what was found in it, and what to collect from its leaves."""

    __slots__ = ("claimed", "depth", "found", "keys", "root", "subs", "values")

    def __init__(self, raw: bytes, flags: int = 0) -> None:
        pad, its_flags, self.depth, *claimed, self.root = DATABASE.unpack(raw)
        if its_flags != flags or (pad and not flags):
            raise DamageError("a database of unknown kind")
        self.claimed: list[int] = claimed  # branch pages, leaf pages, overflow pages, entries
        self.found = [0, 0, 0, 0]
        # Lists to collect in; None: not wanted.
        self.keys: list[bytes] | None = None
        self.values: list[bytes] | None = None
        self.subs: list[tuple[bytes, _Database]] | None = None


class _Walk:
    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._bytes = os.fstat(fd).st_size
        self._page_size = 4096  # bytes
        self._last = 0
        self._used = bytearray()  # by page number: 1 if the page is in use or free

    def run(self, keys_of: bytes, key_size: int) -> bytes:
        free, main = self._metas()
        self._used = bytearray(min(self._last, self._bytes // self._page_size) + 2)
        self._used[0] = self._used[1] = 1
        subs = main.subs = []
        self._tree(main)
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
        return b"".join(keys)

    def _metas(self) -> tuple[_Database, _Database]:
        first = os.pread(self._fd, 4096, 0)
        if len(first) < HEAD.size + META.size:
            raise DamageError("cut short or empty")
        if int.from_bytes(first[16:20], byteorder) != MAGIC:
            raise DamageError("not an LMDB file, or its beginning is damaged")
        page = int.from_bytes(first[40:44], byteorder)
        if page not in (4096, 8192, 16384, 32768):
            raise DamageError("the first meta page is damaged")
        second = os.pread(self._fd, 4096, page)
        if len(second) < HEAD.size + META.size:
            raise DamageError("cut short")
        metas = []
        for number, raw in enumerate((first, second)):
            its_number, _, flags, _, _ = HEAD.unpack_from(raw)
            meta = META.unpack_from(raw, HEAD.size)
            its_page = int.from_bytes(meta[4][:4], byteorder)
            if meta[0] != MAGIC or its_number != number or flags != 8 or its_page != page:
                raise DamageError(f"meta page {number} is damaged")
            if meta[1] != DATA_VERSION:
                raise DamageError(f"LMDB data version {meta[1]}, which this liblmdb can't read")
            metas.append(meta)
        even, odd = metas[0][7], metas[1][7]
        if even % 2 or (odd and not odd % 2) or abs(even - odd) > 1:  # transaction n is written to page n % 2
            raise DamageError("its meta pages do not belong together: one is damaged or of another time")
        newest = max(metas, key=lambda meta: int(meta[7]))
        self._page_size, self._last = page, newest[6]
        if self._last > 1 << 47:
            raise DamageError("the number of its last page makes no sense")
        return _Database(newest[4], FREE_FLAGS), _Database(newest[5])

    def _claim(self, first: int, count: int = 1) -> None:
        """Mark pages as used. Raises DamageError if they are not in the file, or used already."""
        end = first + count
        if first < 2 or end > self._last + 1:
            raise DamageError(f"a reference to page {first}, which can't be")
        if end * self._page_size > self._bytes:
            missing = f"page {end - 1} of {self._page_size} bytes is missing"
            raise DamageError(f"cut short: {self._bytes} bytes, and {missing}")
        if any(self._used[first:end]):
            raise DamageError(f"page {first} is used twice")
        self._used[first:end] = b"\1" * count

    def _tree(self, database: _Database) -> None:
        """Check all pages of a database, and collect what it asks for."""
        if database.root == NO_ROOT:
            if any(database.claimed):
                raise DamageError("a database without a root that claims to have entries")
            return
        if not 0 < database.depth <= MAX_DEPTH:
            raise DamageError("a database of impossible depth")
        todo = [(database.root, 1)]
        while todo:
            number, level = todo.pop()
            self._claim(number)
            if level == database.depth:
                self._leaf(database, number)
            else:
                database.found[0] += 1
                page, positions = self._page(number, BRANCH)
                for position in reversed(positions):  # so that the first child is popped first
                    low, high, top, length = NODE.unpack_from(page, position)
                    if position + NODE.size + length > self._page_size:
                        raise DamageError(f"page {number} is damaged: a key that leaves it")
                    todo.append((low | high << 16 | top << 32, level + 1))
        # A value that became smaller in the transaction that wrote it keeps all of its overflow pages.
        found, claimed = database.found, database.claimed
        if found[:2] != claimed[:2] or found[3] != claimed[3] or found[2] > claimed[2]:
            raise DamageError(f"a database has {database.found} pages and entries instead of {database.claimed}")

    def _page(self, number: int, kind: int) -> tuple[bytes, tuple[int, ...]]:
        """Read a page of a tree; also returns the positions of its nodes. Raises DamageError."""
        size = self._page_size
        page = os.pread(self._fd, size, number * size)
        its_number, _, flags, lower, upper = HEAD.unpack_from(page)
        count = (lower - HEAD.size) >> 1
        if its_number != number or flags != kind or lower & 1 or count < 1 or not lower <= upper <= size:
            raise DamageError(f"page {number} is damaged")
        positions = unpack_from(f"={count}H", page, HEAD.size)
        if min(positions) < upper or max(positions) > size - NODE.size:
            raise DamageError(f"page {number} is damaged: a node outside of it")
        return page, positions

    def _leaf(self, database: _Database, number: int) -> None:
        page, positions = self._page(number, LEAF)
        database.found[1] += 1
        database.found[3] += len(positions)
        unpack, page_no, size, used = NODE.unpack_from, PAGE_NO.unpack_from, self._page_size, self._used
        keys, values, subs = database.keys, database.values, database.subs
        end = min(self._last + 1, self._bytes // size)
        for position in positions:
            low, high, flags, length_of_key = unpack(page, position)
            at = position + 8 + length_of_key
            length = low | high << 16
            if keys is not None:
                keys.append(page[position + 8 : at])
            if flags == BIG:
                if at + 8 > size:
                    raise DamageError(f"page {number} is damaged: an entry that leaves it")
                pages = (15 + length) // size + 1
                first = page_no(page, at)[0]
                if first < 2 or first + pages > end or used.find(1, first, first + pages) >= 0:
                    self._claim(first, pages)  # raises, and says what is wrong
                used[first : first + pages] = b"\1" * pages
                database.found[2] += pages
                if values is not None:
                    values.append(os.pread(self._fd, length, first * size + HEAD.size))
                continue
            if at + length > size:
                raise DamageError(f"page {number} is damaged: an entry that leaves it")
            if flags != (0 if subs is None else SUB):
                raise DamageError(f"page {number} is damaged: an entry of unknown kind")
            if subs is not None:
                if length != DATABASE.size:
                    raise DamageError(f"page {number} is damaged: a database of the wrong size")
                subs.append((page[position + 8 : at], _Database(page[at : at + length])))
            if values is not None:
                values.append(page[at : at + length])

    def _free(self, pages: bytes) -> None:
        """Check a list of free pages: how many there are, then their numbers in descending order."""
        if len(pages) < 8 or len(pages) % 8 or len(pages) != 8 * (PAGE_NO.unpack_from(pages)[0] + 1):
            raise DamageError("a list of free pages is damaged")
        used, known = self._used, len(self._used)
        before = self._last + 1
        for number in unpack_from(f"={len(pages) // 8 - 1}Q", pages, 8):
            if not 2 <= number < before:
                raise DamageError("a list of free pages is damaged")
            before = number
            if number < known:
                if used[number]:
                    raise DamageError(f"page {number} is both free and in use")
                used[number] = 1
