"""After a start, entries come behind a stored tail that nobody opens; the next checkpoint makes one node of both."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resp.errors import CorruptError
from storage.nodes.appendlist import LARGE
from storage.nodes.packed import open_packed
from tests.storage.streams.test_stream import checkpoint, made, reborn

SIZES = st.sampled_from([3, 3, 3, LARGE])


def wires(numbers: range, sizes: list[int]) -> list[bytes]:
    return [b"%03d" % number + b"." * (size - 3) for number, size in zip(numbers, sizes, strict=True)]


@settings(deadline=None)
@given(st.lists(st.lists(SIZES, min_size=1, max_size=25), min_size=2, max_size=5), st.data())
def test_all_that_was_appended_is_read(lives: list[list[int]], data: st.DataObject) -> None:
    stream, store, nodes = made(0, max_entries=data.draw(st.sampled_from([4, 20, 500])))
    nodes.max_bytes = data.draw(st.sampled_from([40, 2000, 1 << 16]))
    expected: list[bytes] = []
    for sizes in lives:
        for wire in wires(range(len(expected), len(expected) + len(sizes)), sizes):
            expected.append(wire)
            stream.append(len(expected), 0, wire)
            if not data.draw(st.integers(0, 9)):
                assert stream.read(stream.first_ord, stream.next_ord) == b"".join(expected[stream.first_ord :])
        if not data.draw(st.integers(0, 3)):
            border = data.draw(st.integers(stream.first_ord, stream.next_ord))
            stream.evict_before(border)
        before, own = nodes.bytes, stream.memory_bytes()
        checkpoint(stream, store)
        assert nodes.bytes - before == stream.memory_bytes() - own
        assert stream.each(stream.first_ord, stream.next_ord) == expected[stream.first_ord :]
        assert stream.ids(stream.first_ord, stream.next_ord) == [
            number + 1 << 64 for number in range(stream.first_ord, stream.next_ord)
        ]
        stream = reborn(store, nodes)
        assert stream.each(stream.first_ord, stream.next_ord) == expected[stream.first_ord :]
        if data.draw(st.booleans()):
            stream = reborn(store, nodes)  # with nothing in the cache


def test_lives_of_a_few_entries_make_one_node() -> None:
    stream, store, nodes = made(2, max_entries=500)
    for life in range(5):
        checkpoint(stream, store)
        stream = reborn(store, nodes)
        stream.append(10 + life, 0, b"<%d>" % (2 + life))
        if life % 2:
            stream.read(0, 3 + life)  # joined, so the checkpoint finds two nodes
    checkpoint(stream, store)
    assert (stream.node_count, len(store.blobs)) == (1, 1)
    assert len(open_packed(store.blobs[1, 0][1])) == 7


def test_a_damaged_tail_does_not_stop_checkpoints() -> None:
    stream, store, nodes = made(3)
    checkpoint(stream, store)
    first_id, blob = store.blobs[1, 0]
    store.blobs[1, 0] = first_id, blob[:-1] + bytes((blob[-1] ^ 1,))
    stream = reborn(store, nodes)
    stream.append(50, 0, b"<new>")
    checkpoint(stream, store)
    assert stream.read(3, 4) == b"<new>"
    stream = reborn(store, nodes)
    assert stream.read(3, 4) == b"<new>"
    with pytest.raises(CorruptError):
        stream.read(0, 4)
