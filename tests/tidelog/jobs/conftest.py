"""The processes that create snapshots end with the test that has started them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.waiting import eventually


@pytest.fixture(autouse=True)
def no_snapshot_process_is_left(tmp_path: Path) -> Iterator[None]:
    """They outlive engines, have a low priority, and would change the records of the next test's job: tests share a
    server, and their jobs have the same names."""
    yield
    for pid in snapshot_processes(tmp_path):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    eventually(lambda: not snapshot_processes(tmp_path))


def snapshot_processes(folder: Path) -> list[int]:
    """Those whose lock is in the folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if b"tidelog.jobs.snapshots" in (process / "cmdline").read_bytes():
                files = [os.readlink(file) for file in (process / "fd").iterdir()]
                if any(file.startswith(f"{folder}/") for file in files):
                    found.append(int(process.name))
    return found
