"""Redis's own stream commands, the same ones sent to both servers: what the T commands' workloads measure, by X."""

from __future__ import annotations

from statistics import median

from benchmarks.append import PIPELINES, append_row
from benchmarks.entries import BATCH, fill, made_up, pack
from benchmarks.fanout import Run, closed_loop, enough_files
from benchmarks.groups import Script, read_all
from benchmarks.load import Request, drain, play
from benchmarks.ranges import cached, range_requests
from benchmarks.registry import Bench, CannotError, workload
from benchmarks.servers import Peer

READERS = 1000
CONSUMERS = 10
AT_ONCE = 100  # IDs of an XDEL
ENTRY_READ = 100  # messages of an XREADGROUP
COUNTS = (1000, 100, 10)
SMALL_CACHE = ("--node-cache-size", "1mb")  # where memory is measured: decoded nodes are not part of an entry


@workload(
    "xadd", "entries a second by XADD: 50 clients, pipelines 1, 16, 64, appendfsync always, everysec",
    requests=200_000, quick_requests=20_000,
)  # fmt: skip
def xadd(bench: Bench) -> None:
    """The sensor entry of the RCP, by redis-benchmark."""
    for fsync in ("always", "everysec"):
        titles = {pipeline: f"xadd, {fsync}, 50 clients, P {pipeline}" for pipeline in PIPELINES}
        wanted = [pipeline for pipeline, title in titles.items() if bench.wants(title)]
        if wanted:
            with bench.servers(fsync, x=True) as peers:
                for pipeline in wanted:
                    append_row(bench, titles[pipeline], peers, 50, pipeline)


@workload(
    "xrange", "entries a second read by XRANGE: COUNT 1000, 100, 10 at random; nodes cached", sizes=(1_000_000,),
    quick_sizes=(200_000,),
)  # fmt: skip
def xrange(bench: Bench) -> None:
    """One connection, one request at a time."""
    wanted = {count: title for count in COUNTS if bench.wants(title := f"xrange, COUNT {count}, cached")}
    if not wanted:
        return
    with bench.servers(x=True) as peers:
        for peer in peers:
            fill(peer, bench.sizes[0])
            peer.settle()
            cached(peer, "1gb")
        for count, title in wanted.items():
            times = max(200, min(10_000, 400_000 // count))
            made: dict[str, list[Request]] = {
                peer.name: range_requests(peer, count, times // 50 + 1 if bench.quick else times) for peer in peers
            }

            def measure(peer: Peer, _: int, made: dict[str, list[Request]] = made) -> float:
                played = made[peer.name]
                return sum(request.entries for request in played) / play(peer, played)

            bench.table.row(title, bench.interleave(title, peers, measure), unit="entries/s")


@workload(
    "xgroup", f"messages a second: XREADGROUP COUNT {ENTRY_READ}, then XACK", sizes=(200_000,), quick_sizes=(20_000,)
)
def xgroup(bench: Bench) -> None:
    """One reader."""
    title = f"xgroup, read {ENTRY_READ} and ack"
    if not bench.wants(title):
        return
    with bench.servers(x=True) as peers:
        for peer in peers:
            fill(peer, bench.sizes[0])
            peer.settle()
        messages = bench.sizes[0] // ENTRY_READ * ENTRY_READ
        scripts = {peer.name: Script(peer, ENTRY_READ, messages, pending=True) for peer in peers}

        def measure(peer: Peer, run: int) -> float:
            return scripts[peer.name].play(f"g{run}")

        bench.table.row(title, bench.interleave(title, peers, measure), unit="messages/s")


@workload(
    "xfanout", f"an entry to {READERS:,} readers blocked in XREAD: deliveries a second, latency", requests=60_000,
    quick_requests=10_000,
)  # fmt: skip
def xfanout(bench: Bench) -> None:
    """Closed loop, everysec; ``requests`` are deliveries a run."""
    base = f"xfanout, {READERS:,} blocked readers"
    titles = {name: f"{base}, {name}" for name in ("deliveries", "p99", "server time")}
    if not bench.wants(*titles.values()):
        return
    enough_files()
    runs: dict[str, list[Run]] = {}
    with bench.servers(x=True) as peers:

        def measure(peer: Peer, run: int) -> float:
            made = closed_loop(peer, READERS, max(5, bench.requests // READERS))
            if run:
                runs.setdefault(peer.name, []).append(made)
            return made.deliveries

        deliveries = bench.interleave(base, peers, measure)
    busy = ", ".join(f"{name} {median(run.busy for run in found):.0%}" for name, found in runs.items())
    bench.table.row(titles["deliveries"], deliveries, unit="deliveries/s", note=f"load's core busy: {busy}")
    slow = {name: [run.p99 for run in found] for name, found in runs.items()}
    cost = {name: [run.server for run in found] for name, found in runs.items()}
    if bench.wants(titles["p99"]):
        bench.table.row(titles["p99"], slow, less_is_better=True, form=".3f", unit="ms from append to delivery")
    if bench.wants(titles["server time"]):
        bench.table.row(titles["server time"], cost, less_is_better=True, form=".1f", unit="us per delivery")


@workload(
    "xmemory", f"bytes of memory: an entry of XADD, and one that is pending for one of {CONSUMERS} consumers",
    sizes=(1_000_000,), quick_sizes=(100_000,),
)  # fmt: skip
def xmemory(bench: Bench) -> None:
    """Settled. A message's cost is what is added to that of a group that keeps none."""
    size = bench.sizes[0]
    titles = "xmemory, an entry", f"xmemory, a pending message, {CONSUMERS} consumers"
    if not bench.wants(*titles):
        return
    entry, message = {}, {}
    with bench.servers("everysec", *SMALL_CACHE, x=True) as peers:
        for peer in peers:
            empty = peer.memory()
            fill(peer, size)
            peer.settle()
            entry[peer.name] = [(peer.memory() - empty) / size]
            read_all(peer, "kept", size, pending=False)
            peer.settle()
            before = peer.memory()
            read_all(peer, "waiting", size, pending=True, consumers=CONSUMERS)
            peer.settle()
            message[peer.name] = [(peer.memory() - before) / size]
    for title, figures in zip(titles, (entry, message), strict=True):
        if bench.wants(title):
            bench.table.row(title, figures, less_is_better=True, form=".1f", unit="bytes")


@workload(
    "xdel", f"XDEL of every second entry, {AT_ONCE} IDs each: seconds, and bytes of memory per tombstone",
    sizes=(1_000_000,), quick_sizes=(100_000,),
)  # fmt: skip
def xdel(bench: Bench) -> None:
    """Commands are sent one after another, over one connection. Redis marks an entry in place: it takes no memory."""
    size = bench.sizes[0]
    titles = f"xdel, every second of {size:,}", "xdel, memory a mark"
    if not bench.wants(*titles):
        return
    marks: dict[str, list[float]] = {}
    with bench.servers("everysec", *SMALL_CACHE, x=True) as peers:

        def measure(peer: Peer, run: int) -> float:
            key = f"s{run}"
            numbered(peer, key, size)
            peer.settle()
            before = peer.memory()
            took = deleted(peer, key, size)
            peer.settle()
            if run and not peer.redis:
                marks.setdefault(peer.name, []).append((peer.memory() - before) / (size // 2))
            with peer.client() as client:
                if client.execute_command("XLEN", key) != size - size // 2:
                    raise CannotError
                client.delete(key)
            return took

        seconds = bench.interleave(titles[0], peers, measure)
    bench.table.row(titles[0], seconds, less_is_better=True, form=".2f", unit="s")
    if bench.wants(titles[1]):
        note = "asked: at most 1 byte, better 0.3"
        bench.table.row(titles[1], marks, less_is_better=True, form=".2f", unit="bytes", note=note)


def numbered(peer: Peer, key: str, size: int) -> None:
    """Entries with the IDs 1-0, 2-0 ... so that they can be named."""
    entries = list(made_up("sensor", BATCH))
    buffer = bytearray(1 << 20)
    with peer.connect() as sock:
        for start in range(0, size, BATCH):
            ids = [f"{at + 1}-0" for at in range(start, min(size, start + BATCH))]
            sock.sendall(b"".join([pack("XADD", key, i, *words) for i, words in zip(ids, entries, strict=False)]))
            drain(sock, sum(len(f"${len(i)}\r\n{i}\r\n") for i in ids), buffer)


def deleted(peer: Peer, key: str, size: int) -> float:
    """Delete the even numbers; seconds that took."""
    even = [f"{number}-0" for number in range(2, size + 1, 2)]
    commands = [(pack("XDEL", key, *even[at : at + AT_ONCE]), len(even[at : at + AT_ONCE])) for at in
                range(0, len(even), AT_ONCE)]  # fmt: skip
    return play(peer, [Request(command, len(b":%d\r\n" % count), count) for command, count in commands])
