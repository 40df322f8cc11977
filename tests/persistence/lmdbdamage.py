"""Damage to LMDB files, made by hand: what lies where in a file, and files as a disk leaves them that loses writes.

The format is drawn in ``persistence.lmdbpages``. All positions are bytes from the beginning of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from struct import pack_into, unpack_from

PAGE = 4096
META = 16 + 24  # in a meta page: the database of free pages, then the main one, last page, transaction
LAST, TRANSACTION = META + 96, META + 104
ROOT, DEPTH = 40, 6  # in a database
NODE = 8  # bytes of a node before its key


class LmdbFile:
    """A file that nobody has open. Change ``raw``, then write()."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.raw = bytearray(path.read_bytes())

    def write(self) -> None:
        self.path.write_bytes(self.raw)

    def flip(self, at: int, bit: int = 0) -> None:
        self.raw[at] ^= 1 << bit

    # -- what lies where -------------------------------------------------------------------------------------
    def transaction(self, meta: int) -> int:
        return int(unpack_from("=Q", self.raw, meta * PAGE + TRANSACTION)[0])

    @property
    def newest(self) -> int:
        """The meta page that counts: 0 or 1."""
        return max((0, 1), key=self.transaction)

    @property
    def last_page(self) -> int:
        """What the meta page that counts says of it."""
        return int(unpack_from("=Q", self.raw, self.newest * PAGE + LAST)[0])

    def set_last_page(self, number: int) -> None:
        pack_into("=Q", self.raw, self.newest * PAGE + LAST, number)

    def nodes(self, page: int) -> list[int]:
        """The positions of a page's nodes."""
        lower = unpack_from("=H", self.raw, page * PAGE + 12)[0]
        return [page * PAGE + at for at in unpack_from(f"={(lower - 16) // 2}H", self.raw, page * PAGE + 16)]

    def key(self, node: int) -> tuple[int, int]:
        """Where a node's key begins and ends."""
        return node + NODE, node + NODE + int(unpack_from("=H", self.raw, node + 6)[0])

    def names(self) -> dict[bytes, int]:
        """Names of databases -> where they begin. They must fit into one page."""
        main = self.newest * PAGE + META + 48
        assert unpack_from("=H", self.raw, main + DEPTH)[0] == 1
        found = {}
        for node in self.nodes(unpack_from("=Q", self.raw, main + ROOT)[0]):
            start, end = self.key(node)
            found[bytes(self.raw[start:end])] = start
        return found

    def separators(self, name: bytes) -> Iterator[tuple[int, int]]:
        """Where the keys of a database's branch pages begin and end, but for those that LMDB doesn't use."""
        database = self.names()[name] + len(name)
        depth, root = unpack_from("=H", self.raw, database + DEPTH)[0], unpack_from("=Q", self.raw, database + ROOT)[0]
        todo = [(root, 1)]
        while todo:
            page, level = todo.pop()
            if level < depth:
                for number, node in enumerate(self.nodes(page)):
                    low, high, top = unpack_from("=HHH", self.raw, node)
                    todo.append((low | high << 16 | top << 32, level + 1))
                    if number:
                        yield self.key(node)

    # -- a disk that loses writes ----------------------------------------------------------------------------
    def forget_newest(self) -> None:
        """The newest meta page was never written: the page is of two transactions ago, and the other one counts."""
        newest, other = self.newest, 1 - self.newest
        self.raw[newest * PAGE : newest * PAGE + PAGE] = self.raw[other * PAGE : other * PAGE + PAGE]
        pack_into("=Q", self.raw, newest * PAGE, newest)
        pack_into("=Q", self.raw, newest * PAGE + TRANSACTION, self.transaction(other) - 1)

    def wipe(self, meta: int) -> None:
        """A meta page is zeros."""
        self.raw[meta * PAGE : meta * PAGE + PAGE] = bytes(PAGE)
