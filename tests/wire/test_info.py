"""Every field of INFO, driven through a socket: what is done, and how the field moves then.

A field that is in INFO and in no table fails ``test_every_field_is_in_a_table``.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator

import pytest

from respserver.testing import HandClock, start_in_thread
from tests.waiting import eventually
from tests.wire.inforeplica import ITS_MOVES, copies, loses_its_leader
from tests.wire.infosteps import MOVES, errs, subscribes
from tests.wire.infoworld import Check, Step, World, changed, fields, grew
from tests.wire.rawclient import Raw
from tidelog.testing import running_server


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    options = {"enable_debug_command": "yes", "latency_tracking": "yes", "save": "", "slowlog_log_slower_than": "-1"}
    with start_in_thread(clock=HandClock(), **options) as hand, start_in_thread(**options) as replica:  # type: ignore[arg-type]
        made = World(hand, replica)
        with made.me.sock, made.its.sock:
            yield made


# -- what is seen only in a process of its own --------------------------------------------------------------------
PROCESS_MOVES: dict[str, Check] = {
    "used_memory": grew, "used_memory_human": changed, "used_memory_rss": grew, "used_memory_rss_human": changed,
    "used_memory_peak": grew, "used_memory_peak_human": changed, "used_memory_peak_perc": changed,
    "used_memory_overhead": changed, "used_memory_dataset": grew, "used_memory_dataset_perc": changed,
    "mem_fragmentation_ratio": changed, "mem_fragmentation_bytes": changed, "used_cpu_user": grew,
    "used_cpu_sys": grew,
}  # fmt: skip

# -- what never moves: the value, and why -------------------------------------------------------------------------
CONSTANT: dict[str, tuple[str, str]] = {
    "redis_version": (r"\d+\.\d+\.\d+", "of this version"), "tidelog_version": (r"\d+\.\d+\.\d+", "of this version"),
    "tidelog_compiled": ("[01]", "of this installation"),
    "tidelog_resp_parser": ("compiled|hiredis", "of this installation"),
    "tidelog_coded_nodes": ("[01]", "of this installation"),
    "redis_git_sha1": ("0{8}", "not built from a checkout"),
    "redis_git_dirty": ("0", "the same"), "redis_build_id": ("0", "the same"),
    "redis_mode": ("standalone", "neither a cluster nor a Sentinel"), "os": (".+", "of this machine"),
    "arch_bits": ("64|32", "of this machine"), "multiplexing_api": ("asyncio", "the only one"),
    "python_version": (r"\d+\.\d+\.\d+.*", "of this installation"), "process_id": (r"\d+", "of this process"),
    "process_supervised": ("no", "set at the start"), "run_id": ("[0-9a-f]{40}", "of this start"),
    "tcp_port": (r"\d+", "set at the start"), "executable": (".+", "of this installation"),
    "config_file": (".*", "set at the start"), "io_threads_active": ("0", "there is one thread"),
    "cluster_connections": ("0", "no cluster"),
    "used_memory_startup": (r"\d+", "taken at the start"), "total_system_memory": (r"\d+", "of this machine"),
    "total_system_memory_human": (".+", "of this machine"), "used_memory_lua": ("0", "no scripts"),
    "used_memory_scripts": ("0", "no scripts"), "maxmemory_policy": ("noeviction", "nothing is evicted"),

    "mem_not_counted_for_evict": (r"\d+", "buffers of replicas, and the journal's queue"),
    "mem_allocator": ("python", "the only one"),
    "async_loading": ("0", "data is replaced in one step"),
    "rdb_last_load_keys_expired": ("0", "a load keeps keys whose time is over: they end later"),
    "aof_enabled": ("1", "every write is logged"), "log_tail_bytes": (r"\d+", "set at the start"),
    "evicted_keys": ("0", "nothing is evicted"), "evicted_clients": ("0", "clients are not closed for memory"),
    "pubsubshard_channels": ("0", "no cluster"), "latest_fork_usec": ("0", "nothing forks"),
    "total_forks": ("0", "nothing forks"), "migrate_cached_sockets": ("0", "no MIGRATE"),
    "cluster_enabled": ("0", "no cluster"), "cluster_unserved_keys": ("0", "no cluster: tests/replication"),
    "repl_backlog_first_byte_offset": (r"\d+", "moves when the journal is cut behind a backlog: tests/replication"),
    "used_cpu_sys_children": (r"0\.0+|.*", "the server starts no processes"),
    "used_cpu_user_children": (r"0\.0+|.*", "the server starts no processes"),
    "master_sync_refused": ("[01]", "1 while data is protected from an empty leader: tests/replication"),
    "slave_read_only": ("1", "there are no writable replicas"),
}  # fmt: skip


def moved(raw: Raw, step: Callable[[], object], moves: dict[str, Check]) -> dict[str, tuple[str | None, str | None]]:
    """Do the step, and wait for the moves. Returns what did not move, as (before, after)."""
    before = fields(raw)
    waiting = {_example(name): check for name, check in moves.items()}

    def all_moved() -> bool:
        now = fields(raw)
        for name in [name for name, check in waiting.items() if check(before.get(name, ""), now.get(name, ""))]:
            del waiting[name]
        return not waiting

    step()
    with contextlib.suppress(AssertionError):
        eventually(all_moved)
    return {name: (before.get(name), fields(raw).get(name)) for name in waiting}


def _example(name: str) -> str:
    return name.replace("*", "ERR" if name.startswith("errorstat") else "time")


@pytest.mark.interpreted
@pytest.mark.parametrize(("step", "moves"), MOVES, ids=[step.__name__ for step, _ in MOVES])
def test_a_field_moves(world: World, step: Step, moves: dict[str, Check]) -> None:
    with world.stack:
        assert moved(world.me, lambda: step(world), moves) == {}


@pytest.mark.parametrize(("step", "moves"), ITS_MOVES, ids=[step.__name__ for step, _ in ITS_MOVES])
def test_a_field_of_a_replica_moves(world: World, step: Step, moves: dict[str, Check]) -> None:
    world.its("REPLICAOF", "NO", "ONE", "FORCE")
    world.its("SET", "own", "v")
    world.its("REPLICAOF", "127.0.0.1", 1)
    world.its("REPLICAOF", "NO", "ONE", "FORCE")  # the history before is its own now, too
    with world.stack:
        assert moved(world.its, lambda: step(world), moves) == {}


@pytest.mark.slow
def test_a_field_of_the_process_moves() -> None:
    with running_server() as server, Raw(server.port) as raw, contextlib.ExitStack() as more:

        def fill() -> None:
            for number in range(16):
                raw("SET", number, bytes(4 << 20))
            raw("INFO", "memory")  # the peak
            raw("DEL", 15)
            assert more.enter_context(Raw(server.port))("PING") == b"PONG"

        assert moved(raw, fill, PROCESS_MOVES) == {}


def test_every_field_is_in_a_table(world: World) -> None:
    tables = [moves for _, moves in (*MOVES, *ITS_MOVES)] + [PROCESS_MOVES]
    moving = {name for table in tables for name in table}
    assert moving.isdisjoint(CONSTANT)
    with world.stack:
        errs(world)
        subscribes(world)
        world.set("min-replicas-to-write", "1", "0")
        world.follow()
        found = fields(world.me) | fields(world.its)
        loses_its_leader(world)
        found |= fields(world.its)
        copies(world)
        eventually(lambda: fields(world.its)["master_sync_in_progress"] == "1")
        found |= fields(world.its)
    for name, (value, why) in CONSTANT.items():
        assert re.fullmatch(value, found[name]), (name, found[name], why)
    patterns = [name.removesuffix("*") for name in moving if name.endswith("*")]
    known = moving | CONSTANT.keys()
    unknown = [name for name in found if name not in known and not name.startswith(tuple(patterns))]
    assert unknown == [], "say in a table what moves it, or why nothing does"
    gone = [name for name in known if name not in found and not name.endswith("*")]
    assert gone == [], "no longer in INFO"
