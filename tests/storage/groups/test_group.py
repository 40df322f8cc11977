"""A group's time to live and its metadata on disk. What readers see of groups is tested through the wire."""

from __future__ import annotations

import struct
import zlib

import pytest

from resp.errors import CorruptError
from storage.groups.group import Consumer, Group
from storage.groups.pending import PendingTable
from storage.groups.pendingformat import assemble

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


def with_consumers() -> Group:
    group = full()
    group.entries_read, group.next_consumer = 9, 4
    group.add_consumer(Consumer(b"one", 1, NOW, NOW - 1))
    group.add_consumer(Consumer(b"", 3, NOW + 2))
    group.pending.own_new([(6 << 64).to_bytes(16, "big")], 3, NOW, 1)
    return group


GOLDEN_2 = bytes.fromhex(
    "02 00000000000000050000000000000007 000000000000ea60 0000018bcfe65260 "
    "0000000000000003 0000000000000002 0000000000000001 0000000000000009 0000000000000004 00000002 "
    "00000001 0000018bcfe56800 0000018bcfe567ff 00000003 6f6e65 "
    "00000003 0000018bcfe56802 ffffffffffffffff 00000000"
)


def sealed(raw: bytes) -> bytes:
    return raw + struct.pack(">I", zlib.crc32(raw))


def test_golden_meta_with_consumers() -> None:
    group = with_consumers()
    assert group.meta() == sealed(GOLDEN_2)
    again = Group.restore(b"g", sealed(GOLDEN_2), dumped(group.pending))
    assert (again.entries_read, again.next_consumer) == (9, 4)
    assert [(one.name, one.number, one.seen, one.active) for one in again.consumers.values()] == [
        (b"one", 1, NOW, NOW - 1), (b"", 3, NOW + 2, -1)
    ]  # fmt: skip
    assert {number: one.name for number, one in again.owners.items()} == {1: b"one", 3: b""}
    assert again.pending.owned(3) == 1
    assert again.meta() == sealed(GOLDEN_2)
    assert again.memory_bytes() == group.memory_bytes() > full().memory_bytes() + 700


def test_what_version_1_implies_is_written_as_version_1() -> None:
    group = Group(b"g", 0)
    assert group.meta()[0] == 1
    group.entries_read = 0
    assert group.meta()[0] == 2
    group.entries_read, group.next_consumer = -1, 2  # there was a consumer: its number must not be given again
    assert group.meta()[0] == 2
    again = Group.restore(b"g", group.meta(), dumped(PendingTable()))
    assert (again.entries_read, again.next_consumer, again.consumers) == (-1, 2, {})


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
    newer = b"\x03" + meta[1:-4]
    with pytest.raises(CorruptError, match="newer tidelog"):
        Group.restore(b"g", newer + struct.pack(">I", zlib.crc32(newer)), blob)
    meta, blob = sealed(GOLDEN_2), dumped(with_consumers().pending)
    body, consumers = GOLDEN_2[:77], GOLDEN_2[77:]
    for bad in (
        *[GOLDEN_2[:at] for at in range(57, len(GOLDEN_2))],
        GOLDEN_2 + b"\0",
        b"\x01" + GOLDEN_2[1:],
        GOLDEN_2[:57] + b"\x80" + GOLDEN_2[58:],  # entries read
        GOLDEN_2[:72] + b"\x03" + GOLDEN_2[73:],  # a number that is not below the next one
        GOLDEN_2[:68] + b"\x01" + GOLDEN_2[69:],  # a next number that can't be
        GOLDEN_2[:65] + bytes(12),
        GOLDEN_2[:76] + b"\x03" + GOLDEN_2[77:],
        body[:76] + b"\x03" + consumers + consumers[27:],  # twice the same
        body + b"\0\0\0\0" + consumers[4:],
        body + consumers[:4] + b"\x80" + consumers[5:],  # seen
        body + consumers[:12] + b"\x80" + consumers[13:],  # active
        body + consumers[:-24] + b"\0\0\0\x02" + consumers[-20:],  # the owner of a message isn't there
    ):
        with pytest.raises(CorruptError, match="group b'g'"):
            Group.restore(b"g", sealed(bad), blob)
    for at in range(len(meta)):
        with pytest.raises(CorruptError, match="group b'g'"):
            Group.restore(b"g", meta[:at] + bytes([meta[at] ^ 0x40]) + meta[at + 1 :], blob)
    meta, blob = full().meta(), dumped(full().pending)
    with pytest.raises(CorruptError, match="pending list"):
        Group.restore(b"g", meta, blob[:-1])
