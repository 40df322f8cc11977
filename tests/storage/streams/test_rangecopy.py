"""A range of a stream as one node, for another server."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.nodes.node import Node, seal
from storage.nodes.packed import open_packed
from storage.streams.rangecopy import LONGEST, RangeCopy
from storage.streams.stream import Stream
from tests.persistence.datakit import range_copy
from tests.storage.streams.test_stream import checkpoint, made, wires

MOST = 1 << 20


@pytest.fixture
def stream() -> Stream:
    """100 entries of 4 bytes (the first ten: 3), most of them in a store, in nodes of ten."""
    stream, store, _ = made(95)
    checkpoint(stream, store)
    for number in range(95, 100):
        stream.append(number + 1, 0, b"<%d>" % number)
    return stream


def test_a_step_is_limited(stream: Stream) -> None:
    copy = RangeCopy(7, 8 << 64, 90, MOST)
    assert copy.stop_of(4) == 11
    assert copy.step(stream, 4, MOST)
    assert copy.next == 11
    assert copy.node() is None
    assert copy.step(stream, 40, 8)  # the rest of the node has more than that
    assert copy.next == 20
    assert copy.step(stream, 40, 48)
    assert copy.next == 40
    assert not copy.step(stream, 1000, MOST)
    node = copy.node()
    assert isinstance(node, Node)
    assert node.wire == wires(7, 97)
    assert node.ids(0, 90) == [number << 64 for number in range(8, 98)]


def test_a_copy_is_limited(stream: Stream) -> None:
    size = len(wires(0, 20))
    for most in (size, size - 1):
        copy = RangeCopy(0, 1 << 64, 20, most)
        assert not copy.step(stream, 1000, MOST)
        assert (copy.node() is not None) == (most == size)
    copy = RangeCopy(0, 1 << 64, 100, 20)
    assert not copy.step(stream, 1000, MOST)
    assert copy.next == 0  # it ended within the first node


def test_a_copy_has_few_ordinals() -> None:
    stream, store, _ = made(LONGEST + 2, max_entries=1 << 15)
    checkpoint(stream, store)
    stream.delete(list(range(1, LONGEST)), LONGEST << 64)
    for count, fits in ((LONGEST + 1, False), (LONGEST, True)):
        copy = RangeCopy(0, 1 << 64, count, MOST)
        assert not copy.step(stream, 1 << 20, MOST)
        assert (copy.node() is not None) == fits


@given(data=st.data())
def test_entries_that_are_alive_are_copied(data: st.DataObject) -> None:
    """Whatever is deleted and evicted between the steps: what is missing is dead, and nothing is changed."""
    stream, store, _ = made(data.draw(st.integers(1, 45)))
    checkpoint(stream, store)
    while stream.next_ord < 50:
        stream.append(stream.next_ord + 1, 0, b"<%d>" % stream.next_ord)
    first = data.draw(st.integers(0, 49))
    copy = RangeCopy(first, first + 1 << 64, data.draw(st.integers(0, 52 - first)), MOST)
    many = st.integers(1, 30)
    going = True
    while going:
        dead = data.draw(st.sets(st.integers(stream.first_ord, 49), max_size=20)) if stream.first_ord < 50 else set()
        living = [at for at in sorted(dead) if stream.count(at, at + 1)]
        if living:
            stream.delete(living, living[-1] + 1 << 64)
        if data.draw(st.integers(0, 5)) == 0:
            stream.evict_before(data.draw(st.integers(stream.first_ord, 50)))
        going = copy.step(stream, data.draw(many), 5 * data.draw(many))
    node = copy.node()
    if node is None:
        return
    found = open_packed(seal(node)).unpack()
    size = len(found)
    for at, wire in enumerate(found.each(0, size), first):
        assert wire in (b"", b"<%d>" % at)
        if at >= stream.first_ord and stream.count(at, at + 1):
            assert (wire, found.id_at(at - first)) == (b"<%d>" % at, at + 1 << 64)
    begin = max(first + size, stream.first_ord)
    assert begin >= copy.next or not stream.count(begin, copy.next)


def test_nothing_alive(stream: Stream) -> None:
    stream.evict_before(45)
    assert range_copy(stream, 40, 99 << 64, 10) is None  # the IDs of evicted entries precede those of living ones
    assert range_copy(stream, 40, 41 << 64, 10) is not None
    stream.evict_before(50)
    assert range_copy(stream, 30, 31 << 64, 20) is None
    assert range_copy(stream, 30, 31 << 64, 0) is None
    assert range_copy(stream, 200, 201 << 64, 5) is None
