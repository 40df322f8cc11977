"""``python -m benchmarks.continuousbackup``: CPU time of a leader per append, with a continuous backup and without.

Rule 1: the leader runs on the first core; the backup process and the load generator run on the last.
Rule 2: both are measured in each round, in alternating order, on the same server. The cost of a round is the ratio of
the two, and the table shows medians of the rounds' figures. The ratio is therefore independent of slow changes of the
machine.
Rule 3: a measurement ends SETTLED seconds after the load, when the backup has all appends. Both kinds include that
time, because an idle leader uses some CPU time, too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import click

from benchmarks import facts
from benchmarks.cputime import Meter
from benchmarks.entries import SENSOR, append_words
from benchmarks.load import redis_benchmark
from benchmarks.replication import Row, Rows
from benchmarks.servers import Peer, environment, installations, on_load_core, peers_of
from benchmarks.table import Table

LOADS = ((1, 1), (50, 1), (50, 16))  # clients, pipeline
PATIENCE = 60.0  # seconds
SETTLED = 2.5  # seconds; more than the lag of the backup


class Backup:
    """A process of ``tidelog backup --continuous``, as a context manager."""

    def __init__(self, leader: Peer, target: Path) -> None:
        self.leader = leader
        self.target = target

    def __enter__(self) -> Backup:
        command = [sys.executable, "-P", "-m", "tidelog.cli", "backup", str(self.target), "--continuous", "--lag", "1"]
        command += ["--url", f"redis://127.0.0.1:{self.leader.port}"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(True))
        assert self.process.stdout is not None
        line = self.process.stdout.readline()  # "base backup ..." or "following the log ..."
        if not line:
            raise click.ClickException("the backup did not start")
        time.sleep(1)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        assert self.process.stdout is not None
        self.process.stdout.read()
        self.process.stdout.close()
        if self.process.wait(PATIENCE):
            raise click.ClickException("the backup failed")

    def check(self) -> None:
        """Wait until the target has the whole log of the leader. Raises click.ClickException after PATIENCE seconds."""
        with self.leader.client() as client:
            end = int(client.info("replication")["master_repl_offset"])
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            ends = [int(path.name.split("-")[1]) for path in self.target.glob("logs/*/*-*-*-*-*-*")]
            if max(ends, default=0) >= end:
                return
            time.sleep(0.1)
        raise click.ClickException("the backup did not catch up")


def spent(leader: Peer, words: list[str], requests: int, clients: int, pipeline: int) -> float:
    """CPU time of the leader per append, in microseconds."""
    assert leader.process is not None
    meter = Meter(leader.process.pid)
    redis_benchmark(leader.port, words, requests, clients, pipeline)
    time.sleep(SETTLED)
    return 1e6 * meter.spent().whole / requests


def measure(rounds: int, requests: int) -> Rows:
    rows: Rows = defaultdict(lambda: defaultdict(list))
    with (
        peers_of(installations(peer=False), "always") as (leader,),
        tempfile.TemporaryDirectory(prefix="tidelog-bench-") as target,
    ):
        leader.start()
        words = [*append_words(leader, "s"), *SENSOR]
        for number in range(rounds + 1):
            for clients, pipeline in LOADS:
                count = requests * pipeline
                found: dict[bool, float] = {}
                for backed_up in (True, False) if number % 2 else (False, True):
                    if backed_up:
                        with Backup(leader, Path(target)) as backup:
                            found[True] = spent(leader, words, count, clients, pipeline)
                            backup.check()
                    else:
                        found[False] = spent(leader, words, count, clients, pipeline)
                if number:  # the first round warms up
                    name = f"leader's CPU per append, always, {clients} clients, P {pipeline}"
                    rows[Row(f"{name}, us", True, ",.2f")]["tidelog"].append(found[False])
                    rows[Row(f"{name}, continuous backup, us", True, ",.2f")]["tidelog"].append(found[True])
                    rows[Row(f"{name}, ratio", True, ".3f")]["tidelog"].append(found[True] / found[False])
    return rows


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rounds", default=7, show_default=True, help="Counted rounds; each measures without and with a backup.")
@click.option("--requests", default=20_000, show_default=True, help="Appends of a run, per command of a pipeline.")
def main(rounds: int, requests: int) -> None:
    """Measure what a continuous backup costs its leader. Figures are medians (min-max) of the rounds."""
    on_load_core()
    installed = installations(peer=False)
    table = Table([one.name for one in installed], targets=False)
    load = f"load average {os.getloadavg()[0]:.1f} before the start"
    click.echo(f"{facts.summary(facts.machine(), facts.described(installed))}\n{rounds} rounds, {load}\n")
    click.echo(table.head())
    for row, figures in measure(rounds, requests).items():
        table.row(row.title, figures, row.less, row.form)


if __name__ == "__main__":
    main()
