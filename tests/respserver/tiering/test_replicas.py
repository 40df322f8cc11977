"""Replicas that free space: each one compares its own store with the objects of its leader."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from storage.history import owner
from tests.persistence.tiering.kit import Entry
from tests.respserver.tiering.test_freeing import COUNT, FREED, add, empty_cache, wait_until_freed
from tests.respserver.tiering.test_tiering import alive, await_copy, fields, helpers, leader_of, leads, tiered
from tests.waiting import eventually
from tests.wire.rawclient import Raw
from tidelog.testing import Server, running_server

OPTIONS: dict[str, Any] = {"tier_free": "yes", "node_cache_size": "0", "save": ""}


def saved(reader: Raw, length: int) -> None:
    """Wait until a replica has the entries of the stream "a", and let it write a checkpoint."""
    eventually(lambda: reader("XLEN", "a") == length)
    assert reader("SAVE") == b"OK"


def test_a_replica_keeps_what_stays_local(tmp_path: Path) -> None:
    """The setting of a stream is replicated, and counts for what a replica frees. That of the leader can be another."""
    target = tmp_path / "target"
    target.mkdir()
    with tiered(target, save="", node_cache_size="0") as server, Raw(server.port) as client:
        follow: dict[str, Any] = {**OPTIONS, "replicaof": f"{server.host} {server.port}", "tier_after": "1gb"}
        with tiered(target, **follow) as replica, Raw(replica.port) as reader:
            entries = add(client, COUNT)
            await_copy(target, entries)
            saved(reader, COUNT)
            passes = int(fields(reader)["tier_passes"])
            eventually(lambda: int(fields(reader)["tier_passes"]) > passes + 1)
            assert fields(reader)["tier_freed_nodes"] == "0"
            client("TCFG", "a", "TIER", "BYTES", 0)
            eventually(lambda: reader("TCFG", "a")[3] == b"BYTES 0")
            saved(reader, COUNT)
            wait_until_freed(reader, FREED)
            assert reader("XRANGE", "a", "-", "+") == entries


def test_a_replica_frees_what_its_leader_has_copied(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    with tiered(target, save="", node_cache_size="0") as server, Raw(server.port) as client:
        follow: dict[str, Any] = {**OPTIONS, "replicaof": f"{server.host} {server.port}"}
        with tiered(target, **follow) as replica, Raw(replica.port) as reader:
            entries = add(client, COUNT)
            eventually(lambda: int(fields(client)["tier_entries"]) >= 200)
            assert fields(reader)["tier_freed_nodes"] == "0", "its store has no entries before its checkpoint"
            saved(reader, COUNT)
            wait_until_freed(reader, FREED)
            assert fields(client)["tier_freed_nodes"] == "0", "its leader does not free space"
            empty_cache(replica)
            assert reader("XRANGE", "a", "-", "+") == entries
            assert int(fields(reader)["tier_fetched_nodes"]) == FREED
            found = fields(reader)
            assert (found["tier_last_status"], found["tier_lag_seconds"]) == ("ok", "-1")
            # more entries, deletions, and evictions within nodes that are only in the object store
            assert client("XDEL", "a", "75-0", "76-0") == 2
            assert client("XTRIM", "a", "MAXLEN", 150) == COUNT - 2 - 150
            more = add(client, 40, first=1001)
            empty_cache(replica)
            saved(reader, 190)
            wait_until_freed(reader, FREED + 3)
            assert reader("XRANGE", "a", "-", "+") == more
            # a kill of its helper, and of the replica
            (helper,) = eventually(lambda: _copiers(replica))
            os.kill(helper, signal.SIGKILL)
            eventually(lambda: _copiers(replica) not in ([], [helper]))
            replica.kill()
            replica.start()
            empty_cache(replica)
            with Raw(replica.port) as reader:
                eventually(lambda: reader("XRANGE", "a", "-", "+") == more)
                assert reader("CONFIG", "SET", "tier-free", "no") == b"OK"
                eventually(lambda: _copiers(replica) == [], "nothing to do for the helper")


def test_replicas_whose_leader_does_not_own_the_prefix(tmp_path: Path) -> None:
    """Nobody else would know which objects they need. A replica of a replica learns the owner from it, also later."""
    target = tmp_path / "target"
    target.mkdir()
    owned = target / owner.NAME
    owned.write_bytes(owner.encode("5e" * 20))
    with tiered(target, save="") as leader, Raw(leader.port) as client:
        follow: dict[str, Any] = {**OPTIONS, "replicaof": f"{leader.host} {leader.port}"}
        with tiered(target, **follow) as middle, Raw(middle.port) as reader:
            follow["replicaof"] = f"{middle.host} {middle.port}"
            with tiered(target, **follow) as last, Raw(last.port) as other:
                for each in (reader, other):
                    eventually(lambda its=each: "5e5e" in fields(its)["tier_last_error"])  # type: ignore[misc]
                owned.unlink()
                add(client, COUNT)
                for each in (reader, other):
                    saved(each, COUNT)
                    wait_until_freed(each, FREED)
                assert reader("REPLICAOF", "NO", "ONE") == b"OK"
                eventually(lambda: "belongs to another server" in fields(other)["tier_last_error"])


def test_a_leader_without_a_history(tmp_path: Path) -> None:
    with (
        running_server(save="") as leader,
        tiered(tmp_path, **OPTIONS, replicaof=f"{leader.host} {leader.port}") as replica,
        Raw(replica.port) as reader,
    ):
        eventually(lambda: "the leader has not sent the ID" in fields(reader)["tier_last_error"])


def _copiers(server: Server) -> list[int]:
    """Return the process IDs of the helpers, without those that read."""
    return helpers(server, b"tiering.helper")


def _added(client: Raw, length: int, first: int = 1) -> list[Entry]:
    """Append entries up to a length. Return all entries; [] if the server is not yet writable."""
    count = length - int(client("XLEN", "a"))
    if isinstance(client("XADD", "b", "*", "f", "v"), str):
        return []
    entries = add(client, count, first=first)
    assert len(entries) == length
    return entries


def fetched(server: Server, client: Raw) -> int:
    """Return how many nodes a read of the whole stream fetches: those that have left the store."""
    before = int(fields(client)["tier_fetched_nodes"])
    empty_cache(server)
    client("XRANGE", "a", "-", "+")
    return int(fields(client)["tier_fetched_nodes"]) - before


def _group(path: Path) -> dict[str, Any]:
    return {"group": "tide", "coordinator": f"file://{path}/coordinator", "min_in_sync": 1, "group_lease": 5000}


def test_the_next_leader_of_a_group_reads_frees_and_copies_on(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    group = _group(tmp_path)
    with tiered(target, **group, **OPTIONS) as one, tiered(target, **group, **OPTIONS) as two:
        leader, other = eventually(lambda: leader_of(one, two))
        with Raw(leader.port) as client, Raw(other.port) as reader:
            eventually(lambda: b"group_in_sync:2" in client("INFO", "replication"))
            entries = eventually(lambda: _added(client, COUNT))
            saved(reader, COUNT)
            wait_until_freed(client, FREED)
            eventually(lambda: fetched(other, reader) == FREED)
            (helper,) = eventually(lambda: _copiers(other))
            eventually(lambda: b"group_in_sync:2" in client("INFO", "replication"))
        leader.kill()
        empty_cache(other)
        eventually(lambda: leads(other))
        with Raw(other.port) as client:
            assert client("XRANGE", "a", "-", "+") == entries
            eventually(lambda: not alive(helper), "the helper of the replica has ended")
            more = eventually(lambda: _added(client, COUNT + 100, 1001))
            await_copy(target, more)
            eventually(lambda: fetched(other, client) >= FREED + 9)
            assert client("XRANGE", "a", "-", "+") == more
        # the former leader is the replica now, and frees what the new one has copied
        leader.start()
        with Raw(leader.port) as reader:
            saved(reader, len(more))
            eventually(lambda: fetched(leader, reader) >= FREED + 9)
            assert reader("XRANGE", "a", "-", "+") == more
