"""The processes of members: one for each file, and found by the next supervisor."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import eventually
from tidelog.cluster import memberprogram, processes
from tidelog.cluster.errors import ClusterError
from tidelog.cluster.processes import RunningProcess


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[RunningProcess]:
    """A process of the file ``process`` that waits."""
    (tmp_path / "waits.py").write_text("import signal; print('waits', flush=True); signal.pause()")
    process = start(tmp_path)
    eventually(lambda: (tmp_path / "log").read_text() == "waits\n")
    yield process
    process.send(signal.SIGKILL)
    eventually(lambda: process.status is not None)
    process.close()


def start(directory: Path) -> RunningProcess:
    return processes.start(["waits"], directory / "process", directory / "log", {"PYTHONPATH": str(directory)})


def test_a_process_is_found_and_ends(tmp_path: Path, waiting: RunningProcess) -> None:
    found = processes.find(tmp_path / "process")
    assert found is not None
    assert (found.pid, found.is_child, found.status) == (waiting.pid, False, None)
    os.kill(found.pid, signal.SIGSTOP)  # it continues when it gets a signal
    found.send(signal.SIGTERM)

    async def ended() -> None:
        async with asyncio.timeout(10):
            await found.ended()
            await waiting.ended()

    asyncio.run(ended())
    found.close()
    assert waiting.status == -signal.SIGTERM
    assert processes.find(tmp_path / "process") is None


def test_a_second_process_ends(tmp_path: Path, waiting: RunningProcess) -> None:
    second = start(tmp_path)
    eventually(lambda: second.status is not None)
    second.close()
    assert second.status == memberprogram.TAKEN
    assert "another process runs this member" in (tmp_path / "log").read_text()
    found = processes.find(tmp_path / "process")
    assert found is not None
    assert found.pid == waiting.pid
    found.close()


def test_no_process(tmp_path: Path) -> None:
    assert processes.find(tmp_path / "missing") is None
    for content in ("", "garbage", f"{os.getpid()} {memberprogram.start_time(os.getpid())}\n"):
        (tmp_path / "process").write_text(content)  # not locked: of a process that has ended
        assert processes.find(tmp_path / "process") is None


@pytest.mark.parametrize("content", ["", "garbage\n", "1\n", "OURS 17\n", "999999999999 1\n"])
def test_a_lock_of_an_unknown_process(tmp_path: Path, content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ID may be used by another process since: it gets no signal."""
    monkeypatch.setattr(processes, "PATIENCE", 0.02)
    with (tmp_path / "process").open("w") as file:
        file.write(content.replace("OURS", str(os.getpid())))
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ClusterError, match="locked by a process that it does not name"):
            processes.find(tmp_path / "process")


def test_the_program_needs_only_python(tmp_path: Path) -> None:
    """A member would otherwise have the memory of the whole package."""
    (tmp_path / "loaded.py").write_text(
        "import sys; print(sorted(name for name in sys.modules if name.startswith('tidelog')))"
    )
    process = processes.start(["loaded"], tmp_path / "process", tmp_path / "log", {"PYTHONPATH": str(tmp_path)})
    eventually(lambda: process.status is not None)
    process.close()
    assert (tmp_path / "log").read_text() == "[]\n"
