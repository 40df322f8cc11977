"""Bytes that are meant to cost more than they should: archives, documents, bodies of a million messages."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import time
import zlib
from typing import Any

import aiohttp
import pytest

from tests.tidelog.flows.netkit import Seen, feed, given, port_of, running, seen, url_of
from tests.waiting import until
from tidelog.flows import Event, Flow
from tidelog.flows.api.connectorcontext import ConnectorContext
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.codecs.base import codec
from tidelog.flows.connectors.http import server
from tidelog.flows.connectors.sockets.tcp import FOUND, TcpServer
from tidelog.flows.connectors.sockets.udp import UdpServer, UdpServerOptions
from tidelog.flows.interceptors import compression
from tidelog.flows.interceptors.base import preprocessor


class _Counting:
    """zlib's object; counts the bytes that all of them were given."""

    given = 0

    def __init__(self, bits: int) -> None:
        self._object = zlib.decompressobj(bits)

    def decompress(self, data: bytes, most: int = 0) -> bytes:
        type(self).given += len(data)
        return self._object.decompress(data, most)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._object, name)


@pytest.mark.parametrize("way", ["body", "message"])
def test_thousands_of_empty_members_are_not_copied_over_and_over(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = gzip.compress(b"") * 20_000 + gzip.compress(b"end")

    class Zlib:
        MAX_WBITS = zlib.MAX_WBITS
        error = zlib.error
        decompressobj = _Counting

    monkeypatch.setattr(compression, "zlib", Zlib)
    _Counting.given = 0
    if way == "body":
        assert server.decompressed(packed, "gzip", 1 << 20) == b"end"
    else:
        assert preprocessor("gzip", 1 << 20).feed(packed) == [b"end"]
    assert _Counting.given < len(packed) * 1000


def test_what_was_packed_in_one_member_is_unpacked_in_any_portions() -> None:
    data = bytes(range(256)) * 4000
    for packed, encoding in (
        (gzip.compress(data), "gzip"), (zlib.compress(data), "deflate"), (gzip.compress(data, 0), "gzip"),
        (gzip.compress(data[:70_000]) + gzip.compress(data[70_000:]), "gzip"),
    ):  # fmt: skip
        assert server.decompressed(packed, encoding, len(data)) == data
        with pytest.raises(compression.DecompressedTooLongError):
            server.decompressed(packed, encoding, len(data) - 1)
        with pytest.raises(ValueError, match="ends too early"):
            server.decompressed(packed[:-1], encoding, len(data))


@pytest.mark.parametrize("text", ["1" * 400_000, "1" * 400_000 + ".5", "0x" + "1" * 400_000])
def test_a_number_in_yaml_is_no_longer_than_numbers_are(text: str) -> None:
    with pytest.raises(ValueError, match=r"a number of .* characters"):
        codec("yaml").decode(text.encode(), {})


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("influx", b"a f=" + b"1" * 500_000 + b"i"),
        ("influx", b"a f=1." + b"1" * 500_000 + b"x"),
        ("influx", b'a f="' + b"\\x" * 250_000),
        ("influx", b"a" + b"\\," * 250_000),
        ("syslog", b'<13>1 - - - - - [a b="' + b"x\\" * 250_000),
        ("syslog", b"<13>1 " + b"a" * 500_000),
        ("syslog", b"<13>Jan  1 00:00:00 h " + b"a" * 500_000 + b"["),
        ("csv", b'"' + b'""' * 250_000),
    ],
)
def test_a_message_takes_time_in_proportion_to_its_length(name: str, data: bytes) -> None:
    began = time.process_time()
    with contextlib.suppress(ValueError):
        codec(name).decode(data, {})
    assert time.process_time() - began < 3  # a quadratic one takes minutes


def test_a_body_may_have_so_many_messages() -> None:
    async def scenario() -> None:
        flow = Flow("web")
        flow.connector("in", "http_server", port=0, preprocessors=["separate"], codec="string", max_messages=1000)
        sink = seen(flow)
        flow.connect("in -> seen")
        async with running(flow) as one, aiohttp.ClientSession() as session:
            url = await url_of(one)
            for count, status in ((1001, 413), (900_000, 413), (1000, 200)):
                async with session.post(url, data=b"\n" * count) as response:
                    assert response.status == status
            assert len(sink.events) == 1000
            long = [b"x" * 70_000, b"y" * 130_000]  # messages that are longer than what is read at a time
            async with session.post(url, data=b"\n".join(long)) as response:
                assert response.status == 200
            assert sink.values[1000:] == [each.decode() for each in long]

    asyncio.run(scenario())


def test_many_connections_bring_no_more_events_than_there_is_room_for() -> None:
    async def scenario() -> None:
        class Stuck(Seen):
            async def write(self, events: list[Event]) -> None:
                await go.wait()
                await super().write(events)

        go = asyncio.Event()
        flow = Flow("lines", queue=1)
        flow.connector("in", "tcp_server", port=0, codec="string", max_unsettled=2000)
        sink = Stuck()
        flow.connector("out", given(sink))
        flow.connect("in -> out")
        async with running(flow) as one:
            server = one.graph.connectors["in"]
            assert isinstance(server, TcpServer)
            port = await port_of(one)
            await until(lambda: one.status == "running")
            made = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
            await until(lambda: len(server.peers) == 20)
            for _, writer in made:
                writer.write(b"\n" * 4_000)
            await until(lambda: server.backlog >= FOUND)
            for _, writer in made:
                await writer.drain()
            for _ in range(200):
                await asyncio.sleep(0.001)
                assert server.backlog < 2 * FOUND
            go.set()
            await until(lambda: len(sink.events) == 80_000)
            for _, writer in made:
                writer.close()

    asyncio.run(scenario())


def test_datagrams_without_an_event_do_not_hold_up_the_process() -> None:
    class Endless:
        """A socket on which there is always one more."""

        received = 0

        def recvfrom(self, _: int) -> tuple[bytes, tuple[str, int]]:
            self.received += 1
            assert self.received < 10_000
            return b"", ("127.0.0.1", 1)

    server = UdpServer(UdpServerOptions(port=0, preprocessors=["remove_empty"]))
    server.context = ConnectorContext("in", FlowContext("orders"))
    endless: Any = Endless()
    server.receive(endless, 100)
    assert endless.received == 100


def test_an_event_that_makes_no_sense_costs_no_other_its_answer() -> None:
    async def scenario() -> None:
        flow = Flow("web")
        flow.connector("answers", "http_server", port=0)
        flow.connector("lines", "tcp_server", port=0)
        source = feed(flow)
        flow.connect("in -> answers", "in -> lines", "answers -> lines")
        async with running(flow) as one:
            await until(lambda: one.status == "running")
            waiting: Any = type("W", (), {"answered": asyncio.Future(), "response": None, "at_once": False})()
            one.context.shared["http_requests"] = {"r": waiting}
            source.give(
                Event("x", {"request": "r", "response_headers": ["a"]}, "a"),
                Event("x", {"request": "r", "connection": []}, "b"),
            )
            await until(lambda: len(source.outcomes) == 2)
            assert source.outcomes["a"][0] == "reject"
            assert source.outcomes["b"][0] == "reject"
            assert waiting.response is not None

    asyncio.run(scenario())


def test_what_had_come_when_a_drain_began_is_taken() -> None:
    async def scenario() -> None:
        class Slow(Seen):
            async def write(self, events: list[Event]) -> None:
                await go.wait()
                await super().write(events)

        go = asyncio.Event()
        flow = Flow("lines", queue=1)
        flow.connector("in", "tcp_server", port=0, codec="string", max_unsettled=1)
        sink = Slow()
        flow.connector("out", given(sink))
        flow.connect("in -> out")
        async with running(flow) as one:
            server = one.graph.connectors["in"]
            assert isinstance(server, TcpServer)
            port = await port_of(one)
            await until(lambda: one.status == "running")
            made = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
            await until(lambda: len(server.peers) == 3)
            for _, writer in made:
                writer.write(b"first\n")
            await until(lambda: one.unsettled().count and server.backlog == 2)
            for _, writer in made:
                writer.write(b"more\n" * 100 + b"part of a line")
            await until(lambda: sum(each.buffered for each in server.peers.values()) == 3 * 514)
            draining = asyncio.create_task(one.drain())
            await until(lambda: one.status == "draining")
            go.set()
            report = await draining
            assert report.complete
            assert (sink.values.count("first"), sink.values.count("more")) == (3, 300)
            assert report.seconds < one.spec.drain_timeout
            for _, writer in made:
                writer.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("text", ['"\\uD800"', '{a: [1, {"\\uDFFF": 2}]}', '["\\U0000D801"]'])
def test_text_that_is_no_unicode_comes_from_no_codec(text: str) -> None:
    with pytest.raises(ValueError, match="surrogates not allowed"):
        codec("yaml").decode(text.encode(), {})
    assert codec("yaml").decode(b'{a: ["\\u00e4", {b: "\\U0001F600"}]}', {}) == {"a": ["\u00e4", {"b": "\U0001f600"}]}


def test_meta_that_makes_no_sense_is_a_reason_to_reject() -> None:
    from tidelog.flows.api.errors import RejectError
    from tidelog.flows.api.tokens import REJECT
    from tidelog.flows.connectors.destinations import in_url
    from tidelog.flows.connectors.elastic.elastic import ElasticOptions, ElasticSink

    elastic = ElasticSink(ElasticOptions(url="http://127.0.0.1:1", index="i"))
    elastic.context = ConnectorContext("out", FlowContext("orders"))
    ((status, _),) = asyncio.run(elastic.write([Event({"a": 1}, {"elastic": {"action": ["index"]}})]))  # type: ignore[misc]
    assert status == REJECT
    with pytest.raises(RejectError, match="can't be used in a URL"):
        in_url("\ud800")
