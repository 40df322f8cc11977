"""Exactly-once publishing against plain lists: staged, published, skipped, stale, dropped, timed out; with restarts
from the log alone, and from a checkpoint and the log behind it, at any moment."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hiredis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from persistence.store import Store
from storage.keyspace import expiry
from storage.keyspace.keyspace import Keyspace
from storage.keyspace.replay import replay
from storage.streams.capture import Capture
from storage.streams.stream import Stream
from tests.storage.keyspace.replaykit import NOW, call, empty
from tests.storage.streams.captures import all_stored, whole_capture

KEYS = st.sampled_from([b"a", b"b"])
NAMES = st.sampled_from([b"s1", b"s2", b"s3"])
FENCES = st.sampled_from([b"q", b"r" * 600])


@dataclass
class Staged:
    """A stage as the model knows it."""

    rows: list[tuple[bytes, bytes]] = field(default_factory=list)  # key, value
    ttl: int = 0
    ends: int = 0  # 0: never


def parsed(reply: bytes) -> Any:
    reader = hiredis.Reader()
    reader.feed(reply)
    return reader.gets()


class Staging(RuleBasedStateMachine):
    @initialize(entries=st.integers(1, 4), at_once=st.sampled_from([0, 3, 100]))
    def begin(self, entries: int, at_once: int) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.store = Store(self.directory)
        self.entries, self.at_once = entries, at_once
        self.log: list[bytes] = []
        self.stored = 0  # batches that the store has
        self.captured: tuple[Capture, int] | None = None
        self.now = NOW
        self.streams: dict[bytes, list[tuple[int, int, bytes]]] = {}  # ms, seq, value
        self.stages: dict[bytes, Staged] = {}
        self.fences: dict[bytes, int] = {}
        self.checks: dict[bytes, bytes] = {}
        self.number = 0
        self.ks = self.restarted(self.store)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.directory)

    def restarted(self, store: Store | None) -> Keyspace:
        """A keyspace from the store, or from nothing, and the log behind it."""
        ks = empty(store)
        ks.pool.max_entries, ks.pool.publish_written = self.entries, self.at_once
        if store is not None:
            store.restore(ks)
        for batch in self.log[self.stored if store is not None else 0 :]:
            replay(ks, batch)
            assert ks.take_batch() == batch
        return ks

    def run(self, *words: bytes | int) -> Any:
        reply = call(self.ks, self.now, *words)
        batch = self.ks.take_batch()
        if batch:
            self.log.append(batch)
        return parsed(reply) if isinstance(reply, bytes) else reply

    def value(self) -> bytes:
        self.number += 1
        return b"%d" % self.number * (self.number % 4)

    def append(self, key: bytes, values: list[bytes]) -> None:
        """As [3] says."""
        entries = self.streams.setdefault(key, [])
        ms, seq = max((self.now, 0), (entries[-1][0], entries[-1][1] + 1) if entries else (0, 0))
        entries += [(ms, seq + number, value) for number, value in enumerate(values)]

    def live(self, name: bytes) -> bool:
        """Whether the stage is there; that its time is over shows when somebody looks."""
        stage = self.stages.get(name)
        if stage is not None and stage.ends and stage.ends <= self.now:
            del self.stages[name]
            return False
        return stage is not None

    # -- commands ------------------------------------------------------------------------------------------------
    @rule(key=KEYS)
    def tappend(self, key: bytes) -> None:
        value = self.value()
        self.run(b"TAPPEND", key, b"f", value)
        self.append(key, [value])

    @rule(names=st.lists(NAMES, min_size=1, max_size=3))
    def tpersist(self, names: list[bytes]) -> None:
        there = {name for name in names if self.live(name)}
        assert self.run(b"TPERSIST", *names) == len(there)
        for name in there:
            self.stages[name].ttl = self.stages[name].ends = 0

    @rule(name=NAMES, key=KEYS, count=st.integers(1, 9), ttl=st.sampled_from([0, 20]))
    def tstage(self, name: bytes, key: bytes, count: int, ttl: int) -> None:
        self.live(name)
        values = [self.value() for _ in range(count)]
        stage = self.stages.setdefault(name, Staged())
        stage.rows += [(key, value) for value in values]
        stage.ends = self.now + ttl if ttl else 0
        stage.ttl = ttl
        assert self.run(b"TSTAGE", name, ttl, key, b"FIELDS", 1, b"f", b"VALUES", *values) == len(stage.rows)

    @rule(
        fence=FENCES, step=st.sampled_from([-1, 0, 1, 1, 1, 5]), check=st.sampled_from([b"", b"x", b"y" * 64]),
        names=st.lists(NAMES, min_size=1, max_size=4),
    )  # fmt: skip
    def tpublish(self, fence: bytes, step: int, check: bytes, names: list[bytes]) -> None:
        last = self.fences.get(fence, -1)
        epoch = max(0, last + step)
        before = self.checks.get(fence, b"")
        reply = self.run(b"TPUBLISH", fence, epoch, *((b"CHECK", check) if check else ()), *names)
        names = list(dict.fromkeys(names))
        if epoch < last:
            assert reply.startswith("STALE ")
        elif epoch == last and check and before and check != before:
            assert reply.startswith("CONFLICT ")
        elif epoch == last:
            assert reply == [b"skipped", 0]
            for name in names:
                self.stages.pop(name, None)
        elif missing := next((name for name in names if not self.live(name)), None):
            assert reply == f"NOSTAGE No such stage '{missing.decode()}'"
        else:
            rows = [row for name in names for row in self.stages.pop(name).rows]
            assert reply == [b"published", len(rows)]
            self.fences[fence] = epoch
            self.checks[fence] = check
            for key in dict.fromkeys(key for key, _ in rows):
                self.append(key, [value for other, value in rows if other == key])

    @rule(names=st.lists(NAMES, min_size=1, max_size=3))
    def tdrop(self, names: list[bytes]) -> None:
        there = {name for name in names if self.live(name)}
        assert self.run(b"TDROP", *names) == len(there)
        for name in there:
            del self.stages[name]

    @rule(ms=st.sampled_from([1, 7, 20, -15]), sweep=st.booleans())
    def time(self, ms: int, sweep: bool) -> None:
        self.now += ms
        if sweep:
            expiry.run(self.ks, self.now)
            batch = self.ks.take_batch()
            self.log += [batch] if batch else []
            for name in list(self.stages):
                self.live(name)

    @rule(key=KEYS)
    def delete(self, key: bytes) -> None:
        self.run(b"DEL", key)
        self.streams.pop(key, None)

    @rule()
    def flush(self) -> None:
        self.run(b"FLUSHALL")
        self.streams, self.stages, self.fences, self.checks = {}, {}, {}, {}

    # -- restarts ------------------------------------------------------------------------------------------------
    @precondition(lambda self: self.captured is None)
    @rule()
    def capture(self) -> None:
        self.captured = whole_capture(self.ks), len(self.log)

    @precondition(lambda self: self.captured is not None)
    @rule(well=st.booleans())
    def checkpoint(self, well: bool) -> None:
        assert self.captured is not None
        capture, stored = self.captured
        self.captured = None
        if not well:
            self.ks.changes.failed(capture)
            return
        self.store.write(capture, stored)
        self.store.renew_view()
        all_stored(self.ks, capture)
        self.stored = stored

    @rule()
    def restart(self) -> None:
        self.captured = None
        self.store.close()
        self.store = Store(self.directory)
        self.ks = self.restarted(self.store)
        self.ks.resume(self.now)
        for stage in self.stages.values():
            if stage.ttl:  # those that nobody noticed were over live on as well
                stage.ends = max(stage.ends, self.now + stage.ttl)

    # -- what always holds ---------------------------------------------------------------------------------------
    @invariant()
    def all_is_as_in_the_model(self) -> None:
        if not hasattr(self, "ks"):
            return
        digest = self.ks.digest()
        for ks in (self.ks, self.restarted(None), self.restarted(self.store)):
            assert ks.digest() == digest
            assert ks.stages.fences == self.fences
            assert ks.stages.checks == {fence: check for fence, check in self.checks.items() if check}
            assert {key for key, value in ks.keys.items() if isinstance(value, Stream)} == set(self.streams)
            for key, entries in self.streams.items():
                stream = ks.keys[key]
                assert isinstance(stream, Stream)
                ids = [(ms << 64 | seq).to_bytes(16, "big") for ms, seq, _ in entries]
                assert stream.raw_ids(stream.seek(0), stream.next_ord) == ids
                wire = stream.read(0, stream.next_ord)
                rows = parsed(b"*%d\r\n" % len(entries) + wire)
                assert rows == [[b"%d.%d" % (ms, seq), b"f", value] for ms, seq, value in entries]
            there = {name: stage.entries for name, stage in ks.stages.by_name.items()}
            assert there == {name: len(stage.rows) for name, stage in self.stages.items()}


TestStaging = Staging.TestCase
TestStaging.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
