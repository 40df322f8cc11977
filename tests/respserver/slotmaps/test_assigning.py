"""TCLUSTER ASSIGN: the search for keys, with a clock that the test controls."""

from __future__ import annotations

from pathlib import Path

from respserver.runtime.clock import Clock
from respserver.testing import start_in_thread
from tests.replication.cluster import wait_until
from tests.wire.rawclient import Raw


class HurriedClock(Clock):
    """A clock with a new millisecond for each call, as if the process was suspended between any two calls."""

    def __init__(self) -> None:
        self._calls = 0

    def now(self) -> int:
        self._calls += 1
        return super().now() + self._calls


def test_a_slot_with_a_key_stays_although_time_passes_during_the_search(tmp_path: Path) -> None:
    options = {
        "group": "1", "coordinator": f"file://{tmp_path / 'coordinator'}", "cluster_enabled": "yes",
        "cluster_name": "c", "min_in_sync": "1", "cluster_require_full_coverage": "no",
    }  # fmt: skip
    with start_in_thread(tmp_path / "data", HurriedClock(), **options) as server, Raw(server.port) as c:
        wait_until(lambda: c("SET", "b", "1") == b"OK", "the group serves its slots")
        refused = "ERR slot 3300 of this group: there is 1 key, for example 'b', and only empty slots can be assigned"
        assert str(c("TCLUSTER", "UNASSIGN", "3300")).startswith(refused)
        assert c("SET", "b", "2", "PX", "60000") == b"OK"
        assert str(c("TCLUSTER", "UNASSIGN", "3300")).startswith(refused)
        assert c("DEL", "b") == 1
        assert c("TCLUSTER", "UNASSIGN", "3300") == b"OK"
