"""What ends by time: keys, groups, stages and overdue messages, by their timers."""

from __future__ import annotations

from array import array

import pytest

from storage.groups.group import Group
from storage.keyspace import deadletters, expiry, groupmutators, stagemutators
from storage.keyspace.groupmutators import Messages, Reader
from storage.keyspace.keyspace import Keyspace
from storage.model import records
from storage.model.entries import entry_wire, id_bulk, wire_values
from storage.model.ids import MAX_ID
from storage.model.timers import NEVER, PENDING_DROP
from storage.nodes.cache import NodeCache
from storage.nodes.pool import NodePool
from storage.streams.stream import Stream
from tests.storage.nodes.nodestore import MemoryStore

NOW = 1_700_000_000_000
EXPIRES, LIMITED = records.HAS_RETRY, records.HAS_RETRY | records.HAS_MAX


@pytest.fixture
def ks() -> Keyspace:
    return Keyspace(NodePool(MemoryStore(), NodeCache(1 << 16)))


def delivered(ks: Keyspace, count: int, reader: Reader, ttl: int = 0) -> tuple[Stream, Group]:
    """A stream ``s`` with ``count`` entries, all delivered to its group ``g``."""
    stream = ks.create_stream(b"s")
    for seq in range(count):
        ks.append(b"s", stream, NOW, seq, entry_wire(id_bulk(NOW, seq), [b"f", b"%d" % seq]))
    group = groupmutators.set_group(ks, b"s", stream, b"g", 0, ttl, NOW + ttl if ttl else NEVER)
    raws = [(NOW << 64 | seq).to_bytes(16, "big") for seq in range(count)]
    groupmutators.deliver(ks, b"s", stream, group, NOW << 64 | count - 1, reader, Messages(raws, [], []))
    ks.take_batch()
    return stream, group


def test_a_key_ends_at_its_last_deadline(ks: Keyspace) -> None:
    ks.set_string(b"k", b"v", NOW + 10)
    ks.set_expire(b"k", NOW + 30)  # the timer still has the earlier moment
    ks.take_batch()
    assert expiry.run(ks, NOW + 29) == 1
    assert ks.log == []
    assert ks.timers.next() == NOW + 30
    expiry.run(ks, NOW + 30)
    assert (ks.take_batch(), ks.expired_keys) == (records.delete(b"k"), 1)


def test_large_dead_letters_are_work_too(ks: Keyspace) -> None:
    """Each names its stream and group: a long name makes much of a small message."""
    stream, long = ks.create_stream(b"s"), b"g" * (1 << 20)
    group = groupmutators.set_group(ks, b"s", stream, long, 0, 0, NEVER)
    raws = [(NOW << 64 | seq).to_bytes(16, "big") for seq in range(30)]
    groupmutators.deliver(
        ks, b"s", stream, group, 0, Reader(NOW, 1, NOW + 1, 0, b"dead", EXPIRES), Messages(raws, [], [])
    )
    runs = 0
    while len(group.pending):
        ks.take_batch()
        expiry.run(ks, NOW + 1)
        runs += 1
        assert len(ks.take_batch()) < 20 << 20
    assert (runs, group.deadlettered) == (15, 30)


def test_one_run_is_bounded(ks: Keyspace) -> None:
    for number in range(expiry.AT_ONCE + 5):
        ks.set_string(b"%d" % number, b"v", NOW)
    assert expiry.run(ks, NOW) == expiry.AT_ONCE
    assert len(ks.keys) == 5
    assert expiry.run(ks, NOW) == 5
    assert (len(ks.keys), expiry.run(ks, NOW)) == (0, 0)


def test_a_group_ends_after_its_last_sign_of_life(ks: Keyspace) -> None:  # [15]
    stream, group = delivered(ks, 1, Reader(NOW, 0, NEVER, 0, b"", 0), ttl=100)
    group.touch(NOW + 60)
    expiry.run(ks, NOW + 159)
    assert (list(stream.groups), ks.expired_groups) == ([b"g"], 0)
    group.waiters = 1  # a blocked reader keeps it alive
    expiry.run(ks, NOW + 160)
    assert list(stream.groups) == [b"g"]
    group.waiters = 0
    ks.arm_group(b"s", group)  # as the server does when that reader leaves
    expiry.run(ks, NOW + 160)
    assert (list(stream.groups), ks.expired_groups) == ([], 1)
    assert ks.take_batch() == records.destroy(b"s", b"g")


def test_a_stage_ends_after_its_last_entry(ks: Keyspace) -> None:  # [32]
    for at in (NOW, NOW + 50):
        stagemutators.stage(ks, b"stage", b"s", 100, at + 100, array("I", [4]), b"bare")
    ks.take_batch()
    expiry.run(ks, NOW + 149)
    assert b"stage" in ks.stages.by_name
    expiry.run(ks, NOW + 150)
    assert (ks.take_batch(), ks.stages.expired) == (records.unstage([b"stage"]), 1)


def test_what_is_gone_ends_nothing(ks: Keyspace) -> None:
    delivered(ks, 1, Reader(NOW, 10, NOW + 20, 0, b"", EXPIRES), ttl=30)
    ks.remove(b"s")
    ks.set_string(b"s", b"another value")
    ks.timers.arm(PENDING_DROP, b"s", b"g", NOW)
    ks.take_batch()
    expiry.run(ks, NOW + 1000)
    assert ks.log == []


@pytest.mark.parametrize(
    ("reader", "moment", "reason"),
    [
        (Reader(NOW, 10, NOW + 50, 0, b"dead", EXPIRES), NOW + 50, b"expired"),
        (Reader(NOW, 10, NEVER, 1, b"dead", LIMITED), NOW + 10, b"maxdeliveries"),
        (Reader(NOW, 10, NOW + 50, 1, b"dead", LIMITED), NOW + 10, b"maxdeliveries"),
        (Reader(NOW, 60, NOW + 50, 1, b"dead", LIMITED), NOW + 50, b"expired"),
    ],
)
def test_overdue_messages_become_dead_letters(ks: Keyspace, reader: Reader, moment: int, reason: bytes) -> None:  # [23]
    stream, group = delivered(ks, 2, reader)
    ks.evict(b"s", stream, 1, NOW << 64)
    expiry.run(ks, moment - 1)
    assert (len(group.pending), list(ks.keys)) == (2, [b"s"])
    expiry.run(ks, moment)
    assert (len(group.pending), group.expired, group.deadlettered) == (0, 2, 2)
    dead = ks.keys[b"dead"]
    assert isinstance(dead, Stream)
    letters = [dead.find(moment << 64 | seq) for seq in range(2)]
    for seq, letter in enumerate(letters):
        assert letter is not None
        fields = [] if seq == 0 else [b"f", b"1"]  # the first entry was evicted
        assert wire_values(letter) == [
            *fields, b"__stream", b"s", b"__group", b"g", b"__id", b"%d.%d" % (NOW, seq),
            b"__deliveries", b"1", b"__reason", reason,
        ]  # fmt: skip


def test_messages_are_given_up_in_parts(ks: Keyspace) -> None:
    count = 2 * deadletters.AT_ONCE + 7
    stream, group = delivered(ks, count, Reader(NOW, 10, NOW + 50, 0, b"", EXPIRES))
    assert deadletters.drop_overdue(ks, b"s", stream, group, NOW + 50) == deadletters.AT_ONCE
    assert group.pending.rows(0, MAX_ID, 1)[0].id == NOW << 64 | deadletters.AT_ONCE, "the lowest ones first"
    while group.pending:
        assert expiry.run(ks, NOW + 50)
    assert group.expired == count


def test_a_dead_letter_that_can_not_be_appended_is_tried_again(ks: Keyspace) -> None:
    _, group = delivered(ks, 1, Reader(NOW, 10, NOW + 50, 0, b"dead", EXPIRES))
    ks.set_string(b"dead", b"not a stream")
    ks.take_batch()
    expiry.run(ks, NOW + 50)
    assert (len(group.pending), ks.log, ks.timers.next()) == (1, [], NOW + 50 + deadletters.RETRY_MS)
    ks.remove(b"dead")
    expiry.run(ks, NOW + 50 + deadletters.RETRY_MS)
    assert (len(group.pending), group.deadlettered) == (0, 1)
