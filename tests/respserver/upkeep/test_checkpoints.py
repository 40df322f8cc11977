"""Checkpoints whose thread can't be started."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from persistence.store import Store
from respserver.testing import start_in_thread
from tests.wire.rawclient import Raw


def test_a_checkpoint_that_got_no_thread_is_never_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The executor keeps its work: without care it would be written later, after a newer one."""
    written: list[int] = []
    write = Store.write

    def recorded(self: Store, capture: object, offset: int) -> None:
        written.append(offset)
        write(self, capture, offset)  # type: ignore[arg-type]

    def no_thread(self: ThreadPoolExecutor) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Store, "write", recorded)
    with start_in_thread(save="") as server, Raw(server.port) as c:
        assert c("SET", "k", "old") == b"OK"
        with monkeypatch.context() as starved:
            starved.setattr(ThreadPoolExecutor, "_adjust_thread_count", no_thread)
            assert c("SAVE") == "ERR the checkpoint failed: can't start new thread"
        assert written == []
        assert c("SET", "k", "new") == b"OK"
        assert c("SAVE") == b"OK"
        assert written == [server.server.data.disk.offset]
