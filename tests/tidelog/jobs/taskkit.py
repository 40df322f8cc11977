"""Tasks without Spark: a bench that plans epochs, runs their tasks in this process, and publishes as a driver does."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.tidelog.jobs import declared
from tidelog import Client, Entry
from tidelog.client.entries import StreamId
from tidelog.jobs import Job, keys
from tidelog.jobs.replaylog.marker import Marker, read_marker
from tidelog.jobs.state import State
from tidelog.jobs.store import StateStore
from tidelog.jobs.task.plan import TaskPlan, TaskResult, TaskSettings
from tidelog.jobs.task.task import run
from tidelog.testing import Server
from tidelog.topics import Topic
from tidelog.transport.access import Access

ZERO = StreamId(0, 0)
MODULE = declared.__name__


class FailedError(Exception):
    """A task said that it failed."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind, self.text = kind, text


class Bench:
    """Runs one job. ``run`` is its run; ``other`` makes a rival's bench for the same job."""

    def __init__(self, server: Server, folder: Path, job: Job, partitions: int) -> None:
        self.server, self.folder, self.partitions = server, folder, partitions
        self.client = server.client()
        self.run = uuid4().hex
        self.now_ms = 0
        self.topics: dict[str, str] = {}
        self.generation = 1
        self.store = ""  # URL of snapshots
        self.snapshot = False
        self.use(job)

    def use(self, job: Job) -> None:
        """Go on with another declaration."""
        setattr(declared, job.name, job)
        self.job = job
        for topic in (*job.inputs, *job.outputs):
            topic.use(sync=self.client)
            topic.sync.ready()

    def other(self, folder: Path) -> Bench:
        """A rival: another run, on another machine's disk."""
        return Bench(self.server, folder, self.job, self.partitions)

    @property
    def where(self) -> TaskSettings:
        access = Access((self.server.url,), retries=2, retry_ms=50)
        return TaskSettings(
            f"{MODULE}:{self.job.name}", (), access, self.generation, self.run, self.partitions, str(self.folder),
            self.store, topics=self.topics,
        )  # fmt: skip

    # -- what is published -----------------------------------------------------------------------------------
    def markers(self, partition: int = 0) -> list[Marker]:
        key = keys.log(self.job.name, partition)
        return [read_marker(key, entry) for entry in self.client.trange(key)]

    def plan(self, partition: int) -> TaskPlan:
        mine = [marker for marker in self.markers(partition) if marker.generation == self.generation]
        last = mine[-1] if mine else None
        starts = {
            topic.name: last.inputs[topic.name].end if last and topic.name in last.inputs else ZERO
            for topic in self.job.inputs
        }
        return TaskPlan(self.where, partition, last.epoch + 1 if last else 1, last, starts, self.snapshot, self.now_ms)

    # -- an epoch --------------------------------------------------------------------------------------------
    def tasks(self) -> list[TaskResult]:
        """The results of the next epoch's tasks; nothing is published. FailedError."""
        plans = [pickle.loads(pickle.dumps(self.plan(at))) for at in range(self.partitions)]  # as Spark does
        results = [pickle.loads(pickle.dumps(run(plan))) for plan in plans]
        for result in results:
            if result.failure is not None:
                raise FailedError(result.failure.kind, result.failure.text)
        return results

    def publish(self, results: Sequence[TaskResult]) -> None:
        stages = [stage for result in results for stage in result.stages]
        epoch = results[0].marker.epoch if results[0].marker else 0
        published = self.client.tpublish(keys.fence(self.job.name, self.generation), epoch, *stages, check=self.run)
        assert published.now

    def epoch(self) -> list[TaskResult]:
        results = self.tasks()
        self.publish(results)
        return results

    def drain(self) -> list[TaskResult]:
        """Epochs until nothing new is left."""
        done = []
        while True:
            results = self.tasks()
            done += results
            self.publish(results)
            markers = [result.marker for result in results if result.marker]
            if not any(result.more for result in results) and not any(
                span.rows for marker in markers for span in marker.inputs.values()
            ):
                return done

    def failed(self, kind: str) -> str:
        """The text of the failure of this kind that the next epoch has."""
        with pytest.raises(FailedError) as raised:
            self.tasks()
        assert raised.value.kind == kind, raised.value
        return raised.value.text

    # -- looking ---------------------------------------------------------------------------------------------
    def lose_state(self) -> None:
        """As on another machine."""
        shutil.rmtree(self.folder / self.job.name, ignore_errors=True)

    def state(self, partition: int = 0) -> dict[bytes, Any]:
        """What is stored, by ``State``."""
        path = self.folder / self.job.name / str(self.generation) / str(partition) / "0"
        with StateStore.open(path, generation=self.generation) as store:
            assert self.job.state is not None
            return dict(State(store.begin(0), self.job.state, job=self.job.name).scan())

    def version(self, partition: int = 0) -> tuple[int, str]:
        path = self.folder / self.job.name / str(self.generation) / str(partition) / "0"
        with StateStore.open(path, generation=self.generation) as store:
            return store.version.epoch, store.version.run


def entries(client: Client, topic: Topic[Any]) -> list[list[Entry]]:
    """All entries, by partition."""
    return [client.trange(topic.stream(at)) for at in range(topic.partitions)]


def texts(client: Client, topic: Topic[Any]) -> list[list[dict[str, str]]]:
    """The fields of all entries, by partition."""
    return [[entry.text() for entry in part] for part in entries(client, topic)]


def changed(job: Job, **options: Any) -> Job:
    """The job, declared otherwise."""
    return replace(job, **options)
