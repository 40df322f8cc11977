"""The connection itself, without Spark: long ranges in pieces, TLS, unix sockets, strangers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import hiredis
import pytest
import trustme

from tidelog import Client
from tidelog.client import calls
from tidelog.client.servers import Servers, UnreachableError
from tidelog.client.wire import ReplyError, Wire
from tidelog.spark.options import Access, Given
from tidelog.testing import Server, free_port, running_server


class Lists:
    """Gathers entries as lists of bytes; this needs no pyarrow."""

    def __init__(self) -> None:
        self.reader = hiredis.Reader()
        self.rows: list[list[bytes]] = []

    def feed(self, data: bytes) -> None:
        self.reader.feed(data)

    def parse(self, limit: int) -> int:
        while len(self.rows) < limit and (row := self.reader.gets()) is not False:
            self.rows.append(row)
        return len(self.rows)

    def page(self) -> list[list[bytes]]:
        page, self.rows = self.rows, []
        return page


def access(**options: str) -> Access:
    return Access.of(Given({name.replace("__", "."): value for name, value in options.items()}))


@pytest.fixture
def wire(tidelog_server: Server) -> Iterator[Wire]:
    wire = Wire(access(url=tidelog_server.url), tidelog_server.url, "test")
    yield wire
    wire.close()


def test_a_long_range_comes_in_lists(wire: Wire, tidelog_server: Server) -> None:
    with tidelog_server.client() as client:
        for start in range(0, 50_000, 10_000):
            client.tmappend("a", ["n"], [(n,) for n in range(start, start + 10_000)])
    for size in (1, 999, 60_000):
        wire.send(calls.trange("a").args)
        number, first = wire.header()
        pages = list(wire.pages(number, first, Lists(), size))
        assert [int(row[2]) for page in pages for row in page] == list(range(50_000))
        assert {len(page) for page in pages[:-1]} <= {size}
    assert wire.ask("PING") == b"PONG"  # nothing is left over


def test_a_list_ends_where_it_has_many_bytes(wire: Wire, tidelog_server: Server) -> None:
    with tidelog_server.client() as client:
        for _ in range(40):
            client.tappend("a", {"v": b"x" * (1 << 20)})
    wire.send(calls.trange("a").args)
    number, first = wire.header()
    lengths = [len(page) for page in wire.pages(number, first, Lists(), 10_000)]
    assert sum(lengths) == 40
    assert max(lengths) <= 20


def test_an_error_in_the_place_of_a_range(wire: Wire, tidelog_server: Server) -> None:
    with tidelog_server.client() as client:
        client.redis.set("s", "x")
    wire.send(calls.trange("s").args)
    with pytest.raises(ReplyError, match="WRONGTYPE"):
        wire.header()


def test_the_name_in_client_list(wire: Wire, tidelog_server: Server) -> None:
    with tidelog_server.client() as client:
        assert "test" in {row["name"] for row in client.redis.client_list()}


def test_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    paths = {name: str(tmp_path / f"{name}.pem") for name in ("ca", "cert", "key")}
    authority.cert_pem.write_to_path(paths["ca"])
    certificate.cert_chain_pems[0].write_to_path(paths["cert"])
    certificate.private_key_pem.write_to_path(paths["key"])
    port = free_port()
    with running_server(
        tls_port=port, tls_cert_file=paths["cert"], tls_key_file=paths["key"], tls_ca_cert_file=paths["ca"]
    ):
        url = f"rediss://127.0.0.1:{port}"
        trusted = {"tlsCaFile": paths["ca"], "tlsCertFile": paths["cert"], "tlsKeyFile": paths["key"]}
        wire = Wire(access(url=url, **trusted), url, "test")
        assert wire.ask("PING") == b"PONG"
        wire.close()
        plain = url.replace("rediss", "redis")
        wire = Wire(access(url=plain, tls="true", **trusted), plain, "test")
        assert wire.ask("PING") == b"PONG"
        wire.close()
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            Wire(access(url=url), url, "test")
        with pytest.raises(FileNotFoundError, match="tlsCaFile"):
            Wire(access(url=url, tlsCaFile="/nowhere"), url, "test")


def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with running_server(unixsocket=str(path)) as server:
        url = f"unix://{path}"
        with Client(server.url) as client:
            client.tappend("a", {"n": 1})
        servers = Servers(access(url=url), "test")
        assert servers.ask(calls.tlen("a")) == [1]
        servers.close()


def test_a_stranger() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def greet() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.recv(1000)
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    thread = threading.Thread(target=greet)
    thread.start()
    url = f"redis://127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(ConnectionError, match="does not speak RESP"):
        Wire(access(url=url), url, "test")
    thread.join()
    listener.close()


def test_nobody() -> None:
    servers = Servers(
        access(url="redis://127.0.0.1:1", fetchOffset__numRetries="2", fetchOffset__retryIntervalMs="1"), "t"
    )
    with pytest.raises(UnreachableError, match=r"127.0.0.1:1 in 3 attempts .*ConnectionRefusedError"):
        servers.ask(calls.tlen("a"))
