"""One connection: long ranges in pages, TLS, unix sockets, peers that are no servers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hiredis
import pytest
import trustme

from tidelog import Client
from tidelog.client import calls
from tidelog.client.packedrows import tmappend_packed
from tidelog.testing import Server, free_port, running_server
from tidelog.transport.access import Access
from tidelog.transport.connection import BlockingConnection
from tidelog.transport.errors import ReplyError


class Lists:
    """Gathers entries as lists of bytes."""

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


def connect(url: str, **settings: Any) -> BlockingConnection:
    return BlockingConnection(Access((url,), **settings), url, "test")


@pytest.fixture
def wire(tidelog_server: Server) -> Iterator[BlockingConnection]:
    wire = connect(tidelog_server.url)
    yield wire
    wire.close()


def test_a_long_range_comes_in_pages(wire: BlockingConnection, tidelog_server: Server) -> None:
    with tidelog_server.client() as client:
        for start in range(0, 50_000, 10_000):
            client.tmappend("a", ["n"], [(n,) for n in range(start, start + 10_000)])
    for size in (1, 999, 60_000):
        wire.send(calls.trange("a").args)
        number, first = wire.header()
        pages = list(wire.pages(number, first, Lists(), size))
        assert [int(row[2]) for page in pages for row in page] == list(range(50_000))
        assert {len(page) for page in pages[:-1]} <= {size}
    assert wire.ask("PING") == b"PONG"  # nothing is left in the connection


def test_a_page_ends_where_it_has_many_bytes(wire: BlockingConnection, tidelog_server: Server) -> None:
    with tidelog_server.client() as client:
        for _ in range(40):
            client.tappend("a", {"v": b"x" * (1 << 20)})
    wire.send(calls.trange("a").args)
    number, first = wire.header()
    lengths = [len(page) for page in wire.pages(number, first, Lists(), 10_000)]
    assert sum(lengths) == 40
    assert max(lengths) <= 20


def test_an_error_in_the_place_of_a_range(wire: BlockingConnection, tidelog_server: Server) -> None:
    with tidelog_server.client() as client:
        client.redis.set("s", "x")
    wire.send(calls.trange("s").args)
    with pytest.raises(ReplyError, match="WRONGTYPE"):
        wire.header()


def test_the_name_in_client_list(wire: BlockingConnection, tidelog_server: Server) -> None:
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
        client = {"cert_file": paths["cert"], "key_file": paths["key"]}
        for wire in (
            connect(url, ca_file=paths["ca"], **client),
            connect(url.replace("rediss", "redis"), ca_file=paths["ca"], tls=True, **client),
            connect(f"{url}?ssl_ca_certs={paths['ca']}", **client),
            connect(url, verify=False, **client),
        ):
            assert wire.ask("PING") == b"PONG"
            wire.close()
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            connect(url)
        with pytest.raises(FileNotFoundError, match=r"^ca_file: no such file here: /nowhere"):
            connect(url, ca_file="/nowhere")
        with pytest.raises(FileNotFoundError, match=r"^tlsCaFile: no such file"):
            connect(url, ca_file="/nowhere", names={"ca_file": "tlsCaFile"})


def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with running_server(unixsocket=str(path)) as server:
        url = f"unix://{path}"
        with Client(server.url) as client:
            client.tappend("a", {"n": 1})
        wire = connect(url)
        assert wire.run(calls.tlen("a")) == [1]
        wire.close()


def test_calls_and_errors_in_their_place(wire: BlockingConnection, tidelog_server: Server) -> None:
    with tidelog_server.client() as client:
        last = client.tappend("a", {"n": 1})
        client.redis.set("s", "x")
    length, error, batch = wire.run(calls.tlen("a"), calls.tlen("s"), calls.tread("a", "0"))
    assert (length, batch.last_id) == (1, last)
    assert isinstance(error, ReplyError)
    assert error.code == "WRONGTYPE"
    with pytest.raises(ReplyError, match="WRONGTYPE"):
        wire.ask("TLEN", "s")


def test_calls_that_their_caller_has_packed(wire: BlockingConnection, tidelog_server: Server) -> None:
    packed = tmappend_packed("weather", ["city"], 2, b"$4\r\nOslo\r\n$4\r\nRome\r\n")
    assert wire.run(packed, calls.tlen("weather"))[1] == 2


def test_a_peer_that_is_no_server() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def greet() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.recv(1000)
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    thread = threading.Thread(target=greet)
    thread.start()
    url = f"redis://user:secret@127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(ConnectionError, match="does not speak RESP") as caught:
        connect(url)
    assert "secret" not in str(caught.value)
    thread.join()
    listener.close()
