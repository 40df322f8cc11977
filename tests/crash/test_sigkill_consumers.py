"""SIGKILL at random moments while consumers read, claim and acknowledge.

After each restart every confirmed delivery that was not acknowledged is pending, an acknowledged one is not, and the
owner is who got the message last.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from typing import Any

import pytest

from tests.wire.rawclient import Raw
from tidelog.testing import Server, running_server

CONSUMERS = (b"a", b"b", b"c")


class Load:
    """A producer, and consumers in a thread that note what the server confirmed and what is in doubt."""

    def __init__(self, server: Server, seed: int) -> None:
        self.server = server
        self.random = random.Random(seed)
        self.owners: dict[bytes, bytes] = {}  # ID -> who got it last, confirmed and not acknowledged
        self.acked: set[bytes] = set()
        self.doubtful: set[bytes] = set()  # IDs of calls whose reply did not come
        self.in_doubt = False  # so may be a read
        self.total = 0

    def run(self, seconds: float) -> None:
        threads = [threading.Thread(target=self._quietly, args=(work,)) for work in (self._produce, self._consume)]
        for thread in threads:
            thread.start()
        time.sleep(seconds)  # the crash must come at a random moment
        self.server.kill()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()

    def _quietly(self, work: Any) -> None:
        with contextlib.suppress(EOFError, OSError), Raw(self.server.port) as client:
            while True:
                work(client)

    def _produce(self, client: Raw) -> None:
        client.pipeline(*[("XADD", "s", "*", "f", "x" * 100) for _ in range(20)])

    def _consume(self, client: Raw) -> None:
        rng, name = self.random, self.random.choice(CONSUMERS)
        action = rng.random()
        if action < 0.5:
            self.in_doubt = True
            claim = ("CLAIM", 0) if rng.random() < 0.2 else ()
            reply = client("XREADGROUP", "GROUP", "g", name, "COUNT", 10, *claim, "STREAMS", "s", ">")
            self._got(name, reply[0][1] if reply else [])
            self.in_doubt = False
            return
        some = rng.sample(sorted(self.owners), min(len(self.owners), rng.choice((1, 5))))
        if not some:
            return
        self.doubtful.update(some)
        if action < 0.8:
            client("XACK", "s", "g", *some)
            for entry_id in some:
                del self.owners[entry_id]
            self.acked.update(some)
        elif action < 0.9:
            self._got(name, client("XCLAIM", "s", "g", name, 0, *some))
        else:
            assert client("XNACK", "s", "g", "FAIL", "IDS", len(some), *some) == len(some)
            self.owners.update(dict.fromkeys(some, b""))
        self.doubtful.difference_update(some)

    def _got(self, name: bytes, entries: list[Any]) -> None:
        self.total += len(entries)
        self.owners.update({row[0]: name for row in entries})

    def check(self, client: Raw) -> None:
        pending = {row[0]: row[1] for row in client("XPENDING", "s", "g", "-", "+", 10_000_000)}
        assert not self.acked & pending.keys(), "an acknowledged message is pending again"
        for entry_id, owner in self.owners.items():
            if entry_id not in self.doubtful:
                assert entry_id in pending, "a delivered message was lost"
                assert pending[entry_id] == owner or self.in_doubt, "a message has another owner"
        self.owners = pending
        self.doubtful.clear()
        self.in_doubt = False


@pytest.mark.parametrize("fsync", ["always", "no"])
def test_what_consumers_have_survives(fsync: str) -> None:
    with running_server(
        appendfsync=fsync, checkpoint_size="1mb", wal_size="1mb", stream_node_max_entries=100
    ) as server:
        load = Load(server, seed=len(fsync))
        with Raw(server.port) as client:
            assert client("XGROUP", "CREATE", "s", "g", 0, "MKSTREAM") == b"OK"
            assert client("XGROUP", "CREATECONSUMER", "s", "g", "d") == 1
        for _ in range(5):
            load.run(load.random.uniform(0.1, 0.8))
            server.start()
            with Raw(server.port) as client:
                load.check(client)
                assert b"d" in [row[1] for row in client("XINFO", "CONSUMERS", "s", "g")]
        assert load.total > 100
