"""An engine process that can be hurt in each of its parts, and whose link can."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.replication.proxy import Flow, Proxy
from tests.tidelog.jobs.enginekit import ROOT
from tidelog.testing import Server, free_port

LEASE: Final = 3.0  # seconds
CONF: Final = ["--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC", "--conf",
               "spark.driver.memory=600m"]  # fmt: skip


class Publishing(Flow):
    """What goes up to the server. ``then`` happens at the next TPUBLISH, once.

    cut   its reply is lost, or one about that time
    hold  it stays on its way, as does all that comes behind it, until ``release``
    """

    def __init__(self, down: Flow) -> None:
        super().__init__()
        self.then = ""
        self.held = 0  # how often
        self._down = down

    def take(self, data: bytes) -> tuple[bytes, str]:
        if self.then and b"TPUBLISH" in data:
            then, self.then = self.then, ""
            if then == "cut":
                self._down.cut(after=0)
            else:
                self.held += 1
                self.hold()
                self.wait()
        return super().take(data)


class Engine:
    """``tidelog jobs engine``, which reaches the server through a proxy. Its state is in ``folder/state``."""

    def __init__(self, name: str, folder: Path, server: Server, state: Path, number: int) -> None:
        self.name, self.state = name, state
        self.proxy = Proxy(free_port(), server.port)
        self.proxy.up = self.publishing = Publishing(self.proxy.down)
        self.until = 0.0  # monotonic: it stands still until then; 0: it runs
        self._stopped: list[int] = []
        self.log_file = folder / f"{name}-{number}.log"
        command = [
            sys.executable, "-m", "tidelog.cli", "jobs", "engine", "--url", f"redis://127.0.0.1:{self.proxy.port}",
            "--master", "local[2]", "--state-dir", str(state), "--store", f"file://{folder}/store", "--name", name,
            "--lease", str(LEASE), "--path", str(folder), *CONF,
        ]  # fmt: skip
        with self.log_file.open("wb") as out:
            self.process = subprocess.Popen(
                command, cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=out, stderr=out
            )

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def children(self) -> dict[int, str]:
        """The processes that it has started, and theirs: their command lines by number. A JVM comes before workers."""
        parents: dict[int, list[int]] = {}
        for each in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                stat = (each / "stat").read_text().rpartition(")")[2].split()
                parents.setdefault(int(stat[1]), []).append(int(each.name))
        found, queue = {}, [self.process.pid]
        while queue:
            for child in parents.get(queue.pop(), []):
                with suppress(OSError):
                    found[child] = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                    queue.append(child)
        return found

    def of(self, what: str) -> list[int]:
        """Its ``jvm``; its Python ``worker`` processes, also what they are forked from; its ``maker`` of snapshots."""
        marks = {
            "jvm": "apache.spark.deploy", "worker": "-m tidelog.jobs.engine.daemon",
            "maker": "-m tidelog.jobs.snapshots",
        }  # fmt: skip
        return [pid for pid, command in self.children().items() if marks[what] in command]

    def kill(self) -> None:
        """With all that it started."""
        everybody = [self.process.pid, *self.children(), *self._stopped]
        for pid in everybody:
            send(pid, signal.SIGKILL)
        self.process.wait()
        self.proxy.close()

    def stop(self, seconds: float, whole: bool) -> None:
        """Let it stand still: the driver and its JVM, or the workers as well."""
        workers = set() if whole else {*self.of("worker"), *self.of("maker")}
        self._stopped = [pid for pid in (self.process.pid, *self.children()) if pid not in workers]
        for pid in self._stopped:
            send(pid, signal.SIGSTOP)
        self.until = time.monotonic() + seconds

    def hold(self, seconds: float) -> None:
        """From its next publish on, nothing of it gets to the server; in the end all does, and the publish is late."""
        self.publishing.then = "hold"
        self.until = time.monotonic() + seconds

    def go_on(self) -> None:
        for pid in reversed(self._stopped):
            send(pid, signal.SIGCONT)
        self._stopped, self.until = [], 0.0
        self.publishing.then = ""
        self.publishing.release()


def send(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
