"""Jobs on real input: scripts/demo --jobs runs it. It ends with status 1 if a guarantee is violated.

Two engines, each with its own Spark and disk, share two jobs of examples/jobs_clicks.py: ``count`` adds up clicks, and
``lead`` reads its output. The engine that runs ``count`` is killed with all its processes. The other engine rebuilds
the state and continues. At the end, the demo checks that nothing was lost or counted twice, and plots the result.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

os.environ.setdefault("MPLBACKEND", "Agg")

import matplotlib.pyplot as plt

sys.path.append(str(Path(__file__).parent.parent))

from examples.jobs_clicks import LIMIT, Click, real_clicks
from scripts.demo_output import demo, promise, say, title, which_tidelog
from tidelog import Client
from tidelog.client.steps import run
from tidelog.jobs import keys
from tidelog.jobs.engine.membership import chosen
from tidelog.jobs.registry.overview import JobOverview, JobsOverview, overview
from tidelog.jobs.replaylog.marker import Marker, read_marker
from tidelog.jobs.testengine import EngineTest, running_engine
from tidelog.testing import Server, running_server
from tidelog.topics import Topic

LEASE: Final = 3.0  # seconds
EVERY: Final = 0.1  # seconds between two polls
BATCH: Final = 50  # clicks per send
PATIENCE: Final = 120.0  # timeout of each step, in seconds
ENGINES: Final = ("engine-A", "engine-B")
JOBS: Final = ("count", "lead")
PARTITIONS: Final = 4
QUICK: Final = ("--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
                "--conf", "spark.driver.memory=700m")  # fmt: skip


class Epoch(NamedTuple):
    """One epoch of a job, over all partitions."""

    number: int
    ms: int  # time of publication, since 1970
    rows: int  # rows read
    engine: str


class Watch:
    """Polls the jobs continuously, displays them, and records which engine had which job."""

    def __init__(self, client: Client, engines: dict[str, EngineTest], total: int) -> None:
        self.engines = engines
        self.owners: dict[str, list[tuple[int, str]]] = {name: [] for name in JOBS}  # ms since 1970, engine
        self.sent = 0
        self._client = client
        self._total = total
        self._began = 0.0  # start of the clock; 0: not started
        self._shown = -1.0
        self.seen = self.poll()

    def until(self, true: Callable[[], Any], what: str) -> None:
        """Poll until ``true()``, and display the progress."""
        end = time.monotonic() + PATIENCE
        while not true():
            if time.monotonic() > end:
                logs = "\n".join(f"{name} said: {each.log[-2000:]}" for name, each in self.engines.items())
                promise(False, f"{what} within {PATIENCE:g} s\n{logs}")
            time.sleep(EVERY)
            self.poll()

    def poll(self) -> JobsOverview:
        self.seen = run(self._client, overview())
        for each in self.seen.jobs:
            self.owners[each.spec.name].append((self.seen.at, each.engine))
        if self._began:
            self._show()
        return self.seen

    def _show(self) -> None:
        """Print a line per second."""
        seconds = time.monotonic() - self._began
        if seconds < self._shown + 1:
            return
        self._shown = seconds
        jobs = [f"{name}: {self._line(self.of(name))}" for name in JOBS]
        say(f"{seconds:5.1f} s   sent {self.sent:6,}   counted {self.counted:6,}   {'   '.join(jobs)}")

    def begin(self) -> None:
        """Start the clock."""
        self._began = time.monotonic()

    def of(self, name: str) -> JobOverview:
        return next(each for each in self.seen.jobs if each.spec.name == name)

    def epoch(self, name: str) -> int:
        return min((each.epoch or 0 for each in self.of(name).partitions), default=0)

    @property
    def counted(self) -> int:
        return max(0, self.sent - self.of("count").lag)

    @property
    def ready(self) -> bool:
        """Return whether each job runs on its engine and has read input, so that both engines have started Spark."""
        at_home = all(each.engine == chosen(each.spec.name, ENGINES) for each in self.seen.jobs)
        return at_home and self.idle and all(map(self.epoch, JOBS))

    @property
    def idle(self) -> bool:
        return all(each.state == "running" and not each.lag for each in self.seen.jobs)

    def _line(self, job: JobOverview) -> str:
        return f"{job.engine or 'no engine':9} {job.state:10} epoch {self.epoch(job.spec.name):3}"


def send(topic: Topic[Click], rows: Sequence[Click], watch: Watch, pause: float = 0.0) -> None:
    """Send clicks, with a pause of that many seconds after each BATCH."""
    for at in range(0, len(rows), BATCH):
        watch.sent += topic.sync.send_many(rows[at : at + BATCH])
        time.sleep(pause)
    topic.close_sync()


def clicks_at(server: Server) -> Topic[Click]:
    return Topic("clicks", Click, partition_by="user", partitions=PARTITIONS, url=server.url)


# -- the scenes --------------------------------------------------------------------------------------------------
def play(rows: Sequence[Click], seconds: float, picture: Path) -> None:
    """Play all scenes; ``seconds`` is the duration of the sending."""
    title("1. A server, two engines with Spark, two jobs in a chain: clicks -> count -> totals -> lead -> leaders")
    with running_server() as server, server.client() as client:
        say(which_tidelog(client))
        os.environ["TIDELOG_URL"] = server.url  # for the example, in this process and in the engines
        words = ["jobs", "add", *(f"examples.jobs_clicks:{name}" for name in JOBS)]
        say(f"$ tidelog {' '.join(words)}")
        subprocess.run([sys.executable, "-P", "-m", "tidelog.cli", *words], check=True, cwd=Path(__file__).parents[1])
        a, b = (running_engine(server, name=each, master="local[1]", lease=LEASE, options=QUICK) for each in ENGINES)
        with a as one, b as two:
            watch = Watch(client, dict(zip(ENGINES, (one, two), strict=True)), len(rows))
            began = time.monotonic()
            say(f"{BATCH} clicks are sent; two JVMs begin, which takes a while")
            send(clicks_at(server), rows[:BATCH], watch)
            watch.until(lambda: watch.ready, "both engines have begun")
            for name in JOBS:
                say(f"{watch.of(name).engine} runs {name}")
            say(f"both have Spark, and have read {BATCH} clicks, after {time.monotonic() - began:.0f} s")
            killed = disaster(server, watch, rows, seconds)
        title("3. Is anything lost, duplicated, or counted by both?")
        epochs = {name: epochs_of(client, name, watch.owners[name]) for name in JOBS}
        reckon(client, rows, epochs, killed)
        plot(client, epochs, killed, picture)


def disaster(server: Server, watch: Watch, rows: Sequence[Click], seconds: float) -> int:
    """Kill the engine, and return the time in ms since 1970."""
    victim, other = (watch.of(name).engine for name in JOBS)
    title(f"2. {len(rows):,} clicks are sent; {victim}, which counts, is killed in the middle")
    pause = seconds * BATCH / len(rows)
    sender = threading.Thread(target=send, args=(clicks_at(server), rows[BATCH:], watch, pause), daemon=True)
    watch.begin()
    sender.start()
    watch.until(lambda: watch.counted >= len(rows) // 3, "a third is counted")
    watch.engines[victim].kill()
    killed, at = time.monotonic(), int(time.time() * 1000)
    say(f"kill -9 of {victim}: its Spark, its Python workers. Its disk is not the other's")
    watch.until(lambda: watch.of("count").engine == other, f"{other} has the job")
    say(f"{other} has the job {time.monotonic() - killed:.1f} s later (lease: {LEASE:g} s)")
    watch.until(lambda: _read_by(watch.of("count"), other), f"{other} counts")
    said = watch.of("count").report
    replayed = said.recovered if said is not None else 0
    say(f"to have the state, {other} has replayed {replayed} epochs of {PARTITIONS} partitions")
    watch.until(lambda: not sender.is_alive() and watch.idle, "everything is read")
    say(f"all {len(rows):,} clicks are read, by both jobs")
    return at


def _read_by(job: JobOverview, engine: str) -> int:
    """Return the number of rows that this engine reports as read."""
    return job.report.rows_in if job.report is not None and job.report.engine == engine else 0


def epochs_of(client: Client, name: str, owners: Sequence[tuple[int, str]]) -> list[Epoch]:
    """Return the epochs of a job from its replay logs, each with the engine that had the job at the next poll."""
    found: dict[int, list[tuple[int, Marker]]] = {}
    for at in range(PARTITIONS):
        key = keys.log(name, at)
        markers = [(entry.id.ms, read_marker(key, entry)) for page in client.pages(key) for entry in page]
        numbers = [marker.epoch for _, marker in markers]
        if numbers != list(range(1, len(numbers) + 1)):
            promise(False, f"the epochs of {name}, partition {at}, follow each other: {numbers}")
        for ms, marker in markers:
            found.setdefault(marker.epoch, []).append((ms, marker))
    made = []
    for number, parts in sorted(found.items()):
        ms = max(ms for ms, _ in parts)
        runs = {marker.run.partition(".")[0] for _, marker in parts}
        if len(parts) != PARTITIONS or len(runs) != 1:
            promise(False, f"epoch {number} of {name} is one of all partitions: {parts}")
        rows = sum(span.rows for _, marker in parts for span in marker.inputs.values())
        engine = next((engine for at, engine in owners if at >= ms), owners[-1][1])
        made.append(Epoch(number, ms, rows, engine))
    return made


def reckon(client: Client, rows: Sequence[Click], epochs: dict[str, list[Epoch]], killed: int) -> None:
    for name, done in epochs.items():
        by = Counter(each.engine for each in done)
        say(f"{name}: {len(done)} epochs, " + ", ".join(f"{number} by {engine}" for engine, number in by.items()))
    before = {each.engine for each in epochs["count"] if each.ms <= killed}
    after = [each for each in epochs["count"] if each.ms > killed]
    say(f"count: the first epoch after the kill was published {(after[0].ms - killed) / 1000:.1f} s after it")
    took_over = not before & {each.engine for each in after}
    promise(took_over, "each epoch is there once, in all partitions, without a gap, and both engines have counted")
    promise(sum(each.rows for each in epochs["count"]) == len(rows), f"{len(rows):,} clicks were read, each once")
    last: dict[tuple[str, str], int] = {}
    backwards = 0
    for row in _rows(client, "city-totals"):
        key, number = (row["user"], row["city"]), int(row["clicks"])
        backwards += number <= last.get(key, 0)
        last[key] = number
    exact = Counter((click.user, click.city) for click in rows)
    say(f"totals: {len(last):,} of users and cities, the sum is {sum(last.values()):,}")
    promise(last == exact and not backwards, f"the totals are exact: {len(rows):,}; none was ever put out twice")
    by_day = Counter((click.user, f"{click.at:%Y-%m-%d}") for click in rows)
    wanted = sorted(key for key, number in by_day.items() if number > LIMIT)
    alarms = sorted((row["user"], row["day"]) for row in _rows(client, "alarms"))
    promise(alarms == wanted, f"{len(alarms):,} alarms (more than {LIMIT} clicks a day), each of them once")
    leaders = {row["city"]: row["user"] for row in _rows(client, "leaders")}
    most = {city: max(number for (_, of), number in exact.items() if of == city) for _, city in exact}
    same = {city: exact[user, city] for city, user in leaders.items()} == most
    promise(same, "leaders: " + ", ".join(f"{user} in {city}" for city, user in sorted(leaders.items())))


def _rows(client: Client, name: str) -> list[dict[str, str]]:
    return [entry.text() for at in range(PARTITIONS) for page in client.pages(f"{name}:{at}") for entry in page]


def plot(client: Client, epochs: dict[str, list[Epoch]], killed: int, path: Path) -> None:
    """Plot the clicks sent and counted over time, and below them the epochs of each job and engine."""
    sent = sorted(entry.id.ms for at in range(PARTITIONS) for page in client.pages(f"clicks:{at}") for entry in page)

    def seconds(ms: int) -> float:
        return (ms - sent[0]) / 1000

    figure, (above, below) = plt.subplots(2, 1, figsize=(11, 7), sharex=True, height_ratios=(3, 2))
    figure.set_layout_engine("constrained")
    above.plot([seconds(ms) for ms in sent], range(1, len(sent) + 1), color="0.6", label="clicks sent")
    total, at, counts = 0, [0.0], [0]
    for each in epochs["count"]:
        total += each.rows
        at.append(seconds(each.ms))
        counts.append(total)
    above.step(at, counts, where="post", color="tab:blue", label="counted and published")
    above.set(title="Two engines, one of which is killed", ylabel="clicks")
    lanes = [(job, engine) for job in JOBS for engine in ENGINES]
    for lane, (job, engine) in enumerate(lanes):
        mine = [each for each in epochs[job] if each.engine == engine]
        below.scatter([seconds(each.ms) for each in mine], [lane] * len(mine), marker="|", s=300,
                      color=f"C{ENGINES.index(engine)}")  # fmt: skip
    below.set(title="Epochs", xlabel="seconds", yticks=range(len(lanes)), ylim=(len(lanes) - 0.5, -0.5),
              yticklabels=[f"{job}, {engine} ({sum(each.engine == engine for each in epochs[job])})"
                           for job, engine in lanes])  # fmt: skip
    for axes in (above, below):
        axes.axvline(seconds(killed), color="tab:red", linestyle="--", label="kill -9")
    above.legend(loc="upper left")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", action="store_true", help=argparse.SUPPRESS)  # set by scripts/demo
    parser.add_argument("--plot", type=Path, default=Path(tempfile.gettempdir()) / "tidelog-jobs.png")
    args = parser.parse_args()
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        sys.exit("no Java here, which Spark needs: 17 or newer (Debian: apt-get install openjdk-17-jre-headless)")
    with demo(f"What was sent, counted and killed: {args.plot}"):
        play(list(real_clicks()), 15.0, args.plot)


if __name__ == "__main__":
    main()
