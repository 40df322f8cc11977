"""The scrub: reads and verifies the whole store while the server runs, and reports damage.

Rule 1: each step reads a limited number of bytes, but at least one entry, in a separate read transaction. The
transaction ends before the entries are verified, because a long transaction prevents LMDB from reusing pages.
Rule 2: all data is read with read() and not through mmap (``lmdbreads``), so damage never terminates the process.
Rule 3: damage remains recorded until the entry is read again and is intact, or was deleted. The scrub checks this
after each checkpoint and at the start. Recorded damage and the position survive a restart.
Rule 4: a part that could not be read because transactions ended meanwhile is not verified yet, and is not damaged. The
next step reads it again. If no transaction ended, the meta pages are damaged.
Rule 5: an entry counts as at least SMALLEST bytes, because verifying it takes some microseconds however small it is.

A pass begins a day after the start of the previous one. The first pass begins a day after the directory was created.
The kernel serves cached pages from memory, so damage on the disk is detected only when the kernel reads the page again.
"""

from __future__ import annotations

import json
import os
import struct
import threading
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from persistence import directory as datadir
from persistence.layout import CRC, NODE_KEY
from persistence.lmdbfile import reported
from persistence.lmdbpages import DamageError
from persistence.lmdbreads import Found, LmdbSnapshot, MissedError
from persistence.noderepair import node_problem
from persistence.permissions import opener
from persistence.store import Store
from persistence.storecopy import DATABASES, NODES
from resp.errors import CorruptError
from storage.nodes.packed import new_decompressor

FILE: Final = "scrub"
DAY_MS: Final = 24 * 3600 * 1000
LONGEST_MS: Final = 6 * DAY_MS  # the rate is raised so that a pass takes no longer: with the pause, a week
SMALLEST: Final = 1024  # see Rule 5
SAVE_BYTES: Final = 64 << 20  # of reading, after which the position is saved
MOST_DAMAGE: Final = 1000  # maximum number of recorded items of damage; others are detected again after a repair
ATTEMPTS: Final = 5  # maximum number of read transactions; a checkpoint can invalidate each of them


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged entry; or, if ``end`` is not empty, damaged pages with the keys from ``key`` to before ``end``."""

    db: int
    key: bytes
    why: str
    end: bytes | None = b""  # None: to the last key of the database

    @property
    def node(self) -> tuple[int, int, int] | None:
        """The sid, first ordinal and first ID of a damaged node; None for other damage."""
        if self.db != NODES or self.end != b"" or len(self.key) != NODE_KEY.size:
            return None
        sid, first_ord, first_id = NODE_KEY.unpack(self.key)
        return sid, first_ord, int.from_bytes(first_id, "big")

    def __str__(self) -> str:
        if self.node is not None:
            return f"node {self.node[1]} of stream {self.node[0]}: {self.why}"
        place = f"entry {self.key!r}" if self.end == b"" else f"pages with the keys from {self.key!r}"
        return f"{place} of {DATABASES[self.db].decode()}: {self.why}"


class Scrub:
    """The scrub of one store. step() and recheck() run in any thread, one at a time; the attributes are only read."""

    def __init__(self, store: Store, directory: Path, keeps: bool = True) -> None:
        """``keeps``: continue where the saved state ends, and save it."""
        self.running = False  # a pass has begun and has not ended
        self.began = 0  # ms since epoch of the pass that runs or ran last; 0: none yet
        self.ended = 0  # ms since epoch of the end of the last pass; 0: none yet
        self.passes = 0
        self.read = 0  # bytes of this pass
        self.total = 0  # bytes that this pass has to read, an estimate
        self.cost = 0  # ``total``, see Rule 5
        self.repaired = 0  # damaged nodes that became sound
        self._store = store
        self._directory = directory
        self._at = (0, b"")  # database and key at which the next step begins
        self._damage: dict[tuple[int, bytes], Damage] = {}
        self._lock = threading.Lock()  # guards _damage
        self._checked = -1  # log offset of the store at the last recheck
        self._unsaved = 0  # bytes read since the state was saved
        self._changed = False  # the damage has changed since then
        self._decompressor = new_decompressor()
        self._keeps = keeps
        if keeps:
            self._load()

    # -- state -----------------------------------------------------------------------------------------------
    @property
    def damage(self) -> list[Damage]:
        with self._lock:
            return list(self._damage.values())

    @property
    def damaged(self) -> int:
        """The number of damaged entries and pages."""
        return len(self._damage)

    def note(self, sid: int, first_ord: int, first_id: int, why: str) -> None:
        """Record a damaged node that a read has detected. Any thread. The next recheck() saves it."""
        if self._add(Damage(NODES, NODE_KEY.pack(sid, first_ord, first_id.to_bytes(16, "big")), why)):
            self._checked = -1

    def knows(self, sid: int, first_ords: Collection[int]) -> bool:
        """Return whether one of these nodes is known to be damaged."""
        nodes = (damage.node for damage in self.damage)
        return any(node is not None and node[0] == sid and node[1] in first_ords for node in nodes)

    def _add(self, damage: Damage) -> bool:
        """Remember damage. Return whether it was unknown."""
        with self._lock:
            new = len(self._damage) < MOST_DAMAGE and (damage.db, damage.key) not in self._damage
            if new:
                self._damage[damage.db, damage.key] = damage
                self._changed = True
        return new

    def is_due(self, now: int) -> bool:
        """Return whether a pass must begin at ``now`` (ms since epoch): a day after the last one began.

        If the last one began more than a day in the future, the clock was wrong then, or is wrong now.
        """
        if self.began:
            return abs(now - self.began) >= DAY_MS
        try:
            created = int((self._directory / datadir.MARKER).stat().st_mtime * 1000)
        except OSError:
            return False  # the directory is being created
        return now - created >= DAY_MS

    def begin(self, now: int) -> None:
        """Begin a pass, from the beginning. ``now``: ms since epoch."""
        self.running, self.began = True, now
        self._at, self.read = (0, b""), 0

    def needs_recheck(self) -> bool:
        return bool(self._damage) and self._checked != self._store.offset

    def check_again(self) -> None:
        """Request recheck(), because the store may have changed since the last checkpoint."""
        self._checked = -1

    def _load(self) -> None:
        """Load the state that save() has written. Ignores a missing or invalid file."""
        try:
            state: dict[str, Any] = json.loads((self._directory / FILE).read_text(encoding="ascii"))
            at = int(state["db"]), bytes.fromhex(state["key"])
            numbers = [int(state[name]) for name in ("began", "ended", "passes", "read", "repaired")]
            damage = [
                Damage(int(db), bytes.fromhex(key), str(why), None if end is None else bytes.fromhex(end))
                for db, key, why, end in state["damage"]
            ]
            if not 0 <= at[0] < len(DATABASES) or not all(0 <= each.db < len(DATABASES) for each in damage):
                return
            running = bool(state["running"])
        except (OSError, ValueError, TypeError, KeyError):
            return
        self.began, self.ended, self.passes, self.read, self.repaired = numbers
        self.running, self._at = running, at
        self._damage = {(each.db, each.key): each for each in damage}

    def save(self) -> None:
        """Save the state for the next start, without a sync. The caller has checked the files. Raises OSError."""
        self._changed = False
        state = {
            "running": self.running, "began": self.began, "ended": self.ended, "passes": self.passes,
            "read": self.read, "repaired": self.repaired, "db": self._at[0], "key": self._at[1].hex(),
            "damage": [
                (each.db, each.key.hex(), each.why, None if each.end is None else each.end.hex())
                for each in self.damage
            ],
        }  # fmt: skip
        temporary = self._directory / f"{FILE}.new"
        with open(temporary, "w", encoding="ascii", opener=opener) as file:
            json.dump(state, file)
        temporary.rename(self._directory / FILE)
        self._unsaved = 0

    # -- reading ---------------------------------------------------------------------------------------------
    def step(self, most: int, now: int) -> int:
        """Continue the pass by about ``most`` bytes, but at least one entry. Return the number of bytes (Rule 5).

        ``now``: ms since epoch. Raises OSError; the next call reads the same part again.
        """
        db, start = self._at
        try:
            found, rest = self._read(db, start, most)
        except MissedError:
            return SMALLEST  # see Rule 4
        cost = size = 0
        for each in found:
            cost += max(each.size, SMALLEST)
            size += each.size
            damage = self._problem(db, each)
            if damage is not None:
                self._add(damage)
        self.read += size
        self._unsaved += size
        if rest is None:
            db, rest = db + 1, b""
        if db == len(DATABASES):
            self.running, self.ended = False, now
            self.passes += 1
            db = 0
        self._at = db, rest
        if not self.running or self._unsaved >= SAVE_BYTES or self._changed:
            self._save_if_possible()
        return cost

    def recheck(self) -> None:
        """Read all recorded damage again (Rule 3). Raises OSError."""
        self._checked = self._store.offset
        try:
            self._recheck()
        except OSError:
            self._checked = -1
            raise
        if self._changed:
            self._save_if_possible()

    def _recheck(self) -> None:
        for damage in self.damage:
            try:
                found, _ = self._read(damage.db, damage.key, 1)
            except MissedError:
                self._checked = -1  # see Rule 4
                continue
            still = self._problem(damage.db, found[0]) if found else None
            if still is None or (damage.end == b"" and still.key != damage.key):
                with self._lock:
                    self._damage.pop((damage.db, damage.key), None)
                    self._changed = True
                if found and found[0].key == damage.key:
                    self.repaired += 1

    def _save_if_possible(self) -> None:
        if self._keeps and (self._directory / datadir.MARKER).exists():
            try:
                self.save()
            except OSError:
                pass  # the next start begins where the saved state says, or from the beginning

    def _read(self, db: int, start: bytes, most: int) -> tuple[list[Found], bytes | None]:
        """Read about ``most`` bytes, starting at a key. Also return the next key; None at the end of the database.

        Raises OSError, and MissedError if transactions ended during all attempts.
        """
        transactions = set[int]()
        for left in reversed(range(ATTEMPTS)):
            try:
                return self._attempt(db, start, most)
            except MissedError as error:
                transactions.add(error.transaction)
                if not left and len(transactions) > 1:
                    raise
                why = f"its meta pages are damaged ({error})"
            except DamageError as error:
                why = str(error)
                break
        return [Found(b"", b"", SMALLEST, None, why)], None

    def _attempt(self, db: int, start: bytes, most: int) -> tuple[list[Found], bytes | None]:
        store, found = self._store, list[Found]()
        with store.reading():
            fd = os.open(store.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                with reported(store.path), store.env.begin() as txn:
                    if not txn.id():  # nothing was ever written
                        return [], None
                    snapshot = LmdbSnapshot(fd, txn.id())
                    totals = [snapshot.totals(name) for name in DATABASES]
                    self.total = sum(size for size, _ in totals)
                    self.cost = sum(max(size, entries * SMALLEST) for size, entries in totals)
                    for each in snapshot.entries(DATABASES[db], start):
                        found.append(each)
                        most -= max(each.size, SMALLEST)
                        if most <= 0:
                            return found, each.end if each.why else each.key + b"\0"
            finally:
                os.close(fd)
        return found, None

    def _problem(self, db: int, found: Found) -> Damage | None:
        """Verify an entry. Return the damage, or None if the entry is intact."""
        key, value = found.key, found.value
        if found.why:
            return Damage(db, key, found.why, b"" if found.end == key + b"\0" else found.end)
        try:
            if db == NODES:
                why = node_problem(key, value, self._decompressor)
                return Damage(db, key, why) if why else None
            if CRC.unpack_from(value)[0] == crc32(memoryview(value)[CRC.size :], crc32(key)):
                return None
        except (CorruptError, struct.error, ValueError) as error:
            return Damage(db, key, str(error))
        return Damage(db, key, "its checksum is wrong")
