"""SIGKILL of the server, the helper, and the reader at random times, while entries are freed and read."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.crash.storms import MINUTES, new_seed
from tests.respserver.tiering.test_freeing import add, empty_cache, wait_until_freed
from tests.respserver.tiering.test_tiering import helpers, tiered
from tests.waiting import eventually
from tests.wire.rawclient import Raw
from tidelog.testing import Server


def storm(path: Path, turns: int, seed: int) -> None:
    chance = random.Random(seed)
    first = 1
    with tiered(path, tier_free="yes", save="", node_cache_size="0") as server:
        for _ in range(turns):
            with Raw(server.port) as client:
                expected = add(client, 60, first=first)
                first += 60
                if chance.random() < 0.5:
                    empty_cache(server)
                client.send("XRANGE", "a", "-", "+")
                time.sleep(chance.uniform(0, 0.5))  # the kill is at any time of a pass, and of the reads
                for pid in chance.choice((helpers(server), helpers(server)[:1], helpers(server)[-1:], [])):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            if chance.random() < 0.6:
                server.kill()
                server.start()
            assert eventually(lambda: _whole(server)) == expected
        with Raw(server.port) as client:
            eventually(lambda: b"tier_last_status:ok" in client("INFO", "persistence"))
            client("CONFIG", "RESETSTAT")
            first += 60
            expected = add(client, 60, first=first)
            wait_until_freed(client, 1)
            empty_cache(server)
            assert eventually(lambda: _whole(server)) == expected


def _whole(server: Server) -> object:
    """Return the entries of the stream; None if the process that reads them was killed twice meanwhile."""
    with Raw(server.port) as client:
        found = client("XRANGE", "a", "-", "+")
    return found if isinstance(found, list) else None


def test_a_few_kills(tmp_path: Path) -> None:
    storm(tmp_path, 4, 3)


@pytest.mark.long
@pytest.mark.skipif(not MINUTES, reason="for as long as TIDELOG_LONG says: scripts/test long")
@pytest.mark.timeout(3600)
def test_a_hundred_kills(tmp_path: Path) -> None:
    storm(tmp_path, 100, new_seed())
