"""The demo of a cluster whose slots move (scripts/demo --cluster). Its exit code is 1 if a guarantee is violated.

``tidelog cluster up`` starts two groups of one server each, which share a topic of 8 partitions. The programs of
examples/cluster_clicks.py read it: a job on Spark counts the clicks, and two worker processes append each click to a
stream of its user. Meanwhile, all slots of group 1 move to group 2, with their keys. Then half of all slots move back,
and the partitions are distributed evenly again. At the end, the demo checks that nothing was lost, duplicated, or out
of order, and plots the result.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

import redis

sys.path.append(str(Path(__file__).parent.parent))

from examples.jobs_clicks import Click, real_clicks
from scripts.demo_clusterplot import Poll, plot
from scripts.demo_clusterprograms import BATCH, Cluster, Move, Sender, running, running_cluster
from scripts.demo_output import demo, promise, say, title, which_tidelog
from tidelog import Client
from tidelog.client.steps import run
from tidelog.cluster.errors import ClusterError
from tidelog.jobs.registry.overview import overview
from tidelog.jobs.testengine import EngineTest, running_engine
from tidelog.topics import Topic
from tidelog.workers.operate.status import read_status

if TYPE_CHECKING:
    from tidelog.testing import Server

EXAMPLE: Final = "examples.cluster_clicks"
PARTITIONS: Final = 8
WORKERS: Final = 2
EVERY: Final = 0.1  # seconds between two polls
PATIENCE: Final = 120.0  # timeout of each step, in seconds
MOVES: Final = (
    ("cluster", "rebalance", "--without", "1"),
    ("cluster", "rebalance"),
    ("topics", "balance", "all-clicks", "--move"),
)
QUICK: Final = ("--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
                "--conf", "spark.driver.memory=700m")  # fmt: skip


class Watch:
    """Polls the job, the workers, and the map, and displays the progress."""

    def __init__(self, cluster: Cluster, client: Client, engine: EngineTest, workers: Path) -> None:
        from examples.cluster_clicks import app  # here: the environment has the URL by now

        self.polls: list[Poll] = []  # the last one before the sending, and all since
        self.sender: Sender | None = None
        self._app = app
        self._cluster = cluster
        self._client = client
        self._engine = engine
        self._workers = workers  # their log
        self._shown = 0.0
        self._problem = ""

    def until(self, true: Callable[[Poll], Any], what: str) -> None:
        """Poll until ``true`` of a poll, and display the progress."""
        end = time.monotonic() + PATIENCE
        while not (self._poll() and true(self.polls[-1])):
            if self.sender is not None and self.sender.error:
                promise(False, f"all clicks are sent; the error is {self.sender.error}")
            if time.monotonic() > end:
                workers = self._workers.read_text(errors="replace")[-2000:]
                logs = f"log of the engine: {self._engine.log[-2000:]}\nlog of the workers: {workers}"
                promise(False, f"{what} within {PATIENCE:g} s; last poll: {self.polls[-1:]} {self._problem}\n{logs}")
            time.sleep(EVERY)

    def until_sent(self, count: int) -> None:
        self.until(lambda poll: poll.sent >= count, f"{count:,} clicks are sent")

    def _poll(self) -> bool:
        """Return whether the cluster replied: a call waits while its slots move, up to a timeout."""
        sent = self.sender.sent if self.sender else 0
        try:
            jobs = run(self._client, overview()).jobs
            visits = run(self._client, read_status(self._app)).processors
            owners = self._cluster.owners("all-clicks", PARTITIONS)
        except (redis.RedisError, ClusterError, OSError) as error:
            self._problem = repr(error)
            return False
        unread = sum(each.lag for each in jobs)
        counting = all(each.state == "running" and each.partitions and each.partitions[0].epoch for each in jobs)
        parts = [part for each in visits for part in each.partitions]
        if self.sender is None:
            self.polls.clear()
        self.polls.append(Poll(
            time.time(), sent, max(0, sent - unread), sum(part.finished for part in parts), owners,
            ready=bool(counting) and sum(len(each.alive) for each in visits) == WORKERS,
            unread=unread + sum(part.unfinished for part in parts),
        ))  # fmt: skip
        if self.sender is not None and time.monotonic() >= self._shown + 1:
            self._shown = time.monotonic()
            self._show(self.polls[-1])
        return True

    @staticmethod
    def _show(poll: Poll) -> None:
        done = f"sent {poll.sent:6,}   counted {poll.counted:6,}   visited {poll.visited:6,}"
        say(f"{done}   groups of partitions {''.join(poll.owners)}")


# -- the scenes --------------------------------------------------------------------------------------------------
def play(rows: Sequence[Click], seconds: float, picture: Path) -> None:
    """Play all scenes; ``seconds`` is the duration of the sending."""
    title("1. Two groups, a topic of 8 partitions, a job on Spark, and two workers")
    folder = Path(tempfile.mkdtemp(prefix="tidelog-demo-"))
    try:
        with running_cluster(folder / "cluster") as cluster, Client(cluster.url) as client:
            os.environ["TIDELOG_URL"] = cluster.url  # for the example, in this process and in others
            say(which_tidelog(client))
            scenes(cluster, client, folder / "workers.log", rows, seconds, picture)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def scenes(
    cluster: Cluster, client: Client, log: Path, rows: Sequence[Click], seconds: float, picture: Path
) -> None:  # fmt: skip
    topic: Topic[Click] = Topic("all-clicks", Click, partition_by="user", partitions=PARTITIONS, url=cluster.url)
    server = cast("Server", SimpleNamespace(url=cluster.url))
    engine = running_engine(server, f"{EXAMPLE}:tally_cities", master="local[2]", options=QUICK)
    workers = running(log, "worker", f"{EXAMPLE}:app", "--workers", str(WORKERS))
    moves = [Move(each) for each in MOVES]
    sender = Sender(topic, rows, seconds)
    sender.first()
    with closing(sender), engine as job, workers:
        watch = Watch(cluster, client, job, log)
        say(f"{sender.sent} clicks were sent; a JVM and two workers are starting, which takes a while")
        watch.until(lambda poll: poll.ready, "the job and the workers have started")
        say(f"the groups of the {PARTITIONS} partitions: {' '.join(watch.polls[-1].owners)}")
        title(f"2. {len(rows):,} clicks are sent, and slots move with their keys")
        watch.sender = sender
        sender.start()
        for number, move in enumerate(moves, 1):
            part = len(rows) * number // (len(moves) + 2)
            watch.until_sent(part)
            perform(cluster, watch, sender, move)
        sender.moved.set()
        watch.until(
            lambda poll: poll.sent == len(rows) and not poll.unread and not sender.is_alive(), "everything is read"
        )
        say(f"the job has counted all {len(rows):,} clicks, and the workers have processed them")
    title("3. Is anything lost, duplicated, or out of order?")
    reckon(client, rows, [set(poll.owners) for poll in watch.polls])
    plot(topic_times(client), watch.polls, moves, picture)


def perform(cluster: Cluster, watch: Watch, sender: Sender, move: Move) -> None:
    """Run a command that moves slots, and poll meanwhile."""
    say(f"$ {move.command}")
    before, sender.longest = sender.sent, 0.0
    thread = threading.Thread(target=cluster.run, args=(move,))
    move.began = time.time()
    thread.start()
    watch.until(lambda _: not thread.is_alive(), f"{move.command} ends")
    move.ended = time.time()
    move.sent, move.longest = sender.sent - before, sender.longest
    for line in move.output[-3:]:
        say(f"  {line}")
    if move.status:
        promise(False, f"{move.command} succeeds; its exit code is {move.status}")
    longest = f"{move.longest * 1000:.0f} ms"
    say(f"  {move.sent:,} clicks were sent meanwhile, {BATCH} at a time; the longest send took {longest}")


def reckon(client: Client, rows: Sequence[Click], owners: list[set[str]]) -> None:
    promise(
        {"2"} in owners and owners[-1] == {"1", "2"}, "all partitions were on group 2, and then on both groups again"
    )
    sent = sum(1 for _ in _rows(client, "all-clicks"))
    promise(sent == len(rows), f"{sent:,} clicks are in the topic, each once")
    exact = Counter((click.user, click.city) for click in rows)
    last: dict[tuple[str, str], int] = {}
    backwards = 0
    for row in _rows(client, "all-totals"):
        key, number = (row["user"], row["city"]), int(row["clicks"])
        backwards += number <= last.get(key, 0)
        last[key] = number
    say(f"the job: {len(last):,} totals of users and cities, the sum is {sum(last.values()):,}")
    promise(last == exact and not backwards, "each click was counted once, and no total was published twice")
    wanted: dict[str, list[tuple[str, str]]] = {}
    for click in rows:
        wanted.setdefault(click.user, []).append((click.city, click.at.isoformat()))
    found = {user: [(row["city"], row["at"]) for row in _stream(client, f"visits:{user}")] for user in wanted}
    say(f"the workers: {sum(map(len, found.values())):,} visits of {len(found):,} users")
    exactly = {user: Counter(visits) for user, visits in found.items()}
    promise(exactly == {user: Counter(visits) for user, visits in wanted.items()}, "each click is there once")
    promise(found == wanted, "the clicks of each user are in order")


def topic_times(client: Client) -> list[tuple[float, int]]:
    """Return when each click was appended, in seconds since 1970, and its partition."""
    return [
        (entry.id.ms / 1000, at)
        for at in range(PARTITIONS)
        for page in client.pages(f"all-clicks:{at}")
        for entry in page
    ]


def _rows(client: Client, topic: str) -> Iterator[dict[str, str]]:
    for at in range(PARTITIONS):
        yield from _stream(client, f"{topic}:{at}")


def _stream(client: Client, key: str) -> Iterator[dict[str, str]]:
    return (entry.text() for page in client.pages(key) for entry in page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cluster", action="store_true", help=argparse.SUPPRESS)  # set by scripts/demo
    parser.add_argument(
        "--plot", type=Path, default=Path(tempfile.gettempdir()) / "tidelog-cluster.png", metavar="FILE",
        help="the PNG file of the plot",
    )  # fmt: skip
    args = parser.parse_args()
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        sys.exit("Spark needs Java 17 or newer, which was not found (Debian: apt-get install openjdk-17-jre-headless)")
    with demo(f"Plot of the rates and of the groups of the partitions: {args.plot}"):
        play(list(real_clicks()), 20.0, args.plot)


if __name__ == "__main__":
    main()
