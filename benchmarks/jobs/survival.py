"""Seconds that are lost: a state that is recovered on an empty disk; an engine that is killed."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.jobs import engines, loads
from benchmarks.jobs.defined import SNAPSHOT
from benchmarks.jobs.loads import Load
from tidelog import Client
from tidelog.jobs import keys
from tidelog.testing import Server, running_server
from tidelog.topics.partition import partition_of

JOB: Final = "count"
MOST: Final = 500_000  # rows of a batch, in both partitions
STEADY: Final = 50  # entries a second while an engine is killed
WARM: Final = 5.0  # seconds before that


class Recovery(NamedTuple):
    """Seconds from the start of an engine to the next epoch: with an empty disk, and with the state in its place."""

    empty: float
    there: float
    replayed: int  # rows

    @property
    def seconds(self) -> float:
        """Of the recovery alone: in both cases Spark starts."""
        return self.empty - self.there


def recovery(rows: int) -> Recovery:
    """Of a state of so many keys: a snapshot of all of them, then each key once more, without a snapshot."""
    load = Load(rows, rows, MOST)
    with running_server() as server, server.client() as client, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = f"file://{folder}/store"
        (folder / "store").mkdir()
        loads.fill(server, load)
        engines.add(server, JOB, store=store)
        with engines.running(server, folder, most=load.most, also={SNAPSHOT: "1"}) as engine:
            engines.until(partial(engines.done, client, JOB, rows), f"{rows:,} rows", engine)
            _more(server, load, rows, loads.PARTITIONS * 10)  # a snapshot is made when an epoch begins
            engines.until(partial(_kept, client, len(engines.epochs(client, JOB))), "a snapshot of all", engine)
        read = sum(epoch.rows for epoch in engines.epochs(client, JOB))
        _more(server, load, read, rows)
        with engines.running(server, folder, most=load.most) as engine:
            engines.until(partial(engines.done, client, JOB, read + rows), f"{rows:,} rows more", engine)
        there = _begun(server, client, folder, load, read + rows)
        shutil.rmtree(folder / "one")
        empty = _begun(server, client, folder, load, read + rows + loads.PARTITIONS * 10)
        return Recovery(empty, there, rows)


def _more(server: Server, load: Load, first: int, rows: int) -> None:
    loads.fill(server, load._replace(rows=rows), first)


def _kept(client: Client, epoch: int) -> bool:
    """Whether each partition has a snapshot of this epoch or the one before, which has all keys."""
    text = client.redis.get(keys.snapshots(JOB))
    if text is None:
        return False
    records: dict[str, Any] = json.loads(text)["partitions"]
    newest = [max((kept["epoch"] for kept in record["kept"]), default=0) for record in records.values()]
    return len(newest) == loads.PARTITIONS and min(newest) >= epoch - 1


def _begun(server: Server, client: Client, folder: Path, load: Load, read: int) -> float:
    """Seconds from the start of an engine until it has read some new entries."""
    more = loads.PARTITIONS * 10
    _more(server, load, read, more)
    began = time.time()
    with engines.running(server, folder, most=load.most) as engine:
        engines.until(partial(engines.done, client, JOB, read + more), "the next epoch", engine)
    return engines.epochs(client, JOB)[-1].ms / 1000 - began


def takeover(lease: float) -> float:
    """Seconds from SIGKILL to an engine until another, whose session is warm, publishes the job's next epoch."""
    options = ("--lease", str(lease))
    with running_server() as server, server.client() as client, tempfile.TemporaryDirectory() as name:
        loads.fill(server, Load(loads.PARTITIONS * 10, loads.PARTITIONS * 10, 1))
        engines.add(server, JOB, "split")
        with (
            engines.running(server, Path(name), "one", options=options) as one,
            engines.running(server, Path(name), "two", options=options) as two,
            _feeding(server),
        ):
            both = {"one": one, "two": two}
            engines.until(partial(_warm, client, both), "both engines run jobs", one)
            time.sleep(WARM)
            owner = _engine(client, JOB)
            left = next(engine for each, engine in both.items() if each != owner)
            both[owner].kill()
            killed = engines.server_ms(client)
            engines.until(lambda: engines.epochs(client, JOB)[-1].ms > killed, "the next epoch", left)
            after = [epoch.ms for epoch in engines.epochs(client, JOB) if epoch.ms > killed]
            return (after[0] - killed) / 1000


def _engine(client: Client, job: str) -> str:
    """The engine that runs a job; "" if none says so."""
    text = client.redis.get(keys.status(job))
    found: dict[str, str] = {} if text is None else json.loads(text)
    return found.get("engine", "") if found.get("state") == "running" else ""


def _warm(client: Client, both: dict[str, engines.Engine]) -> bool:
    """Whether both jobs have had an epoch, and both engines have a session."""
    ran = all(_engine(client, job) for job in (JOB, "split")) and engines.epochs(client, JOB)
    return bool(ran) and all("Spark" in engine.log.read_text() for engine in both.values())


@contextmanager
def _feeding(server: Server) -> Iterator[None]:
    """Entries arrive meanwhile."""
    done = threading.Event()

    def feed() -> None:
        with server.client() as client:
            number = 0
            while not done.wait(1 / STEADY):
                stream = loads.clicks.stream(partition_of(f"fed-{number}", loads.PARTITIONS))
                client.tappend(stream, {"n": number, "key": f"fed-{number}", "price": 50})
                number += 1

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        yield
    finally:
        done.set()
        feeder.join()
