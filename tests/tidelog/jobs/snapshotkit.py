"""A job's partition without Spark: a store with epochs, and their markers on a server."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tidelog import Client, StreamId
from tidelog.jobs import keys
from tidelog.jobs.replaylog.marker import InputSpan, Marker
from tidelog.jobs.snapshots.creation import SnapshotRequest
from tidelog.jobs.snapshots.manifests import folder_of
from tidelog.jobs.snapshots.objects import ObjectStore
from tidelog.jobs.snapshots.restoring import restore
from tidelog.jobs.store import StateStore
from tidelog.jobs.store.environments import forget
from tidelog.transport.access import Access

RUN = "run-a"
PER_EPOCH = 10  # entries of the input an epoch reads


class Job:
    """The job ``count`` with the input ``clicks``: epoch N reads the entries N*10-9 ... N*10, of IDs ``n.0``."""

    def __init__(self, client: Client, url: str, path: Path, partition: int = 0, partitions: int = 1) -> None:
        self.client = client
        self.partition = partition
        self.stream = f"clicks:{partition}"
        self.path = path / str(partition) / "0"
        access = Access((url,), connect_ms=2000, read_ms=5000, retries=2, retry_ms=100)
        self.request = SnapshotRequest(
            "count", 1, partition, partitions, str(self.path), str(path / "objects"), access, 3, patience=20.0
        )
        self.at = 0  # the epoch of the store

    def change(self, **changes: Any) -> None:
        self.request = replace(self.request, **changes)

    @property
    def objects(self) -> ObjectStore:
        return ObjectStore(self.request.url, 20.0)

    @property
    def folder(self) -> str:
        return folder_of("count", self.request.generation, self.partition)

    @property
    def log(self) -> str:
        return keys.log("count", self.partition)

    def append(self, epochs: int) -> None:
        """Entries for so many epochs, and the job's group at the beginning."""
        for n in range(1, epochs * PER_EPOCH + 1):
            self.client.redis.execute_command("TAPPEND", self.stream, "n", str(n))
        entries = self.client.trange(self.stream)
        self.ids = [StreamId(0), *(entry.id for entry in entries)]
        self.client.tread(self.stream, "0", 0, group="job:count")

    def commit(self, epochs: int = 1, run: str = RUN, publish: bool = True) -> None:
        for _ in range(epochs):
            self.at += 1
            with StateStore.open(self.path, generation=self.request.generation) as store:
                changes = store.begin(self.at)
                changes.put([b"\x00at", b"\x00k%d" % self.at], [b"i%d" % self.at, b"v" * 100])
                store.commit(changes, self.at, run)
            if publish:
                self.publish(self.at, run)
        forget(self.path)  # a process can't open an environment twice, and some tests copy it in this one

    def publish(self, epoch: int, run: str = RUN) -> None:
        self.client.tappend(self.log, self.marker(epoch, run).fields())

    def marker(self, epoch: int, run: str = RUN) -> Marker:
        after, end = self.end(epoch - 1), self.end(epoch)
        return Marker(
            epoch, run, self.request.generation, "v", {"clicks": InputSpan(after, end, PER_EPOCH)}, epoch, 0, ""
        )

    def end(self, epoch: int) -> StreamId:
        ids = getattr(self, "ids", None)
        return ids[epoch * PER_EPOCH] if ids is not None else StreamId(epoch * PER_EPOCH)

    def record(self) -> Any:
        text = self.client.redis.get(keys.snapshots("count"))
        return json.loads(text)["partitions"][str(self.partition)] if text else None

    def kept(self) -> list[int]:
        """Epochs of the snapshots that the server knows of."""
        return [each["epoch"] for each in self.record()["kept"]]

    def group(self) -> StreamId:
        (group,) = [each for each in self.client.tgroup_list(self.stream) if each.name == b"job:count"]
        return group.offset

    def marked(self) -> list[int]:
        """Epochs that are in the replay log."""
        return [int(entry["epoch"]) for entry in self.client.trange(self.log)]


def restored(
    job: Job, at_most: int, into: Path, url: str = "", **options: Any
) -> tuple[int, str, dict[bytes, bytes]] | None:  # fmt: skip
    """Epoch, run and data of a store that is made of the newest good snapshot; None if there is none."""
    found = restore(
        url or job.request.url, "count", job.request.generation, job.partition, into, at_most, patience=20.0, **options
    )
    if not found:
        return None
    held = into.with_name("held")

    def fill(empty: Path) -> None:
        shutil.copy(into / "data.mdb", empty)

    with StateStore.create(held, generation=job.request.generation, fill=fill) as store:
        data = dict(store.begin(0).scan(b"\x00"))
        version = store.version
    forget(held)
    shutil.rmtree(held)
    shutil.rmtree(into)
    return version.epoch, version.run, data


@contextmanager
def hanging() -> Iterator[str]:
    """A server that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = []
        closed = False

        def accept() -> None:
            while not closed:
                try:
                    taken.append(server.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        host, port = server.getsockname()
        try:
            yield f"{host}:{port}"
        finally:
            closed = True
            with socket.create_connection((host, port)):
                thread.join(5)
            for each in taken:
                each.close()
