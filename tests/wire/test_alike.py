"""Commands that arrive together do what they would do one by one, whatever else stands with their keys."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from respserver.testing import RunningServer
from tests.wire.rawclient import Raw

Connect = Callable[..., Raw]
Words = tuple[bytes | str | int, ...]

WORDS: list[tuple[Words, int]] = [  # each with how often it comes
    (("GET", "a"), 6), (("GET", "b"), 3), (("SET", "a", "x"), 3), (("SET", "a", "7"), 4), (("SET", "b", "-3"), 2),
    (("SET", "a", "9223372036854775800"), 1), (("SET", "b", "01"), 1), (("INCR", "a"), 6), (("INCR", "b"), 3),
    (("DECR", "a"), 3), (("DECR", "n"), 1), (("INCRBY", "a", 5), 1), (("SET", "a", "1", "EX", 100), 1),
    (("TTL", "a"), 1), (("DEL", "a"), 1), (("PING",), 2), (("PING", "x"), 1), (("TAPPEND", "s", "f", "v"), 2),
    (("GET", "s"), 2), (("INCR", "s"), 2), (("SET", "s", "1"), 1), (("DEL", "s"), 1), (("GET",), 1),
    (("STRLEN", "a"), 1), (("set", "a", "5"), 1), (("incr", "a"), 1), (("EXISTS", "a", "b"), 1),
]  # fmt: skip


def program(rng: random.Random, length: int) -> list[Words]:
    """Commands, each often several times in a row."""
    kinds = rng.choices([words for words, _ in WORDS], [weight for _, weight in WORDS], k=length)
    return [words for words in kinds for _ in range(rng.choice((1, 1, 2, 3, 20)))]


def counts(c: Raw) -> dict[bytes, bytes]:
    wanted = (b"keyspace_hits", b"keyspace_misses", b"rdb_changes_since_last_save", b"total_error_replies")
    lines = [line.partition(b":") for line in c("INFO").split(b"\r\n")]
    return {name: value for name, _, value in lines if name in wanted or name.startswith(b"errorstat_")}


def calls(c: Raw) -> dict[bytes, list[bytes]]:
    """Calls, refused ones, failed ones of each command."""
    lines = [line.partition(b":") for line in c("INFO", "commandstats").split(b"\r\n")]
    return {
        name: [part.partition(b"=")[2] for part in value.split(b",") if b"usec" not in part]
        for name, _, value in lines
        if name.startswith(b"cmdstat_") and name not in (b"cmdstat_info", b"cmdstat_config|resetstat")
    }


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("events", [False, True])
def test_a_pipeline_is_what_its_commands_are_one_by_one(
    c: Raw, hand: RunningServer, seed: int, events: bool
) -> None:
    """The clock stands still, so IDs are the same, too."""
    rng = random.Random(seed)
    commands = program(rng, 60)
    if events:
        c("CONFIG", "SET", "notify-keyspace-events", "KEA")
    found = []
    for together in (False, True):
        c("FLUSHALL")
        c("CONFIG", "RESETSTAT")
        before = int(counts(c)[b"rdb_changes_since_last_save"])
        replies = c.pipeline(*commands) if together else [c(*words) for words in commands]
        after = counts(c)
        changes = int(after.pop(b"rdb_changes_since_last_save")) - before
        found.append((replies, after, calls(c), changes, c("DEBUG", "DIGEST"), [c("GET", key) for key in "abn"]))
    assert found[0] == found[1]


def test_what_a_batch_changed_is_there_after_a_restart(c: Raw) -> None:
    c.pipeline(*[("SET", "a", n) for n in range(5)], *[("INCR", "a")] * 5, *[("DECR", "n")] * 3)
    c("DEBUG", "LOADAOF")
    assert c.pipeline(("GET", "a"), ("GET", "n")) == [b"9", b"-3"]


def test_a_batch_breaks_what_watches_its_key(c: Raw, connect: Connect) -> None:
    other = connect()
    for batch in ([("SET", "a", 1)] * 3, [("INCR", "a")] * 3):
        c("WATCH", "a")
        other.pipeline(*batch)
        assert c.pipeline(("MULTI",), ("GET", "a"), ("EXEC",))[-1] is None
