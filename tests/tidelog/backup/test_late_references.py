"""References to history objects that are logged while a single backup reads its copy."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from replication import formats
from respserver.testing import start_in_thread
from tests.waiting import eventually
from tests.wire.rawclient import Raw
from tidelog.backup.frames import COPY, DONE, PIECE
from tidelog.backup.source import QUEUED, BackupSource

LARGE = 3200  # values of 10 KB: more than the buffers between the server and a backup take


def test_references_that_are_logged_while_a_single_backup_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not need them. An abort of the connection would discard the end of the copy, which the buffers have."""
    plain = formats.needed
    monkeypatch.setattr(formats, "needed", lambda batch: formats.RECORDS if b"reference" in batch else plain(batch))
    with start_in_thread(tmp_path, tier_url=str(tmp_path), save="") as running, Raw(running.port) as client:
        client.pipeline(*[("SET", number, os.urandom(10_000)) for number in range(LARGE)])
        eventually(lambda: client("SAVE") == b"OK")
        with closing(BackupSource(f"redis://127.0.0.1:{running.port}")) as source:
            (feed,) = running.call(lambda: list(running.server.replicas._connections))
            assert source.take().kind == COPY
            assert client("SET", "refers", "reference") == b"OK"
            kinds = set[int]()

            def full() -> bool:
                """The server waits for the client: its buffer, those of the system, and the queue are full."""
                return source._frames._bytes > QUEUED and not feed._room.is_set()

            def ended() -> bool:
                return feed._task is not None and feed._task.done()

            while not ended():
                eventually(lambda: ended() or full())
                kinds.add(source.take().kind)
            assert kinds == {PIECE}
            while (frame := source.take()).kind == PIECE:
                pass
            assert frame.kind == DONE
            assert source.store_offset == source.facts.log_offset
            assert running.call(lambda: running.server.data.disk.retain) > 1 << 60, "nothing is retained for it"
        eventually(lambda: not running.call(lambda: list(running.server.replicas._connections)))
