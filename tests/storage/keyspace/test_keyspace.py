"""The keyspace's mutators, and the rules at the head of its module. ``test_replay`` and ``test_changes`` go on from
here, with random commands."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import pytest

from resp.errors import CommandError
from storage.keyspace import groupmutators, stagemutators
from storage.keyspace.changes import EVERYTHING
from storage.keyspace.groupmutators import Messages
from storage.keyspace.keyspace import Keyspace
from storage.keyspace.recordheads import SHORT, RecordHeads
from storage.keyspace.replay import replay
from storage.keyspace.values import String
from storage.model import records
from storage.model.entries import entry_wire, id_bulk
from storage.model.ids import MASK64
from storage.model.timers import GROUP_EXPIRY, KEY_EXPIRY, PENDING_DROP, STAGE_EXPIRY
from storage.nodes.cache import NodeCache
from storage.nodes.pool import NodePool
from storage.streams.capture import Capture
from storage.streams.stream import Stream
from tests.storage.nodes.nodestore import MemoryStore
from tests.storage.streams.captures import all_stored, parts_of, whole_capture

NOW = 1_700_000_000_000


class Client:
    """What WATCH registers."""

    def __init__(self) -> None:
        self.dirty_cas = False


def empty() -> Keyspace:
    return Keyspace(NodePool(MemoryStore(), NodeCache(1 << 16)))


def wire(ms: int, seq: int) -> bytes:
    return entry_wire(id_bulk(ms, seq), [b"f", b"v"])


def append(ks: Keyspace, key: bytes, count: int = 1) -> Stream:
    stream = ks.stream(key, NOW) or ks.create_stream(key)
    for _ in range(count):
        ms, seq = ks.next_id(stream, NOW)
        ks.append(key, stream, ms, seq, wire(ms, seq))
    return stream


def string_at(ks: Keyspace, key: bytes) -> String:
    found = ks.keys[key]
    assert isinstance(found, String)
    return found


def stream_at(ks: Keyspace, key: bytes) -> Stream:
    found = ks.keys[key]
    assert isinstance(found, Stream)
    return found


@pytest.fixture
def ks() -> Keyspace:
    """A stream ``s`` with three entries and a group, a string ``text``, both with an expiry, and a string ``plain``."""
    ks = empty()
    stream = append(ks, b"s", 3)
    group = groupmutators.set_group(ks, b"s", stream, b"g", 0, 60_000, NOW + 60_000)
    reader = groupmutators.Reader(NOW, 1000, NOW + 5000, 0, b"", records.HAS_RETRY)
    groupmutators.deliver(
        ks, b"s", stream, group, NOW << 64, reader, Messages([(NOW << 64).to_bytes(16, "big")], [], [])
    )
    ks.set_expire(b"s", NOW + 90_000)
    ks.set_string(b"text", b"old", NOW + 90_000)
    ks.set_string(b"plain", b"v")
    return ks


# -- Rule 1: a mutator logs a record, which replays to the same state ----------------------------------------------
def batch_of_two(ks: Keyspace) -> None:
    wires = [wire(NOW, 3), wire(NOW, 4)]
    ks.append_packed(b"s", stream_at(ks, b"s"), NOW, 3, array("I", map(len, wires)), b"".join(wires))


def two_in_parts(ks: Keyspace) -> None:
    wires = [wire(NOW, 3), wire(NOW, 4)]
    parts = [wires[0], wires[1][:3], wires[1][3:]]
    ks.append_parts(b"s", stream_at(ks, b"s"), NOW, 3, array("I", map(len, wires)), parts, [1, 2])


# by name: the keys that it changes, and the mutator
MUTATORS: dict[str, tuple[set[bytes], Callable[[Keyspace], object]]] = {
    "append": ({b"s"}, lambda ks: append(ks, b"s")),
    "append to a new key": ({b"new"}, lambda ks: append(ks, b"new")),
    "append_packed": ({b"s"}, batch_of_two),
    "append_parts": ({b"s"}, two_in_parts),
    "evict": ({b"s"}, lambda ks: ks.evict(b"s", stream_at(ks, b"s"), 2, NOW << 64 | 1)),
    "evict_before": ({b"s"}, lambda ks: ks.evict_before(b"s", stream_at(ks, b"s"), 2)),
    "set_string": ({b"text"}, lambda ks: ks.set_string(b"text", b"new")),
    "set_string, keeping the expiry": ({b"text"}, lambda ks: ks.set_string(b"text", b"new", keep_ttl=True)),
    "set_string over a stream": ({b"s"}, lambda ks: ks.set_string(b"s", b"new")),
    "set_string of a new key": ({b"new"}, lambda ks: ks.set_string(b"new", b"new", NOW + 1)),
    "replace_string": ({b"text"}, lambda ks: ks.replace_string(b"text", string_at(ks, b"text"), b"12")),
    "remove a stream": ({b"s"}, lambda ks: ks.remove(b"s")),
    "remove a string": ({b"text"}, lambda ks: ks.remove(b"text")),
    "set_expire of a stream": ({b"s"}, lambda ks: ks.set_expire(b"s", NOW + 1)),
    "set_expire of a string": ({b"plain"}, lambda ks: ks.set_expire(b"plain", NOW + 1)),
    "persist a stream": ({b"s"}, lambda ks: ks.persist(b"s")),
    "persist a string": ({b"text"}, lambda ks: ks.persist(b"text")),
    "flush": ({b"s", b"text", b"plain"}, lambda ks: ks.flush()),
}


@pytest.fixture
def twin(ks: Keyspace) -> Keyspace:
    """Another keyspace with the same content."""
    twin = empty()
    replay(twin, ks.take_batch())
    twin.take_batch()
    assert twin.digest() == ks.digest()
    return twin


@pytest.mark.parametrize("mutator", MUTATORS)
def test_what_a_mutator_logs_replays_to_its_state(ks: Keyspace, twin: Keyspace, mutator: str) -> None:
    before, count = ks.digest(), ks.changes.count
    MUTATORS[mutator][1](ks)
    assert ks.digest() != before
    assert ks.changes.count > count
    batch = ks.take_batch()
    assert replay(twin, batch) == 1
    assert twin.digest() == ks.digest()
    assert twin.take_batch() == batch
    assert (twin.expires, len(twin.timers), twin.string_bytes) == (ks.expires, len(ks.timers), ks.string_bytes)
    assert sorted(twin.index.page(0, 100)[1]) == sorted(twin.keys) == sorted(ks.keys)


def test_evictions_of_a_tick_are_one_record(ks: Keyspace, twin: Keyspace) -> None:
    stream, other = stream_at(ks, b"s"), append(ks, b"other", 4)
    count = ks.changes.count
    assert ks.evict_before(b"s", stream, 1) == 1
    assert ks.log, "a tick has to commit it"
    assert ks.evict_before(b"other", other, 3) == 3
    append(ks, b"s", 2)
    assert ks.evict_before(b"s", stream, 4) == 3
    assert (stream.first_ord, stream.evicted_to) == (4, NOW << 64 | 3)
    assert ks.changes.count == count + 1 + 3 + 2 + 3
    batch = ks.take_batch()
    assert batch.endswith(records.evict(b"s", 4, NOW << 64 | 3) + records.evict(b"other", 3, NOW << 64 | 2))
    assert replay(twin, batch) == 4 + 2 + 2
    assert (twin.digest(), twin.take_batch()) == (ks.digest(), batch)
    assert (ks.take_batch(), ks.log) == (b"", [])


# what must not be logged before an eviction that it follows, or after one that it precedes
AFTER: dict[str, Callable[[Keyspace], object]] = {
    **{name: mutator for name, (keys, mutator) in MUTATORS.items() if b"s" in keys and "append" not in name},
    "delete the first": lambda ks: ks.delete_entries(b"s", stream_at(ks, b"s"), [1], NOW << 64 | 1),
    "delete the last": lambda ks: ks.delete_entries(b"s", stream_at(ks, b"s"), [2], NOW << 64 | 2),
    "set_last_id": lambda ks: ks.set_last_id(b"s", stream_at(ks, b"s"), (NOW << 64) + 100, 100, 0),
    "rename": lambda ks: ks.rename(b"s", b"moved"),
    "rename to it": lambda ks: ks.rename(b"plain", b"s"),
    "set_group": lambda ks: groupmutators.set_group(ks, b"s", stream_at(ks, b"s"), b"h", NOW << 64, 0, 0),
    "nothing": lambda _: None,
}


@pytest.mark.parametrize("after", AFTER)
def test_an_eviction_is_logged_before_what_follows_it(ks: Keyspace, twin: Keyspace, after: str) -> None:
    ks.evict_before(b"s", stream_at(ks, b"s"), 1)
    AFTER[after](ks)
    stream = ks.keys.get(b"s")
    if isinstance(stream, Stream):
        append(ks, b"s", 2)
        ks.evict_before(b"s", stream, stream.next_ord)
    batch = ks.take_batch()
    replay(twin, batch)
    assert (twin.digest(), twin.take_batch()) == (ks.digest(), batch)


def test_an_eviction_is_captured_before_it_happens(ks: Keyspace) -> None:
    whole = whole_capture(ks)
    all_stored(ks, whole)
    append(ks, b"s")
    ks.take_batch()
    capture, digest = ks.begin_capture(), ks.digest()
    ks.evict_before(b"s", stream_at(ks, b"s"), 2)
    assert [taken.first_ord for taken in capture.streams] == [0]
    assert ks.digest() != digest


NO_EFFECT: dict[str, Callable[[Keyspace], object]] = {
    "create_stream": lambda ks: ks.create_stream(b"new"),
    "evict nothing": lambda ks: ks.evict(b"s", stream_at(ks, b"s"), 0, 0),
    "remove nothing": lambda ks: ks.remove(b"none"),
    "delete nothing": lambda ks: ks.delete(b"none", NOW),
    "persist without an expiry": lambda ks: ks.persist(b"plain"),
    "read": lambda ks: (ks.get(b"s", NOW), ks.peek(b"text", NOW), ks.stream(b"s", NOW), ks.string(b"text", NOW)),
}


@pytest.mark.parametrize("what", NO_EFFECT)
def test_what_changes_nothing_logs_nothing(ks: Keyspace, what: str) -> None:
    ks.take_batch()
    NO_EFFECT[what](ks)
    assert ks.take_batch() == b""


def test_a_batch_takes_the_records_in_order() -> None:
    ks = empty()
    ks.set_string(b"a", b"1")
    ks.remove(b"a")
    assert ks.take_batch() == records.set_string(b"a", b"1", 0) + records.delete(b"a")
    assert ks.take_batch() == b""


@pytest.mark.parametrize("key_len", [0, 1, SHORT - 1, SHORT, 5000])
@pytest.mark.parametrize("value_len", [0, 1, SHORT - 1, SHORT, 5000])
@pytest.mark.parametrize("expire", [0, NOW])
def test_heads_of_set_records_are_the_same_the_second_time(key_len: int, value_len: int, expire: int) -> None:
    size = records.KEY_TIME_HEAD.size - 5 + key_len + value_len
    expected = records.KEY_TIME_HEAD.pack(records.SET, size, key_len, expire)
    heads = RecordHeads()
    for _ in range(2):
        assert heads.set(bytes(key_len), value_len, expire) == expected


def test_what_was_passed_over_counts_as_changed() -> None:
    ks = empty()
    ks.set_string(b"a", b"2")
    ks.passed_over(4)
    assert ks.changes.count == 5


# -- Rule 3: expiry ------------------------------------------------------------------------------------------------
READS: dict[str, Callable[[Keyspace, bytes, int], object]] = {
    "get": lambda ks, key, now: ks.get(key, now),
    "peek": lambda ks, key, now: ks.peek(key, now),
    "stream": lambda ks, key, now: ks.stream(key, now),
    "string": lambda ks, key, now: ks.string(key, now),
}


@pytest.mark.parametrize("read", READS)
def test_reading_ends_an_expired_key_and_logs_that(read: str) -> None:
    for key in (b"s", b"text"):
        ks = empty()
        append(ks, b"s") if key == b"s" else ks.set_string(b"text", b"v")
        ks.set_expire(key, NOW + 10)
        ks.take_batch()
        if read in ("get", "peek"):
            assert READS[read](ks, key, NOW + 9) is not None
        assert ks.take_batch() == b""
        assert READS[read](ks, key, NOW + 10) is None
        assert ks.take_batch() == records.delete(key)
        assert (key in ks.keys, key in ks.expires, len(ks.index), ks.expired_keys) == (False, False, 0, 1)
        assert len(ks.timers) == 0


@pytest.mark.parametrize("read", READS)
def test_a_follower_hides_an_expired_key(read: str) -> None:
    ks = empty()
    ks.set_string(b"text", b"v", NOW + 10)
    ks.take_batch()
    ks.follower = True
    assert READS[read](ks, b"text", NOW + 10) is None
    assert not ks.delete(b"text", NOW + 10)
    assert (ks.log, b"text" in ks.keys, ks.expired_keys) == ([], True, 0)
    replay(ks, records.delete(b"text"))  # its leader's
    assert b"text" not in ks.keys


def test_delete_of_an_expired_key_counts_as_expiry() -> None:
    ks = empty()
    ks.set_string(b"text", b"v", NOW + 10)
    assert not ks.delete(b"text", NOW + 10)
    assert (b"text" in ks.keys, ks.expired_keys) == (False, 1)
    ks.set_string(b"text", b"v", NOW + 10)
    assert ks.delete(b"text", NOW + 9)
    assert ks.expired_keys == 1


def test_replay_expires_nothing(ks: Keyspace) -> None:
    ks.set_string(b"text", b"v", 1)  # long over
    ks.set_expire(b"s", 2)
    again = empty()
    replay(again, ks.take_batch())
    assert (again.keys.keys(), again.expires) == (ks.keys.keys(), {b"text": 1, b"s": 2})


# -- reading -------------------------------------------------------------------------------------------------------
def test_hits_and_misses(ks: Keyspace) -> None:
    ks.hits = ks.misses = 0
    for key in (b"s", b"text", b"none", b"nor this"):
        ks.get(key, NOW)
        ks.live(key, NOW)
    assert (ks.hits, ks.misses) == (0, 0), "only reads count"
    for key in (b"s", b"text", b"none", b"nor this"):
        ks.read(key, NOW)
    ks.peek(b"s", NOW)
    assert (ks.hits, ks.misses) == (3, 2)
    ks.read(b"text", NOW + 90_000)
    assert (ks.hits, ks.misses) == (3, 3)


def test_get_counts_as_use_and_peek_does_not(ks: Keyspace) -> None:
    value = ks.keys[b"text"]
    ks.peek(b"text", NOW)
    assert value.used == 0
    ks.no_touch = True
    ks.get(b"text", NOW)
    assert value.used == 0
    ks.no_touch = False
    ks.get(b"text", NOW + 5)
    assert value.used == NOW + 5


def test_a_value_of_the_other_type_is_refused(ks: Keyspace) -> None:
    with pytest.raises(CommandError, match="WRONGTYPE"):
        ks.stream(b"text", NOW)
    with pytest.raises(CommandError, match="WRONGTYPE"):
        ks.string(b"s", NOW)
    assert ks.string(b"text", NOW) == b"old"
    assert ks.stream(b"none", NOW) is None
    assert ks.string(b"none", NOW) is None


@pytest.mark.parametrize(
    ("last", "now", "following"),
    [
        (None, 7, (7, 0)),
        ((5, 3), 7, (7, 0)),
        ((7, 3), 7, (7, 4)),
        ((9, 3), 7, (9, 4)),  # the clock went back
        ((9, MASK64), 7, (10, 0)),
        ((MASK64, MASK64 - 1), 7, (MASK64, MASK64)),
    ],
)
def test_next_id(last: tuple[int, int] | None, now: int, following: tuple[int, int]) -> None:  # [3]
    ks = empty()
    stream = None
    if last is not None:
        stream = ks.create_stream(b"s")
        ks.append(b"s", stream, *last, wire(*last))
    assert ks.next_id(stream, now) == following


def test_ids_are_exhausted() -> None:
    ks = empty()
    stream = ks.create_stream(b"s")
    ks.append(b"s", stream, MASK64, MASK64, wire(MASK64, MASK64))
    with pytest.raises(CommandError, match="exhausted"):
        ks.next_id(stream, NOW)


# -- readers and watchers ------------------------------------------------------------------------------------------
NEWS: dict[str, bool] = {  # whether readers that are blocked on s or text must be asked again
    "append": True, "append_packed": True, "append_parts": True, "set_string over a stream": True, "set_string": True,
    "remove a stream": True, "remove a string": True, "flush": True,
    "evict": False, "set_expire of a stream": False, "persist a stream": False,
}  # fmt: skip


@pytest.mark.parametrize("mutator", NEWS)
def test_blocked_readers_are_signalled(ks: Keyspace, mutator: str) -> None:
    assert ks.ready == [], "nobody waited"
    ks.waiting = {b"s": 2, b"text": 1}
    MUTATORS[mutator][1](ks)
    assert bool(ks.ready) == NEWS[mutator]
    assert set(ks.ready) <= {b"s", b"text"}


@pytest.mark.parametrize("mutator", MUTATORS)
def test_watchers_learn_of_changes_of_their_key_only(ks: Keyspace, mutator: str) -> None:
    clients = {key: Client() for key in (b"s", b"text", b"plain", b"new", b"none")}
    ks.watchers = {key: {client} for key, client in clients.items()}
    MUTATORS[mutator][1](ks)
    assert {key for key, client in clients.items() if client.dirty_cas} == MUTATORS[mutator][0]


def test_an_expired_key_changes_for_its_watchers(ks: Keyspace) -> None:
    client = Client()
    ks.watchers = {b"text": {client}}
    ks.get(b"text", NOW + 90_000)
    assert client.dirty_cas


# -- Rule 5: what a capture in progress gets -----------------------------------------------------------------------
def sorted_parts(capture: Capture) -> tuple[object, ...]:
    """Without what depends on the order in which keys were taken."""
    streams = sorted(map(parts_of, capture.streams))
    return streams, capture.stream_keys, capture.groups, sorted(capture.strings), capture.dead_strings


@pytest.mark.parametrize("mutator", MUTATORS)
def test_a_capture_in_progress_gets_the_state_before(ks: Keyspace, twin: Keyspace, mutator: str) -> None:
    capture = ks.begin_capture()
    MUTATORS[mutator][1](ks)
    ks.changes.more(EVERYTHING)
    assert sorted_parts(capture) == sorted_parts(whole_capture(twin))
    replay(twin, ks.take_batch())
    all_stored(ks, capture)
    assert not whole_capture(ks).empty, "the change is in the next one"


def test_nothing_is_captured_twice(ks: Keyspace) -> None:
    capture = whole_capture(ks)
    assert capture.changes == ks.changes.count
    all_stored(ks, capture)
    assert whole_capture(ks).empty
    assert ks.changes.count == 0


def test_a_capture_knows_the_next_sid() -> None:
    ks = empty()
    for key in (b"a", b"b", b"a"):
        ks.remove(key)
        append(ks, key)
    stagemutators.stage(ks, b"stage", b"a", 0, 0, array("I", [4]), b"bare")
    assert len({stream_at(ks, b"a").sid, stream_at(ks, b"b").sid, ks.stages.by_name[b"stage"].sid}) == 3
    assert whole_capture(ks).next_sid == 5


# -- timers --------------------------------------------------------------------------------------------------------
def timers(ks: Keyspace) -> dict[tuple[int, bytes, bytes], int]:
    found = {}
    while (moment := ks.timers.next()) is not None:
        item = ks.timers.take(moment)
        assert item is not None
        found[item] = moment
    return found


def test_resume_arms_all_timers_and_gives_groups_and_stages_their_time(ks: Keyspace) -> None:
    stagemutators.stage(ks, b"stage", b"s", 500, NOW + 500, array("I", [4]), b"bare")
    ks.timers.clear()
    ks.resume(NOW + 10_000)
    assert timers(ks) == {
        (GROUP_EXPIRY, b"s", b"g"): NOW + 70_000,
        (PENDING_DROP, b"s", b"g"): NOW + 5000,
        (STAGE_EXPIRY, b"stage", b""): NOW + 10_500,
    }


def test_timers_go_with_their_keys(ks: Keyspace) -> None:
    assert len(ks.timers) == 4
    ks.remove(b"s")
    assert timers(ks) == {(KEY_EXPIRY, b"text", b""): NOW + 90_000}


# -- digest --------------------------------------------------------------------------------------------------------
def test_digest_tells_contents_apart() -> None:
    digests = [empty().digest()]
    for change in (
        lambda ks: ks.set_string(b"a", b"b"),
        lambda ks: ks.set_string(b"a", b"c"),
        lambda ks: ks.set_string(b"ab", b""),
        lambda ks: ks.set_string(b"a", b"b", NOW),
        lambda ks: ks.create_stream(b"a"),
        lambda ks: append(ks, b"a"),
        lambda ks: append(ks, b"a", 2),
        lambda ks: groupmutators.set_group(ks, b"a", append(ks, b"a"), b"g", 0, 0, 0),
        lambda ks: groupmutators.set_group(ks, b"a", append(ks, b"a"), b"g", 1, 0, 0),
        lambda ks: stagemutators.stage(ks, b"stage", b"a", 0, 0, array("I", [4]), b"bare"),
    ):
        ks = empty()
        change(ks)
        digests.append(ks.digest())
    assert len(set(digests)) == len(digests)


def test_digest_does_not_depend_on_the_way_or_on_deadlines() -> None:
    one, other = empty(), empty()
    append(one, b"a", 5)
    one.set_string(b"b", b"x")
    other.pool.max_entries = 2  # other nodes
    other.set_string(b"b", b"y")
    other.set_string(b"c", b"z")
    append(other, b"a", 5)
    other.remove(b"c")
    other.set_string(b"b", b"x")
    assert one.digest() == other.digest()
    for ks, deadline in ((one, NOW), (other, NOW + 5)):
        groupmutators.set_group(ks, b"a", stream_at(ks, b"a"), b"g", 0, 500, deadline)
    assert one.digest() == other.digest()


def test_string_bytes_follow_the_strings(ks: Keyspace) -> None:
    expected = {b"text": 3, b"plain": 1}
    for key, value in ((b"text", b"longer"), (b"new", b""), (b"s", b"was a stream")):
        ks.set_string(key, value)
        expected[key] = len(value)
        assert ks.string_bytes == sum(len(key) + size for key, size in expected.items())
    ks.remove(b"text")
    append(ks, b"other")
    del expected[b"text"]
    assert ks.string_bytes == sum(len(key) + size for key, size in expected.items())
    ks.flush()
    assert (ks.string_bytes, len(ks.index), len(ks.keys), len(ks.timers)) == (0, 0, 0, 0)
