"""redis-py's own Lock, sync and async: its scripts run here as they are; other scripts are refused."""

from __future__ import annotations

import asyncio
import hashlib

import pytest
import redis
import redis.asyncio
from redis.exceptions import LockError, LockNotOwnedError, NoScriptError, ResponseError
from redis.lock import Lock

from respserver.testing import RunningServer
from tests.wire.rawclient import Raw

SCRIPTS = [Lock.LUA_RELEASE_SCRIPT, Lock.LUA_EXTEND_SCRIPT, Lock.LUA_REACQUIRE_SCRIPT]


def test_a_lock_has_one_holder(hand: RunningServer) -> None:
    with redis.Redis(port=hand.port) as client:
        mine, other = client.lock("lock", timeout=10), client.lock("lock", timeout=10)
        assert mine.acquire(blocking=False)
        assert not other.acquire(blocking=False)
        other.local.token = b"another"
        for attempt in (other.release, other.reacquire, lambda: other.extend(5)):
            other.local.token = b"another"
            with pytest.raises(LockNotOwnedError):
                attempt()
        assert (mine.owned(), client.pttl("lock")) == (True, 10_000)
        mine.release()
        assert client.get("lock") is None
        other.local.token = None
        assert other.acquire(blocking=False)
        with pytest.raises(LockError):
            mine.release()
        assert client.exists("lock")


def test_a_lock_is_extended_and_ends(hand: RunningServer) -> None:
    with redis.Redis(port=hand.port) as client:
        lock = client.lock("lock", timeout=10)
        assert lock.acquire(blocking=False)
        hand.advance(4000)
        assert lock.extend(5)
        assert client.pttl("lock") == 11_000
        assert lock.extend(3, replace_ttl=True)
        assert client.pttl("lock") == 3000
        assert lock.reacquire()
        assert client.pttl("lock") == 10_000
        hand.advance(10_000)
        with pytest.raises(LockNotOwnedError):
            lock.extend(5)
        other = client.lock("lock", timeout=10)
        assert other.acquire(blocking=False)
        lock.local.token = b"another"
        with pytest.raises(LockNotOwnedError):
            lock.reacquire()


def test_a_lock_without_an_end_cannot_be_extended(hand: RunningServer) -> None:
    with redis.Redis(port=hand.port) as client, Raw(hand.port) as c:
        client.set("lock", "token")
        assert c("EVAL", Lock.LUA_EXTEND_SCRIPT, 1, "lock", "token", 5000, "0") == 0
        assert client.pttl("lock") == -1


def test_async_locks(hand: RunningServer) -> None:
    async def play() -> None:
        async with redis.asyncio.Redis(port=hand.port) as client:
            mine, other = client.lock("lock", timeout=10), client.lock("lock", timeout=10)
            assert await mine.acquire(blocking=False)
            assert not await other.acquire(blocking=False)
            assert await mine.extend(5)
            assert await client.pttl("lock") == 15_000
            assert await mine.reacquire()
            assert await client.pttl("lock") == 10_000
            await mine.release()
            async with other:
                assert await other.owned()
                assert not await mine.acquire(blocking=False)
            assert await client.get("lock") is None

    asyncio.run(play())


def test_a_waiting_holder_takes_over(server: RunningServer) -> None:
    with redis.Redis(port=server.port) as client:
        assert client.lock("lock", timeout=0.2).acquire(blocking=False)
        with client.lock("lock", timeout=10, sleep=0.01, blocking_timeout=10) as second:
            assert second.owned()


def test_the_scripts_are_known_before_they_are_loaded(c: Raw) -> None:
    sha1s = [hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest() for text in SCRIPTS]
    assert c("SCRIPT", "EXISTS", *sha1s, "0" * 40, sha1s[0].upper()) == [1, 1, 1, 0, 1]
    for text, sha1 in zip(SCRIPTS, sha1s, strict=True):
        assert c("SCRIPT", "LOAD", text) == sha1.encode()
    c("SET", "a", "token", "PX", 5000)
    assert c("EVALSHA", sha1s[1].upper(), 1, "a", "token", 500, "0") == 1
    assert c("PTTL", "a") == 5500
    assert c("EVALSHA", sha1s[2], 1, "a", "token", 700) == 1
    assert c("PTTL", "a") == 700
    assert c("EVAL", SCRIPTS[0], 1, "a", "other") == 0
    assert c("EVAL", SCRIPTS[0], 1, "a", "token") == 1
    assert c("EXISTS", "a") == 0


def test_other_scripts_are_refused(c: Raw, hand: RunningServer) -> None:
    with redis.Redis(port=hand.port) as client:
        with pytest.raises(NoScriptError):
            client.evalsha("0" * 40, 0)
        for refused in (lambda: client.eval("return 1", 0), lambda: client.script_load("return 1")):
            with pytest.raises(ResponseError, match="runs no Lua: it knows the scripts of redis-py's Lock"):
                refused()
    assert c("EVAL", SCRIPTS[0], 0, "a", "token").startswith("ERR this script takes 1 key and 1 arguments, not 0 and 2")
    c("TAPPEND", "s", "f", "v")
    assert c("EVAL", SCRIPTS[0], 1, "s", "token").startswith("WRONGTYPE")
    c("SET", "a", "token", "PX", 5000)
    assert c("EVAL", SCRIPTS[2], 1, "a", "token", "soon").startswith("ERR value is not an integer")
    assert c("EVAL", SCRIPTS[2], 1, "a", "token", (1 << 63) - 1).startswith("ERR invalid expire time in 'pexpire'")


def test_a_script_is_a_write(c: Raw) -> None:
    c("SET", "a", "token")
    c("WATCH", "a")
    assert c("EVAL", SCRIPTS[0], 1, "a", "token") == 1
    assert c.pipeline(("MULTI",), ("PING",), ("EXEC",))[-1] is None
    c("SET", "a", "token")
    assert c.pipeline(("MULTI",), ("EVAL", SCRIPTS[0], 1, "a", "token"), ("EXISTS", "a"), ("EXEC",))[-1] == [1, 0]
    c("ACL", "SETUSER", "reader", "on", "nopass", "+@all", "%R~*")
    c("SET", "a", "token")
    c("AUTH", "reader", "x")
    assert c("EVAL", SCRIPTS[0], 1, "a", "token").startswith("NOPERM")
    assert c("APPEND", "a", "x").startswith("NOPERM")
    assert c("MSETEX", 1, "a", "x").startswith("NOPERM")
    assert c("RENAME", "a", "b").startswith("NOPERM")
    assert c("COPY", "a", "b").startswith("NOPERM")
    assert c("GETRANGE", "a", 0, -1) == b"token"


@pytest.mark.parametrize("protocol", [2, 3])
def test_one_holder_at_a_time(server: RunningServer, protocol: int) -> None:
    """Reading and writing apart from each other loses no step where a lock is held."""

    async def play() -> None:
        async with redis.asyncio.Redis(port=server.port, protocol=protocol) as client:

            async def step() -> None:
                for _ in range(5):
                    async with client.lock("lock", timeout=10, sleep=0.001):
                        await client.set("n", int(await client.get("n") or 0) + 1)

            await asyncio.gather(*[step() for _ in range(8)])
            assert await client.get("n") == b"40"
            assert await client.exists("lock") == 0

    asyncio.run(play())


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_lock_within_a_transaction(server: RunningServer, protocol: int) -> None:
    """As taskiq-redis has it: acquired and released in the pipeline that does the work, scripts among the commands."""

    async def play() -> None:
        async with redis.asyncio.Redis(port=server.port, protocol=protocol) as client:
            pipe = client.pipeline()
            lock = pipe.lock("lock", timeout=10)
            await lock.acquire()
            pipe.set("n", 1)
            await lock.release()
            assert await pipe.execute() == [True, True, 1]
            assert await client.keys() == [b"n"]

    asyncio.run(play())
