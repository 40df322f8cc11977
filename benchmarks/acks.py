"""``python -m benchmarks.acks``: the cost of ``replica-acks``, compared with asynchronous replicas.

Rule 1: the leader runs on the first core; two replicas and the load generator run on the last. All servers sync each
tick (``always``).
Rule 2: each round measures without replica-acks, then with it. The table shows medians of the rounds' figures.
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
from benchmarks.replication import Row, Rows, appends, replica_of
from benchmarks.servers import Peer, installations, on_load_core, peers_of
from benchmarks.table import Table

REPLICAS = 2
PIPELINES = (1, 16, 64)


@contextlib.contextmanager
def group() -> Iterator[Peer]:
    """A leader with two replicas in sync."""
    with peers_of(installations(peer=False), "always") as (leader,), contextlib.ExitStack() as stack:
        leader.start()
        for _ in range(REPLICAS):
            stack.enter_context(replica_of(leader))
        yield leader


def withhold(leader: Peer, number: int) -> None:
    with leader.client() as client:
        client.execute_command("CONFIG", "SET", "replica-acks", number)
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


def measure(rounds: int, requests: int, samples: int) -> Rows:
    rows: Rows = defaultdict(lambda: defaultdict(list))

    def add(title: str, value: float, less: bool = False, form: str = ",.0f") -> None:
        rows[Row(title, less, form)]["tidelog"].append(value)

    with group() as leader:
        for number in range(rounds + 1):
            rates: dict[int, list[float]] = {pipeline: [] for pipeline in PIPELINES}
            p50 = []
            for acks in (0, REPLICAS):
                withhold(leader, acks)
                for pipeline in PIPELINES:
                    count = requests * min(pipeline, 16)
                    rates[pipeline].append(appends(leader, f"s{number}", count, pipeline))
                p50.append(median(latencies(leader, samples)))
            sync = median(syncs(leader.directory, samples))
            if not number:
                continue  # it has warmed up
            for pipeline, (without, beside) in rates.items():
                name = f"appends/s, always, {REPLICAS} replicas, 50 clients, P {pipeline}"
                add(f"{name}, asynchronous", without)
                add(f"{name}, replica-acks {REPLICAS}", beside)
                add(f"{name}, ratio", beside / without, form=".2f")
            add("append latency p50, one client, asynchronous, us", p50[0], True)
            add(f"append latency p50, one client, replica-acks {REPLICAS}, us", p50[1], True)
            add("sync of 100 bytes p50, us", sync, True)
            add(f"append latency p50, replica-acks {REPLICAS}, in excess of a sync, us", p50[1] - sync, True)
    return rows


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rounds", default=5, show_default=True, help="Counted rounds; each measures without and with.")
@click.option("--requests", default=20_000, show_default=True, help="Appends of a run at P 1; 16 times as many above.")
@click.option("--samples", default=2_000, show_default=True, help="Appends and syncs of a round for the latency.")
def main(rounds: int, requests: int, samples: int) -> None:
    """Measure appends with replica-acks beside asynchronous replicas. Figures are medians (min-max) of the rounds."""
    on_load_core()
    installed = installations(peer=False)
    table = Table([one.name for one in installed], targets=False)
    load = f"load average {os.getloadavg()[0]:.1f} before the start"
    click.echo(f"{facts.summary(facts.machine(), facts.described(installed))}\n{rounds} rounds, {load}\n")
    click.echo(table.head())
    for row, figures in measure(rounds, requests, samples).items():
        table.row(row.title, figures, row.less, row.form)


if __name__ == "__main__":
    main()
