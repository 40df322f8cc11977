"""tcp with TLS, and on Unix sockets: certificates of both sides, peers without TLS, sockets of earlier servers."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.tidelog.flows.byteskit import Reader, running, write
from tests.tidelog.flows.netkit import port_of
from tests.tidelog.flows.serverkit import in_loop
from tests.waiting import until
from tidelog.flows import Flow
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.connectors.sockets import streams
from tidelog.flows.connectors.tls import ClientTlsOptions, ServerTlsOptions
from tidelog.flows.files import read_text
from tidelog.flows.runtime.runningflow import RunningFlow

EXAMPLE = Path(__file__).parents[3] / "examples" / "flows" / "relay.yaml"
SOON = {"reconnect": {"retry": {"first": 0.01, "most": 0.05}}}


class Files:
    """Certificates of one authority, and one of another."""

    def __init__(self, path: Path) -> None:
        self.path = path
        authority, other = trustme.CA(), trustme.CA()
        authority.cert_pem.write_to_path(path / "ca.pem")
        for name, issuer in (("localhost", authority), ("client", authority), ("stranger", other)):
            issuer.issue_cert(name).private_key_and_cert_chain_pem.write_to_path(path / f"{name}.pem")

    def __getitem__(self, name: str) -> str:
        return str(self.path / f"{name}.pem")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def unix() -> Iterator[str]:
    """A short path: that of a test can be longer than a Unix socket allows."""
    with tempfile.TemporaryDirectory(prefix="tide-") as directory:
        yield f"{directory}/s"


def gone(path: str) -> bool:
    return not os.path.exists(path)


def error_of(one: RunningFlow, name: str = "in") -> str:
    return one.graph.connections[name].error


def client(port: int, **options: Any) -> Reader:
    return Reader("tcp_client", host="localhost", port=port, codec="string", **SOON, **options)


# -- TLS -----------------------------------------------------------------------------------------------------
@in_loop
async def test_tls_both_ways(files: Files) -> None:
    flow = Flow("echo")
    flow.connector("in", "tcp_server", port=0, codec="string", tls={"cert": files["localhost"]})
    flow.pipeline("same")
    flow.connect("in -> same -> in")
    async with running(flow) as one:
        trusted = ssl.create_default_context(cafile=files["ca"])
        port = await port_of(one)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusted, server_hostname="localhost")
        lines = b"".join(b"%d %s\n" % (number, b"x" * 1000) for number in range(1000))
        writer.write(lines)  # more than the buffers of TLS
        async with asyncio.timeout(20):
            assert await reader.readexactly(len(lines)) == lines
        writer.close()
        await until(lambda: not one.graph.connectors["in"].peers)  # type: ignore[attr-defined]


@in_loop
async def test_a_paused_flow_holds_up_a_peer_with_tls(files: Files) -> None:
    reader = Reader("tcp_server", port=0, codec="string", tls={"cert": files["localhost"]})
    async with running(reader.flow) as one:
        trusted = ssl.create_default_context(cafile=files["ca"])
        port = await port_of(one)
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusted, server_hostname="localhost")
        writer.write(b"first\n")
        await until(lambda: reader.values == ["first"])
        await one.pause()
        lines = [f"{number:01000}" for number in range(10_000)]

        async def send() -> None:
            for each in lines:
                writer.write(f"{each}\n".encode())
                await writer.drain()

        sending = asyncio.ensure_future(send())
        done, _ = await asyncio.wait([sending], timeout=0.3)
        assert not done, "10 MB went into a flow that is paused"
        await one.resume()
        await sending
        await until(lambda: len(reader.values) == 1 + len(lines))
        assert reader.values[1:] == lines
        writer.close()


@in_loop
async def test_a_client_verifies_the_server(files: Files) -> None:
    server = Reader("tcp_server", port=0, codec="string", tls={"cert": files["stranger"]})
    async with running(server.flow) as one:
        port = await port_of(one)
        wrong = client(port, tls={"ca": files["ca"]})
        async with running(wrong.flow, started=False) as two:
            await until(lambda: "CERTIFICATE_VERIFY_FAILED" in error_of(two))
        await write(["unverified"], "tcp_client", host="localhost", port=port, codec="string", tls={"verify": False})
        await until(lambda: server.values == ["unverified"])


@in_loop
async def test_a_server_requires_certificates_of_its_authority(files: Files) -> None:
    tls = {"cert": files["localhost"], "ca": files["ca"]}
    server = Reader("tcp_server", port=0, codec="string", tls=tls)
    async with running(server.flow) as one:
        port = await port_of(one)
        for given in ({"ca": files["ca"]}, {"ca": files["ca"], "cert": files["stranger"]}):
            async with running(client(port, tls=given).flow, started=False) as two:
                await until(lambda: error_of(two) != "")
        given = {"ca": files["ca"], "cert": files["client"]}
        await write(["known"], "tcp_client", host="localhost", port=port, codec="string", tls=given)
        await until(lambda: server.values == ["known"])


@in_loop
async def test_a_missing_file_is_named(files: Files) -> None:
    server = Reader("tcp_server", port=0, tls={"cert": files["none"]}, **SOON)
    async with running(server.flow, started=False) as one:
        await until(lambda: f"tls: cert: [Errno 2] No such file or directory: {files['none']!r}" in error_of(one))


def test_errors_name_the_file_and_its_option(files: Files, tmp_path: Path) -> None:
    garbage, locked = tmp_path / "garbage", tmp_path / "locked"
    garbage.write_text("no certificate")
    for made in (ClientTlsOptions(ca=str(garbage)), ServerTlsOptions(cert=files["localhost"], ca=str(garbage))):
        with pytest.raises(OSError, match=f"^tls: ca '{garbage}': "):
            made.context()
    with pytest.raises(OSError, match=r"^tls: key: \[Errno 2\] No such file or directory: '/none'"):
        ClientTlsOptions(cert=files["client"], key="/none").context()
    key = ec.generate_private_key(ec.SECP256R1())
    secret = serialization.BestAvailableEncryption(b"secret")
    locked.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret))
    with pytest.raises(OSError, match="the key has a password"):
        ServerTlsOptions(cert=files["localhost"], key=str(locked)).context()


@in_loop
async def test_a_missing_unix_socket_is_named(tmp_path: Path) -> None:
    path = str(tmp_path / "none.sock")
    flow = Flow("f")
    flow.connector("in", "tcp_client", unixsocket=path, **SOON)
    flow.connector("out", "null")
    flow.connect("in -> out")
    async with running(flow, started=False) as one:
        await until(lambda: f"No such file or directory: {path!r}" in error_of(one))


@in_loop
async def test_failed_handshakes_are_logged_once_with_their_reason(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    server = Reader("tcp_server", port=0, tls={"cert": files["localhost"]})
    async with running(server.flow) as one:
        port = await port_of(one)
        for content in (b"GET / HTTP/1.1\r\n\r\n", b""):  # not TLS; closed before TLS
            for _ in range(3):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(content)
                if not content:
                    writer.transport.abort()
                await ended(reader)
                writer.close()
        given = one.graph.connectors["in"]._server  # type: ignore[attr-defined]
        await until(lambda: given.handshakes == 0)
    found = [each.getMessage() for each in caplog.records if "TLS" in each.getMessage()]
    assert len(found) == len(set(found))
    assert any("WRONG_VERSION_NUMBER" in each or "HTTP_REQUEST" in each for each in found)
    assert not [each for each in found if each.endswith(": ")]


async def ended(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(20):
        try:
            while await reader.read(1000):
                pass
        except ConnectionError:
            pass


@in_loop
async def test_handshakes_count_and_end(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "HANDSHAKE", 60.0)
    server = Reader("tcp_server", port=0, codec="string", max_connections=2, tls={"cert": files["localhost"]})
    async with running(server.flow) as one:
        port = await port_of(one)

        def handshakes() -> int:
            return int(one.graph.connectors["in"]._server.handshakes)  # type: ignore[attr-defined]

        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        await until(lambda: handshakes() == 2)
        opened.append(await asyncio.open_connection("127.0.0.1", port))
        await ended(opened[2][0])
        assert one.graph.sources["in"].counts["refused_connections"] == 1
        opened[0][1].write(b"GET / HTTP/1.1\r\n\r\n")
        await ended(opened[0][0])
        monkeypatch.setattr(streams, "HANDSHAKE", 0.2)
        opened.append(await asyncio.open_connection("127.0.0.1", port))  # says nothing
        await ended(opened[3][0])
        opened[1][1].close()
        await until(lambda: handshakes() == 0)
        monkeypatch.setattr(streams, "HANDSHAKE", 60.0)
        given = {"ca": files["ca"]}
        await write(["after"], "tcp_client", host="localhost", port=port, codec="string", tls=given, **SOON)
        await until(lambda: server.values == ["after"])
        for _, writer in opened:
            writer.close()


@in_loop
async def test_openssl_as_the_client(files: Files) -> None:
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl is not installed (Debian: apt-get install openssl)")
    tls = {"cert": files["localhost"], "ca": files["ca"]}
    server = Reader("tcp_server", port=0, codec="string", tls=tls)
    async with running(server.flow) as one:
        address = f"127.0.0.1:{await port_of(one)}"
        command = ("s_client", "-quiet", "-no_ign_eof", "-connect", address, "-CAfile", files["ca"],
                   "-verify_return_error", "-verify_hostname", "localhost", "-cert", files["client"])  # fmt: skip
        found = await asyncio.create_subprocess_exec(
            program, *command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        await found.communicate(b"one\ntwo\n")
        await until(lambda: server.values == ["one", "two"])


# -- Unix sockets --------------------------------------------------------------------------------------------
@in_loop
async def test_a_unix_socket(unix: str) -> None:
    server = Reader("tcp_server", unixsocket=unix, unixsocketperm=600, codec="string")
    async with running(server.flow) as one:
        assert one.graph.connectors["in"].context.described["address"] == f"unix:{unix}"
        assert stat.S_IMODE(os.stat(unix).st_mode) == 0o600
        await write(["a", "b"], "tcp_client", unixsocket=unix, codec="string")
        await until(lambda: server.values == ["a", "b"])
        assert server.events[0].meta["peer"] == f"unix:{unix}"
    assert gone(unix)


@in_loop
async def test_the_socket_of_a_dead_server_is_replaced(unix: str) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(unix)
    server = Reader("tcp_server", unixsocket=unix, codec="string")
    async with running(server.flow):
        await write(["a"], "tcp_client", unixsocket=unix, codec="string")
        await until(lambda: server.values == ["a"])


@in_loop
async def test_a_live_server_and_other_files_are_not_replaced(unix: str) -> None:
    file = Path(unix)
    first, second = (Reader("tcp_server", unixsocket=unix, codec="string", **SOON) for _ in range(2))
    async with running(first.flow) as one:
        async with running(second.flow, started=False) as two:
            await until(lambda: "another process listens" in error_of(two))
            await write(["a"], "tcp_client", unixsocket=unix, codec="string")
            await until(lambda: first.values == ["a"])
            await one.stop()
            await until(lambda: two.status == "running")
        assert gone(unix)
    file.write_text("a file")  # noqa: ASYNC240 - a test
    third = Reader("tcp_server", unixsocket=unix, codec="string", **SOON)
    async with running(third.flow, started=False) as two:
        await until(lambda: "is not a socket" in error_of(two))
    assert file.read_text() == "a file"  # noqa: ASYNC240


@in_loop
async def test_a_client_waits_for_the_socket(unix: str) -> None:
    made = Reader("tcp_client", unixsocket=unix, codec="string", **SOON)
    async with running(made.flow, started=False) as one:
        await until(lambda: error_of(one) != "")
        writers: list[asyncio.StreamWriter] = []

        async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)
            writer.write(b"hello\n")

        server = await asyncio.start_unix_server(serve, unix)
        await until(lambda: made.values == ["hello"])
        server.close()
        for each in writers:
            each.close()
            await each.wait_closed()


# -- the example ---------------------------------------------------------------------------------------------
@in_loop
async def test_the_example(files: Files, unix: str) -> None:
    tls = {"cert": files["localhost"], "ca": files["ca"]}
    collector = Reader("tcp_server", port=0, tls=tls)
    async with running(collector.flow) as one:
        given = {"SOCKET": unix, "PORT": str(await port_of(one)), "CA": files["ca"], "CERT": files["client"]}
        relay = RunningFlow(read_text(EXAMPLE.read_text(), variables=given).flows["relay"], FlowContext("relay"))
        await relay.start()
        await until(lambda: relay.status == "running")
        _, writer = await asyncio.open_unix_connection(unix)
        writer.write(b"hello\n")
        await until(lambda: collector.values == [{"line": "hello"}])
        writer.close()
        await relay.stop()
