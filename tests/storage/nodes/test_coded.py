"""Coded nodes give back their entries byte for byte; in C and in Python; whatever else a blob holds is refused."""

from __future__ import annotations

import struct
from array import array
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resp.errors import CorruptError
from storage.model.entries import entry_wire, id_bulk
from storage.model.ids import MASK64
from storage.nodes import appendlist, codedrows, coder
from storage.nodes.cache import NodeCache
from storage.nodes.coded import UNPACK_AT, CodedNode, check, is_coded
from storage.nodes.compaction import compacted
from storage.nodes.node import LONG_ACTIVE, ActiveNode, Node, active_blob, new_compressor, seal, sealed
from storage.nodes.packed import open_packed
from tests.storage.nodes.test_packed import check as check_answers

_coded = pytest.importorskip("storage.nodes._coded", reason="nothing is compiled here: no node is coded")

Entry = tuple[int, bytes]  # ID, wire


def entries_of(rows: list[list[bytes]], ids: list[tuple[int, int]]) -> list[Entry]:
    return [(ms << 64 | seq, entry_wire(id_bulk(ms, seq), row)) for row, (ms, seq) in zip(rows, ids, strict=True)]


def tail_of(entries: list[Entry]) -> ActiveNode:
    tail = ActiveNode()
    for entry_id, wire in entries:
        tail.wire += wire
        tail.add(entry_id >> 64, entry_id & MASK64, len(tail.wire))
    return tail


def sensors(count: int = 512, step: int = 3) -> list[Entry]:
    """Readings as they are sent: IDs of the server, names, a number that walks."""
    rng = Random(count * step)
    rows = [[b"sensor", b"%02d" % rng.randrange(100), b"t", b"%.1f" % rng.gauss(0, 9)] for _ in range(count)]
    return entries_of(rows, [(1_700_000_000_000 + at // step, at % step) for at in range(count)])


def blob_of(entries: list[Entry]) -> bytes:
    tail = tail_of(entries)
    blob = coder.encode(0, tail.ms, tail.seq, tail.ends, tail.wire)
    assert blob is not None
    return blob


# -- what is coded ---------------------------------------------------------------------------------------------
def test_sensor_readings_are_coded_in_a_sixteenth_of_their_bytes() -> None:
    tail = tail_of(sensors())
    blob, largest = sealed(tail)
    assert is_coded(blob)
    assert largest == max(tail.ends[at] - tail.ends[at - 1] for at in range(1, len(tail)))
    assert 2 * len(blob) < len(seal(tail, compress=False)) / 8
    node = open_packed(blob)
    assert type(node) is CodedNode
    assert node.slice(0, 512) == tail.wire


@pytest.mark.parametrize(
    "values",
    [
        [b"text %d" % n for n in range(600)],  # texts that don't return
        [b"x" * 256] * 600,
        [b"1e5", *[b"%d" % n for n in range(599)]],
        [b"01", b"002", *[b"%d" % n for n in range(598)]],
        [b"+1", *[b"%d" % n for n in range(599)]],
        [b"1.", *[b"%d" % n for n in range(599)]],
        [b".5", *[b"%d" % n for n in range(599)]],
        [b"%d" % (10**17 + n) for n in range(600)],
        [b"1.5", *[b"%d" % n for n in range(599)]],
    ],
)  # fmt: skip
def test_what_has_no_code_is_packed_as_before(values: list[bytes]) -> None:
    entries = entries_of([[b"f", value] for value in values], [(7, at) for at in range(600)])
    blob = seal(tail_of(entries))
    assert not is_coded(blob)
    assert open_packed(blob).slice(0, 600) == b"".join(wire for _, wire in entries)


def test_a_tail_and_what_is_no_entry_are_not_coded() -> None:
    assert not is_coded(seal(tail_of(sensors()), compress=False))
    entries = sensors(20)
    entries[3] = entries[3][0], b""  # as in a thinned node
    assert not is_coded(seal(tail_of(entries)))
    mixed = entries_of([[b"f", b"v"]] * 9 + [[b"f", b"v", b"g", b"w"]], [(1, at) for at in range(10)])
    assert not is_coded(seal(tail_of(mixed)))
    other = sensors(20)
    other[5] = other[5][0], other[6][1]  # another ID in the wire than in the columns
    assert not is_coded(seal(tail_of(other)))
    assert seal(tail_of(other))


VALUES = st.one_of(
    st.sampled_from([b"", b"a", b"-", b".", b"0", b"-1", b"\r\n", b"$1\r\nx\r\n", b"on", b"off", b"x" * 255]),
    st.integers(-(10**18), 10**18).map(lambda n: b"%d" % n),
    st.decimals(-1000, 1000, places=2).map(lambda n: str(n).encode()),
    st.integers(0, 10**6).map(lambda n: b"%06d" % n),
    st.binary(max_size=20),
)
COLUMNS = st.one_of(
    st.lists(VALUES, min_size=1, max_size=3),
    st.tuples(st.integers(-(10**12), 10**12), st.integers(0, 3), st.integers(1, 5)).map(
        lambda t: [b"%0*.*f" % (t[2], t[1], t[0] / 7 + n / 10) for n in range(300)]
    ),
    st.integers(0, 10**16).map(lambda n: [b"%05d" % (n + at) for at in range(300)]),
)
IDS = st.tuples(
    st.sampled_from([0, 1, 1_700_000_000_000, 1 << 61]), st.sampled_from([0, 5, 1 << 40, 1 << 61]),
    st.sampled_from([[0], [0, 0, 1], [1], [1, 1000], [1 << 30]]), st.sampled_from([[1], [1, 2], [1 << 20]]),
)  # fmt: skip


@settings(deadline=None)
@given(st.lists(COLUMNS, min_size=1, max_size=6), IDS, st.integers(1, 300), st.integers(0, 1 << 30))
def test_entries_come_back_whatever_they_are(
    columns: list[list[bytes]], ids: tuple[int, int, list[int], list[int]], count: int, seed: int
) -> None:
    rng = Random(seed)
    ms, seq, gaps, steps = ids
    rows, given_ids = [], []
    for _ in range(count):
        rows.append([rng.choice(column) for column in columns])
        given_ids.append((ms, seq))
        gap = rng.choice(gaps)
        ms, seq = (ms + gap, 0) if gap else (ms, seq + rng.choice(steps))
    entries = entries_of(rows, given_ids)
    tail = tail_of(entries)
    blob = seal(tail)
    node = open_packed(blob)
    check_answers(node, entries, rng)
    check_answers(node.unpack(), entries, rng)
    coded = coder.encode(0, tail.ms, tail.seq, tail.ends, tail.wire)
    if coded is not None:
        check(coded)
        check_answers(CodedNode(coded), entries, rng)
        assert codedrows.read(coded, 0, count) == tail.wire


# -- thinned ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("highest", [100, 255, 256, (1 << 14) - 1, 1 << 14, 20_000, (1 << 16) - 1, 1 << 16, 1 << 33])
@pytest.mark.parametrize("count", [4, 100, 512])
@pytest.mark.parametrize("runs", [False, True])
def test_what_is_left_of_one_comes_back(highest: int, count: int, runs: bool) -> None:
    half = min(count // 2, highest)
    ids = [(1000 + at, highest - at % 50) for at in range(count)]
    if runs:  # two milliseconds, in each of which the numbers count up
        ids = [(1000, highest - half + 1 + at) if at < half else (1001, at) for at in range(count)]
    entries = entries_of([[b"s", b"%02d" % (at % 100), b"t", b"%.1f" % (at * 7 % 90 / 10)] for at in range(count)], ids)
    lo, hi = count // 2, count // 2 + count // 8 + 1
    less = compacted(blob_of(entries), [(lo, hi)], new_compressor())
    if less is None:
        assert count == 4
        return
    node = open_packed(less)
    assert node.ids(0, count) == [entry_id for entry_id, _ in entries]
    assert node.slice(lo, hi) == b"".join(wire for _, wire in entries[lo:hi])


# -- both do the same ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("count", "step"), [(1, 1), (8, 1), (512, 1), (512, 100), (300, 1000)])
def test_c_and_python_read_the_same(count: int, step: int) -> None:
    entries = sensors(count, step)
    blob = blob_of(entries)
    for lo, hi in ((0, count), (0, 0), (count // 3, count // 2), (count - 1, count), (count, count)):
        assert _coded.read(blob, lo, hi) == codedrows.read(blob, lo, hi)
        assert _coded.parts(blob, lo, hi) == codedrows.parts(blob, lo, hi)
        assert _coded.times(blob, lo, hi) == codedrows.times(blob, lo, hi)
        assert _coded.raws(blob, lo, hi) == [entry_id.to_bytes(16, "big") for entry_id, _ in entries[lo:hi]]
    gaps, seqs = coder.columns(blob, count, CodedNode(blob).base)
    assert [(entries[0][0] >> 64) + one for one in gaps] == [entry_id >> 64 for entry_id, _ in entries]
    assert list(seqs) == [entry_id & MASK64 for entry_id, _ in entries]
    for lo, hi in ((-1, 3), (0, count + 1), (5, 4)):
        for rows in (_coded, codedrows):
            for function in (rows.read, rows.parts, rows.times, *((rows.raws,) if rows is _coded else ())):
                with pytest.raises(IndexError):
                    function(blob, lo, hi)
    for entry_id, _ in entries:
        ms, seq = entry_id >> 64, entry_id & MASK64
        for there in ((ms, seq), (ms, seq + 1), (ms + 1, 0), (ms, 0), (ms, MASK64), (0, 0), (MASK64, MASK64)):
            assert _coded.find(blob, *there) == codedrows.find(blob, *there)


def test_without_c_nodes_are_read_and_none_is_coded(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = sensors(100)
    blob = seal(tail_of(entries))
    assert is_coded(blob)
    if type(coder.checksum).__name__ != "function":
        pytest.skip("compiled: what is Final can't be changed")
    monkeypatch.setattr(coder, "CODES", False)
    check_answers(open_packed(blob), entries, Random(1))
    assert not is_coded(seal(tail_of(entries)))


# -- damage and malice -----------------------------------------------------------------------------------------
def test_one_wrong_bit_anywhere_is_noticed() -> None:
    blob = blob_of(sensors(40))
    for at in range(len(blob)):
        wrong = bytearray(blob)
        wrong[at] ^= 1 << at % 8
        with pytest.raises(CorruptError):
            open_packed(bytes(wrong))
    for size in range(len(blob)):
        with pytest.raises(CorruptError):
            open_packed(blob[:size])
    with pytest.raises(CorruptError):
        open_packed(blob + b"\0")


def signed(blob: bytes) -> bytes:
    """The blob with the checksum that it should have."""
    return blob[: coder.HEAD] + coder.SUM.pack(coder.checksum(blob)) + blob[coder.BODY :]


def use(blob: bytes) -> None:
    """Everything that a node can be asked. Raises CorruptError, or nothing."""
    node = open_packed(blob)
    count = len(node)
    check(blob)
    node.unpack()
    for lo, hi in ((0, count), (count // 2, count), (0, 1)):
        node.slice(lo, hi)
        node.each(lo, hi)
        node.cuts(lo, hi)
        node.ids(lo, hi)
        node.raw_ids(lo, hi)
    node.sure_id_at(count - 1)
    assert 0 <= node.find_from(node.first_id + 1) <= count


@given(st.data())
def test_whatever_a_signed_blob_holds_is_refused_or_read(data: st.DataObject) -> None:
    blob = bytearray(blob_of(sensors(*data.draw(st.sampled_from([(8, 1), (60, 9), (300, 7), (300, 999)])))))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.one_of(st.integers(3, 60), st.integers(3, len(blob) - 1)))
        blob[at] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del blob[data.draw(st.integers(33, len(blob))) :]
    whole = signed(bytes(blob))
    outcomes = []
    for rows in (_coded, codedrows):
        try:
            count = struct.unpack_from("<I", whole, 4)[0]
            found: object = (rows.read(whole, 0, count), rows.times(whole, 0, count), rows.find(whole, 1 << 40, 3))
        except (CorruptError, IndexError):
            found = None
        outcomes.append(found)
    assert outcomes[0] == outcomes[1]
    try:
        use(whole)
    except CorruptError:
        assert True


@given(st.binary(max_size=400))
def test_garbage_with_a_checksum_is_refused(junk: bytes) -> None:
    blob = signed(b"TN\2" + junk[:25].ljust(25, b"\0") + bytes(4) + junk[25:])
    try:
        use(blob)
    except CorruptError:
        assert True


def forged(blob: bytes, at: int, form: str, value: int) -> bytes:
    made = bytearray(blob)
    struct.pack_into(form, made, at, value)
    return signed(bytes(made))


@pytest.mark.parametrize(
    ("at", "form", "value"),
    [
        (3, "B", 2), (4, "<I", 0), (4, "<I", 41), (4, "<I", 1 << 31), (8, "<I", 1), (8, "<I", MASK64 >> 32),
        (12, "<Q", 1 << 63), (20, "<Q", 1 << 63), (32, "B", 57), (33, "B", 1), (34, "B", 0), (34, "B", 65),
        (35, "B", 1), (36, "<Q", 1 << 63), (44, "B", 3), (45, "B", 60), (46, "<H", 0),
        (46, "<H", 4000), (48, "<I", 1 << 31),
    ],
)  # fmt: skip
def test_impossible_numbers_are_refused(at: int, form: str, value: int) -> None:
    blob = blob_of(sensors(40))
    check(forged(blob, 0, "B", blob[0]))
    with pytest.raises(CorruptError, match="coded node"):
        use(forged(blob, at, form, value))


# -- in the cache ----------------------------------------------------------------------------------------------
def test_a_node_that_is_read_again_and_again_is_unpacked() -> None:
    cache, entries = NodeCache(1 << 20), sensors(100)
    node = open_packed(seal(tail_of(entries)))
    cache.put(1, 0, node)
    for _ in range(UNPACK_AT):
        found = cache.get(1, 0)
        assert type(found) is CodedNode
        found.slice(0, 100)
    node.slice(0, 1)
    found = cache.get(1, 0)
    assert type(found) is Node
    check_answers(found, entries, Random(2))
    assert cache.bytes == found.size


def test_narrow_columns_are_coded_too() -> None:
    """What was unpacked once, and is sealed again."""
    entries = sensors(200)
    node = open_packed(seal(tail_of(entries), compress=False)).unpack()
    assert node.ms.typecode != "Q"
    assert coder.encode(node.base, node.ms, node.seq, node.ends, node.wire) == blob_of(entries)
    assert array("Q", node.seq) == tail_of(entries).seq


# -- tails -----------------------------------------------------------------------------------------------------
def listed(entries: list[Entry]) -> list[object]:
    return [part for entry_id, wire in entries for part in (wire, entry_id >> 64, entry_id & MASK64)]


@pytest.mark.parametrize("count", [1, 5, 20, 26, 32])
def test_a_long_tail_is_coded_whether_its_entries_are_loose_or_not(count: int) -> None:
    entries = sensors(count)
    tail = tail_of(entries)
    blob, largest = appendlist.active_blob(listed(entries), len(tail.wire))
    assert (blob, largest) == active_blob(tail)
    assert is_coded(blob) == (len(tail.wire) >= LONG_ACTIVE)
    assert largest == max(len(wire) for _, wire in entries)
    node = open_packed(blob).unpack()
    assert (node.wire, node.ids(0, count)) == (tail.wire, [entry_id for entry_id, _ in entries])


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.binary(max_size=200), st.integers(0, MASK64), st.integers(0, MASK64)), min_size=1, max_size=40
    )
)
def test_what_can_be_no_entries_is_not_coded_either_way(rows: list[tuple[bytes, int, int]]) -> None:
    tail = tail_of([(ms << 64 | seq, wire) for wire, ms, seq in rows])
    found = coder.encode_list([part for row in rows for part in row])
    blob = coder.encode(0, tail.ms, tail.seq, tail.ends, tail.wire)
    assert found == (None if blob is None else (blob, max(len(wire) for wire, _, _ in rows)))


@pytest.mark.parametrize(
    "wrong", [None, (), [b"wire"], [b"wire", 1], ["text", 1, 2], [b"wire", -1, 0], [b"wire", 1, "2"]]
)
def test_a_list_of_something_else(wrong: object) -> None:
    with pytest.raises((TypeError, OverflowError)):
        _coded.encode_list(wrong)
    assert _coded.encode_list([]) is None
