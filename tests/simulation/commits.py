"""The commit protocol of a job whose epochs have outputs on several server groups, on the real handlers of stages.

The job reads numbers. An epoch reads the next ones, and appends each to the output partition ``number % partitions``.
Each partition, with its stages and its fence, has a slot of its own. A slot belongs to one group, and can move between
any two steps. The *home* slot has the log of the job and the fence that decides.

    begin     append an intent to the home slot: epoch, run, the names of the stages
    stage     TSTAGE in the slot of each partition, with a time to live, and TSTAGE of the marker in the home slot
    keep      TFENCE job in the home slot: N is still undecided. Then TPERSIST in the slot of each partition
    decide    TPUBLISH job N CHECK run marker: the marker appears in the log. This is the commit decision
    publish   TPUBLISH job N CHECK run stage, in the slot of each partition

    recover   read the last marker; publish what it names and is not published yet; then drop the stages of all intents
              up to its epoch, and evict these intents

Rule 1: The first run that publishes its marker under epoch N decides N. Another run gets CONFLICT or STALE.
Rule 2: Only what a marker names is published, and only after the marker. A driver publishes all of epoch N, also that
        of another run, before it begins epoch N + 1.
Rule 3: When the marker is published, no stage that it names has a time to live. A stage is dropped only by a driver
        that has seen a marker of this or a later epoch, and has published what the marker names. It may expire before,
        so each number of entries is compared.
Rule 4: The name of a stage is never used twice. Without a reply to TSTAGE, the run is given up.
Rule 5: A stage loses its time to live only if its epoch was undecided after the last TSTAGE of the run. Nobody has
        cleaned up the intent by then, so somebody will drop the stage. What a run stages later expires.
Rule 6: The fence of a partition has the slot of the partition, so it moves with the stream and the stages.

Replies get lost, commands arrive after their driver has died, drivers die and are suspended, two of them run at the
same time, groups are unreachable, slots move, and time passes. One seed gives the same run.
"""

from __future__ import annotations

import json
import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import hiredis

from tests.commands.fakeserver import FakeServer
from tests.simulation.world import SimulationError
from tidelog.client import calls
from tidelog.client.entries import Entry
from tidelog.transport.call import Call

HOME: Final = -1  # the home slot; the others are the numbers of partitions
FENCE, LOG, INTENTS = "job", "log", "intents"
TTL: Final = 3_600_000  # ms
DAY: Final = 86_400_000  # ms
FAULTS: Final = ("die", "lose", "late", "move", "suspend", "outage", "time")


class LostReplyError(Exception):
    """There was no reply: the command was executed, or was not, or will be."""


class SupersededError(Exception):
    """Another driver is ahead. This one recovers."""


@dataclass(frozen=True)
class Command:
    """A command for a slot."""

    slot: int
    call: Call[Any]


Protocol = Generator[list[Command], list[Any], Any]


@dataclass(frozen=True)
class Marker:
    """A decided epoch, or the intent of one."""

    epoch: int
    run: str
    end: int  # all numbers below are read
    stages: dict[int, str]  # by partition

    @classmethod
    def read(cls, entry: Entry) -> Marker:
        found = json.loads(dict(entry.pairs)[b"m"])
        return cls(found["epoch"], found["run"], found["end"], {int(at): name for at, name in found["stages"].items()})

    def written(self) -> str:
        return json.dumps(self.__dict__)


NOTHING: Final = Marker(0, "", 0, {})


class Driver:
    """A driver of the job, from its start to its death. The methods are the steps; mutations replace them."""

    def __init__(self, name: str, partitions: int, chosen: random.Random) -> None:
        self.name = name
        self.partitions = partitions
        self.chosen = chosen
        self.runs = 0

    def work(self, until: int) -> Protocol:
        """Run epochs until all numbers below ``until`` are read and published."""
        while True:
            try:
                last = yield from self.recover()
                if last.end >= until:
                    return
                yield from self.epoch(last, min(until, last.end + self.chosen.randint(1, 5)))
            except (SupersededError, LostReplyError):
                continue

    def epoch(self, last: Marker, end: int) -> Protocol:
        """Run one epoch."""
        self.runs += 1
        run = f"{self.name}.{self.runs}"
        rows: dict[int, list[int]] = {}
        for number in range(last.end, end):
            rows.setdefault(number % self.partitions, []).append(number)
        yield from self.commit(Marker(last.epoch + 1, run, end, {at: f"stage:{run}:{at}" for at in rows}), rows)

    def commit(self, marker: Marker, rows: dict[int, list[int]]) -> Protocol:
        """Publish an epoch."""
        yield from self.begin(marker)
        yield from self.stage(marker, rows)
        yield from self.keep(marker)
        yield from self.decide(marker)
        yield from self.publish(marker)

    def begin(self, marker: Marker) -> Protocol:
        checked((yield [Command(HOME, calls.tappend(INTENTS, {"m": marker.written()}))]))

    def stage(self, marker: Marker, rows: dict[int, list[int]]) -> Protocol:
        """Stage the rows of each partition in two commands, and the marker."""
        for part in (0, 1):
            commands = [
                Command(at, self.staging(marker.stages[at], "out", [[number] for number in numbers[part::2]]))
                for at, numbers in rows.items()
                if numbers[part::2]
            ]
            self.counted(commands, checked((yield commands)), rows, part)
        checked((yield [Command(HOME, self.staging(f"marker:{marker.run}", LOG, [[marker.written()]]))]))

    def counted(self, commands: list[Command], totals: list[int], rows: dict[int, list[int]], part: int) -> None:
        """Compare the numbers of entries in the stages: a stage can have expired between two commands."""
        for command, total in zip(commands, totals, strict=True):
            numbers = rows[command.slot]
            if total != len(numbers[0::2]) + (len(numbers[1::2]) if part else 0):
                raise SupersededError("a stage has expired")

    def staging(self, stage: str, key: str, rows: list[list[Any]]) -> Call[int]:
        return calls.tstage(stage, TTL, key, ["m"], rows)

    def keep(self, marker: Marker) -> Protocol:
        """Let the stages live until they are published or dropped."""
        yield from self.look(marker)
        kept = checked((yield [Command(at, calls.tpersist(name)) for at, name in marker.stages.items()]))
        if not all(kept):
            raise SupersededError("a stage was dropped, or has expired")

    def look(self, marker: Marker) -> Protocol:
        """Raise SupersededError if another run has decided the epoch."""
        (decided,) = checked((yield [Command(HOME, calls.tfence(FENCE))]))
        if decided is not None and decided >= marker.epoch:
            raise SupersededError("another run has decided the epoch")

    def decide(self, marker: Marker) -> Protocol:
        """Publish the marker. Without a reply, recovery finds out."""
        publish = calls.tpublish(FENCE, marker.epoch, f"marker:{marker.run}", check=marker.run)
        (reply,) = yield [Command(HOME, publish)]
        if isinstance(reply, hiredis.ReplyError):
            raise SupersededError(str(reply))
        checked([reply])

    def publish(self, marker: Marker) -> Protocol:
        """Publish the stages of a decided epoch."""
        left = dict(marker.stages)
        while left:
            commands = [
                Command(at, calls.tpublish(FENCE, marker.epoch, name, check=marker.run)) for at, name in left.items()
            ]
            for at, reply in zip(list(left), (yield commands), strict=True):
                if isinstance(reply, LostReplyError):
                    continue
                if isinstance(reply, hiredis.ReplyError) and not str(reply).startswith("STALE"):
                    raise SimulationError(f"partition {at} of epoch {marker.epoch}, run {marker.run}: {reply}")
                del left[at]  # STALE: another driver has published it, and a later epoch

    def recover(self) -> Protocol:
        """Complete the last epoch that was decided, remove what was not, and return its marker."""
        last = yield from self.last()
        yield from self.publish(last)
        yield from self.clean(last)
        return last

    def last(self) -> Protocol:
        """Return the marker of the last decided epoch."""
        (found,) = checked((yield [Command(HOME, calls.trevrange(LOG, count=1))]))
        return Marker.read(found[0]) if found else NOTHING

    def clean(self, last: Marker) -> Protocol:
        """Drop what the intents up to the last decided epoch have left."""
        (entries,) = checked((yield [Command(HOME, calls.trange(INTENTS))]))
        done: list[Entry] = []
        for entry in entries:
            intent = Marker.read(entry)
            if intent.epoch > last.epoch:
                break
            done.append(entry)
            drops = [Command(at, calls.tdrop(name)) for at, name in intent.stages.items()]
            checked((yield [*drops, Command(HOME, calls.tdrop(f"marker:{intent.run}"))]))
        if done:
            end = done[-1].id
            yield [Command(HOME, calls.ttrim(INTENTS, before=end._replace(seq=end.seq + 1)))]


class RepeatingDriver(Driver):
    """As Spark's sink: the intent follows the rows, and the check in the home slot identifies the content of the epoch,
    so that a run may find that another one has decided the same epoch."""

    def begin(self, marker: Marker) -> Protocol:
        yield []

    def keep(self, marker: Marker) -> Protocol:
        yield from super().begin(marker)
        yield from super().keep(marker)

    def decide(self, marker: Marker) -> Protocol:
        publish = calls.tpublish(FENCE, marker.epoch, f"marker:{marker.run}", check=f"to {marker.end}")
        (reply,) = yield [Command(HOME, publish)]
        if isinstance(reply, hiredis.ReplyError):
            raise SupersededError(str(reply))
        checked([reply])
        last = yield from self.last()
        if last.run != marker.run:
            raise SupersededError("another run has decided the epoch")


def checked(replies: list[Any]) -> list[Any]:
    """Return the replies. Raises LostReplyError if one is missing, and SimulationError for an error."""
    for reply in replies:
        if isinstance(reply, LostReplyError):
            raise reply
        if isinstance(reply, hiredis.ReplyError):
            raise SimulationError(f"unexpected: {reply}")
    return replies


@dataclass
class _Process:
    driver: Driver
    steps: Protocol
    commands: list[Command] = field(default_factory=list)  # of the current step, not sent yet
    replies: list[Any] = field(default_factory=list)
    suspended: int = 0  # turns


class Commits:
    """One run: a world of slots and groups, and two drivers."""

    partitions = 3
    groups = 2

    def __init__(self, seed: int, faults: Sequence[str] = FAULTS, kind: type[Driver] = Driver) -> None:
        self.chosen = random.Random(seed)
        self.faults = faults
        self.kind = kind
        self.until = self.chosen.randint(10, 30)
        self.slots = {at: FakeServer() for at in range(HOME, self.partitions)}
        self.sessions = {at: server.connect() for at, server in self.slots.items()}
        self.owners = {at: self.chosen.randrange(self.groups) for at in self.slots}
        self.down: dict[int, int] = {}  # group -> turns
        self.late: list[Command] = []  # sent, not executed yet, without anybody who waits for a reply
        self.processes: list[_Process] = []
        self.published = False  # since the last check
        self.started = self.deaths = self.moves = self.turns = 0

    def __str__(self) -> str:
        return f"{self.turns} turns, {self.started} drivers, {self.deaths} deaths, {self.moves} moves"

    def run(self) -> None:
        """Run the job, and check it after each turn. Raises SimulationError."""
        faulty = True
        while True:
            self.turns += 1
            if self.turns > 20_000:
                raise SimulationError("the job does not end")
            while len(self.processes) < (2 if faulty else 1):
                self._start()
            faulty = faulty and self.turns < 1500 and self._read() < self.until
            if faulty:
                self._fault()
            process = self.chosen.choice(self.processes)
            if process.suspended and faulty:
                process.suspended -= 1
            elif not self._turn(process, faulty):
                self.processes.remove(process)
                if not faulty and not self.processes:
                    break
            if self.published:
                self.published = False
                self.check()
        self.check(end=True)
        for command in self.late:
            self._execute(command)
        self.check(end=True)
        stages = [item for server in self.slots.values() for item in server.ks.stages.by_name.items()]
        kept = {name for name, stage in stages if not stage.ttl}
        if kept:
            raise SimulationError(f"stages that nobody drops: {kept}")

    def _read(self) -> int:
        found = self._ask(HOME, calls.trevrange(LOG, count=1))
        return Marker.read(found[0]).end if found else 0

    def _start(self) -> None:
        self.started += 1
        driver = self.kind(f"d{self.started}", self.partitions, self.chosen)
        process = _Process(driver, driver.work(self.until))
        process.commands = list(next(process.steps))
        self.processes.append(process)

    def _turn(self, process: _Process, faulty: bool) -> bool:
        """Send the next command of a driver. Returns False if the driver has ended."""
        if process.commands:
            process.replies.append(self._send(process.commands.pop(0), faulty))
        if process.commands:
            return True
        replies, process.replies = process.replies, []
        try:
            process.commands = list(process.steps.send(replies))
        except StopIteration:
            return False
        return True

    def _send(self, command: Command, faulty: bool) -> Any:
        """Execute a command, and return its reply. Faults: it is not executed, or later, or its reply is lost."""
        if faulty and self.owners[command.slot] in self.down:
            return LostReplyError()
        luck = self.chosen.random() if faulty else 1.0
        if luck < 0.02 and "late" in self.faults:
            self.late.append(command)
            return LostReplyError()
        reply = self._execute(command)
        return LostReplyError() if luck < 0.05 and "lose" in self.faults else reply

    def _execute(self, command: Command) -> Any:
        self.published |= command.call.args[0] == "TPUBLISH"
        try:
            return self._ask(command.slot, command.call)
        except hiredis.ReplyError as error:
            return error

    def _ask(self, slot: int, call: Call[Any]) -> Any:
        words = [word if isinstance(word, bytes) else str(word) for word in call.args]
        reader = hiredis.Reader()
        reader.feed(self.slots[slot].run(self.sessions[slot], *words))
        reply = reader.gets()
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        return call.read(reply)

    # -- faults ------------------------------------------------------------------------------------------------------
    def _fault(self) -> None:
        for group in list(self.down):
            self.down[group] -= 1
            if not self.down[group]:
                del self.down[group]
        if self.late and self.chosen.random() < 0.1:
            self._execute(self.late.pop(self.chosen.randrange(len(self.late))))
        sudden = [name for name in self.faults if name not in ("lose", "late")]
        if sudden and self.chosen.random() < 0.06:
            getattr(self, f"_{self.chosen.choice(sudden)}")()

    def _die(self) -> None:
        """A driver dies. Commands of its current step may still arrive."""
        process = self.processes.pop(self.chosen.randrange(len(self.processes)))
        self.deaths += 1
        self.late += process.commands[: self.chosen.randint(0, len(process.commands))]

    def _suspend(self) -> None:
        self.chosen.choice(self.processes).suspended = self.chosen.randint(1, 60)

    def _outage(self) -> None:
        self.down[self.chosen.randrange(self.groups)] = self.chosen.randint(1, 20)

    def _move(self) -> None:
        """A slot with its keys, stages and fences moves to another group."""
        slot = self.chosen.choice(list(self.slots))
        self.owners[slot] = (self.owners[slot] + 1) % self.groups
        self.moves += 1
        self.moved(slot)

    def moved(self, slot: int) -> None:
        """Nothing is lost with a move. Mutations replace this."""

    def _time(self) -> None:
        for server in self.slots.values():
            server.ms += self.chosen.choice([1000, DAY])

    # -- what must be true -------------------------------------------------------------------------------------------
    def check(self, end: bool = False) -> None:
        """Check that each output has each number that was read, once and in order; at the end, all of them."""
        markers = [Marker.read(entry) for entry in self._ask(HOME, calls.trange(LOG))]
        if [marker.epoch for marker in markers] != list(range(1, len(markers) + 1)):
            raise SimulationError(f"the epochs of the log: {[marker.epoch for marker in markers]}")
        read = markers[-1].end if markers else 0
        if end and read != self.until:
            raise SimulationError(f"{read} of {self.until} numbers were read")
        self.check_outputs(read, end)

    def check_outputs(self, read: int, end: bool) -> None:
        """Check the outputs for the numbers below ``read``; at the end, all of them must be there."""
        for at in range(self.partitions):
            numbers = [int(dict(entry.pairs)[b"m"]) for entry in self._ask(at, calls.trange("out"))]
            expected = list(range(at, read, self.partitions))
            if numbers != (expected if end else expected[: len(numbers)]):
                raise SimulationError(f"partition {at} has {numbers}, not {expected}")


def run(
    seed: int, faults: Sequence[str] = FAULTS, kind: type[Driver] = Driver, world: type[Commits] = Commits
) -> Commits:  # fmt: skip
    """Run one seed. Raises SimulationError, with the seed, if something that must be true is not."""
    made = world(seed, faults, kind)
    try:
        made.run()
    except SimulationError as error:
        raise SimulationError(f"seed {seed}: {error}") from None
    return made
