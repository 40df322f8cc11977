"""Changes and reads of many keys: the same as of each key alone."""

from __future__ import annotations

import random

import pytest

from storage.keyspace import manykeys
from storage.keyspace.keyspace import Keyspace
from storage.keyspace.replay import replay
from storage.keyspace.values import String
from storage.model.entries import entry_wire, id_bulk
from storage.nodes.cache import NodeCache
from storage.nodes.pool import NodePool
from tests.storage.nodes.nodestore import MemoryStore

NOW = 1_700_000_000_000


def empty() -> Keyspace:
    return Keyspace(NodePool(MemoryStore(), NodeCache(1 << 16)))


def content(ks: Keyspace) -> object:
    used = {key: value.used for key, value in ks.keys.items() if isinstance(value, String)}
    return ks.digest(), ks.string_bytes, used, sorted(ks.index.page(0, 10_000)[1]), ks.changes.count, ks.changes.strings


@pytest.mark.parametrize("what", ["strings", "expiries", "streams", "twice", "a reader waits", "a checkpoint runs"])
def test_the_same_as_one_by_one(what: str) -> None:
    rng = random.Random(what)
    many, single, copy = empty(), empty(), empty()
    names = [b"k%d" % n for n in range(3000)]
    for ks in (many, single):
        if what == "a reader waits":
            ks.waiting[b"k5"] = 1
        if what == "streams":
            ks.append(b"k7", ks.create_stream(b"k7"), NOW, 0, entry_wire(id_bulk(NOW, 0), [b"f", b"v"]))
    copied = many.take_batch()
    for turn in range(12):
        if what == "expiries":
            for ks in (many, single):
                for name in names[turn::100]:
                    if name in ks.keys:
                        ks.set_expire(name, NOW + 5)
        if what == "a checkpoint runs":
            many.begin_capture() if not many.changes.held else many.changes.more(100)
            single.begin_capture() if not single.changes.held else single.changes.more(100)
        keys = rng.sample(names, rng.choice([3, 50, 1500]))
        if what == "twice":
            keys += keys[:2]
        values = [b"v" * rng.randrange(9) for _ in keys]
        if turn % 3 == 2:
            assert manykeys.delete_many(many, keys, NOW) == sum(single.delete(key, NOW) for key in keys)
        else:
            manykeys.set_strings(many, keys, values, NOW + turn)
            for key, value in zip(keys, values, strict=True):
                single.set_string(key, value)
                single.keys[key].used = NOW + turn
        copied += many.take_batch()
        assert content(many) == content(single)
        assert many.ready == single.ready
        later = NOW + 10 * (turn % 2)
        assert [getattr(value, "value", None) for value in manykeys.read_many(many, keys, later)] == [
            getattr(single.read(key, later), "value", None) for key in keys
        ]
        assert (many.hits, many.misses, many.expired_keys) == (single.hits, single.misses, single.expired_keys)
    replay(copy, copied + many.take_batch())
    assert copy.digest() == many.digest()


def test_a_follower_hides_keys_whose_time_is_over() -> None:
    ks = empty()
    manykeys.set_strings(ks, [b"%d" % n for n in range(20)], [b"v"] * 20, NOW)
    ks.set_expire(b"3", NOW + 1)
    ks.follower = True
    found = manykeys.peek_many(ks, [b"2", b"3", b"3", b"none"], NOW + 1)
    assert [value is None for value in found] == [False, True, True, True]
    assert b"3" in ks.keys
