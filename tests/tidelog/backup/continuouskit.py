"""A process of ``tidelog backup --continuous`` for tests."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Self

from tests.replication.cluster import Node, wait_until
from tests.tidelog.backup.kit import start, url
from tidelog.backup import ranges
from tidelog.backup.ranges import RestorableRange
from tidelog.backup.targets import LocalTarget

#: Files of the log are merged after half a second instead of five minutes.
MERGE_SOON = (
    "from tidelog.backup import logmerge, merging; logmerge.LEVELS = (500, 2000, 8000); merging.EVERY = 0.1"
)


class Follower:
    """The process, which is stopped by SIGTERM at the end of the block. ``before``: Python code that it runs first."""

    def __init__(self, target: Path, node: Node, *options: object, place: str = "", before: str = "") -> None:
        self.target = target
        self.lines: list[str] = []
        self._killed = False
        words = ("backup", target, "--continuous", "--lag", 1, "--url", place or url(node))
        self.process = start(*words, *options, before=before)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.decode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._killed:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        status, errors = self._ended()
        if kind is None:
            assert (status, errors) == (0, "")

    def _ended(self) -> tuple[int, str]:
        assert self.process.stderr is not None
        status = self.process.wait(timeout=30)
        self._reader.join()
        errors = self.process.stderr.read().decode()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()
        return status, errors

    def kill(self) -> None:
        self.process.kill()
        self._ended()
        self._killed = True

    def said(self, text: str) -> bool:
        return any(text in line for line in self.lines)

    def has(self, node: Node) -> int:
        """Wait until the log up to the current end of a server is at the target; return that end."""
        end = node.offset
        wait_until(lambda: stored(self.target) >= end, f"the log up to {end} at the target: {self.lines}")
        return end


def found(target: Path) -> list[RestorableRange]:
    return ranges.ranges(LocalTarget(target))


def stored(target: Path) -> int:
    """Log offset up to which the newest log is at the target."""
    return max((each.end for each in found(target) if each.chunks), default=-1)


def log_files(target: Path) -> list[Path]:
    """The chunks of the logs, oldest first."""
    return [target / chunk.file for log in ranges.logs(LocalTarget(target)) for chunk in log.chunks]
