"""SIGKILL of a leader and of its replica at random times while clients work, for several subjects.

A turn: clients work, a server is killed, both run again, the subject checks the leader, and both servers are equal.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import redis

from tests.replication.cluster import Node, assert_same, wait_until

MINUTES: Final = float(os.environ.get("TIDELOG_LONG") or 0)
SETTINGS: Final[dict[str, str | int]] = {"checkpoint_size": "1mb", "wal_size": "1mb", "stream_node_max_entries": 50}
PLAIN: Final = ("leader", "leader", "leader", "replica", "both")  # what is killed
ROLES: Final = (*PLAIN, "promotion", "promotion", "copy", "copy")
Work = Callable[[int, threading.Event], None]  # works at a port until the event is set, or the connection is lost


def new_seed() -> int:
    """Return TIDELOG_SEED, or a seed that is always the same on a build machine only."""
    fresh = 1 if os.environ.get("CI") else time.time_ns() % 1_000_000
    seed = int(os.environ.get("TIDELOG_SEED") or fresh)
    print(f"TIDELOG_SEED={seed}")  # pytest shows it where the test fails
    return seed


class CrashStorm:
    """A leader, a replica, and what clients do. ``events``: of these, each turn draws one."""

    longest = 0.7  # seconds of work in a turn

    def __init__(self, leader: Node, replica: Node, seed: int, events: Sequence[str] = PLAIN) -> None:
        self.leader = leader
        self.replica = replica
        self.chance = random.Random(seed)
        self.events = events
        self.kills = 0
        self.happened: list[str] = []
        self._failed: list[BaseException] = []

    def works(self) -> Sequence[Work]:
        raise NotImplementedError

    def check(self, event: str) -> None:
        """Check what the leader shows after an event."""
        raise NotImplementedError

    def turn(self) -> None:
        event = self.chance.choice(self.events)
        self.happened.append(event)
        over = threading.Event()
        threads = [threading.Thread(target=self._guarded, args=(work, over)) for work in self.works()]
        if event == "copy":
            self.replica.kill()
            self.kills += 1
        for thread in threads:
            thread.start()
        time.sleep(self.chance.uniform(0.05, self.longest))  # the kill must come at a random time
        if event in ("leader", "both", "promotion"):
            self.leader.kill()
            self.kills += 1
        if event in ("replica", "both"):
            self.replica.kill()
            self.kills += 1
        if event == "copy":
            self._copy()
        over.set()
        if event == "promotion":
            self._promote()
        for node in (self.leader, self.replica):
            if not node.running:
                node.start()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        if self._failed:
            raise self._failed[0]
        self.check(event)
        assert_same(self.leader, self.replica)

    def _copy(self) -> None:
        """Start the replica, which needs a full copy, and kill it or the leader at a random time of that."""
        self.leader("CONFIG", "SET", "repl-backlog-size", 1)
        with suppress(redis.ResponseError):  # a checkpoint is in progress
            self.leader("SAVE")
        self.replica.start()
        time.sleep(self.chance.uniform(0, 0.1))
        self.chance.choice((self.leader, self.replica)).kill()
        self.kills += 1

    def _promote(self) -> None:
        """Let the replica lead, unless it lacks a part of the data; the old leader follows with what it has."""
        old, new = self.leader, self.replica
        wait_until(lambda: not new.link_up, "it knows that its leader is gone")
        try:
            new.lead()
        except redis.ResponseError as error:
            if "has not caught up" not in str(error):
                raise
            self.happened[-1] += " (refused)"
            return
        self.leader, self.replica = new, old
        old.config["replicaof"] = f"127.0.0.1 {new.port}"
        old.start()

        def followed() -> bool:  # its log may be longer
            old.follow(new.port, force=True)
            return True

        wait_until(followed, "the old leader follows")

    def _guarded(self, work: Work, over: threading.Event) -> None:
        """Work until the server is gone."""
        try:
            work(self.leader.port, over)
        except (EOFError, OSError, redis.ConnectionError, redis.TimeoutError):
            pass
        except BaseException as error:  # noqa: BLE001 - handed to the test's thread
            self._failed.append(error)
