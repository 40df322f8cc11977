"""GETs, SETs, INCRs and DECRs of different keys that arrive together have the effects of separate calls."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from storage.keyspace import stringgroups, values
from storage.keyspace.keyspace import Keyspace
from storage.keyspace.replay import replay
from storage.keyspace.values import String
from tests.respserver.local import LocalServer, Peer
from tests.storage.keyspace.replaykit import NOW, as_string, empty

KEYS = [b"k%d" % number for number in range(6)] + [b"", b"a key of some length" * 4]
VALUES = [
    b"", b"x", b"ab", b"10", b"-10", b"0", b"-0", b"007", b"+7", b" 7", b"7 ", b"1_0", b"9" * 19, b"-" + b"9" * 19,
    b"%d" % (2**63 - 1), b"%d" % (2**63 - 2), b"%d" % -(2**63), b"%d" % (1 - 2**63), b"1" * 30, b"v" * 1024,
    b"v" * 1025, b"\0\r\n\xff", b"v" * 70_000,
]  # fmt: skip
Command = tuple[bytes, ...]


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[LocalServer, LocalServer]]:
    servers = []
    for name in ("together", "apart"):
        (tmp_path / name).mkdir()
        servers.append(LocalServer(tmp_path / name))
    yield servers[0], servers[1]
    for server in servers:
        server.close()


def state(local: LocalServer) -> dict[str, Any]:
    """Everything that commands of strings change, and what a start would replay."""
    ks, replayed = local.server.data.ks, empty()
    for event in local.events:
        if event[0] == "append":
            replay(replayed, cast(bytes, event[2]))
    assert replayed.digest() == ks.digest()
    dirty = {key for key, value in ks.keys.items() if isinstance(value, String) and value.dirty}
    assert dirty <= ks.changes.strings
    return {
        "digest": ks.digest(),
        "used": {key: value.used for key, value in ks.keys.items()},
        "counts": (ks.hits, ks.misses, ks.string_bytes, ks.stream_keys, ks.expired_keys, ks.changes.count),
        "changed": set(ks.changes.strings),
    }


def some(rng: random.Random, name: bytes, count: int) -> list[Command]:
    """Calls of one command, most of them usual."""
    made: list[Command] = []
    for _ in range(count):
        key = rng.choice(KEYS)
        if name == b"SET":
            made.append((name, key, rng.choice(VALUES) if rng.random() < 0.5 else b"%d" % rng.randrange(1000)))
        else:
            made.append((name, key))
    return made


def program(rng: random.Random) -> list[list[Command]]:
    """Pipelines."""
    made: list[list[Command]] = []
    for _ in range(rng.randrange(1, 12)):
        pipeline: list[Command] = []
        for _ in range(rng.randrange(1, 4)):
            name = rng.choice([b"GET", b"SET", b"INCR", b"DECR", b"get", b"incr"])
            pipeline += some(rng, name, rng.randrange(1, 90))
            if rng.random() < 0.4:
                key = rng.choice(KEYS)
                pipeline.append(
                    rng.choice([
                        (b"DEL", key), (b"XADD", key, b"5-1", b"f", b"v"), (b"SET", key, b"5", b"PX", b"50"),
                        (b"SET", key, b"77", b"EX", b"100"), (b"PEXPIRE", key, b"20"), (b"GET",), (b"SET", key),
                        (b"APPEND", key, b"12"), (b"RENAME", key, rng.choice(KEYS)), (b"PERSIST", key),
                        (b"MSET", *rng.sample(KEYS, 2) * 2), (b"SETRANGE", key, b"1", b"9"),
                    ])
                )  # fmt: skip
        made.append(pipeline)
    return made


@pytest.mark.parametrize("seed", range(60))
def test_pipelines_have_the_effects_of_separate_commands(two: tuple[LocalServer, LocalServer], seed: int) -> None:
    rng = random.Random(seed)
    together, apart = two
    for local in two:
        local.connect().ask("CONFIG", "RESETSTAT")
    clients = together.connect(), apart.connect()
    if rng.random() < 0.3:
        for client in clients:
            client.ask("HELLO", "3")
    watcher, other = together.connect(), apart.connect()
    for pipeline in program(rng):
        watched = rng.choice(KEYS)
        for client in (watcher, other):
            client.ask("UNWATCH")
            client.ask("WATCH", watched)
        clients[0].pipeline(*pipeline)
        together.settle()
        expected = b"".join([clients[1].ask(*words) for words in pipeline])
        assert clients[0].taken() == expected
        assert watcher.session.dirty_cas == other.session.dirty_cas
        assert state(together) == state(apart)
        passed = rng.choice([0, 1, 30])
        for local in two:
            local.clock.move(passed)
        if rng.random() < 0.2:
            captured = [local.server.data.ks.begin_capture() for local in two]
            if rng.random() < 0.7:
                for local, capture in zip(two, captured, strict=True):
                    ks = local.server.data.ks
                    while not ks.changes.more(3):
                        pass
                    assert ks.changes.stored(capture, 1 << 30)
            else:
                for local, capture in zip(two, captured, strict=True):
                    local.server.data.ks.changes.failed(capture)


def test_compiled_strings_are_known() -> None:
    in_c = importlib.util.find_spec("storage.keyspace._strings") is not None
    assert (in_c and str(values.__file__).endswith(".so")) == stringgroups.AVAILABLE


def test_a_group_is_counted_and_ends_where_a_call_fails(local: LocalServer, one: Peer) -> None:
    for number in range(30):
        one.ask("SET", f"n{number}", number)
    one.ask("SET", "n7", "text")
    one.ask("CONFIG", "RESETSTAT")
    one.pipeline(*[("INCR", f"n{number}") for number in range(30)])
    local.settle()
    lines = one.taken().split(b"\r\n")[:-1]
    assert lines[7].startswith(b"-ERR value is not an integer")
    assert [line for line in lines if line.startswith(b":")] == [b":%d" % (n + 1) for n in range(30) if n != 7]
    assert b"cmdstat_incr:calls=30," in one.ask("INFO", "commandstats")
    assert b"failed_calls=1\r\n" in one.ask("INFO", "commandstats")
    assert one.session.total_commands == 30 + 1 + 1 + 30 + 2


def test_a_value_that_something_refers_to_is_not_overwritten(local: LocalServer, one: Peer) -> None:
    ks = local.server.data.ks
    for number in range(4):
        one.ask("SET", f"n{number}", "100")
    held = [as_string(value).value for value in ks.keys.values()]
    one.pipeline(*[("INCR", f"n{number}") for number in range(4)])
    one.pipeline(*[("SET", f"n{number}", "777") for number in range(4)])
    local.settle()
    assert held == [b"100"] * 4
    assert [as_string(value).value for value in ks.keys.values()] == [b"777"] * 4
    hash(as_string(ks.keys[b"n0"]).value)
    one.pipeline(("SET", "n0", "888"), ("SET", "n1", "888"))
    local.settle()
    assert {as_string(ks.keys[b"n0"]).value: True}[b"888"]


in_c = pytest.mark.skipif(not stringgroups.AVAILABLE, reason="strings are not compiled here")


def numbers(count: int) -> Keyspace:
    ks = empty()
    for number in range(count):
        ks.set_string(b"n%d" % number, b"5")
    ks.take_batch()
    return ks


@in_c
@pytest.mark.parametrize(
    "prepare",
    [
        lambda ks: ks.waiting.update({b"n2": 1}),
        lambda ks: ks.watchers.update({b"n2": set()}),
        lambda ks: ks.remove(b"n2"),
        lambda ks: ks.set_expire(b"n2", NOW),
        lambda ks: (ks.remove(b"n2"), ks.create_stream(b"n2")),
    ],
)
def test_what_is_left_to_the_caller(prepare: Callable[[Keyspace], object]) -> None:
    ks = numbers(5)
    prepare(ks)
    calls: list[Any] = [[b"INCR", b"n%d" % number] for number in range(5)]
    assert stringgroups.add(ks, calls, 0, 5, NOW, 1) == (b":6\r\n:6\r\n", 2)
    assert stringgroups.add(ks, calls, 2, 5, NOW, 1) is None
    assert stringgroups.add(ks, calls, 3, 4, NOW, 1) == (b":6\r\n", 1)
    calls = [[b"SET", b"n%d" % number, b"1234"] for number in range(5)]
    assert stringgroups.set_(ks, calls, 0, 99, NOW) == 2
    assert stringgroups.set_(ks, calls, 2, 99, NOW) == 0
    assert stringgroups.set_(ks, calls, 3, 99, NOW) == 2


@in_c
@pytest.mark.parametrize("other", [[b"INCR"], [b"incr", b"n1"], [b"INCR", b"n1", b"1"], [b"INCS", b"n1"], None])
def test_other_calls_end_a_group(other: object) -> None:
    ks = numbers(5)
    calls: list[Any] = [[b"INCR", b"n0"], other, [b"INCR", b"n2"]]
    assert stringgroups.add(ks, calls, 0, 3, NOW, 1) == (b":6\r\n", 1)


@in_c
@pytest.mark.parametrize("why", ["event_classes", "tracked", "held"])
def test_changes_that_all_are_observed(why: str) -> None:
    ks = numbers(5)
    setattr(ks.changes if why == "held" else ks, why, True)
    calls: list[Any] = [[b"INCR", b"n0"], [b"INCR", b"n2"]]
    assert stringgroups.add(ks, calls, 0, 2, NOW, 1) is None
    assert stringgroups.set_(ks, [[*call, b"v"] for call in calls], 0, 2, NOW) == 0
    assert (stringgroups.get(ks, calls, 0, 2, NOW, b"$-1\r\n", 9, 9) is None) == (why == "event_classes")


@in_c
def test_long_values_and_many_replies_end_a_group() -> None:
    ks = numbers(20)
    ks.set_string(b"n3", b"v" * 11)
    calls: list[Any] = [[b"GET", b"n%d" % number] for number in range(22)]
    one = b"$1\r\n5\r\n"
    assert stringgroups.get(ks, calls, 0, 22, NOW, b"_\r\n", 10, 1000) == (3 * one, 3)
    assert stringgroups.get(ks, calls, 0, 22, NOW, b"_\r\n", 11, 1000) == (
        3 * one + b"$11\r\n" + b"v" * 11 + b"\r\n" + 16 * one + b"_\r\n" * 2, 22
    )  # fmt: skip
    assert stringgroups.get(ks, calls, 5, 22, NOW, b"_\r\n", 11, 9) == (2 * one, 2)
    assert (ks.hits, ks.misses) == (3 + 20 + 2, 2)


@in_c
def test_arguments_that_are_refused() -> None:
    _strings: Any = importlib.import_module("storage.keyspace._strings")
    ks, calls = numbers(2), [[b"INCR", b"n0"]]
    good: list[Any] = [ks.keys, ks.expires, calls, 0, 1, NOW, {}, {}, set(), 1]
    for at, bad in enumerate((None, None, None, 1, 0, -1, None, None, None, "1")):
        with pytest.raises((TypeError, ValueError)):
            _strings.add(*good[:at], bad, *good[at + 1 :])
    for function in (_strings.add, _strings.get, _strings.set_, _strings.learn):
        with pytest.raises(TypeError):
            function()
    with pytest.raises(TypeError):
        _strings.add(ks.keys, {}, [None], 0, 1, NOW, {}, {}, set(), 1)
    with pytest.raises(TypeError):
        _strings.learn(String(b"v"), 1, b"v", 1)
    assert not _strings.learn(String(b"v"), String(b"v"), b"v", 1)
