"""Streams one case at a time: limits, checkpoints, restarts, snapshots, damage. ``test_stream_model`` has the rest."""

from __future__ import annotations

from array import array

import pytest

from resp.errors import CorruptError
from storage.model.entries import entry_wire, id_bulk
from storage.nodes.cache import NodeCache
from storage.nodes.node import Node
from storage.nodes.pool import NodePool
from storage.nodes.redisform import redis_entries
from storage.streams.capture import StreamCapture
from storage.streams.retention import RetentionPolicy
from storage.streams.stream import Stream
from storage.streams.tierafter import TierAfter
from tests.storage.nodes.nodestore import MemoryStore, backward, cached, opened
from tests.storage.streams.captures import parts_of


def made(entries: int, max_entries: int = 10, cache: int = 1 << 20) -> tuple[Stream, MemoryStore, NodePool]:
    """Entry n has the ID (n + 1).0 and the wire ``<n>``."""
    store = MemoryStore()
    nodes = NodePool(store, NodeCache(cache))
    nodes.max_entries = max_entries
    stream = Stream(1, nodes)
    for number in range(entries):
        stream.append(number + 1, 0, b"<%d>" % number)
    return stream, store, nodes


def checkpoint(stream: Stream, store: MemoryStore) -> StreamCapture:
    capture = stream.capture()
    store.write(capture)
    stream.captured(capture)
    return capture


def reborn(store: MemoryStore, nodes: NodePool) -> Stream:
    nodes.cache.clear()
    stream = Stream.restore(1, store.metas[1], nodes)
    for first in store.firsts(1):
        stream.add_stored_node(first, store.blobs[1, first][0])
    return stream


def wires(lo: int, hi: int) -> bytes:
    return b"".join(b"<%d>" % number for number in range(lo, hi))


def test_where_nodes_begin() -> None:
    stream, _, _ = made(25)
    assert [stream.node_border(ordinal) for ordinal in (0, 9, 10, 19, 24, 25, 99)] == [0, 0, 10, 10, 20, 25, 25]
    stream.evict_before(13, stream.id_at(12))
    assert [stream.node_border(ordinal) for ordinal in (0, 13, 19, 20)] == [13, 13, 13, 20]
    stream.evict_before(25, stream.id_at(24))
    assert stream.node_border(5) == stream.node_border(25) == 25
    assert made(20)[0].node_border(20) == 20


def test_limits_seal_the_tail() -> None:
    stream, _, nodes = made(25)
    assert stream.node_count == 3
    nodes.max_bytes = 21
    stream.append(100, 0, b"x")  # 5 entries of 4 bytes and this one: full
    assert stream.capture().active is None
    assert [(first, first_id >> 64) for first, first_id, _ in stream.capture().nodes] == [(0, 1), (10, 11), (20, 21)]
    stream.append(101, 0, b"x" * 50)
    assert stream.capture().nodes[-1][:2] == (26, 101 << 64)


@pytest.mark.parametrize(("max_entries", "max_bytes"), [(1, 1000), (7, 1000), (512, 1), (512, 40), (512, 41), (5, 40)])
def test_a_batch_makes_the_same_nodes_as_single_appends(max_entries: int, max_bytes: int) -> None:
    made_by = []
    for in_batches in ("", "packed", "parts"):
        stream, _, nodes = made(3, max_entries=100)
        nodes.max_entries, nodes.max_bytes = max_entries, max_bytes
        entries = [b"%d" % number * (number % 9) for number in range(60)]
        if in_batches:
            for seq, part in ((5, entries[:1]), (6, []), (6, entries[1:])):
                sizes = array("I", map(len, part))
                if in_batches == "packed":
                    stream.append_packed(9, seq, sizes, b"".join(part))
                else:
                    halves = [half for wire in part for half in (wire[:1], b"", wire[1:])]
                    stream.append_parts(9, seq, sizes, halves, [3] * len(part))
        else:
            for number, wire in enumerate(entries):
                stream.append(9, 5 + number, wire)
        made_by.append(stream.capture())
    assert parts_of(made_by[0]) == parts_of(made_by[1]) == parts_of(made_by[2])


@pytest.mark.parametrize(("max_entries", "max_bytes"), [(2, 1 << 20), (512, 100)])
def test_a_batch_of_large_entries_makes_them_too_after_lower_limits(max_entries: int, max_bytes: int) -> None:
    made_by = []
    for in_parts in (False, True):
        stream, _, nodes = made(0, max_entries=512)
        nodes.max_bytes = 1 << 20
        for seq in range(1, 4):
            stream.append(9, seq, b"x" * 5000)
        nodes.max_entries, nodes.max_bytes = max_entries, max_bytes
        if in_parts:
            stream.append_parts(9, 4, array("I", [5000]), [b"y" * 5000], [1])
        else:
            stream.append(9, 4, b"y" * 5000)
        made_by.append(stream.capture())
    assert parts_of(made_by[0]) == parts_of(made_by[1])


def test_a_capture_holds_what_the_store_lacks() -> None:
    stream, store, _ = made(25)
    first = checkpoint(stream, store)
    assert [ordinal for ordinal, _, _ in first.nodes] == [0, 10]
    assert first.active is not None
    assert (first.active[0], first.active[1] >> 64, len(opened(first.active[2]))) == (20, 21, 5)
    second = stream.capture()
    assert (list(second.nodes), second.active) == ([], first.active)
    for number in range(25, 32):
        stream.append(number + 1, 0, b"<%d>" % number)
    third = stream.capture()
    assert [ordinal for ordinal, _, _ in third.nodes] == [20]
    assert third.active is not None
    assert third.active[0] == 30
    assert [ordinal for ordinal, _, _ in stream.capture().nodes] == [20]  # until it is stored it is captured again


def test_stored_nodes_leave_memory() -> None:
    stream, store, nodes = made(20_000, max_entries=500)
    before = stream.memory_bytes()
    checkpoint(stream, store)
    assert stream.memory_bytes() < before / 10
    nodes.cache.clear()
    assert stream.read(4_000, 4_010) == wires(4_000, 4_010)
    assert (store.loads, len(nodes.cache)) == (1, 1)
    assert stream.read(4_100, 4_110) == wires(4_100, 4_110)
    assert store.loads == 1  # from the cache


def test_long_replies_leave_the_cache_alone() -> None:
    stream, store, nodes = made(1_000)
    checkpoint(stream, store)
    nodes.cache.clear()
    pieces, _ = stream.pieces(5, 995)
    assert b"".join(pieces) == wires(5, 995)
    assert len(nodes.cache) == 0


def test_pieces_open_only_what_they_give() -> None:
    stream, store, nodes = made(1_005)
    checkpoint(stream, store)
    for lo, hi, expected in ((1_000, 1_005, 1), (15, 15, 0), (10, 20, 1), (19, 21, 2), (995, 1_002, 2)):
        nodes.cache.clear()
        for pieces, close in (stream.pieces(lo, hi), backward(stream, lo, hi)):
            assert sum(1 for _ in pieces) == expected
            close()
    assert store.pins == 0


def test_pieces_are_bounded_by_a_node() -> None:
    stream, _, _ = made(1_000)
    pieces, close = stream.pieces(0, 1_000)
    assert max(map(len, pieces)) == len(wires(990, 1_000))
    close()


def test_a_closed_reader_says_so() -> None:
    stream, store, _ = made(100)
    checkpoint(stream, store)
    pieces, close = stream.pieces(0, 100)
    next(pieces)
    close()
    with pytest.raises(RuntimeError, match="after its close"):
        next(pieces)
    assert store.pins == 0


@pytest.mark.interpreted
def test_an_abandoned_reader_frees_its_view() -> None:
    stream, store, _ = made(100)
    pieces, close = stream.pieces(0, 100)
    next(pieces)
    del pieces, close
    assert store.pins == 0


def test_after_a_restart_the_last_node_grows_on() -> None:
    stream, store, nodes = made(25)
    checkpoint(stream, store)
    stream = reborn(store, nodes)
    assert stream.read(0, 25) == wires(0, 25)
    loads = store.loads
    stream = reborn(store, nodes)
    assert store.loads == loads  # nothing is read before it is needed
    stream.append(26, 0, b"<25>")
    assert (stream.node_count, store.loads, len(nodes.cache)) == (4, loads, 0)  # not for one that nobody reads, either
    capture = stream.capture()
    assert (stream.node_count, store.loads, len(nodes.cache)) == (3, loads + 1, 0)
    assert not capture.nodes
    assert capture.active is not None
    assert capture.active[0] == 20
    assert stream.read(0, 26) == wires(0, 26)
    for number in range(26, 30):
        stream.append(number + 1, 0, b"<%d>" % number)
    nodes.max_entries = 100
    stream.append(31, 0, b"<30>")  # but once only: what it seals itself stays sealed
    assert stream.node_count == 4


@pytest.mark.parametrize("limits", [(5, 1 << 16), (10, 20)])
def test_after_a_restart_a_full_last_node_stays(limits: tuple[int, int]) -> None:
    stream, store, nodes = made(25)
    checkpoint(stream, store)
    nodes.max_entries, nodes.max_bytes = limits
    stream = reborn(store, nodes)
    stream.append(26, 0, b"<25>")
    assert stream.node_count == 4
    assert stream.read(0, 26) == wires(0, 26)
    capture = stream.capture()
    assert capture.active is not None
    assert capture.active[0] == 25


def test_after_a_restart_of_an_emptied_stream_dead_nodes_are_passed_over() -> None:
    stream, store, nodes = made(25)
    checkpoint(stream, store)
    stream.evict_before(25, 25 << 64)
    checkpoint(stream, store)
    assert store.firsts(1)  # the store can't know where its last node ends
    stream = reborn(store, nodes)
    assert (stream.node_count, stream.length, stream.last_id, stream.first_id()) == (0, 0, 25 << 64, 0)
    assert stream.ord_from(0) == 25
    stream.append(26, 0, b"<25>")
    assert stream.read(25, 26) == b"<25>"
    assert stream.find(3 << 64) is None


def test_dead_nodes_that_the_store_still_has_are_passed_over() -> None:
    stream, store, nodes = made(45)
    checkpoint(stream, store)
    stream.evict_before(20, 20 << 64)
    store.metas[1] = stream.meta()
    assert store.firsts(1) == [0, 10, 20, 30, 40]
    stream = reborn(store, nodes)
    assert (stream.node_count, stream.first_id() >> 64) == (3, 21)
    assert stream.read(20, 45) == wires(20, 45)


def test_a_reader_passes_over_a_cached_node_that_ends_elsewhere() -> None:
    stream, _, nodes = made(20)
    short, _, _ = made(4)
    short_capture = short.capture()
    assert short_capture.active is not None
    pieces, _ = stream.pieces(2, 18)
    nodes.cache.put(1, 0, opened(short_capture.active[2]))
    assert b"".join(pieces) == wires(2, 18)


def test_a_failed_append_adds_nothing() -> None:
    stream, _, _ = made(0)
    for entries in (0, 3):
        for number in range(stream.next_ord, entries):
            stream.append(number + 1, 0, b"<%d>" % number)
        with pytest.raises(TypeError):  # fails where there being no memory would
            stream.append(1_000, 0, None)  # type: ignore[arg-type]
        assert (stream.next_ord, stream.last_id, stream.node_count) == (entries, entries << 64, int(entries > 0))
        assert stream.read(0, entries) == wires(0, entries)
        assert stream.find(1_000 << 64) is None


def test_eviction_finds_its_border_in_the_index_alone() -> None:
    stream, store, nodes = made(10_000)
    checkpoint(stream, store)
    nodes.cache.clear()
    assert stream.evict_before(5_005, 5_005 << 64) == 5_005
    assert stream.ord_from(17) == 5_005
    assert stream.find(17 << 64) is None
    assert stream.first_id() == 5_006 << 64
    assert (stream.node_count, store.loads) == (500, 1)  # first_id() opened one
    assert stream.evict_before(10_000, 10_000 << 64) == 4_995
    assert (stream.node_count, stream.memory_bytes() < 30_000) == (0, True)


def test_wire_size_stays_near_the_truth() -> None:
    stream, store, nodes = made(5_000, max_entries=500)
    assert len(wires(100, 110)) <= stream.wire_size(100, 110) <= 10 * 6
    stream.append(9_000, 0, b"x" * 1_000_000)
    for number in range(5_001, 9_000):
        stream.append(number + 9_000, 0, b"<%d>" % number)
    assert stream.wire_size(5_000, 5_001) >= 1_000_000
    assert stream.wire_size(8_990, 9_000) <= 60  # the tail is exact
    checkpoint(stream, store)
    assert reborn(store, nodes).wire_size(5_000, 5_001) >= 1_000_000
    assert stream.wire_size(7, 7) == 0


def test_wire_size_after_a_restart_knows_the_tail() -> None:
    stream, store, nodes = made(0)
    stream.append(1, 0, b"x" * 5_000)
    stream.append(2, 0, b"y")
    checkpoint(stream, store)
    assert reborn(store, nodes).wire_size(0, 1) >= 5_000


# -- damage ------------------------------------------------------------------------------------------------------
def test_metadata_golden() -> None:
    stream, _, _ = made(3)
    stream.evict_before(1, 1 << 64)
    # version, last ID, next_ord, first_ord, evicted_to, sealed entries and bytes, largest entry and node, crc32
    raw = bytes.fromhex(
        """01  0000000000000003 0000000000000000  0000000000000003  0000000000000001  00000000000000010000000000000000
        0000000000000000 0000000000000000  0000000000000003 0000000000000009  3be0e787"""
    )
    assert stream.meta() == raw
    assert Stream.restore(1, raw, stream.pool).meta() == raw


@pytest.mark.parametrize("policy", [None, RetentionPolicy(5, 6, 7, True, 8, True)])
@pytest.mark.parametrize("after", [None, TierAfter(False, 0), TierAfter(True, 9)])
def test_settings_are_metadata(policy: RetentionPolicy | None, after: TierAfter | None) -> None:
    stream, _, _ = made(3)
    stream.retention, stream.tier_after = policy, after
    raw = stream.meta()
    assert raw[0] == (5 if after else 3 if policy else 1), "earlier servers read what has no newer setting"
    again = Stream.restore(1, raw, stream.pool)
    assert again.meta() == raw
    for here, there in ((stream.retention, again.retention), (stream.tier_after, again.tier_after)):
        assert (here and here.words()) == (there and there.words())


@pytest.mark.parametrize("after", [None, TierAfter(True, 9)])
def test_damaged_metadata_is_refused(after: TierAfter | None) -> None:
    stream, _, nodes = made(30)
    stream.tier_after = after
    meta = stream.meta()
    for at in range(len(meta)):
        with pytest.raises(CorruptError, match="stream 7"):
            Stream.restore(7, meta[:at] + bytes([meta[at] ^ 1 << at % 8]) + meta[at + 1 :], nodes)
        with pytest.raises(CorruptError, match="stream 7"):
            Stream.restore(7, meta[:at], nodes)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ([(10, 11)], "lacks the first"),
        ([(0, 1), (20, 21), (10, 11)], "out of order"),
        ([(0, 1), (10, 11), (20, 11)], "out of order"),
        ([(0, 1), (10, 11), (20, 21), (25, 26)], "beyond the stream's end"),
    ],
)
def test_stored_nodes_that_do_not_fit_are_refused(keys: list[tuple[int, int]], text: str) -> None:
    stream, store, nodes = made(25)
    checkpoint(stream, store)
    stream = Stream.restore(1, store.metas[1], nodes)
    for first, ms in keys[:-1]:
        stream.add_stored_node(first, ms << 64)
    with pytest.raises(CorruptError, match=text):
        stream.add_stored_node(keys[-1][0], keys[-1][1] << 64)


def test_a_node_that_is_missing_or_another_is_refused_when_read() -> None:
    stream, store, nodes = made(40)
    checkpoint(stream, store)
    stream = Stream.restore(1, store.metas[1], nodes)
    for first, ms in ((0, 1), (20, 21), (30, 31)):  # the key of the second is lost
        stream.add_stored_node(first, ms << 64)
    nodes.cache.clear()
    assert stream.read(20, 40) == wires(20, 40)
    for lo in (5, 15):
        with pytest.raises(CorruptError, match=r"stream 1, entries 0 to 19"):
            stream.read(lo, lo + 1)
    stream = reborn(store, nodes)
    store.blobs[1, 10] = store.blobs[1, 10][0], store.blobs[1, 20][1]
    with pytest.raises(CorruptError, match="belongs to another node"):
        stream.read(12, 13)
    pieces, close = stream.pieces(0, 40)
    with pytest.raises(CorruptError, match="belongs to another node"):
        list(pieces)
    close()
    assert store.pins == 0


def test_a_short_read_after_a_search_opens_no_node_again() -> None:
    stream, store, nodes = made(25)
    checkpoint(stream, store)
    for size in (1 << 20, 0):
        nodes.cache.max_bytes = size
        loads = store.loads
        place = stream.seek(13 << 64)
        assert place.ordinal == 12
        assert stream.at_hand(place, 15, 1000) == wires(12, 15)
        assert [int.from_bytes(raw, "big") for raw in stream.raw_ids(place, 15)] == [n << 64 for n in (13, 14, 15)]
        assert store.loads - loads == 1  # also without a cache
        assert stream.at_hand(place, 20, 1000) == wires(12, 20)
        assert stream.at_hand(place, 21, 1000) is None  # ends in another node
        assert [int.from_bytes(raw, "big") for raw in stream.raw_ids(place, 22)] == [n << 64 for n in range(13, 23)]
        assert stream.at_hand(place, 15, 40) is None  # the node takes 40 bytes
        tail = stream.seek(21 << 64)
        assert stream.at_hand(tail, 25, 21) == wires(20, 25)
        assert stream.at_hand(tail, 25, 20) is None


def test_a_search_may_end_after_a_node() -> None:
    stream, _, _ = made(0, max_entries=2)
    for ms in (1, 2, 9, 10):
        stream.append(ms, 0, b"<%d>" % ms)
    place = stream.seek(5 << 64)  # between the last of one node and the first of the next
    assert (place.ordinal, place.end) == (2, 2)
    assert stream.at_hand(place, 4, 1000) is None
    assert [int.from_bytes(raw, "big") for raw in stream.raw_ids(place, 4)] == [9 << 64, 10 << 64]
    assert stream.read(place.ordinal, 4) == b"<9><10>"


def test_a_search_opens_a_node_only_where_it_must() -> None:
    stream, store, nodes = made(30)
    checkpoint(stream, store)
    stream.evict_before(5, 5 << 64)
    nodes.cache.clear()
    loads = store.loads
    for entry_id, ordinal in ((0, 5), (3 << 64, 5), (31 << 64, 30)):  # evicted, or above the last
        assert stream.seek(entry_id).ordinal == stream.ord_from(entry_id) == ordinal
    assert store.loads == loads
    assert stream.at_hand(stream.seek(0), 8, 1000) == wires(5, 8)
    assert store.loads == loads + 1
    other, _, _ = made(30)  # nothing evicted
    assert other.seek(1).ordinal == 0
    assert other.at_hand(other.seek(1), 3, 1000) == wires(0, 3)


def real(entries: int, cache: int) -> tuple[Stream, NodePool, list[bytes]]:
    """A stream of nodes of ten that are stored, and its entries."""
    store = MemoryStore()
    nodes = NodePool(store, NodeCache(cache))
    nodes.max_entries = 10
    stream = Stream(1, nodes)
    wires = [entry_wire(id_bulk(number + 1, 0), [b"f", b"v" * number]) for number in range(entries)]
    for number, wire in enumerate(wires):
        stream.append(number + 1, 0, wire)
    checkpoint(stream, store)
    return stream, nodes, wires


@pytest.mark.parametrize("step", [1, 4, 10, 95])
def test_nodes_that_x_commands_read_once_do_not_keep_the_x_form(step: int) -> None:
    stream, nodes, wires = real(95, 1 << 20)

    def read() -> list[Node]:
        parts = [b"".join(stream.redis_form(stream.position_of(lo), min(lo + step, 95))) for lo in range(0, 95, step)]
        assert b"".join(parts) == redis_entries(wires)
        return [node for node in cached(nodes).values() if isinstance(node, Node) and node.redis_wire]

    assert not read()
    assert len(read()) == 9, "all sealed nodes"
    assert nodes.cache.bytes == sum([node.size for node in cached(nodes).values()])


@pytest.mark.parametrize("cache", [0, 3000, 1 << 20])
def test_nodes_that_x_commands_read_again_keep_the_x_form(cache: int) -> None:
    stream, nodes, wires = real(95, cache)
    for _ in range(6):
        for lo in range(0, 95, 7):
            for hi in (lo + 1, min(lo + 9, 95), 95):
                assert b"".join(stream.redis_form(stream.position_of(lo), hi)) == redis_entries(wires[lo:hi])
                assert stream.read(lo, hi) == b"".join(wires[lo:hi])
        assert nodes.cache.bytes <= cache
        assert nodes.cache.bytes == sum([node.size for node in cached(nodes).values()])
    kept = [node for node in cached(nodes).values() if isinstance(node, Node) and node.redis_wire]
    assert kept or cache < 1 << 20
    stream.delete([40, 41, 55], stream.id_at(55))
    left = [wire for number, wire in enumerate(wires) if number not in (40, 41, 55)]
    assert b"".join(stream.redis_form(stream.position_of(0), 95)) == redis_entries(left)
    stream.evict_before(30, stream.id_at(29))
    assert nodes.cache.bytes == sum([node.size for node in cached(nodes).values()])


def test_the_id_of_the_newest_evicted_entry_is_known_without_the_store() -> None:
    for border in (1, 7, 10, 11, 25, 87, 93, 95):
        stream, store, nodes = made(95)
        checkpoint(stream, store)
        stream = reborn(store, nodes) if border & 1 else stream
        stream.evict_before(border - border // 2)
        stream.evict_before(border)
        store.blobs.clear()
        nodes.cache.clear()
        assert stream.evicted_to == border << 64
        assert stream.evicted_to == border << 64


def test_a_node_that_cannot_be_read_stops_an_eviction_before_it_has_begun() -> None:
    stream, store, nodes = made(95)
    checkpoint(stream, store)
    nodes.cache.clear()
    del store.blobs[1, 0]
    with pytest.raises(CorruptError):
        stream.evict_before(3)
    assert (stream.first_ord, stream.evicted_to) == (0, 0)


@pytest.mark.parametrize("step", [1, 2, 7, 9, 40, 300])
def test_ids_are_found_whether_they_are_many_or_few(step: int) -> None:
    stream, store, _ = made(2300, max_entries=512)
    checkpoint(stream, store)
    stream.evict_before(100)
    stream.delete(list(range(500, 700, 3)), 699 << 64)
    alive = [ordinal for ordinal in range(100, 2300) if not (500 <= ordinal < 700 and (ordinal - 500) % 3 == 0)]
    wanted = range(0, 2400, step)
    ids = sorted({(ordinal + 1) << 64 for ordinal in wanted} | {(ordinal + 1) << 64 | 5 for ordinal in wanted[::3]})
    assert stream.ords_of(ids) == sorted(set(alive) & set(wanted))
    for one in ids:
        assert stream.ords_of([one]) == ([(one >> 64) - 1] if not one & 5 and (one >> 64) - 1 in set(alive) else [])
