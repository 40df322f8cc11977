"""Delayed entries in damaged nodes wait, and no others do."""

from __future__ import annotations

import time
from pathlib import Path

from storage.keyspace.delivering import SCANNED
from tests.waiting import eventually
from tests.wire.damagedstore import damage, noise
from tests.wire.rawclient import Raw
from tidelog.testing import running_server

NODE = 20
BAD = SCANNED // NODE * NODE + NODE  # entries in damaged nodes: more than one step examines


def test_entries_in_damaged_nodes_do_not_block_later_ones(tmp_path: Path) -> None:
    with running_server(tmp_path, stream_node_max_entries=NODE, node_cache_size=0) as server:
        with Raw(server.port) as raw:
            due = int(time.time() * 1000) + 1000
            for start in range(0, BAD, 1000):
                numbers = range(start, min(BAD, start + 1000))
                raw.pipeline(*[("TDELAY", "s", "AT", due, "n", n, "body", noise(n, 700)) for n in numbers])
            raw.pipeline(*[("TDELAY", "s", "AT", due + 1, "n", BAD + n, "body", "intact") for n in range(NODE)])
        server.stop()
        damage(tmp_path, range(7, BAD, NODE))
        server.start()
        with Raw(server.port) as raw:
            eventually(lambda: raw("TLEN", "s") == NODE)
            assert raw("TDELAY", "s", "COUNT") == BAD
            raw("TDELAY", "s", "AT", due - 1, "f", "early")  # before those that wait
            raw("TDELAY", "s", "IN", 0, "f", "late")
            eventually(lambda: raw("TLEN", "s") == NODE + 2)
            assert raw("TDELAY", "s", "COUNT") == BAD
            assert [int(entry[2]) for entry in raw("TRANGE", "s", "-", "+", "COUNT", NODE)] == [*range(BAD, BAD + NODE)]
        server.stop()
        assert "Traceback" not in "".join(server.output)
