"""SIGKILL at random moments while batches are staged and published: each is there once and whole, or not at all."""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter

import pytest
import redis

from tidelog import Client
from tidelog.testing import Server, running_server

ROWS = 300  # of a stage and a stream; some batches have ten times as many


class Sink:
    """Publishes one epoch after the other, as a sink does that begins again after each failure."""

    def __init__(self, server: Server, rng: random.Random) -> None:
        self.server = server
        self.rng = rng
        self.epoch = 0
        self.attempt = 0
        self.size: dict[int, int] = {}  # epoch -> rows of a stage and a stream; the same in every attempt
        self.done: set[int] = set()
        self.staged: tuple[str, int, int] = ("", 0, 0)  # the last stage, what it held for sure, and what it may hold
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            with contextlib.suppress(redis.ConnectionError), Client(self.server.url) as client:
                while True:
                    self.batch(client)
        except BaseException as error:  # noqa: BLE001 - handed to the test's thread
            self.failed = error

    def batch(self, client: Client) -> None:
        self.attempt += 1
        rows = self.size.setdefault(self.epoch, self.rng.choice((3, ROWS, ROWS, 10 * ROWS)))
        names = [f"{self.attempt}-{task}" for task in range(2)]
        for name in names:
            self.staged = name, 0, rows
            for key, total in (("a", rows), ("b", 2 * rows)):
                self.staged = name, self.staged[1], total if key == "a" else rows + total
                self.staged = name, client.tstage(name, 60_000, key, ["epoch"], [(self.epoch,)] * total), self.staged[2]
        if self.rng.random() < 0.3:
            with contextlib.suppress(redis.ResponseError):  # one is under way
                client.redis.bgsave()
        client.tpublish("sink", self.epoch, *names)
        self.done.add(self.epoch)
        self.epoch += 1


@pytest.mark.parametrize("fsync", ["always", "everysec"])
def test_killed_at_any_moment(fsync: str) -> None:
    rng = random.Random(fsync)
    with running_server(appendfsync=fsync) as server:
        sink = Sink(server, rng)
        for turn in range(5):
            thread = threading.Thread(target=sink.run)
            before = sink.attempt
            thread.start()
            with Client(server.url) as client:
                goal = before + rng.randrange(1, 5)
                while sink.attempt < goal and thread.is_alive():
                    client.tlen("a")
                for _ in range(rng.randrange(30)):
                    client.tlen("a")
            server.kill()
            thread.join(30)
            if sink.failed is not None:
                raise sink.failed
            server.start()
            with Client(server.url) as client:
                look(client, sink, f"{turn}")
        assert len(sink.done) > 3
        assert sink.attempt > sink.epoch, "no batch was ever cut short: the test shows too little"


def look(client: Client, sink: Sink, turn: str) -> None:
    seen = []
    for key, times in (("a", 2), ("b", 4)):
        epochs = [int(entry["epoch"]) for page in client.pages(key, size=50_000) for entry in page]
        assert epochs == sorted(epochs), turn
        there = Counter(epochs)
        assert sink.done <= set(there) <= sink.done | {sink.epoch}, f"{turn}: batches are gone, or came from nowhere"
        seen.append(set(there))
        for epoch, rows in there.items():
            assert rows == times * sink.size[epoch], f"{turn}: batch {epoch} came in part, or twice"
    assert seen[0] == seen[1]
    name, least, most = sink.staged
    if sink.epoch not in sink.done and least:
        held = client.tstage(name, 60_000, "c", ["f"], [(1,)]) - 1
        assert held == 0 or least <= held <= most, turn  # 0: it was published
        client.tdrop(name)
