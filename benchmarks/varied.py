"""Appends of varied JSON: each entry differs, as those of users do. redis-benchmark repeats one payload, which
compresses to nothing and stays in the processor's caches.

Rule 1: connections form a closed loop. Each sends a pipeline in one write, and the next one when it has all replies.
Rule 2: commands are prepared before the run, so that the load only sends bytes and counts the lines of replies.
"""

from __future__ import annotations

import json
import random
import select
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import cycle, islice

import click

from benchmarks.entries import append_words, pack
from benchmarks.servers import Peer

POOL = 32 << 20  # bytes of documents before they repeat; no server compresses so much together
MOST = 100_000  # documents, of which small ones have fewer bytes
SMALL = 100  # bytes of a document that has no samples
SITES = ("north", "south", "east", "west", "harbour", "depot")
LINES = 2  # of the reply to an append: a bulk string


def document(rng: random.Random, number: int, size: int) -> str:
    """Return the report of a meter: JSON of about ``size`` bytes whose numbers are random walks and measurements. A
    small one is a single reading of about 60 bytes."""
    if size < SMALL:
        reading = {
            "device": f"meter-{rng.randrange(1000):04}", "at": 1_764_270_000_000 + number,
            "celsius": round(rng.gauss(21, 4), 2),
        }  # fmt: skip
        return json.dumps(reading, separators=(",", ":"))
    samples: list[dict[str, object]] = []
    made = {
        "device": f"meter-{rng.randrange(1000):04}", "report": number, "site": rng.choice(SITES),
        "id": f"{rng.getrandbits(64):016x}", "samples": samples,
    }  # fmt: skip
    celsius, at = rng.gauss(21, 4), 1_764_270_000_000 + 40 * number
    length = len(json.dumps(made, separators=(",", ":")))
    while length < size:
        celsius += rng.gauss(0, 0.1)
        at += rng.randrange(900, 1100)
        sample: dict[str, object] = {
            "at": at, "celsius": round(celsius, 2), "pascal": round(rng.gauss(101_325, 400), 1),
            "watt": round(rng.lognormvariate(3, 1), 3), "ok": rng.random() < 0.98,
        }  # fmt: skip
        samples.append(sample)
        length += len(json.dumps(sample, separators=(",", ":"))) + 1
    return json.dumps(made, separators=(",", ":"))


_made: dict[int, tuple[random.Random, list[bytes]]] = {}  # by size


def documents(size: int, count: int) -> list[bytes]:
    """Return ``count`` different documents of about ``size`` bytes, or MOST, or POOL bytes; always the same ones."""
    rng, made = _made.setdefault(size, (random.Random(size), []))
    for number in range(len(made), min(count, MOST, POOL // size)):
        made.append(document(rng, number, size).encode())
    return made[:count]


def play_json(peer: Peer, key: str, size: int, requests: int, clients: int, pipeline: int) -> float:
    """Append ``requests`` documents (whole pipelines, one for each client at least). Return how many per second.

    Raises:
        click.ClickException: the server refused one, or closed a connection.
    """
    requests = max(requests, clients * pipeline)
    prefix = append_words(peer, key)
    commands = [pack(*prefix, "data", document) for document in documents(size, requests)]
    last = len(commands) // pipeline * pipeline
    packets = [b"".join(commands[start : start + pipeline]) for start in range(0, last, pipeline)]
    return pipeline * play(peer, packets, -(-requests // pipeline), clients, LINES * pipeline)


def play(peer: Peer, packets: Sequence[bytes], count: int, clients: int, lines: int) -> float:
    """Send ``count`` packets, each of which has replies of ``lines`` lines. Return how many were served per second."""
    with ExitStack() as stack:
        epoll = stack.enter_context(select.epoll())
        made = [stack.enter_context(peer.connect()) for _ in range(clients)]
        by_number = {sock.fileno(): sock for sock in made}
        left = dict.fromkeys(by_number, lines)
        for number in by_number:
            epoll.register(number, select.EPOLLIN)
        source, waiting = islice(cycle(packets), count), clients
        began = time.perf_counter()
        for sock in made:
            sock.sendall(next(source))
        while waiting:
            for number, _ in epoll.poll():
                sock = by_number[number]
                data = sock.recv(1 << 16)
                # An ID of Redis has a dash, where a chunk may begin: an error is a dash and a letter.
                if not data or b"\n-" in data or (data[:1] == b"-" and data[1:2].isalpha()):
                    raise click.ClickException(f"{peer.name}: {data[:200]!r}")
                left[number] -= data.count(b"\n")
                if not left[number]:
                    packet = next(source, b"")
                    left[number] = lines
                    if packet:
                        sock.sendall(packet)
                    else:
                        waiting -= 1
        return count / (time.perf_counter() - began)
