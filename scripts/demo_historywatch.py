"""Measures scripts/demo_history.py while it runs: CPU of the server and of the others, disk space, and progress."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from scripts.demo_output import say

EVERY: Final = 0.5  # seconds between two measurements
LINE: Final = 5.0  # seconds between two lines of progress, if the output is not a terminal


class Sample(NamedTuple):
    """CPU cores in use since the sample before it."""

    at: float  # seconds since the start
    server: float
    copier: float  # the server's child processes
    others: float  # this process and its other children: the loader, Spark, DuckDB


@dataclass
class Phase:
    """A part of the demo."""

    name: str
    rows: int
    began: float  # seconds since the start
    ended: float = 0.0  # 0: not yet
    server: float = 0.0  # CPU seconds of the server

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    @property
    def summary(self) -> str:
        return f"{self.seconds:.1f} s, {self.rows / self.seconds:,.0f} rows/s; the server used {self.server:.2f} CPU s"


class Watch(threading.Thread):
    """Measures every half second, and displays the progress of the current phase."""

    def __init__(self, pid: int, folder: Path) -> None:
        super().__init__(daemon=True)
        self.samples: list[Sample] = []
        self.phases: list[Phase] = []
        self.disk = 0  # most bytes that the folder has had
        self._server = psutil.Process(pid)
        self._folder = folder
        self._began = time.monotonic()
        self._used: dict[psutil.Process, float] = {}  # CPU seconds of each process at the last sample
        self._progress: Callable[[], str] | None = None
        self._shown = 0.0
        self._lock = threading.Lock()  # for _progress and the output
        self._ended = threading.Event()

    @contextmanager
    def phase(self, name: str, rows: int, progress: Callable[[], str]) -> Iterator[Phase]:
        """Measure a phase. ``progress`` is called in the thread."""
        phase = Phase(name, rows, self._now())
        before = _seconds(self._server)
        with self._lock:
            self._progress = progress
        try:
            yield phase
        finally:
            with self._lock:
                self._progress = None
                self._erase()
        phase.ended = self._now()
        phase.server = _seconds(self._server) - before
        self.phases.append(phase)

    def run(self) -> None:
        self._sample()
        self.samples.clear()  # it contains everything before the start
        while not self._ended.wait(EVERY):
            self._sample()
            with self._lock:
                if self._progress is not None:
                    self._show(self._progress())

    def close(self) -> None:
        self._ended.set()
        self.join()

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _sample(self) -> None:
        at, before = self._now(), self.samples[-1].at if self.samples else 0.0
        used: dict[psutil.Process, float] = {}
        parents: dict[int, int] = {}
        for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
            try:
                used[process], parents[process.pid] = _seconds(process), process.ppid()
            except psutil.NoSuchProcess:
                continue
        cores = [0.0, 0.0, 0.0]
        for process, seconds in used.items():
            pid, kind = process.pid, 2
            while pid in parents:
                if pid == self._server.pid:
                    kind = 0 if pid == process.pid else 1
                    break
                pid = parents[pid]
            cores[kind] += (seconds - self._used.get(process, 0.0)) / (at - before or 1.0)
        self._used = used
        self.samples.append(Sample(at, *cores))
        self.disk = max(self.disk, _size(self._folder))

    def _show(self, text: str) -> None:
        now = self._now()
        if sys.stdout.isatty():
            print(f"\r\x1b[K   {now:4.0f} s   {text}", end="", flush=True)
        elif now >= self._shown + LINE:
            self._shown = now
            say(f"{now:4.0f} s   {text}")

    @staticmethod
    def _erase() -> None:
        if sys.stdout.isatty():
            print("\r\x1b[K", end="", flush=True)


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _size(folder: Path) -> int:
    """Return the bytes that the files in a folder occupy, also files with holes."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
            except FileNotFoundError:  # it was removed meanwhile
                continue
    return total
