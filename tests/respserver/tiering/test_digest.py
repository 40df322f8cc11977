"""DEBUG DIGEST of entries that are only in the object store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.respserver.tiering.test_freeing import empty_cache, freed, readers, stopped
from tests.respserver.tiering.test_tiering import fields
from tests.waiting import eventually
from tests.wire.rawclient import Raw

COUNT = 2000  # entries, in nodes of 10; the sections of an object have about 12 of these nodes
NODES = 199  # that are only in the object store
DEBUG: dict[str, Any] = {"enable_debug_command": "yes"}


def test_each_node_is_read_once(tmp_path: Path) -> None:
    with freed(tmp_path / "target", COUNT, 1000, **DEBUG) as (server, _), Raw(server.port) as client:
        empty_cache(server)
        digest = client("DEBUG", "DIGEST")
        found = fields(client)
        assert int(found["tier_fetched_nodes"]) >= NODES - 1
        assert int(found["tier_cache_misses"]) >= 4, "it has waited several times"
        assert NODES - 1 <= int(found["tier_cache_hits"]) <= NODES + 1, "it begins again after each wait"
        assert client("DEBUG", "DIGEST") == digest, "at once, from the cache"
        client.pipeline(("MULTI",), ("DEBUG", "DIGEST"), ("XLEN", "a"))
        assert client("EXEC") == [digest, COUNT]


def test_it_is_that_of_the_start(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with freed(target, **DEBUG) as (server, _), Raw(server.port) as client, Raw(server.port) as other:
        for words in (("SET", "s", "v"), ("XADD", "b", "1-0", "f", "v"), ("XGROUP", "CREATE", "a", "g", "5-0"),
                      ("XDEL", "a", "7-0")):  # fmt: skip
            other(*words)
        other("XREADGROUP", "GROUP", "g", "c", "COUNT", 3, "STREAMS", "a", ">")
        before = other("DEBUG", "DIGEST")
        (reader,) = eventually(lambda: readers(server))
        with stopped(reader):
            empty_cache(server)
            client.send("DEBUG", "DIGEST")
            eventually(lambda: b"cmd=debug" in other("CLIENT", "LIST"))
            assert other("XTRIM", "a", "MINID", "201-0") == 199
            assert other("SET", "s", "changed") == b"OK"
            assert other("DEL", "b") == 1
            assert other("XACK", "a", "g", "5-0", "6-0") == 1
            assert other("SAVE") == b"OK"
        assert client.read() == before
        assert client("DEBUG", "DIGEST") != before


def test_a_store_that_is_away(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with freed(target, **DEBUG) as (server, _), Raw(server.port) as client:
        digest = client("DEBUG", "DIGEST")
        empty_cache(server)
        target.rename(tmp_path / "away")
        assert "which can't be read: can't read objects/" in client("DEBUG", "DIGEST")
        (tmp_path / "away").rename(target)
        eventually(lambda: client("DEBUG", "DIGEST") == digest, "the entries can't be read")
