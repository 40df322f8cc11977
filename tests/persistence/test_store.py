"""The store: its bytes, what a checkpoint writes and a start reads, views that stay, damage that is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any
from zlib import crc32

import lmdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from persistence.layout import short
from persistence.store import Store
from resp.errors import CorruptError
from storage.keyspace.keyspace import Keyspace
from storage.keyspace.values import String
from storage.streams.capture import Capture, StreamCapture
from tests.persistence.datakit import append, delete, group, keyspace
from tests.storage.streams.captures import all_stored, whole_capture


def nodes_in(store: Store) -> int:
    with store.env.begin() as txn:
        return int(txn.stat(store.nodes)["entries"])


def save(store: Store, ks: Keyspace, offset: int) -> None:
    capture = whole_capture(ks)
    store.write(capture, offset)
    store.renew_view()
    all_stored(ks, capture)


def reopened(path: Path) -> tuple[Store, Keyspace]:
    store = Store(path)
    ks = keyspace(store)
    try:
        store.restore(ks)
    except BaseException:
        store.close()
        raise
    return store, ks


def raw(path: Path) -> dict[bytes, dict[bytes, bytes]]:
    with lmdb.open(str(path), max_dbs=5, readonly=True) as env:
        found = {}
        for name in (b"meta", b"nodes", b"streams", b"groups", b"strings"):
            with env.begin(db=env.open_db(name, create=False)) as txn:
                found[name] = {bytes(key): bytes(value) for key, value in txn.cursor()}
        return found


def change(path: Path, db: bytes, key: bytes, value: bytes | None) -> None:
    """Change an entry as damage would: what the store says of its content still seems to be of the last transaction."""
    with lmdb.open(str(path), max_dbs=7) as env:
        database, meta = env.open_db(db), env.open_db(b"meta")
        with env.begin(write=True) as txn:
            content = txn.get(b"content", db=meta)
            if content is not None and (db, key) != (b"meta", b"content"):
                same = content[4:12] + txn.id().to_bytes(8, "big") + content[20:]
                txn.put(b"content", crc32(b"content" + same).to_bytes(4, "big") + same, db=meta)
            if value is None:
                assert txn.delete(key, db=database)
            else:
                txn.put(key, value, db=database)


# -- the bytes -----------------------------------------------------------------------------------------------
U64 = "0000000000000007"
PEND_CRC = crc32(b"PEND").to_bytes(4, "big")  # after the parts of a pending list, see storage.groups.pending


def golden_capture() -> Capture:
    return Capture(
        next_sid=9, streams=[StreamCapture(7, b"META", 0, 3, [(0, (5 << 64) | 1, b"BLOB")], (2, 6 << 64, b"TAIL"))],
        stream_keys={7: (b"key", 77)}, groups=[(7, b"g", b"GM", [b"PE", b"ND"])], strings=[(b"s", b"value", 0)],
    )  # fmt: skip


def golden() -> dict[bytes, dict[bytes, bytes]]:
    def signed(key: bytes, text: str, tail: bytes = b"") -> bytes:
        value = bytes.fromhex(text) + tail
        return crc32(key + value).to_bytes(4, "big") + value

    def counted(entries: dict[bytes, bytes]) -> str:
        return f"{len(entries):016x} {sum(int.from_bytes(value[:4], 'big') for value in entries.values()):016x}"

    sid = bytes.fromhex(U64)
    nodes = [
        sid + bytes.fromhex("0000000000000000 0000000000000005 0000000000000001"),
        sid + bytes.fromhex("0000000000000002 0000000000000006 0000000000000000"),
    ]
    total = (crc32(nodes[0]) + crc32(nodes[1])).to_bytes(8, "big").hex()
    made = {
        b"nodes": {nodes[0]: b"BLOB", nodes[1]: b"TAIL"},
        b"streams": {sid: signed(sid, f"000000000000004d 0000000000000002 {total} 00000003", b"keyMETA")},
        b"groups": {sid + b"\0g": signed(sid + b"\0g", "00000001 00000002", b"gGMPEND" + PEND_CRC)},
        b"strings": {b"\0s": signed(b"\0s", "0000000000000000 00000001", b"svalue")},
    }
    # The transaction is the file's 8th: each database was made by one before.
    counts = [counted(made[name]) for name in (b"streams", b"groups", b"strings")] + [counted({}), counted({})]
    made[b"meta"] = {
        b"next_sid": signed(b"next_sid", "0000000000000009"),
        b"offset": signed(b"offset", "0000000000000123"),
        b"content": signed(b"content", f"0000000000000123 0000000000000008 {' '.join(counts)}"),
    }
    return made


def test_golden_entries_written(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.write(golden_capture(), 0x123)
    store.close()
    assert raw(tmp_path / "store") == golden()


@pytest.mark.interpreted
def test_golden_entries_read(tmp_path: Path) -> None:
    path = tmp_path / "store"
    Store(path).close()
    for db, entries in golden().items():
        for key, value in entries.items():
            change(path, db, key, value)

    class Listener(Keyspace):
        def __init__(self) -> None:
            self.said: list[object] = []
            self.next_sid = 1
            self.keys = {}

        def restore_stream(self, key: bytes, sid: int, meta: bytes, expire_at: int = 0) -> Any:
            self.keys[key] = String(b"")
            self.said.append((key, sid, meta, expire_at))
            return self

        def add_stored_node(self, first_ord: int, first_id: int) -> None:
            self.said.append((first_ord, first_id))

        def all_nodes_added(self) -> None:
            pass

        def restore_group(self, stream: object, name: bytes, meta: bytes, pending: bytes) -> None:
            self.said.append((name, meta, pending))

        def restored_delayed(self) -> None:
            pass

        def restore_string(self, key: bytes, value: bytes, expire_at: int) -> None:
            self.keys[key] = String(value)
            self.said.append((key, value, expire_at))

    store, ks = Store(path), Listener()
    assert store.restore(ks) == (1, 2, 1)
    assert ks.said == [
        (b"key", 7, b"META", 77), (0, (5 << 64) | 1), (2, 6 << 64), (b"g", b"GM", b"PEND" + PEND_CRC),
        (b"s", b"value", 0),
    ]  # fmt: skip
    assert (store.offset, ks.next_sid) == (0x123, 9)
    store.close()


def test_long_names_are_hashed() -> None:
    assert short(b"x" * 400) == b"\0" + b"x" * 400
    assert len(short(b"x" * 401)) == 33


# -- checkpoints and starts ----------------------------------------------------------------------------------
def test_a_keyspace_comes_back_from_keys_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "store")
    ks = keyspace(store)
    append(ks, b"a", 57)
    append(ks, b"b" * 600, 3)
    group(ks, b"a", b"group", 12)
    ks.set_string(b"s" * 500, b"value", 99)
    ks.set_expire(b"a", 10**12)
    ks.next_sid = 17
    save(store, ks, 4711)
    digest = ks.digest()
    store.close()
    monkeypatch.setattr(Store, "load_from", lambda *args: pytest.fail("a start must not read nodes"))
    store = Store(tmp_path / "store")
    again = keyspace(store)
    assert store.restore(again) == (2, 7, 1)
    monkeypatch.undo()
    assert again.digest() == digest
    assert (store.offset, again.next_sid, again.expires) == (4711, 17, ks.expires)
    store.close()


def test_only_changes_are_written(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    ks = keyspace(store)
    append(ks, b"a", 35)
    save(store, ks, 1)
    before = raw_nodes(store)
    append(ks, b"a", 10)
    capture = whole_capture(ks)
    assert [first for first, _, _ in capture.streams[0].nodes] == [30]  # the tail of then, sealed now
    store.write(capture, 2)
    store.renew_view()
    after = raw_nodes(store)
    assert {key: after[key] for key in list(before)[:3]} == {key: before[key] for key in list(before)[:3]}
    assert len(after) == 5
    store.close()


def raw_nodes(store: Store) -> dict[bytes, bytes]:
    with store.env.begin(db=store.nodes) as txn:
        return {bytes(key): bytes(value) for key, value in txn.cursor()}


def test_evicted_nodes_leave_the_store(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    ks = keyspace(store)
    stream, _ = append(ks, b"a", 95), append(ks, b"b", 25)
    save(store, ks, 1)
    assert nodes_in(store) == 13
    ks.evict(b"a", stream, 40, 40 << 64)
    save(store, ks, 2)
    assert nodes_in(store) == 9
    ks.evict(b"a", stream, 95, 95 << 64)
    save(store, ks, 3)
    assert nodes_in(store) == 3
    append(ks, b"a", 1)
    save(store, ks, 4)
    digest = ks.digest()
    store.close()
    store, again = reopened(tmp_path / "store")
    assert again.digest() == digest
    store.close()


NAMES = ["append", "evict", "thin", "delete", "group", "ungroup", "string", "flush", "save", "fail", "reopen"]
OPS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from([b"a", b"b", b"c" * 450]), st.integers(1, 25)),
    max_size=30,
)  # fmt: skip


@given(OPS)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_model_whatever_was_saved_comes_back(
    tmp_path_factory: pytest.TempPathFactory, ops: list[tuple[str, bytes, int]]
) -> None:
    path = tmp_path_factory.mktemp("model") / "store"
    store = Store(path)
    ks = keyspace(store)
    for op, key, number in ops:
        value = ks.keys.get(key)
        is_string = value is not None and not hasattr(value, "sid")
        if op in ("append", "evict", "thin", "group", "ungroup") and is_string:
            ks.remove(key)
        if op == "append":
            append(ks, key, number)
        elif op in ("evict", "thin", "ungroup") and key not in ks.keys:
            continue
        elif op == "evict":
            stream = append(ks, key, 0)
            to = min(stream.next_ord, stream.first_ord + number)
            if to > stream.first_ord:
                ks.evict(key, stream, to, to << 64)
        elif op == "thin":
            first = append(ks, key, 0).first_ord
            delete(ks, key, [at for at in range(first, first + 3 * number) if at % 4 or number % 3])
        elif op == "delete":
            ks.remove(key)
        elif op == "group":
            group(ks, key, b"g%d" % (number % 3), number)
        elif op == "ungroup":
            stream = append(ks, key, 0)
            if stream.groups:
                gone = stream.groups.pop(next(iter(stream.groups)))
                ks.group_gone(key, stream, gone, b"")
        elif op == "string":
            ks.set_string(key, b"v" * number, number)
        elif op == "flush":
            ks.flush()
        elif op == "save":
            save(store, ks, number)
        elif op == "fail":
            ks.changes.failed(whole_capture(ks))
        else:
            save(store, ks, number)
            digest = ks.digest()
            store.close()
            store, ks = reopened(path)
            assert ks.digest() == digest
    save(store, ks, 1)
    digest = ks.digest()
    store.close()
    store, ks = reopened(path)
    assert ks.digest() == digest
    store.close()


# -- views ---------------------------------------------------------------------------------------------------
def test_a_pinned_view_stays_as_it_was(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    ks = keyspace(store)
    stream = append(ks, b"a", 30)
    save(store, ks, 1)
    ids = [1 << 64, 11 << 64, 21 << 64]
    pinned = store.pin()
    second = pinned.pin()
    ks.evict(b"a", stream, 30, 30 << 64)
    save(store, ks, 2)
    for view in (pinned, second):
        assert [len(view.load(stream.sid, at, ids[at // 10])) > 0 for at in (0, 10, 20)] == [True] * 3
    with pytest.raises(CorruptError, match="missing"):
        store.load(stream.sid, 0, ids[0])
    pinned.release()
    pinned.release()  # again: nothing
    assert second.load(stream.sid, 0, ids[0])
    second.release()
    store.close()


def test_readers_do_not_pile_up(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    ks = keyspace(store)
    for turn in range(30):
        append(ks, b"a", 3)
        pinned = store.pin()
        save(store, ks, turn)
        pinned.release()
    assert store.env.readers().count("\n") <= 3
    store.close()


def test_a_view_that_outlives_the_store_fails_as_ours(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    ks = keyspace(store)
    stream = append(ks, b"a", 30)
    save(store, ks, 1)
    pinned = store.pin()
    store.close()
    with pytest.raises(OSError, match="closed"):
        pinned.load(stream.sid, 0, 1 << 64)
    pinned.release()


# -- damage --------------------------------------------------------------------------------------------------
def filled(path: Path) -> str:
    store = Store(path)
    ks = keyspace(store)
    append(ks, b"a", 95)
    append(ks, b"b", 40, pad=3000)  # nodes on pages of their own
    group(ks, b"a", b"g", 30)
    ks.set_string(b"s", b"v" * 20)
    ks.set_string(b"t", b"w" * 9000)
    save(store, ks, 1)
    append(ks, b"a", 20)
    ks.remove(b"t")
    save(store, ks, 2)  # so that there are free pages
    digest = ks.digest()
    store.close()
    return digest


@pytest.mark.parametrize("db", [b"meta", b"nodes", b"streams", b"groups", b"strings"])
def test_a_lost_entry_is_refused(tmp_path: Path, db: bytes) -> None:
    path = tmp_path / "store"
    filled(path)
    for key in raw(path)[db]:
        if key == b"content":
            continue
        value = raw(path)[db][key]
        change(path, db, key, None)
        with pytest.raises(CorruptError, match=str(path)):
            reopened(path)
        change(path, db, key, value)


@pytest.mark.parametrize("db", [b"groups", b"strings"])
def test_an_entry_of_an_earlier_time_is_refused(tmp_path: Path, db: bytes) -> None:
    path = tmp_path / "store"
    filled(path)
    old = raw(path)[db]
    store, ks = reopened(path)
    group(ks, b"a", b"g", 40)
    ks.set_string(b"s", b"another")
    save(store, ks, 3)
    store.close()
    for key, value in old.items():
        change(path, db, key, value)
        with pytest.raises(CorruptError, match=f"{path}.*its {db.decode()} are not those of the last checkpoint"):
            reopened(path)


# -- stores that do not say what they hold -------------------------------------------------------------------
def says(path: Path) -> tuple[bool, bool]:
    """Whether the store says what it holds, and whether that holds."""
    store = Store(path)
    with store.env.begin() as txn:
        found = txn.get(b"content", db=store.meta) is not None, store._content(txn) is not None
    store.close()
    return found


def test_a_store_of_the_first_version_says_so_after_its_next_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "store"
    digest = filled(path)
    change(path, b"meta", b"content", None)
    assert says(path) == (False, False)
    store, ks = reopened(path)
    assert ks.digest() == digest
    ks.set_string(b"s", b"another")
    save(store, ks, 3)
    store.close()
    assert says(path) == (True, True)
    change(path, b"groups", next(iter(raw(path)[b"groups"])), None)
    with pytest.raises(CorruptError, match="has 0 groups instead of 1"):
        reopened(path)


def older_server(path: Path, offset: bool) -> None:
    """What a server of the first version changes: it does not know of "content"."""
    with lmdb.open(str(path), max_dbs=7) as env, env.begin(write=True) as txn:
        value = bytes(8) + (1).to_bytes(4, "big") + b"svalue"
        txn.put(b"\0s", crc32(b"\0s" + value).to_bytes(4, "big") + value, db=env.open_db(b"strings", txn=txn))
        if offset:
            number = (9).to_bytes(8, "big")
            txn.put(b"offset", crc32(b"offset" + number).to_bytes(4, "big") + number, db=env.open_db(b"meta", txn=txn))


@pytest.mark.parametrize("offset", [True, False])  # a change that nothing was logged for keeps the log offset
def test_an_older_server_in_between(tmp_path: Path, offset: bool) -> None:
    path = tmp_path / "store"
    filled(path)
    older_server(path, offset)
    assert says(path) == (True, False)
    store, ks = reopened(path)
    value = ks.keys[b"s"]
    assert isinstance(value, String)
    assert value.value == b"value"
    save(store, ks, 10)
    ks.set_string(b"t", b"x")
    save(store, ks, 11)
    digest = ks.digest()
    store.close()
    assert says(path) == (True, True)
    store, ks = reopened(path)
    assert ks.digest() == digest
    store.close()


def test_a_compact_copy_still_says_what_it_holds(tmp_path: Path) -> None:
    path, copy = tmp_path / "store", tmp_path / "copy"
    digest = filled(path)
    copy.mkdir()
    with lmdb.open(str(path), max_dbs=7) as env:
        env.copy(str(copy), compact=True)
    assert says(copy) == (True, True)
    store, ks = reopened(copy)
    assert ks.digest() == digest
    ks.set_string(b"s", b"another")
    save(store, ks, 3)
    store.close()
    assert says(copy) == (True, True)


@pytest.mark.parametrize("db", [b"meta", b"streams", b"groups", b"strings"])
def test_every_flip_of_a_value_is_refused(tmp_path: Path, db: bytes) -> None:
    path = tmp_path / "store"
    filled(path)
    for key, value in raw(path)[db].items():
        for at in [*range(min(len(value), 40)), *range(40, len(value), 53)]:
            change(path, db, key, value[:at] + bytes([value[at] ^ 1 << at % 8]) + value[at + 1 :])
            with pytest.raises(CorruptError, match=str(path)):
                reopened(path)
        change(path, db, key, value)
    store, _ = reopened(path)
    store.close()


def test_a_node_under_another_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    filled(path)
    nodes = raw(path)[b"nodes"]
    key = list(nodes)[2]
    for at in range(8, 32):
        other = key[:at] + bytes([key[at] ^ 1]) + key[at + 1 :]
        change(path, b"nodes", key, None)
        change(path, b"nodes", other, nodes[key])
        with pytest.raises(CorruptError, match=str(path)):
            reopened(path)
        change(path, b"nodes", other, None)
        change(path, b"nodes", key, nodes[key])


def test_a_node_whose_first_id_changed_is_refused_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "store"
    filled(path)
    key, value = next(iter(raw(path)[b"nodes"].items()))
    for at in range(12, 28):  # ms and seq of the first entry in the blob's header
        change(path, b"nodes", key, value[:at] + bytes([value[at] ^ 4]) + value[at + 1 :])
        store, ks = reopened(path)
        with pytest.raises(CorruptError, match="damaged"):
            ks.digest()
        store.close()


CAMPAIGN = """
import sys
from pathlib import Path
sys.path[:0] = [{root!r}, {here!r}]
from tests.persistence import test_store as t
from resp.errors import CorruptError
path, digest, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
whole = (path / "data.mdb").read_bytes()
refused = same = 0
for turn, (at, bit) in enumerate(t.flips(whole, seed)):
    broken = bytearray(whole)
    broken[at] ^= 1 << bit
    (path / "data.mdb").write_bytes(broken)
    print("at", at, bit, flush=True)
    try:
        store, ks = t.reopened(path)
    except CorruptError as error:
        assert str(path) in str(error), error
        refused += 1
        continue
    try:
        found = ks.digest()
        t.append(ks, b"a", 15)  # and it can be written
        t.save(store, ks, 3)
    except CorruptError:
        refused += 1
    else:
        assert found == digest, "damage was accepted"
        same += 1
    store.close()
print("refused", refused, "same", same)
"""


def flips(whole: bytes, seed: int) -> list[tuple[int, int]]:
    """Bytes to flip: all of meta pages and heads of pages, a sample of the rest; a quarter of them for each seed."""
    found = []
    for page in range(0, len(whole), 4096):
        steps = [*range(24), *range(24, 172, 7), *range(172, 4096, 61)]
        found += [(page + at, (at + seed) % 8) for at in steps if page + at < len(whole)]
    return found[seed::4]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_no_flip_of_the_file_crashes_or_is_accepted(tmp_path: Path, seed: int) -> None:
    """Runs in a process of its own, because LMDB may answer damage with a signal."""
    path = tmp_path / "store"
    digest = filled(path)
    here = Path(__file__).parent
    code = CAMPAIGN.format(root=str(here.parents[1]), here=str(here))
    child = subprocess.run(
        [sys.executable, "-c", code, str(path), digest, str(seed)], capture_output=True, text=True, timeout=100
    )
    assert child.returncode == 0, (child.stdout[-200:], child.stderr[-2000:])
    assert int(child.stdout.split()[-3]) > 50, "hardly anything was refused: the test shows too little"


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    digest = filled(path)
    data = path / "data.mdb"
    whole = data.read_bytes()
    refused = 0
    for size in [*range(1, 9000, 511), *range(8192, len(whole), 4096), len(whole) - 1]:
        data.write_bytes(whole[:size])
        try:
            store, ks = reopened(path)
        except CorruptError as error:
            assert str(data) in str(error)  # noqa: PT017
            refused += 1
        else:
            assert ks.digest() == digest  # only pages that nothing uses are missing
            store.close()
    assert refused > 25


def test_a_file_of_zeros_or_of_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    filled(path)
    for content in (bytes(65536), b"hello\n" * 10_000):
        (path / "data.mdb").write_bytes(content)
        with pytest.raises(CorruptError, match="not an LMDB file"):
            Store(path)


def test_a_damaged_lock_file_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "store"
    digest = filled(path)
    for content in (b"", b"garbage", b"\xff" * 8192):
        (path / "lock.mdb").write_bytes(content)
        store, ks = reopened(path)
        assert ks.digest() == digest
        store.close()
