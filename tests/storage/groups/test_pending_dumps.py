"""The dumps of a pending list: golden bytes, old formats, and damage."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import pytest

from resp.errors import CorruptError
from storage.groups.pending import PendingTable
from storage.groups.pendingformat import assemble
from tests.storage.groups.pendingkit import (
    MAX_ID,
    NOW,
    dumped,
    filled,
    raws,
    sequence,
)


def test_golden_dump() -> None:
    table = PendingTable()
    table.add(raws(5 << 64 | 7), 1000, 2000, 9000, 1000, 3, b"dead")
    table.add(raws(6 << 64), 1001, 2001, 0, 1000)
    table.redeliver(raws(6 << 64), 3000, 500)
    golden = bytes.fromhex(
        "544c5032 0000000000000002 0000000000000002 00000001 00000004 64656164 "
        "00000000000000050000000000000007 00000000000003e8 00000000000007d0 0000000000002328 00000000000003e8 "
        "00000001 00000003 00000001 00 "
        "00000000000000060000000000000000 00000000000003e9 0000000000000bb8 0000000000000000 00000000000001f4 "
        "00000002 00000000 00000000 00 "
        "00000000000000050000000000000007 00000000000000060000000000000000"
    )
    golden += struct.pack(">I", zlib.crc32(golden))
    assert dumped(table) == golden
    loaded = PendingTable.load(golden)
    assert loaded.rows(0, MAX_ID, 9) == table.rows(0, MAX_ID, 9)
    assert loaded.next_due() == 2000
    assert loaded.next_drop() == 9000
    assert dumped(loaded) == golden


def test_golden_dump_with_owners() -> None:
    table = PendingTable()
    table.own_new(raws(5 << 64 | 7, 5 << 64 | 8), 3, 1000, 1)
    table.add(raws(6 << 64), 1001, 2001, 0, 1000)
    table.own(raws(5 << 64 | 8), 4, 1500)
    table.own_new(raws(7 << 64), 4, 900, (1 << 63) - 1)
    table.own(raws(7 << 64), 0, 1600)
    golden = bytes.fromhex(
        "544c5033 0000000000000004 0000000000000004 00000000 "
        "00000000000000050000000000000007 00000000000003e8 00000000000003e8 0000000000000001 0000000000000000 "
        "00000000 00000003 00000000 02 "
        "00000000000000050000000000000008 00000000000003e8 00000000000005dc 0000000000000002 0000000000000000 "
        "00000000 00000004 00000000 02 "
        "00000000000000060000000000000000 00000000000003e9 00000000000007d1 0000000000000000 00000000000003e8 "
        "00000001 00000000 00000000 00 "
        "00000000000000070000000000000000 0000000000000384 0000000000000640 7fffffffffffffff 0000000000000000 "
        "00000000 00000000 00000000 02 "
        "00000000000000050000000000000007 00000000000000050000000000000008 00000000000000060000000000000000 "
        "00000000000000070000000000000000"
    )
    golden += struct.pack(">I", zlib.crc32(golden))
    assert dumped(table) == golden
    loaded = PendingTable.load(golden)
    assert loaded.rows(0, MAX_ID, 9) == table.rows(0, MAX_ID, 9)
    assert [loaded.owned(owner) for owner in (0, 3, 4)] == [1, 1, 1]
    assert [row.id for row in loaded.idle_before(1500, None, 9)] == [7 << 64, 5 << 64 | 7, 5 << 64 | 8]
    assert loaded.drops(10**15, 9) == []
    assert loaded.due(10**15, 9) == [6 << 64]
    assert dumped(loaded) == golden


def test_the_last_of_old_dumps_follows_from_the_due_time() -> None:
    table = PendingTable()
    table.add(raws(1), 1000, 2000, 0, 1000)
    table.redeliver(raws(1), 7500, 500)
    loaded = PendingTable.load(dumped(table)).get(1)
    assert loaded is not None
    assert (loaded.last, loaded.owner) == (7000, 0)


def test_a_dump_without_runs_is_still_read() -> None:
    table = PendingTable()
    table.add(raws(5 << 64 | 7, 5 << 64 | 8), 1000, 2000, 9000, 1000, 3, b"dead")
    table.add(raws(6 << 64), 1001, 2001, 0, 1000)
    table.redeliver(raws(6 << 64), 3000, 500)
    old = bytes.fromhex(
        "544c5031 0000000000000003 00000001 00000004 64656164 "
        "00000000000000050000000000000007 00000000000003e8 00000000000007d0 0000000000002328 00000000000003e8 "
        "00000001 00000003 00000001 "
        "00000000000000050000000000000008 00000000000003e8 00000000000007d0 0000000000002328 00000000000003e8 "
        "00000001 00000003 00000001 "
        "00000000000000060000000000000000 00000000000003e9 0000000000000bb8 0000000000000000 00000000000001f4 "
        "00000002 00000000 00000000"
    )
    loaded = PendingTable.load(old + struct.pack(">I", zlib.crc32(old)))
    assert dumped(loaded) == dumped(table)


def test_parts_are_a_snapshot() -> None:
    table = filled(500)
    dump, parts = dumped(table), table.parts()
    table.remove(raws(*sequence(250)))
    table.set_due(raws(*sequence(1, 400)), NOW)
    assert assemble(parts) == dump != dumped(table)


def small_dump() -> bytes:
    table = PendingTable()
    table.add(raws(1), NOW, NOW + 1, NOW + 9, 1, 2, b"dead")
    table.add(raws(2), NOW, NOW + 1, NOW + 9, 1, 2, b"letter")
    return dumped(table)


def damaged() -> Iterator[bytes]:
    dump = small_dump()
    for at in range(len(dump)):
        yield dump[:at]
        yield dump[:at] + bytes([dump[at] ^ 1]) + dump[at + 1 :]
    yield dump + b"\0"

    def sealed(body: bytes) -> bytes:
        return body + struct.pack(">I", zlib.crc32(body))

    body = dump[:-4]
    assert sealed(body) == dump
    yield sealed(b"TLP4" + body[4:])  # a format of tomorrow
    yield sealed(body[:4] + struct.pack(">Q", 3) + body[12:])  # counts that don't add up
    yield sealed(body[:12] + struct.pack(">Q", 3) + body[20:])
    yield sealed(body[:20] + struct.pack(">I", 7) + body[24:])
    head, runs, rows = body[:-154], body[-154:-32], body[-32:]
    yield sealed(head + runs + rows[16:] + rows[:16])  # rows out of order
    yield sealed(head + runs + rows[:16] * 2)  # the same row twice
    yield sealed(head + runs[61:] + runs[:61] + rows)  # the same of runs
    yield sealed(head + runs[:61] * 2 + rows)
    few, many = struct.pack(">QQ", 2, 0), struct.pack(">QQ", 0, 2)
    yield sealed(body[:4] + few + head[20:] + rows)  # rows without runs, runs without rows
    yield sealed(body[:4] + many + head[20:] + runs)
    yield sealed(head + runs + rows[16:] + bytes(15) + b"\x03")  # a run without rows
    yield sealed(head + runs[:59] + b"\x09" + runs[60:] + rows)  # a key that isn't there
    yield sealed(head + runs[:60] + b"\x02" + runs[61:] + rows)  # an owner's, which TLP2 can't have
    owned = b"TLP3" + head[4:]
    yield sealed(owned + runs[:60] + b"\x03" + runs[61:] + rows)  # a kind of run that isn't there
    of_owner = runs[:16] + struct.pack(">QQQQIIIB", 5, 5, 1, 0, 0, 7, 0, 2) + runs[61:]
    assert PendingTable.load(sealed(owned + of_owner + rows)).owned(7) == 1
    for at in (16, 24, 32, 40, 47, 48, 51, 56, 59):  # what must be 0
        yield sealed(owned + of_owner[:at] + b"\x80" + of_owner[at + 1 :] + rows)


def test_a_damaged_dump_is_refused() -> None:
    for blob in damaged():
        with pytest.raises(CorruptError, match="pending list"):
            PendingTable.load(blob)
