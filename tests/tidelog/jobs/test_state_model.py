"""The store against a dict: epochs of puts, deletes, deadlines, savepoints; commit, undo, opening again, copies."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

pytest.importorskip("pyarrow")

from tests.tidelog.jobs.storekit import copy_store
from tidelog.jobs.state import State
from tidelog.jobs.store import MemoryStore, StateChanges, StateStore, StateVersion
from tidelog.jobs.store.environments import forget

Content = dict[bytes, tuple[int, int | None]]  # key: value, deadline

keys = st.lists(st.sampled_from([b"", b"a", b"a\x00", b"ab", b"b", b"b\xff", b"c", b"1", b"10"]), max_size=6)
values = st.integers(-(1 << 70), 1 << 70) | st.integers(-5, 5)


class Model(RuleBasedStateMachine):
    """``layers``: what is stored by the model, and a dict for each savepoint."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.path = self.folder / "0"
        self.cache = 64 << 20
        self.store = StateStore.open(self.path)
        self.memory = MemoryStore()
        self.stored: Content = {}
        self.version, self.now = StateVersion(0, ""), 0
        self.before: tuple[Content, StateVersion, int] | None = None
        self.runs = 0
        self.begin(0)

    def begin(self, later: int) -> None:
        self.layers = [dict(self.stored)]
        self.changes = [self.store.begin(self.now + later)]
        self.beside = [self.memory.begin(self.now + later)]
        self.time = self.now + later

    @rule(later=st.integers(0, 30))
    def begin_again(self, later: int) -> None:
        self.begin(later)

    @rule(keys=keys, value=values, ttl=st.none() | st.integers(1, 40))
    def put(self, keys: list[bytes], value: int, ttl: int | None) -> None:
        for state in self.states():
            state.put_many(keys, [value + at for at in range(len(keys))], None if ttl is None else ttl / 1000)
        for at, key in enumerate(keys):
            self.layers[-1][key] = (value + at, None if ttl is None else self.time + ttl)

    @rule(keys=keys)
    def delete(self, keys: list[bytes]) -> None:
        for state in self.states():
            state.delete_many(keys)
        for key in keys:
            self.layers[-1].pop(key, None)

    @rule(keys=keys)
    def get(self, keys: list[bytes]) -> None:
        expected = [self.seen().get(key) for key in keys]
        assert [state.get_many(keys) for state in self.states()] == [expected] * 2

    @rule(prefix=st.sampled_from([b"", b"a", b"b", b"1", b"z"]))
    def scan(self, prefix: bytes) -> None:
        expected = sorted((key, value) for key, value in self.seen().items() if key.startswith(prefix))
        assert [list(state.scan(prefix)) for state in self.states()] == [expected] * 2

    @precondition(lambda self: len(self.layers) < 4)
    @rule(later=st.integers(0, 10))
    def child(self, later: int) -> None:
        self.time += later
        self.layers.append(dict(self.layers[-1]))
        for stack in (self.changes, self.beside):
            stack.append(stack[-1].child(self.time))

    @precondition(lambda self: len(self.layers) > 1)
    @rule(merge=st.booleans())
    def end_child(self, merge: bool) -> None:
        layer = self.layers.pop()
        for stack in (self.changes, self.beside):
            child = stack.pop()
            if merge:
                child.merge()
        if merge:
            self.layers[-1] = layer
        self.time = self.changes[-1].now_ms

    @precondition(lambda self: len(self.layers) == 1)
    @rule(small=st.booleans(), position=st.binary(max_size=3))
    def commit(self, small: bool, position: bytes) -> None:
        self.store.memory = 1 if small else 64 << 20  # 1: a part for each mutation
        self.runs += 1
        self.before = self.stored, self.version, self.now
        self.version = StateVersion(self.version.epoch + 1, f"run{self.runs}")
        found = self.store.commit(self.changes[0], *self.version, position)
        self.stored, self.now = self.layers[0], self.time
        assert self.store.current.position == position
        assert self.memory.commit(self.beside[0]) == found
        self.begin(0)

    @precondition(lambda self: self.before is not None)
    @rule()
    def undo(self) -> None:
        assert self.before is not None
        self.store.undo()
        (self.stored, self.version, self.now), self.before = self.before, None
        self.memory = MemoryStore()
        kept = self.memory.begin(0)
        space = State(kept, int, job="j")
        for key, (value, deadline) in self.stored.items():
            if deadline is None or deadline > self.now:
                space.put_many([key], [value], None if deadline is None else deadline / 1000)
        self.memory.commit(kept)
        self.memory.now_ms = self.now
        self.begin(0)

    @rule(cold=st.booleans())
    def reopen(self, cold: bool) -> None:
        self.store.close()
        if cold:
            forget(self.path)
        self.store = StateStore.open(self.path)
        self.begin(0)

    @rule()
    def move(self) -> None:
        """To a copy."""
        self.store.close()
        forget(self.path)
        target = self.folder / "copy"
        target.mkdir()
        copy_store(self.path, target)

        def fill(folder: Path) -> None:
            shutil.move(target / "data.mdb", folder)

        self.store = StateStore.create(self.path, fill=fill)
        target.rmdir()
        self.begin(0)

    @invariant()
    def content(self) -> None:
        expected = sorted(self.seen().items())
        assert [list(state.scan()) for state in self.states()] == [expected] * 2

    @invariant()
    def versions(self) -> None:
        assert self.store.version == self.version
        assert (self.store.previous is None) == (self.before is None)
        alive = sum(deadline is None or deadline > self.now for _, deadline in self.stored.values())
        assert self.store.keys >= alive

    def teardown(self) -> None:
        self.store.close()
        forget(self.path)
        shutil.rmtree(self.folder)

    def states(self) -> tuple[State[int], State[int]]:
        return self.state(self.changes[-1]), self.state(self.beside[-1])

    def state(self, changes: StateChanges) -> State[int]:
        return State(changes, int, job="j")

    def seen(self) -> dict[bytes, Any]:
        layer = self.layers[-1].items()
        return {key: value for key, (value, deadline) in layer if deadline is None or deadline > self.time}


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
