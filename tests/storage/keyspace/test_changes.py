"""A capture is what the keyspace was when it began, whatever happens before it is complete."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from commands import registry  # noqa: F401  (fills the command table)
from commands.context import Context
from commands.declare import lookup
from commands.session import Session
from persistence.store import Store
from storage.keyspace import expiry
from storage.keyspace.changes import EVERYTHING
from storage.keyspace.keyspace import Keyspace
from storage.nodes.cache import NodeCache
from storage.nodes.pool import NodePool
from storage.streams.stream import Stream
from tests.storage.keyspace.replaykit import SERVER
from tests.storage.streams.captures import whole_capture

NOW = 1_700_000_000_000
GROUP = "GROUP g 60000 RETRY 1000 5000 MAXDELIVERIES 2 DEADLETTER dead"
BEFORE = [
    *["TAPPEND s f v"] * 5, "TAPPEND dead f v", "TAPPEND other f v", "TAPPEND short f v", "PEXPIRE short 50",
    f"TREAD s 0 3 {GROUP}", "SET text old PX 60000", "SET gone old", "SET short-text old PX 50", "TAPPEND kept f v",
]  # fmt: skip
CHANGES = [
    "TAPPEND s f new", "TMAPPEND s FIELDS 1 f VALUES 1 2 3 4 5", "TAPPEV s COUNT 2", "TAPPEV s COUNT 2 f new",
    "PEXPIRE s 70000", "DEL s", "SET s text", "PEXPIRE text 70000", "PERSIST text", "SET text new",
    "SET text new KEEPTTL", "DEL gone", "TAPPEND new f v", "FLUSHALL", f"TREAD s 0 2 {GROUP}",
    "TREAD other 0 1 GROUP g 0", "TACK s g {first}", "TNACK s g {first}", "TTOUCH s g 3000 {first}",
    "TGROUP DESTROY s g", "TGROUP SETID s g 0", "TPUBLISH fence 1 stage",
]  # fmt: skip


def call(ks: Keyspace, words: str) -> Any:
    argv = [word.encode() for word in words.split()]
    ks.take_batch()
    return lookup(argv).handler(Context(ks, cast(Any, SERVER), Session(1, "", "", NOW), NOW), argv)


def empty(store: Store) -> Keyspace:
    nodes = NodePool(store, NodeCache(4096))
    nodes.max_entries = 3
    nodes.publish_written = 2
    return Keyspace(nodes)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "store")
    yield store
    store.close()


@pytest.fixture
def ks(store: Store) -> Keyspace:
    """Something of each kind, all of it changed since the last checkpoint."""
    ks = empty(store)
    for words in BEFORE:
        call(ks, words)
    for _ in range(3):
        call(ks, "TSTAGE stage 60000 s FIELDS 1 f VALUES a b")
    return ks


def stored(store: Store) -> Keyspace:
    found = empty(store)
    store.restore(found)
    return found


def digest(ks: Keyspace) -> tuple[str, list[tuple[bytes, int, int]]]:
    """With what digest() leaves out of groups."""
    groups = [
        (key, group.redelivered, group.deadlettered)
        for key, value in sorted(ks.keys.items()) if isinstance(value, Stream) for group in value.groups.values()
    ]  # fmt: skip
    return ks.digest(), groups


@pytest.mark.parametrize("change", [*CHANGES, "time"])
@pytest.mark.parametrize("taken_before", [0, 2])
def test_a_change_while_it_is_made_does_not_show(store: Store, ks: Keyspace, change: str, taken_before: int) -> None:
    before, changes_before = digest(ks), ks.changes.count
    capture = ks.begin_capture()
    assert not ks.changes.more(taken_before)
    if change == "time":  # keys expire, messages go to their dead letter stream
        expiry.run(ks, NOW + 6000)
    else:
        first = cast(Stream, ks.keys[b"s"]).first_id() >> 64
        reply = call(ks, change.format(first=first))
        assert not (isinstance(reply, bytes) and reply.startswith((b"-", b":0"))), reply
    after = digest(ks)
    assert after != before
    while not ks.changes.more(1):
        pass
    store.write(capture, 1)
    store.renew_view()
    assert digest(stored(store)) == before
    while not ks.changes.stored(capture, 1):
        pass
    assert digest(ks) == after
    assert ks.changes.count < changes_before, "what is stored counts no longer"
    store.write(whole_capture(ks), 2)
    store.renew_view()
    assert digest(stored(store)) == after, "and the next one has the change"


@pytest.mark.parametrize("some", [0, 3, EVERYTHING])
@pytest.mark.parametrize("change", CHANGES)
def test_one_that_failed_is_all_in_the_next(store: Store, ks: Keyspace, change: str, some: int) -> None:
    capture = ks.begin_capture()
    ks.changes.more(some)
    call(ks, change.format(first=cast(Stream, ks.keys[b"s"]).first_id() >> 64))
    ks.changes.failed(capture)
    store.write(whole_capture(ks), 1)
    store.renew_view()
    assert digest(stored(store)) == digest(ks)


def test_parts_are_as_small_as_asked(ks: Keyspace) -> None:
    capture = ks.begin_capture()
    parts = 0
    while not ks.changes.more(1):
        parts += 1
        assert len(capture.streams) + len(capture.strings) + len(capture.stages) <= parts
    assert parts == len(ks.keys) + len(ks.stages.by_name) - 1
    assert not ks.changes.held


def test_fences_that_were_flushed_while_a_checkpoint_failed(ks: Keyspace) -> None:
    ks.flush()
    ks.stages.set_fence(b"f", 1, b"")
    taken = ks.begin_capture()
    ks.changes.more(EVERYTHING)
    ks.flush()
    ks.changes.failed(taken)
    ks.set_string(b"k", b"v")
    again = whole_capture(ks)
    assert (again.flushed, again.fences) == (True, [])
    assert [key for key, _, _ in again.strings] == [b"k"]


def test_an_error_after_the_commit_flushes_nothing_again(ks: Keyspace) -> None:
    ks.flush()
    ks.set_string(b"k", b"v")
    taken = whole_capture(ks)
    taken.flushed = False  # as a checkpoint does once it is on disk
    ks.changes.stored(taken, EVERYTHING)
    ks.changes.failed(taken)
    assert not whole_capture(ks).flushed


def test_strings_leave_a_stored_capture_in_parts(ks: Keyspace) -> None:
    for number in range(20):
        call(ks, f"TAPPEND s{number} f v")
        ks.set_string(b"k%d" % number, b"v")
    taken = whole_capture(ks)
    left = []
    while not ks.changes.stored(taken, 5):
        left.append((len(taken.streams), len(taken.strings)))
    assert all(before[1] - after[1] <= 5 for before, after in pairwise(left))
    assert len(left) > 4
