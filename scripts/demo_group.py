"""A server group whose leader fails: scripts/demo --group runs it. It ends with status 1 if a guarantee is violated.

Three members run on this machine, with a directory as the coordinator (file:), and a client appends to whichever member
leads. The leader is killed (SIGKILL), stopped for longer than its lease (SIGSTOP, SIGCONT), and cut off from everybody,
one after another. At the end, the demo checks that each acknowledged entry is in the log exactly once, in the order of
the IDs, that all members have the same data, and draws what happened.

Clients and other members reach each member through a TCP proxy of its own, and each member reaches the coordinator over
a symbolic link of its own. "Cut off" means that the leader's proxy passes nothing in either direction, without closing
a connection, and that its link to the coordinator is gone. It is as if the cable of its machine were pulled.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import count, pairwise
from pathlib import Path
from typing import Any, Final

import redis

sys.path.append(str(Path(__file__).parent.parent))

from scripts.demo_output import demo, promise, say, title, which_tidelog
from scripts.demo_timeline import BEHIND, CUT, IN_SYNC, KILLED, LEADS, STOPPED, Fault, Screen, Timeline
from tests.replication.cluster import connect, new_port
from tests.replication.proxy import Proxy
from tidelog import Client, StreamId
from tidelog.testing import Server
from tidelog.transport.access import Access

EVERY: Final = 0.05  # seconds between two looks at the members
ANSWER_MS: Final = 300  # a server that takes longer counts as gone; the next attempt looks for the leader
PATIENCE: Final = 60.0  # timeout of each step, in seconds
STREAM: Final = "numbers"
NAMES: Final = ("m1", "m2", "m3")


class Member:
    """A member, the proxy through which others reach it, and its link to the coordinator."""

    def __init__(self, name: str, folder: Path, lease: float) -> None:
        self.name = name
        self.fault = ""  # the state that a fault causes: KILLED, STOPPED or CUT
        directory = folder / name
        directory.mkdir()
        self._coordinator, self._link = folder / "coordinator", folder / f"{name}-coordinator"
        self._link.symlink_to(self._coordinator)
        port = new_port()
        self.server = Server(directory, {
            "group": "tide", "coordinator": f"file://{self._link}", "group-member": name,
            "group-lease": int(1000 * lease), "in-sync-timeout": int(1000 * lease),
            "replica-announce-ip": "127.0.0.1", "replica-announce-port": port, "enable-debug-command": "local",
        })  # fmt: skip
        self.server.port = new_port()
        self.proxy = Proxy(port, self.server.port)
        self._redis = direct(self.server)

    @property
    def url(self) -> str:
        """The address that clients know: that of the proxy."""
        return f"redis://127.0.0.1:{self.proxy.port}"

    def ask(self, *words: str) -> Any:
        """Return the reply to a command, past the proxy. Raises redis.RedisError."""
        return self._redis.execute_command(*words)

    def fail(self, fault: str) -> None:
        if fault == KILLED:
            self.server.kill()
        elif fault == STOPPED:
            os.kill(self.server.pid, signal.SIGSTOP)
        else:
            self.proxy.up.hold()
            self.proxy.down.hold()
            self._link.unlink()
        self.fault = fault

    def recover(self) -> None:
        if self.fault == KILLED:
            self.server.start()
        elif self.fault == STOPPED:
            os.kill(self.server.pid, signal.SIGCONT)
        else:
            self._link.symlink_to(self._coordinator)
            self.proxy.up.release()
            self.proxy.down.release()
        self.fault = ""

    def close(self) -> None:
        self._redis.close()
        self.server.kill()
        self.proxy.close()


def direct(member: Server) -> redis.Redis:
    """Return a client of one member, past its proxy, that sends each command once and does not wait for long."""
    return connect(member.port, socket_timeout=ANSWER_MS / 1000, socket_connect_timeout=ANSWER_MS / 1000)


class Writer(threading.Thread):
    """Appends numbers, one after another, with a client that knows the URLs of all members and finds the leader.

    An append without a reply is not repeated: it may have run. The next number follows.
    """

    def __init__(self, members: list[Member], timeline: Timeline, clock: Callable[[], float]) -> None:
        super().__init__(daemon=True)
        self.acknowledged: list[tuple[StreamId, int]] = []
        self.errors: Counter[str] = Counter()  # appends that were not acknowledged, by error
        self._access = Access(tuple(each.url for each in members), connect_ms=ANSWER_MS, read_ms=ANSWER_MS)
        self._timeline = timeline
        self._clock = clock
        self._ended = threading.Event()

    def run(self) -> None:
        number = 0
        with Client(self._access) as client:
            while not self._ended.is_set():
                number += 1
                try:
                    found = client.tappend(STREAM, {"n": number})
                except redis.ResponseError:
                    self.errors["refused"] += 1
                except redis.RedisError:
                    self.errors["without a reply"] += 1
                else:
                    self.acknowledged.append((found, number))
                    self._timeline.writes.append(self._clock())
                    continue
                time.sleep(0.01)

    def close(self) -> None:
        self._ended.set()
        self.join()


class Loyal(threading.Thread):
    """A client that sends writes to the failed leader only, past the proxy, as if it were on that side of the cut."""

    numbers = count(-1, -1)  # of all its entries; those of the writer are positive

    def __init__(self, member: Member) -> None:
        super().__init__(daemon=True)
        self.attempts = 0
        self.acknowledged: list[tuple[StreamId, int]] = []
        self._member = member
        self._ended = threading.Event()

    def __enter__(self) -> Loyal:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        with Client.over(direct(self._member.server)) as client:
            while not self._ended.is_set():
                self.attempts += 1
                number = next(self.numbers)
                with suppress(redis.RedisError):
                    self.acknowledged.append((client.tappend(STREAM, {"n": number}), number))
                self._ended.wait(0.02)


class Group:
    """The members, the writer, and the timeline."""

    def __init__(self, folder: Path, lease: float, width: int) -> None:
        self.members = [Member(name, folder, lease) for name in NAMES]
        self.timeline = Timeline(NAMES)
        self.writer = Writer(self.members, self.timeline, self.now)
        self.acknowledged: list[tuple[StreamId, int]] = []  # to other clients than the writer
        self._began = time.monotonic()
        self._screen = Screen(self.timeline, width)

    def now(self) -> float:
        return time.monotonic() - self._began

    def start(self) -> None:
        """Start the members and wait until they are in sync; then start the clock of the timeline, and the writer."""
        with ThreadPoolExecutor(len(self.members)) as threads:
            list(threads.map(lambda each: each.server.start(), self.members))
        end = time.monotonic() + PATIENCE
        while not settled(seen := self.states()):
            if time.monotonic() > end:
                promise(False, f"a leader and two members in sync within {PATIENCE:g} s, not {seen}")
            time.sleep(EVERY)
        self._began = time.monotonic()
        self.writer.start()

    def close(self) -> None:
        if self.writer.is_alive():
            self.writer.close()
        for each in self.members:
            each.close()

    def until(self, true: Callable[[], Any], what: str) -> None:
        """Look at the members, and draw what they do, until ``true()``."""
        end = time.monotonic() + PATIENCE
        while True:
            self.timeline.seen.append((self.now(), self.states()))
            self._screen.draw()
            if true():
                self._screen.erase()
                return
            if time.monotonic() > end:
                self._screen.erase()
                promise(False, f"{what} within {PATIENCE:g} s; the members are {self.state}")
            time.sleep(EVERY)

    def rest(self, seconds: float) -> None:
        end = self.now() + seconds
        self.until(lambda: self.now() >= end, "nothing")

    @property
    def state(self) -> dict[str, str]:
        return dict(self.timeline.seen[-1][1])

    @property
    def leader(self) -> Member | None:
        return next((each for each in self.members if self.state[each.name] == LEADS), None)

    def states(self) -> dict[str, str]:
        """Return the state of each member. The in-sync set is that of the newest epoch."""
        found: dict[str, dict[str, Any]] = {}
        for each in self.members:
            if not each.fault:
                with suppress(redis.RedisError):
                    found[each.name] = json.loads(each.ask("TMEMBER", "STATUS"))
        newest = max(found.values(), key=lambda seen: (seen.get("epoch", 0), leads(seen)), default=dict[str, Any]())
        return {
            each.name: each.fault or state_of(found.get(each.name), newest.get("in_sync", ())) for each in self.members
        }


def state_of(status: dict[str, Any] | None, in_sync: Collection[str]) -> str:
    """Return the state of a member without a fault; None: it does not answer."""
    if status is None or status["member"] not in in_sync or status["phase"] == "joining":
        return BEHIND
    if status["phase"] == "leading":
        return LEADS if status["lease_left_ms"] else BEHIND
    return IN_SYNC


def leads(status: dict[str, Any]) -> bool:
    return bool(status["phase"] == "leading" and status["lease_left_ms"])


def settled(states: dict[str, str]) -> bool:
    return sorted(states.values()) == sorted([LEADS, IN_SYNC, IN_SYNC])


@contextmanager
def running(lease: float) -> Iterator[Group]:
    folder = Path(tempfile.mkdtemp(prefix="tidelog-demo-"))
    (folder / "coordinator").mkdir()
    group = Group(folder, lease, shutil.get_terminal_size().columns)
    try:
        yield group
    finally:
        group.close()
        shutil.rmtree(folder)


# -- the scenes --------------------------------------------------------------------------------------------------
def play(lease: float, calm: float, picture: Path) -> None:
    """Play all scenes. ``lease`` is that of the leader, ``calm`` the time between faults; both in seconds."""
    title(f"1. Three members, a coordinator in a directory, a lease of {lease:g} s, and a writer")
    with running(lease) as group:
        group.start()
        for member in group.members:
            say(f"{member.name}: process {member.server.pid}, {member.url}, {group.states()[member.name]}")
        with Client(group.members[0].url) as client:
            say(which_tidelog(client))
        title("2. The leader fails three times")
        fail(group, KILLED, "kill -9 {}", "{} is started again", calm)
        fail(group, STOPPED, "kill -STOP {}", "kill -CONT {}", calm)
        fail(group, CUT, "cut off {}", "{} is connected again", calm)
        group.rest(calm)
        group.writer.close()
        group.until(lambda: settled(group.state), "all members are in sync")
        title("3. What happened, half a second per column")
        for line in group.timeline.rows():
            say(line)
        say(group.timeline.legend())
        group.timeline.save(picture, f"A group whose leader fails three times (lease: {lease:g} s)")
        title("4. Is any entry lost, duplicated, or out of order?")
        leader = group.leader
        assert leader is not None
        with Client(leader.url) as client:
            result = reckon(client, group.writer, group.acknowledged)
        compare(group.members)
        title("5. Summary")
        say(result)
        for each in group.timeline.faults:
            say(f"{each.what}: the writer's longest pause was {each.pause:.2f} s")


def fail(group: Group, fault: str, what: str, remedy: str, calm: float) -> None:
    """Let the leader fail until another member has led for ``calm`` seconds; then wait until all are in sync."""
    group.rest(calm)
    group.until(lambda: settled(group.state), "all members are in sync")
    old = group.leader
    assert old is not None
    what, begins, written = what.format(old.name), group.now(), len(group.timeline.writes)
    say(f"{begins:5.1f} s   {what}, the leader, after {written:,} acknowledged writes")
    old.fail(fault)
    with Loyal(old) as loyal:
        group.until(lambda: group.leader, "another member leads")
        new, at = group.leader, group.now()
        assert new is not None
        group.until(lambda: group.timeline.writes[-1] > at, "a write is acknowledged by the new leader")
        group.rest(calm)
        say(f"{group.now():5.1f} s   {remedy.format(old.name)}")
        early = len(loyal.acknowledged)
        old.recover()
        group.until(lambda: settled(group.state), "all members are in sync")
    group.acknowledged += loyal.acknowledged  # after its recovery, it may have become the leader again
    begins_pause, pause = longest_pause(group.timeline.writes, begins, group.now())
    group.timeline.faults.append(Fault(what, begins, begins_pause, pause))
    say(f"{group.now():5.1f} s   {new.name} leads, and all are in sync; the writer's longest pause was {pause:.2f} s")
    told = f"{len(loyal.acknowledged)} of {loyal.attempts} writes"
    promise(not early, f"{old.name} acknowledged {told} of a client that is connected only to it")


def longest_pause(writes: list[float], begins: float, ends: float) -> tuple[float, float]:
    """Return the begin and the length of the longest time between two acknowledged writes that this time overlaps."""
    near = [(before, after - before) for before, after in pairwise(writes)
            if after >= begins and before <= ends]  # fmt: skip
    return max(near, key=lambda pause: pause[1])


def reckon(client: Client, writer: Writer, others: list[tuple[StreamId, int]]) -> str:
    """Compare the log with the replies that the clients received, and return the result in a sentence.

    ``others``: what was acknowledged to others than the writer.
    """
    acknowledged = writer.acknowledged + others
    entries = [(entry.id, int(entry.text().get("n", 0))) for page in client.pages(STREAM) for entry in page]
    there = dict(entries)
    lost = [number for found, number in acknowledged if there.get(found) != number]
    promise(not lost, f"each acknowledged entry is in the log, with the ID that the client received: {len(lost)} lost")
    times = Counter(number for _, number in entries)
    promise(max(times.values()) == 1, "each entry is there exactly once")
    sent = [found for found, _ in writer.acknowledged]
    in_order = [found for found, _ in entries] == sorted(there) and sent == sorted(set(sent))
    promise(in_order, "the log is in the order of the IDs, and so are the replies that the client received")
    told = ", ".join(f"{number} {what}" for what, number in sorted(writer.errors.items())) or "0"
    had_run = sum(number > 0 for number in there.values()) - len(sent)
    return f"{len(acknowledged):,} writes acknowledged, 0 lost; not acknowledged: {told}, of which {had_run} had run"


def compare(members: list[Member]) -> None:
    """Check that all members have the same data, once all have received all of it."""
    end = time.monotonic() + PATIENCE
    while len(found := {each.ask("DEBUG", "DIGEST") for each in members}) != 1 and time.monotonic() < end:
        time.sleep(EVERY)
    promise(len(found) == 1, "the digests of all members are equal")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/demo --group", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--group", action="store_true", help=argparse.SUPPRESS)  # set by scripts/demo
    parser.add_argument("--lease", type=float, default=2.0, metavar="SECONDS", help="the leader's lease (default 2)")
    parser.add_argument("--plot", type=Path, default=Path(tempfile.gettempdir()) / "tidelog-group.svg",
                        metavar="FILE", help="the timeline as SVG (default %(default)s)")  # fmt: skip
    args = parser.parse_args()
    if not 0.5 <= args.lease <= 30:
        parser.error("--lease is 0.5 to 30 seconds")
    with demo(f"Nothing is left running; the timeline: {args.plot}"):
        play(args.lease, 2.0, args.plot)


if __name__ == "__main__":
    main()
