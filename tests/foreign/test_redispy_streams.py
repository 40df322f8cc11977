"""Every stream method of redis-py, with usual and odd arguments: the same results as from redis-server.

The same calls go through the blocking client, the asyncio client and pipelines, over RESP2 and RESP3, so that the
parsers of redis-py see all shapes of our replies. IDs are given, times are masked.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import redis
import redis.asyncio
from redis.commands.core import StreamCommands

from tests.foreign.servers import Target


class Call(NamedTuple):
    """One call of a method of redis.Redis."""

    method: str
    args: tuple[Any, ...]
    options: dict[str, Any]


def call(method: str, *args: Any, **options: Any) -> Call:
    return Call(method, args, options)


def add(key: str, *ids: str) -> list[Call]:
    return [call("xadd", key, {"n": at, "of": key}, id=at) for at in ids]


FIVE = add("s", "1-1", "1-2", "2-1", "3-0", "5-5")

SCENES: dict[str, list[Call]] = {
    "adding": [
        *FIVE,
        *add("s", "5-5", "5-4", "0-0", "5-*", "9", "x", "1-1-1", "-", "+", "18446744073709551615-18446744073709551615"),
        *add("s", "*", "19-0"),
        *add("zero", "0-0", "0-1", "0-*"),
        call("xadd", "s", {}),
        call("xadd", "n", {"a": 1}, nomkstream=True),
        call("xadd", "n", {"a": 1, b"\xff\x00": b"\r\n", "": "", "f": 1.5}, id="7-7"),
        call("xadd", "n", {"a": "x" * 5000}, id="8-0", nomkstream=True),
        call("xadd", "n", {str(n): n for n in range(300)}, id="9-0"),
        call("xrange", "n"),
        call("set", "string", "x"),
        *add("string", "1-1"),
        call("xlen", "s"), call("xlen", "string"), call("xlen", "absent"), call("type", "s"), call("exists", "s"),
    ],
    "trimming": [
        *[call("xadd", "t", {"n": n}, id=f"{n}-1") for n in range(1, 31)],
        call("xadd", "t", {"n": 31}, id="31-1", maxlen=20, approximate=False),
        call("xadd", "t", {"n": 32}, id="32-1", minid="15", approximate=False),
        call("xadd", "t", {"n": 33}, id="33-1", maxlen=5, minid="1"),
        call("xadd", "t", {"n": 33}, id="33-1", maxlen=1, approximate=False, limit=2),
        call("xadd", "t", {"n": 33}, id="33-1", maxlen=-1),
        call("xtrim", "t", maxlen=10, approximate=False), call("xlen", "t"),
        call("xtrim", "t", minid="30-1", approximate=False), call("xrange", "t"),
        call("xtrim", "t", maxlen=1, approximate=False, limit=1),
        call("xtrim", "t", maxlen=100, limit=10), call("xtrim", "absent", maxlen=1), call("xtrim", "t"),
        call("xtrim", "t", maxlen=1, minid="1"), call("xtrim", "t", minid="bad", approximate=False),
        call("xtrim", "t", maxlen=0, approximate=False), call("exists", "t"), call("xinfo_stream", "t"),
        *add("t", "32-1", "33-2"),
    ],
    "ranges": [
        *FIVE,
        call("xrange", "s"), call("xrange", "s", "1-2", "3"), call("xrange", "s", "(1-2", "(3-0"),
        call("xrange", "s", "1", "1"), call("xrange", "s", 2, 5, count=1), call("xrange", "s", "-", "+", count=2),
        call("xrange", "s", "6", "1"), call("xrange", "absent"), call("xrange", "s", "x"), call("xrange", "s", "(-"),
        call("xrange", "s", "-", "(+"), call("xrange", "s", "(18446744073709551615-18446744073709551615", "+"),
        call("xrange", "s", count=0), call("xrange", "s", "+", "-"), call("xrange", "s", "-", "(0-0"),
        call("xrevrange", "s"), call("xrevrange", "s", "3", "1-2"), call("xrevrange", "s", "(3-0", "(1-1"),
        call("xrevrange", "s", count=2), call("xrevrange", "s", "+", "-", count=100), call("xrevrange", "absent"),
        call("xrevrange", "s", "1", "6"), call("xrevrange", "s", "x"), call("xrevrange", "s", count=-1),
        call("set", "string", "x"), call("xrange", "string"), call("xrevrange", "string"),
    ],
    "reading": [
        *FIVE, *add("r", "4-4", "9-9"),
        call("xread", {"s": "0"}), call("xread", {"s": "2-1", "r": "5"}, count=1), call("xread", {"r": 0, "s": "1"}),
        call("xread", {"s": "$"}), call("xread", {"s": "5-5", "r": "9-9"}, block=1), call("xread", {"absent": "0"}),
        call("xread", {"s": "5"}, count=1, block=1), call("xread", {"s": ">"}), call("xread", {"s": "x"}),
        call("xread", {}), call("xread", {"s": "0"}, count=0), call("xread", {"s": "0"}, block=-1),
        call("set", "string", "x"), call("xread", {"string": "0"}), call("xread", {"s": "0", "string": "0"}),
    ],
    "deleting": [
        *FIVE,
        call("xdel", "s", "1-1", "3-0", "3-0", "7-7"), call("xdel", "s", "bad"), call("xdel", "absent", "1-1"),
        call("xdel", "s", "2-1", "bad"), call("xlen", "s"), call("xrange", "s"), call("xrevrange", "s"),
        call("xread", {"s": "0"}), call("xinfo_stream", "s"), call("xdel", "s"), call("xinfo_stream", "s", full=True),
        call("xdel", "s", "1-2", "2-1", "5-5"), call("xlen", "s"), call("exists", "s"), call("xinfo_stream", "s"),
        *add("s", "5-5", "5-6"), call("xinfo_stream", "s"), call("xread", {"s": "0"}),
        call("delete", "s"), call("xinfo_stream", "s"), call("xrange", "s"),
    ],
    "groups": [
        *FIVE,
        call("xgroup_create", "s", "g"), call("xgroup_create", "s", "g"), call("xgroup_create", "s", "h", id="0"),
        call("xgroup_create", "s", "i", id="2-1", entries_read=3), call("xgroup_create", "absent", "g"),
        call("xgroup_create", "s", "j", id="bad"), call("xgroup_create", "s", "j", entries_read=-2),
        call("xgroup_create", "made", "g", mkstream=True), call("xlen", "made"), call("xinfo_stream", "made"),
        call("xgroup_create", "s", "far", id="100-0"), call("xinfo_groups", "s"), call("xinfo_groups", "made"),
        call("xgroup_setid", "s", "g", "0"), call("xgroup_setid", "s", "g", "1-2", entries_read=2),
        call("xgroup_setid", "s", "none", "0"), call("xgroup_setid", "absent", "g", "0"),
        call("xgroup_setid", "s", "far", "$"), call("xgroup_setid", "s", "g", "bad"), call("xinfo_groups", "s"),
        call("xgroup_createconsumer", "s", "g", "c"), call("xgroup_createconsumer", "s", "g", "c"),
        call("xgroup_createconsumer", "s", "none", "c"), call("xgroup_createconsumer", "absent", "g", "c"),
        call("xinfo_consumers", "s", "g"), call("xinfo_consumers", "s", "h"), call("xinfo_consumers", "s", "none"),
        call("xinfo_consumers", "absent", "g"), call("xinfo_groups", "absent"), call("xinfo_stream", "absent"),
        call("xgroup_delconsumer", "s", "g", "c"), call("xgroup_delconsumer", "s", "g", "c"),
        call("xgroup_delconsumer", "s", "none", "c"), call("xgroup_destroy", "s", "g"),
        call("xgroup_destroy", "s", "g"), call("xgroup_destroy", "absent", "g"), call("xinfo_stream", "s"),
        call("xinfo_stream", "s", full=True),
        call("set", "string", "x"), call("xgroup_create", "string", "g"), call("xinfo_stream", "string"),
        call("xgroup_create", "string", "g", mkstream=True), call("xgroup_destroy", "string", "g"),
    ],
    "reading as a group": [
        *FIVE, *add("r", "1-0"),
        call("xgroup_create", "s", "g", id="0"), call("xgroup_create", "r", "g", id="0"),
        call("xreadgroup", "g", "a", {"s": ">"}, count=2), call("xreadgroup", "g", "b", {"s": ">", "r": ">"}, count=1),
        call("xreadgroup", "g", "a", {"s": "0"}), call("xreadgroup", "g", "a", {"s": "1-1"}, count=1),
        call("xreadgroup", "g", "b", {"s": "0", "r": "0"}), call("xreadgroup", "g", "c", {"s": "0"}),
        call("xreadgroup", "g", "c", {"s": "0", "r": ">"}), call("xreadgroup", "g", "b", {"s": 1}, noack=True),
        call("xreadgroup", "g", "d", {"s": ">"}, count=1, noack=True), call("xinfo_groups", "s"),
        call("xreadgroup", "g", "d", {"s": ">"}), call("xreadgroup", "g", "d", {"s": ">"}),
        call("xreadgroup", "g", "d", {"s": ">"}, block=1), call("xreadgroup", "g", "d", {"s": "0"}, block=1),
        call("xdel", "s", "1-1", "5-5"), call("xreadgroup", "g", "a", {"s": "0"}),
        call("xreadgroup", "g", "d", {"s": "0"}),
        call("xreadgroup", "none", "a", {"s": ">"}), call("xreadgroup", "g", "a", {"absent": ">"}),
        call("xreadgroup", "none", "a", {"s": "0"}), call("xreadgroup", "g", "a", {"s": ">", "absent": ">"}),
        call("xreadgroup", "g", "a", {"s": "$"}), call("xreadgroup", "g", "a", {"s": "bad"}),
        call("xreadgroup", "g", "a", {}), call("xreadgroup", "g", "a", {"s": ">"}, count=0),
        call("xinfo_groups", "s"), call("xinfo_stream", "s", full=True), call("xpending", "s", "g"),
        call("set", "string", "x"), call("xreadgroup", "g", "a", {"string": ">"}),
    ],
    "pending": [
        *FIVE, call("xgroup_create", "s", "g", id="0"), call("xpending", "s", "g"),
        call("xreadgroup", "g", "a", {"s": ">"}, count=3), call("xreadgroup", "g", "b", {"s": ">"}, count=1),
        call("xpending", "s", "g"), call("xpending", "s", "none"), call("xpending", "absent", "g"),
        call("xpending_range", "s", "g", "-", "+", 10), call("xpending_range", "s", "g", "-", "+", 10, "b"),
        call("xpending_range", "s", "g", "(1-1", "2-1", 1), call("xpending_range", "s", "g", "-", "+", 10, "nobody"),
        call("xpending_range", "s", "g", "-", "+", 0), call("xpending_range", "s", "g", "-", "+", 10, idle=60_000),
        call("xpending_range", "s", "g", "-", "+", 10, "a", idle=0), call("xpending_range", "s", "none", "-", "+", 1),
        call("xpending_range", "s", "g", "bad", "+", 1), call("xpending_range", "s", "g", "-", "+", None),
        call("xpending_range", "s", "g", "-", "+", -1), call("xpending_range", "s", "g", None, None, 1),
        call("xack", "s", "g", "1-1", "1-1", "9-9"), call("xack", "s", "none", "1-1"),
        call("xack", "absent", "g", "1-1"), call("xack", "s", "g"),
        call("xack", "s", "g", "bad"), call("xack", "s", "g", "1-2", "bad"),
        call("xpending", "s", "g"), call("xinfo_consumers", "s", "g"), call("xgroup_delconsumer", "s", "g", "a"),
        call("xpending", "s", "g"), call("xinfo_groups", "s"), call("xgroup_destroy", "s", "g"),
        call("xpending", "s", "g"), call("set", "string", "x"), call("xpending", "string", "g"),
        call("xack", "string", "g", "1-1"),
    ],
    "claiming": [
        *FIVE, call("xgroup_create", "s", "g", id="0"), call("xreadgroup", "g", "a", {"s": ">"}),
        call("xclaim", "s", "g", "b", 0, ["1-1", "1-2"]), call("xclaim", "s", "g", "b", 0, ["2-1"], justid=True),
        call("xclaim", "s", "g", "b", 100_000, ["3-0"]), call("xclaim", "s", "g", "b", 0, ["9-9"]),
        call("xclaim", "s", "g", "c", 0, ["1-1"], retrycount=7, idle=5000),
        call("xclaim", "s", "g", "c", 0, ["1-2"], time=1_000_000),
        call("xclaim", "s", "g", "c", 0, ["3-0"], force=True),
        call("xpending_range", "s", "g", "-", "+", 10), call("xack", "s", "g", "5-5"),
        call("xclaim", "s", "g", "c", 0, ["5-5"]), call("xclaim", "s", "g", "c", 0, ["5-5"], force=True),
        call("xclaim", "s", "g", "c", 0, ["7-7"], force=True), call("xclaim", "s", "none", "c", 0, ["1-1"]),
        call("xclaim", "absent", "g", "c", 0, ["1-1"]), call("xclaim", "s", "g", "c", 0, ["bad"]),
        call("xclaim", "s", "g", "c", -1, ["1-1"]), call("xclaim", "s", "g", "c", 0, []),
        call("xclaim", "s", "g", "c", 0, ["1-1"], idle="x"), call("xdel", "s", "1-2"),
        call("xclaim", "s", "g", "d", 0, ["1-1", "1-2"]), call("xpending_range", "s", "g", "-", "+", 10),
        call("xautoclaim", "s", "g", "e", 0, count=2), call("xautoclaim", "s", "g", "e", 0, "2-1", count=1),
        call("xautoclaim", "s", "g", "e", 0, "(2-1", justid=True), call("xautoclaim", "s", "g", "e", 100_000),
        call("xdel", "s", "1-1", "5-5"), call("xautoclaim", "s", "g", "f", 0), call("xautoclaim", "s", "none", "e", 0),
        call("xautoclaim", "absent", "g", "e", 0), call("xautoclaim", "s", "g", "e", 0, "bad"),
        call("xautoclaim", "s", "g", "e", 0, count=0), call("xautoclaim", "s", "g", "e", -1),
        call("xpending_range", "s", "g", "-", "+", 10), call("xinfo_groups", "s"), call("xinfo_consumers", "s", "g"),
        call("xinfo_stream", "s", full=True), call("set", "string", "x"), call("xautoclaim", "string", "g", "e", 0),
        call("xclaim", "string", "g", "e", 0, ["1-1"]),
    ],
}  # fmt: skip

#: Later than redis-server 7.0; see the last tests here.
NEWER = {"xackdel", "xdelex", "xcfgset", "xnack"}

TIMES = {"idle", "time_since_delivered", "seen-time"}
SHAPE = {"radix-tree-keys", "radix-tree-nodes"}


def shown(value: Any, name: str = "") -> Any:
    """A result without times, the shape of trees, and what redis-server 7.0 does not tell yet."""
    if isinstance(value, dict):
        items = [(key, key.decode("latin-1") if isinstance(key, bytes) else key, item) for key, item in value.items()]
        return {key: shown(item, name) for key, name, item in items if name not in LATER}
    if name in TIMES | SHAPE and isinstance(value, int):
        return "?"
    if name in ("pel", "pending") and isinstance(value, list):
        # ID, perhaps the consumer, time of the delivery, number of deliveries
        return [[*(shown(item) for item in row[:-2]), "?", row[-1]] for row in value]
    if isinstance(value, list | tuple):
        return [shown(item) for item in value]
    return value


#: Fields of XINFO that came with 7.2 (the first two), with 8.6, and with 8.8 (the last).
LATER = {
    "inactive", "active-time", "idmp-duration", "idmp-maxsize", "pids-tracked", "iids-tracked", "iids-added",
    "iids-duplicates", "nacked-count",
}  # fmt: skip


def failed(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def blocking(port: int, protocol: int, calls: list[Call]) -> list[Any]:
    results = []
    with redis.Redis(port=port, protocol=protocol) as client:
        for method, args, options in calls:
            try:
                results.append(shown(getattr(client, method)(*args, **options)))
            except redis.RedisError as error:
                results.append(failed(error))
    return results


def awaiting(port: int, protocol: int, calls: list[Call]) -> list[Any]:
    async def play() -> list[Any]:
        results = []
        async with redis.asyncio.Redis(port=port, protocol=protocol, decode_responses=protocol == 3) as client:
            for method, args, options in calls:
                try:
                    results.append(shown(await getattr(client, method)(*args, **options)))
                except (redis.RedisError, UnicodeDecodeError) as error:
                    results.append(failed(error))
        return results

    return asyncio.run(play())


def piped(port: int, protocol: int, calls: list[Call]) -> list[Any]:
    """In one pipeline, which is a transaction over RESP3."""
    results: list[Any] = []
    with redis.Redis(port=port, protocol=protocol) as client, client.pipeline(transaction=protocol == 3) as pipe:
        for method, args, options in calls:
            try:
                getattr(pipe, method)(*args, **options)
            except redis.RedisError as error:  # refused by redis-py itself
                results.append(failed(error))
        results += [
            failed(reply) if isinstance(reply, Exception) else shown(reply)
            for reply in pipe.execute(raise_on_error=False)
        ]
    return results


@pytest.mark.parametrize("protocol", [2, 3], ids=["resp2", "resp3"])
@pytest.mark.parametrize("way", [blocking, awaiting, piped], ids=lambda way: way.__name__)
@pytest.mark.parametrize("scene", SCENES)
def test_the_same_results(
    both: tuple[Target, Target], scene: str, way: Callable[[int, int, list[Call]], list[Any]], protocol: int
) -> None:
    calls = SCENES[scene]
    if way is piped:  # a wrong number of arguments ends a transaction: sent alone only
        calls = [step for step in calls if step != call("xack", "s", "g") and step != call("xdel", "s")]
    theirs, mine = (way(target.port, protocol, calls) for target in both)
    for at, (expected, got) in enumerate(zip(theirs, mine, strict=True)):
        assert got == expected, f"{at}: {calls[at] if way is not piped else scene}"


def test_every_method_is_called() -> None:
    methods = {name for name, _ in inspect.getmembers(StreamCommands, inspect.isfunction) if name.startswith("x")}
    assert methods - NEWER == {step.method for calls in SCENES.values() for step in calls if step.method[0] == "x"}


# -- what redis-server 7.0 does not have -----------------------------------------------------------------------------
@pytest.fixture(params=[2, 3], ids=["resp2", "resp3"])
def client(ours: Target, request: pytest.FixtureRequest) -> Any:
    with redis.Redis(port=ours.port, protocol=request.param, decode_responses=True) as client:
        yield client


def fill(client: Any) -> None:
    for at in ("1-0", "2-0", "3-0", "4-0"):
        client.xadd("s", {"n": at}, id=at)
    for group in ("g", "h"):
        client.xgroup_create("s", group, id="0")
        client.xreadgroup(group, "c", {"s": ">"})


def test_deleting_with_regard_to_groups(client: Any) -> None:
    fill(client)
    assert client.xdelex("s", "1-0", "9-0") == [1, -1]
    assert client.xpending("s", "g")["pending"] == 4
    assert client.xdelex("s", "2-0", "2-0", ref_policy="DELREF") == [1, -1]
    assert client.xpending("s", "g")["pending"] == 3
    assert client.xdelex("s", "3-0", ref_policy="ACKED") == [2]
    client.xack("s", "g", "3-0")
    client.xack("s", "h", "3-0")
    assert client.xdelex("s", "3-0", ref_policy="ACKED") == [1]
    assert [at for at, _ in client.xrange("s")] == ["4-0"]
    assert client.xdelex("absent", "1-0") == [-1]


def test_acknowledging_and_deleting(client: Any) -> None:
    fill(client)
    assert client.xackdel("s", "g", "1-0", "9-0") == [1, -1]
    assert client.xpending("s", "h")["pending"] == 4
    assert client.xackdel("s", "g", "2-0", ref_policy="DELREF") == [1]
    assert client.xpending("s", "h")["pending"] == 3
    assert client.xackdel("s", "g", "3-0", ref_policy="ACKED") == [2]
    assert client.xackdel("s", "h", "3-0", ref_policy="ACKED") == [1]
    assert [at for at, _ in client.xrange("s")] == ["4-0"]


def test_trimming_with_regard_to_groups(client: Any) -> None:
    fill(client)
    assert client.xtrim("s", maxlen=3, approximate=False, ref_policy="DELREF") == 1
    assert client.xpending("s", "g")["pending"] == 3
    client.xack("s", "g", "2-0")
    client.xack("s", "h", "2-0")
    assert client.xtrim("s", maxlen=1, approximate=False, ref_policy="ACKED") == 1
    client.xadd("s", {"n": 5}, id="5-0", maxlen=1, approximate=False, ref_policy="KEEPREF")
    assert [at for at, _ in client.xrange("s")] == ["5-0"]
    assert client.xpending("s", "g")["pending"] == 2


def test_claiming_while_reading(client: Any) -> None:
    fill(client)
    client.xadd("s", {"n": 5}, id="5-0")
    [(key, entries)] = _streams(client.xreadgroup("g", "d", {"s": ">"}, claim_min_idle_time=0))
    assert key == "s"
    assert [(at, fields, count) for at, fields, _, count in entries] == [
        ("1-0", {"n": "1-0"}, 1), ("2-0", {"n": "2-0"}, 1), ("3-0", {"n": "3-0"}, 1), ("4-0", {"n": "4-0"}, 1),
        ("5-0", {"n": "5"}, 0),
    ]  # fmt: skip
    assert client.xpending("s", "g")["consumers"] == [{"name": "d", "pending": 5}]


def _streams(reply: Any) -> list[tuple[Any, Any]]:
    """Of both protocols: over RESP3 redis-py has one more list around the entries."""
    return [(key, entries[0]) for key, entries in reply.items()] if isinstance(reply, dict) else list(reply)


def test_producers_that_repeat_themselves(client: Any) -> None:
    first = client.xadd("s", {"n": 1}, idmp=("producer", b"one"))
    assert client.xadd("s", {"n": 1}, idmp=("producer", b"one")) == first
    second = client.xadd("s", {"n": 2}, idmpauto="producer")
    assert client.xadd("s", {"n": 2}, idmpauto="producer") == second
    assert client.xadd("s", {"n": 2}, idmpauto="another") != second
    assert client.xlen("s") == 3
    assert client.xcfgset("s", idmp_duration=10, idmp_maxsize=2) in (True, "OK")
    facts = client.xinfo_stream("s")
    assert (facts["idmp-duration"], facts["idmp-maxsize"], facts["pids-tracked"]) == (10, 2, 0)
    assert client.xadd("s", {"n": 1}, idmp=("producer", b"one")) != first


def test_giving_back(client: Any) -> None:
    """XNACK of 8.8."""
    fill(client)
    assert client.xnack("s", "g", "FAIL", "1-0", "9-0") == 1
    assert client.xnack("s", "g", "SILENT", "2-0") == 1
    assert client.xnack("s", "g", "FATAL", "3-0") == 1
    assert client.xpending("s", "g")["pending"] == 4
    counts = {row["message_id"]: row["times_delivered"] for row in client.xpending_range("s", "g", "-", "+", 10)}
    assert (counts["1-0"], counts["2-0"], counts["4-0"]) == (1, 0, 1)
    assert counts["3-0"] > 1_000_000
