"""Which clients that wait share a reply."""

from __future__ import annotations

from commands.redis_streams.read import ReadWords, StreamsRead
from storage.model.timers import NEVER


def waiting(keys: list[bytes], ids: list[int], *words: bytes) -> StreamsRead:
    options = ReadWords([b"XREAD", *words, b"STREAMS", *keys, *(b"%d" % one for one in ids)])
    return StreamsRead(options, ids, NEVER, b"*-1\r\n")


def test_the_same_keys_ids_and_options() -> None:
    one = waiting([b"a", b"b", b"a"], [1, 2, 3])
    assert one.keys == [b"a", b"b"]
    assert one.same(waiting([b"a", b"b", b"a"], [1, 2, 3]))
    assert not one.same(waiting([b"a", b"b", b"a"], [1, 2, 4]))
    assert not one.same(waiting([b"a", b"b", b"a"], [1, 2, 3], b"COUNT", b"1"))
    assert not one.same(waiting([b"a", b"b", b"a"], [1, 2, 3], b"MAXCOUNT", b"1"))
    assert not one.same(waiting([b"a", b"b", b"a"], [1, 2, 3], b"MAXSIZE", b"1"))
    assert not one.same(waiting([b"a", b"b", b"b"], [1, 2, 3]))
