"""``python -m benchmarks.jobs.state``: gets and puts a second of a job's state, by how many keys are in it.

An epoch is what a job's task does with its state: open the store, read a batch of distinct keys at random, write each
with another value, commit, close. So encoding, pre-images, digest and the transaction are in the figure. Seconds of CPU
count, of the system's part too, so that other programs don't disturb; what passed on the clock is beside it. Nothing is
synced: the disk counts only where the system throttles who writes more than it takes.
"""

from __future__ import annotations

import gc
import os
import random
import resource
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import click

from benchmarks.registry import counted
from tidelog.jobs.state import State
from tidelog.jobs.store import StateStore

LOADED = 100_000  # keys of an epoch that fills


def fill(path: Path, keys: int, cache: int) -> None:
    for start in range(0, keys, LOADED):
        with StateStore.open(path, cache=cache) as store:
            changes = store.begin(0)
            some = [f"user{number:08}" for number in range(start, min(keys, start + LOADED))]
            State(changes, int, job="bench").put_many(some, [0] * len(some))
            store.commit(changes, store.version.epoch + 1, "run")


def epoch(path: Path, keys: list[str], cache: int, ttl: float | None) -> dict[str, float]:
    """Seconds of CPU, by step; and what passed."""
    began = perf_counter()
    marks = [process_time()]
    store = StateStore.open(path, cache=cache)
    changes = store.begin(1)
    state: State[int] = State(changes, int, job="bench")
    found = state.get_many(keys)
    marks.append(process_time())
    values = [(value or 0) + 1 for value in found]
    state.put_many(keys, values, ttl)
    marks.append(process_time())
    store.commit(changes, store.version.epoch + 1, "run")
    store.close()
    marks.append(process_time())
    steps = zip(("get", "put", "commit"), marks, marks[1:], strict=False)
    return {"clock": perf_counter() - began, "all": marks[-1] - marks[0]} | {
        step: end - start for step, start, end in steps
    }


def measure(path: Path, keys: int, batch: int, epochs: int, cache: int, ttl: float | None) -> str:
    fill(path, keys, cache)
    chance = random.Random(1)
    runs = []
    for _ in range(epochs + 1):  # the first one meets cold pages
        chosen = [f"user{number:08}" for number in chance.sample(range(keys), min(batch, keys))]
        gc.collect()
        runs.append(epoch(path, chosen, cache, ttl))
    middle: Callable[[str], float] = lambda step: statistics.median(run[step] for run in runs[1:])  # noqa: E731
    with StateStore.open(path) as store:
        size, file = store.disk_bytes, (path / "data.mdb").stat().st_size
    rates = len(chosen) / middle("all"), len(chosen) / middle("clock")
    steps = middle("get") * 1e3, middle("put") * 1e3, middle("commit") * 1e3
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return (
        f"{keys:>11,} {rates[0]:>12,.0f} {rates[1]:>9,.0f} {steps[0]:>8.1f} {steps[1]:>8.1f} {steps[2]:>10.1f}"
        f" {size / 1e6:>9,.0f} {file / 1e6:>9,.0f} {memory:>9,.0f}"
    )


class Sizes(click.ParamType[tuple[int, ...]]):
    """``100k,1M``."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        try:
            return value if isinstance(value, tuple) else tuple(counted(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of counts like 100k,1M", param, ctx)


@click.command()
@click.option("--keys", type=Sizes(), default="100k,1M", show_default=True, help="In the state.")
@click.option("--batch", default=50_000, show_default=True, help="Keys of an epoch.")
@click.option("--epochs", default=9, show_default=True, help="Medians are of so many.")
@click.option("--cache", default=64, show_default=True, help="MB that a commit may take.")
@click.option("--ttl", type=float, help="Put with a time to live of so many seconds.")
@click.option("--at", type=click.Path(path_type=Path), help="A folder on the disk to measure; a temporary one if none.")
def main(keys: tuple[int, ...], batch: int, epochs: int, cache: int, ttl: float | None, at: Path | None) -> None:
    """Measure a state with so many keys. A get and a put of one key count as one."""
    click.echo(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; {batch:,} keys a batch, ints by str")
    click.echo("       keys  gets+puts/s  by clock   get ms   put ms  commit ms  pages MB   file MB    RSS MB")
    with tempfile.TemporaryDirectory(dir=at) as folder:
        for count in keys:
            click.echo(measure(Path(folder) / str(count), count, batch, epochs, cache << 20, ttl))


if __name__ == "__main__":
    main()
