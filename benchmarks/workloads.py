"""What is measured. Each workload interleaves the servers (A B A B ...) and returns a figure a run and server."""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import click
import hiredis

from benchmarks.servers import Peer, servers

Figures = dict[str, list[float]]  # server -> one figure a run
SENSOR = ("sensor", "01", "temperature", "35.6")  # the entry of RCP 11
BATCH = 1000


def append(fsync: str, pipeline: int, clients: int, runs: int, requests: int, peer_binary: str | None) -> Figures:
    """Appends a second by redis-benchmark, each run on a stream of its own."""
    tool = shutil.which("redis-benchmark")
    if tool is None:
        raise click.ClickException("redis-benchmark is not installed (Debian: apt-get install redis-tools)")
    found: Figures = defaultdict(list)
    with servers(fsync, peer_binary) as peers:
        for peer in peers:
            peer.start()
        for run in range(runs + 1):
            for peer in peers:
                words = ["XADD", f"k{run}", "*"] if peer.name == "redis" else ["TAPPEND", f"k{run}"]
                out = subprocess.run(
                    [tool, "-p", str(peer.port), "-n", str(requests), "-c", str(clients), "-P", str(pipeline), "--csv",
                     *words, *SENSOR],
                    capture_output=True, text=True, check=True,
                )  # fmt: skip
                rate = float(out.stdout.strip().splitlines()[-1].split('","')[1].strip('"'))
                if run:  # the first one warms up
                    found[peer.name].append(rate)
    return found


def fill(peer: Peer, count: int, key: str = "s") -> None:
    """The sensor workload, ``count`` entries, one a millisecond or so apart in their values."""
    with peer.client() as client, click.progressbar(range(0, count, BATCH), label=f"  filling {peer.name}") as steps:
        for start in steps:
            pipe = client.pipeline(transaction=False)
            for i in range(start, min(count, start + BATCH)):
                values = ("sensor", i % 100, "temperature", f"{20 + (i * 7919) % 200 / 10:.1f}")
                if peer.name == "redis":
                    pipe.execute_command("XADD", key, "*", *values)
                else:
                    pipe.execute_command("TAPPEND", key, *values)
            pipe.execute()


def ranges(count: int, size: int, runs: int, peer_binary: str | None, cold: bool) -> Figures:
    """Entries a second of range reads at random places of ``size`` entries, one connection, raw sockets."""
    found: Figures = defaultdict(list)
    with servers("everysec", peer_binary) as peers:
        for peer in peers:
            peer.start()
            fill(peer, size)
            if peer.name == "tidelog":
                client = peer.client()
                client.execute_command("SAVE")
                client.execute_command("CONFIG", "SET", "node-cache-size", "1mb" if cold else "1gb")
        requests = {peer.name: _requests(peer, count) for peer in peers}
        for run in range(runs + 1):
            for peer in peers:
                rate = _read_ranges(peer, requests[peer.name])
                if run:  # the first one warms up
                    found[peer.name].append(rate)
    return found


Request = tuple[bytes, int, int]  # bytes of the command, bytes of its reply, entries in it


def _requests(peer: Peer, count: int) -> list[Request]:
    """Range reads at random places. The data stands still, so what a reply's length is can be found out before."""
    word = b"XRANGE" if peer.name == "redis" else b"TRANGE"
    made = []
    with socket.create_connection(("127.0.0.1", peer.port)) as sock:
        for start in _ids(peer, max(200, min(3000, 400_000 // count))):
            words = (word, b"s", start, b"+", b"COUNT", b"%d" % count)
            command = b"*6\r\n" + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)
            sock.sendall(command)
            reader, size = hiredis.Reader(), 0
            reply: Any = False
            while reply is False:
                data = sock.recv(1 << 20)
                size += len(data)
                reader.feed(data)
                reply = reader.gets()
            made.append((command, size, len(reply)))
    return made


def _read_ranges(peer: Peer, requests: list[Request]) -> float:
    """Entries a second; replies are received, not parsed, so that the server is measured and not the client."""
    entries = 0
    buffer = bytearray(1 << 20)
    with socket.create_connection(("127.0.0.1", peer.port)) as sock:
        began = time.perf_counter()
        for command, size, count in requests:
            sock.sendall(command)
            while size:
                size -= sock.recv_into(buffer)
            entries += count
        return entries / (time.perf_counter() - began)


def _ids(peer: Peer, how_many: int) -> list[bytes]:
    """IDs spread over the whole stream."""
    word = "XRANGE" if peer.name == "redis" else "TRANGE"
    with peer.client() as client:
        first = _id(client.execute_command(word, "s", "-", "+", "COUNT", 1)[0])
        last_word = "XREVRANGE" if peer.name == "redis" else "TREVRANGE"
        last = _id(client.execute_command(last_word, "s", "+", "-", "COUNT", 1)[0])
        low, high = (int(i.replace(b".", b"-").split(b"-")[0]) for i in (first, last))
        rng = random.Random(1)
        return [str(rng.randint(low, max(low, high - 5))).encode() for _ in range(how_many)]


def _id(row: object) -> bytes:
    assert isinstance(row, list | tuple)
    return bytes(row[0])


def space(size: int, peer_binary: str | None) -> dict[str, Figures]:
    """Bytes an entry of the sensor workload, in memory (everything written to the store) and on disk."""
    memory: Figures = defaultdict(list)
    disk: Figures = defaultdict(list)
    with servers("everysec", peer_binary) as peers:
        for peer in peers:
            peer.start()
            empty_memory, empty_disk = peer.memory(), peer.disk()
            fill(peer, size)
            client = peer.client()
            if peer.name == "tidelog":
                client.execute_command("SAVE")
            else:
                client.execute_command("BGREWRITEAOF")
                while int(client.info("persistence")["aof_rewrite_in_progress"]):
                    time.sleep(0.05)
            memory[peer.name].append((peer.memory() - empty_memory) / size)
            disk[peer.name].append((peer.disk() - empty_disk) / size)
    return {"memory": memory, "disk": disk}


def restart(size: int, runs: int, peer_binary: str | None) -> Figures:
    """Seconds from the start of the process to its first reply, with ``size`` entries on disk."""
    found: Figures = defaultdict(list)
    with servers("everysec", peer_binary) as peers:
        for peer in peers:
            peer.start()
            fill(peer, size)
            client = peer.client()
            client.execute_command("SAVE")
            if peer.name == "redis":  # its RDB is what it loads
                client.execute_command("CONFIG", "SET", "appendonly", "no")
                shutil.rmtree(peer.directory / "appendonlydir", ignore_errors=True)
            peer.stop()
        for _ in range(runs):
            for peer in peers:
                more = ("--appendonly", "no") if peer.name == "redis" else ()
                found[peer.name].append(peer.start(*more))
                expected = size
                word = "XLEN" if peer.name == "redis" else "TLEN"
                length = peer.client().execute_command(word, "s")
                if length != expected:
                    raise click.ClickException(f"{peer.name} came back with {length} of {expected} entries")
                peer.stop()
    return found


WORKLOADS: dict[str, Callable[..., object]] = {"append": append, "range": ranges, "space": space, "restart": restart}
