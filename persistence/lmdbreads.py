"""Reads the entries of an LMDB file in use with plain reads, and verifies each page on the way.

LMDB trusts the pages that it maps: a damaged page, or one that the disk cannot read, would end the process (see
``lmdbpages``). Plain reads return an error instead.

Rule 1: the caller has a read transaction open, whose number it passes. LMDB does not reuse the pages of that
transaction, so that they do not change while they are read.
Rule 2: damage is a part of the result, not an exception, so that reading continues behind it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

from persistence.lmdbpages import BIG, HEAD, LEAF, MAX_DEPTH, NODE, OVERFLOW, PAGE_NO, SUB, DamageError, Database, Walk


class Found(NamedTuple):
    """An entry; or, if ``why`` is not empty, keys from ``key`` to before ``end`` (None: the last) that are damaged."""

    key: bytes
    value: bytes
    size: int  # bytes that were read
    end: bytes | None = b""
    why: str = ""
    page: int = 0  # the first page of a value that has its own pages


class MissedError(Exception):
    """The transaction is no longer one of the last two. Begin another one."""

    def __init__(self, transaction: int, why: str) -> None:
        super().__init__(why)
        self.transaction = transaction


class LmdbSnapshot(Walk):
    """The databases of a file as of one transaction."""

    def __init__(self, fd: int, transaction: int) -> None:
        """Raises DamageError, OSError, and MissedError (also if a meta page was being written)."""
        super().__init__(fd)
        try:
            metas = [meta for meta in self._both_metas() if meta[7] == transaction]
        except DamageError as error:
            raise MissedError(transaction, str(error)) from error
        if not metas:
            raise MissedError(transaction, f"transaction {transaction} has no meta page")
        _, main = self._as_of(metas[0])
        self._databases: dict[bytes, Database] = {}
        for found in self._read(main, b""):
            if found.why:
                raise DamageError(found.why)
            self._databases[found.key] = Database(found.value)

    def totals(self, name: bytes) -> tuple[int, int]:
        """Return the size of a database in bytes, and the number of its entries; 0, 0 if it does not exist."""
        database = self._databases.get(name)
        return (0, 0) if database is None else (sum(database.claimed[:3]) * self._page_size, database.claimed[3])

    @property
    def page_size(self) -> int:
        return self._page_size

    def entries(self, name: bytes, start: bytes) -> Iterator[Found]:
        """Yield the entries of a database from the key ``start`` on, and its damage."""
        database = self._databases.get(name)
        if database is not None:
            yield from self._read(database, start)

    def _read(self, database: Database, start: bytes) -> Iterator[Found]:
        todo: list[tuple[int, int, bytes, bytes | None]] = []
        if database.claimed[3] and not 0 < database.depth <= MAX_DEPTH:
            yield Found(start, b"", self._page_size, None, "the depth of the database is invalid")
        elif database.claimed[3]:
            todo.append((database.root, 1, b"", None))
        while todo:
            number, level, low, high = todo.pop()
            if high is not None and high <= start:
                continue
            try:
                if level < database.depth:
                    todo += self._branch(database, number, level, low, high)
                    continue
                found = self._entries_of(number, start, low, high)
            except (DamageError, struct.error, OSError, OverflowError) as error:
                yield Found(max(low, start), b"", self._page_size, high, str(error) or "the page is damaged")
            else:
                yield from found

    def _entries_of(self, number: int, start: bytes, low: bytes, high: bytes | None) -> list[Found]:
        """Return the entries of a leaf page. Raises DamageError, OSError, struct.error, OverflowError."""
        page, positions, _ = self._page(number, LEAF)
        found: list[Found] = []
        keys: list[bytes] = []
        for position in positions:
            first, second, flags, length_of_key = NODE.unpack_from(page, position)
            at, length = position + NODE.size + length_of_key, first | second << 16
            if at + (PAGE_NO.size if flags == BIG else length) > self._page_size:
                raise DamageError(f"page {number} is damaged: an entry exceeds it")
            if flags not in (0, BIG, SUB):
                raise DamageError(f"page {number} is damaged: an entry of an unknown kind")
            key = page[position + NODE.size : at]
            keys.append(key)
            if key < start:
                continue
            if flags == BIG:
                found.append(self._large(key, length, PAGE_NO.unpack_from(page, at)[0]))
            else:
                found.append(Found(key, page[at : at + length], NODE.size + length_of_key + length))
        self._in_order(number, keys, False, low, high)
        return found

    def _large(self, key: bytes, length: int, first: int) -> Found:
        """Return an entry whose value has its own pages."""
        pages = (HEAD.size + length - 1) // self._page_size + 1
        try:
            raw = os.pread(self._fd, HEAD.size + length, first * self._page_size)
            number, _, flags, low, high = HEAD.unpack_from(raw)
        except (OSError, struct.error, OverflowError) as error:
            why = f"page {first} cannot be read ({error})"
            return Found(key, b"", pages * self._page_size, key + b"\0", why, first)
        if number != first or flags != OVERFLOW or low | high << 16 < pages or len(raw) < HEAD.size + length:
            return Found(key, b"", pages * self._page_size, key + b"\0", f"page {first} is damaged", first)
        return Found(key, raw[HEAD.size :], pages * self._page_size, page=first)
