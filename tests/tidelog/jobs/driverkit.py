"""Tasks that stand in for the real ones, and drivers of a job that copies ``in`` to ``out``, partition by partition.

``run`` needs no state and no Arrow: it reads with TRANGE and stages with TSTAGE, and is called in threads or by Spark.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import uuid4

from tidelog.client import calls
from tidelog.client.entries import Entry, StreamId
from tidelog.client.steps import checked
from tidelog.jobs import Job, keys
from tidelog.jobs.epochs.driver import Driver
from tidelog.jobs.replaylog.marker import InputSpan, Marker
from tidelog.jobs.task.plan import TaskFailure, TaskPlan, TaskResult, TaskSettings
from tidelog.testing import Server
from tidelog.topics import Topic
from tidelog.transport.access import Access
from tidelog.transport.leader import LeaderConnection

PARTITIONS = 2
MADE: list[Driver] = []
MOST = 100  # entries of an input in one epoch and partition


def numbers(name: str, server: Server, **options: Any) -> Topic[dict[str, Any]]:
    """A topic of entries ``{"n": ...}``."""
    return Topic(name, dict, url=server.url, **({"partitions": PARTITIONS} | options))


def copy(server: Server, **options: Any) -> Job:
    """A job that copies ``in`` to ``out``; topics as given."""
    given = {"inputs": (numbers("in", server),), "outputs": (numbers("out", server),)} | options
    return Job(lambda batch: None, "copy", "batch", **given)


def made(*topics: Topic[Any]) -> None:
    """Write what the topics are to the server."""
    for topic in topics:
        topic.sync.ready()
        topic.sync.close()


def run(plan: TaskPlan) -> TaskResult:
    """Copy what each input has to ``out``, to the same partition; at most MOST entries of each."""
    servers = LeaderConnection(
        replace(plan.where.access, retries=0), "stand-in"
    )  # a retry would stage twice
    try:
        spans: dict[str, InputSpan] = {}
        read: list[Entry] = []
        more = False
        for topic, after in plan.starts.items():
            # a topic of one partition is broadcast: the first stream is all that there is
            wide = plan.where.partitions if checked(servers.ask(calls.tlen(f"{topic}:1")))[0] or topic == "in" else 1
            stream = f"{topic}:{plan.partition if wide > 1 else 0}"
            (entries,) = checked(servers.ask(calls.trange(stream, f"({after}", "+", MOST)))
            spans[topic] = InputSpan(after, entries[-1].id if entries else after, len(entries))
            read += entries
            more = more or len(entries) == MOST
        now = max((span.end.ms for span in spans.values()), default=0)
        marker = Marker(plan.epoch, plan.where.run, plan.where.generation, "v", spans, now, len(read), "")
        stage = f"stand-in:{uuid4().hex}"
        ttl, fields = plan.where.stage_ttl_ms, marker.fields()
        log = calls.tstage(stage, ttl, keys.log("copy", plan.partition), list(fields), [list(fields.values())])
        rows = [(entry["n"], os.getpid()) for entry in read]
        out = [calls.tstage(stage, ttl, f"out:{plan.partition}", ["n", "by"], rows)] if rows else []
        checked(servers.ask(*out, log))
        return TaskResult(plan.partition, (stage,), marker, more, seconds={"read": 0.001 * (1 + plan.partition)})
    except OSError as error:
        return TaskResult(plan.partition, failure=TaskFailure("", repr(error)))
    finally:
        servers.close()


def in_threads(plans: Sequence[TaskPlan]) -> list[TaskResult]:
    with ThreadPoolExecutor(len(plans)) as pool:
        return list(pool.map(run, plans))


def driver(server: Server, job: Job, generation: int = 1, **options: Any) -> Driver:
    """A driver with tasks in threads, closed by ``close_drivers``."""
    settings: dict[str, Any] = {"access": Access((server.url,), retry_ms=5), "tasks": in_threads} | options
    access, tasks, start = settings["access"], settings["tasks"], settings.get("start")
    where = TaskSettings("any:copy", (), access, generation, "", 0, "/nowhere", settings.get("store", ""))
    made = Driver(job, where, tasks, start)
    MADE.append(made)
    return made


def close_drivers() -> None:
    """Close all that were made."""
    while MADE:
        MADE.pop().close()


def append(client: Any, *values: int, stream: str = "in:0") -> list[StreamId]:
    return [client.tappend(stream, {"n": value}) for value in values]


def out(client: Any, partitions: int = PARTITIONS) -> list[list[int]]:
    """What was put out, by partition."""
    return [[int(entry["n"]) for entry in client.trange(f"out:{at}")] for at in range(partitions)]


def epochs(client: Any, partition: int = 0) -> list[int]:
    """The epochs in the replay log."""
    return [int(entry["epoch"]) for entry in client.trange(keys.log("copy", partition))]
