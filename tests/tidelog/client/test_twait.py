"""twait and twait_group of both clients, against a real server."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.tidelog.client.test_client import KINDS, wait_for_blocked
from tidelog import AsyncClient, Entry, NoGroupError, StreamId
from tidelog.testing import Server

BOTH = pytest.mark.parametrize("kind", KINDS)


@BOTH
@pytest.mark.parametrize("proto", [2, 3])
def test_the_keys_that_have_something(tidelog_server: Server, kind: str, proto: int) -> None:
    client = KINDS[kind](tidelog_server.url, protocol=proto)
    first = client.tappend("a", {"n": 1})
    second = client.tappend("b", {"n": 1})
    assert client.twait({"a": 0, b"b": second, "missing": ""}, block=5000) == [b"a"]
    assert client.twait({"a": StreamId(0), "b": "0"}) == [b"a", b"b"]
    assert client.twait({"a": first, "b": second}, block=1) == []
    client.tread("a", "0", group="g")
    client.tread("b", "0", 0, group="g")
    assert client.twait_group("g", ["a", "b"]) == [b"b"]
    assert client.twait_group("g", ["a"], block=1) == []
    with pytest.raises(NoGroupError, match="missing"):
        client.twait_group("g", ["a", "missing"])
    client.close()


@BOTH
def test_a_key_named_like_the_option(tidelog_server: Server, kind: str) -> None:
    client = KINDS[kind](tidelog_server.url)
    client.tappend("GROUP", {"n": 1})
    assert client.twait({"GROUP": 0}) == [b"GROUP"]
    assert client.twait({"GROUP": 0, "a": 0, "b": 0}) == [b"GROUP"]
    client.close()


@BOTH
def test_a_wait_outlasts_the_socket_timeout(tidelog_server: Server, kind: str) -> None:
    impatient = KINDS[kind](tidelog_server.url, socket_timeout=0.05)
    assert impatient.twait({"a": 0}, block=300) == []
    with ThreadPoolExecutor(1) as pool, tidelog_server.client() as writer:
        endless = pool.submit(impatient.twait, {"a": "", "b": ""})
        wait_for_blocked(writer, 1)
        writer.tappend("b", {"n": 1})
        assert endless.result(10) == [b"b"]
    impatient.close()


def test_a_cancelled_wait_leaves_the_client_usable(tidelog_server: Server) -> None:
    async def scenario() -> list[bytes]:
        async with AsyncClient(tidelog_server.url) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await client.twait({"a": ""})
            await client.tappend("a", {"n": 1})
            return await client.twait({"a": 0})

    assert asyncio.run(scenario()) == [b"a"]


def test_workers_that_wait_process_everything(tidelog_server: Server) -> None:
    """Three workers over eight streams wait, read what TWAIT names, and fail at every fifth message the first time."""
    keys = [f"jobs:{n}" for n in range(8)]
    expected = {f"{key}/{n}" for key in keys for n in range(25)}
    failed: set[str] = set()
    done: set[str] = set()

    def work() -> None:
        with tidelog_server.client() as client:
            while done != expected:
                for key in client.twait_group("g", keys, block=500):
                    for entry in client.tread(key, count=3, group="g", retry=300):
                        assert isinstance(entry, Entry)
                        name = f"{key.decode()}/{entry['n'].decode()}"
                        if int(entry["n"]) % 5 == 0 and name not in failed:
                            failed.add(name)
                        elif client.tack(key, "g", entry):
                            done.add(name)

    with tidelog_server.client() as client, ThreadPoolExecutor(3) as pool:
        for key in keys:
            client.tread(key, "0", 0, group="g")
        workers = [pool.submit(work) for _ in range(3)]
        for n in range(25):
            for key in keys:
                client.tappend(key, {"n": n})
        for worker in workers:
            worker.result(60)
        assert all(client.tpending(key, "g").count == 0 for key in keys)
