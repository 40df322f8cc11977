"""A stateful job over the groups of a cluster, with tasks in this process, and the check that its totals are exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tests.replication.clusters import Groups
from tests.tidelog.jobs import declared
from tidelog import Client, calls
from tidelog.client.steps import Steps
from tidelog.jobs import MicroBatch, State, job
from tidelog.jobs.commits import commit_of
from tidelog.jobs.epochs.driver import Driver
from tidelog.jobs.errors import SupersededError, TryAgainError
from tidelog.jobs.task.plan import TaskPlan, TaskResult, TaskSettings
from tidelog.jobs.task.task import connection_to, run
from tidelog.topics import Topic
from tidelog.transport.access import Access
from tidelog.transport.slots import SLOTS, slot_of

PARTITIONS = 4
USERS = 7


class Click(msgspec.Struct):
    user: str
    n: int


class Total(msgspec.Struct):
    user: str
    clicks: int


def counted(batch: MicroBatch, state: State[int]) -> pa.Table:
    """Count the clicks of each user of the batch, and return the totals that have changed."""
    found = pc.value_counts(batch.table["user"]).to_pylist()
    users = [each["values"] for each in found]
    now = [(old or 0) + each["counts"] for old, each in zip(state.get_many(users), found, strict=True)]
    state.put_many(users, now)
    return pa.table({"user": users, "clicks": now})


def some(first: int, number: int) -> list[Click]:
    return [Click(f"user-{n % USERS}", n) for n in range(first, first + number)]


def entries(client: Client, topic: Topic[Any]) -> list[dict[str, str]]:
    return [entry.text() for at in range(PARTITIONS) for entry in client.trange(topic.stream(at))]


def check(client: Client, copies: Topic[Any], totals: Topic[Any], sent: int) -> None:
    """Each click was copied once, and the totals of a user increase up to the number of its clicks."""
    assert Counter(int(entry["n"]) for entry in entries(client, copies)) == Counter(range(sent))
    found: dict[str, list[int]] = {}
    for entry in entries(client, totals):
        found.setdefault(entry["user"], []).append(int(entry["clicks"]))
    for user in range(USERS):
        counts = found[f"user-{user}"]
        assert counts == sorted(set(counts))
        assert counts[-1] == len(range(user, sent, USERS))


class KilledError(Exception):
    """The driver ends here."""


def killed(steps: Steps[Any], after: int, then: Callable[[], None] | None = None) -> Steps[Any]:
    """Run some steps of an operation, and raise KilledError; or call ``then``, and run the rest."""
    wanted = next(steps)
    at = 0
    while True:
        if at == after:
            if then is None:
                raise KilledError
            then()
        replies = yield wanted
        at += 1
        try:
            wanted = steps.send(replies)
        except StopIteration as end:
            return end.value


def in_order(plans: Sequence[TaskPlan]) -> list[TaskResult]:
    return list(map(run, plans))


@dataclass
class CountJob:
    """The job ``name``, which copies clicks and counts them by user. Topics have the names of the job."""

    name: str
    url: str
    folder: Path
    sent: int = 0
    drivers: list[Driver] = field(default_factory=list)

    def __post_init__(self) -> None:
        options: dict[str, Any] = {"url": self.url, "partition_by": "user", "partitions": PARTITIONS}
        self.clicks: Topic[Click] = Topic(f"{self.name}-clicks", Click, **options)
        self.copies: Topic[Click] = Topic(f"{self.name}-copies", Click, **options)
        self.totals: Topic[Total] = Topic(f"{self.name}-totals", Total, **options)
        self.job = job(
            inputs=[self.clicks], outputs=[self.copies, self.totals], state=int, name=self.name, max_rows=20
        )(self.count)
        setattr(declared, self.name, self.job)
        self.clicks.sync.ready()
        self.access = replace(Access.of(self.url), retries=100, retry_ms=50)

    def count(self, batch: MicroBatch, state: State[int]) -> dict[Topic[Any], pa.Table]:
        return {self.copies: batch.table, self.totals: counted(batch, state)}

    def send(self, number: int = 40) -> None:
        self.clicks.sync.send_many(some(self.sent, number))
        self.sent += number

    def driver(self, generation: int = 1, start: str | None = None, folder: str = "state") -> Driver:
        """A driver, on a machine of its own if it has another folder."""
        where = TaskSettings(
            f"{declared.__name__}:{self.name}", (), self.access, generation, "", 0, str(self.folder / folder)
        )
        made = Driver(self.job, where, in_order, start)
        self.drivers.append(made)
        return made

    def drain(self, driver: Driver) -> None:
        """Run epochs until everything is read."""
        failed = 0
        while True:
            try:
                outcome = driver.step()
            except (TryAgainError, SupersededError, OSError):
                failed += 1
                assert failed < 30
                continue
            if not outcome.published and not outcome.waiting:
                return

    def check(self, client: Client) -> None:
        check(client, self.copies, self.totals, self.sent)

    def close(self) -> None:
        for driver in self.drivers:
            driver.close()
        self.clicks.sync.close()
        for access in (self.access, self.access.single_attempt(self.access.read_ms)):
            connection_to(access).close()  # tasks keep their connections


def on_both(made: CountJob) -> bool:
    """Whether each topic, and the replay logs, have partitions in both halves of the slots."""
    names = [made.clicks.name, made.copies.name, made.totals.name, f"job:{made.name}:log"]
    return all({slot_of(f"{name}:{at}") * 2 // SLOTS for at in range(PARTITIONS)} == {0, 1} for name in names)


def stages(groups: Groups) -> int:
    return sum(int(node.redis.info("streams")["stages"]) for node in groups.nodes)


def left(client: Client, name: str, generation: int = 1) -> list[int]:
    """The numbers of markers and of intents that a job has left."""
    lengths = client.together(*map(calls.tlen, commit_of(name, generation).keys), raise_on_error=False)
    return [length if isinstance(length, int) else 0 for length in lengths]
