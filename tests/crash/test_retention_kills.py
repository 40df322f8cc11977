"""SIGKILL of the leader and of its replica at random times while streams with retention policies grow.

After each restart: an entry is missing only if the policy of its stream does not retain it; soon, no stream exceeds its
policy; both servers have the same data.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Sequence

import pytest

from tests.crash.storms import SETTINGS, CrashStorm, Work
from tests.replication.cluster import Node, cluster, wait_until
from tests.wire.rawclient import Raw

NODE = int(SETTINGS["stream_node_max_entries"])
PAD = "x" * 40
WIRE = 110  # bytes of an entry in a reply, at most
AGE = 1500  # ms
POLICIES = {
    "exact": "COUNT 200 EXACT", "nodes": "COUNT 300 ~", "size": f"BYTES {WIRE * 150} EXACT", "age": f"AGE {AGE} EXACT",
    "both": f"COUNT 100000 AGE {AGE} ~", "groups": "COUNT 20 GROUPS EXACT", "limit": "COUNT 20 GROUPS LIMIT 400 EXACT",
}  # fmt: skip


class Kept:
    """One stream: appends to it, acknowledges for its group, and knows what its policy retains."""

    def __init__(self, key: str, chance: random.Random) -> None:
        self.key = key
        self.chance = chance
        self.sent = 0  # numbers 1 to this may be in the stream
        self.confirmed = 0  # numbers 1 to this were appended
        self.times: list[tuple[int, int]] = []  # ms of the first entry of a confirmed append, and its last number
        self.finished: set[int] = set()  # numbers whose acknowledgement was sent

    @property
    def grouped(self) -> bool:
        return "GROUPS" in POLICIES[self.key]

    def work(self, port: int, over: threading.Event) -> None:
        """Append, read and acknowledge until the server is gone."""
        with Raw(port) as client:
            while not over.is_set():
                many = self.chance.randrange(1, 40)
                numbers = range(self.sent + 1, self.sent + many + 1)
                self.sent += many
                values = [word for number in numbers for word in (number, PAD)]
                first, _ = client("TMAPPEND", self.key, "FIELDS", 2, "n", "pad", "VALUES", *values)
                self.confirmed = self.sent
                self.times.append((int(first.split(b".")[0]), self.sent))
                del self.times[:-1000]
                if self.grouped and self.chance.random() < 0.7:
                    self.acknowledge(client)

    def acknowledge(self, client: Raw) -> None:
        rows = client("TREAD", self.key, 0, self.chance.randrange(1, 60), "GROUP", "g", 0, "RETRY", 50, 0)
        rows = [row for row in rows if row is not None and self.chance.random() < 0.95]
        if rows:
            self.finished.update(int(row[2]) for row in rows)
            client("TACK", self.key, "g", *[row[0] for row in rows])

    def check(self, client: Raw) -> None:
        """What the policy retains is there, and the rest leaves soon."""
        rows = client("TRANGE", self.key, "-", "+")
        seconds, micros = map(int, client("TIME"))
        there = [int(row[2]) for row in rows]
        about = client("TINFO", self.key)
        last = about[about.index(b"entries-added") + 1]
        assert there == list(range(last - len(there) + 1, last + 1)), f"{self.key}: a gap"
        assert self.confirmed <= last <= self.sent, f"{self.key}: {last}, confirmed {self.confirmed}"
        if last > self.confirmed:  # an append without a reply
            self.times.append((int(rows[-1][0].split(b".")[0]) if rows else 0, last))
        missing = last - len(there)  # numbers 1 to this
        assert missing <= self.evictable(last, seconds * 1000 + micros // 1000), f"{self.key}: {missing} of {last}"
        self.sent = self.confirmed = last
        words = POLICIES[self.key]
        assert client("TCFG", self.key)[1] == words.encode()
        wait_until(lambda: client("TCFG", self.key, "RETAIN", *words.split(), "DRY") == 0, f"evictions from {self.key}")
        if self.key == "exact":
            assert client("TLEN", self.key) == min(200, last)
        if self.key == "nodes":
            assert client("TLEN", self.key) < 300 + 2 * NODE
        if self.key == "limit":
            assert client("TLEN", self.key) <= 400

    def evictable(self, last: int, now: int) -> int:
        """The numbers 1 to this one are not retained."""
        if self.key in ("exact", "nodes"):
            return max(0, last - (200 if self.key == "exact" else 300))
        if self.key == "size":
            return max(0, last - 150)
        if self.key in ("age", "both"):
            return max((number for ms, number in self.times if ms <= now - AGE), default=0)
        protected = max(0, last - 400) if self.key == "limit" else 0  # entries after it, if they are unfinished
        unfinished = next(number for number in range(protected + 1, last + 2) if number not in self.finished)
        return max(0, min(last - 20, unfinished - 1))


class RetentionStorm(CrashStorm):
    """The streams, each with a client."""

    def __init__(self, leader: Node, replica: Node, seed: int) -> None:
        super().__init__(leader, replica, seed)
        self.kept = [Kept(key, random.Random(seed + at)) for at, key in enumerate(POLICIES)]
        for key, words in POLICIES.items():
            leader("TCFG", key, "RETAIN", *words.split())

    def works(self) -> Sequence[Work]:
        return [kept.work for kept in self.kept]

    def check(self, event: str) -> None:
        with Raw(self.leader.port) as client:
            for kept in self.kept:
                kept.check(client)


def storm(kills: int, seed: int) -> None:
    with cluster() as made:
        leader, replica = made.pair(**SETTINGS)
        running = RetentionStorm(leader, replica, seed)
        while running.kills < kills:
            running.turn()
        evicted = [leader("TINFO", key)[b"evicted"] for key in POLICIES]
        assert all(evicted) or (kills == 2 and any(evicted)), evicted
        print(f"seed {seed}: {running.kills} kills, evicted: {dict(zip(POLICIES, evicted, strict=True))}")


@pytest.mark.slow
def test_a_few_kills() -> None:
    storm(2, 5)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_two_hundred_kills() -> None:
    storm(200, int(os.environ.get("TIDELOG_SEED") or time.time()))
