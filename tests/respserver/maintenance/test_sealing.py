"""Full nodes are compressed in a thread, and replaced on the event loop."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import zstandard

from respserver.testing import HandClock, RunningServer, start_in_thread
from storage.nodes.draft import Draft, ListDraft
from tests.waiting import eventually
from tests.wire.rawclient import Raw

VALUE = "x" * 3000
NODE = 25  # such entries fill a node


def append(c: Raw, key: str, count: int) -> None:
    for number in range(count):
        assert isinstance(c("TAPPEND", key, "f", f"{number}{VALUE}"), bytes)


def seal_all(server: RunningServer) -> None:
    """Begin jobs until no draft waits. One may be in progress, which was begun before the last drafts."""

    def none_left() -> bool:
        server.server.sealing.begin()
        return not server.server.data.ks.pool.drafts

    eventually(lambda: server.call(none_left))


def lengths(c: Raw, key: str) -> list[int]:
    reply = c("TRANGE", key, "-", "+")
    assert isinstance(reply, list)
    return [len(entry[2]) for entry in reply]


def test_a_thread_compresses_and_memory_shrinks() -> None:
    with start_in_thread(save="", clock=HandClock()) as server, Raw(server.port) as c:
        pool = server.server.data.ks.pool
        append(c, "s", NODE)
        drafted = server.call(lambda: pool.drafted)
        assert drafted > 64 * 1024
        before = server.call(server.server.memory.used)
        assert before > drafted
        server.advance(100)
        eventually(lambda: not server.call(lambda: pool.drafts))
        assert server.call(server.server.memory.used) < before - drafted // 2
        assert lengths(c, "s") == [len(f"{number}{VALUE}") for number in range(NODE)]


@pytest.mark.interpreted
def test_the_event_loop_never_compresses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[int] = set()
    seal = Draft.seal

    def recorded(self: Draft, compressor: zstandard.ZstdCompressor) -> bytes:
        threads.add(threading.get_ident())
        return seal(self, compressor)

    monkeypatch.setattr(Draft, "seal", recorded)
    with start_in_thread(save="") as server, Raw(server.port) as c:
        append(c, "s", 2 * NODE)
        eventually(lambda: threads and not server.call(lambda: server.server.data.ks.pool.drafts))
        assert server.call(threading.get_ident) not in threads


def test_changes_while_the_thread_compresses() -> None:
    """Streams that are deleted, emptied, and flushed meanwhile; then appends to the same keys."""
    options = {"save": "", "enable_debug_command": "yes"}
    with start_in_thread(clock=HandClock(), **options) as server, Raw(server.port) as c:
        pool = server.server.data.ks.pool
        for key in ("deleted", "emptied", "kept"):
            append(c, key, NODE)

        def begin_and_change() -> None:
            server.server.sealing.begin()
            assert len(pool.drafts) == 3

        server.call(begin_and_change)
        assert c("DEL", "deleted") == 1
        assert c("TAPPEV", "emptied", "COUNT", "0") == NODE
        eventually(lambda: not server.call(lambda: pool.drafts))
        server.call(server.server.sealing.begin)
        assert lengths(c, "kept") == [len(f"{number}{VALUE}") for number in range(NODE)]
        append(c, "kept", NODE)
        server.call(server.server.sealing.begin)
        assert c("FLUSHALL") == b"OK"
        append(c, "kept", NODE)
        seal_all(server)
        assert lengths(c, "kept") == [len(f"{number}{VALUE}") for number in range(NODE)]
        assert c("DEBUG", "RELOAD") == b"OK"
        assert lengths(c, "kept") == [len(f"{number}{VALUE}") for number in range(NODE)]


@pytest.mark.interpreted
def test_an_error_in_the_thread_is_logged_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    def fail(self: Draft, compressor: zstandard.ZstdCompressor) -> bytes:
        raise MemoryError

    with start_in_thread(save="", clock=HandClock()) as server, Raw(server.port) as c:
        pool = server.server.data.ks.pool
        append(c, "s", NODE)
        with monkeypatch.context() as failing:
            failing.setattr(ListDraft, "_seal", fail)
            server.advance(100)
            eventually(lambda: not server.call(lambda: server.server.sealing._job))
        assert server.call(lambda: len(pool.drafts)) == 1
        server.advance(2000)
        eventually(lambda: not server.call(lambda: pool.drafts))
        assert lengths(c, "s") == [len(f"{number}{VALUE}") for number in range(NODE)]
    assert "Compressing nodes failed, next attempt in a second: MemoryError()" in capfd.readouterr().out


def test_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(self: ThreadPoolExecutor) -> None:
        raise RuntimeError("can't start new thread")

    with start_in_thread(save="", clock=HandClock()) as server, Raw(server.port) as c:
        pool = server.server.data.ks.pool
        append(c, "s", NODE)
        with monkeypatch.context() as starved:
            starved.setattr(ThreadPoolExecutor, "_adjust_thread_count", no_thread)
            server.call(server.server.sealing.begin)
        assert server.call(lambda: len(pool.drafts)) == 1
        assert lengths(c, "s") == [len(f"{number}{VALUE}") for number in range(NODE)]
        server.advance(2000)
        eventually(lambda: not server.call(lambda: pool.drafts))


def test_a_small_maxmemory_limits_drafts() -> None:
    with start_in_thread(save="", clock=HandClock(), maxmemory="1mb") as server, Raw(server.port) as c:
        pool = server.server.data.ks.pool
        assert server.call(lambda: pool.most_drafted) == 65536
        append(c, "s", 4 * NODE)
        assert server.call(lambda: len(pool.drafts)) == 1
        assert c("CONFIG", "SET", "maxmemory", "0") == b"OK"
        append(c, "s", 2 * NODE)
        assert server.call(lambda: len(pool.drafts)) > 1


def test_a_policy_with_bytes_applies_to_nodes_that_were_compressed_after_the_last_append() -> None:
    with start_in_thread(save="", clock=HandClock()) as server, Raw(server.port) as c:
        assert c("TCFG", "s", "RETAIN", "BYTES", "40000") == 0
        for number in range(2 * NODE):
            c("TAPPEND", "s", "f", random.Random(number).randbytes(1500).hex())  # a full node takes 33 KB
        server.advance(1)  # the policy is checked
        assert c("TLEN", "s") == 2 * NODE
        seal_all(server)
        assert c("TLEN", "s") == 2 * NODE
        server.advance(1000)
        eventually(lambda: c("TLEN", "s") == 2 * NODE - 22)
