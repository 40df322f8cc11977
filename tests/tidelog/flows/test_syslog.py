"""syslog with logger and rsyslogd: both formats, both framings, TLS, invalid messages, kills."""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.tidelog.flows.byteskit import Reader, running, write
from tests.tidelog.flows.netkit import feed, port_of
from tests.tidelog.flows.peerkit import PeerServer, free_port, program
from tests.tidelog.flows.serverkit import in_loop
from tests.waiting import until
from tidelog.flows import Event, Flow, FlowFileError
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.connectors.syslog.syslog import SyslogConnectorOptions
from tidelog.flows.connectors.tls import ClientTlsOptions
from tidelog.flows.files import read_text
from tidelog.flows.interceptors.base import BadMessage, preprocessor
from tidelog.flows.runtime.runningflow import RunningFlow

EXAMPLE = Path(__file__).parents[3] / "examples" / "flows" / "syslog.yaml"
SOON = {"reconnect": {"retry": {"first": 0.01, "most": 0.1}}}


def fields(event: Event, *names: str) -> tuple[Any, ...]:
    return tuple(event.value[each] for each in names)


async def logger(*arguments: str) -> None:
    found = await asyncio.create_subprocess_exec(program("logger", "bsdutils"), *arguments)
    assert await found.wait() == 0


# -- logger --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("transport", ["udp", "tcp"])
@in_loop
async def test_messages_of_logger(transport: str) -> None:
    reader = Reader("syslog", port=0, transport=transport)
    async with running(reader.flow) as one:
        sent = ("--server", "127.0.0.1", "--port", str(await port_of(one)), f"--{transport}", "--tag", "shop")
        await logger(*sent, "--rfc5424", "--priority", "local3.err", "--id=42", "--msgid", "M1",
                     "--sd-id", "order@1", "--sd-param", 'item="t\\"ea"', "no tea")  # fmt: skip
        await until(lambda: len(reader.events) == 1)
        await logger(*sent, "--rfc3164", "--priority", "mail.info", "--id=43", "a letter")
        await until(lambda: len(reader.events) == 2)
        if transport == "tcp":
            await logger(*sent, "--octet-count", "--rfc5424", "two\nlines")
            await until(lambda: len(reader.events) == 3)
            assert reader.events[2].value["msg"] == "two\nlines"
            assert reader.events[0].meta["connection"] == 1
    first, second = reader.events[:2]
    names = ("protocol", "facility", "severity", "appname", "procid", "msg")
    assert fields(first, *names) == ("RFC5424", "local3", "err", "shop", "42", "no tea")
    assert first.value["msgid"] == "M1"
    assert first.value["structured_data"]["order@1"] == {"item": 't"ea'}
    assert fields(second, *names) == ("RFC3164", "mail", "info", "shop", "43", "a letter")
    assert first.meta["peer"].startswith("127.0.0.1:")
    assert abs(first.value["timestamp"] - first.ingest_ns) < 60e9
    assert reader.bad == []


# -- invalid messages ----------------------------------------------------------------------------------------
@in_loop
async def test_invalid_messages_do_not_affect_others() -> None:
    reader = Reader("syslog", port=0, transport="tcp", max_bytes=100)
    async with running(reader.flow) as one:
        _, writer = await asyncio.open_connection("127.0.0.1", await port_of(one))
        long, text = b"<14>" + b"x" * 200, b"<14>1 - - - - - - "
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        writer.write(b"%d %s" % (len(long), long) + long + b"\n" + b"<999>a\n" + b"4 \xff\xff\xff\xff")
        writer.write(text + b"one\n" + b"%d %stwo" % (len(text) + 3, text) + text + b"three\r\n")
        writer.write(b"9 <14>")
        writer.close()
        await until(lambda: len(reader.events) == 3 and len(reader.bad) == 6)
        assert [each.value["msg"] for each in reader.events] == ["one", "two", "three"]
        errors = sorted(each.meta["error"] for each in reader.bad)
        assert sum("more than 100 bytes" in each for each in errors) == 2
        assert sum("must begin with its priority" in each for each in errors) == 2
        assert any("ended within a message" in each for each in errors)
        peer = socket.socket()
        await asyncio.to_thread(peer.connect, ("127.0.0.1", await port_of(one)))
        peer.close()
    udp = Reader("syslog", port=0, max_bytes=100)
    async with running(udp.flow) as one:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
            for each in (b"", b"x", long, b"<14>ok"):
                out.sendto(each, ("127.0.0.1", await port_of(one)))
        await until(lambda: udp.values and len(udp.bad) == 3)
        assert udp.values[0]["msg"] == "ok"


TEXT = b"<1>a\n" + b"5 <1>b\n\r\n\n" + b"99 " + b"z" * 99 + b"12345678901\n" + b"<1>c\r\n" + b"y" * 50 + b"\n<1>d"
PIECES = [b"<1>a", b"<1>b\n"[:5], b"z" * 20, b"12345678901", b"<1>c", b"y" * 20, b"<1>d"]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_framing_whatever_the_packets_are(size: int) -> None:
    splitter: Any = preprocessor("syslog_framing", 20)
    found: list[bytes] = []
    sizes: list[int] = []
    for at in range(0, len(TEXT), size):
        found += splitter.feed(TEXT[at : at + size])
        sizes += splitter.sizes
        assert len(splitter._buffer) <= 40, "the buffer grows"
    found += splitter.end()
    sizes += splitter.sizes
    assert sum(sizes) == len(TEXT)
    assert len(sizes) == len(found)
    bad = [type(each) is BadMessage for each in found]
    assert bad == [False, False, True, False, False, True, False]
    for piece, wanted, cut in zip(found, PIECES, bad, strict=True):
        assert wanted.startswith(piece) if cut else piece == wanted


# -- sinks ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("framing", ["octet_counting", "newline"])
@pytest.mark.parametrize("protocol", ["RFC5424", "RFC3164"])
@in_loop
async def test_a_sink_and_a_source(framing: str, protocol: str) -> None:
    reader = Reader("syslog", port=0, transport="tcp")
    values = [{"severity": "err", "appname": "a", "hostname": "h", "msg": each} for each in ("one", "t\nwo", "three")]
    async with running(reader.flow) as one:
        given = {"transport": "tcp", "port": await port_of(one), "framing": framing, "format": protocol}
        sent = await write([*values, "text"], "syslog", **given)
        left = [each["msg"] for each in values if framing == "octet_counting" or "\n" not in each["msg"]]
        await until(lambda: [each["msg"] for each in reader.values] == left)
        assert {each["protocol"] for each in reader.values} == {protocol}
        assert sent.graph.sinks["out"].counts["rejected"] == len(values) - len(left) + 1


@in_loop
async def test_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    for name in ("localhost", "client"):
        authority.issue_cert(name).private_key_and_cert_chain_pem.write_to_path(str(tmp_path / f"{name}.pem"))
    files = {name: str(tmp_path / f"{name}.pem") for name in ("ca", "localhost", "client")}
    reader = Reader("syslog", port=0, transport="tcp", tls={"cert": files["localhost"], "ca": files["ca"]})
    async with running(reader.flow) as one:
        given: dict[str, Any] = {"transport": "tcp", "host": "localhost", "port": await port_of(one), **SOON}
        flow = Flow("stranger")
        flow.connector("out", "syslog", tls={"ca": files["ca"]}, **given)
        feed(flow)
        flow.connect("in -> out")
        async with running(flow, started=False) as two:
            await until(lambda: two.graph.connections["out"].error != "")
        await write([{"msg": "secret"}], "syslog", tls={"ca": files["ca"], "cert": files["client"]}, **given)
        await until(lambda: [each["msg"] for each in reader.values] == ["secret"])


# -- rsyslogd ------------------------------------------------------------------------------------------------
class Rsyslog:
    """rsyslogd, which receives over TCP and forwards to a port with octet counting. It keeps what it can't send."""

    def __init__(self, directory: Path, target: int) -> None:
        self.port = free_port()
        path = directory / "rsyslog.conf"
        path.write_text(
            f'global(workDirectory="{directory}")\nmodule(load="imtcp")\n'
            f'input(type="imtcp" port="{self.port}" address="127.0.0.1")\n'
            f'action(type="omfwd" target="127.0.0.1" port="{target}" protocol="tcp" TCP_Framing="octet-counted"\n'
            '  template="RSYSLOG_SyslogProtocol23Format" action.resumeRetryCount="-1" action.resumeInterval="1")\n'
        )
        command = [program("rsyslogd", "rsyslog"), "-n", "-f", str(path), "-i", str(directory / "pid")]
        self.server = PeerServer(command, self.port)


@pytest.fixture
def directory() -> Iterator[Path]:
    made = tempfile.mkdtemp(prefix="tide-")
    yield Path(made)
    shutil.rmtree(made, ignore_errors=True)


@in_loop
async def test_rsyslog_receives_and_forwards(directory: Path) -> None:
    target = free_port()
    peer = Rsyslog(directory, target)
    reader = Reader("syslog", port=target, transport="tcp")

    def messages() -> set[str]:
        return {each["msg"].strip() for each in reader.values if each["appname"] == "shop"}

    flow = Flow("writer")
    flow.connector("out", "syslog", transport="tcp", port=peer.port, **SOON)
    source = feed(flow)
    flow.connect("in -> out")
    await asyncio.to_thread(peer.server.start)
    try:
        async with running(reader.flow) as one, running(flow) as two:
            source.give(*(Event({"appname": "shop", "hostname": "h", "msg": f"m{n}"}, None, n) for n in range(100)))
            await until(lambda: messages() == {f"m{n}" for n in range(100)})
            await one.pause()
            with peer.server.stopped():
                source.give(Event({"appname": "shop", "hostname": "h", "msg": "later"}, None, 100))
                await until(lambda: 100 in source.outcomes)  # in the kernel
            await one.resume()
            await until(lambda: "later" in messages())
            await asyncio.to_thread(peer.server.kill)
            await until(lambda: two.graph.connections["out"].error != "")
            await asyncio.to_thread(peer.server.start)
            await until(lambda: any(each.reason == "disconnected:out" for each in two.reasons()["in"]) is False)
            source.give(Event({"appname": "shop", "hostname": "h", "msg": "after"}, None, 101))
            await until(lambda: "after" in messages())
    finally:
        await asyncio.to_thread(peer.server.kill)
    assert {status for status, _ in source.outcomes.values()} == {"ok"}


# -- options, the example ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tls": {"cert": "c"}}, "tls: set transport: tcp, or omit tls"),
        ({"transport": "tcp", "tls": {}}, "tls: a source needs cert"),
        ({"transport": "tls"}, "transport: Invalid enum value 'tls'"),
        ({"port": 70_000}, "port: Expected"),
    ],
)
def test_wrong_options(options: dict[str, Any], text: str) -> None:
    with pytest.raises(FlowFileError, match=text):
        Reader("syslog", **options).flow.spec()


def test_the_port_has_a_default() -> None:
    assert SyslogConnectorOptions().source()._options.port == 514
    secure = SyslogConnectorOptions(transport="tcp", tls=ClientTlsOptions(cert="c"))
    assert secure.source()._options.port == 6514


@in_loop
async def test_the_example(tmp_path: Path) -> None:
    central = Reader("syslog", port=0, transport="tcp")
    port, invalid = free_port(), tmp_path / "invalid.jsonl"
    async with running(central.flow) as one:
        given = {"PORT": str(port), "CENTRAL_PORT": str(await port_of(one)), "INVALID": str(invalid)}
        made = RunningFlow(read_text(EXAMPLE.read_text(), variables=given).flows["syslog"], FlowContext("syslog"))
        await made.start()
        await until(lambda: made.status == "running")
        sent = ("--server", "127.0.0.1", "--port", str(port))
        await logger(*sent, "--udp", "--priority", "user.info", "all is well")
        await logger(*sent, "--tcp", "--priority", "user.err", "disk full")
        await until(lambda: [each["msg"] for each in central.values] == ["disk full"])
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
            out.sendto(b"no syslog", ("127.0.0.1", port))
        await until(lambda: invalid.exists() and invalid.read_text().strip())
        await made.stop()
