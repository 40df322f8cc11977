"""The HTTP server of a worker's metrics: silent and slow peers lock nobody out."""

from __future__ import annotations

import socket
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tidelog.operating import metricsserver


def answer(_: Any, start: Any) -> list[bytes]:
    start("200 OK", [("Content-Length", "3")])
    return [b"yes"]


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(metricsserver, "CONNECTIONS", 3)
    monkeypatch.setattr(metricsserver._Handler, "timeout", 0.5)
    monkeypatch.setattr(metricsserver, "WHOLE", 1.0)
    server, thread = metricsserver.serve(answer, 0, "127.0.0.1")
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


def scraped(port: int) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as found:
        body: bytes = found.read()
        return body


def until_scraped(port: int) -> None:
    end = time.monotonic() + 20
    while True:
        try:
            assert scraped(port) == b"yes"
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.05)
        else:
            return


def test_silent_peers_are_disconnected(port: int) -> None:
    silent = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(3)]
    until_scraped(port)
    for each in silent:
        assert each.recv(1) == b""
        each.close()


def test_one_connection_too_many_is_closed(port: int) -> None:
    held = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(3)]
    with socket.create_connection(("127.0.0.1", port), timeout=20) as more:
        try:
            assert more.recv(1) == b""
        except ConnectionResetError:
            pass
    for each in held:
        each.close()
    until_scraped(port)


def test_slow_peers_make_way(port: int) -> None:
    slow = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(3)]
    began = time.monotonic()
    served = False
    while not served:
        for each in slow:
            try:
                each.sendall(b"G")
            except OSError:
                continue
        try:
            served = scraped(port) == b"yes"
        except OSError:
            assert time.monotonic() - began < 20
        time.sleep(0.05)
    for each in slow:
        each.close()


def test_ipv6() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        server, thread = metricsserver.serve(answer, 0, "::1")
    except OSError:
        pytest.skip("no ::1 here")
    with urllib.request.urlopen(f"http://[::1]:{server.server_port}/", timeout=20) as found:
        assert found.read() == b"yes"
    server.shutdown()
    server.server_close()
    thread.join()
