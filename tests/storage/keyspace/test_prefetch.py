"""Records of appends are taken apart as they were written, and what is fetched beforehand stays as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resp.errors import CorruptError
from storage import keyspace
from storage.keyspace import prefetch
from storage.keyspace.keyspace import Keyspace
from storage.keyspace.recordheads import RecordHeads
from storage.keyspace.replay import replay
from storage.keyspace.values import String
from storage.model import records
from storage.streams.nodelist import StreamNodes
from tests.storage.keyspace.replaykit import NOW, empty, wire

_prefetch = pytest.importorskip("storage.keyspace._prefetch", reason="nothing is compiled here: nothing is fetched")

APPEND_LIST = "_append_list"
U64 = st.integers(0, (1 << 64) - 1)
APPENDS = st.lists(st.tuples(st.binary(max_size=9), U64, U64, st.binary(max_size=99)), max_size=70)
Append = tuple[bytes, int, int, bytes]


def batch_of(appends: list[Append]) -> bytes:
    log: list[bytes] = []
    for append in appends:
        RecordHeads().log_append(log, *append)
    return b"".join(log)


def many(ks: Keyspace, count: int) -> list[list[bytes]]:
    """Streams whose entries are loose, and some whose are not; commands for all, and for keys that are not there."""
    for number in range(count):
        key = b"k%d" % number
        stream = ks.create_stream(key)
        for seq in range(number % 4):
            ks.append(key, stream, NOW, seq, wire(NOW, seq))
        if number % 8 == 3:
            stream.read(0, 1)
    ks.set_string(b"text", b"value", 0)
    return [[b"TAPPEND", b"k%d" % number, b"f", b"v"] for number in range(count + 10)] + [[b"GET", b"text"]]


@given(APPENDS, st.binary(max_size=60))
def test_records_are_taken_apart(appends: list[Append], rest: bytes) -> None:
    rest = b"\2" + rest
    batch = rest + batch_of(appends) + rest
    found, end = prefetch.appends({}, batch, len(rest))
    taken = appends[: prefetch.AT_ONCE]
    assert found == [part for append in taken for part in append]
    assert end == len(rest) + len(batch_of(taken))
    assert prefetch.appends({}, batch, 0) == ([], 0)


@given(APPENDS.filter(bool), st.data())
def test_a_record_that_is_not_whole_is_left(appends: list[Append], data: st.DataObject) -> None:
    batch = batch_of(appends)
    cut = data.draw(st.integers(0, len(batch)))
    found, end = prefetch.appends({}, batch[:cut], 0)
    assert end <= cut
    assert found == prefetch.appends({}, batch[:end], 0)[0]
    assert found == [part for append in appends[: len(found) // 4] for part in append]


@settings(max_examples=300)
@given(st.binary(max_size=80))
def test_whatever_bytes_there_are(raw: bytes) -> None:
    found, end = prefetch.appends({}, b"\1" + raw, 0)
    assert (end > 0) == bool(found)
    assert end <= 1 + len(raw)


@pytest.mark.parametrize("klen", [5, 1 << 31, (1 << 32) - 1])
def test_a_key_longer_than_its_record(klen: int) -> None:
    record = records.APPEND_HEAD.pack(records.APPEND, 20 + 4, klen, NOW, 0) + b"keys"
    assert prefetch.appends({}, record, 0) == ([], 0)
    with pytest.raises(CorruptError):
        replay(empty(), record)


def test_streams_keep_what_they_have() -> None:
    ks = empty()
    commands = many(ks, 200)
    before = ks.digest()
    counts = [sys.getrefcount(value) for value in ks.keys.values()]
    for at in range(0, len(commands), 50):
        _prefetch.fetch(ks.keys, commands, at, at + 50)
    _prefetch.fetch(ks.keys, [[], [b"PING"], *commands], 0, 1000)
    assert ks.digest() == before
    assert counts == [sys.getrefcount(value) for value in ks.keys.values()]
    for refused in ((ks.keys, commands, 0), (None, commands, 0, 1), (ks.keys, commands, "a", 1)):
        with pytest.raises(TypeError):
            _prefetch.fetch(*refused)


LOOKUPS = """
from storage.keyspace import _prefetch

class Other:
    lookups = []

    def __getattr__(self, name):
        Other.lookups.append(name)
        raise AttributeError(name)

for _ in range(5):
    _prefetch.fetch({b"k": Other()}, [[b"GET", b"k"]], 0, 1)
print(*sorted(Other.lookups))
"""


def test_other_values_are_looked_at_once() -> None:
    ran = subprocess.run([sys.executable, "-c", LOOKUPS], capture_output=True, text=True, check=True)
    assert ran.stdout == f"{APPEND_LIST} value\n"


def test_tables_of_all_sizes_with_removed_keys_and_other_keys() -> None:
    """Reading a table that is laid out in another way would crash. The sizes have slots of one, two, and four bytes."""
    for size in (0, 1, 5, 100, 1000, 70_000):
        table: dict[bytes, Any] = {b"k%d" % number: String(b"v%d" % number) for number in range(size)}
        for number in range(0, size, 3):
            del table[b"k%d" % number]
        table.update({b"n%d" % number: String(b"w") for number in range(size // 5)})
        commands = [[b"GET", b"k%d" % number] for number in range(0, 2 * size + 64, 1 + size // 3000)]
        before = {key: (value.value, sys.getrefcount(value)) for key, value in table.items()}
        for at in range(0, len(commands), prefetch.AT_ONCE):
            _prefetch.fetch(table, commands, at, len(commands))
        assert before == {key: (value.value, sys.getrefcount(value)) for key, value in table.items()}
    _prefetch.fetch({"a str": 1}, [[b"GET", b"k"]], 0, 1)
    _prefetch.fetch({"a str": 1, 2.5: 3, b"k": 4}, [[b"GET", b"k"], [b"GET", b"l"]], 0, 2)


def test_what_is_replayed_is_logged_up_to_where_it_fails() -> None:
    ks, behind = empty(), empty()
    stream = ks.create_stream(b"s")
    for seq in range(3):
        ks.append(b"s", stream, NOW, seq, wire(NOW, seq))
    good = ks.take_batch()
    with pytest.raises(CorruptError):
        replay(behind, good + batch_of([(b"s", NOW, 1, b"too low")]) + good)
    assert behind.take_batch() == good
    assert behind.digest() == ks.digest()


def test_what_c_looks_for_are_attributes_of_values() -> None:
    source = Path(keyspace.__file__).with_name("_prefetch.c").read_text()
    assert f'"{APPEND_LIST}"' in source
    assert '"value"' in source
    assert hasattr(StreamNodes, APPEND_LIST)
    assert hasattr(String, "value")
