"""What is written: three kinds of entries, made up from a fixed seed, and the commands that append them.

sensor   `sensor NN temperature NN.N`, the RCP's own example: 100 sensors in random order, each a random walk
json     one field with a line of an access log as JSON, about 250 bytes
random   one field with 100 random bytes: nothing to compress

A pool of them goes round and round. It is longer than what either server looks at when it packs entries, so no server
gains from the repetition.
"""

from __future__ import annotations

import json
import random
import socket
import sys
from collections.abc import Iterator
from functools import cache
from itertools import chain, cycle, islice

import click

from benchmarks.servers import Peer

Words = tuple[bytes | str | int, ...]
SENSOR = ("sensor", "01", "temperature", "35.6")  # where every entry is the same
KINDS = ("sensor", "json", "random")
POOL = 40_000  # entries before they repeat
BATCH = 1000  # commands a packet
AGENTS = (
    "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0.0.0 Safari/537.36",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605.1.15 Mobile/15E148 Safari/604.1",
    "curl/8.5.0", "python-requests/2.32.3", "Googlebot/2.1 (+http://www.google.com/bot.html)",
)  # fmt: skip
PATHS = ("/", "/login", "/api/v1/orders/{}", "/api/v1/users/{}", "/products/{}", "/static/app.{}.js", "/search?q={}")


def pack(*words: bytes | str | int) -> bytes:
    """A command as RESP."""
    raw = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(raw) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in raw)


def append_words(peer: Peer, key: str) -> tuple[str, ...]:
    return ("XADD", key, "*") if peer.x else ("TAPPEND", key)


def length_word(peer: Peer) -> str:
    return "XLEN" if peer.x else "TLEN"


def range_word(peer: Peer) -> str:
    return "XRANGE" if peer.x else "TRANGE"


def made_up(kind: str, count: int = POOL) -> Iterator[Words]:
    """Entries of a kind, always the same ones."""
    rng = random.Random(7)
    if kind == "sensor":
        now = [rng.gauss(21, 4) for _ in range(100)]
        for _ in range(count):
            which = rng.randrange(100)
            now[which] += rng.gauss(0, 0.1)
            yield "sensor", f"{which:02}", "temperature", f"{now[which]:.1f}"
    elif kind == "json":
        for number in range(count):
            yield "line", log_line(rng, number)
    elif kind == "random":
        for _ in range(count):
            yield "bytes", rng.randbytes(100)
    else:
        raise ValueError(f"no such kind of entries: {kind}")


def log_line(rng: random.Random, number: int) -> str:
    """A line of an access log: few addresses and paths are frequent, most are rare; durations are log-normal."""
    status = rng.choices((200, 304, 301, 404, 500), (86, 6, 3, 4, 1))[0]
    return json.dumps(
        {
            "ts": f"2025-06-{1 + number // 20_000:02}T{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}"
            f".{rng.randrange(1000):03}Z",
            "level": "error" if status == 500 else "info",
            "client": f"10.{rng.randrange(4)}.{rng.randrange(256)}.{int(rng.paretovariate(1)) % 256}",
            "method": rng.choices(("GET", "POST", "PUT"), (8, 2, 1))[0],
            "path": rng.choice(PATHS).format(int(rng.paretovariate(0.5)) % 100_000),
            "status": status,
            "bytes": int(rng.lognormvariate(8, 1.5)),
            "ms": round(rng.lognormvariate(2.5, 1), 1),
            "agent": rng.choice(AGENTS),
            "request_id": f"{rng.getrandbits(64):016x}",
        },
        separators=(",", ":"),
    )


@cache
def packets(prefix: tuple[str, ...], kind: str, count: int) -> list[bytes]:
    """The first ``count`` entries of the pool as commands, BATCH in a packet."""
    commands = [pack(*prefix, *entry) for entry in made_up(kind, count)]
    return [b"".join(commands[start : start + BATCH]) for start in range(0, count, BATCH)]


def fill(peer: Peer, count: int, key: str = "s", kind: str = "sensor") -> None:
    """Append ``count`` entries one by one, pipelined.

    Raises:
        click.ClickException: the server refused one.
    """
    prefix = append_words(peer, key)
    full, rest = divmod(count, BATCH)
    pool = packets(prefix, kind, min(full * BATCH, POOL))
    whole = ((packet, BATCH) for packet in islice(cycle(pool), full))
    partial = ((packet, rest) for packet in packets(prefix, kind, rest))
    label = f"  filling {peer.name} with {count:,} entries"
    with peer.connect() as sock, click.progressbar(length=count, label=label, file=sys.stderr) as bar:
        waiting = Replies(sock, peer.name)
        for packet, size in chain(whole, partial):
            sock.sendall(packet)
            waiting.take(size, at_most=4 * BATCH)
            bar.update(size)
        waiting.take(0, at_most=0)


class Replies:
    """Replies of ``each`` lines (a bulk string: two), counted by their line ends and not parsed."""

    def __init__(self, sock: socket.socket, name: str, each: int = 2) -> None:
        self.sock = sock
        self.each = each
        self.name = name
        self.lines = 0  # that are still to come

    def take(self, more: int, at_most: int) -> None:
        """Expect so many more; return when no more than ``at_most`` are to come."""
        self.lines += self.each * more
        while self.lines > self.each * at_most:
            data = self.sock.recv(1 << 16)
            # An ID of Redis has a dash, where a chunk may begin: an error is a dash and a letter.
            if not data or b"\n-" in data or (data[:1] == b"-" and data[1:2].isalpha()):
                raise click.ClickException(f"{self.name}: {data[:200]!r}")
            self.lines -= data.count(b"\n")
