"""Delayed entries in damaged nodes wait, and no others do."""

from __future__ import annotations

from pathlib import Path

from respserver.testing import HandClock, start_in_thread
from storage.keyspace.delivering import SCANNED
from tests.wire.damagedstore import damage, noise
from tests.wire.rawclient import Raw

NODE = 20
BAD = SCANNED // NODE * NODE + NODE  # entries in damaged nodes: more than one step examines


def test_entries_in_damaged_nodes_do_not_block_later_ones(tmp_path: Path) -> None:
    clock, options = HandClock(), {"stream_node_max_entries": str(NODE), "node_cache_size": "0"}
    due = clock.now() + 1000
    with start_in_thread(tmp_path, clock, **options) as server, Raw(server.port) as raw:
        for start in range(0, BAD, 1000):
            numbers = range(start, min(BAD, start + 1000))
            raw.pipeline(*[("TDELAY", "s", "AT", due, "n", n, "body", noise(n, 700)) for n in numbers])
        raw.pipeline(*[("TDELAY", "s", "AT", due + 1, "n", BAD + n, "body", "intact") for n in range(NODE)])
        assert raw("SAVE") == b"OK"
    damage(tmp_path, range(7, BAD, NODE))
    with start_in_thread(tmp_path, clock, **options) as server, Raw(server.port) as raw:
        server.advance(2000)
        assert [int(entry[2]) for entry in raw("TRANGE", "s", "-", "+")] == [*range(BAD, BAD + NODE)]
        raw("TDELAY", "s", "AT", due - 1, "f", "early")  # before those that wait
        raw("TDELAY", "s", "IN", 0, "f", "late")
        server.advance(100)
        assert raw("TLEN", "s") == NODE + 2
        assert raw("TDELAY", "s", "COUNT") == BAD
        raw("RENAME", "s", "t")
        server.advance(100)
        assert server.call(lambda: len(server.server.data.ks.due)) == 1  # those that wait are tried again
