"""Dead letters for a key whose slot another group of a cluster has: the messages stay pending until it returns."""

from __future__ import annotations

from storage.keyspace import expiry
from storage.keyspace.keyspace import Keyspace
from storage.streams.stream import Stream
from tests.storage.keyspace.replaykit import NOW, call, empty


def test_messages_wait_until_the_slot_returns() -> None:
    ks = empty()
    call(ks, NOW, "XADD", "s", "1-0", "f", "v")
    read = ("TREAD", "s", "0", "9", "GROUP", "g", "90000", "RETRY", "10", "20", "DEADLETTER", "dead")
    call(ks, NOW, *read)
    ks.foreign = lambda key: key == b"dead"
    for now in (NOW + 100, NOW + 5000):
        expiry.run(ks, now)
        assert b"dead" not in ks.keys
        call(ks, now, *read)
        assert b"dead" not in ks.keys
        assert len(as_stream(ks, b"s").groups[b"g"].pending) == 1
    ks.foreign = None
    expiry.run(ks, NOW + 7000)
    assert as_stream(ks, b"dead").length == 1
    assert len(as_stream(ks, b"s").groups[b"g"].pending) == 0


def as_stream(ks: Keyspace, key: bytes) -> Stream:
    value = ks.keys[key]
    assert isinstance(value, Stream)
    return value
