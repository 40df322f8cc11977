"""Tests of the proxy that tests of the link use."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.replication.cluster import new_port, wait_until
from tests.replication.proxy import Proxy


class Echo:
    """Sends back what it receives, end of file included."""

    def __init__(self) -> None:
        self.port = new_port()
        self.listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with sock:
            try:
                while data := sock.recv(1 << 16):
                    sock.sendall(data)
                sock.sendall(b"<eof>")
            except OSError:
                pass


@pytest.fixture(scope="module")
def echo() -> Iterator[Echo]:
    made = Echo()
    yield made
    made.listener.shutdown(socket.SHUT_RDWR)
    made.listener.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy(new_port(), echo.port) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as sock:
        assert echoed(sock, b"hello") == b"hello"
        yield sock


def echoed(sock: socket.socket, data: bytes) -> bytes:
    """What comes back: as much as was sent, or until the end."""
    sock.sendall(data)
    got = b""
    while len(got) < len(data):
        try:
            piece = sock.recv(1 << 16)
        except ConnectionResetError:
            break
        if not piece:
            break
        got += piece
    return got


def silent(sock: socket.socket) -> bool:
    sock.settimeout(0.05)
    try:
        sock.recv(1)
    except TimeoutError:
        return True
    finally:
        sock.settimeout(10)
    return False


def test_it_hands_on_what_comes(client: socket.socket) -> None:
    data = bytes(range(256)) * 2000
    threading.Thread(target=client.sendall, args=(data,)).start()
    assert echoed(client, b"") == b""
    got = b""
    while len(got) < len(data):
        got += client.recv(1 << 16)
    assert got == data
    client.shutdown(socket.SHUT_WR)
    assert client.recv(64) == b"<eof>"
    assert client.recv(64) == b""


def test_cut_and_refused(proxy: Proxy, client: socket.socket) -> None:
    proxy.refuse()
    assert echoed(client, b"goes on") == b"goes on"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", proxy.port), timeout=10)
    proxy.cut()
    assert echoed(client, b"") == b""
    assert client.recv(1) == b""
    proxy.accept()
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as again:
        assert echoed(again, b"x") == b"x"
    assert proxy.connections == 2


def test_cut_behind_so_many_bytes(proxy: Proxy, client: socket.socket) -> None:
    proxy.down.cut(after=7)
    assert echoed(client, b"0123456789") == b"0123456"
    assert proxy.down.fired.is_set()


def test_one_byte_is_corrupted(proxy: Proxy, client: socket.socket) -> None:
    proxy.down.corrupt(after=3)
    assert echoed(client, b"aaaaaa") == b"aaaqaa"
    assert echoed(client, b"aaaaaa") == b"aaaaaa"


def test_the_rest_is_swallowed(proxy: Proxy, client: socket.socket) -> None:
    proxy.down.swallow(after=2)
    client.sendall(b"abcdef")
    assert client.recv(64) == b"ab"
    client.sendall(b"abcdef")
    assert silent(client)


def test_a_black_hole(proxy: Proxy, client: socket.socket) -> None:
    proxy.down.hold()
    client.sendall(b"late")
    assert silent(client)
    proxy.down.release()
    assert client.recv(64) == b"late"


def test_half_closed(proxy: Proxy, client: socket.socket) -> None:
    proxy.half_close(leader=True)
    assert client.recv(64) == b"<eof>"


def test_delay_and_rate(proxy: Proxy, client: socket.socket) -> None:
    proxy.down.delay = 0.1
    began = time.monotonic()
    assert echoed(client, b"x") == b"x"
    assert time.monotonic() - began >= 0.1
    proxy.down.delay, proxy.down.rate = 0, 10_000
    began = time.monotonic()
    assert len(echoed(client, b"x" * 2000)) == 2000
    assert time.monotonic() - began >= 0.1
    proxy.calm()
    wait_until(lambda: echoed(client, b"y") == b"y", "calm again")
