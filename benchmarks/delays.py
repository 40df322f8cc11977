"""Delayed entries: ``python -m benchmarks.delays [--entries N] [--seconds S] [--rate N] [--backlog N]``.

Measures, on a server in its own process: the memory of N delayed entries, and the time of a restart with them; how long
a PING takes while many entries per second are due, with delays in order of arrival and in random order; and how fast
entries of 1 KB that are due together are delivered in random order, with a small cache. A client that sends no other
commands measures each PING. The output shows the limits of 1,000,000 entries and of 10,000/s.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import quantiles

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import redis

from tidelog.testing import Server, running_server

PIPELINE = 2000  # calls
RATE = 10_000  # entries due per second, unless the options say otherwise
BACKLOG_CACHE = "1mb"
HOUR = 3_600_000
LEAD_MS = 500  # for each 1000 entries that are added before the first is due, and once
MEMORY_LIMIT = 64  # bytes for each entry, which are MB for a million
PING_LIMIT = 2.0  # ms, p99
TRIMMED = 2.0  # seconds after which a server has returned the memory that a checkpoint has freed


def resident(pid: int) -> int:
    """Return the resident memory of a process in bytes, without pages of files."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("no RssAnon")


def save(client: redis.Redis) -> None:
    """SAVE, after a checkpoint in progress, during which it would be refused."""
    while int(client.info("persistence")["rdb_bgsave_in_progress"]):
        time.sleep(0.02)
    client.execute_command("SAVE")


def add(client: redis.Redis, dues: Iterator[int]) -> None:
    """Add an entry for each due time (ms since epoch)."""
    pipe = client.pipeline(transaction=False)
    for number, due in enumerate(dues, 1):
        pipe.execute_command("TDELAY", "jobs", "AT", due, "job", number, "name", "send a reminder to a customer")
        if number % PIPELINE == 0:
            pipe.execute()
    pipe.execute()


def memory(server: Server, count: int) -> None:
    client = redis.Redis(port=server.port)
    pid, rng = server.pid, random.Random(1)
    client.execute_command("TDELAY", "jobs", "IN", HOUR, "f", "v")
    save(client)
    used, rss = client.info("memory")["used_memory"], resident(pid)
    start = time.time() * 1000 + HOUR
    began = time.perf_counter()
    add(client, (int(start + rng.random() * 24 * HOUR) for _ in range(count)))
    took = time.perf_counter() - began
    save(client)
    client.execute_command("CONFIG", "SET", "node-cache-size", 0)
    held = client.info("memory")["used_memory"] - used
    print(f"{count} delayed: {took / count * 1e6:.1f} us each to add")
    print(f"  used_memory {held / count:.1f} bytes each; resident {judged((resident(pid) - rss) / count)}")
    time.sleep(TRIMMED)
    print(f"  after {TRIMMED:.0f} s: resident {judged((resident(pid) - rss) / count)}")
    server.kill()
    began = time.perf_counter()
    server.start()
    client = redis.Redis(port=server.port)
    assert client.execute_command("TDELAY", "jobs", "COUNT") == count + 1
    took = time.perf_counter() - began
    fresh = (resident(server.pid) - rss) / count
    print(f"  restart {took:.2f} s; resident after it {judged(fresh)}")


def judged(size: float) -> str:
    return f"{size:.1f} bytes each (limit {MEMORY_LIMIT}: {'met' if size <= MEMORY_LIMIT else 'missed'})"


def pings(server: Server, seconds: int, rate: int, order: str) -> None:
    """Print how long PINGs take while ``rate`` entries per second are due, and without them."""
    client = redis.Redis(port=server.port)
    client.execute_command("FLUSHALL")
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        idle = measured(sock, time.time() + seconds)
        count = rate * seconds
        begin = int(time.time() * 1000) + LEAD_MS + count * LEAD_MS // 1000  # after all of them were added
        dues = [begin + number * 1000 // rate for number in range(count)]
        if order == "random":
            random.Random(1).shuffle(dues)
        add(client, iter(dues))
        save(client)
        left = begin / 1000 - time.time()
        assert left > 0, "adding took too long"
        time.sleep(left)
        busy = measured(sock, begin / 1000 + seconds)
    time.sleep(0.2)
    delivered = client.execute_command("TLEN", "jobs")
    late = 0.0
    for entry in client.execute_command("TREVRANGE", "jobs", "+", "-", "COUNT", 1):
        late = int(entry[0].split(b".")[0]) - dues[int(entry[2]) - 1]
    print(f"{rate}/s due, {order} order, {seconds} s: {delivered} of {count} delivered, the last {late:.0f} ms late")
    for name, values in (("idle", idle), ("due", busy)):
        cuts = [1000 * cut for cut in quantiles(values, n=1000)]
        limit = f" (limit {PING_LIMIT:g}: {'met' if cuts[989] < PING_LIMIT else 'missed'})" if name == "due" else ""
        print(
            f"  PING {name}: p50 {cuts[499]:.2f} ms, p99 {cuts[989]:.2f}{limit}, p99.9 {cuts[998]:.2f},"
            f" max {max(values) * 1000:.2f} ({len(values)})"
        )


def backlog(server: Server, count: int) -> None:
    """Print how fast entries in random order that are due at the same time are delivered, and how long PINGs take."""
    client = redis.Redis(port=server.port)
    client.execute_command("FLUSHALL")
    client.execute_command("CONFIG", "SET", "node-cache-size", BACKLOG_CACHE)
    rng = random.Random(1)
    begin = int(time.time() * 1000) + LEAD_MS + count * LEAD_MS // 1000
    dues = [begin + number // 100 for number in range(count)]
    rng.shuffle(dues)
    pipe = client.pipeline(transaction=False)
    for number, due in enumerate(dues, 1):
        pipe.execute_command("TDELAY", "jobs", "AT", due, "job", number, "text", rng.randbytes(500).hex())
        if number % PIPELINE == 0:
            pipe.execute()
    pipe.execute()
    save(client)
    client.execute_command("CONFIG", "SET", "node-cache-size", 0)  # drops the nodes
    client.execute_command("CONFIG", "SET", "node-cache-size", BACKLOG_CACHE)
    os.kill(server.pid, signal.SIGSTOP)  # so that all of them are due
    time.sleep(max(0.0, max(dues) / 1000 - time.time()))
    os.kill(server.pid, signal.SIGCONT)
    before = client.execute_command("TLEN", "jobs")
    began, values = time.time(), list[float]()
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        while client.execute_command("TDELAY", "jobs", "COUNT") and time.time() - began < 60:
            values += measured(sock, time.time() + 0.1)
    took, delivered = time.time() - began, client.execute_command("TLEN", "jobs") - before
    cuts = quantiles(values, n=1000)
    print(
        f"{delivered} of {count} entries of 1 KB due, random order, cache {BACKLOG_CACHE}: {delivered / took:.0f}/s;"
        f" PING p50 {cuts[499] * 1000:.2f} ms, p99 {cuts[989] * 1000:.2f}, max {max(values) * 1000:.2f}"
    )


def measured(sock: socket.socket, until: float) -> list[float]:
    """Return the seconds of each PING until a time; one per millisecond."""
    found: list[float] = []
    while time.time() < until:
        began = time.perf_counter()
        sock.sendall(b"PING\r\n")
        assert sock.recv(100) == b"+PONG\r\n"
        found.append(time.perf_counter() - began)
        time.sleep(max(0.0, 0.001 - found[-1]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--rate", type=int, default=RATE)
    parser.add_argument("--backlog", type=int, default=50_000)
    given = parser.parse_args()
    with running_server() as server:
        if given.entries:
            memory(server, given.entries)
        for order in ("arrival", "random"):
            if given.seconds:
                pings(server, given.seconds, given.rate, order)
        if given.backlog:
            backlog(server, given.backlog)


if __name__ == "__main__":
    main()
