"""Groups: messages read and acknowledged, and what a message that waits for its acknowledgement costs in memory."""

from __future__ import annotations

import time
from itertools import cycle

from benchmarks.entries import fill, pack
from benchmarks.load import drain, exchange
from benchmarks.registry import Bench, workload
from benchmarks.servers import Peer

HOUR = 3_600_000  # ms until a message falls due again: not within a run
COUNTS = (1, 10, 100)
MODES = ("and ack", "at most once")
AT_A_TIME = 1000  # messages a read takes where only their memory is measured


def read_command(peer: Peer, group: str, count: int, pending: bool, consumer: str = "c") -> bytes:
    """A read for a group; ``pending``: its messages wait for an acknowledgement."""
    if peer.x:
        noack = () if pending else ("NOACK",)
        return pack("XREADGROUP", "GROUP", group, consumer, "COUNT", count, *noack, "STREAMS", "s", ">")
    return pack("TREAD", "s", "0", count, "GROUP", group, 0, *(("RETRY", HOUR, 24 * HOUR) if pending else ()))


def create(peer: Peer, group: str) -> None:
    """TREAD creates its group by itself."""
    if peer.x:
        with peer.client() as client:
            client.execute_command("XGROUP", "CREATE", "s", group, "0")


def ids_of(peer: Peer, reply: object) -> list[bytes]:
    """The IDs in what a group's read returned."""
    assert isinstance(reply, list)
    rows = reply[0][1] if peer.x else reply
    return [row[0] for row in rows]


class Script:
    """One consumer's requests. All groups of a stream get the same replies, so a first group tells what they are."""

    def __init__(self, peer: Peer, count: int, messages: int, pending: bool) -> None:
        self.peer, self.count, self.pending = peer, count, pending
        self.sizes: list[int] = []  # bytes of each reply
        self.ids: list[list[bytes]] = []  # the messages in it
        create(peer, "first")
        command = read_command(peer, "first", count, pending)
        with peer.connect() as sock:
            for _ in range(messages // count):
                size, reply = exchange(sock, command)
                self.sizes.append(size)
                self.ids.append(ids_of(peer, reply))
                if pending:
                    exchange(sock, self.acknowledge("first", self.ids[-1]))
        with peer.client() as client:
            client.execute_command(*(("XGROUP", "DESTROY") if peer.x else ("TGROUP", "DESTROY")), "s", "first")

    def acknowledge(self, group: str, ids: list[bytes]) -> bytes:
        return pack("XACK" if self.peer.x else "TACK", "s", group, *ids)

    def play(self, group: str) -> float:
        """Messages a second: read, wait, acknowledge, wait, and again."""
        create(self.peer, group)
        read = read_command(self.peer, group, self.count, self.pending)
        acks = [self.acknowledge(group, ids) for ids in self.ids] if self.pending else [b""] * len(self.ids)
        answer = len(b":%d\r\n" % self.count)
        buffer = bytearray(1 << 20)
        with self.peer.connect() as sock:
            began = time.perf_counter()
            for size, ack in zip(self.sizes, acks, strict=True):
                sock.sendall(read)
                drain(sock, size, buffer)
                if ack:
                    sock.sendall(ack)
                    drain(sock, answer, buffer)
            took = time.perf_counter() - began
        with self.peer.client() as client:
            client.execute_command(*(("XGROUP", "DESTROY") if self.peer.x else ("TGROUP", "DESTROY")), "s", group)
        return self.count * len(self.sizes) / took


@workload(
    "group", "messages a second that a group's reader gets, with acknowledgements and without; COUNT 1, 10, 100",
    sizes=(200_000,), quick_sizes=(20_000,),
)  # fmt: skip
def group(bench: Bench) -> None:
    """One reader. With acknowledgements tidelog reads with RETRY; without, Redis reads with NOACK."""
    cases = {
        (mode, count): f"group, read {count} {mode}" for mode in MODES for count in COUNTS
        if bench.wants(f"group, read {count} {mode}")
    }  # fmt: skip
    if not cases:
        return
    with bench.servers() as peers:
        for peer in peers:
            fill(peer, bench.sizes[0])
            peer.settle()
        for (mode, count), title in cases.items():
            most = max(5000, 2000 * count) // (10 if bench.quick else 1)
            messages = min(bench.sizes[0], most) // count * count
            scripts = {peer.name: Script(peer, count, messages, mode == "and ack") for peer in peers}

            def measure(peer: Peer, run: int, scripts: dict[str, Script] = scripts) -> float:
                return scripts[peer.name].play(f"g{run}")

            bench.table.row(title, bench.interleave(title, peers, measure), unit="messages/s")


@workload(
    "pending", "bytes of memory of a message that waits for its acknowledgement", sizes=(1_000_000,),
    quick_sizes=(100_000,),
)  # fmt: skip
def pending(bench: Bench) -> None:
    """All messages of a stream, pending in one group, against the same ones read by a group that keeps nothing."""
    for size in bench.sizes:
        title = "pending, memory per message" + (f", of {size:,}" if len(bench.sizes) > 1 else "")
        if not bench.wants(title):
            continue
        figures = {}
        with bench.servers("everysec", "--node-cache-size", "1mb") as peers:
            for peer in peers:
                fill(peer, size)
                read_all(peer, "kept", size, pending=False)
                peer.settle()
                before = peer.memory()
                read_all(peer, "waiting", size, pending=True)
                peer.settle()
                figures[peer.name] = [(peer.memory() - before) / size]
        bench.table.row(title, figures, less_is_better=True, form=".1f", unit="bytes")


def read_all(peer: Peer, name: str, size: int, pending: bool, consumers: int = 1) -> None:
    """All of a stream, by so many consumers in turn."""
    create(peer, name)
    commands, left = [read_command(peer, name, AT_A_TIME, pending, f"c{each}") for each in range(consumers)], size
    with peer.connect() as sock:
        for command in cycle(commands):
            if left <= 0:
                break
            left -= len(ids_of(peer, exchange(sock, command)[1]))
