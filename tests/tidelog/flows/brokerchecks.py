"""The conformance of connectors to other servers: tidelog, Redis, Kafka, MQTT, NATS."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import msgspec
import pytest
import redis

from tests.tidelog.flows.conformancekit import UNWRITABLE, VALUES, Peers, checks, made
from tidelog.flows import Event
from tidelog.flows.api.connector import Sink, Source
from tidelog.flows.api.connectorcontext import ConnectorContext
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.api.tokens import OK
from tidelog.flows.testing import check_sink, check_source


# -- a tidelog server ----------------------------------------------------------------------------------------
@checks("stream")
def stream(peers: Peers) -> None:
    client = peers.client

    async def produce(_: Source, count: int) -> None:
        for number in range(count):
            client.tappend("in", {"n": number})

    async def written(_: Sink) -> list[Any]:
        return [json.loads(entry["data"]) for entry in client.trange("out")]

    make = made("stream", key="in", group="g", retry="200ms")
    check_source(make, produce=produce, redelivers=True, server=peers.tidelog)
    client.redis.delete("in")
    check_source(made("stream", key="in"), produce=produce, server=peers.tidelog)
    make = made("stream", key="out", codec="json")
    check_sink(make, VALUES, invalid=UNWRITABLE, written=written, server=peers.tidelog)


@checks("wal")
def wal(peers: Peers) -> None:
    client = peers.client

    async def produce(_: Source, count: int) -> None:
        for number in range(count):
            client.tappend("log", {"event": msgspec.msgpack.encode(({"n": number}, {}, 0))})

    check_source(made("wal", key="log"), produce=produce, redelivers=True, server=peers.tidelog)
    check_sink(made("wal", key="log"), VALUES, invalid=UNWRITABLE, server=peers.tidelog)


@checks("dead_letters")
def dead_letters(peers: Peers) -> None:
    check_sink(made("dead_letters", topic="dead"), VALUES, server=peers.tidelog)


# -- Redis and Kafka -----------------------------------------------------------------------------------------
@contextlib.contextmanager
def redis_client(peers: Peers) -> Iterator[Any]:
    with redis.Redis.from_url(peers.redis) as client:
        yield client


@checks("redis_pubsub")
def redis_pubsub(peers: Peers) -> None:
    with redis_client(peers) as client:

        async def produce(_source: Source, count: int) -> None:
            for _ in range(count):
                client.publish("news", b'{"n": 1}')

        make = made("redis_pubsub", url=peers.redis, channel="news")
        check_source(make, produce=produce, redelivers=False)
        check_sink(make, VALUES, invalid=UNWRITABLE)


@checks("redis_list")
def redis_list(peers: Peers) -> None:
    with redis_client(peers) as client:

        async def produce(_: Source, count: int) -> None:
            client.rpush("in", *(json.dumps({"n": number}) for number in range(count)))

        async def written(_: Sink) -> list[Any]:
            return [json.loads(each) for each in client.lrange("out", 0, -1)]

        check_source(made("redis_list", url=peers.redis, key="in"), produce=produce, redelivers=True)
        check_sink(made("redis_list", url=peers.redis, key="out"), VALUES, invalid=UNWRITABLE, written=written)


@checks("redis_stream")
def redis_stream(peers: Peers) -> None:
    with redis_client(peers) as client:

        async def produce(_: Source, count: int) -> None:
            for number in range(count):
                client.xadd("in", {"n": number})

        async def written(_: Sink) -> list[Any]:
            return [json.loads(entry[b"data"]) for _, entry in client.xrange("out")]

        check_source(made("redis_stream", url=peers.redis, key="in", group="g"), produce=produce, redelivers=True)
        make = made("redis_stream", url=peers.redis, key="out", codec="json")
        check_sink(make, VALUES, invalid=UNWRITABLE, written=written)


@checks("kafka")
def kafka(_: Peers) -> None:
    pytest.importorskip("aiokafka", reason="kafka: the package aiokafka is not installed")
    from tests.tidelog.flows.test_kafka import Cluster

    cluster = Cluster()
    topic, out = uuid4().hex, uuid4().hex

    async def produce(_: Source, count: int) -> None:
        await asyncio.to_thread(cluster.fill, topic, [{"n": number} for number in range(count)])

    async def written(_: Sink) -> list[Any]:
        return await asyncio.to_thread(cluster.read, out, 2 * len(VALUES) + 2)

    cluster.fill(topic, [])
    check_source(
        made("kafka", servers=cluster.servers, topic=topic, group="g"), produce=produce, redelivers=True, patience=40
    )
    make = made("kafka", servers=cluster.servers, topic=out)
    check_sink(make, VALUES, invalid=UNWRITABLE, written=written, patience=40)


@checks("mqtt")
def mqtt(_: Peers) -> None:
    from tests.tidelog.flows.mqttkit import broker

    with broker() as peer:
        topic = uuid4().hex

        async def produce(_: Source, count: int) -> None:
            await published(made("mqtt", url=peer.url, topic=topic), [{"n": number} for number in range(count)])

        check_source(made("mqtt", url=peer.url, topic=topic), produce=produce, redelivers=True)
        check_sink(made("mqtt", url=peer.url, topic=topic), VALUES, invalid=UNWRITABLE)


@checks("nats")
def nats(_: Peers) -> None:
    from tests.tidelog.flows.natskit import nats_peer

    with nats_peer() as peer:
        peer.stream("S", "stored")

        def produce(**options: Any) -> Callable[[Source, int], Awaitable[None]]:
            make = made("nats", url=peer.url, **options)
            return lambda _, count: published(make, [{"n": number} for number in range(count)])

        stored = made("nats", url=peer.url, subject="stored", jetstream=True, durable="d", ack_wait="1s")
        check_source(stored, produce=produce(subject="stored", jetstream=True), redelivers=True)
        check_source(made("nats", url=peer.url, subject="core"), produce=produce(subject="core"), redelivers=False)
        for jetstream in (False, True):
            make = made("nats", url=peer.url, subject="stored", jetstream=jetstream)
            check_sink(make, VALUES, invalid=UNWRITABLE)


async def published(make: Callable[[], Any], values: Sequence[Any]) -> None:
    """Write events with a sink of its own."""
    one = make()
    one.context = ConnectorContext("producer", FlowContext("producer"))
    one.context.sink = cast("Any", SimpleNamespace(connected_ports=(), count=lambda *_: None))
    await one.connect()
    assert all(each == OK for each in await one.write([Event(each) for each in values]) or [])
    await one.close()
