"""Random programs of X commands, with T commands in between: a replica, and the leader after SIGKILL, answer what the
leader answered before."""

from __future__ import annotations

import os
import time
from random import Random

import pytest
import redis

from tests.replication.cluster import Cluster, Node, assert_same, cluster
from tests.wire.xprograms.generate import HOUR, probes, program
from tests.wire.xprograms.masks import masked
from tests.wire.xprograms.typed import Reply, Typed, Words
from tidelog.testing import ServerError

MINUTES = float(os.environ.get("TIDELOG_LONG") or 0)
AT_ONCE = 40  # programs before a kill
SETTINGS = {"checkpoint_size": "1mb", "wal_size": "1mb", "stream_node_max_entries": 4}


def ask(node: Node, asked: list[Words]) -> list[Reply]:
    with Typed(node.port, 3) as client:
        return masked(asked, client.run(asked))


def assert_alike(before: list[Reply], after: list[Reply], asked: list[Words], where: str) -> None:
    for words, one, other in zip(asked, before, after, strict=True):
        assert one == other, f"{where} {b' '.join(words).decode()}\nbefore {one}\nthere {other}"


def tidal(chance: Random, prefix: str) -> Words:
    """A T command for the same streams and groups."""
    key, group, some = prefix + chance.choice("sst"), chance.choice("ggh"), f"{chance.randint(1, 30)}.0"
    words = chance.choice((
        ("TAPPEND", key, "f", "v"),
        ("TMAPPEND", key, "FIELDS", 1, "f", "VALUES", *range(chance.randint(1, 9))),
        ("TREAD", key, "0", 5, "GROUP", group, 0, "RETRY", HOUR, 24 * HOUR),
        ("TREAD", key, "0", 5, "GROUP", group, 0),
        ("TACK", key, group, some),
        ("TNACK", key, group, "DELAY", HOUR, some),
        ("TAPPEV", key, "COUNT", chance.randint(0, 20)),
    ))  # fmt: skip
    return tuple(str(word).encode() for word in words)


def turn(leader: Node, replica: Node, seed: int) -> None:
    """Run some programs, each on keys of its own, and lose the process."""
    chance = Random(seed)
    asked: list[Words] = []
    with Typed(leader.port, 2 + seed % 2) as client:
        for at in range(seed * AT_ONCE, (seed + 1) * AT_ONCE):
            whole = program(at, prefix=f"{at}:", newer=True)
            others = [tidal(chance, f"{at}:") for _ in range(chance.choice((0, 0, 5, 20)))]
            for words in [*others, *([(b"SAVE",)] if chance.random() < 0.5 else [])]:
                whole.insert(chance.randrange(len(whole)), words)
            client.run(whole)
            asked += probes(f"{at}:")
    before = ask(leader, asked)
    assert_same(leader, replica)
    assert_alike(before, ask(replica, asked), asked, "on the replica:")
    if chance.random() < 0.3:
        replica.kill()
    leader.kill()
    leader.start()
    assert_alike(before, ask(leader, asked), asked, "after the kill:")
    replica.start()
    assert_same(leader, replica)
    leader("SAVE")
    leader.kill()
    leader.start()
    assert_alike(before, ask(leader, asked), asked, "from the store:")
    leader("FLUSHALL")


def run(made: Cluster, seed: int, seconds: float) -> int:
    leader, replica = made.pair(**SETTINGS)
    began, at = time.monotonic(), seed
    while at == seed or time.monotonic() - began < seconds:
        try:
            turn(leader, replica, at)
        except (AssertionError, ServerError, redis.ResponseError):
            print(f"TIDELOG_SEED={at}", *leader.output[-20:], sep="\n")
            raise
        at += 1
    return at - seed


def first_seed() -> int:
    return int(os.environ.get("TIDELOG_SEED") or (0 if os.environ.get("CI") else time.time_ns() % 1_000_000_000))


def test_programs_survive() -> None:
    with cluster() as made:
        run(made, first_seed(), 8)


@pytest.mark.long
@pytest.mark.timeout(MINUTES * 60 + 300)
def test_programs_survive_for_long() -> None:
    with cluster() as made:
        print(f"{run(made, first_seed(), MINUTES * 60) * AT_ONCE} programs")
