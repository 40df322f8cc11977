"""How rows a second change with the size of the state, and with the number of keys in a batch.

The state is filled first, each key once; then BATCHES batches are measured whose keys are spread over all of it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.jobs import engines, loads, rates
from benchmarks.jobs.keyed import WAYS
from benchmarks.jobs.loads import Load
from tidelog import Client
from tidelog.testing import Server, running_server

BATCHES: Final = 8
FILL: Final = 500_000  # rows of a batch that fills the state
Figures = Iterator[tuple[str, int, float]]  # as they are measured: the way, a number of keys, rows a second


def by_state(sizes: Sequence[int], batch: int, ways: Sequence[str], most: int) -> Figures:
    """With so many keys in the state. most: keys up to which Spark's own ways are measured too: to fill their state
    takes them long.
    """
    for size in sizes:
        with running_server() as server, server.client() as client:
            load = Load(BATCHES * batch, size, batch)
            with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as folder:
                _filled(server, client, load, Path(folder), ways if size <= most else ())
                loads.fill(server, load, first=size)
                yield rates.OURS, size, _ours(server, client, load, Path(folder))
                for way in ways if size <= most else ():
                    yield WAYS[way], size, rates.peer(server, way, load, f"--checkpoint={folder}/checkpoint-{way}")


def by_keys(keys: Sequence[int], batch: int, ways: Sequence[str]) -> Figures:
    """With so many keys in a batch, and in the state."""
    for number in keys:
        rated = rates.keyed(Load(BATCHES * batch, number, batch), ways, 1)
        yield from ((way, number, rate) for way, rate in rated.items())


def _filled(server: Server, client: Client, load: Load, folder: Path, ways: Sequence[str]) -> None:
    """Each key once in the state of each way."""
    whole = Load(load.keys, load.keys, FILL)
    loads.fill(server, whole)
    engines.add(server, "count")
    with engines.running(server, folder, most=whole.most) as engine:
        engines.until(partial(engines.done, client, "count", whole.rows), f"{whole.rows:,} keys", engine)
    for way in ways:
        rates.peer(server, way, whole, f"--checkpoint={folder}/checkpoint-{way}")
    rates.emptied(client)


def _ours(server: Server, client: Client, load: Load, folder: Path) -> float:
    """Go on with the state that is in the folder."""
    before = len(engines.epochs(client, "count"))
    with engines.running(server, folder, most=load.most) as engine:
        engines.until(partial(engines.done, client, "count", load.keys + load.rows), f"{load.rows:,} rows", engine)
    return engines.rate(engines.epochs(client, "count")[before:], rates.WARM)[0]
