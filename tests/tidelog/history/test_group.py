"""Direct reads in a server group: a change of the leader, and TMANIFEST on a replica."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from tests.tidelog.history.kit import ZERO, copy_all, read, tiered
from tests.waiting import eventually
from tests.wire.rawclient import Raw
from tidelog.client.entries import StreamId
from tidelog.history.planning import HistoryPlanner
from tidelog.history.reading import read_piece
from tidelog.history.sections import ALL
from tidelog.testing import Server
from tidelog.transport.access import Access
from tidelog.transport.leader import LeaderConnection


def leads(server: Server) -> bool:
    with Raw(server.port) as client:
        found = client("INFO", "replication")
    return b"role:master" in found and b"group_phase:leading" in found


def leader_of(one: Server, two: Server) -> tuple[Server, Server] | None:
    return (one, two) if leads(one) else (two, one) if leads(two) else None


def add(server: Server, first: int, count: int) -> bool:
    with Raw(server.port) as client:
        replies = client.pipeline(*[("XADD", "a", f"{first + n}-1", "n", str(first + n)) for n in range(count)])
    return not any(isinstance(reply, str) for reply in replies)


def test_a_change_of_the_leader(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    group: dict[str, Any] = {
        "group": "tide", "coordinator": f"file://{tmp_path}/coordinator", "min_in_sync": 1, "group_lease": 2000,
    }  # fmt: skip
    with tiered(target, **group) as one, tiered(target, **group) as two:
        leader, other = eventually(lambda: leader_of(one, two))
        assert add(leader, 1, 45)
        copy_all(leader)
        with Raw(leader.port) as client, Raw(other.port) as replica:
            eventually(lambda: replica("XLEN", "a") == 45)
            expected = client("TRANGE", "a", "-", "+")
            client("XDEL", "a", "7-1")
            eventually(lambda: replica("TMANIFEST", "a") == client("TMANIFEST", "a"))
            eventually(lambda: b"group_in_sync:2" in client("INFO", "replication"))
        access = Access.of(f"redis://{leader.host}:{leader.port},{other.host}:{other.port}")
        with closing(LeaderConnection(access, "test")) as servers:
            plans = HistoryPlanner(servers.ask)
            before = plans.histories({"a": ALL})["a"].piece(ZERO, StreamId(999))
            assert before is not None
            begun = read_piece(before)
            leader.kill()
            eventually(lambda: leads(other))
            assert sum(len(data) > 0 for data in begun) == 1, "the objects do not depend on the leader"
            assert eventually(lambda: add(other, 99, 1)), "not writable"
            assert add(other, 100, 30)
            copy_all(other)
            after = plans.histories({"a": ALL})["a"].piece(ZERO, StreamId(999))
            assert plans.problems == {}
        del expected[6]
        assert read(before) == expected[:39]
        assert after is not None
        assert after.end > before.end
        with Raw(other.port) as client:
            assert read(after) == client("TRANGE", "a", "-", str(after.end))
