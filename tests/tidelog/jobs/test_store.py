"""A store's files: formats, versions, what can't be trusted, who holds it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import msgspec
import pytest

pytest.importorskip("pyarrow")

from tests.tidelog.jobs.storekit import copy_store
from tidelog.jobs.state import State
from tidelog.jobs.store import (
    StateError,
    StateStore,
    StateVersion,
    StoreError,
    StoreFullError,
    StoreLockedError,
    StoreUnusableError,
    environments,
)
from tidelog.jobs.store.records import digest, with_deadline


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "0"
    environments.forget(tmp_path / "0")


def put(store: StateStore, values: dict[Any, int], now: int = 0, ttl: float | None = None) -> str:
    changes = store.begin(now)
    State(changes, int, job="j").put_many(list(values), list(values.values()), ttl)
    return store.commit(changes, store.version.epoch + 1, "r", b"at")


def content(store: StateStore, now: int = 0) -> dict[bytes, int]:
    return dict(State(store.begin(now), int, job="j").scan())


def raw(path: Path) -> dict[bytes, dict[bytes, bytes]]:
    """All databases of a store's file."""
    environments.forget(path)
    with lmdb.open(str(path), max_dbs=4, readonly=True) as env, env.begin() as txn:
        return {name: dict(txn.cursor(env.open_db(name, txn))) for name in (b"data", b"due", b"undo", b"meta")}


def test_the_format(path: Path) -> None:
    with StateStore.open(path, generation=7) as store:
        put(store, {"a": 1})
        changes = store.begin(5)
        state = State(changes, int, job="j")
        state.put_many(["a", "b"], [-2, 1 << 64], ttl=0.01)
        state.space("s", str).put_many([9], ["ü"])
        state.space("s", float).put_many([8], [1.5])
        state.space("s", list[int]).put_many([7], [[1]])
        state.space("s").put_many([6], [b"x"])
        state.delete_many(["c"])
        store.commit(changes, 2, "run", b"pos")
    found = raw(path)
    assert found[b"data"] == {
        b"\0a": b"\xe9" + bytes(7) + b"\x0f" + b"\xfe" + b"\xff" * 7,
        b"\0b": b"\xea" + bytes(7) + b"\x0f" + b"18446744073709551616",
        b"\1s6": b"bx", b"\1s7": b"m\x91\1", b"\1s8": b"f\0\0\0\0\0\0\xf8\x3f", b"\1s9": b"s\xc3\xbc",
    }  # fmt: skip
    assert found[b"due"] == {bytes(7) + b"\x0f\0a": b"", bytes(7) + b"\x0f\0b": b""}
    before = {b"\0a": b"i\1" + bytes(7)}
    assert found[b"undo"] == {key: before.get(key, b"") for key in (*found[b"data"], b"\0c")}
    assert msgspec.msgpack.decode(found[b"meta"][b"store"]) == {
        "boot": environments.boot_id(), "generation": 7, "format": 1, "torn": False,
        "current": {"epoch": 2, "run": "run", "position": b"pos", "now": 5},
        "previous": {"epoch": 1, "run": "r", "position": b"at", "now": 0},
    }  # fmt: skip


def test_the_digest_of_an_epoch() -> None:
    assert digest([], []) == ""
    records = [b"bx", None, *with_deadline([b"by"], 258)]
    assert digest([b"\0a", b"\0b", b"\0c"], records) == "dd1093e160d4f8e3630ee21ac682926a"


def test_the_digest_knows_no_order_of_calls(path: Path) -> None:
    with StateStore.open(path) as store:
        found = []
        for order in (["a", "b", "c"], ["c", "b", "a"]):
            changes = store.begin(0)
            state = State(changes, int, job="j")
            state.get_many(order)
            for key in order:
                state.put_many([key], [3])
            state.put_many(order, [ord(key) for key in order])
            state.delete_many(["b"])
            found.append(store.commit(changes, 1, "r"))
            store.undo()
        assert found[0] == found[1]
        assert put(store, {"a": 97, "c": 99}) not in found
        assert put(store, {}) == ""


def test_deadlines_are_part_of_the_digest(path: Path) -> None:
    with StateStore.open(path) as store:
        assert len({put(store, {"a": 1}), put(store, {"a": 1}, 0, 1), put(store, {"a": 1}, 1, 1)}) == 3


def test_an_epoch_is_taken_back_once(path: Path) -> None:
    with StateStore.open(path) as store:
        with pytest.raises(StoreError, match="can't be undone"):
            store.undo()
        put(store, {"a": 1, "b": 1})
        put(store, {"a": 2, "c": 2})
        store.undo()
        assert (store.version, content(store)) == (StateVersion(1, "r"), {b"a": 1, b"b": 1})
        with pytest.raises(StoreError, match="can't be undone"):
            store.undo()


def test_what_is_over_is_removed_but_not_what_an_undo_needs(path: Path) -> None:
    with StateStore.open(path) as store:
        put(store, {f"k{number}": number for number in range(5000)}, 0, 10)
        put(store, {"other": 1}, 20_000)
        assert content(store, 20_000) == {b"other": 1}
        store.undo()
        assert len(content(store, 9_999)) == 5000
        put(store, {"other": 1}, 20_000)
        for step in range(10):
            put(store, {"other": step}, 20_000)
        assert store.keys == 1
    assert raw(path)[b"due"] == {}


def test_a_deadline_that_moves_costs_no_entry_each_time(path: Path) -> None:
    with StateStore.open(path) as store:
        for now in range(0, 5000, 100):
            put(store, {"a": now}, now, 1)
        assert content(store, 5000) == {b"a": 4900}
        with store.environment.env.begin() as txn:
            assert txn.stat(store.environment.due)["entries"] <= 2
        put(store, {"a": 1}, 5000, 0.1)  # sooner than before
        assert content(store, 5100) == {}
        for _ in range(5):
            put(store, {}, 5100)
        assert store.keys == 0


@pytest.mark.parametrize(
    "puts",
    [
        [(0, 100), (1, 1)],  # sooner than before
        [(0, 1), (500, 5)],  # later
        [(0, 1), (2000, None), (2000, 1)],  # again, when it was over
    ],
)
def test_what_is_over_is_removed_however_it_was_put(path: Path, puts: list[tuple[int, float | None]]) -> None:
    with StateStore.open(path) as store:
        for now, ttl in puts:
            put(store, {} if ttl is None else {"a": 1}, now, ttl)
        for now in (4000, 4000, 9000, 9000, 9000):
            put(store, {}, now)
        assert store.keys == 0
        for _ in range(2):
            put(store, {}, 200_000)
    assert raw(path)[b"due"] == {}


def test_savepoints(path: Path) -> None:
    with StateStore.open(path) as store:
        changes = store.begin(0)
        State(changes, int, job="j").put_many(["a", "b", "c"], [1, 1, 1])
        dropped, child = changes.child(), changes.child(7)
        State(dropped, int, job="j").put_many(["c", "d"], [2, 2])
        State(child, int, job="j").put_many(["a"], [3])
        State(child, int, job="j").delete_many(["b"])
        child.merge()
        assert State(changes, int, job="j").get_many(["a", "b", "c", "d"]) == [3, None, 1, None]
        store.commit(changes, 1, "r")
        assert (content(store), store.current.now) == ({b"a": 3, b"c": 1}, 7)


def test_keys_that_were_read_out_of_order(path: Path) -> None:
    with StateStore.open(path) as store:
        first = put(store, {"a": 1, "b": 1, "c": 1})
        store.undo()
        changes = store.begin(0)
        state = State(changes, int, job="j")
        for key in ("c", "a", "b"):
            state.get_many([key])
        state.put_many(["a", "b", "c"], [1, 1, 1])
        assert store.commit(changes, 1, "r") == first
        store.undo()
        assert content(store) == {}


def test_time_does_not_go_back(path: Path) -> None:
    with StateStore.open(path) as store:
        put(store, {"a": 1}, 100, 1)
        put(store, {}, 1100)
        assert content(store, 50) == {}


def test_reading_and_writing_end_with_the_epoch(path: Path) -> None:
    with StateStore.open(path) as store:
        put(store, {number: number for number in range(5000)})
        changes = store.begin(0)
        state, child = State(changes, int, job="j"), State(changes.child(), int, job="j")
        scan = state.scan()
        next(scan)
        store.commit(changes, 2, "r")
        for use in (lambda: state.get_many(["a"]), lambda: child.put_many(["a"], [1]), state.scan, lambda: list(scan)):
            with pytest.raises(StateError, match="after the call"):
                use()
        with pytest.raises(StoreError, match="last begin"):
            store.commit(changes, 3, "r")
        with pytest.raises(StoreError, match="last begin"):
            store.commit(store.begin(0).child(), 3, "r")
    with pytest.raises(StoreError, match="is closed"):
        store.begin(0)
    with pytest.raises(StoreError, match="is closed"):
        store.undo()


def test_one_holder_at_a_time(path: Path) -> None:
    other = f"""if True:
        from pathlib import Path
        from tidelog.jobs.store import StateStore, StoreLockedError
        try:
            StateStore.open(Path({str(path)!r})).close()
        except StoreLockedError:
            print("locked")
        else:
            print("open")
    """

    def elsewhere() -> str:
        return subprocess.run([sys.executable, "-c", other], capture_output=True, check=True, text=True).stdout.strip()

    store = StateStore.open(path)
    for again in (StateStore.open, StateStore.create):
        with pytest.raises(StoreLockedError, match="in use"):
            again(path)
    assert elsewhere() == "locked"
    store.close()
    store.close()
    assert elsewhere() == "open"
    StateStore.open(path).close()


def test_what_another_process_wrote_is_seen(path: Path) -> None:
    with StateStore.open(path) as store:
        put(store, {"a": 1})
    pid = os.fork()
    if not pid:
        with StateStore.open(path) as store:
            put(store, {number: number for number in range(10_000)})
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    with StateStore.open(path) as store:
        assert (store.version.epoch, len(content(store))) == (2, 10_001)


def test_a_child_does_not_keep_what_its_parent_lets_go(path: Path) -> None:
    store = StateStore.open(path)
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(writer)
        os.read(reader, 1)  # until the parent has ended
        os._exit(0)
    os.close(reader)
    store.close()
    StateStore.open(path).close()
    os.close(writer)
    os.waitpid(pid, 0)


def test_a_store_that_was_replaced_meanwhile(path: Path) -> None:
    with StateStore.open(path) as store:
        put(store, {"a": 1})
    shutil.rmtree(path)
    environment = environments.idle_environments[path]
    with StateStore.open(path) as store:
        assert (store.version, content(store)) == (StateVersion(0, ""), {})
        assert store.environment is not environment
        put(store, {"b": 1})
    with StateStore.create(path) as store:
        assert (store.version, content(store)) == (StateVersion(0, ""), {})


def test_environments_are_kept_but_not_without_end(tmp_path: Path) -> None:
    for number in range(environments.MOST_IDLE + 3):
        StateStore.open(tmp_path / f"{number}").close()
    kept = [path for path in environments.idle_environments if path.parent == tmp_path]
    assert len(environments.idle_environments) == environments.MOST_IDLE
    assert kept[-1] == tmp_path / f"{environments.MOST_IDLE + 2}"
    with StateStore.open(tmp_path / "3") as store:
        assert store.version == (0, "")
    for path in kept:
        environments.forget(path)


def test_threads_with_stores_of_their_own(tmp_path: Path) -> None:
    failed: list[Exception] = []

    def work(number: int) -> None:
        try:
            for epoch in range(30):
                with StateStore.open(tmp_path / f"{number}") as store:
                    put(store, {"a": epoch})
                    assert content(store) == {b"a": epoch}
        except (AssertionError, StoreError) as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    for number in range(8):
        environments.forget(tmp_path / f"{number}")


def rewrite(path: Path, **changed: Any) -> None:
    """Other words in the store's description of itself."""
    environments.forget(path)
    with lmdb.open(str(path), max_dbs=4) as env:
        meta = env.open_db(b"meta")
        with env.begin(write=True) as txn:
            said = msgspec.msgpack.decode(txn.get(b"store", db=meta) or b"")
            txn.put(b"store", msgspec.msgpack.encode(said | changed), db=meta)


def other_boot(path: Path) -> None:
    rewrite(path, boot="another")


def newer(path: Path) -> None:
    rewrite(path, format=2)


def other_generation(path: Path) -> None:
    rewrite(path, generation=2)


def nonsense(path: Path) -> None:
    rewrite(path, current=3)


def cut_by(length: int, held: bool) -> Any:
    def cut(path: Path) -> None:
        if not held:
            environments.forget(path)
        os.truncate(path / "data.mdb", (path / "data.mdb").stat().st_size - length)

    return cut


def emptied(path: Path) -> None:
    os.truncate(path / "data.mdb", 0)


def scribbled(path: Path) -> None:
    environments.forget(path)
    (path / "data.mdb").write_bytes(os.urandom(1 << 20))


def unfinished(path: Path) -> None:
    environments.forget(path)
    with lmdb.open(str(path), max_dbs=4) as env:
        meta = env.open_db(b"meta")
        with env.begin(write=True) as txn:
            txn.delete(b"store", db=meta)


@pytest.mark.parametrize(
    "spoil",
    [other_boot, newer, other_generation, nonsense, cut_by(1, False), cut_by(4096, True), cut_by(20_000, False),
     emptied, scribbled, unfinished],
)  # fmt: skip
def test_what_cannot_be_trusted(path: Path, spoil: Any) -> None:
    with StateStore.open(path) as store:
        put(store, {number: number for number in range(1000)})
    spoil(path)
    for _ in range(2):
        with pytest.raises(StoreUnusableError, match=str(path)):
            StateStore.open(path)
    with StateStore.create(path) as store:
        assert (store.version, content(store)) == (StateVersion(0, ""), {})
        put(store, {"a": 1})
    with StateStore.open(path) as store:
        assert content(store) == {b"a": 1}


def test_a_copy_while_epochs_go_on(path: Path, tmp_path: Path) -> None:
    copier = f"""if True:
        from pathlib import Path
        from tests.tidelog.jobs.storekit import copy_store
        for number in range(20):
            target = Path({str(tmp_path)!r}) / f"copy{{number}}"
            target.mkdir()
            print(copy_store(Path({str(path)!r}), target).current.epoch, flush=True)
    """
    with StateStore.open(path) as store:
        put(store, dict.fromkeys(range(2000), 1))
        with subprocess.Popen(
            [sys.executable, "-c", copier], cwd=Path(__file__).parents[3], stdout=subprocess.PIPE, text=True
        ) as process:
            while process.poll() is None:
                put(store, dict.fromkeys(range(2000), store.version.epoch + 1))
            assert process.returncode == 0
            assert process.stdout is not None
            epochs = [int(line) for line in process.stdout]
    assert len(set(epochs)) > 1
    for number, epoch in enumerate(epochs):

        def fill(folder: Path, number: int = number) -> None:
            shutil.copy(tmp_path / f"copy{number}" / "data.mdb", folder)

        with StateStore.create(path, fill=fill) as store:
            assert store.version == (epoch, "r")
            assert set(content(store).values()) == {epoch}
            if epoch > 1:
                store.undo()
                assert set(content(store).values()) == {epoch - 1}


def test_a_copy_of_another_boot_is_adopted(path: Path, tmp_path: Path) -> None:
    with StateStore.open(path) as store:
        put(store, {"a": 1})
    other_boot(path)
    copy_store(path, tmp_path)

    def fill(folder: Path) -> None:
        shutil.move(tmp_path / "data.mdb", folder)

    with StateStore.create(path, fill=fill) as store:
        assert content(store) == {b"a": 1}
    with StateStore.open(path) as store:
        assert content(store) == {b"a": 1}


def test_a_copy_that_is_none(path: Path, tmp_path: Path) -> None:
    def fails(folder: Path) -> None:
        raise OSError("no such snapshot")

    with pytest.raises(OSError, match="no such snapshot"):
        StateStore.create(path, fill=fails)
    for text in (b"", b"nonsense" * 1000):

        def writes(folder: Path, text: bytes = text) -> None:
            (folder / "data.mdb").write_bytes(text)

        with pytest.raises(StoreUnusableError):
            StateStore.create(path, fill=writes)
    with pytest.raises(StoreUnusableError):
        StateStore.create(path, fill=lambda _: None)
    with pytest.raises(StoreUnusableError, match="not a state store"):
        copy_store(tmp_path / "nothing", tmp_path)
    StateStore.create(path).close()


@pytest.mark.parametrize("memory", [1 << 30, 1 << 16])
def test_a_full_store_is_as_it_was(path: Path, memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "SIZES", (1 << 20,))
    with StateStore.open(path, cache=memory) as store:
        put(store, dict.fromkeys(range(1000), 1))
        with pytest.raises(StoreFullError, match="largest size"):
            put(store, dict.fromkeys(range(50_000), 2))
        assert content(store) == {b"%d" % number: 1 for number in range(1000)}
        assert store.version == (1, "r")
        put(store, {"a": 5})
        assert content(store)[b"a"] == 5


def test_many_bytes_are_counted(path: Path) -> None:
    with StateStore.open(path) as store:
        assert (store.keys, store.disk_bytes) == (0, 0)
        changes = store.begin(0)
        State(changes, bytes, job="j").put_many(range(10), [bytes(1 << 16)] * 10)
        store.commit(changes, 1, "r")
        assert store.keys == 10
        assert 10 << 16 < store.disk_bytes < 12 << 16
