"""The servers under measurement, as processes on free ports with empty directories.

Rule 1: servers run on the first core, the load on the last; where there is one core only, nothing is pinned. With
``--unpinned``, servers may use the first two cores. On a machine with two cores, the load shares the second one.
Rule 2: a server is started with an environment and a folder of its own, so another installation (``--tidelog``) never
imports what is measured here by accident.
Rule 3: a server ends together with the benchmark, however that ends. It is started by its main thread: the kernel ends
it together with the thread that started it.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import redis

from benchmarks import measured

PATIENCE = 600.0  # seconds until a server must have answered


class Installation(NamedTuple):
    """A server that can be started."""

    name: str  # of its column
    command: tuple[str, ...]
    redis: bool = False  # it speaks Redis's commands, not tidelog's
    ours: bool = False  # it imports the tidelog that is measured (``measured``); no other installation may


#: Starts a program that gets SIGKILL when this process ends; 1 ms. Linux only.
TIED = ("setpriv", "--pdeathsig", "KILL", "--") if shutil.which("setpriv") else ()
OURS = (sys.executable, "-P", "-m", "_tidelog_server")
THIS = Installation("tidelog", OURS, ours=True)


def installations(
    tidelog: str | None = None, also: Sequence[tuple[str, str]] = (), peers: Sequence[tuple[str, str]] = (),
    peer: bool = True,
) -> list[Installation]:  # fmt: skip
    """Our tidelog (or the command ``tidelog``), those of ``also``, and the peers: by default the redis-server here."""
    made = [Installation("tidelog", tuple(shlex.split(tidelog))) if tidelog else THIS]
    made += [Installation(name, tuple(shlex.split(command))) for name, command in also]
    if not peers and (binary := shutil.which("redis-server")):
        peers = [("redis", shlex.quote(binary))]
    if peer:
        made += [Installation(name, tuple(shlex.split(command)), redis=True) for name, command in peers]
    return made


def environment(ours: bool) -> dict[str, str]:
    """A server's environment. Bytecode is written, so that only the first start has to make it."""
    made = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")}
    return made | {"PYTHONPATH": measured.PYTHONPATH} if ours else made


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Peer:
    """A server with a directory of its own, running between ``start`` and ``stop``."""

    def __init__(
        self, name: str, command: Sequence[str], directory: Path, fsync: str, core: int | None,
        redis: bool | None = None, ours: bool = True, cores: frozenset[int] = frozenset(),
    ) -> None:  # fmt: skip
        """``core``: where the server runs; None: anywhere, or on ``cores`` if there are any."""
        self.name = name
        self.ours = ours
        self.redis = name == "redis" if redis is None else redis
        self.x = self.redis  # whether it is asked with Redis's stream commands, XADD for TAPPEND
        self.command = list(command)
        self.directory = directory
        self.fsync = fsync
        self.cores = cores if core is None else frozenset({core})
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *more: str) -> float:
        """Start and wait for the first reply; returns the seconds that took."""
        options = ["--port", str(self.port), "--dir", str(self.directory), "--appendfsync", self.fsync, "--save", ""]
        if self.redis:
            options += ["--appendonly", "yes"]
        began = time.perf_counter()
        self.process = subprocess.Popen(
            [*TIED, *self.command, *options, *more], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            cwd=self.directory, env=environment(self.ours),
        )  # fmt: skip
        if self.cores:
            os.sched_setaffinity(self.process.pid, self.cores)
        while time.perf_counter() - began < PATIENCE:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), PATIENCE) as sock:
                sock.sendall(b"PING\r\n")
                if sock.recv(64).startswith(b"+PONG"):
                    return time.perf_counter() - began
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} did not start: exit code {self.process.returncode}")
            time.sleep(0.002)
        raise RuntimeError(f"{self.name} did not answer within {PATIENCE:.0f} seconds")

    def stop(self) -> None:
        """Stop as an operator does: what the server writes on its way out is written."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(120)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """Stop by SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, socket_timeout=PATIENCE)

    def connect(self) -> socket.socket:
        """A raw connection that sends at once."""
        sock = socket.create_connection(("127.0.0.1", self.port), PATIENCE)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def settle(self) -> None:
        """Bring the data into the form that it has after minutes of a server's life: stored, the log rewritten."""
        with self.client() as client:
            if not self.redis:
                while int(client.info("persistence")["rdb_bgsave_in_progress"]):  # SAVE would be refused
                    time.sleep(0.02)
                client.execute_command("SAVE")
                return
            self._rewritten(client)
            client.execute_command("BGREWRITEAOF")
            self._rewritten(client)

    def _rewritten(self, client: redis.Redis) -> None:
        while any(int(client.info("persistence")[f"aof_rewrite_{word}"]) for word in ("in_progress", "scheduled")):
            time.sleep(0.02)

    def written(self) -> None:
        """Wait until a SIGKILL would lose nothing: Redis with everysec delays writes while a sync is in progress."""
        if self.redis:
            with self.client() as client:
                while int(client.info("persistence")["aof_buffer_length"]):
                    time.sleep(0.02)

    def memory(self) -> int:
        """Bytes of memory of its own that the process takes (anonymous pages)."""
        assert self.process is not None
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
        return 0

    def cpu_seconds(self) -> float:
        """Seconds that all threads of the process have had a core."""
        assert self.process is not None
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9

    def disk(self) -> int:
        """Bytes that the files in the directory occupy on disk."""
        return sum(path.stat().st_blocks * 512 for path in self.directory.rglob("*") if path.is_file())


@contextlib.contextmanager
def peers_of(installed: Sequence[Installation], fsync: str, unpinned: bool = False) -> Iterator[list[Peer]]:
    """The servers (not started), pinned to the first core where there are several; gone with their data at the end.

    ``unpinned``: they may use two cores.
    """
    core = min(CORES) if len(CORES) > 1 and not unpinned else None
    cores = frozenset(sorted(CORES)[:2]) if unpinned else frozenset[int]()
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as top:
        made = []
        for installation in installed:
            directory = Path(top) / installation.name
            directory.mkdir()
            name, command, is_redis, ours = installation
            made.append(Peer(name, command, directory, fsync, core, is_redis, ours, cores))
        try:
            yield made
        finally:
            for peer in made:
                if peer.process is not None:
                    peer.kill()  # its data is of no use, and a redis-server that rewrites its AOF refuses to stop


CORES = frozenset(os.sched_getaffinity(0))  # before anything is pinned


def on_load_core() -> None:
    """Keep this process (the load) off the servers' core."""
    if len(CORES) > 1:
        os.sched_setaffinity(0, {max(CORES)})
