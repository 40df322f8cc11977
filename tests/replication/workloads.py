"""What clients do while something happens to the servers, and what must be true of it afterwards.

Rule 1: ``said`` is what the leader's reply confirmed, ``promised`` what WAIT also confirmed: the replicas have it.
Rule 2: what was sent and not answered may have happened or not; both are right.
Rule 3: a workload touches only its own keys, and any of its steps may fail half way.

A new workload is a class here and a line in WORKLOADS.
"""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import redis

from tests.replication.cluster import Node, connect, wait_until

FOR_EVER = 1 << 40  # ms


class Workload:
    """One kind of work. ``said`` and ``promised`` are facts that only grow."""

    def __init__(self) -> None:
        self.random = random.Random(1)
        self.said: set[Any] = set()
        self.promised: set[Any] = set()

    def step(self, client: redis.Redis) -> None:
        """Do a little work and note in ``said`` what was confirmed."""
        raise NotImplementedError

    def glance(self, client: redis.Redis) -> None:
        """Check what any replica must show at any moment."""

    def check(self, client: redis.Redis, kept: set[Any]) -> None:
        """Check what the leader shows at the end. ``kept`` are the facts that must still hold."""


class Appends(Workload):
    """Entries in three streams, strings and a counter. Facts: (key, ID)."""

    def step(self, client: redis.Redis) -> None:
        key = b"a%d" % self.random.randrange(3)
        what = self.random.randrange(4)
        if what == 0:
            first, last = client.execute_command("TMAPPEND", key, "FIELDS", 1, "f", "VALUES", *range(20))
            self.said |= {(key, first), (key, last)}
        elif what == 1:
            pipe = client.pipeline(transaction=False)
            for number in range(10):
                pipe.execute_command("TAPPEND", key, "n", number, "pad", "x" * self.random.choice((0, 10, 500)))
            self.said |= {(key, entry_id) for entry_id in pipe.execute()}
        else:
            self.said.add((key, client.execute_command("TAPPEND", key, "f", "v")))
            client.execute_command("SET", b"string%d" % self.random.randrange(20), self.random.random())
            client.execute_command("INCR", "counter")

    def check(self, client: redis.Redis, kept: set[Any]) -> None:
        there = {(key, i) for key in (b"a0", b"a1", b"a2") for i, *_ in client.execute_command("TRANGE", key, "-", "+")}
        missing = kept - there
        assert not missing, f"{len(missing)} of {len(kept)} entries are gone, one is {min(missing)}"


class Groups(Workload):
    """A group that reads and acknowledges half. Facts: ("delivered" or "acked", ID)."""

    def __init__(self) -> None:
        super().__init__()
        self.acking: set[bytes] = set()  # every ID for which a TACK was ever sent

    def step(self, client: redis.Redis) -> None:
        client.execute_command("TMAPPEND", "g", "FIELDS", 1, "f", "VALUES", *range(10))
        rows = client.execute_command("TREAD", "g", "0", 8, "GROUP", "readers", 0, "RETRY", FOR_EVER, 0)
        ids = [row[0] for row in rows]
        self.said |= {("delivered", i) for i in ids}
        some = [i for i in ids if self.random.random() < 0.5]
        if some:
            self.acking |= set(some)
            assert client.execute_command("TACK", "g", "readers", *some) == len(some)
            self.said |= {("acked", i) for i in some}

    def check(self, client: redis.Redis, kept: set[Any]) -> None:
        if not kept:  # a replica that had not even the group may lead now
            return
        pending = {row[0] for row in client.execute_command("TPENDING", "g", "readers", "-", "+", 1_000_000)}
        again = {i for kind, i in kept if kind == "acked"} & pending
        assert not again, f"{len(again)} acknowledged messages are pending again"
        lost = {i for kind, i in kept if kind == "delivered"} - self.acking - pending
        assert not lost, f"{len(lost)} messages were delivered, not acknowledged, and are not pending"


class Redelivery(Workload):
    """Messages that fall due every few milliseconds, are given back, put off, given up. Facts: acknowledged IDs."""

    def step(self, client: redis.Redis) -> None:
        client.execute_command("TMAPPEND", "r", "FIELDS", 1, "f", "VALUES", *range(5))
        rows = client.execute_command(
            "TREAD", "r", "0", 10, "BLOCK", 5, "GROUP", "again", 0,
            "RETRY", 20, 500, "MAXDELIVERIES", 3, "DEADLETTER", "dead",
        )  # fmt: skip
        for row in rows or ():
            if row is None:
                continue
            assert row[0] not in self.promised, f"{row[0]!r} was acknowledged, and came again"
            what = self.random.randrange(4)
            if what == 0 and client.execute_command("TACK", "r", "again", row[0]):
                self.said.add(row[0])
            elif what == 1:
                client.execute_command("TNACK", "r", "again", "DELAY", self.random.choice((0, 10)), row[0])
            elif what == 2:
                client.execute_command("TTOUCH", "r", "again", 15, row[0])

    def check(self, client: redis.Redis, kept: set[Any]) -> None:
        if not kept:  # a replica that had not even the group may lead now
            return
        pending = {row[0] for row in client.execute_command("TPENDING", "r", "again", "-", "+", 1_000_000)}
        assert not kept & pending


class Eviction(Workload):
    """Streams that keep their newest entries by number and by age, with a group that falls behind."""

    def step(self, client: redis.Redis) -> None:
        client.execute_command("TMAPPEND", "e", "FIELDS", 1, "f", "VALUES", *range(self.random.randrange(1, 30)))
        client.execute_command("TAPPEV", "e", "COUNT", 50, "f", "v")
        client.execute_command("TAPPEV", "t", "TIME", 40, "f", "v" * 50)
        client.execute_command("TREAD", "e", "0", 3, "GROUP", "slow", 0, "RETRY", 30, 200)
        if self.random.random() < 0.1:
            client.execute_command("TAPPEV", "e", "COUNT", 0)

    def check(self, client: redis.Redis, kept: set[Any]) -> None:
        assert client.execute_command("TLEN", "e") <= 50


class Expiry(Workload):
    """Strings, streams and groups with a few milliseconds to live."""

    def step(self, client: redis.Redis) -> None:
        number = self.random.randrange(50)
        client.execute_command("SET", b"x%d" % number, "v", "PX", self.random.randrange(1, 60))
        pipe = client.pipeline(transaction=True)  # or a stream without an end could be left over
        pipe.execute_command("TAPPEND", b"xs%d" % (number % 5), "f", "v")
        pipe.execute_command("PEXPIRE", b"xs%d" % (number % 5), self.random.randrange(1, 60))
        pipe.execute()
        client.execute_command("TAPPEND", "xg", "f", "v")
        group = b"g%d" % (number % 10)
        client.execute_command("TREAD", "xg", "0", 2, "GROUP", group, self.random.randrange(1, 60), "RETRY", 10, 0)

    def check(self, client: redis.Redis, kept: set[Any]) -> None:
        keys = [b"x%d" % number for number in range(50)] + [b"xs%d" % number for number in range(5)]
        wait_until(lambda: not client.execute_command("EXISTS", *keys), "what was to expire is gone")
        wait_until(lambda: not client.execute_command("TGROUP", "LIST", "xg"), "the groups are gone")


class Transactions(Workload):
    """Several keys in one MULTI: never seen in part, anywhere. Facts: IDs in ``ma``."""

    def step(self, client: redis.Redis) -> None:
        pipe = client.pipeline(transaction=True)
        pipe.execute_command("TAPPEND", "ma", "f", "v")
        pipe.execute_command("INCR", "mn")
        pipe.execute_command("TMAPPEND", "mb", "FIELDS", 1, "f", "VALUES", 1, 2)
        self.said.add(pipe.execute()[0])

    def glance(self, client: redis.Redis) -> None:
        pipe = client.pipeline(transaction=True)
        for words in (("TLEN", "ma"), ("GET", "mn"), ("TLEN", "mb")):
            pipe.execute_command(*words)
        one, number, two = pipe.execute()
        assert one == int(number or 0) == two / 2, "a transaction was seen in part"

    def check(self, client: redis.Redis, kept: set[Any]) -> None:
        self.glance(client)
        missing = kept - {row[0] for row in client.execute_command("TRANGE", "ma", "-", "+")}
        assert not missing, f"{len(missing)} transactions are gone"


class Stages(Workload):
    """Batches that are staged, and published at once under one fence: each is there once, and all of it, or not at all,
    whatever happened in between. Facts: epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch = 0
        self.attempts = 0

    def step(self, client: redis.Redis) -> None:
        self.attempts += 1
        many = 5000 if self.random.random() < 0.05 else 2  # more than are written at once
        left, right = b"left%d" % self.attempts, b"right%d" % self.attempts
        for stage, key, count in ((left, "pa", 1), (right, "pa", 2), (left, "pb", 2), (right, "pc", many)):
            rows = [self.epoch] * count
            client.execute_command("TSTAGE", stage, 60_000, key, "FIELDS", 1, "epoch", "VALUES", *rows)
        if self.random.random() < 0.2:
            client.execute_command("TSTAGE", b"idle%d" % self.attempts, 30, "pa", "FIELDS", 1, "f", "VALUES", "never")
        if self.random.random() < 0.1:
            client.execute_command("TDROP", left, right)
            return
        check = ("CHECK", f"c{self.epoch}") if self.epoch % 2 else ()
        client.execute_command("TPUBLISH", "sink", self.epoch, *check, left, right)
        self.said.add(self.epoch)  # published now, or by the call whose reply was lost
        self.epoch += 1
        if self.random.random() < 0.1:
            client.execute_command("TAPPEV", "pc", "COUNT", 1000)

    def glance(self, client: redis.Redis) -> None:
        pipe = client.pipeline(transaction=True)
        for key in ("pa", "pb"):
            pipe.execute_command("TLEN", key)
        three, two = pipe.execute()
        assert three * 2 == two * 3, "a batch was seen in part"

    def check(self, client: redis.Redis, kept: set[Any]) -> None:
        self.glance(client)
        for key, times in (("pa", 3), ("pb", 2)):
            epochs = [int(row[2]) for row in client.execute_command("TRANGE", key, "-", "+")]
            assert epochs == sorted(epochs)
            assert epochs == [epoch for epoch in sorted(set(epochs)) for _ in range(times)], "a batch came twice"
            missing = kept - set(epochs)
            assert not missing, f"{len(missing)} batches are gone"


class Delays(Workload):
    """Delayed entries whose tokens are sent again, some of which are cancelled, and a stream that retains the newest.

    Facts: ("added", "cancelled" or "retained", number)."""

    RETAINED = 30

    def __init__(self) -> None:
        super().__init__()
        self.sent = 0
        self.sent_retained = 0
        self.cancelling: set[int] = set()  # every number for which a CANCEL was ever sent
        self.due: dict[int, int] = {}  # ms since the epoch, of entries with AT

    def step(self, client: redis.Redis) -> None:
        first, self.sent = self.sent, self.sent + self.random.randrange(1, 20)
        pipe = client.pipeline(transaction=False)
        for number in range(first, self.sent):
            self._add(pipe, number, number)
        assert pipe.execute() == [b"t%d" % number for number in range(first, self.sent)]
        self.said |= {("added", number) for number in range(first, self.sent)}
        what = self.random.randrange(6)
        number = self.random.randrange(max(0, self.sent - 100), self.sent)
        if what == 0:
            self.cancelling.add(number)
            if client.execute_command("TDELAY", "dl", "CANCEL", b"t%d" % number):
                self.said.add(("cancelled", number))
        elif what == 1 and number not in self.cancelling and ("added", number) in self.promised:
            self._add(client, number, -1 - number)  # this value must not occur
        elif what == 2:
            client.execute_command("TCFG", "dk", "RETAIN", "COUNT", self.RETAINED, "EXACT")
            for _ in range(5):
                self.sent_retained += 1
                client.execute_command("TDELAY", "dk", "IN", self.random.randrange(200), "f", "v")
                self.said.add(("retained", self.sent_retained))

    def _add(self, client: redis.Redis, number: int, value: int) -> None:
        ms, pad = self.random.choice((0, 1, 5, 30, 200)), "x" * self.random.choice((0, 10, 300))
        when: tuple[str, int] = ("IN", ms)
        if number % 2:
            due = self.due.setdefault(number, int(time.time() * 1000) + ms)
            when = ("AT", due)
        client.execute_command("TDELAY", "dl", *when, "ID", b"t%d" % number, "n", value, "pad", pad)

    def glance(self, client: redis.Redis) -> None:
        pipe = client.pipeline(transaction=True)
        pipe.execute_command("TDELAY", "dl", "LIST", 0, "COUNT", 1000)
        pipe.execute_command("TREVRANGE", "dl", "+", "-", "COUNT", 1000)
        (_, delayed), joined = pipe.execute()
        both = {int(row[3]) for row in delayed} & {int(row[2]) for row in joined}
        assert not both, f"{len(both)} entries are delayed, and in their stream"

    def check(self, client: redis.Redis, kept: set[Any]) -> None:
        wait_until(lambda: not client.execute_command("TDELAY", "dl", "COUNT"), "all deliveries")
        rows = client.execute_command("TRANGE", "dl", "-", "+")
        values = [int(row[2]) for row in rows]
        there = set(values)
        assert len(values) == len(there), "an entry is there twice"
        assert min(values, default=0) >= 0, "a token was forgotten: it made another entry"
        early = [row for row in rows if int(row[0].split(b".")[0]) < self.due.get(int(row[2]), 0)]
        assert not early, f"{len(early)} entries joined before they were due, one is {early[0]}"
        added = {number for kind, number in kept if kind == "added"}
        missing = added - self.cancelling - there
        assert not missing, f"{len(missing)} of {len(added)} delayed entries are gone, one is {min(missing)}"
        again = {number for kind, number in kept if kind == "cancelled"} & there
        assert not again, f"{len(again)} cancelled entries have joined, one is {min(again)}"
        self._check_retained(client, sum(kind == "retained" for kind, _ in kept))

    def _check_retained(self, client: redis.Redis, kept: int) -> None:
        if not kept:  # a replica that had not even the policy may lead now
            return
        wait_until(lambda: not client.execute_command("TDELAY", "dk", "COUNT"), "all deliveries")
        added = client.execute_command("TINFO", "dk")[b"entries-added"]
        assert kept <= added <= self.sent_retained, f"{added} entries have joined, and {kept} were confirmed"
        left = min(added, self.RETAINED)
        wait_until(lambda: client.execute_command("TLEN", "dk") == left, "evictions")


WORKLOADS = {
    "appends": Appends,
    "groups": Groups,
    "redelivery": Redelivery,
    "eviction": Eviction,
    "expiry": Expiry,
    "transactions": Transactions,
    "stages": Stages,
    "delays": Delays,
}


class Load:
    """Runs a workload in a thread of its own, against the current leader, until it is stopped."""

    def __init__(self, workload: Workload, leader: Node, replicas: int) -> None:
        self.workload = workload
        self.replicas = replicas  # how many WAIT must count for a promise
        self.steps = 0
        self._leader = leader
        self._doubtful: set[Any] = set()  # what a leader said and WAIT did not promise, before another one led
        self._failed: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def switch(self, leader: Node) -> None:
        """Go on with another leader."""
        self._leader = leader

    def more(self, steps: int) -> None:
        """Wait for so many more steps."""
        goal = self.steps + steps
        wait_until(lambda: self.steps >= goal or self._failed is not None, f"{steps} more steps of work")

    def stop(self) -> None:
        """Stop the work; raises the error that ended it, if any."""
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive()
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed

    def _run(self) -> None:
        try:
            leader = self._leader
            while not self._stop.is_set():
                if leader is not self._leader:
                    leader = self._leader
                    self._doubtful = self.workload.said - self.workload.promised
                with connect(leader.port, socket_timeout=5) as client:
                    self._work(client, leader)
        except BaseException as error:  # noqa: BLE001 - handed to the test's thread
            self._failed = error

    def _work(self, client: redis.Redis, leader: Node) -> None:
        """Work until the leader changes or the connection breaks."""
        try:
            while leader is self._leader and not self._stop.is_set():
                self.workload.step(client)
                self.steps += 1
                if self.steps % 10 == 0:
                    self._promise(client, leader)
        except (redis.ConnectionError, redis.TimeoutError, redis.ReadOnlyError, OSError):
            time.sleep(0.01)  # it is away: come again
        except redis.ResponseError as error:
            if not str(error).startswith(("UNBLOCKED", "LOADING", "WAIT cannot be used with replica")):
                raise

    def _promise(self, client: redis.Redis, leader: Node) -> None:
        said = self.workload.said - self._doubtful
        enough = client.execute_command("WAIT", self.replicas, 20) >= self.replicas
        if enough and leader is self._leader:  # else the replicas asked may be those of a leader that is none any more
            self.workload.promised |= said
