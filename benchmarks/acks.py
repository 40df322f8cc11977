"""``python -m benchmarks.acks``: the cost of ``replica-acks``, compared with asynchronous replicas.

Rule 1: the leader runs on the first core; two replicas and the load generator run on the last. All servers sync each
tick (``always``).
Rule 2: each round measures without replica-acks, then with it. The table shows medians of the rounds' figures.
Rule 3: a run ends when the replicas have all of its appends. Asynchronous replicas fall behind a load that the leader
accepts but they can't sustain: at P 64 they needed another 2.7 s after a run of 2.7 s.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import click

from benchmarks import facts
from benchmarks.entries import SENSOR, append_words, pack
from benchmarks.replication import PATIENCE, Row, Rows, appends, in_sync, replica_of
from benchmarks.servers import Peer, installations, on_load_core, peers_of
from benchmarks.table import Table

REPLICAS = 2
PIPELINES = (1, 16, 64)


@contextlib.contextmanager
def members(grouped: bool) -> Iterator[tuple[Peer, list[Peer]]]:
    """A leader with two replicas in sync. ``grouped``: they are a server group, whose coordinator is a directory."""
    with (
        peers_of(installations(peer=False), "always") as (leader,),
        tempfile.TemporaryDirectory(prefix="tidelog-bench-") as coordinator,
        contextlib.ExitStack() as stack,
    ):
        member = ["--group", "bench", "--coordinator", f"file://{coordinator}"] if grouped else []
        leader.start(*member)
        if grouped:
            eventually(leader, b"master")
        yield leader, [stack.enter_context(replica_of(leader, member=member)) for _ in range(REPLICAS)]


def eventually(member: Peer, role: bytes) -> None:
    """Return when a member of a server group has this role."""
    end = time.perf_counter() + PATIENCE
    with member.client() as client:
        while client.execute_command("ROLE")[0] != role:
            if time.perf_counter() > end:
                raise click.ClickException(f"the first member did not become the leader within {PATIENCE:.0f} seconds")
            time.sleep(0.01)


def sustained(leader: Peer, replicas: list[Peer], key: str, count: int, pipeline: int) -> float:
    """Appends a second, up to the time at which the replicas have all of them."""
    rate = appends(leader, key, count, pipeline)
    began = time.perf_counter()
    for replica in replicas:
        in_sync(leader, replica)
    return count / (count / rate + time.perf_counter() - began)


def withhold(leader: Peer, others: list[Peer], acks: int | str) -> None:
    """Set replica-acks. ``others``: the other members of the group, whose settings count, too."""
    for member in (*others, leader):
        with member.client() as client:
            client.execute_command("CONFIG", "SET", "replica-acks", acks)
    with leader.client() as client:
        end = time.perf_counter() + PATIENCE
        while others and bool(client.info("replication")["group_min_in_sync"]) != bool(acks):
            if time.perf_counter() > end:
                raise click.ClickException("the setting of the members has no effect")
            time.sleep(0.01)
        client.execute_command("SET", "marker", "1")  # once it is answered, the replicas know the setting


def latencies(leader: Peer, count: int) -> list[float]:
    """Microseconds of single appends of one client."""
    command, found = pack(*append_words(leader, "latency"), *SENSOR), []
    with leader.connect() as sock:
        for _ in range(count):
            began = time.perf_counter()
            sock.sendall(command)
            reply = sock.recv(256)
            found.append(1e6 * (time.perf_counter() - began))
            if reply.startswith(b"-"):
                raise click.ClickException(reply.decode())
    return found


def syncs(directory: Path, count: int) -> list[float]:
    """Microseconds of a sync of 100 more bytes, on the file system of the members."""
    found = []
    with tempfile.TemporaryFile(dir=directory) as file:
        os.pwrite(file.fileno(), bytes(1 << 20), 0)  # as in the log, the file does not grow
        os.fsync(file.fileno())
        for number in range(count):
            os.pwrite(file.fileno(), b"x" * 100, number * 100)
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            found.append(1e6 * (time.perf_counter() - began))
    return found


def measure(rounds: int, requests: int, samples: int, grouped: bool) -> Rows:
    rows: Rows = defaultdict(lambda: defaultdict(list))
    waits: int | str = "insync" if grouped else REPLICAS

    def add(title: str, value: float, less: bool = False, form: str = ",.0f") -> None:
        rows[Row(title, less, form)]["tidelog"].append(value)

    with members(grouped) as (leader, replicas):
        for number in range(rounds + 1):
            rates: dict[int, list[float]] = {pipeline: [] for pipeline in PIPELINES}
            p50 = []
            for acks in (0, waits):
                withhold(leader, replicas if grouped else [], acks)
                for pipeline in PIPELINES:
                    rates[pipeline].append(sustained(leader, replicas, f"s{number}", requests * pipeline, pipeline))
                p50.append(median(latencies(leader, samples)))
            sync = median(syncs(leader.directory, samples))
            if not number:
                continue  # it has warmed up
            for pipeline, (without, beside) in rates.items():
                name = f"appends/s, always, {REPLICAS} replicas, 50 clients, P {pipeline}"
                add(f"{name}, asynchronous", without)
                add(f"{name}, replica-acks {waits}", beside)
                add(f"{name}, ratio", beside / without, form=".2f")
            add("append latency p50, one client, asynchronous, us", p50[0], True)
            add(f"append latency p50, one client, replica-acks {waits}, us", p50[1], True)
            add("sync of 100 bytes p50, us", sync, True)
            add(f"append latency p50, replica-acks {waits}, in excess of a sync, us", p50[1] - sync, True)
    return rows


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rounds", default=5, show_default=True, help="Counted rounds; each measures without and with.")
@click.option("--requests", default=20_000, show_default=True, help="Appends of a run, per command of a pipeline.")
@click.option("--samples", default=2_000, show_default=True, help="Appends and syncs of a round for the latency.")
@click.option("--group", "grouped", is_flag=True, help="Measure replica-acks insync in a server group.")
def main(rounds: int, requests: int, samples: int, grouped: bool) -> None:
    """Measure appends with replica-acks beside asynchronous replicas. Figures are medians (min-max) of the rounds."""
    on_load_core()
    installed = installations(peer=False)
    table = Table([one.name for one in installed], targets=False)
    load = f"load average {os.getloadavg()[0]:.1f} before the start"
    click.echo(f"{facts.summary(facts.machine(), facts.described(installed))}\n{rounds} rounds, {load}\n")
    click.echo(table.head())
    for row, figures in measure(rounds, requests, samples, grouped).items():
        table.row(row.title, figures, row.less, row.form)


if __name__ == "__main__":
    main()
