"""tcp and udp with real sockets: both ways, limits, pauses, broken streams."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from tests.tidelog.flows.byteskit import Reader, running, write
from tests.tidelog.flows.netkit import port_of
from tests.waiting import until
from tidelog.flows import Event, Flow, FlowFileError
from tidelog.flows.runtime.runningflow import RunningFlow


def _count(one: RunningFlow, name: str) -> int:
    return one.graph.sources["in"].counts.get(name, 0)


async def _connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port)


async def _closed(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(20):
        try:
            while await reader.read(1000):
                pass
        except ConnectionError:
            pass


def test_lines_come_in_whatever_the_packets_are() -> None:
    async def main() -> None:
        reader = Reader("tcp_server", port=0)
        async with running(reader.flow) as one:
            _, writer = await _connect(await port_of(one))
            for byte in b'{"a":1}\nx\n[2]\n':
                writer.write(bytes((byte,)))
                await writer.drain()
            await until(lambda: len(reader.values) == 2)
            writer.write(b"3")  # without an end
            writer.close()
            await until(lambda: len(reader.values) == 3)
            assert reader.values == [{"a": 1}, [2], 3]
            assert [each.value for each in reader.bad] == [b"x"]
            assert reader.events[0].meta["connection"] == 1
            assert reader.events[0].meta["peer"].startswith("127.0.0.1:")

    asyncio.run(main())


def test_an_answer_goes_to_the_connection_that_asked() -> None:
    async def main() -> None:
        flow = Flow("echo")
        flow.connector("in", "tcp_server", port=0, codec="string")
        flow.pipeline("same")
        flow.connect("in -> same -> in")
        async with running(flow) as one:
            peers = [await _connect(await port_of(one)) for _ in range(3)]
            for number, (_, writer) in enumerate(peers):
                writer.write(f"a{number}\nb{number}\n".encode())
            for number, (reader, writer) in enumerate(peers):
                async with asyncio.timeout(20):
                    assert await reader.readexactly(6) == f"a{number}\nb{number}\n".encode()
                writer.close()

    asyncio.run(main())


def test_a_server_writes_to_all_and_to_one() -> None:
    async def main() -> None:
        go: asyncio.Queue[Event] = asyncio.Queue()

        async def source() -> Any:
            while True:
                yield await go.get()

        flow = Flow("news")
        flow.connector("in", source, on_error="dead_letter")
        flow.connector("out", "tcp_server", port=0, codec="string")
        flow.connect("in -> out")
        async with running(flow) as one:
            sink = one.graph.sinks["out"]
            go.put_nowait(Event("nobody"))
            await until(lambda: sink.counts.get("discarded") == 1)
            peers = [await _connect(await port_of(one, "out")) for _ in range(2)]
            await until(lambda: sink.counts.get("connections") == 2)
            for event in (Event("all"), Event("second", {"connection": 2}), Event("gone", {"connection": 99})):
                go.put_nowait(event)
            async with asyncio.timeout(20):
                assert await peers[0][0].readexactly(4) == b"all\n"
                assert await peers[1][0].readexactly(11) == b"all\nsecond\n"
            await until(lambda: sink.counts.get("rejected") == 1)
            for _, writer in peers:
                writer.close()

    asyncio.run(main())


def test_too_many_connections_and_idle_ones_are_closed() -> None:
    async def main() -> None:
        reader = Reader("tcp_server", port=0, max_connections=2, idle_timeout="300ms", codec="string")
        async with running(reader.flow) as one:
            first, second, third = [await _connect(await port_of(one)) for _ in range(3)]
            await _closed(third[0])
            assert _count(one, "refused_connections") == 1
            first[1].write(b"here\n")
            await until(lambda: reader.values == ["here"])
            await _closed(first[0])
            await _closed(second[0])
            await until(lambda: _count(one, "broken_connections") == 2)
            again = await _connect(await port_of(one))
            again[1].write(b"again\n")
            await until(lambda: reader.values == ["here", "again"])
            for _, writer in (first, second, third, again):
                writer.close()

    asyncio.run(main())


def test_a_stream_that_is_broken_is_closed_after_what_came_before() -> None:
    async def main() -> None:
        reader = Reader("tcp_server", port=0, codec="string", preprocessors=["textual_length_prefixed"])
        async with running(reader.flow) as one:
            peer, writer = await _connect(await port_of(one))
            writer.write(b"2 ab3 abcGET / HTTP/1.1\r\n\r\n")
            await _closed(peer)
            await until(lambda: reader.values == ["ab", "abc"])
            assert _count(one, "broken_connections") == 1
            writer.close()

    asyncio.run(main())


def test_an_endless_line_takes_no_memory_and_harms_nobody() -> None:
    async def main() -> None:
        reader = Reader("tcp_server", port=0, codec="string", max_bytes=1000)
        async with running(reader.flow) as one:
            _, bad = await _connect(await port_of(one))
            _, good = await _connect(await port_of(one))
            for _ in range(100):
                bad.write(b"x" * 100_000)
                await bad.drain()
            good.write(b"good\n")
            await until(lambda: reader.values == ["good"] and len(reader.bad) == 1)
            bad.write(b"\nafter\n")
            await until(lambda: reader.values == ["good", "after"])
            assert len(reader.bad[0].value) == 1000
            bad.close()
            good.close()

    asyncio.run(main())


def test_while_paused_a_peer_is_held_up_and_nothing_is_lost() -> None:
    async def main() -> None:
        reader = Reader("tcp_server", port=0, codec="string")
        async with running(reader.flow) as one:
            _, writer = await _connect(await port_of(one))
            writer.write(b"first\n")
            await until(lambda: reader.values == ["first"])
            await one.pause()
            lines = [f"{number:0100}" for number in range(100_000)]

            async def send() -> None:
                for at in range(0, len(lines), 1000):
                    writer.write("".join(f"{each}\n" for each in lines[at : at + 1000]).encode())
                    await writer.drain()

            sending = asyncio.ensure_future(send())
            done, _ = await asyncio.wait([sending], timeout=0.3)
            assert not done, "10 MB went into a flow that is paused"
            assert reader.values == ["first"]
            await one.resume()
            await sending
            await until(lambda: len(reader.values) == 1 + len(lines))
            assert reader.values[1:] == lines
            writer.close()

    asyncio.run(main())


def test_a_drain_sends_what_was_read() -> None:
    async def main() -> None:
        reader = Reader("tcp_server", port=0, codec="string", max_unsettled=10)
        async with running(reader.flow) as one:
            _, writer = await _connect(await port_of(one))
            writer.write("".join(f"{number}\n" for number in range(1000)).encode())
            await until(lambda: reader.values)
            report = await one.drain(20)
            assert report.complete
            assert reader.values == [str(number) for number in range(len(reader.values))]
            assert one.graph.connectors["in"].backlog == 0  # type: ignore[attr-defined]
            writer.close()

    asyncio.run(main())


def test_a_client_writes_reads_and_connects_again() -> None:
    async def main() -> None:
        got: list[bytes] = []
        writers: list[asyncio.StreamWriter] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)
            writer.write(b"welcome %d\n" % len(writers))
            while line := await reader.readline():
                got.append(line)
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        reader = Reader("tcp_client", port=port, codec="string", reconnect={"retry": {"first": 0.01}})
        async with running(reader.flow):
            await until(lambda: reader.values == ["welcome 1"])
            writers[0].close()
            await until(lambda: reader.values == ["welcome 1", "welcome 2"])
        await write([1, "ä"], "tcp_client", port=port)
        await until(lambda: got == [b"1\n", '"ä"\n'.encode()])
        server.close()
        await server.wait_closed()

    asyncio.run(main())


def test_a_client_that_only_writes_notices_that_the_server_is_gone() -> None:
    async def main() -> None:
        writers: list[asyncio.StreamWriter] = []
        server = await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1", 0)

        async def silent() -> Any:
            await asyncio.Event().wait()
            yield 1

        flow = Flow("silent")
        flow.connector("in", silent)
        flow.connector("out", "tcp_client", port=server.sockets[0].getsockname()[1])
        flow.connect("in -> out")
        async with running(flow) as one:
            await until(lambda: writers)
            server.close()
            writers[0].close()
            await until(lambda: any(each.reason == "disconnected:out" for each in one.reasons()["in"]))

    asyncio.run(main())


# -- udp -----------------------------------------------------------------------------------------------------
def test_datagrams() -> None:
    async def main() -> None:
        reader = Reader("udp_server", port=0, codec="string", preprocessors=["gelf", "separate", "remove_empty"])
        async with running(reader.flow) as one:
            port = await port_of(one)
            peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            part = b"\x1e\x0f" + b"A" * 8
            for data in (b"a\nb", b"c\n", b"\xff", part + b"\1\2World", part + b"\0\2Hello"):
                peer.sendto(data, ("127.0.0.1", port))
            await until(lambda: len(reader.values) == 4)
            assert reader.values == ["a", "b", "c", "HelloWorld"]
            await until(lambda: [each.value for each in reader.bad] == [b"\xff"])
            assert reader.events[0].meta["peer"] == f"127.0.0.1:{peer.getsockname()[1]}"
            await one.pause()
            peer.sendto(b"later", ("127.0.0.1", port))
            await asyncio.sleep(0.05)
            assert len(reader.values) == 4
            await one.resume()
            await until(lambda: reader.values[4:] == ["later"])
            peer.close()

    asyncio.run(main())


def test_what_is_left_of_a_broken_datagram_is_no_part_of_the_next() -> None:
    async def main() -> None:
        before = [{"length_prefixed": {"width": 1}}]
        reader = Reader("udp_server", port=0, codec="string", preprocessors=before, max_bytes=9)
        async with running(reader.flow) as one:
            peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            for data in (b"\1a\xffbroken", b"\5cut", b"\2ok"):
                peer.sendto(data, ("127.0.0.1", await port_of(one)))
            await until(lambda: len(reader.values) == 2)
            assert reader.values == ["a", "ok"]
            await until(lambda: len(reader.bad) == 2)
            assert "exceeds the limit" in reader.bad[0].meta["error"]
            assert "within a message" in reader.bad[1].meta["error"]
            peer.close()

    asyncio.run(main())


def test_a_udp_client_writes_and_rejects_what_does_not_fit() -> None:
    async def main() -> None:
        peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        peer.bind(("127.0.0.1", 0))
        peer.settimeout(20)
        options: dict[str, Any] = {"port": peer.getsockname()[1], "codec": "string", "on_error": "dead_letter"}
        one = await write(["a", "x" * 70_000, "b"], "udp_client", **options)
        assert [await asyncio.to_thread(peer.recv, 100) for _ in range(2)] == [b"a", b"b"]
        assert one.graph.sinks["out"].counts["rejected"] == 1
        await write(["a", "b"], "udp_client", postprocessors=["separate", "collect"], **options)
        assert await asyncio.to_thread(peer.recv, 100) == b"a\nb\n"
        peer.close()

    asyncio.run(main())


def test_wrong_options() -> None:
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("tcp_server", {}, "port is missing: set port, or unixsocket"),
        ("tcp_server", {"port": 1, "unixsocket": "/s"}, "port and unixsocket: set one of them"),
        ("tcp_server", {"unixsocket": "/s", "unixsocketperm": "9"}, "unixsocketperm is '9': it must be octal digits"),
        ("tcp_server", {"unixsocket": "/s", "tls": {"cert": "c"}}, "tls: omit it, because a Unix socket has no TLS"),
        ("tcp_client", {"unixsocket": "/" * 108}, "a path of a Unix socket has at most 107 bytes"),
        ("tcp_server", {"port": 70_000}, "port: Expected `int` <= 65535, got 70000"),
        ("tcp_server", {"port": 1, "max_connections": 0}, "max_connections: Expected `int` >= 1, got 0"),
        ("udp_server", {"port": -1}, "port: Expected `int` >= 0, got -1"),
    ]
    for kind, options, text in cases:
        with pytest.raises(FlowFileError, match=text):
            Reader(kind, **options)
