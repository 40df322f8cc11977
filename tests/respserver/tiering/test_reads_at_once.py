"""Many clients that read from the object store at the same time do not hold the event loop."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from respserver.testing import RunningServer, start_in_thread
from respserver.tiering.historyreads import AT_ONCE, HistoryReads
from tests.respserver.tiering.test_freeing import COUNT, FREED, add, thread_options, wait_until_freed
from tests.wire.rawclient import Raw


class Turns:
    """Counts the turns of the event loop."""

    def __init__(self, running: RunningServer) -> None:
        self.now = 0
        self._loop = running._loop
        self._ended = False

    def __enter__(self) -> Turns:
        self._loop.call_soon_threadsafe(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True

    def _count(self) -> None:
        self.now += 1
        if not self._ended:
            self._loop.call_soon(self._count)


def test_a_turn_of_the_event_loop_begins_some_of_the_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, cache = tmp_path / "target", tmp_path / "data" / "tier-cache"
    begun: Counter[int] = Counter()
    begin = HistoryReads._begin_wait
    with start_in_thread(tmp_path / "data", **thread_options(target)) as running, ExitStack() as stack:
        first, *others = clients = [stack.enter_context(Raw(running.port)) for _ in range(5 * AT_ONCE)]
        entries = add(first, COUNT)
        wait_until_freed(first, FREED)
        for client in others:
            assert client("PING") == b"PONG"
        for path in cache.glob("*"):
            path.unlink()
        turns = stack.enter_context(Turns(running))

        def noted(self: HistoryReads, *args: Any) -> None:
            begun[turns.now] += 1
            begin(self, *args)

        monkeypatch.setattr(HistoryReads, "_begin_wait", noted)
        held, all_sent = threading.Event(), threading.Event()

        def hold() -> None:  # so that all commands are there in the next turn
            held.set()
            all_sent.wait(30)

        running._loop.call_soon_threadsafe(hold)
        assert held.wait(30)
        for client in clients:
            client.send("XRANGE", "a", "-", "9-0")
        all_sent.set()
        assert [client.read() for client in clients] == [entries[:9]] * len(clients)
    assert begun.total() > 2 * AT_ONCE
    assert max(begun.values()) <= AT_ONCE + 1  # the first one at once
