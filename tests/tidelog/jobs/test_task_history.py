"""Batch jobs that backfill and recover from history objects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="no pyarrow here (pip install 'tidelog[spark]')")
pytest.importorskip("pyspark", reason="no pyspark here (pip install 'tidelog[spark]')")

from tests.tidelog.history.kit import copy_all, tiered  # noqa: E402 - after the skip
from tests.tidelog.jobs.statekit import count, fresh, send  # noqa: E402
from tests.tidelog.jobs.taskkit import Bench, changed  # noqa: E402
from tests.wire.rawclient import Raw  # noqa: E402
from tidelog.client.entries import StreamId  # noqa: E402
from tidelog.history import choice  # noqa: E402
from tidelog.jobs.errors import JobError  # noqa: E402
from tidelog.jobs.task.reading import TaskInput  # noqa: E402
from tidelog.testing import Server  # noqa: E402
from tidelog.transport.leader import LeaderConnection  # noqa: E402

USERS = [f"user{number % 7}" for number in range(145)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    fresh()
    (tmp_path / "target").mkdir()
    with tiered(tmp_path / "target") as running:
        yield running
    fresh()


def filled(server: Server, folder: Path, history: str, max_rows: int = 30) -> Bench:
    """A job whose input has 140 entries in two objects, and 5 others."""
    bench = Bench(server, folder, changed(count, options={"history": history}, max_rows=max_rows), 1)
    for part in (USERS[:90], USERS[90:]):
        send(bench, *part)
        copy_all(server)
    return bench


def users(bench: Bench) -> dict[bytes, int]:
    return {user: number for user, number in bench.state().items() if user.startswith(b"user")}


def expected() -> dict[bytes, int]:
    return {user.encode(): USERS.count(user) for user in set(USERS)}


def test_a_backfill_and_a_recovery(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = TaskInput._attempt
    afters: list[StreamId] = []

    def attempt(self: TaskInput, servers: LeaderConnection, after: StreamId, *rest: Any) -> Any:
        afters.append(after)
        return read(self, servers, after, *rest)

    monkeypatch.setattr(TaskInput, "_attempt", attempt)
    bench = filled(server, tmp_path / "a", "direct")
    with Raw(server.port) as client:
        entry = client("XRANGE", "clicks:0", "-", "+")[50]
        client("XDEL", "clicks:0", entry[0])
    bench.drain()
    gone = entry[1][entry[1].index(b"user") + 1]
    wanted = expected()
    wanted[gone] -= 1
    assert users(bench) == wanted
    rows = [marker.inputs["clicks"].rows for marker in bench.markers()]
    assert sum(rows) == 144
    assert max(rows) <= 30
    assert len(afters) == 1, "all but the last five entries are in objects"
    spans = [marker.inputs["clicks"] for marker in bench.markers()]
    assert [span.after for span in spans[1:]] == [span.end for span in spans[:-1]]
    bench.lose_state()
    (result,) = bench.tasks()
    assert result.recovered == len(rows)
    assert users(bench) == wanted


def test_a_damaged_object(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = filled(server, tmp_path / "a", "direct", max_rows=1000)
    newest = max((tmp_path / "target" / "objects").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    content = newest.read_bytes()
    newest.write_bytes(content[:30] + b"#" + content[31:])
    text = bench.failed("")  # it may be temporary
    assert f"{newest} is damaged" in text
    assert "history=server reads from the server instead" in text
    bench.use(changed(bench.job, options={}))
    monkeypatch.setattr(choice, "FEWEST", 1)
    bench.drain()
    assert users(bench) == expected()
    newest.unlink()
    bench.lose_state()
    bench.tasks()
    assert users(bench) == expected()


def test_an_invalid_option() -> None:
    with pytest.raises(JobError, match="history must be one of auto, direct, server: 'objects'"):
        changed(count, options={"history": "objects"})
