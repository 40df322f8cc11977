"""``redis_stream`` and ``redis_pubsub`` over two server groups: moves of slots, a leader that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.replication.cluster import cluster
from tests.replication.clusters import Groups
from tests.tidelog.client.rediscluster import keys_of_both
from tests.tidelog.flows.serverkit import in_loop, running
from tests.waiting import until
from tidelog import Client
from tidelog.flows import Flow
from tidelog.transport.slots import slot_of

RECONNECT = {"retry": {"first": "50ms", "most": "200ms"}}
A, B = keys_of_both(4)  # of the lower and the upper half of the slots
IN, OUT = [A[0], B[0]], [B[1], A[1]]  # each output is in the other half


@pytest.fixture(scope="module")
def groups() -> Iterator[Groups]:
    with cluster() as servers:
        yield Groups(servers)


@pytest.fixture
def client(groups: Groups) -> Iterator[Client]:
    for group in ("1", "2"):
        groups.leader(group).say("FLUSHALL")
    with Client(url_of(groups)) as made:
        yield made


def url_of(groups: Groups) -> str:
    return "redis://" + ",".join(f"127.0.0.1:{node.port}" for node in groups.nodes) + "?socket_timeout=5"


def copying(url: str) -> Flow:
    """Copies each stream of IN to that of OUT. Both sources use one URL, and so does the sink."""
    made = Flow("copy", drain_timeout="10s")
    for at, key in enumerate(IN):
        made.connector(f"in{at}", "redis_stream", url=url, key=key, group="copy", claim="1s", reconnect=RECONNECT)
        made.connector(f"out{at}", "redis_stream", url=url, key="{to}", reconnect=RECONNECT)
        made.connect(f"in{at} -> out{at}")
    return made


def fill(client: Client, start: int, count: int) -> None:
    for key, to in zip(IN, OUT, strict=True):
        for number in range(start, start + count):
            client.redis.xadd(key, {"n": number, "to": to})


def numbers(client: Client) -> list[list[int]]:
    read: Any = client.redis.xrange
    return [[int(fields[b"n"]) for _, fields in read(key)] for key in OUT]


async def copied(client: Client, count: int) -> None:
    """Wait for all numbers. The first occurrences are in order; an entry can be there twice, if it was redelivered."""

    def complete() -> bool:
        return all(set(found) == {*range(count)} for found in numbers(client))

    await until(lambda: asyncio.to_thread(complete), "all numbers are copied")


def pending(client: Client) -> bool:
    return any(client.redis.xpending(key, "copy")["pending"] for key in IN)


@in_loop
async def test_streams_while_slots_move(groups: Groups, client: Client) -> None:
    async with running(copying(url_of(groups))):
        for round_ in range(2):
            fill(client, round_ * 40, 20)
            for key in (*IN, *OUT):
                owner = groups.owner(key)
                await asyncio.to_thread(groups.move, str(slot_of(key)), to="2" if owner == "1" else "1", at=owner)
            fill(client, round_ * 40 + 20, 20)
            await copied(client, 40 * (round_ + 1))
        await until(lambda: asyncio.to_thread(lambda: not pending(client)), "no entry is pending")
    for found in numbers(client):
        assert list(dict.fromkeys(found)) == [*range(80)]


@in_loop
async def test_a_leader_that_fails(groups: Groups, client: Client) -> None:
    async with running(copying(url_of(groups))):
        fill(client, 0, 20)
        await copied(client, 20)
        node = groups.leader("2")
        await asyncio.to_thread(node.kill)
        await asyncio.to_thread(node.start)
        await asyncio.to_thread(groups.agree)
        with Client(url_of(groups)) as other:
            fill(other, 20, 20)
            await copied(other, 40)
            await until(lambda: asyncio.to_thread(lambda: not pending(other)), "no entry is pending")


@in_loop
async def test_channels_of_both_groups(groups: Groups, client: Client) -> None:
    """A source has the channels of one group, and a sink those of all."""
    seen: list[Any] = []
    channels = (A[2], B[2])

    async def sink(event: Any) -> None:
        seen.append(event)

    async def source() -> Any:
        for number in range(20):
            yield {"n": number, "to": channels[number % 2]}

    url = url_of(groups)
    listening = Flow("listen")
    listening.connector("out", sink)
    for at, channel in enumerate(channels):
        listening.connector(f"in{at}", "redis_pubsub", url=url, channel=channel)
        listening.connect(f"in{at} -> out")
    sending = Flow("send")
    sending.connector("in", source)
    sending.connector("out", "redis_pubsub", url=url, channel="{to}")
    sending.connect("in -> out")
    async with running(listening):
        for channel in channels:
            await until(lambda: client.redis.publish(channel, b'{"n": -1}'), "the source has subscribed")  # noqa: B023
        async with running(sending) as made, asyncio.timeout(20):
            await made.finished()
        await until(lambda: len(seen) >= 22, "all messages have arrived")
