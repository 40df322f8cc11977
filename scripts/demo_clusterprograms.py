"""The programs of scripts/demo_cluster.py: a cluster on this machine, its workers, and a thread that sends clicks.

All processes have sessions of their own, so Ctrl-C does not reach them: the demo stops the programs before the cluster.
They end if the demo does, even by SIGKILL (``attached``).
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from examples.jobs_clicks import Click
from scripts.demo_output import promise, say
from tidelog.cluster import view
from tidelog.operating import attached
from tidelog.testing import free_port
from tidelog.topics import Topic
from tidelog.transport.access import Access
from tidelog.transport.slots import slot_of

ROOT: Final = Path(__file__).parent.parent
CLI: Final = (sys.executable, "-P", "-m", "tidelog.cli")
ATTACHED: Final = (sys.executable, "-P", attached.__file__, "tidelog.cli")
READY: Final = "Press Ctrl-C to stop."
ATTEMPTS: Final = 5  # to find two free ports
BATCH: Final = 50  # clicks per send
STOP: Final = 60.0  # seconds that a program has to stop
REPEAT: Final = 60.0  # seconds for which a command that moves slots is repeated


@dataclass
class Move:
    """A command that moves slots."""

    words: tuple[str, ...]
    began: float = 0.0  # seconds since 1970
    ended: float = 0.0  # 0: not yet
    sent: int = 0  # clicks sent meanwhile
    longest: float = 0.0  # seconds of the longest send meanwhile
    status: int = 0  # of the command
    output: list[str] = field(default_factory=list)

    @property
    def command(self) -> str:
        return f"tidelog {' '.join(self.words)}"


class Cluster:
    """A cluster of two groups of one server each, run by ``tidelog cluster up``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for _ in range(ATTEMPTS):
            port = free_port()
            self.url = f"redis://127.0.0.1:{port},127.0.0.1:{port + 1}?socket_timeout=20"
            words = ("cluster", "up", "--dir", str(folder), "--groups", "2", "--port", str(port))
            self._process = start(words, subprocess.PIPE)
            lines = []
            for line in self._output:
                lines.append(line.decode(errors="replace").rstrip())
                if READY in lines[-1]:
                    say(f"$ tidelog {' '.join(words)}")
                    for each in lines[:-1]:
                        say(f"  {each}")
                    return
            self.close()
        promise(False, f"tidelog cluster up starts a cluster; it printed: {' '.join(lines)}")

    @property
    def _output(self) -> Any:
        assert self._process.stdout is not None
        return self._process.stdout

    def run(self, move: Move) -> None:
        """Run a command. It is repeated if a busy machine does not complete a move within ``move-pause``."""
        where = ("--dir", str(self.folder)) if move.words[0] == "cluster" else ("--url", self.url)
        end = time.monotonic() + REPEAT
        while True:
            done = subprocess.run(
                [*CLI, *move.words, *where], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, check=False, start_new_session=True,
            )  # fmt: skip
            move.output += done.stdout.splitlines()
            move.status = done.returncode
            if not move.status or time.monotonic() > end:
                return

    def owners(self, topic: str, partitions: int) -> tuple[str, ...]:
        """Return the group of each partition of a topic. Raises ClusterError."""
        seen = view.read_map(Access.of(self.url))
        return tuple(seen.owners[slot_of(f"{topic}:{at}")] for at in range(partitions))

    def close(self) -> None:
        stop(self._process)
        self._output.close()


@contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    cluster = Cluster(folder)
    try:
        yield cluster
    finally:
        cluster.close()


@contextmanager
def running(log: Path, *words: str) -> Iterator[None]:
    """Run a program of tidelog. Its output goes to a file."""
    with log.open("wb") as output:
        process = start(words, output)
        try:
            yield
        finally:
            stop(process)


def start(words: Sequence[str], output: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*ATTACHED, *words], stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, cwd=ROOT,
    )  # fmt: skip


def stop(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM, and SIGKILL after STOP seconds."""
    process.terminate()
    try:
        process.wait(STOP)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    assert process.stdin is not None
    process.stdin.close()


class Sender(threading.Thread):
    """Sends all clicks evenly over a time, exactly once. The last quarter waits until the moves have ended.

    ``first`` sends the first BATCH, before the thread starts.
    """

    def __init__(self, topic: Topic[Click], rows: Sequence[Click], seconds: float) -> None:
        super().__init__(daemon=True)
        self.sent = 0
        self.longest = 0.0  # seconds of the longest send; it can be set to 0
        self.moved = threading.Event()
        self.error = ""
        self._topic = topic
        self._rows = rows
        self._producer = topic.sync.producer("demo")
        self._pause = seconds * BATCH / len(rows)
        self._ended = threading.Event()

    def first(self) -> None:
        self._send(0)

    def run(self) -> None:
        try:
            for at in range(BATCH, len(self._rows), BATCH):
                if 4 * self.sent >= 3 * len(self._rows):
                    self.moved.wait()
                began = time.monotonic()
                self._send(at)
                took = time.monotonic() - began
                self.longest = max(self.longest, took)
                if self._ended.wait(max(0.0, self._pause - took)):
                    return
        except Exception as error:  # noqa: BLE001 - the main thread reports it
            self.error = repr(error)
        finally:
            self._topic.close_sync()

    def _send(self, at: int) -> None:
        batch = self._rows[at : at + BATCH]
        self._producer.send_many(batch, 1 + at // BATCH)
        self.sent += len(batch)

    def close(self) -> None:
        self._ended.set()
        self.moved.set()
        if self.is_alive():
            self.join()
