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
from tidelog.flows.connectors.redis import subscriptions
from tidelog.transport.slots import slot_of

RECONNECT = {"retry": {"first": "50ms", "most": "200ms"}}
A, B = keys_of_both(4)  # of the lower and the upper half of the slots
IN, OUT = [A[0], B[0]], [B[1], A[1]]  # each output is in the other half


@pytest.fixture
def client(groups: Groups) -> Iterator[Client]:
    for group in ("1", "2"):
        groups.leader(group).say("FLUSHALL")
    with Client(groups.url(5)) as made:
        yield made


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
    async with running(copying(groups.url(5))):
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
    async with running(copying(groups.url(5))):
        fill(client, 0, 20)
        await copied(client, 20)
        node = groups.leader("2")
        await asyncio.to_thread(node.kill)
        await asyncio.to_thread(node.start)
        await asyncio.to_thread(groups.agree)
        with Client(groups.url(5)) as other:
            fill(other, 20, 20)
            await copied(other, 40)
            await until(lambda: asyncio.to_thread(lambda: not pending(other)), "no entry is pending")


def listening(url: str, seen: list[Any], **options: Any) -> Flow:
    async def sink(value: Any) -> None:
        seen.append(value)

    made = Flow("listen")
    made.connector("out", sink)
    made.connector("in", "redis_pubsub", url=url, reconnect=RECONNECT, **options)
    made.connect("in -> out")
    return made


async def subscribed(groups: Groups, *channels: str) -> None:
    """Wait until each group with slots has a subscriber of each channel."""

    def met() -> bool:
        leaders = [groups.leader(name) for name in {owner for _, _, owner in groups.agree()["slots"]}]
        return all(node.say("PUBSUB", "NUMSUB", each)[1] == 1 for node in leaders for each in channels)

    await until(lambda: asyncio.to_thread(met), "the source has subscribed")


@in_loop
async def test_channels_of_both_groups(groups: Groups, client: Client) -> None:
    """Each message arrives once, also at a source with a pattern, wherever it is published."""
    seen: list[Any] = []
    matching: list[Any] = []
    channels = [A[2], B[2]]

    async def source() -> Any:
        for number in range(20):
            yield {"n": number, "to": channels[number % 2]}

    sending = Flow("send")
    sending.connector("in", source)
    sending.connector("out", "redis_pubsub", url=groups.url(5), channel="{to}")
    sending.connect("in -> out")
    patterns = {"pattern": "*"}
    async with (
        running(listening(groups.url(5), seen, channel=channels)),
        running(listening(groups.url(5), matching, **patterns)),
    ):
        await subscribed(groups, *channels)
        await until(lambda: all(node.say("PUBSUB", "NUMPAT") == 1 for node in groups.nodes), "the pattern")
        async with running(sending) as made, asyncio.timeout(20):
            await made.finished()
        for node in groups.nodes:  # a client of another kind sends them to any member
            node.say("PUBLISH", channels[0], b'{"n": 20}')
        await until(lambda: len(seen) >= 22 and len(matching) >= 22, "all messages have arrived")
    for found in (seen, matching):
        assert sorted(event["n"] for event in found) == [*range(20), 20, 20]


@in_loop
async def test_a_channel_whose_slot_moves(groups: Groups, client: Client) -> None:
    """Messages of a publisher that has not seen the move arrive, too."""
    seen: list[Any] = []
    channel, slot = A[3], str(slot_of(A[3]))
    async with running(listening(groups.url(5), seen, channel=channel)):
        await subscribed(groups, channel)
        assert client.redis.publish(channel, b"0")
        for number, (at, to) in enumerate((("1", "2"), ("2", "1"))):
            await asyncio.to_thread(groups.move, slot, to=to, at=at)
            assert client.redis.publish(channel, b"1")
            with Client(groups.url(5)) as other:
                assert other.redis.publish(channel, b"2")
            await until(lambda: len(seen) == 3 + 2 * number)  # noqa: B023
    assert sorted(seen) == [0, 1, 1, 2, 2]


@in_loop
async def test_a_channel_that_moves_to_a_new_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source began with one group. It continues when another one has all slots, and after a restart."""
    monkeypatch.setattr(subscriptions, "CHECK", 0.05)
    seen: list[Any] = []
    with cluster() as servers:
        groups = Groups(servers, groups=1)
        async with running(listening(groups.url(5), seen, channel="news")):
            await subscribed(groups, "news")
            await asyncio.to_thread(groups.add)
            for slots in ("8192-16383", "0-8191"):
                await asyncio.to_thread(groups.move, slots, to="2")
                await subscribed(groups, "news")
                assert groups.leader(2).say("PUBLISH", "news", b"1") == 1
            await until(lambda: len(seen) == 2)
            leader = groups.leader(2)
            await asyncio.to_thread(leader.kill)
            await asyncio.to_thread(leader.start)
            # The source can connect again more than once, and no server stores what is published meanwhile.
            await until(lambda: leader.say("PUBLISH", "news", b"2") and 2 in seen)
    assert [number for number in seen if number == 1] == [1, 1]
