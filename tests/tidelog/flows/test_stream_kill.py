"""Streams under SIGKILL, of the server and of processes: nothing is lost, nothing stays pending, duplicates are bounded
by what was under way.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from tests.tidelog.flows.flow_process import flow
from tests.tidelog.flows.serverkit import in_loop, running
from tests.waiting import until
from tidelog import Client
from tidelog.flows import Flow
from tidelog.testing import Server, running_server

UNSETTLED = 1024
PATIENCE = 40.0  # s


@pytest.fixture
def server() -> Iterator[Server]:
    with running_server(appendfsync="always") as server:
        yield server


@contextmanager
def process(server: Server, alias: str) -> Iterator[subprocess.Popen[bytes]]:
    words = [sys.executable, "-m", "tests.tidelog.flows.flow_process", server.url, alias, str(UNSETTLED)]
    started = subprocess.Popen(words)
    try:
        yield started
    finally:
        started.kill()
        started.wait(10)


def fill(client: Client, start: int, end: int) -> None:
    client.tmappend("orders", ["data"], [[json.dumps({"n": n})] for n in range(start, end)])


def wait(true: Any) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)


def out(client: Client) -> Counter[int]:
    return Counter(json.loads(entry["data"])["n"] for page in client.pages("out") for entry in page)


def finished(client: Client, count: int) -> bool:
    """Whether all has come out, and nothing is pending."""
    return client.tlen("out") >= count and client.tpending("orders", "shop").count == 0 and len(out(client)) == count


def check(client: Client, count: int, kills: int) -> None:
    found = out(client)
    assert set(found) == set(range(count))
    assert found.total() - count <= kills * UNSETTLED
    assert client.tpending("orders", "shop").count == 0


def test_a_flow_that_is_killed_again_and_again_loses_nothing(server: Server) -> None:
    count, kills = 20_000, 3
    with server.client() as client:
        fill(client, 0, count)
        for kill in range(1, kills + 1):
            with process(server, "orders") as one:
                wait(lambda: client.tlen("out") >= count * kill // (kills + 2))  # noqa: B023
                one.kill()
        with process(server, "orders") as one:
            wait(lambda: finished(client, count))
            one.terminate()
            assert one.wait(15) == 0
        check(client, count, kills)


@in_loop
async def test_a_server_that_is_killed_under_a_flow_loses_nothing(server: Server) -> None:
    count, kills = 12_000, 2
    with server.client() as client:
        fill(client, 0, count)
    made = flow(server.url, UNSETTLED)
    async with running(made) as one:
        for kill in range(1, kills + 1):
            with server.client() as client:
                await until(lambda: client.tlen("out") >= count * kill // (kills + 2))  # noqa: B023
            await asyncio.to_thread(server.kill)
            await until(lambda: not one.graph.connections["in"].connected or not one.graph.connections["out"].connected)
            await asyncio.to_thread(server.start)
        with server.client() as client:
            for _ in range(4):  # each waits for 20 s
                try:
                    await until(lambda: finished(client, count))
                    break
                except AssertionError:
                    continue
            check(client, count, kills)


def test_three_instances_share_a_group_while_one_is_killed(server: Server) -> None:
    count = 15_000
    with server.client() as client:
        fill(client, 0, count // 2)
        with process(server, "orders"), process(server, "orders.2"), process(server, "orders.3") as victim:
            wait(lambda: client.tlen("out") >= count // 4)
            victim.kill()
            fill(client, count // 2, count)
            wait(lambda: finished(client, count))
        check(client, count, 1)


@in_loop
async def test_a_wal_survives_its_server_and_its_process(server: Server) -> None:
    def wal(source: Any, sink: Any) -> Flow:
        made = Flow("orders", server=server.url)
        made.connector("in", source)
        made.connector("log", "wal", reconnect={"retry": {"first": "50ms", "most": "500ms"}})
        made.connector("out", sink)
        made.connect("in -> log -> out")
        return made

    async def source() -> Any:
        for number in range(3000):
            yield number

    async def nothing() -> Any:
        await asyncio.Event().wait()
        yield

    gate = asyncio.Event()

    async def stuck(_: Any) -> None:
        await gate.wait()

    async with running(wal(source, stuck)) as one:
        await until(lambda: one.graph.sources["in"].counts.get("ok", 0) >= 500)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        await until(lambda: one.graph.sources["in"].counts.get("ok", 0) == 3000)
        await until(lambda: not one.graph.sources["in"].unsettled)
        await asyncio.to_thread(server.kill)
    server.start()
    seen: Counter[int] = Counter()

    async def sink(value: int) -> None:
        seen[value] += 1

    async with running(wal(nothing, sink)):
        with server.client() as client:
            await until(lambda: len(seen) == 3000 and client.tlen("flow:orders:wal:log") == 0)
    assert set(seen) == set(range(3000))
    assert seen.total() - 3000 <= 512  # the append whose reply was lost


def test_letters_are_written_once_although_the_reply_is_lost(server: Server) -> None:
    """The transaction that writes a letter acknowledges its entry, so who asks again finds nothing pending."""

    async def main() -> None:
        async def sink(_: Any) -> None:
            raise ValueError("never")

        with server.client() as client:
            for number in range(50):
                client.tappend("orders", {"n": number})
        made = Flow("orders", server=server.url)
        reconnect = {"retry": {"first": "20ms", "most": "100ms"}}
        made.connector(
            "in", "stream", key="orders", group="shop", on_error="dead_letter", retry="1s", reconnect=reconnect
        )
        made.connector("out", sink)
        made.connect("in -> out")
        async with running(made):
            with server.client() as client:
                for _ in range(3):
                    client.redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                    await asyncio.sleep(0.02)

                def written() -> bool:
                    try:
                        return client.tpending("orders", "shop").count == 0 and client.tlen("flow.orders.dead:0") >= 50
                    except redis.ResponseError:  # there is no group yet
                        return False

                await until(written)
                assert client.tlen("flow.orders.dead:0") == 50

    asyncio.run(main())
