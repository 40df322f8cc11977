"""Random programs of Redis's stream commands, on ours and on a real redis-server: every reply must be the same.

``TIDELOG_SEED=17`` runs the programs from the 17th on; ``scripts/test long`` runs them for TIDELOG_LONG minutes. What a
Redis of 2022 answers otherwise than today's is hidden (xprograms/masks.py); redis-server 8.2 answers the same programs,
and those with the commands and options that are new in it (xprograms/later.py).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from respserver.testing import start_in_thread
from tests.wire.xprograms import later, waiting
from tests.wire.xprograms.compare import Difference, differences, kind, report, shrunk
from tests.wire.xprograms.generate import program, with_consumers
from tests.wire.xprograms.typed import Reply, Typed, Words
from tidelog.testing import running_server

PROGRAMS = 150  # of each protocol
SCENES = 50
NODE = 4  # entries of a node: trimming by whole nodes is seen in short streams, too
ALL = 1000  # entries of a node: a whole program's are in one
MINUTES = float(os.environ.get("TIDELOG_LONG") or 0.1)  # the same in short is tested always


def first_seed() -> int:
    """The seed to begin with: a build machine runs the same programs each time."""
    seed = int(os.environ.get("TIDELOG_SEED") or (0 if os.environ.get("CI") else time.time_ns() % 1_000_000_000))
    print(f"TIDELOG_SEED={seed}")  # pytest shows it where the test fails
    return seed


@contextlib.contextmanager
def nodes_of(port: int, entries: int) -> Iterator[None]:
    """redis-server is shared with other tests: it gets its setting back."""
    with Typed(port) as client:
        before = client("CONFIG", "GET", "stream-node-max-entries").value[1].value
        client("CONFIG", "SET", "stream-node-max-entries", entries)
        yield
        client("CONFIG", "SET", "stream-node-max-entries", before)


def check(ours: Typed, theirs: Typed, seed: int, new: bool = False) -> None:
    """``new``: with commands that Redis has since 8.2."""
    commands = later.program(seed) if new else program(seed, newer=theirs.version >= (8, 2))
    if differences(ours, theirs, commands):
        pytest.fail(f"TIDELOG_SEED={seed} RESP{ours.proto}\n{report(ours, theirs, commands)}")


@pytest.fixture(scope="module")
def our_port() -> Iterator[int]:
    with start_in_thread(stream_node_max_entries=str(NODE)) as running:
        yield running.port


@pytest.mark.parametrize("proto", [2, 3], ids=["RESP2", "RESP3"])
def test_random_programs(our_port: int, redis_server: Any, proto: int) -> None:
    seed = first_seed()
    with nodes_of(redis_server.port, NODE), Typed(our_port, proto) as ours, Typed(redis_server.port, proto) as theirs:
        for at in range(seed, seed + PROGRAMS):
            check(ours, theirs, 2 * at + proto % 2)


@pytest.mark.parametrize("new", [False, True], ids=["old-commands", "new-commands"])
@pytest.mark.parametrize("proto", [2, 3], ids=["RESP2", "RESP3"])
def test_random_programs_on_redis_8(our_port: int, newer_redis: Any, proto: int, new: bool) -> None:
    seed, entries = first_seed(), ALL if new else NODE
    with (
        nodes_of(newer_redis.port, entries), Typed(our_port, proto) as ours, Typed(newer_redis.port, proto) as theirs
    ):  # fmt: skip
        for at in range(seed, seed + PROGRAMS // 2):
            check(ours, theirs, 2 * at + proto % 2, new)


def test_random_clients_that_wait_on_redis_8(our_port: int, newer_redis: Any) -> None:
    seed = first_seed()
    with (
        nodes_of(newer_redis.port, NODE), contextlib.closing(waiting.Stage(our_port, 2)) as ours,
        contextlib.closing(waiting.Stage(newer_redis.port, 2)) as theirs,
    ):  # fmt: skip
        for at in range(seed, seed + SCENES):
            watch(ours, theirs, at)


@pytest.mark.parametrize("proto", [2, 3], ids=["RESP2", "RESP3"])
def test_random_clients_that_wait(our_port: int, redis_server: Any, proto: int) -> None:
    seed = first_seed()
    with (
        nodes_of(redis_server.port, NODE), contextlib.closing(waiting.Stage(our_port, proto)) as ours,
        contextlib.closing(waiting.Stage(redis_server.port, proto)) as theirs,
    ):  # fmt: skip
        for at in range(seed, seed + SCENES):
            watch(ours, theirs, 2 * at + proto % 2)


def watch(ours: waiting.Stage, theirs: waiting.Stage, seed: int) -> None:
    scene = waiting.scene(seed, theirs.old)
    if waiting.differences(ours, theirs, scene):
        pytest.fail(f"TIDELOG_SEED={seed}\n{waiting.report(ours, theirs, scene)}")


@pytest.mark.long(short=True)
@pytest.mark.timeout(MINUTES * 60 + 300)
@pytest.mark.parametrize("which", ["redis_server", "newer_redis"])
def test_random_programs_for_long(request: pytest.FixtureRequest, which: str) -> None:
    port, new = request.getfixturevalue(which).port, which == "newer_redis"
    began, first = time.monotonic(), first_seed()
    at = first
    with (
        nodes_of(port, ALL if new else NODE),
        running_server(stream_node_max_entries=NODE, appendfsync="no") as server,
        Typed(server.port, 2) as ours2, Typed(port, 2) as theirs2,
        Typed(server.port, 3) as ours3, Typed(port, 3) as theirs3,
    ):  # fmt: skip
        for at in itertools.count(first):
            check(*((ours3, theirs3) if at % 2 else (ours2, theirs2)), at, new)
            if time.monotonic() - began > MINUTES * 60:
                break
    print(f"{at - first + 1} programs")


# -- the tools -----------------------------------------------------------------------------------------------------
def test_a_seed_makes_one_program() -> None:
    assert program(5) == program(5) != program(6)


def test_shrinking_leaves_what_matters() -> None:
    chance = random.Random(1)
    for _ in range(50):
        wanted = [(b"%d" % number,) for number in sorted(chance.sample(range(60), 3))]
        whole: list[Words] = [(b"%d" % number,) for number in range(60)]
        assert shrunk(whole, set(wanted).issubset) == wanted


def test_consumers_are_made_before_they_are_used() -> None:
    made = with_consumers(
        [(b"XREADGROUP", b"COUNT", b"2", b"group", b"g", b"ann", b"STREAMS", b"s", b"t", b">", b">"), (b"XCLAIM", b"s")]
    )
    assert made[:2] == [(b"XGROUP", b"CREATECONSUMER", key, b"g", b"ann") for key in (b"s", b"t")]
    assert len(made) == 4


def test_what_is_compared(redis_server: Any) -> None:
    """Redis beside itself agrees with itself; a reply of another type is told."""
    with Typed(redis_server.port) as one, Typed(redis_server.port, 3) as other:
        assert differences(one, one, program(3)) == []
        found = differences(one, other, [(b"XADD", b"s", b"1-1", b"f", b"v"), (b"XREAD", b"STREAMS", b"s", b"0")])
        assert [kind(difference) for difference in found] == [(b"XREAD", "*", "%")]
        assert isinstance(found[0], Difference)
        assert found[0].theirs.value[0] == Reply("$", b"s")
        said = report(one, other, program(0))
        assert "ours:" in said
