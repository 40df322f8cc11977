"""Checkpoints whose thread can't be started."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from persistence.store import Store
from respserver.maintenance.checkpoints import REST_MS
from respserver.testing import HandClock, start_in_thread
from tests.waiting import eventually
from tests.wire.rawclient import Raw


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError("no memory for a thread")])
def test_a_checkpoint_that_got_no_thread_is_never_written(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:  # fmt: skip
    """The executor keeps its work: without care it would be written later, after a newer one."""
    written: list[int] = []
    write = Store.write

    def recorded(self: Store, capture: object, offset: int) -> None:
        written.append(offset)
        write(self, capture, offset)  # type: ignore[arg-type]

    def no_thread(self: ThreadPoolExecutor) -> None:
        raise error

    monkeypatch.setattr(Store, "write", recorded)
    with start_in_thread(save="") as server, Raw(server.port) as c:
        assert c("SET", "k", "old") == b"OK"
        with monkeypatch.context() as starved:
            starved.setattr(ThreadPoolExecutor, "_adjust_thread_count", no_thread)
            assert c("SAVE") == f"ERR the checkpoint failed: {error}"
        assert written == []
        assert c("SET", "k", "new") == b"OK"
        assert c("SAVE") == b"OK"
        assert written == [server.server.data.disk.offset]


def test_a_sync_that_gets_no_thread_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    """The periodic work behind it is done, and the log says no word of a bug."""

    def no_thread(self: ThreadPoolExecutor) -> None:
        raise RuntimeError("can't start new thread")

    with start_in_thread(save="", appendfsync="everysec", clock=HandClock()) as server, Raw(server.port) as c:
        disk = server.server.data.disk
        assert c("SET", "k", "v") == b"OK"
        with monkeypatch.context() as starved:
            starved.setattr(ThreadPoolExecutor, "_adjust_thread_count", no_thread)
            server.call(lambda: server.server.checkpoints.on_time(server.server.clock.mono()))
            assert disk.pending_sync
        server.advance(2000)
        eventually(lambda: not disk.pending_sync)
    said = capfd.readouterr().out
    assert "Syncing the log failed: can't start new thread" in said
    assert "Bug" not in said


def test_memory_is_returned_after_checkpoints_but_not_after_each_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    returned: list[int] = []
    monkeypatch.setattr("respserver.maintenance.checkpoints.trim_memory", lambda: returned.append(1))
    with start_in_thread(save="", clock=HandClock()) as server, Raw(server.port) as c:
        for _ in range(3):
            assert c("SET", "k", "v") == b"OK"
            assert c("SAVE") == b"OK"
        eventually(lambda: returned)
        assert c("PING") == b"PONG"
        assert len(returned) == 1
        server.advance(REST_MS)
        eventually(lambda: len(returned) == 2)
        server.advance(REST_MS)
        assert c("PING") == b"PONG"
        assert len(returned) == 2


def test_a_checkpoint_that_a_busy_thread_took_at_the_last_moment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it writes must not be given back to the keyspace as not written, least of all while it is being written."""

    def no_thread(self: ThreadPoolExecutor) -> None:
        thread = threading.Thread(target=self._work_queue.get_nowait().run)
        thread.start()
        thread.join()
        raise RuntimeError("can't start new thread")

    with start_in_thread(save="") as server, Raw(server.port) as c:
        assert c("SET", "k", "v") == b"OK"
        with monkeypatch.context() as starved:
            starved.setattr(ThreadPoolExecutor, "_adjust_thread_count", no_thread)
            assert c("SAVE") == b"OK"
        disk = server.server.data.disk
        assert disk.store.offset == disk.offset
