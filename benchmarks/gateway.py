"""The HTTP gateway: ``python -m benchmarks.gateway [--idle N] [--readers N] [--rounds N]``.

The server and the gateway run in processes of their own. Measures the memory of each of N idle event streams, the CPU
time that all of them take, the connections of the gateway to the server, and the time from an append to the event at
each of N readers. Readers are raw sockets in this process, which does not parse events.
"""

from __future__ import annotations

import argparse
import os
import resource
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.cputime import Meter
from benchmarks.delays import resident
from tidelog import Client
from tidelog.testing import running_server

QUIET = 20.0  # s for which idle readers are observed; a comment is sent every 15 s
PATIENCE = 60.0  # s
STEP = 100  # connections that are opened at the same time


@contextmanager
def gateway(url: str, readers: int) -> Iterator[tuple[int, tuple[str, int]]]:
    """Run a gateway; yields its PID and its address."""
    command = [sys.executable, "-m", "tidelog.cli", "gateway", "--url", url, "--listen", "127.0.0.1:0"]
    command += ["--max-readers", str(readers + 100), "--max-readers-per-user", str(readers + 100)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        place = urlsplit(process.stdout.readline().split()[-1])
        try:
            yield process.pid, (place.hostname or "", place.port or 0)
        finally:
            process.terminate()


class EventReaders:
    """Open event streams of one stream."""

    def __init__(self, place: tuple[str, int], count: int) -> None:
        self.sockets: list[socket.socket] = []
        self._epoll = select.epoll()
        request = b"GET /v1/streams/s HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
        for begin in range(0, count, STEP):
            opened = [socket.create_connection(place, PATIENCE) for _ in range(min(STEP, count - begin))]
            for each in opened:
                each.sendall(request)
            for each in opened:
                data = b""
                while b"\nid: " not in data:  # the position of the client: the event stream is open
                    part = each.recv(65536)
                    assert part, data
                    data += part
                each.setblocking(False)
                self._epoll.register(each, select.EPOLLIN)
            self.sockets += opened

    def latencies(self, client: Client, rounds: int) -> Iterator[float]:
        """Append entries, one after the other; yields the seconds until each reader had each entry."""
        for number in range(rounds):
            self._drain()
            end = b'"n":"%d"' % number
            began = time.perf_counter()
            client.tappend("s", {"n": number})
            left = len(self.sockets)
            while left:
                ready = self._epoll.poll(PATIENCE)
                assert ready, f"{left} readers received nothing"
                for descriptor, _ in ready:
                    if end in os.read(descriptor, 65536):
                        yield time.perf_counter() - began
                        left -= 1

    def _drain(self) -> None:
        while ready := self._epoll.poll(0):
            for descriptor, _ in ready:
                os.read(descriptor, 65536)

    def close(self) -> None:
        self._epoll.close()
        for each in self.sockets:
            each.close()


def connections(client: Client) -> int:
    return sum(each["name"] == "tidelog-gateway" for each in client.redis.client_list())


def idle(count: int) -> None:
    with running_server() as server, server.client() as client, gateway(server.url, count) as (pid, place):
        first = EventReaders(place, 1)
        before = resident(pid)
        began = time.perf_counter()
        readers = EventReaders(place, count)
        took = time.perf_counter() - began
        time.sleep(3)
        held = resident(pid) - before
        meter = Meter(pid)
        time.sleep(QUIET)
        cpu = meter.spent().whole
        print(f"{count} idle readers: {held / count / 1024:.1f} KiB each, opened in {took:.1f} s")
        print(f"  gateway: {cpu / QUIET:.1%} of a core; {connections(client)} connections to the server")
        readers.close()
        first.close()


def delivery(count: int, rounds: int) -> None:
    with running_server() as server, server.client() as client, gateway(server.url, count) as (pid, place):
        readers = EventReaders(place, count)
        list(readers.latencies(client, 5))
        meter = Meter(pid)
        cuts = quantiles(readers.latencies(client, rounds), n=100)
        cpu = meter.spent().whole / rounds / count
        print(f"an entry to {count} readers: p50 {cuts[49] * 1000:.1f} ms, p99 {cuts[98] * 1000:.1f} ms")
        print(f"  gateway: {cpu * 1e6:.1f} us of CPU time for each delivery")
        readers.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--idle", type=int, default=10_000)
    parser.add_argument("--readers", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=50)
    given = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if given.idle:
        idle(given.idle)
    if given.readers:
        delivery(given.readers, given.rounds)


if __name__ == "__main__":
    main()
