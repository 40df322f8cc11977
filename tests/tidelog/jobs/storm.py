"""A storm: engines with all that they started, the server, and what lies on disks are hurt while clicks come in."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import redis

from tests.tidelog.jobs.enginekit import ROOT
from tests.tidelog.jobs.stormengine import LEASE, Engine, send
from tests.tidelog.jobs.stormjobs import KEPT, PARTITIONS, SOURCE
from tests.waiting import eventually
from tidelog.client import Client
from tidelog.jobs import keys
from tidelog.jobs.snapshots import catalog
from tidelog.testing import Server
from tidelog.topics import partition_of

USERS: Final = 40
ENGINES: Final = ("e1", "e2")
BACKLOG: Final = 20_000  # clicks that are sent and not counted, before more are sent
PROGRESS: Final = 120.0  # seconds in which there must be an epoch of each job


class Storm:
    """``server`` and engines in ``folder``, which are hurt as ``chance`` says."""

    def __init__(self, server: Server, folder: Path, chance: random.Random) -> None:
        self.counts: dict[str, int] = {}  # what was done, how often
        self.wrong: list[str] = []  # what the follower and others have seen
        self.sent = 0  # clicks whose sending was acknowledged
        self.epochs = dict.fromkeys(PARTITIONS, 0)
        self.engines = len(ENGINES)  # so many there should be
        self._began = time.monotonic()
        self._folder, self._server, self._chance = folder, server, chance
        self._client = Client(server.url)
        self._engines: list[Engine] = []
        self._all: list[Engine] = []
        self._paused = threading.Event()  # no clicks
        self._over = threading.Event()
        self.followed = [Follower(name, at, self) for name, many in PARTITIONS.items() for at in range(many)]
        self._cut: set[Path] = set()  # snapshots that were truncated
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._send, self._follow)]
        (folder / "chainjobs.py").write_text(SOURCE)

    # -- the whole ------------------------------------------------------------------------------------------------
    def begin(self) -> None:
        """Add the jobs, start engines and clicks; all three jobs have published when it returns."""
        command = [sys.executable, "-m", "tidelog.cli", "jobs", "add", "--all", "chainjobs", "--url", self._server.url]
        subprocess.run(command, cwd=self._folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)
        self.join()
        for thread in self._threads:
            thread.start()
        self.progress()

    def calm(self) -> None:
        """No more clicks; until all that were sent have gone through all jobs. Then engines drain."""
        self.wake()
        self.progress()
        self._paused.set()
        wanted = 0

        def done() -> bool:
            nonlocal wanted
            self.look()
            lengths = {name: self._length(name) for name in ("clicks", "totals", "alarms", "tallies")}
            wanted = wanted or sum(count // 3 for count in self._counts().values())
            return lengths["totals"] >= lengths["clicks"] and lengths["tallies"] >= lengths["alarms"] >= wanted

        self._wait(done, PROGRESS, "what was sent is not processed")
        for engine in self._engines:
            engine.process.terminate()
        for engine in self._engines:
            assert engine.process.wait(60) == 0, f"{engine.name} ended in disorder"
        time.sleep(0.5)  # two rounds of the follower
        self._over.set()
        for thread in self._threads:
            thread.join(30)

    def close(self) -> None:
        """Kill what runs."""
        self._over.set()
        for engine in self._all:
            engine.kill()
        self._client.close()

    def logs(self) -> str:
        return "\n".join(f"-- {engine.log_file.name}\n{engine.log[-20_000:]}" for engine in self._all)

    def said(self, text: str) -> int:
        """How often engines have said this."""
        return sum(engine.log.count(text) for engine in self._all)

    @property
    def held(self) -> int:
        """How many publishes were late."""
        return sum(engine.publishing.held for engine in self._all)

    def rows(self, stream: str) -> list[dict[str, str]]:
        return [entry.text() for page in self._client.pages(stream) for entry in page]

    def states(self) -> list[Path]:
        return [self._folder / "state-a", self._folder / "state-b"]

    def act(self, *names: str) -> None:
        """Do these at once."""
        done = [name for name in names if getattr(self, name)() is not False]
        for name in done:
            self.counts[name] = self.counts.get(name, 0) + 1
        if done:
            print(f"{time.monotonic() - self._began:7.2f} s  {' + '.join(done)}; epochs {self.epochs}")
            self.counts["two at once"] = self.counts.get("two at once", 0) + (len(done) > 1)

    def settle(self, seconds: float) -> None:
        """Let time pass; stopped engines go on in it, and dead ones are replaced."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._go_on(time.monotonic())
            time.sleep(0.05)
        self.look()

    def progress(self) -> None:
        """Until each job has published another epoch."""
        before = dict(self.epochs)

        def met() -> bool:
            self._go_on(time.monotonic())
            self.join()
            self.look()
            return all(self.epochs[name] > epoch for name, epoch in before.items())

        self._wait(met, PROGRESS, "a job makes no progress")

    def look(self) -> None:
        """No job has failed; nothing wrong was seen."""
        assert not self.wrong, "\n".join(self.wrong)
        for name in PARTITIONS:
            text = self._client.redis.get(keys.status(name))
            status = json.loads(text) if text else {}
            assert status.get("state") != "failed", f"{name} has failed: {status}"

    def _wait(self, met: Callable[[], bool], seconds: float, what: str) -> None:
        try:
            eventually(met, seconds=seconds)
        except AssertionError as error:
            raise AssertionError(f"{what}: epochs {self.epochs}; {error}") from error

    def at_last(self, name: str) -> None:
        """Do this, when it can be done."""
        before = self.counts.get(name, 0)

        def done() -> bool:
            self.act(name)
            return self.counts.get(name, 0) > before

        self._wait(done, PROGRESS, f"there was nothing for {name!r}")

    # -- what may happen --------------------------------------------------------------------------------------------
    def join(self) -> None:
        """Engines in place of those that have ended."""
        self._engines = [engine for engine in self._engines if engine.running]
        for name in ENGINES:
            if len(self._engines) < self.engines and name not in {engine.name for engine in self._engines}:
                state = self._chance.choice(self.states()) if self._all else self.states()[0]
                engine = Engine(name, self._folder, self._server, state, len(self._all))
                self._engines.append(engine)
                self._all.append(engine)
                self.counts["starts"] = len(self._all)

    def _some(self) -> Engine | None:
        able = [engine for engine in self._engines if engine.running and not engine.until]
        return self._chance.choice(able) if able else None

    def engine(self) -> bool:
        """SIGKILL, with all that it started."""
        engine = self._some()
        if engine is not None:
            engine.kill()
        return engine is not None

    def driver(self) -> bool:
        """SIGKILL of the Python process alone: the JVM and the workers end by themselves, later."""
        engine = self._some()
        return engine is not None and send(engine.process.pid, signal.SIGKILL)

    def jvm(self) -> bool:
        return self._kill("jvm")

    def worker(self) -> bool:
        return self._kill("worker")

    def maker(self) -> bool:
        return self._kill("maker")

    def _kill(self, what: str) -> bool:
        found = [pid for engine in self._engines if engine.running and not engine.until for pid in engine.of(what)]
        return bool(found) and send(self._chance.choice(found), signal.SIGKILL)

    def server(self) -> None:
        self._server.kill()
        time.sleep(self._chance.choice([0, 0, 0.3, LEASE * 1.2]))
        self._server.start()

    def everything(self) -> None:
        for engine in self._engines:
            engine.kill()
        self.server()

    def zombie(self) -> bool:
        """SIGSTOP for longer than the lease: others take over, and then it goes on."""
        return self._stop(self._chance.uniform(1.5, 3.0))

    def coma(self) -> bool:
        """SIGSTOP until ``wake``."""
        return self._stop(float("inf"))

    def wake(self) -> None:
        """Let all go on that stand still."""
        self._go_on(float("inf"))

    def late(self) -> bool:
        """The next publish of an engine gets to the server when others have taken over, or after ``wake``."""
        engine = self._some()
        if engine is not None:
            engine.hold(LEASE * 2.5)
        return engine is not None

    def pause(self) -> bool:
        return self._stop(self._chance.choice([0.2, 0.9, 1.1]))

    def _stop(self, leases: float) -> bool:
        engine = self._some()
        if engine is not None:
            engine.stop(LEASE * leases, self._chance.random() < 0.5)
        return engine is not None

    def _go_on(self, now: float) -> None:
        for engine in self._engines:
            if engine.until and engine.until <= now:
                engine.go_on()

    def reply(self) -> bool:
        """The reply to the next TPUBLISH is lost."""
        engine = self._some()
        if engine is not None:
            engine.publishing.then = "cut"
        return engine is not None

    def links(self) -> bool:
        """All connections of an engine are cut."""
        engine = self._some()
        if engine is not None:
            engine.proxy.cut()
        return engine is not None

    def delete(self) -> bool:
        """A state directory goes, of one job or of all."""
        folder = self._chance.choice(self.states())
        where = self._chance.choice([folder, folder / "count", folder / "tally"])
        shutil.rmtree(where, ignore_errors=True)
        return True

    def truncate(self) -> bool:
        """The file of a store is cut short, at a page or within one."""
        files = [file for folder in self.states() for file in folder.glob("*/*/*/*/data.mdb")]
        if not files:
            return False
        with suppress(FileNotFoundError):
            file = self._chance.choice(files)
            size = file.stat().st_size
            os.truncate(file, self._chance.choice([0, 4096, size // 2, max(0, size - 4096), max(0, size - 1)]))
        return True

    def snapshot(self) -> bool:
        """The newest snapshot of a partition is cut short, and the state goes: the one before is needed."""
        folders = sorted((self._folder / "store").glob("*/*/[0-9]"))  # of partitions
        if not folders:
            return False
        folder = self._chance.choice(folders)
        name, _, partition = folder.parts[-3:]
        text = self._client.redis.get(keys.snapshots(name))
        assert not isinstance(text, str)
        records = catalog.decode(name, text)
        kept = [folder / f"{each.name}.json" for each in records.of(int(partition)).kept]
        newest = max(folder.glob("*.json"), default=None)
        if len(kept) < KEPT or newest != kept[0] or not self._cut.isdisjoint(kept):
            return False
        self._cut.add(newest)
        file = newest.with_suffix(".lmdb.zst")
        with suppress(FileNotFoundError):
            os.truncate(file, file.stat().st_size // 2)
        for state in self.states():
            shutil.rmtree(state / name, ignore_errors=True)
        return True

    # -- what goes on meanwhile -----------------------------------------------------------------------------------
    def _send(self) -> None:
        chance = random.Random(self._chance.random())
        number = 0
        with Client(self._server.url) as client:
            while not self._over.is_set():
                if self._paused.is_set() or self._behind(client):
                    time.sleep(0.05)
                    continue
                many = range(number, number + chance.randrange(1, 120))
                number = many.stop
                try:
                    with client.redis.pipeline(transaction=True) as pipe:
                        for each in many:
                            user = f"u{chance.randrange(USERS)}"
                            at = partition_of(user.encode(), PARTITIONS["count"])
                            pipe.execute_command("TAPPEND", f"clicks:{at}", "number", each, "user", user)
                        pipe.execute()
                    self.sent += len(many)
                except (OSError, redis.RedisError):  # the server is away: nobody knows whether they were appended
                    pass
                time.sleep(chance.uniform(0.005, 0.1))

    def _behind(self, client: Client) -> bool:
        with suppress(OSError, redis.RedisError):
            lengths = [client.tlen(f"{name}:{at}") for name in ("clicks", "totals") for at in range(2)]
            return lengths[0] + lengths[1] - lengths[2] - lengths[3] > BACKLOG
        return True

    def _follow(self) -> None:
        """Read the replay logs as they are written: what was there once stays, and each goes on where it was."""
        followers = self.followed
        with Client(self._server.url) as client:
            while not self._over.is_set():
                for follower in followers:
                    with suppress(OSError, redis.RedisError):
                        follower.look(client)
                for name in PARTITIONS:
                    self.epochs[name] = min(each.epoch for each in followers if each.name == name)
                time.sleep(0.1)

    def _length(self, topic: str) -> int:
        number = {"clicks": 2, "totals": 2, "alarms": 3, "tallies": 2}[topic]
        return sum(self._client.tlen(f"{topic}:{at}") for at in range(number))

    def _counts(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for at in range(2):
            for row in self.rows(f"clicks:{at}"):
                found[row["user"]] = found.get(row["user"], 0) + 1
        return found


class Follower:
    """Follows the replay log of a partition."""

    def __init__(self, name: str, partition: int, storm: Storm) -> None:
        self.name, self.partition = name, partition
        self.epoch, self.run = 0, ""
        self.rows_in = self.rows_out = 0
        self.missed = 0  # epochs that were trimmed before they were seen
        self._ends: dict[str, str] = {}
        self._last = "0"
        self._storm = storm

    def look(self, client: Client) -> None:
        while page := client.trange(keys.log(self.name, self.partition), f"({self._last}", "+", 200):
            for entry in page:
                self._see(entry.text())
                self._last = str(entry.id)

    def _see(self, marker: dict[str, str]) -> None:
        where = f"{self.name}, partition {self.partition}, epoch {marker['epoch']}"
        epoch, spans = int(marker["epoch"]), json.loads(marker["inputs"])
        if epoch <= self.epoch:
            self._storm.wrong.append(f"{where}: follows on epoch {self.epoch}")
        self.missed += epoch - self.epoch - 1
        for topic, (after, end, rows) in spans.items():
            if epoch == self.epoch + 1 and self._ends.get(topic, after) != after:
                self._storm.wrong.append(f"{where}: begins at {after}, the one before ended at {self._ends[topic]}")
            self._ends[topic] = end
            self.rows_in += rows
        self.rows_out += int(marker["rows"])
        self.epoch, self.run = epoch, marker["run"]
