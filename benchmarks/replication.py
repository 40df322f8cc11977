"""``scripts/bench replication``: what replicas cost and bring, with redis-server beside it in the same run.

Rule 1: leaders run on the first core; replicas, Sentinels and the load on the last. A replica therefore slows down the
load, not its leader; with a core of its own it would slow down neither.
Rule 2: a figure counts only if the replica has everything at the end.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

import click
import hiredis
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from benchmarks import facts
from benchmarks.entries import SENSOR, append_words, fill, length_word, pack
from benchmarks.load import redis_benchmark
from benchmarks.servers import Peer, free_port, installations, on_load_core, peers_of
from benchmarks.table import Figures, Table


class Row(NamedTuple):
    """One line of the table."""

    title: str
    less: bool = False  # less is better
    form: str = ",.0f"


Rows = dict[Row, Figures]

MARK_SECONDS = 0.005  # between two looks at the lag
PACE = 0.001  # seconds between two packets of the paced load
BLOCKED_SECONDS = 0.001  # after which the reader's command has surely been taken
PATIENCE = 600.0
LOST = 100  # entries of the old leader that the new one lacks
AWAY = 6000  # entries that the new leader takes before the old one returns: a minute with 100 appends a second


def p99(values: list[float]) -> float:
    return quantiles(values, n=100, method="inclusive")[98] if len(values) > 1 else max(values)


def steps(runs: int, what: str) -> Iterator[int]:
    """The runs, with a bar that shows them where there is a terminal."""
    with click.progressbar(range(runs), label=f"  {what}", file=sys.stderr) as bar:
        yield from bar


# -- pairs of servers --------------------------------------------------------------------------------------------
@contextlib.contextmanager
def leaders(fsync: str, peer_command: str | None) -> Iterator[list[Peer]]:
    """tidelog and redis-server, started, without replicas."""
    with peers_of(installations(peers=[("redis", peer_command)] if peer_command else ()), fsync) as peers:
        for peer in peers:
            peer.start(*options(peer))
        yield peers


def options(peer: Peer) -> list[str]:
    """What makes the two alike: Redis waits five seconds before a copy, for more replicas to come."""
    return ["--repl-diskless-sync-delay", "0"] if peer.redis else []


@contextlib.contextmanager
def replica_of(
    leader: Peer, follow: bool = True, gives_way: bool = False, member: Sequence[str] = ()
) -> Iterator[Peer]:
    """A replica (in sync) of a leader, or a server that may become one. ``gives_way``: to the load on its core.
    ``member``: options that make it a member of the leader's server group."""
    command = ["chrt", "--idle", "0", *leader.command] if gives_way else leader.command
    # a killed redis-server may leave a child that still writes into its directory
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-", ignore_cleanup_errors=True) as directory:
        made = Peer(leader.name, command, Path(directory), leader.fsync, max(os.sched_getaffinity(0)))
        more = member or (["--replicaof", f"127.0.0.1 {leader.port}"] if follow else [])
        made.start(*options(leader), *more)
        try:
            if follow:
                in_sync(leader, made)
            yield made
        finally:
            made.kill()  # its data is of no use, and a redis-server that rewrites its AOF refuses to stop


def in_sync(leader: Peer, replica: Peer) -> None:
    """Return when the replica's link is up and it has the leader's offset."""
    with leader.client() as ours, replica.client() as theirs:
        end = time.perf_counter() + PATIENCE
        while time.perf_counter() < end:
            with contextlib.suppress(redis.RedisError):
                link = theirs.info("replication")
                offset = ours.info("replication")["master_repl_offset"]
                if link.get("master_link_status") == "up" and link["slave_repl_offset"] >= offset:
                    return
            time.sleep(0.002)
    raise click.ClickException(f"{leader.name}: the replica is not in sync within {PATIENCE:.0f} seconds")


# -- lag ---------------------------------------------------------------------------------------------------------
def paced_load(port: int, command: bytes, rate: int, seconds: float) -> None:
    """So many appends a second, pipelined, a packet each millisecond. Runs in a process of its own."""
    reader = hiredis.Reader()
    with socket.create_connection(("127.0.0.1", port)) as sock:
        began, sent, answered = time.perf_counter(), 0, 0
        while (now := time.perf_counter()) < began + seconds:
            due = int((now - began) * rate) - sent
            if due > 0 and sent - answered < 4 * rate:
                sock.sendall(command * due)
                sent += due
            while select.select([sock], [], [], PACE)[0]:
                reader.feed(sock.recv(1 << 20))
                while reader.gets() is not False:
                    answered += 1
                if time.perf_counter() - now > PACE:
                    break
        while answered < sent:
            reader.feed(sock.recv(1 << 20))
            while reader.gets() is not False:
                answered += 1
    took = time.perf_counter() - began
    if sent / took < 0.95 * rate:
        click.echo(f"  NOTE: only {sent / took:,.0f} appends a second were taken of {rate:,}", err=True)


class Marks:
    """Single entries beside the load: when the leader answers, and when a reader that waits on the replica has it."""

    def __init__(self, leader: Peer, replica: Peer) -> None:
        self.redis = leader.redis
        self.write = pack(*append_words(leader, "marks"), "m", "1")
        self.leader = socket.create_connection(("127.0.0.1", leader.port))
        self.replica = socket.create_connection(("127.0.0.1", replica.port))
        self.last = b"0"
        for sock in (self.leader, self.replica):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def lag(self) -> tuple[float, float]:
        """Seconds from the leader's reply to the entry at the replica's reader, 0 if that was earlier; and from the
        moment at which it was sent to the leader."""
        if self.redis:
            self.replica.sendall(pack("XREAD", "BLOCK", 0, "STREAMS", "marks", self.last))
        else:
            self.replica.sendall(pack("TREAD", "marks", self.last, 10, "BLOCK", 0))
        time.sleep(BLOCKED_SECONDS)
        began = time.perf_counter()
        self.leader.sendall(self.write)

        waiting, seen, replies = {self.leader, self.replica}, {}, {}
        readers = {sock: hiredis.Reader() for sock in waiting}
        while waiting:
            for sock in select.select(list(waiting), [], [], 10)[0]:
                now = time.perf_counter()
                readers[sock].feed(sock.recv(1 << 16))
                reply: Any = readers[sock].gets()
                if reply is not False:
                    seen[sock], replies[sock] = now, reply
                    waiting.discard(sock)

        if isinstance(replies[self.leader], hiredis.ReplyError):
            raise click.ClickException(str(replies[self.leader]))
        self.last = replies[self.leader]
        return max(0.0, seen[self.replica] - seen[self.leader]), seen[self.replica] - began

    def close(self) -> None:
        self.leader.close()
        self.replica.close()


def lag(runs: int, rate: int, seconds: float, peer_command: str | None) -> Rows:
    """Milliseconds until a reader on the replica has the entry, under paced appends: from the leader's reply, and from
    the command on. How the first one comes out depends on whether the reply or the replica gets the core first."""
    rows: Rows = {
        Row(f"{what} at {rate:,} appends/s, {which}, ms", True, ".3f"): defaultdict(list)
        for what in ("lag", "from the append to the replica's reader")
        for which in ("p50", "p99")
    }
    with leaders("everysec", peer_command) as peers:
        for peer in peers:
            with replica_of(peer) as replica:
                for run in steps(runs, f"lag, {peer.name}"):
                    command = pack(*append_words(peer, f"load{run}"), *SENSOR)
                    load = multiprocessing.Process(target=paced_load, args=(peer.port, command, rate, seconds))
                    load.start()
                    time.sleep(0.3)  # it has begun

                    marks = Marks(peer, replica)
                    found: list[tuple[float, float]] = []
                    try:
                        while load.is_alive() and len(found) * MARK_SECONDS < seconds - 0.5:
                            found.append(marks.lag())
                            time.sleep(MARK_SECONDS)
                    finally:
                        marks.close()
                        load.join()

                    in_sync(peer, replica)
                    figures = [kind([1000 * mark[at] for mark in found]) for at in (0, 1) for kind in (median, p99)]
                    for name, value in zip(rows, figures, strict=True):
                        rows[name][peer.name].append(value)
    return rows


# -- throughput --------------------------------------------------------------------------------------------------
def appends(peer: Peer, key: str, requests: int, pipeline: int) -> float:
    """Appends a second by redis-benchmark, 50 clients."""
    return redis_benchmark(peer.port, [*append_words(peer, key), *SENSOR], requests, 50, pipeline)


def throughput(runs: int, requests: int, peer_command: str | None) -> Rows:
    """Appends a second without a replica and with one, runs in turn; and what is left of it."""
    rows: Rows = {}
    for fsync in ("always", "everysec"):
        for pipeline in (1, 16):
            name = f"appends/s, {fsync}, 50 clients, P {pipeline}"
            alone: Figures = defaultdict(list)
            both: Figures = defaultdict(list)
            count = requests if pipeline == 1 else requests * 4
            with leaders(fsync, peer_command) as peers:
                for run in steps(runs + 1, name):
                    for peer in peers:
                        without = appends(peer, f"a{run}", count, pipeline)
                        with replica_of(peer) as replica:
                            beside = appends(peer, f"b{run}", count, pipeline)
                            in_sync(peer, replica)
                        if run:  # the first one warms up
                            alone[peer.name].append(without)
                            both[peer.name].append(beside)

            rows[Row(f"{name}, no replica")] = alone
            rows[Row(f"{name}, one replica")] = both
            rows[Row(f"{name}, with one / with none", form=".2f")] = {
                server: [b / a for a, b in zip(alone[server], both[server], strict=True)] for server in alone
            }
    return rows


# -- full copies -------------------------------------------------------------------------------------------------
def settled(peer: Peer) -> None:
    """Everything in tidelog's store, as it is after minutes of a server's life."""
    if not peer.redis:
        peer.settle()


def copied(leader: Peer, replica: Peer, size: int) -> tuple[float, int]:
    """Let a server follow another; seconds until it has everything, and bytes that it took."""
    with leader.client() as ours, replica.client() as theirs:
        before = ours.info("stats")["total_net_repl_output_bytes"]
        began = time.perf_counter()
        theirs.execute_command("REPLICAOF", "127.0.0.1", leader.port)
        in_sync(leader, replica)
        took = time.perf_counter() - began
        length = theirs.execute_command(length_word(replica), "s")
        if length != size:
            raise click.ClickException(f"{leader.name}: the replica has {length} of {size} entries")
        return took, ours.info("stats")["total_net_repl_output_bytes"] - before


def copy(runs: int, size: int, peer_command: str | None) -> Rows:
    """Full copies of a stream to an empty replica."""
    what = f"full copy of {size:,} entries"
    rows: Rows = {
        Row(f"{what}, seconds", True, ".2f"): defaultdict(list),
        Row(f"{what}, entries/s"): defaultdict(list),
        Row(f"{what}, MB/s on the wire", form=".1f"): defaultdict(list),
        Row(f"{what}, MB on the wire", True, ".1f"): defaultdict(list),
    }
    with leaders("everysec", peer_command) as peers:
        for peer in peers:
            fill(peer, size)
            settled(peer)
            for _ in steps(runs, f"copying, {peer.name}"):
                with replica_of(peer, follow=False) as replica:
                    seconds, size_in_bytes = copied(peer, replica, size)
                for name, value in zip(
                    rows, (seconds, size / seconds, size_in_bytes / 1e6 / seconds, size_in_bytes / 1e6), strict=True
                ):
                    rows[name][peer.name].append(value)
    return rows


def rejoin(runs: int, size: int, peer_command: str | None) -> Rows:
    """An old leader that has entries of its own returns after a failover: what the new leader sends to it."""
    what = f"rejoining after a failover, {size:,} entries"
    rows: Rows = {
        Row(f"{what}, seconds", True, ".2f"): defaultdict(list),
        Row(f"{what}, MB from the leader", True, ".2f"): defaultdict(list),
        Row(f"{what}, % of a full copy", True, ".2f"): defaultdict(list),
    }
    with leaders("everysec", peer_command) as peers:
        for peer in peers:
            fill(peer, size)
            settled(peer)
            there = size
            for _ in steps(runs, f"rejoining, {peer.name}"):
                with replica_of(peer, follow=False) as replica:
                    _, whole = copied(peer, replica, there)
                    with replica.client() as new, peer.client() as old:
                        new.execute_command("REPLICAOF", "NO", "ONE")
                        append(old, peer, LOST)
                        settled(peer)  # otherwise it only deletes them from its log
                        append(new, replica, AWAY)
                    there += AWAY
                    seconds, sent = copied(replica, peer, there)
                    with peer.client() as old:
                        old.execute_command("REPLICAOF", "NO", "ONE")
                for name, value in zip(rows, (seconds, sent / 1e6, 100 * sent / whole), strict=True):
                    rows[name][peer.name].append(value)
    return rows


def append(client: redis.Redis, peer: Peer, count: int) -> None:
    """Add single entries to the stream."""
    for _ in range(count):
        client.execute_command(*append_words(peer, "s"), *SENSOR)


def paced_latencies(peer: Peer, key: str, until: Callable[[], bool]) -> list[float]:
    """Milliseconds of single appends, one each millisecond at most, until it is over."""
    command = pack(*append_words(peer, key), *SENSOR)
    found: list[float] = []
    with socket.create_connection(("127.0.0.1", peer.port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while not until():
            began = time.perf_counter()
            sock.sendall(command)
            reply = sock.recv(256)
            found.append(1000 * (time.perf_counter() - began))
            if reply.startswith(b"-"):
                raise click.ClickException(reply.decode())
            time.sleep(PACE)
    return found


def follow_and_wait(leader: Peer, replica: Peer) -> None:
    with replica.client() as theirs:
        theirs.execute_command("REPLICAOF", "127.0.0.1", leader.port)
        while theirs.info("replication").get("master_link_status") != "up":
            time.sleep(0.01)


def latency(runs: int, size: int, peer_command: str | None) -> Rows:
    """What a full copy does to the latency of appends meanwhile."""
    rows: Rows = {
        Row(f"append latency {which} {when}, ms", True, ".3f"): defaultdict(list)
        for when in ("without", f"during a copy of {size:,} entries")
        for which in ("p50", "p99", "max")
    }
    with leaders("everysec", peer_command) as peers:
        for peer in peers:
            fill(peer, size)
            settled(peer)
            for _ in steps(runs, f"latency, {peer.name}"):
                # The replica gives way: its work must not delay the load, which runs on the same core.
                with replica_of(peer, follow=False, gives_way=True) as replica:
                    end = time.perf_counter() + 3
                    quiet = paced_latencies(peer, "quiet", lambda end=end: time.perf_counter() > end)  # type: ignore[misc]

                    copying = multiprocessing.Process(target=follow_and_wait, args=(peer, replica))
                    copying.start()
                    busy = paced_latencies(peer, "busy", lambda copying=copying: not copying.is_alive())  # type: ignore[misc]
                    copying.join()
                    in_sync(peer, replica)

                values = [f(ms) for ms in (quiet, busy) for f in (median, p99, max)]
                for name, value in zip(rows, values, strict=True):
                    rows[name][peer.name].append(value)
    return rows


# -- failover ----------------------------------------------------------------------------------------------------
@contextlib.contextmanager
def sentinel(leader: Peer, directory: Path) -> Iterator[int]:
    """A Sentinel that judges after a second; its port."""
    program = shutil.which("redis-sentinel") or shutil.which("redis-server")
    if program is None:
        raise click.ClickException("no redis-sentinel here (Debian: apt-get install redis-sentinel)")
    port = free_port()
    file = directory / "sentinel.conf"
    file.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {directory}\nsentinel monitor tide 127.0.0.1 {leader.port} 1\n"
        "sentinel down-after-milliseconds tide 1000\nsentinel failover-timeout tide 10000\n"
    )
    process = subprocess.Popen([program, str(file), "--sentinel"], stdout=subprocess.DEVNULL)
    try:
        yield port
    finally:
        process.kill()
        process.wait()


def failover(runs: int, peer_command: str | None) -> Rows:
    """Seconds from the SIGKILL of the leader to the first write that the new one takes; Sentinel waits 1 s of them."""
    name = Row("failover by Sentinel (down-after 1 s), seconds to the first write", True, ".2f")
    found: Figures = defaultdict(list)
    for _ in steps(runs, "failover"):
        with leaders("everysec", peer_command) as peers, tempfile.TemporaryDirectory(prefix="tidelog-bench-") as top:
            for peer in peers:
                directory = Path(top) / peer.name
                directory.mkdir()
                with replica_of(peer), sentinel(peer, directory) as port:
                    found[peer.name].append(seconds_without_leader(peer, port))
    return {name: found}


def seconds_without_leader(peer: Peer, port: int) -> float:
    watch = Sentinel([("127.0.0.1", port)], socket_timeout=0.5)
    end = time.perf_counter() + 30
    while time.perf_counter() < end:
        with contextlib.suppress(redis.RedisError):
            if watch.discover_slaves("tide"):
                break
        time.sleep(0.05)

    client = watch.master_for("tide", socket_timeout=0.5, socket_connect_timeout=0.5, retry=Retry(NoBackoff(), 0))
    client.execute_command(*append_words(peer, "s"), *SENSOR)

    peer.kill()
    began = time.perf_counter()
    while time.perf_counter() - began < 60:
        with contextlib.suppress(redis.RedisError, OSError):
            client.execute_command(*append_words(peer, "s"), *SENSOR)
            return time.perf_counter() - began
        time.sleep(0.005)
    raise click.ClickException(f"{peer.name}: no failover within a minute")


# -- the program -------------------------------------------------------------------------------------------------
NAMES = ("lag", "throughput", "copy", "rejoin", "latency", "failover")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1, type=click.Choice(NAMES))
@click.option("--runs", default=3, show_default=True, help="Counted runs of each workload and server.")
@click.option("--rate", default=20_000, show_default=True, help="Appends a second while the lag is measured.")
@click.option("--seconds", default=5.0, show_default=True, help="Of each run of lag.")
@click.option("--requests", default=100_000, show_default=True, help="Appends a run of throughput.")
@click.option("--size", default=1_000_000, show_default=True, help="Entries of copy and rejoin.")
@click.option("--latency-size", default=5_000_000, show_default=True, help="Entries of latency.")
@click.option("--peer", "peer_command", metavar="COMMAND", help="Another redis-server to compare with.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the figures there.")
def main(
    names: tuple[str, ...], runs: int, rate: int, seconds: float, requests: int, size: int, latency_size: int,
    peer_command: str | None, json_file: Path | None,
) -> None:  # fmt: skip
    """Compare replication with that of redis-server: the named workloads, or all of them.

    \b
    lag         time from the leader's reply until a waiting reader at the replica has the entry; p50, p99
    throughput  appends a second with one replica and without, and their ratio
    copy        a full copy to an empty replica
    rejoin      the copy to an old leader that returns after a failover
    latency     latency of appends during a large copy, and without one
    failover    time from the SIGKILL of the leader to the first write after Sentinel's failover

    Leaders run on one core, replicas and load on the other ones. Figures are medians (min-max) of the runs.
    """
    on_load_core()
    wanted = names or NAMES
    installed = installations(peers=[("redis", peer_command)] if peer_command else ())
    machine, says = facts.machine(), facts.described(installed)
    table = Table([one.name for one in installed], targets=False)
    click.echo(f"{facts.summary(machine, says)}\n{runs} runs each, medians (min-max)\n\n{table.head()}")
    measures: dict[str, Callable[[], Rows]] = {
        "lag": lambda: lag(runs, rate, seconds, peer_command),
        "throughput": lambda: throughput(runs, requests, peer_command),
        "copy": lambda: copy(runs, size, peer_command),
        "rejoin": lambda: rejoin(runs, size, peer_command),
        "latency": lambda: latency(1, latency_size, peer_command),
        "failover": lambda: failover(runs, peer_command),
    }
    for name in NAMES:
        if name in wanted:
            for made, figures in measures[name]().items():
                table.row(made.title, figures, made.less, made.form)
    if json_file is not None:
        kept = {"machine": machine, "servers": says, "names": table.names, "runs": runs, "rows": table.rows}
        json_file.write_text(json.dumps(kept, indent=1) + "\n")
