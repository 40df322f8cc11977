"""The group reader on a real server: what is in flight, what is hot, what is due, and how often it was delivered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

from tidelog.client.client import Client
from tidelog.client.entries import StreamId
from tidelog.client.steps import run
from tidelog.topics.groupreader import (
    GroupReader,
    GroupStream,
    ReadableStream,
    ReadCounts,
    S,
    entry_of,
    group_offset,
    id_of,
    raw_id,
    touch,
)
from tidelog.transport.asyncconnection import LostError
from tidelog.transport.call import Call


class Reader(GroupReader[S]):
    """Reads with a blocking client; the test may do something while a round is on its way."""

    def __init__(self, client: Client, *streams: S) -> None:
        super().__init__(ReadCounts())
        self._client = client
        self.streams = {stream.stream: stream for stream in streams}
        self.errors: list[str] = []
        self.meanwhile: Any = lambda: None
        self.heat(self.streams)

    async def send(self, reads: Sequence[Call[Any]]) -> Sequence[Any] | None:
        replies = self._client.together(*reads, raise_on_error=False)
        return None if self.meanwhile() == "nothing" else replies

    def refused(self, stream: S, error: Exception) -> None:
        self.errors.append(stream.stream)

    def round(self, count: int = 10) -> dict[str, list[bytes]]:
        """The n of the entries that one round has brought, by stream."""
        found = asyncio.run(self.read([(stream, count) for stream in self.hot.values()]))
        return {stream.stream: [row[2] for row in rows] for stream, rows in found}


def group(key: str = "s", retry_ms: int = 60_000, **options: Any) -> GroupStream:
    return GroupStream(key, "g", "0", retry_ms, **options)


def fill(client: Client, *numbers: int, key: str = "s") -> None:
    client.tmappend(key, ["n"], [[str(number)] for number in numbers])


def ids(stream: GroupStream) -> list[bytes]:
    return list(stream.in_flight)


def test_hot_streams_are_read_in_turn(client: Client) -> None:
    fill(client, 1, 2, 3, key="a")
    fill(client, 4, key="b")
    reader = Reader(client, group("a"), group("b"))
    assert reader.round(2) == {"a": [b"1", b"2"], "b": [b"4"]}
    assert list(reader.hot) == ["a"]  # it may have more
    assert reader.round(2) == {"a": [b"3"]}
    assert not reader.hot
    assert reader.round() == {}
    reader.heat(["b", "a", "removed"])
    assert list(reader.hot) == ["b", "a"]
    assert (reader.counts.fetched, reader.counts.repeated, reader.counts.missing) == (4, 0, 0)


def test_a_round_that_was_not_executed_leaves_the_streams_hot(client: Client) -> None:
    reader = Reader(client, group())
    reader.meanwhile = lambda: "nothing"
    assert reader.round() == {}
    assert list(reader.hot) == ["s"]
    assert reader.streams["s"].not_reading.is_set()


def test_a_stream_that_is_refused_does_not_hold_up_the_others(client: Client) -> None:
    client.redis.set("a", "text")
    fill(client, 1)
    reader = Reader(client, group("a"), group())
    assert reader.round() == {"s": [b"1"]}
    assert reader.errors == ["a"]
    assert not reader.hot


def test_a_stream_that_is_replaced_meanwhile_stays_hot(client: Client) -> None:
    fill(client, 1)
    reader, other = Reader(client, group()), group()

    def replace() -> None:
        reader.streams["s"] = reader.hot["s"] = other

    reader.meanwhile = replace
    assert reader.round() == {"s": [b"1"]}
    assert reader.hot == {"s": other}
    assert not other.in_flight


def test_what_is_redelivered_in_flight_is_dropped(client: Client) -> None:
    stream = group(retry_ms=1)
    reader = Reader(client, stream)
    fill(client, 1, 2)
    assert reader.round() == {"s": [b"1", b"2"]}
    time.sleep(0.01)
    reader.heat(["s"])
    assert reader.round() == {"s": []}
    assert (reader.counts.repeated, reader.counts.fetched) == (2, 4)
    assert client.run(stream.ack(ids(stream))) == 2
    stream.forget(ids(stream))
    assert stream.in_flight == {}


def test_a_settlement_elsewhere_can_not_be_overtaken(client: Client) -> None:
    """TACK on another connection while a TREAD is on its way: the reply may still have the entry."""
    stream = group(retry_ms=1)
    reader = Reader(client, stream)
    fill(client, 1, 2)
    reader.round()
    first, second = ids(stream)
    time.sleep(0.01)

    def settle() -> None:  # the TREAD was executed before
        client.run(stream.ack([first, second]))
        stream.forget([first])
        stream.drop([second])  # as on the same connection, where the reply came first

    reader.meanwhile = settle
    reader.heat(["s"])
    assert reader.round() == {"s": [b"2"]}
    assert ids(stream) == [second]


def test_redeliveries_are_told_from_new_entries(client: Client) -> None:
    fill(client, 1, 2)
    assert client.tread("s", "0", 10, group="g", retry=1)  # another reader, which dies
    time.sleep(0.01)
    fill(client, 3)
    stream = group(exact=True)
    reader = Reader(client, stream)
    assert reader.round() == {"s": [b"1", b"2", b"3"]}
    again = stream.take_redelivered()
    assert again == ids(stream)[:2]
    assert stream.take_redelivered() == []
    assert run(client, stream.deliveries(ids(stream))) == {again[0]: 2, again[1]: 2, ids(stream)[2]: 1}
    assert stream.offset == id_of(ids(stream)[2])


def test_in_a_new_group_nothing_is_a_redelivery(client: Client) -> None:
    fill(client, 1)
    stream = group(exact=True)
    assert client.run(group_offset("s", "g")) is None
    assert Reader(client, stream).round() == {"s": [b"1"]}
    assert stream.redelivered == []
    assert client.run(group_offset("s", "g")) == stream.offset


def test_deliveries_of_entries_that_are_far_apart(client: Client) -> None:
    fill(client, *range(200))
    stream = group()
    Reader(client, stream).round(200)
    every = ids(stream)
    client.run(stream.ack([every[50]]))
    assert run(client, stream.deliveries([every[199], every[50], every[0]])) == {every[199]: 1, every[0]: 1}


def test_what_is_not_in_flight_becomes_due_in_order(client: Client) -> None:
    fill(client, *range(2500))
    client.tread("s", "0", 2500, group="g", retry=3_600_000)
    stream = group()
    pending = [raw_id(each.id) for each in client.tpending_range("s", "g", count=2500)]
    stream.in_flight = {pending[0]: [], pending[2000]: []}
    assert run(client, stream.make_due()) == pending[1:2000] + pending[2001:]
    due = [each.due <= time.time() * 1000 for each in client.tpending_range("s", "g", count=2500)]
    assert (due.count(False), due[0], due[2000]) == (2, False, False)
    assert Reader(client, group()).round(3) == {"s": [b"1", b"2", b"3"]}


def test_make_due_ends_with_the_ownership(client: Client) -> None:
    class Lost(GroupStream):
        active = False

    fill(client, 1)
    client.tread("s", "0", 10, group="g", retry=3_600_000)
    assert run(client, Lost("s", "g", "0", 1000).make_due()) == []
    assert client.tpending("s", "g").next_due > time.time() * 1000 + 3_000_000  # type: ignore[operator] # not None


def test_entries_are_touched_when_they_are_old(client: Client) -> None:
    fill(client, 1, 2)
    stream = group(retry_ms=1000)
    reader = Reader(client, stream)
    reader.round(1)
    assert stream.aging() == []
    reader.heat(["s"])
    reader.round(1)
    old, young = ids(stream)
    assert stream.aging() == [old]
    stream.drop([old])
    assert stream.aging() == [young]
    assert stream.aging() == []  # it was touched
    assert stream.aging() == [young]
    before = client.tpending_range("s", "g")[1].due
    time.sleep(0.01)
    assert client.run(stream.touch([young])) == 1
    assert before < client.tpending_range("s", "g")[1].due <= time.time() * 1000 + 1000
    client.run(stream.nack([young], 60_000))
    assert client.tpending_range("s", "g")[1].due > time.time() * 1000 + 50_000


def test_touching_goes_on_after_a_lost_connection() -> None:
    streams = [group("a"), group("b")]
    for stream in streams:
        stream.in_flight[b"1.0"] = []
    sent: list[str] = []

    async def send(stream: GroupStream, call: Call[int]) -> None:
        sent.append(stream.stream)
        if len(sent) == 1:
            raise LostError("cut off")

    async def main() -> None:
        task = asyncio.create_task(touch(lambda: streams, 0.05, send))
        while len(sent) < 4:
            await asyncio.sleep(0.005)
            assert not task.done()
        task.cancel()

    asyncio.run(main())
    assert sent[:4] == ["a", "b", "a", "b"]


def test_a_stream_without_a_group_is_read_from_its_offset(client: Client) -> None:
    fill(client, 1, 2, 3)
    stream = ReadableStream("s")
    reader = Reader(client, stream)
    assert reader.round(2) == {"s": [b"1", b"2"]}
    assert reader.round(2) == {"s": [b"3"]}
    assert not reader.hot
    stream.offset = StreamId(0)
    reader.heat(["s"])
    assert reader.round() == {"s": [b"1", b"2", b"3"]}
    assert client.tgroup_list("s") == []


@pytest.mark.parametrize("text", [b"17.0", b"1700000000000.18446744073709551615"])
def test_ids(text: bytes) -> None:
    assert raw_id(id_of(text)) == text
    assert entry_of([text, b"n", b"1"]).text() == {"n": "1"}
