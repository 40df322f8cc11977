"""A group's time to live and its metadata on disk. What readers see of groups is tested through the wire."""

from __future__ import annotations

import struct
import zlib

import pytest

from resp.errors import CorruptError
from storage.groups.group import Group
from storage.groups.pending import PendingTable
from storage.groups.pendingdump import assemble

NOW = 1_700_000_000_000


def dumped(pending: PendingTable) -> bytes:
    return bytes(assemble(pending.parts()))


def full() -> Group:
    group = Group(b"g", 5 << 64 | 7, 60_000, NOW + 60_000)
    group.expired, group.deadlettered, group.redelivered = 3, 2, 1
    group.pending.add([(5 << 64 | 7).to_bytes(16, "big")], NOW, NOW + 1000, 0, 1000)
    return group


def test_touch_moves_the_deadline() -> None:  # [15]
    group = Group(b"g", 0, 1000, NOW + 1000)
    group.touch(NOW + 500)
    assert group.deadline == NOW + 1500
    assert not group.dirty
    group = Group(b"g", 0)
    group.touch(NOW)
    group.resume(NOW)
    assert group.deadline == 0


def test_downtime_is_not_silence() -> None:  # [15]
    group = full()
    group.resume(NOW + 3_600_000)
    assert group.deadline == NOW + 3_660_000
    group = full()
    group.resume(NOW - 50_000)  # a clock that went back takes nothing away
    assert group.deadline == NOW + 60_000


def test_golden_meta() -> None:
    golden = bytes.fromhex(
        "01 00000000000000050000000000000007 000000000000ea60 0000018bcfe65260 "
        "0000000000000003 0000000000000002 0000000000000001"
    )
    golden += struct.pack(">I", zlib.crc32(golden))
    group = full()
    assert group.meta() == golden
    again = Group.restore(b"g", golden, dumped(group.pending))
    assert (again.name, again.offset, again.ttl, again.deadline) == (b"g", 5 << 64 | 7, 60_000, NOW + 60_000)
    assert (again.expired, again.deadlettered, again.redelivered) == (3, 2, 1)
    assert (again.waiters, again.dirty) == (0, False)
    assert again.pending.rows(0, 9 << 64, 9) == group.pending.rows(0, 9 << 64, 9)
    assert len(again.pending) == 1
    assert again.meta() == golden


def test_the_highest_values_fit() -> None:
    group = Group(b"g", (1 << 128) - 1, (1 << 63) - 1, (1 << 64) - 1)
    again = Group.restore(b"g", group.meta(), dumped(PendingTable()))
    assert (again.offset, again.ttl, again.deadline) == (group.offset, group.ttl, group.deadline)


def test_damaged_meta_is_refused() -> None:
    group = full()
    meta, blob = group.meta(), dumped(group.pending)
    for at in range(len(meta)):
        for bad in (meta[:at], meta[:at] + bytes([meta[at] ^ 0x40]) + meta[at + 1 :]):
            with pytest.raises(CorruptError, match="group b'g'"):
                Group.restore(b"g", bad, blob)
    newer = b"\x02" + meta[1:-4]
    with pytest.raises(CorruptError, match="newer tidelog"):
        Group.restore(b"g", newer + struct.pack(">I", zlib.crc32(newer)), blob)
    with pytest.raises(CorruptError, match="pending list"):
        Group.restore(b"g", meta, blob[:-1])
