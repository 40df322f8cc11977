"""A storm: worker processes and the server are killed, paused, started and stopped at random while events come in."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Final

from tests.tidelog.workers.history import Id, id_of
from tests.tidelog.workers.workerkit import Order, Process
from tests.waiting import eventually
from tidelog.client import Client, calls
from tidelog.client.entries import Entry, PendingSummary
from tidelog.testing import Server
from tidelog.topics import Topic

PARTITIONS: Final = 4
KEYS: Final = 25
LEASE: Final = 1.5  # seconds
MOST: Final = 4  # workers
BACKLOG: Final = 1500  # events that are sent and not finished, before more are sent
DRAIN: Final = 180.0  # seconds for what is left at the end

# Each call appends lines to one file, whatever becomes of the process. See history.py.
SOURCE: Final = f"""
import asyncio
import os
import random
import msgspec
from tidelog.workers import *

class Order(msgspec.Struct):
    id: int
    key: str

class Copy(msgspec.Struct):
    origin: str
    key: str

app = App("shop", URL, lease={LEASE}, grace=5.0)
orders = app.topic("orders", Order, partition_by="key", partitions={PARTITIONS})
out = app.topic("out", Copy, partition_by="key", partitions=3)
FILE = os.open("history", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
RETRY = [Retry(1000, first=0.005, most=0.01), DeadLetter()]

def tell(kind, event):
    line = f"{{kind}} {{event.partition}} {{event.record.key}} {{event.id}} {{event.epoch}} {{os.getpid()}}\\n"
    os.write(FILE, line.encode())
"""
PLAIN: Final = """
@app.each(orders, name="bill", ordering={ordering!r}, on_error=RETRY{more})
async def bill(event: Event[Order]) -> None:
    tell("b", event)
    await asyncio.sleep(random.random() * {most})
    if random.random() < 0.01:
        raise RuntimeError("at random")
    tell("e", event)
"""
TRANSACTIONAL: Final = """
@app.each(orders, name="bill", ordering={ordering!r}, on_error=RETRY, transactional=True{more})
async def bill(event: Event[Order]) -> None:
    tell("b", event)
    await event.send(out, Copy(f"{{event.partition}} {{event.id}}", event.record.key))
    if random.random() < 0.1:
        await asyncio.sleep(random.random() * {most})
    if random.random() < 0.01:
        raise RuntimeError("at random")
    tell("e", event)
"""


def source(ordering: str, transactional: bool) -> str:
    """The module of the app whose workers stand in the storm."""
    more = "" if ordering == "partition" else ", concurrency=20"
    most = 0.003 if ordering == "partition" else 0.02
    return SOURCE + (TRANSACTIONAL if transactional else PLAIN).format(ordering=ordering, more=more, most=most)


class Storm:
    """``server`` and worker processes in ``folder``, which are shaken as ``chance`` says."""

    def __init__(self, server: Server, folder: Path, module: str, chance: random.Random) -> None:
        self.folder = folder
        self.pauses = 0
        self.counts: dict[str, int] = {}  # what was done, how often
        self.sent: set[int] = set()  # numbers of events whose sending was acknowledged
        self._server = server
        self._module = module
        self._chance = chance
        self._client = Client(server.url)
        self._working: list[Process] = []
        self._paused: list[tuple[float, Process]] = []  # with the time when they go on
        self._leaving: list[Process] = []
        self._all: list[Process] = []
        self._number = 0
        self._file = os.open(folder / "history", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._finished = 0
        self._read = 0  # bytes of the file

    # -- the whole -------------------------------------------------------------------------------------------
    def blow(self, seconds: float, topic: Topic[Order]) -> None:
        """For so many seconds; then let the workers finish what is left, and stop them in order."""
        self._join()
        self._join()
        actions = [self._join, self._leave, self._kill, self._pause, self._crash, self._stall, self._nothing]
        weights = [4, 1.5, 2, 2, 1, 0.7, 4]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._send(topic)
            (action,) = self._chance.choices(actions, weights)
            action()
            self._go_on(time.monotonic())
            pause = self._chance.uniform(0.02, 0.6)
            for _ in range(3):
                time.sleep(pause / 3)
                self._look()
        self._drain()

    def close(self) -> None:
        """Kill what runs."""
        for process in self._all:
            process.kill()
        os.close(self._file)
        self._client.close()

    def logs(self) -> str:
        """What the workers have logged."""
        return "\n".join(f"-- {process.pid}\n{process.log}" for process in self._all)

    def entries(self, stream: str) -> list[tuple[Id, Entry]]:
        """All entries of a stream."""
        return [(id_of(str(entry.id)), entry) for page in self._client.pages(stream) for entry in page]

    # -- what may happen -------------------------------------------------------------------------------------
    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def _nothing(self) -> None: ...

    def _join(self) -> None:
        if len(self._working) < MOST:
            self._count("join")
            process = Process(self._server.url, self.folder, self._module)
            self._working.append(process)
            self._all.append(process)

    def _taken(self) -> Process | None:
        if not self._working:
            return None
        return self._working.pop(self._chance.randrange(len(self._working)))

    def _leave(self) -> None:
        process = self._taken()
        if process is not None:
            self._count("leave")
            process.signal(signal.SIGTERM)
            self._leaving.append(process)

    def _kill(self) -> None:
        process = self._taken()
        if process is not None:
            self._count("kill")
            process.kill()

    def _pause(self) -> None:
        process = self._taken()
        if process is not None:
            self._count("pause")
            self.pauses += 1
            process.pause()
            self._paused.append((time.monotonic() + LEASE * self._chance.choice([0.3, 0.95, 1.3, 2.0]), process))

    def _go_on(self, now: float) -> None:
        for at, process in [each for each in self._paused if each[0] <= now]:
            self._paused.remove((at, process))
            process.signal(signal.SIGCONT)
            self._working.append(process)

    def _crash(self) -> None:
        self._count("crash")
        self._server.kill()
        time.sleep(LEASE * self._chance.choice([0.0, 0.0, 0.2, 1.2]))
        self._server.start()

    def _stall(self) -> None:
        self._count("stall")
        os.kill(self._server.pid, signal.SIGSTOP)
        try:
            time.sleep(LEASE * self._chance.choice([0.2, 0.6, 1.2]))
        finally:
            os.kill(self._server.pid, signal.SIGCONT)

    # -- what goes on meanwhile ------------------------------------------------------------------------------
    def _send(self, topic: Topic[Order]) -> None:
        if len(self.sent) - self._progress() > BACKLOG:
            return
        numbers = range(self._number, self._number + self._chance.randrange(1, 300))
        self._number = numbers.stop
        topic.sync.send_many(Order(number, f"k{self._chance.randrange(KEYS)}") for number in numbers)
        self.sent.update(numbers)

    def _progress(self) -> int:
        """How many calls were finished, those done again included."""
        with (self.folder / "history").open("rb") as file:
            file.seek(self._read)
            text = file.read()
        self._read += len(text)
        self._finished += text.count(b"e ")
        return self._finished

    def _look(self) -> None:
        """Write down what is acknowledged: what was delivered, before the lowest that is pending."""
        streams = [f"orders:{at}" for at in range(PARTITIONS)]
        offsets = self._client.together(*[calls.tgroup_list(stream) for stream in streams])
        known = [at for at, groups in enumerate(offsets) if groups]
        summaries: list[PendingSummary] = self._client.together(
            *[calls.tpending(streams[at], "shop.bill") for at in known]
        )
        for at, summary in zip(known, summaries, strict=True):
            offset = offsets[at][0].offset
            before = f"{offset.ms}.{offset.seq + 1}"
            if summary.lowest is not None and summary.lowest <= offset:
                before = str(summary.lowest)
            os.write(self._file, f"a {at} {before}\n".encode())

    def _drain(self) -> None:
        self._go_on(float("inf"))
        self._join()
        eventually(self._idle, f"not idle after {DRAIN:g} s", seconds=DRAIN)
        self._look()
        for process in self._working:
            process.signal(signal.SIGTERM)
        for process in [*self._working, *self._leaving]:
            assert process.wait() in (0, -signal.SIGTERM), process.log  # the latter before it had begun

    def _idle(self) -> bool:
        assert all(process.running for process in self._working), "a worker ended by itself"
        for at in range(PARTITIONS):
            info, groups = self._client.together(calls.tinfo(f"orders:{at}"), calls.tgroup_list(f"orders:{at}"))
            if not groups or groups[0].pending or groups[0].offset < info.last:
                return False
        return True
