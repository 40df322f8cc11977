"""Nodes that a replica has: reported in runs, compared by the leader, and taken from the replica's own store."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from persistence.fullcopy import Incoming
from persistence.history import History
from persistence.layout import NODE_KEY
from persistence.noderuns import CHUNK, MOST_NODES, RUN, ReportedRuns, Run
from persistence.ownnodes import OtherNodesError, OwnNodes
from persistence.store import Store
from persistence.storecopy import ENTRY, NODES, REUSED, entries
from resp.errors import CorruptError
from tests.persistence.datakit import RING, append, checkpoint, delete, opened
from tests.persistence.test_storecopy import HISTORY, STEP, take

NONE = b"\0" * 16


def key(number: int, sid: int = 1) -> bytes:
    return NODE_KEY.pack(sid, number, b"\0" * 16)


def run(last: int, nodes: int = 1) -> bytes:
    return RUN.pack(key(last), nodes, NONE)


# -- the report ------------------------------------------------------------------------------------------------
def test_runs_are_found_by_key() -> None:
    runs = ReportedRuns()
    assert runs.exhausted
    runs.add(run(3) + run(7, 4))
    assert not runs.exhausted
    assert [runs.at(key(at)) for at in (1, 3, 4)] == [Run(key(3), 1, NONE)] * 2 + [Run(key(7), 4, NONE)]
    assert runs.at(key(8)) is None
    assert runs.exhausted
    runs.add(run(9))
    runs.add(b"")
    assert runs.at(key(8)) == Run(key(9), 1, NONE)
    assert runs.at(key(10)) is None
    assert (runs.ended, runs.exhausted) == (True, False)


@pytest.mark.parametrize(
    ("chunks", "reason"),
    [
        ([run(1)[:-1]], "size"),
        ([run(1) + b"x"], "size"),
        ([b"".join(run(at) for at in range(CHUNK // RUN.size + 1))], "size"),
        ([run(2) + run(1)], "order"),
        ([run(2) + run(2)], "order"),
        ([run(2), run(1)], "order"),
        ([run(1, 0)], "order"),
        ([run(1, MOST_NODES + 1)], "order"),
        ([b"", run(1)], "size"),
        ([b"", b""], "size"),
    ],
)  # fmt: skip
def test_invalid_reports(chunks: list[bytes], reason: str) -> None:
    runs = ReportedRuns()
    for chunk in chunks[:-1]:
        runs.add(chunk)
    with pytest.raises(CorruptError, match=reason):
        runs.add(chunks[-1])


def test_a_report_is_not_endless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persistence.noderuns.MOST_RUNS", 3)
    runs = ReportedRuns()
    runs.add(run(1) + run(2))
    assert not runs.ended
    runs.add(run(3) + run(4))
    assert runs.ended
    assert runs.at(key(4)) == Run(key(4), 1, NONE)
    assert runs.at(key(5)) is None
    assert not runs.exhausted


@contextmanager
def own_nodes(store: Store) -> Iterator[OwnNodes]:
    own = store.own_nodes()
    try:
        yield own
    finally:
        own.close()


def reported(store: Store) -> list[Run]:
    with own_nodes(store) as own:
        chunks = list(iter(own.chunk, b""))
    assert all(len(chunk) <= CHUNK for chunk in chunks)
    return [Run(*fields) for fields in RUN.iter_unpack(b"".join(chunks))]


def test_runs_are_short_at_both_ends_of_a_stream(tmp_path: Path) -> None:
    with opened(tmp_path) as (log, ks, _):
        append(ks, b"long", 4000)
        for number in range(200):
            append(ks, b"short %d" % number, 3)
        assert not log.store.has_nodes
        assert reported(log.store) == []
        checkpoint(log, ks)
        log.store.renew_view()
        assert log.store.has_nodes
        runs = reported(log.store)
    long = [one.nodes for one in runs if NODE_KEY.unpack(one.last)[0] == 1]
    assert sum(long) == 400
    assert max(long) == MOST_NODES
    assert long[:3] == long[-3:] == [1, 1, 1]
    for sizes in (long, long[::-1]):  # a run has at most half of the nodes before it
        assert all(size == 1 or 2 * size <= sum(sizes[:at]) + size + 1 for at, size in enumerate(sizes))
    short = [one.nodes for one in runs[len(long) :]]
    assert sum(short) == 200
    assert len(short) < 10


def test_the_report_ends_with_the_store(tmp_path: Path) -> None:
    with opened(tmp_path) as (log, ks, _):
        append(ks, b"s", 100)
        checkpoint(log, ks)
        own = log.store.own_nodes()
    with pytest.raises(OSError, match="the store was closed"):
        own.chunk()


def test_a_chunk_ends_after_some_bytes(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever stops the copy waits until the nodes of one chunk are read."""
    with own_nodes(pair.own_log.store) as own:
        everything = own.chunk()
        assert own.chunk() == b""
    monkeypatch.setattr("persistence.ownnodes.AT_ONCE", 3000)
    with own_nodes(pair.own_log.store) as own:
        chunks = list(iter(own.chunk, b""))
    assert b"".join(chunks) == everything
    assert len(chunks) > 5


# -- copies ----------------------------------------------------------------------------------------------------
def transfer(
    leader: Store, own: OwnNodes | None, directory: Path, size: int = 1000, change: Callable[[], None] = lambda: None
) -> Incoming:
    """Copy the leader's store to a replica that reports its nodes. ``change`` is called before nodes are taken."""
    copy, place, known = leader.copy(), Incoming(directory, RING, own), ReportedRuns()
    try:
        pieces = copy.pieces(size, known)
        while (piece := next(pieces, None)) is not None:
            if any(db == REUSED for db, _, _ in entries(piece)):
                change()
            place.add(piece)
            if not piece and known.exhausted:
                assert own is not None
                known.add(own.chunk())
        place.finish(copy.offset, copy.entries, History(HISTORY))
    except BaseException:
        place.abandon()
        raise
    finally:
        copy.close()
    return place


class Pair:
    """A leader, and a replica with a copy of its directory that has then changed."""

    def __init__(self, top: Path, stack: ExitStack) -> None:
        self.path = top / "replica"
        with opened(top / "leader") as (log, ks, _):
            append(ks, b"a", 3000)
            append(ks, b"b", 25)
            checkpoint(log, ks)
        shutil.copytree(top / "leader", self.path)
        self.log, self.ks, _ = stack.enter_context(opened(top / "leader"))
        self.own_log, self.own_ks, _ = stack.enter_context(opened(self.path))

    def save(self) -> None:
        checkpoint(self.log, self.ks)
        checkpoint(self.own_log, self.own_ks)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(tmp_path, stack)


def copied(pair: Pair, size: int = 1000) -> tuple[int, int]:
    """Copy, and compare. Returns the bytes that were received, and those that were taken from the own store."""
    with own_nodes(pair.own_log.store) as own:
        place = transfer(pair.log.store, own, pair.path, size)
    pair.own_log.close()
    with opened(pair.path) as (_, ks, _):
        assert ks.digest() == pair.ks.digest()
    return place.bytes, place.reused


@pytest.mark.parametrize("size", [1, 1000, 1 << 20])
def test_equal_stores(pair: Pair, size: int) -> None:
    received, reused = copied(pair, size)
    assert received < reused / 3


def test_only_differences_are_received(pair: Pair) -> None:
    append(pair.ks, b"a", 40)
    append(pair.ks, b"new", 40)
    append(pair.own_ks, b"a", 70, 10)
    append(pair.own_ks, b"other", 40)
    stream = append(pair.ks, b"a", 0)
    pair.ks.evict(b"a", stream, 100, stream.id_at(100))
    delete(pair.ks, b"a", range(1500, 1510))  # a whole node in the middle
    pair.save()
    received, reused = copied(pair)
    assert received < reused


def test_nodes_after_the_longest_report_are_received(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persistence.noderuns.MOST_RUNS", 6)
    monkeypatch.setattr("persistence.ownnodes.AT_ONCE", 1)  # one run in a chunk
    received, reused = copied(pair)
    assert 0 < reused < received


def test_a_replica_without_nodes_in_common(pair: Pair) -> None:
    pair.own_ks.flush()
    append(pair.own_ks, b"other", 100)
    pair.save()
    received, reused = copied(pair)
    assert not reused
    assert received > 10_000


def test_the_copy_does_not_see_later_checkpoints(pair: Pair) -> None:
    with own_nodes(pair.own_log.store) as own:

        def change() -> None:
            append(pair.own_ks, b"a", 20)
            checkpoint(pair.own_log, pair.own_ks)

        assert transfer(pair.log.store, own, pair.path, change=change).reused
    pair.own_log.close()
    with opened(pair.path) as (_, ks, _):
        assert ks.digest() == pair.ks.digest()


def references(first: bytes, last: bytes, digest: bytes = NONE) -> bytes:
    value = last + digest
    return ENTRY.pack(REUSED, len(first), len(value)) + first + value


@pytest.mark.parametrize(
    ("first", "last"),
    [
        (key(0), key(1 << 60)),
        (b"", b"\xff" * 32),
        (key(5), key(0)),
        (key(0, 99), key(9, 99)),
        (b"", b""),
        (b"\0" * 600, b"\xff" * 32),
    ],
)
def test_references_to_nodes_that_are_not_there(pair: Pair, first: bytes, last: bytes) -> None:
    with own_nodes(pair.own_log.store) as own:
        place = Incoming(pair.path, RING, own)
        with pytest.raises(OtherNodesError, match="does not have"):
            place.add(references(first, last))
        place.abandon()


def test_nodes_that_are_different_when_they_are_read_again(pair: Pair) -> None:
    """As if the disk had damaged them since the report."""
    with own_nodes(pair.own_log.store) as own:
        first, second = reported(pair.own_log.store)[:2]
        assert len(own.take(first.last, first.last, first.digest)) == 1
        place = Incoming(pair.path, RING, own)
        with pytest.raises(OtherNodesError, match="does not have"):
            place.add(references(first.last, first.last, second.digest))
        assert place.entries == 0
        place.abandon()


def test_a_reference_twice(pair: Pair) -> None:
    with own_nodes(pair.own_log.store) as own:
        copy = pair.log.store.copy()
        listed = list(entries(b"".join(copy.pieces(1000))))
        runs = reported(pair.own_log.store)
        place = Incoming(pair.path, RING, own)
        for db, name, value in listed:
            if db < NODES:
                place.add(ENTRY.pack(db, len(name), len(value)) + name + value)
        first = next(name for db, name, _ in listed if db == NODES)
        place.add(references(first, runs[0].last, runs[0].digest))
        with pytest.raises(CorruptError, match="out of order"):
            place.add(references(first, runs[0].last, runs[0].digest))
        place.abandon()


def test_a_reference_that_was_not_requested(tmp_path: Path) -> None:
    place = Incoming(tmp_path, RING)
    with pytest.raises(CorruptError, match="not reported"):
        place.add(references(key(0), key(1)))
    place.abandon()


@pytest.mark.slow
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(*[st.lists(STEP, min_size=1, max_size=12)] * 3, st.sampled_from([1, 300, 1 << 18]))
def test_any_difference(
    common: list[tuple[object, ...]], here: list[tuple[object, ...]], there: list[tuple[object, ...]], size: int
) -> None:
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        top = Path(place)
        with opened(top / "a") as (log, ks, _):
            for step in common:
                checkpoint(log, ks) if step[0] == "checkpoint" else take(ks, step)
            checkpoint(log, ks)
        shutil.copytree(top / "a", top / "b")
        logs = []
        for name, steps in (("a", here), ("b", there)):
            log, ks, _ = stack.enter_context(opened(top / name))
            for step in steps:
                checkpoint(log, ks) if step[0] == "checkpoint" else take(ks, step)
            checkpoint(log, ks)
            logs.append((log, ks.digest()))
        with own_nodes(logs[1][0].store) as own:
            transfer(logs[0][0].store, own, top / "b", size)
        logs[1][0].close()
        with opened(top / "b") as (_, ks, _):
            assert ks.digest() == logs[0][1]
