"""The load of ``scale``: raw sockets, and commands that are made before the clock runs."""

from __future__ import annotations

import os
import random
import resource
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import quantiles
from types import TracebackType
from typing import Any

import click
import hiredis

from benchmarks.entries import SENSOR, pack
from benchmarks.load import redis_benchmark

ROWS = 1000  # entries of a TMAPPEND
KINDS = 200  # different TMAPPENDs of a fill
AHEAD = 8  # commands in flight


def percentile(values: Sequence[float], percent: int) -> float:
    return quantiles(values, n=100, method="inclusive")[percent - 1]


class Line:
    """One blocking connection. Errors that the server answers are raised as click.ClickException."""

    def __init__(self, port: int) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), timeout=600)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader()

    def __enter__(self) -> Line:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._sock.close()

    def _reply(self) -> Any:
        while (reply := self._reader.gets()) is False:
            data = self._sock.recv(1 << 18)
            if not data:
                raise click.ClickException("the server closed the connection")
            self._reader.feed(data)
        if isinstance(reply, hiredis.ReplyError):
            raise click.ClickException(f"the server answered {reply}")
        return reply

    def ask(self, *words: bytes | str | int) -> Any:
        self._sock.sendall(pack(*words))
        return self._reply()

    def settle(self) -> None:
        """Wait for a checkpoint in progress, then SAVE: SAVE would be refused before."""
        while b"rdb_bgsave_in_progress:1" in self.ask("INFO", "persistence"):
            time.sleep(0.01)
        self.ask("SAVE")

    def timed(self, commands: Sequence[bytes]) -> list[float]:
        """Seconds from each command to its reply; the next one leaves only then."""
        found = []
        send, clock = self._sock.sendall, time.perf_counter
        for command in commands:
            began = clock()
            send(command)
            self._reply()
            found.append(clock() - began)
        return found

    def pipelined(self, commands: Sequence[bytes], at_once: int) -> Iterator[int]:
        """Send all of them, ``at_once`` in one write; yields how many replies have come since the last time."""
        sent = answered = 0
        while answered < len(commands):
            while sent < len(commands) and sent - answered < 2 * at_once:
                self._sock.sendall(b"".join(commands[sent : sent + at_once]))
                sent = min(sent + at_once, len(commands))
            some = min(at_once, len(commands) - answered)
            for _ in range(some):
                self._reply()
            answered += some
            yield some


def push(port: int, commands: Sequence[bytes], label: str, at_once: int = 200) -> float:
    """All of them through one connection, with a bar; commands a second."""
    with Line(port) as line, click.progressbar(length=len(commands), label=f"  {label}", file=sys.stderr) as bar:
        began = time.perf_counter()
        for some in line.pipelined(commands, at_once):
            bar.update(some)
        return len(commands) / (time.perf_counter() - began)


def sensor_values(rng: random.Random) -> tuple[str, str]:
    return f"{rng.randrange(100):02}", f"{20 + rng.randrange(200) / 10:.1f}"


def fill(port: int, key: str, count: int, name: str) -> float:
    """``count`` sensor entries (a multiple of a thousand) by TMAPPEND; entries a second."""
    rng = random.Random(1)
    made = []
    for _ in range(KINDS):
        values = [value for _ in range(ROWS) for value in sensor_values(rng)]
        made.append(pack("TMAPPEND", key, "FIELDS", 2, "sensor", "temperature", "VALUES", *values))
    commands = [made[i % KINDS] for i in range(count // ROWS)]
    return push(port, commands, f"filling {name}", AHEAD) * ROWS


def fill_redis(port: int, key: str, count: int) -> float:
    """The same entries by XADD; entries a second."""
    rng = random.Random(1)
    made = []
    for _ in range(KINDS * 5):
        sensor, temperature = sensor_values(rng)
        made.append(pack("XADD", key, "*", "sensor", sensor, "temperature", temperature))
    return push(port, [made[i % len(made)] for i in range(count)], "filling redis")


def append_rate(port: int, key: str, requests: int) -> float:
    """Appends a second: 50 clients, 16 at once."""
    return redis_benchmark(port, ["TAPPEND", key, *SENSOR], requests, 50, 16)


class Pings:
    """A client that PINGs all the time, in a thread: what others wait while something happens."""

    PAUSE = 0.0005  # seconds between two

    def __init__(self, port: int) -> None:
        self._line = Line(port)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.seconds: list[float] = []

    def _run(self) -> None:
        ping = [pack("PING")]
        while not self._over.is_set():
            self.seconds += self._line.timed(ping)
            time.sleep(self.PAUSE)

    def __enter__(self) -> Pings:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self._line.close()

    @property
    def longest(self) -> float:
        """Seconds."""
        return max(self.seconds)


def checkpoint(port: int) -> tuple[float, float]:
    """A checkpoint in the background: the longest PING meanwhile and its duration, both in seconds."""
    with Line(port) as line, Pings(port) as pings:
        time.sleep(0.05)  # the connections' own beginning
        pings.seconds.clear()
        while b"rdb_bgsave_in_progress:1" in line.ask("INFO", "persistence"):
            time.sleep(0.01)
        began = time.perf_counter()
        line.ask("BGSAVE")
        while b"rdb_bgsave_in_progress:1" in line.ask("INFO", "persistence"):
            time.sleep(0.01)
        took = time.perf_counter() - began
        time.sleep(0.1)  # what comes after it, too
    return pings.longest, took


def cache_files(directory: Path) -> None:
    """Bring files into the system's cache."""
    for path in directory.iterdir():
        with path.open("rb") as file:
            while file.read(1 << 20):
                pass


def drop_files(directory: Path) -> None:
    """Take files out of the system's cache, but for pages that a process has mapped and used."""
    for path in directory.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def allow_files(count: int) -> None:
    """Let this process, and servers that it starts, open so many files. Raises click.ClickException."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, max(hard, count)))
    except (ValueError, OSError) as error:
        raise click.ClickException(f"{count} open files are needed and {hard} allowed: raise 'ulimit -Hn'") from error


def idle_connections(port: int, count: int) -> list[socket.socket]:
    """Connections that have sent one PING and say nothing more."""
    made: list[socket.socket] = []
    with click.progressbar(range(count), label="  connecting", file=sys.stderr) as bar:
        for _ in bar:
            sock = socket.create_connection(("127.0.0.1", port), timeout=60)
            sock.sendall(b"*1\r\n$4\r\nPING\r\n")
            if not sock.recv(64).startswith(b"+PONG"):
                raise click.ClickException(f"the server took {len(made)} connections and no more")
            made.append(sock)
    return made
