"""Load on a server: redis-benchmark, and requests over a raw socket whose replies are counted, not parsed."""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import click
import hiredis

from benchmarks.entries import range_word
from benchmarks.servers import Peer


def redis_benchmark(
    port: int, words: Sequence[str], requests: int, clients: int, pipeline: int, keys: int = 0
) -> float:
    """Commands a second. ``keys``: ``__rand_int__`` in the words stands for 12 digits, one of so many numbers.

    Raises:
        click.ClickException: it isn't installed, or the server didn't take the commands.
    """
    tool = shutil.which("redis-benchmark")
    if tool is None:
        raise click.ClickException("redis-benchmark is not installed (Debian: apt-get install redis-tools)")
    # Whole pipelines: redis-benchmark may otherwise count more replies than requests, and take that for a lost server.
    requests = -(-max(requests, clients * pipeline) // pipeline) * pipeline
    command = [tool, "-p", str(port), "-n", str(requests), "-c", str(clients), "-P", str(pipeline), "--csv"]
    command += [*(("-r", str(keys)) if keys else ()), *words]
    out = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = out.stdout.strip().splitlines()
    if out.returncode or not lines or not lines[-1].startswith('"') or "Error from server" in out.stdout + out.stderr:
        raise click.ClickException(f"redis-benchmark {' '.join(words)[:80]}: {(out.stdout + out.stderr)[-300:]}")
    return float(lines[-1].rsplit('","', 7)[1].strip('"'))


class Request(NamedTuple):
    """A command whose reply is known beforehand, because what it reads stands still."""

    command: bytes
    reply: int  # bytes
    entries: int  # in it


def exchange(sock: socket.socket, command: bytes) -> tuple[int, Any]:
    """Send one command; the bytes of its reply, and the reply."""
    sock.sendall(command)
    reader, size = hiredis.Reader(), 0
    while True:
        data = sock.recv(1 << 20)
        size += len(data)
        reader.feed(data)
        reply: Any = reader.gets()
        if isinstance(reply, hiredis.ReplyError):
            raise click.ClickException(f"{command[:80]!r}: {reply}")
        if reply is not False:
            return size, reply


def drain(sock: socket.socket, size: int, buffer: bytearray) -> None:
    """Receive so many bytes."""
    while size > 0:
        got = sock.recv_into(buffer, min(size, len(buffer)))
        if not got:
            raise click.ClickException("the server closed the connection")
        size -= got


def play(peer: Peer, requests: Sequence[Request]) -> float:
    """Send one after another over one connection; seconds that took."""
    buffer = bytearray(1 << 20)
    with peer.connect() as sock:
        began = time.perf_counter()
        for command, size, _ in requests:
            sock.sendall(command)
            drain(sock, size, buffer)
        return time.perf_counter() - began


def latencies(peer: Peer, requests: Sequence[Request]) -> list[float]:
    """Seconds of each of them."""
    found, buffer = [], bytearray(1 << 20)
    with peer.connect() as sock:
        for command, size, _ in requests:
            began = time.perf_counter()
            sock.sendall(command)
            drain(sock, size, buffer)
            found.append(time.perf_counter() - began)
    return found


def ends(peer: Peer, key: str = "s") -> tuple[int, int]:
    """The milliseconds of the first and of the last ID."""
    word = range_word(peer)
    back = word.replace("RANGE", "REVRANGE")
    with peer.client() as client:
        first = client.execute_command(word, key, "-", "+", "COUNT", 1)
        last = client.execute_command(back, key, "+", "-", "COUNT", 1)
        return milliseconds(first[0][0]), milliseconds(last[0][0])


def milliseconds(entry_id: bytes) -> int:
    return int(entry_id.replace(b"-", b".").split(b".")[0])


def random_places(peer: Peer, how_many: int, key: str = "s") -> list[bytes]:
    """IDs spread over the whole stream, the same places for each server."""
    low, high = ends(peer, key)
    rng = random.Random(1)
    return [b"%d" % (low + int(rng.random() * max(0, high - 5 - low))) for _ in range(how_many)]
