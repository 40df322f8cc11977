"""A plugin of pytest: servers that free their nodes from the store at once (``scripts/test tiered``).

Each server of ``respserver.testing.start_in_thread`` writes a checkpoint after every tick with writes, and replaces all
nodes that ``tier-after 0`` and ``tier-free yes`` allow with references. A node has one entry. The disk cache is emptied
again and again, so that reads wait for entries. A test passes only if clients do not notice this.

In a real server, two processes do this: the helper and the reader. Here, their work is done on the event loop, at once
and in an order that does not change. The tests of ``persistence.tiering`` and ``respserver.tiering`` run the processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
from xxhash import xxh3_64_intdigest, xxh3_128_digest

import respserver.testing
from persistence.layout import U64
from persistence.storecopy import DATABASES
from persistence.tiering import source
from persistence.tiering.source import AGELESS, StoreView
from resp.errors import CommandError, CorruptError
from respserver.server import RespServer
from respserver.testing import RunningServer
from respserver.tiering import historyreads
from respserver.tiering.historyreads import HistoryReads
from respserver.tiering.tiering import Tiering
from storage.nodes.node import HEADER
from storage.nodes.reference import Reference

EMPTIED: Final = 3  # the cache is emptied at each third time that nodes are freed
SECONDS: Final = 600  # for a test: many of them take several times as long
URL: Final = "/tiered"
OPTIONS: Final = {
    "tier_url": URL, "tier_after": "0", "tier_free": "yes", "stream_node_max_entries": "1", "node_cache_size": "0",
    "save": "",
}  # fmt: skip
#: Tests that differ, by the ends of their names, and why. A name without parameters includes all of them
DIFFERENT: Final = {
    "test_checkpoints.py::test_a_shutdown_waits_for_a_running_checkpoint": "all is in the store before the checkpoint",
    "test_checkpoints.py::test_others_are_served_while_a_client_saves": "all is in the store before the checkpoint",
    "test_deadlines.py::test_the_clock_of_each_deadline": "the deadline of `save` is never reached",
    "test_delays.py::test_a_reload_and_a_checkpoint_change_nothing":
        "it reads 10,000 nodes from files of their own, which takes minutes",
    "test_delivered_replies.py::test_a_reply_has_what_was_delivered": "a reply shows the state at the end of its wait",
    "test_delivered_replies.py::test_a_long_reply_whose_client_leaves":
        "a read of a group's history ends at entries that are not in the cache",
    "test_delivered_replies.py::test_several_keys_in_one_reply":
        "a read of several streams with a group ends at entries that are not in the cache",
    "test_delivered_replies.py::test_what_only_the_reply_has_is_counted_and_limited":
        "a read of a group's history ends at entries that are not in the cache",
    "test_evicting_batches.py::test_changes_are_counted_as_redis_does": "a checkpoint resets the number of changes",
    "test_evicting_batches.py::test_one_eviction_is_logged":
        "a checkpoint resets the number of changes, and calls that wait are not executed as one",
    "test_info.py::test_a_field_moves[heal]": "the damaged node, of one entry, is not in memory",
    "test_info.py::test_a_field_moves[keys]": "a checkpoint resets the number of changes",
    "test_info.py::test_a_field_moves[streams]": "the journal has everything after each checkpoint",
    "test_info.py::test_every_field_is_in_a_table": "the server has a `tier-url`, and so fields of tiering",
    "test_long_commands.py::test_messages_change_hands_in_slices": "a claim ends at entries that are not in the cache",
    "test_long_reads.py::test_a_group_that_ends_while_its_messages_are_redelivered":
        "a read with a group ends at entries that are not in the cache",
    "test_long_reads.py::test_a_leader_that_becomes_a_replica_ends_it":
        "a long read waits before its first slice",
    "test_long_reads.py::test_a_read_of_many_due_messages":
        "a read with a group ends at entries that are not in the cache",
    "test_long_reads.py::test_an_entry_between_two_slices_is_deleted_meanwhile":
        "a read with a group ends at entries that are not in the cache",
    "test_long_reads.py::test_due_messages_and_then_new_entries_up_to_the_count":
        "a read with a group ends at entries that are not in the cache",
    "test_long_reads.py::test_entries_that_are_added_or_evicted_meanwhile":
        "a long read waits before its first slice",
    "test_long_reads.py::test_eviction_that_overtakes_it_ends_it":
        "a read with a group ends at entries that are not in the cache",
    "test_long_reads.py::test_readers_at_the_same_time_share_the_entries":
        "a read with a group ends at entries that are not in the cache",
    "test_observation.py::test_only_reads_count_as_hits_and_misses_and_each_once": "a read counts again after its wait",
    "test_observation.py::test_the_buffers_of_clients": "a long reply waits for entries, and not for its client",
    "test_retention.py::test_a_stream_that_always_exceeds_its_limit_is_checked_once_a_second":
        "a check follows as many appends as a node has entries: one",
    "test_retention.py::test_appends_cause_a_check_only_if_they_can_exceed_a_limit[COUNT 600-1110-checked2]":
        "whole nodes have one entry",
    "test_retention.py::test_bytes_limit_the_size": "nodes of one entry have other sizes",
    "test_retention.py::test_count_is_exact_or_in_whole_nodes": "whole nodes have one entry",
    "test_retention.py::test_entries_leave_when_they_are_too_old[EXACT]":
        "a policy evicts entries later if it needs some that are not in the cache",
    "test_retention.py::test_entries_leave_when_they_are_too_old[~]": "whole nodes have one entry",
    "test_retention.py::test_no_excess_remains":
        "a policy evicts entries later if it needs some that are not in the cache",
    "test_retention.py::test_whole_nodes_leave_when_the_next_node_is_old":
        "a policy evicts entries later if it needs some that are not in the cache",
    "test_staging.py::test_memory_and_disk_are_told": "nodes of one entry need more memory",
    "test_stalls.py::test_a_client_that_is_always_late_still_sees_ends":
        "messages become dead letters later if their entries are not in the cache",
    "test_stalls.py::test_nothing_ends_because_the_server_was_away":
        "messages become dead letters later if their entries are not in the cache",
    "test_stalls.py::test_nothing_ends_before_all_sockets_were_read":
        "messages become dead letters later if their entries are not in the cache",
    "test_tgroups.py::test_a_dead_letter_that_can_not_be_written_is_retried_without_spinning":
        "messages become dead letters later if their entries are not in the cache",
    "test_tier_after.py::test_invalid_defaults_are_refused": "the default is another one",
    "test_tmanifest.py::test_many_deleted_entries_take_several_calls": "the server has a `tier-url`",
    "test_tread_maxbytes.py::test_large_limits_are_measured_in_slices":
        "a read with a group ends at entries that are not in the cache",
    "test_write_errors.py::test_a_failed_save_is_retried_without_further_changes":
        "all is in the store before the checkpoint",
    "test_write_errors.py::test_a_write_that_is_not_durable_is_not_answered_nor_stored":
        "all is in the store before the checkpoint",
    "test_xclaim.py::test_long_calls": "a claim ends at entries that are not in the cache",
    "test_xoracle.py::test_random_programs": "a read with a group ends at entries that are not in the cache",
    "test_xoracle.py::test_random_programs_in_slices": "a read with a group ends at entries that are not in the cache",
    "test_xrange.py::test_what_was_deleted_in_the_middle_is_not_there": "it calls the keyspace, which can't wait",
    "test_xread_limits.py::test_a_group_does_not_read_what_the_reply_lacks":
        "a read of several streams with a group ends at entries that are not in the cache",
    "test_xread_limits.py::test_a_long_group_read": "a read with a group ends at entries that are not in the cache",
    "test_xreadgroup.py::test_a_long_read_is_streamed": "a claim ends at entries that are not in the cache",
    "test_xreadgroup.py::test_claim_comes_to_messages_behind_many_that_are_gone":
        "a read that is repeated looks at more messages",
    "test_xtrim.py::test_acked_against_a_plain_list": "an eviction can stop at entries that are not in the cache",
}  # fmt: skip
REFUSED: Final = {"cluster_enabled", "tier_url", "group"}  # servers with these directives are started as they are

_plain = respserver.testing.start_in_thread
_end_tick = RespServer._tick


class Objects:
    """The object store of a server: the blobs of the nodes that have left its store."""

    def __init__(self) -> None:
        self.blobs: dict[bytes, bytes] = {}  # by their digests
        self.freed = 0
        self.fetched = 0
        self.seen = 0  # log offset up to which nodes were freed
        self.times = 0


_objects: dict[Path, Objects] = {}  # by the path of the store
totals: Final = Objects()


def _objects_of(store: Path) -> Objects:
    """Return the objects of a server, which remain if it is started again."""
    if store not in _objects:
        for path in [path for path in _objects if not path.exists()]:
            del _objects[path]
        _objects[store] = Objects()
    return _objects[store]


def free(server: RespServer) -> None:
    """Write a checkpoint, and free all nodes that can be freed."""
    disk, checkpoints = server.data.disk, server.checkpoints
    if server.config.tier_url != URL or server.data.follower or server.ticks.stalled or checkpoints.running:
        return
    mine = _objects_of(disk.store.path)
    if disk.offset == mine.seen:
        return
    try:
        checkpoints.run_now()
    except (OSError, CorruptError, CommandError):
        return
    mine.seen = disk.offset
    store = disk.store
    with store.env.begin() as txn:
        view = StoreView(store.path, txn, dict(zip(DATABASES, store._databases, strict=False)))
        found = list(_references(view, txn, store, mine))
    if found:
        count, _ = store.free(found)
        server.data.ks.pool.tiered = True
        disk.renew_view()
        mine.freed += count
        totals.freed += count
    mine.times += 1
    if mine.times % EMPTIED == 0:
        with suppress(FileNotFoundError):
            for path in store.tiered.path.iterdir():
                path.unlink()


def _references(view: StoreView, txn: Any, store: Any, mine: Objects) -> Iterator[tuple[bytes, bytes, bytes]]:
    sids = [key for key, _ in txn.cursor(db=store._databases[DATABASES.index(b"streams")])]
    for raw in sids:
        stream = view.stream(U64.unpack(raw)[0])
        if stream is None:
            continue
        for first, (key, end, blob) in view.whole_nodes(stream, 0, 1 << 62, AGELESS):
            node = view.living(stream, first, end, blob)
            digest = xxh3_128_digest(blob)
            mine.blobs[digest] = blob
            made = Reference(
                len(node.ids), HEADER.unpack_from(blob)[4], node.ids[0], node.ids[-1], digest, 0, digest, 0, len(blob),
                xxh3_64_intdigest(blob),
            )  # fmt: skip
            yield key, digest, made.pack()


def _tick(server: RespServer) -> None:
    _end_tick(server)
    free(server)


def _begin(self: HistoryReads, section: Any, nodes: list[tuple[int, Reference]], urgent: bool) -> None:
    self._last += 1
    identity = self._last
    self._requests[section] = historyreads._Request(nodes[0][1].object, {"id": identity, "urgent": True})
    self._ids[identity] = section
    mine, path = _objects_of(self._data.disk.store.path), self._data.disk.store.tiered.path

    def answer() -> None:
        path.mkdir(exist_ok=True)
        files = []
        for _, node in nodes:
            if node.digest in mine.blobs:
                (path / node.digest.hex()).write_bytes(mine.blobs[node.digest])
                files.append((node.digest.hex(), len(mine.blobs[node.digest])))
        mine.fetched += len(files)
        totals.fetched += len(files)
        self._answered({"id": identity, "files": files})

    self._loop.call_soon(answer)


async def _no_process(self: HistoryReads) -> None:
    self._task = None


def _no_pass(self: Tiering) -> None:
    pass


@contextmanager
def start_in_thread(
    directory: Path | str | None = None, clock: Any = None, **options: str | list[str]
) -> Iterator[RunningServer]:  # fmt: skip
    if REFUSED.intersection(options):
        with _plain(directory, clock, **options) as running:
            yield running
        return
    with _plain(directory, clock, **{**OPTIONS, **options}) as running:
        yield running


# Now rather than in pytest_configure(), because files that are imported before it take the function from the module
respserver.testing.start_in_thread = start_in_thread
RespServer._tick = _tick  # type: ignore[assignment, method-assign]
HistoryReads._begin = _begin  # type: ignore[method-assign]
HistoryReads._serve = _no_process  # type: ignore[method-assign]
Tiering.on_time = _no_pass  # type: ignore[method-assign]
source.SMALLEST = 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name = f"{item.path.name}::{item.nodeid.partition('::')[2]}"
        reason = DIFFERENT.get(name) or DIFFERENT.get(name.partition("[")[0])
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SECONDS))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.write_line(f"nodes freed: {totals.freed:,}, read back: {totals.fetched:,}")
