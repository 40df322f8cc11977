"""``scripts/bench cpu --nats``: CPU per message, compared with NATS JetStream, by payload and by messages in flight.

Each of 8 connections has a window: so many messages are sent and not yet acknowledged. When acknowledgements arrive, as
many messages follow, in one write. All servers get the same load of varied JSON (``varied``). Every acknowledgement is
looked at: an ID of a stream, or JetStream's number; at the end the server is asked how many messages it has.
"""

from __future__ import annotations

import contextlib
import re
import select
import socket
import time
from collections.abc import Sequence
from itertools import cycle, islice
from statistics import median

import click

from benchmarks import jetstream
from benchmarks.cputime import Meter, Spent
from benchmarks.entries import append_words, length_word, pack
from benchmarks.registry import Bench
from benchmarks.servers import Peer
from benchmarks.varied import documents

CONNECTIONS = 8
WINDOWS = (1, 16, 64)
PAYLOADS = ((64, "64 B"), (1000, "1 KB"), (10_000, "10 KB"))
AT_MOST = 200_000_000  # bytes a run
WAIT = 60.0  # seconds for the next acknowledgement
LINES = 2  # of an acknowledgement
AN_ID = re.compile(rb"\$\d+\r\n\d+[.-]\d+\r\n")


def titles() -> dict[tuple[int, int], str]:
    """Rows by bytes of payload and window."""
    return {
        (size, window): f"cpu, publish JSON of {name}, {CONNECTIONS} connections, {window} in flight"
        for size, name in PAYLOADS for window in WINDOWS
    }  # fmt: skip


def publishing(bench: Bench) -> None:
    """All rows: tidelog's TAPPEND, Redis's XADD, and a message to JetStream, each with ``data`` of so many bytes."""
    made = titles()
    if not bench.wants(*made.values()):
        return
    for size, _ in PAYLOADS:
        wanted = {window: made[size, window] for window in WINDOWS if bench.wants(made[size, window])}
        if not wanted:
            continue
        count = min(bench.requests, AT_MOST // size) // CONNECTIONS
        with bench.servers() as peers, jetstream.running(bench.nats) as nats:
            for window, title in wanted.items():
                row(bench, title, [*peers, nats], size, window, max(count, window))


def row(
    bench: Bench, title: str, servers: Sequence[Peer | jetstream.JetStream], size: int, window: int, count: int
) -> None:
    """``count``: messages a connection."""
    costs: dict[str, list[tuple[Spent, float]]] = {}
    whole = count * CONNECTIONS
    payloads = documents(size, whole)
    shares = [payloads[number::CONNECTIONS] for number in range(CONNECTIONS)]

    def measure(server: Peer | jetstream.JetStream, run: int) -> float:
        stream = f"w{window}-{run}"
        with contextlib.ExitStack() as stack:
            if isinstance(server, Peer):
                made = [server.connect() for _ in range(CONNECTIONS)]
                words, expected = append_words(server, stream), AN_ID
                messages = [[pack(*words, "data", each) for each in share] for share in shares]
            else:
                server.create(stream)
                made = [server.connect(number) for number in range(CONNECTIONS)]
                messages = [
                    [jetstream.publish(stream, each, number) for each in share] for number, share in enumerate(shares)
                ]
                expected = jetstream.acknowledgement(stream)
            sockets = [stack.enter_context(sock) for sock in made]
            meter = Meter(server.pid)
            seconds = under_way(server.name, sockets, messages, expected, window, count)
            spent = meter.spent() if bench.quick else meter.settled()
        if (kept := length(server, stream)) != whole:
            raise click.ClickException(f"{server.name} has {kept:,} of {whole:,} messages")
        if run:
            costs.setdefault(server.name, []).append((spent, whole / seconds))
        return spent.whole / whole * 1e6

    figures = bench.interleave(title, servers, measure)
    parts = {
        name: (
            median(spent.user for spent, _ in found) / whole * 1e6,
            median(spent.system for spent, _ in found) / whole * 1e6,
        )
        for name, found in costs.items()
    }
    rates = ", ".join(f"{name} {median(rate for _, rate in found):,.0f}" for name, found in costs.items())
    bench.table.row(
        title, figures, less_is_better=True, form=".2f", unit="us of CPU a message: user + system", parts=parts,
        note=f"messages/s: {rates}",
    )  # fmt: skip


def length(server: Peer | jetstream.JetStream, stream: str) -> int:
    if isinstance(server, Peer):
        with server.client() as client:
            return int(client.execute_command(length_word(server), stream))
    return server.length(stream)


def under_way(
    name: str, sockets: Sequence[socket.socket], messages: Sequence[Sequence[bytes]], expected: re.Pattern[bytes],
    window: int, count: int,
) -> float:  # fmt: skip
    """Let each connection send ``count`` messages, its own ones in turn, ``window`` at once; seconds until all are
    acknowledged.

    Raises:
        click.ClickException: something else than an acknowledgement came, or nothing.
    """
    by_number = {sock.fileno(): sock for sock in sockets}
    source = {sock.fileno(): cycle(each) for sock, each in zip(sockets, messages, strict=True)}
    unsent = dict.fromkeys(by_number, count - window)
    unanswered = dict.fromkeys(by_number, count)
    rest = dict.fromkeys(by_number, b"")
    poll = select.epoll()
    for number in by_number:
        poll.register(number, select.EPOLLIN)
    began = time.perf_counter()
    for number, sock in by_number.items():
        sock.sendall(b"".join(islice(source[number], window)))
    left = len(sockets)
    while left:
        ready = poll.poll(WAIT)
        if not ready:
            raise click.ClickException(f"{name} acknowledged nothing for {WAIT:.0f} seconds")
        for number, _ in ready:
            sock = by_number[number]
            data = rest[number] + sock.recv(1 << 16)
            if b"PING\r\n" in data:  # of nats-server, which wants to know whether somebody is there
                data = data.replace(b"PING\r\n", b"")
                sock.sendall(b"PONG\r\n")
            acknowledged = expected.findall(data)
            taken = sum(map(len, acknowledged))
            rest[number] = data[taken:]
            wrong = not data.startswith(b"".join(acknowledged)) or rest[number][:1] in (b"-", b"+")
            if wrong or rest[number].count(b"\n") >= LINES:
                raise click.ClickException(f"{name} answered {rest[number][:200]!r}")
            unanswered[number] -= len(acknowledged)
            if more := min(len(acknowledged), unsent[number]):
                unsent[number] -= more
                sock.sendall(b"".join(islice(source[number], more)))
            if not unanswered[number]:
                unanswered[number] = -1
                left -= 1
    poll.close()
    return time.perf_counter() - began
