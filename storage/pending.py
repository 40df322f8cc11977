"""The pending list of a group: messages that were delivered with RETRY and not yet acknowledged.

Rule 1: no Python object a message; rows of bytes in three ordered sets (``blocks``), so that a message costs less than
150 bytes. Rule 2: nothing here scans: what falls due and what must leave is found by time, in O(log n).
Rule 3: no clock; ``now`` and due times are arguments, in ms since epoch.

    _rows    0       16         24       32          40         48             52                  56       60
             +-------+----------+--------+-----------+----------+--------------+-------------------+--------+
             | ID 16 | first u64| due u64| expire u64| retry u64| deliveries u32| max-deliveries u32| key u32|
             +-------+----------+--------+-----------+----------+--------------+-------------------+--------+
    _due     | due u64| ID 16 |      of each message that may be delivered again
    _drop    | when u64| ID 16 |     of each message that must leave one day

Numbers are big-endian, so that rows sort as bytes. ``key`` is the place of the dead letter key in a table of its own,
from 1; 0 for none. A message may be delivered again while its deliveries are below max-deliveries (0: no limit) and it
falls due before it expires. It leaves when it expires (0: never) or, delivered for the last time, when it would fall
due: whichever comes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, islice, pairwise
from operator import lt
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from resp.errors import CorruptError
from storage.blocks import SortedRows

ROW: Final = Struct(">16sQQQQIII")
TAIL: Final = Struct(">QQQQIII")  # a row without its ID
TIME: Final = Struct(">Q")
KEY_SIZE: Final = 16  # of _rows
ENTRY: Final = 24  # width of _due and _drop

MAX_COUNT: Final = (1 << 32) - 1
NEVER: Final = -1
LOADED_AT_ONCE: Final = 4096  # rows
SWEEP: Final = 10_000  # expired messages that one due() looks at

_pack_time: Final = TIME.pack
_pack_row: Final = ROW.pack
_unpack_row: Final = ROW.unpack


class PendingRow(NamedTuple):
    """One pending message. Times in ms since epoch."""

    id: int
    deliveries: int  # 1 after the first
    first: int  # when it was delivered first
    due: int  # when it is delivered again
    expire: int  # when it is given up; 0 never
    retry: int  # ms from a delivery to the next
    max_deliveries: int  # 0 without limit
    deadletter: bytes  # key of the stream it goes to when it is given up; empty for none


class PendingTable:
    """Pending messages by ID, by due time and by the time at which they must leave."""

    __slots__ = ("_drop", "_due", "_free", "_highest", "_keys", "_rows", "_slots", "_users")

    def __init__(self) -> None:
        self._rows = SortedRows(ROW.size, KEY_SIZE)
        self._due = SortedRows(ENTRY, ENTRY)
        self._drop = SortedRows(ENTRY, ENTRY)
        self._highest = b""  # no ID above it was ever added
        # dead letter keys, each held once: slot n is _keys[n - 1], used by _users[n - 1] messages
        self._keys: list[bytes] = []
        self._users: list[int] = []
        self._slots: dict[bytes, int] = {}
        self._free: list[int] = []  # slots without users; their keys are empty

    def __len__(self) -> int:
        return self._rows.count

    # -- changes ---------------------------------------------------------------------------------------------
    def add(
        self, entry_id: int, first: int, due: int, expire: int, retry: int, max_deliveries: int = 0,
        deadletter: bytes = b"",
    ) -> None:  # fmt: skip
        """A message was delivered for the first time. One with this ID that is there already is replaced."""
        raw = entry_id.to_bytes(16, "big")
        if raw > self._highest:
            self._highest = raw
        elif self._rows.count:
            self.remove(entry_id)
        slot = self._take_slot(deadletter, 1) if deadletter else 0
        self._rows.insert(_pack_row(raw, first, due, expire, retry, 1, max_deliveries, slot))
        if max_deliveries != 1 and (not expire or due < expire):
            self._due.insert(_pack_time(due) + raw)
        if expire or max_deliveries == 1:
            self._drop.insert(_pack_time(leaves_at(due, expire, 1, max_deliveries)) + raw)

    def add_many(
        self, ids: Sequence[int], first: int, due: int, expire: int, retry: int, max_deliveries: int = 0,
        deadletter: bytes = b"",
    ) -> None:  # fmt: skip
        """add() for each of ``ids``, several times cheaper where they ascend and stand together."""
        if not ids:
            return
        raws = [entry_id.to_bytes(16, "big") for entry_id in ids]
        if not all(map(lt, raws, islice(raws, 1, None))):
            raws = sorted(set(raws))
        if raws[0] > self._highest:
            self._highest = raws[-1]
        else:
            self._highest = max(self._highest, raws[-1])
            if self._rows.count:
                self._remove(raws)
        slot = self._take_slot(deadletter, len(raws)) if deadletter else 0
        tail = TAIL.pack(first, due, expire, retry, 1, max_deliveries, slot)
        self._rows.insert_many(tail.join(raws) + tail)
        if max_deliveries != 1 and (not expire or due < expire):
            when = _pack_time(due)
            self._due.insert_many(when + when.join(raws))
        if expire or max_deliveries == 1:
            when = _pack_time(leaves_at(due, expire, 1, max_deliveries))
            self._drop.insert_many(when + when.join(raws))

    def redeliver(
        self, entry_id: int, due: int, retry: int | None = None, max_deliveries: int | None = None,
        deadletter: bytes | None = None,
    ) -> None:  # fmt: skip
        """A message was delivered again; None keeps what it had. Raises KeyError if it isn't there."""
        row = self._rows.get(entry_id.to_bytes(16, "big"))
        if not row:
            raise KeyError(entry_id)
        raw, first, _, expire, old_retry, deliveries, most, slot = _unpack_row(row)
        if deadletter is not None:
            new_slot = self._take_slot(deadletter, 1) if deadletter else 0
            if slot:
                self._free_slot(slot)
            slot = new_slot
        if retry is None:
            retry = old_retry
        if max_deliveries is not None:
            most = max_deliveries
        self._change(row, _pack_row(raw, first, due, expire, retry, min(deliveries + 1, MAX_COUNT), most, slot))

    def set_due(self, entry_id: int, due: int) -> bool:
        """Let a message fall due at ``due``; False if it isn't there."""
        row = self._rows.get(entry_id.to_bytes(16, "big"))
        if not row:
            return False
        self._change(row, row[:24] + _pack_time(due) + row[32:])
        return True

    def remove(self, entry_id: int) -> bool:
        """A message is acknowledged or given up; False if it isn't there."""
        row = self._rows.delete(entry_id.to_bytes(16, "big"))
        if not row:
            return False
        raw, _, due, expire, _, deliveries, most, slot = _unpack_row(row)
        if not most or deliveries < most:
            self._due.delete(row[24:32] + raw)
            if expire:
                self._drop.delete(row[32:40] + raw)
        else:
            self._drop.delete(_pack_time(leaves_at(due, expire, deliveries, most)) + raw)
        if slot:
            self._free_slot(slot)
        return True

    def remove_many(self, ids: Iterable[int]) -> int:
        """remove() for each of ``ids``, several times cheaper; returns how many were there."""
        raws = [entry_id.to_bytes(16, "big") for entry_id in ids]
        if not all(map(lt, raws, islice(raws, 1, None))):
            raws = sorted(set(raws))
        return self._remove(raws)

    def _remove(self, raws: list[bytes]) -> int:
        """``raws``: IDs, ascending."""
        gone = self._rows.delete_many(raws)
        due_keys: list[bytes] = []
        drop_keys: list[bytes] = []
        for row in gone:
            raw, _, due, expire, _, deliveries, most, slot = _unpack_row(row)
            if not most or deliveries < most:
                due_keys.append(row[24:32] + raw)
                if expire:
                    drop_keys.append(row[32:40] + raw)
            else:
                drop_keys.append(_pack_time(leaves_at(due, expire, deliveries, most)) + raw)
            if slot:
                self._free_slot(slot)
        if due_keys:
            due_keys.sort()
            self._due.delete_many(due_keys)
        if drop_keys:
            drop_keys.sort()
            self._drop.delete_many(drop_keys)
        return len(gone)

    def _change(self, old: bytes, new: bytes) -> None:
        """Put ``new`` in the place of ``old``, which has the same ID."""
        self._rows.replace(new)
        raw, _, due, expire, _, deliveries, most, _ = _unpack_row(old)
        if not most or deliveries < most:
            self._due.delete(old[24:32] + raw)  # may have been swept: see due()
        leaves = leaves_at(due, expire, deliveries, most)
        _, _, due, expire, _, deliveries, most, _ = _unpack_row(new)
        if (not most or deliveries < most) and (not expire or due < expire):
            self._due.insert(new[24:32] + raw)
        now_leaves = leaves_at(due, expire, deliveries, most)
        if leaves != now_leaves:
            if leaves != NEVER:
                self._drop.delete(_pack_time(leaves) + raw)
            if now_leaves != NEVER:
                self._drop.insert(_pack_time(now_leaves) + raw)

    # -- dead letter keys ------------------------------------------------------------------------------------
    def _take_slot(self, key: bytes, users: int) -> int:
        slot = self._slots.get(key, 0)
        if not slot:
            if self._free:
                slot = self._free.pop()
                self._keys[slot - 1] = key
            else:
                self._keys.append(key)
                self._users.append(0)
                slot = len(self._keys)
            self._slots[key] = slot
        self._users[slot - 1] += users
        return slot

    def _free_slot(self, slot: int) -> None:
        self._users[slot - 1] -= 1
        if not self._users[slot - 1]:
            del self._slots[self._keys[slot - 1]]
            self._keys[slot - 1] = b""
            self._free.append(slot)

    # -- by time ---------------------------------------------------------------------------------------------
    def next_due(self) -> int | None:
        """The earliest moment at which a message falls due that may be delivered again then; None if there is none."""
        entry = self._due.first()
        return int.from_bytes(entry[:8], "big") if entry else None

    def due(self, now: int, limit: int) -> list[int]:
        """IDs of messages due at ``now`` and not expired, by (due time, ID), at most ``limit``.

        An expired message that is met here is taken out of the due index, so that it is met once: it will not be
        delivered again, even should the clock go back. One call meets at most SWEEP of them; it may then return fewer
        than there are, and next_due() still lies in the past.
        """
        end = _pack_time(now + 1)
        leaves = self.next_drop()
        if leaves is None or leaves > now:  # the usual case: nothing has expired
            return [int.from_bytes(entry[8:], "big") for entry in self._due.head(end, limit)]
        found: list[int] = []
        expired: list[bytes] = []
        for entry in self._due.rows(b""):
            if entry >= end or len(found) >= limit or len(expired) >= SWEEP:
                break
            expire = int.from_bytes(self._rows.get(entry[8:])[32:40], "big")
            if expire and expire <= now:
                expired.append(entry)
            else:
                found.append(int.from_bytes(entry[8:], "big"))
        self._due.delete_many(expired)
        return found

    def next_drop(self) -> int | None:
        """The earliest moment at which a message must leave; None if there is none."""
        entry = self._drop.first()
        return int.from_bytes(entry[:8], "big") if entry else None

    def drops(self, now: int, limit: int) -> list[tuple[int, str]]:
        """Messages that must leave at ``now``, earliest first, each with "expired" or "maxdeliveries"."""
        found = []
        for entry in self._drop.head(_pack_time(now + 1), limit):
            expire = self._rows.get(entry[8:])[32:40]
            found.append((int.from_bytes(entry[8:], "big"), "expired" if expire == entry[:8] else "maxdeliveries"))
        return found

    # -- by ID -----------------------------------------------------------------------------------------------
    def get(self, entry_id: int) -> PendingRow | None:
        row = self._rows.get(entry_id.to_bytes(16, "big"))
        return self._open(row) if row else None

    def _open(self, row: bytes) -> PendingRow:
        raw, first, due, expire, retry, deliveries, most, slot = _unpack_row(row)
        key = self._keys[slot - 1] if slot else b""
        return PendingRow(int.from_bytes(raw, "big"), deliveries, first, due, expire, retry, most, key)

    def rows(self, start: int, end: int, count: int) -> list[PendingRow]:
        """Messages with start <= ID <= end, in order, at most ``count``."""
        found: list[PendingRow] = []
        last = end.to_bytes(16, "big")
        for row in islice(self._rows.rows(start.to_bytes(16, "big")), max(0, count)):
            if row[:KEY_SIZE] > last:
                break
            found.append(self._open(row))
        return found

    def ids(self) -> list[int]:
        """All IDs, in order."""
        return [int.from_bytes(row[:KEY_SIZE], "big") for row in self._rows.rows(b"")]

    def lowest(self) -> int | None:
        row = self._rows.first()
        return int.from_bytes(row[:KEY_SIZE], "big") if row else None

    def highest(self) -> int | None:
        row = self._rows.last()
        return int.from_bytes(row[:KEY_SIZE], "big") if row else None

    # -- the whole -------------------------------------------------------------------------------------------
    def memory_bytes(self) -> int:
        """Estimate of what the list takes in memory."""
        keys = sum(map(len, self._keys)) + 150 * len(self._keys)
        return self._rows.memory_bytes() + self._due.memory_bytes() + self._drop.memory_bytes() + keys

    def dump(self) -> bytes:
        """Everything as bytes, at about the speed of copying them. Numbers are big-endian.

        ::

            0      4         12        16
            +------+---------+---------+-----------------------------+------------------+---------+
            | TLP1 | rows u64| keys u32| each key: length u32, bytes | rows, 60 each    |crc32 u32|
            +------+---------+---------+-----------------------------+------------------+---------+

        Valid if the lengths add up, the crc32 is that of all before it, IDs ascend and slots name keys. The two other
        sets follow from the rows.
        """
        return bytes(assemble(self.parts()))

    def parts(self) -> list[bytes]:
        """A dump in pieces, which cost next to nothing and never change: assemble() them later, in any thread."""
        parts = [DUMP_HEAD.pack(DUMP_MAGIC, self._rows.count, len(self._keys))]
        for key in self._keys:
            parts += (KEY_HEAD.pack(len(key)), key)
        parts += self._rows.dump()
        return parts

    @classmethod
    def load(cls, data: bytes) -> PendingTable:
        """What dump() wrote. Raises CorruptError."""
        if len(data) < DUMP_HEAD.size + KEY_HEAD.size or not data.startswith(DUMP_MAGIC):
            raise CorruptError("a pending list is damaged, or was written by a newer tidelog: its head is unknown")
        end = len(data) - KEY_HEAD.size
        if KEY_HEAD.unpack_from(data, end)[0] != crc32(memoryview(data)[:end]):
            raise CorruptError("a pending list is damaged: its checksum is wrong")
        _, count, keys = DUMP_HEAD.unpack_from(data)
        table = cls()
        at = DUMP_HEAD.size
        for _ in range(keys):
            if at + KEY_HEAD.size > end:
                break
            size = KEY_HEAD.unpack_from(data, at)[0]
            at += KEY_HEAD.size + size
            table._keys.append(data[at - size : at])
        if len(table._keys) != keys or end - at != count * ROW.size:
            raise CorruptError("a pending list is damaged: its lengths don't add up")
        table._users = [0] * keys
        if count:
            table._fill(data[at:end])
        table._slots = {key: slot for slot, key in enumerate(table._keys, 1) if table._users[slot - 1]}
        table._free = [slot for slot, users in enumerate(table._users, 1) if not users]
        return table

    def _fill(self, rows: bytes) -> None:
        """Put the rows of a dump into an empty table whose keys are known."""
        due_runs: list[bytes] = []
        drop_runs: list[bytes] = []
        users, before = [0] * (len(self._keys) + 1), b""
        step, unpack = LOADED_AT_ONCE * ROW.size, TAIL.unpack
        for start in range(0, len(rows), step):
            ends = range(start + ROW.size, min(start + step, len(rows)) + 1, ROW.size)
            raws = [rows[end - ROW.size : end - TAIL.size] for end in ends]
            if raws[0] <= before or not all(map(lt, raws, islice(raws, 1, None))):
                raise CorruptError("a pending list is damaged: its rows are out of order")
            before = raws[-1]
            at = 0
            for rest, run in groupby([rows[end - TAIL.size : end] for end in ends]):  # delivered together, all the same
                _, due, expire, _, deliveries, most, slot = unpack(rest)
                if slot >= len(users):
                    raise CorruptError("a pending list is damaged: a row names an unknown key")
                stop = at + len(list(run))
                users[slot] += stop - at
                some = raws[at:stop]
                at = stop
                if (not most or deliveries < most) and (not expire or due < expire):
                    when = rest[8:16]
                    due_runs.append(when + when.join(some))
                leaves = leaves_at(due, expire, deliveries, most)
                if leaves != NEVER:
                    when = _pack_time(leaves)
                    drop_runs.append(when + when.join(some))
        self._users = users[1:]
        self._highest = before
        self._rows.fill(rows)
        self._due.fill(_in_order(due_runs))
        self._drop.fill(_in_order(drop_runs))


def _in_order(runs: list[bytes]) -> bytes:
    """Entries of _due or _drop, joined; each run is in order."""
    joined = b"".join(runs)
    if all(one[-ENTRY:] < other[:ENTRY] for one, other in pairwise(runs)):
        return joined
    return b"".join(sorted([joined[at : at + ENTRY] for at in range(0, len(joined), ENTRY)]))


DUMP_MAGIC: Final = b"TLP1"
DUMP_HEAD: Final = Struct(">4sQI")
KEY_HEAD: Final = Struct(">I")


def assemble(parts: Sequence[bytes], room: int = 0) -> bytearray:
    """The dump whose parts these are, behind ``room`` zero bytes. A million messages are 60 MB, and b"".join would keep
    all other threads waiting while it copies them: here they have their turns."""
    dump = bytearray(room)
    for part in parts:
        dump += part
    dump += KEY_HEAD.pack(crc32(memoryview(dump)[room:]))
    return dump


def leaves_at(due: int, expire: int, deliveries: int, max_deliveries: int) -> int:
    """When a message must leave, in ms since epoch, or NEVER."""
    if max_deliveries and deliveries >= max_deliveries and (not expire or due < expire):
        return due
    return expire or NEVER
