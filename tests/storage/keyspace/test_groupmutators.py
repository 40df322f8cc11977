"""The mutators of groups: what each does, the record that it logs, and that the record does the same again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from storage.groups.group import Consumer, Group
from storage.groups.pending import PendingRow
from storage.groups.pendingformat import assemble
from storage.keyspace import groupmutators
from storage.keyspace.groupmutators import GroupDeadLetter, Messages, Ownership, Reader
from storage.keyspace.keyspace import Keyspace
from storage.keyspace.replay import replay
from storage.model import records
from storage.model.entries import entry_wire, id_bulk
from storage.model.ids import MAX_ID
from storage.model.timers import GROUP_EXPIRY, NEVER, PENDING_DROP
from storage.nodes.cache import NodeCache
from storage.nodes.pool import NodePool
from storage.streams.stream import Stream
from tests.storage.nodes.nodestore import MemoryStore

NOW = 1_700_000_000_000
IDS = [NOW << 64 | seq for seq in range(6)]
RAWS = [entry_id.to_bytes(16, "big") for entry_id in IDS]
ALL = records.HAS_RETRY | records.HAS_MAX | records.HAS_DEADLETTER
READER = Reader(NOW, 100, NOW + 900, 3, b"dead", ALL)


class Setup:
    """A stream ``s`` with six entries, a group ``g`` and blocked readers; and a twin, which replays what is logged."""

    def __init__(self) -> None:
        self.ks, self.twin = empty(), empty()
        self.stream = self.ks.create_stream(b"s")
        for seq in range(6):
            self.ks.append(b"s", self.stream, NOW, seq, wire(seq))
        self.group = groupmutators.set_group(self.ks, b"s", self.stream, b"g", 0, 0, NEVER)
        replay(self.twin, self.ks.take_batch())
        self.twin.take_batch()
        for ks in (self.ks, self.twin):
            ks.waiting[b"s"] = 2
            ks.ready.clear()

    def deliver(self, count: int, reader: Reader = READER) -> None:
        """The first ``count`` entries, as new ones."""
        groupmutators.deliver(
            self.ks, b"s", self.stream, self.group, IDS[count - 1], reader, Messages(RAWS[:count], [], [])
        )
        self.logged(None)

    def logged(self, record: bytes | None) -> None:
        """This record (None: any one) was logged, and the twin does the same by it."""
        batch = self.ks.take_batch()
        assert replay(self.twin, batch) == 1
        if record is not None:
            assert batch == record
        assert self.twin.take_batch() == batch
        assert self.twin.digest() == self.ks.digest()
        assert facts(self.twin) == facts(self.ks)
        assert self.twin.timers.next() == self.ks.timers.next()
        assert set(self.twin.ready) == set(self.ks.ready)
        self.twin.ready.clear()
        self.ks.ready.clear()

    def pending(self) -> list[PendingRow]:
        return self.group.pending.rows(0, MAX_ID, 100)


def empty() -> Keyspace:
    return Keyspace(NodePool(MemoryStore(), NodeCache(1 << 16)))


def wire(seq: int) -> bytes:
    return entry_wire(id_bulk(NOW, seq), [b"f", b"%d" % seq])


def row(
    entry: int, deliveries: int, first: int, due: int, expire: int, retry: int, most: int, key: bytes
) -> PendingRow:  # fmt: skip
    """What TREAD delivered."""
    return PendingRow(entry, deliveries, first, due, expire, retry, most, key, 0, due - retry)


def facts(ks: Keyspace) -> list[tuple[object, ...]]:
    """Everything of all groups that a checkpoint keeps."""
    return [
        (key, value.lone, name, group.meta(), group.pending.parts())
        for key, value in sorted(ks.keys.items()) if isinstance(value, Stream)
        for name, group in sorted(value.groups.items())
    ]  # fmt: skip


@pytest.fixture
def at() -> Iterator[Setup]:
    setup = Setup()
    yield setup
    assert setup.ks.log == [], "what was logged was looked at"


# -- set_group -----------------------------------------------------------------------------------------------------
def test_set_group_makes_a_group(at: Setup) -> None:
    made = groupmutators.set_group(at.ks, b"s", at.stream, b"new", IDS[2], 500, NOW + 500)
    assert at.stream.groups[b"new"] is made
    assert (made.name, made.offset, made.ttl, made.deadline, made.dirty) == (b"new", IDS[2], 500, NOW + 500, True)
    assert at.ks.ready == [b"s"]
    at.logged(records.group(b"s", b"new", IDS[2], 500, NOW + 500))
    assert at.ks.timers.take(NOW + 500) == (GROUP_EXPIRY, b"s", b"new")


def test_set_group_changes_one_that_exists_and_keeps_its_messages(at: Setup) -> None:
    at.deliver(3)
    changed = groupmutators.set_group(at.ks, b"s", at.stream, b"g", IDS[0], 700, NOW + 700)
    assert changed is at.group
    assert (changed.offset, changed.ttl, changed.deadline, len(changed.pending)) == (IDS[0], 700, NOW + 700, 3)
    assert groupmutators.cursor(at.stream, changed) == 1
    at.logged(records.group(b"s", b"g", IDS[0], 700, NOW + 700))


def test_the_record_of_a_group_makes_its_stream() -> None:  # [14]
    ks = empty()
    replay(ks, records.group(b"s", b"g", 0, 0, NEVER))
    stream = ks.keys[b"s"]
    assert isinstance(stream, Stream)
    assert list(stream.groups) == [b"g"]


# -- deliver -------------------------------------------------------------------------------------------------------
def test_deliver_moves_the_offset_and_keeps_messages_pending(at: Setup) -> None:
    groupmutators.deliver(at.ks, b"s", at.stream, at.group, IDS[1], READER, Messages(RAWS[:2], [], []))
    assert at.group.offset == IDS[1]
    assert at.pending() == [row(entry_id, 1, NOW, NOW + 100, NOW + 900, 100, 3, b"dead") for entry_id in IDS[:2]]
    assert (at.group.redelivered, at.group.dirty) == (0, True)
    assert at.ks.timers.next() == NOW + 900
    assert at.ks.ready == [], "readers of the group have nothing new"
    at.logged(records.deliver(b"s", b"g", IDS[1], NOW, 100, NOW + 900, 3, b"dead", ALL, RAWS[:2], [], []))


def test_deliver_without_retry_keeps_nothing_pending(at: Setup) -> None:
    groupmutators.deliver(
        at.ks, b"s", at.stream, at.group, IDS[3], Reader(NOW, 0, NEVER, 0, b"", 0), Messages(RAWS[:4], [], [])
    )
    assert (at.group.offset, at.pending(), at.ks.timers.next()) == (IDS[3], [], None)
    at.logged(records.deliver(b"s", b"g", IDS[3], NOW, 0, NEVER, 0, b"", 0, RAWS[:4], [], []))


@pytest.mark.parametrize(
    ("flags", "most", "dead"),
    [(records.HAS_RETRY, 3, b"dead"), (records.HAS_RETRY | records.HAS_MAX, 7, b"dead"), (ALL, 7, b"other")],
)
def test_deliver_again_with_the_terms_of_the_reader(at: Setup, flags: int, most: int, dead: bytes) -> None:  # [20]
    at.deliver(3)
    reader = Reader(NOW + 100, 250, NOW + 9999, 7, b"other", flags)
    groupmutators.deliver(at.ks, b"s", at.stream, at.group, at.group.offset, reader, Messages([], RAWS[:2], []))
    again = [row(entry_id, 2, NOW, NOW + 350, NOW + 900, 250, most, dead) for entry_id in IDS[:2]]
    assert at.pending()[:2] == again
    assert at.pending()[2].deliveries == 1
    assert (at.group.redelivered, at.group.offset) == (2, IDS[2])
    at.logged(None)


def test_deliver_again_without_retry_keeps_the_terms(at: Setup) -> None:  # [20]
    at.deliver(2)
    reader = Reader(NOW + 100, 0, NEVER, 0, b"", 0)
    groupmutators.deliver(at.ks, b"s", at.stream, at.group, IDS[3], reader, Messages(RAWS[2:4], [RAWS[1]], []))
    first, second = at.pending()
    assert (first.id, first.deliveries) == (IDS[0], 1)
    assert second == row(IDS[1], 2, NOW, NOW + 200, NOW + 900, 100, 3, b"dead")
    assert at.group.offset == IDS[3]
    at.logged(None)


def test_deliver_removes_messages_whose_entries_were_evicted(at: Setup) -> None:  # [17] (b)
    at.deliver(4)
    reader = Reader(NOW + 100, 0, NEVER, 0, b"", 0)
    groupmutators.deliver(at.ks, b"s", at.stream, at.group, at.group.offset, reader, Messages([], RAWS[2:3], RAWS[:2]))
    assert [row.id for row in at.pending()] == IDS[2:4]
    assert at.group.redelivered == 1
    at.logged(None)


# -- ack -----------------------------------------------------------------------------------------------------------
def test_ack_removes_what_is_pending(at: Setup) -> None:  # [22]
    at.deliver(4)
    acknowledged = [RAWS[2], RAWS[0], RAWS[5], RAWS[0]]
    assert groupmutators.ack(at.ks, b"s", at.stream, at.group, acknowledged) == 2
    assert [row.id for row in at.pending()] == [IDS[1], IDS[3]]
    assert (at.group.expired, at.group.offset) == (0, IDS[3])
    at.logged(records.ack(b"s", b"g", acknowledged))


def test_ack_of_nothing_logs_nothing(at: Setup) -> None:
    at.deliver(1)
    at.group.dirty = False
    assert groupmutators.ack(at.ks, b"s", at.stream, at.group, [RAWS[4]]) == 0
    assert (at.ks.log, at.group.dirty) == ([], False)


# -- set_due -------------------------------------------------------------------------------------------------------
def test_set_due_moves_what_is_pending(at: Setup) -> None:  # [29]
    at.deliver(3)
    assert groupmutators.set_due(at.ks, b"s", at.stream, at.group, NOW + 7, [RAWS[2], RAWS[5], RAWS[0]]) == 2
    assert [row.due for row in at.pending()] == [NOW + 7, NOW + 100, NOW + 7]
    assert [row.deliveries for row in at.pending()] == [1, 1, 1]
    assert at.group.pending.next_due() == NOW + 7
    assert at.ks.ready == [b"s"], "a reader may get them"
    at.logged(records.due(b"s", b"g", NOW + 7, [RAWS[0], RAWS[2]]))


def test_set_due_of_a_last_delivery_moves_its_end(at: Setup) -> None:
    at.deliver(1, Reader(NOW, 100, NEVER, 1, b"", records.HAS_RETRY | records.HAS_MAX))
    assert at.ks.timers.next() == NOW + 100
    groupmutators.set_due(at.ks, b"s", at.stream, at.group, NOW + 30, RAWS[:1])
    at.logged(None)
    assert at.ks.timers.take(NOW + 30) == (PENDING_DROP, b"s", b"g")


def test_set_due_of_nothing_logs_nothing(at: Setup) -> None:
    assert groupmutators.set_due(at.ks, b"s", at.stream, at.group, NOW, RAWS) == 0
    assert (at.ks.log, at.ks.ready) == ([], [])


# -- drop ----------------------------------------------------------------------------------------------------------
def test_drop_gives_a_message_up(at: Setup) -> None:
    at.deliver(2)
    groupmutators.drop(at.ks, b"s", at.stream, at.group, IDS[0], "expired", None)
    assert [row.id for row in at.pending()] == [IDS[1]]
    assert (at.group.expired, at.group.deadlettered) == (1, 0)
    assert list(at.ks.keys) == [b"s"]
    at.logged(records.drop(b"s", b"g", IDS[0], "expired", b"", 0, 0, b""))


def test_drop_appends_the_dead_letter_in_the_same_record(at: Setup) -> None:  # [23]
    at.deliver(2)
    at.ks.waiting[b"dead"] = at.twin.waiting[b"dead"] = 1
    for seq, reason in enumerate(("maxdeliveries", "expired")):
        letter = entry_wire(id_bulk(NOW + 1, seq), [b"letter", b"%d" % seq])
        groupmutators.drop(
            at.ks, b"s", at.stream, at.group, IDS[seq], reason, GroupDeadLetter(b"dead", NOW + 1, seq, letter)
        )
        target = at.ks.keys[b"dead"]
        assert isinstance(target, Stream)
        assert target.find(NOW + 1 << 64 | seq) == letter
        assert (target.length, at.group.expired, at.group.deadlettered) == (seq + 1, seq + 1, seq + 1)
        assert at.ks.ready == [b"dead"]
        at.logged(records.drop(b"s", b"g", IDS[seq], reason, b"dead", NOW + 1, seq, letter))


# -- the end of a group --------------------------------------------------------------------------------------------
def test_destroy_group_takes_messages_and_timers_along(at: Setup) -> None:  # [16]
    at.deliver(3)
    groupmutators.destroy_group(at.ks, b"s", at.stream, b"g")
    assert (at.stream.groups, len(at.ks.timers), at.ks.ready) == ({}, 0, [b"s"])
    at.logged(records.destroy(b"s", b"g"))


def test_end_group_keeps_a_stream_that_had_entries(at: Setup) -> None:
    at.ks.evict(b"s", at.stream, 6, IDS[5])
    at.logged(None)
    groupmutators.end_group(at.ks, b"s", at.stream, b"g")
    assert list(at.ks.keys) == [b"s"]
    at.logged(records.destroy(b"s", b"g"))


def test_end_group_takes_a_stream_along_that_existed_for_groups_only() -> None:  # [14]
    ks, twin = empty(), empty()
    stream = ks.create_stream(b"s")
    for name in (b"g", b"h"):
        groupmutators.set_group(ks, b"s", stream, name, 0, 0, NEVER)
    groupmutators.end_group(ks, b"s", stream, b"g")
    assert list(ks.keys) == [b"s"]
    groupmutators.end_group(ks, b"s", stream, b"h")
    assert (list(ks.keys), len(ks.index)) == ([], 0)
    batch = ks.take_batch()
    assert batch.endswith(records.destroy(b"s", b"h") + records.delete(b"s"))
    replay(twin, batch)
    assert twin.digest() == ks.digest()


# -- consumers -----------------------------------------------------------------------------------------------------
def made(at: Setup, name: bytes = b"c") -> Consumer:
    consumer, new = groupmutators.consumer(at.ks, b"s", at.stream, at.group, name, NOW)
    assert new
    at.logged(None)
    return consumer


def x(entry: int, owner: Consumer | None, last: int, deliveries: int = 1, first: int = NOW) -> PendingRow:
    """What XREADGROUP delivered."""
    return PendingRow(entry, deliveries, first, 0, 0, 0, 0, b"", owner.number if owner else 0, last)


def test_create_group_and_move_group(at: Setup) -> None:
    group = groupmutators.create_group(at.ks, b"s", at.stream, b"new", IDS[2], 3)
    assert (group.offset, group.entries_read, group.ttl, at.stream.lone, at.ks.ready) == (IDS[2], 3, 0, False, [b"s"])
    at.logged(records.xgroup(b"s", b"new", IDS[2], 3, 0))
    groupmutators.move_group(at.ks, b"s", at.stream, group, 0, -1)
    assert (group.offset, group.entries_read, at.ks.ready) == (0, -1, [b"s"])
    at.logged(records.xgroup(b"s", b"new", 0, -1, 0))


def test_move_group_keeps_the_time_to_live_and_messages(at: Setup) -> None:
    at.deliver(2)
    groupmutators.set_group(at.ks, b"s", at.stream, b"g", at.group.offset, 500, NOW + 500)
    at.logged(None)
    groupmutators.move_group(at.ks, b"s", at.stream, at.group, IDS[4], 5)
    assert (at.group.ttl, at.group.deadline, len(at.group.pending)) == (500, NOW + 500, 2)
    at.logged(None)


def test_a_lone_stream_outlives_its_groups() -> None:
    ks, twin = empty(), empty()
    stream = ks.create_stream(b"s")
    groupmutators.create_group(ks, b"s", stream, b"g", 0, 0, lone=True)
    groupmutators.end_group(ks, b"s", stream, b"g")
    batch = ks.take_batch()
    assert batch == records.xgroup(b"s", b"g", 0, 0, records.LONE) + records.destroy(b"s", b"g")
    replay(twin, batch)
    for each in (ks, twin):
        value = each.keys[b"s"]
        assert isinstance(value, Stream)
        assert (value.lone, value.groups) == (True, {})
    assert twin.take_batch() == batch
    assert twin.digest() == ks.digest()


def test_consumers_are_made_once_and_seen_again(at: Setup) -> None:
    at.group.ttl = 700
    first, new = groupmutators.consumer(at.ks, b"s", at.stream, at.group, b"c", NOW)
    assert (first.name, first.number, first.seen, first.active, new) == (b"c", 1, NOW, -1, True)
    assert at.group.deadline == NOW + 700, "a sign of life"
    at.group.ttl, at.group.deadline = 0, NEVER
    at.logged(records.consumer(b"s", b"g", 1, NOW, b"c"))
    assert groupmutators.consumer(at.ks, b"s", at.stream, at.group, b"c", NOW + 5) == (first, False)
    assert (first.seen, at.ks.log) == (NOW + 5, [])
    first.seen = NOW
    second = made(at, b"")
    assert (second.number, at.group.owners) == (2, {1: first, 2: second})


def test_numbers_are_not_given_again(at: Setup) -> None:
    assert groupmutators.forget_consumer(at.ks, b"s", at.stream, at.group, made(at)) == 0
    at.logged(records.forget(b"s", b"g", 1))
    assert made(at).number == 2
    for group in (at.group, group_of(at.twin)):
        group.next_consumer = 1 << 32
    assert made(at, b"d").number == 1, "until four billion were given"
    assert made(at, b"e").number == 3
    again = Group.restore(b"g", at.group.meta(), bytes(assemble(at.group.pending.parts())))
    assert (again.next_consumer, again.free_number()) == (1 << 32, 4)


def group_of(ks: Keyspace) -> Group:
    stream = ks.keys[b"s"]
    assert isinstance(stream, Stream)
    return stream.groups[b"g"]


def test_own_new_messages(at: Setup) -> None:
    consumer = made(at)
    groupmutators.own(
        at.ks, b"s", at.stream, at.group, consumer, NOW + 5, Messages(RAWS[:3], [], []), position=(IDS[2], 3)
    )
    assert at.pending() == [x(entry_id, consumer, NOW + 5, first=NOW + 5) for entry_id in IDS[:3]]
    assert (at.group.offset, at.group.entries_read, consumer.active) == (IDS[2], 3, NOW + 5)
    at.logged(records.own(b"s", b"g", 1, records.INCREMENT, IDS[2], 3, NOW + 5, NOW + 5, 0, RAWS[:3], [], []))
    assert at.ks.timers.next() is None
    # set back, they begin anew, even another's
    other = made(at, b"other")
    groupmutators.own(
        at.ks, b"s", at.stream, at.group, other, NOW + 9, Messages(RAWS[:2], [], []), position=(IDS[1], 2)
    )
    assert [row.owner for row in at.pending()] == [2, 2, 1]
    assert at.pending()[0] == x(IDS[0], other, NOW + 9, first=NOW + 9)
    at.logged(None)


def test_own_claims_from_anybody(at: Setup) -> None:
    at.deliver(2)
    one, two = made(at), made(at, b"two")
    groupmutators.own(at.ks, b"s", at.stream, at.group, one, NOW, Messages(RAWS[2:4], [], []), position=(IDS[3], -1))
    at.logged(None)
    new, again, gone = [RAWS[5]], RAWS[1:3], [RAWS[3]]
    groupmutators.own(
        at.ks, b"s", at.stream, at.group, two, NOW + 8, Messages(new, again, gone), Ownership(last=NOW + 3),
        position=(IDS[3], -1),
    )  # fmt: skip
    assert at.pending()[1:] == [
        x(IDS[1], two, NOW + 3, 2), x(IDS[2], two, NOW + 3, 2), x(IDS[5], two, NOW + 3, 1, NOW + 3)
    ]  # fmt: skip
    assert [at.group.pending.owned(number) for number in (1, 2)] == [0, 3]
    assert (two.active, one.active) == (NOW + 8, NOW)
    at.logged(records.own(b"s", b"g", 2, records.INCREMENT, IDS[3], -1, NOW + 3, NOW + 8, 0, new, again, gone))
    # the server's redelivery leaves them alone
    assert at.group.pending.due(NOW + 10**9, 9) == []
    assert at.group.pending.drops(NOW + 10**9, 9) == [(IDS[0], "expired")]
    assert groupmutators.set_due(at.ks, b"s", at.stream, at.group, NOW, RAWS[1:3]) == 0
    assert at.ks.log == []
    assert groupmutators.ack(at.ks, b"s", at.stream, at.group, RAWS[:2]) == 2
    at.logged(None)


@pytest.mark.parametrize(
    ("count", "step", "flags", "deliveries"),
    [
        (None, 1, records.INCREMENT, 3), (None, 0, 0, 2), (None, -1, records.DECREMENT, 1),
        (0, 1, records.HAS_COUNT, 0), (1 << 40, 1, records.HAS_COUNT, 1 << 40),
    ],
)  # fmt: skip
def test_own_counts_deliveries(at: Setup, count: int | None, step: int, flags: int, deliveries: int) -> None:
    consumer = made(at)
    groupmutators.own(
        at.ks, b"s", at.stream, at.group, consumer, NOW, Messages(RAWS[:1], [], []), Ownership(count=2),
        position=(0, -1),
    )  # fmt: skip
    at.logged(None)
    groupmutators.own(
        at.ks, b"s", at.stream, at.group, consumer, NOW + 1, Messages([], RAWS[:1], []),
        Ownership(count=count, step=step), position=(0, -1),
    )  # fmt: skip
    assert at.pending() == [x(IDS[0], consumer, NOW + 1, deliveries)]
    at.logged(records.own(b"s", b"g", 1, flags, 0, -1, NOW + 1, NOW + 1, count or 0, [], RAWS[:1], []))


def test_own_by_nobody_gives_messages_back_in_order(at: Setup) -> None:
    consumer = made(at)
    groupmutators.own(at.ks, b"s", at.stream, at.group, consumer, NOW, Messages(RAWS[:4], [], []), position=(IDS[3], 4))
    at.logged(None)
    for raw in (RAWS[2], RAWS[0]):  # in the same millisecond
        groupmutators.own(
            at.ks, b"s", at.stream, at.group, None, NOW + 1, Messages([], [raw], []), Ownership(step=0),
            position=(IDS[3], 4),
        )  # fmt: skip
        at.logged(None)
    assert at.pending()[0] == x(IDS[0], None, 0)
    assert at.group.pending.owned(0) == 2
    assert [row.id for row in at.group.pending.idle_before(NOW, None, 9)] == [IDS[2], IDS[0], IDS[1], IDS[3]]
    assert (at.group.pending.first_idle(), consumer.active) == (0, NOW)


def test_own_of_nothing_logs_nothing(at: Setup) -> None:
    consumer = made(at)
    groupmutators.own(at.ks, b"s", at.stream, at.group, consumer, NOW + 1, Messages([], [], []), position=(0, -1))
    assert (at.ks.log, consumer.active) == ([], -1)
    groupmutators.own(
        at.ks, b"s", at.stream, at.group, consumer, NOW + 1, Messages([], [], []), position=(0, 0)
    )  # it knows more than before
    assert (at.group.entries_read, consumer.active) == (0, -1)
    at.logged(None)


def test_forget_consumer_takes_its_messages_along(at: Setup) -> None:
    one, two = made(at), made(at, b"two")
    groupmutators.own(at.ks, b"s", at.stream, at.group, one, NOW, Messages(RAWS[:2], [], []), position=(IDS[1], 2))
    groupmutators.own(at.ks, b"s", at.stream, at.group, two, NOW, Messages(RAWS[2:3], [], []), position=(IDS[2], 3))
    replay(at.twin, at.ks.take_batch())
    at.twin.take_batch()
    assert groupmutators.forget_consumer(at.ks, b"s", at.stream, at.group, one) == 2
    assert (at.pending(), at.group.consumers, at.group.owners) == ([x(IDS[2], two, NOW)], {b"two": two}, {2: two})
    at.logged(records.forget(b"s", b"g", 1))


def test_a_reader_of_the_server_keeps_the_entries_read(at: Setup) -> None:
    groupmutators.move_group(at.ks, b"s", at.stream, at.group, 0, 0)
    at.logged(None)
    at.deliver(4)
    assert at.group.entries_read == 4
    groupmutators.set_group(at.ks, b"s", at.stream, b"g", IDS[3], 0, NEVER)  # the offset stays
    at.logged(None)
    assert at.group.entries_read == 4
    groupmutators.set_group(at.ks, b"s", at.stream, b"g", IDS[0], 0, NEVER)
    at.logged(None)
    assert at.group.entries_read == -1
    at.deliver(5)
    assert at.group.entries_read == -1, "not known before, so not after"


def test_a_read_with_retry_takes_a_consumers_message_over(at: Setup) -> None:
    consumer = made(at)
    groupmutators.own(at.ks, b"s", at.stream, at.group, consumer, NOW, Messages(RAWS[:2], [], []), position=(IDS[1], 2))
    groupmutators.set_group(at.ks, b"s", at.stream, b"g", 0, 0, NEVER)
    replay(at.twin, at.ks.take_batch())
    at.twin.take_batch()
    at.deliver(1)
    assert at.pending() == [row(IDS[0], 1, NOW, NOW + 100, NOW + 900, 100, 3, b"dead"), x(IDS[1], consumer, NOW)]
    assert at.group.pending.owned(1) == 1


# -- cursor --------------------------------------------------------------------------------------------------------
def test_cursor_is_the_first_entry_not_read_yet(at: Setup) -> None:
    for offset, ordinal in ((0, 0), (IDS[0], 1), (IDS[4], 5), (IDS[5], 6), (IDS[5] + 9, 6)):
        assert groupmutators.cursor(at.stream, Group(b"other", offset)) == ordinal


def test_cursor_remembers_where_a_read_ended(at: Setup) -> None:
    group = Group(b"other", IDS[2])
    group.cursor, group.cursor_of = 3, IDS[2]
    assert groupmutators.cursor(at.stream, group) == 3
    at.stream.evict_before(5, IDS[4])
    assert groupmutators.cursor(at.stream, group) == 5, "eviction overtook it"
    group.offset = IDS[5]  # moved elsewhere, as by TGROUP SETID
    assert groupmutators.cursor(at.stream, group) == 6
