"""The HTTP server of ``/metrics``: requests, limits, and slow clients."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from respserver.metrics import endpoint
from respserver.testing import RunningServer, start_in_thread
from tests.respserver.metrics.scraping import answer, scrape
from tests.waiting import eventually
from tests.wire.rawclient import Raw
from tidelog.testing import free_port

GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def running(port: int) -> Iterator[RunningServer]:
    with start_in_thread(metrics_port=str(port)) as running:
        yield running


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (GET, b"200 OK"),
        (b"GET /metrics?x=1 HTTP/1.0\n\n", b"200 OK"),
        (b"GET / HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405 Method Not Allowed"),
        (b"\r\n\r\n", b"400 Bad Request"),
        (b"*1\r\n$4\r\nPING\r\n\r\n\r\n", b"400 Bad Request"),
        (b"GET /metrics HTTP/1.1\r\n" + b"x" * 10_000, b"431 Request Header Fields Too Large"),
    ],
)
def test_requests(running: RunningServer, port: int, request_: bytes, status: bytes) -> None:
    assert answer(port, request_).startswith(b"HTTP/1.1 " + status + b"\r\n")
    assert scrape(port)("streams") == 0


def test_an_unexpected_error_ends_requests_but_not_the_endpoint(
    running: RunningServer, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise ValueError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(endpoint.MetricsEndpoint, "_handle", fails)
        assert answer(port, GET) == b""
    assert scrape(port)("streams") == 0


def test_a_head_request_has_no_body(running: RunningServer, port: int) -> None:
    head, _, body = answer(port, b"HEAD /metrics HTTP/1.1\r\n\r\n").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Length: 0" not in head
    assert body == b""


def test_a_request_in_small_parts(running: RunningServer, port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        for at in range(len(GET)):
            sock.sendall(GET[at : at + 1])
        assert sock.recv(15) == b"HTTP/1.1 200 OK"


def test_a_client_that_does_not_read_delays_nobody(running: RunningServer, port: int) -> None:
    with Raw(running.port) as c, ExitStack() as stack:
        name = "s" * 250
        c.pipeline(*[("XGROUP", "CREATE", name, f"{number:0250}", "0", "MKSTREAM") for number in range(1500)])
        for _ in range(endpoint.CONNECTIONS - 2):
            slow = stack.enter_context(socket.socket())
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            slow.connect(("127.0.0.1", port))
            slow.sendall(GET)
        assert len(scrape(port).text) > 7_000_000  # more than the system buffers
        assert c("PING") == b"PONG"


def test_connections_are_limited(running: RunningServer, port: int) -> None:
    with ExitStack() as stack:
        idle = [_connect(stack, port) for _ in range(endpoint.CONNECTIONS)]
        assert _connect(stack, port).recv(1) == b""
        idle[0].close()
        eventually(lambda: _is_served(port))


def _connect(stack: ExitStack, port: int) -> socket.socket:
    return stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))


def _is_served(port: int) -> bool:
    try:
        return answer(port, GET).startswith(b"HTTP/1.1 200 OK")
    except ConnectionError:
        return False


def test_silent_and_slow_clients_are_closed(
    running: RunningServer, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(endpoint, "SILENT", 0.2)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as silent:
        silent.sendall(b"GET /met")
        assert silent.recv(1) == b""
    monkeypatch.setattr(endpoint, "SILENT", 60.0)
    monkeypatch.setattr(endpoint, "WHOLE", 0.5)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as slow:
        eventually(lambda: _is_closed(slow))  # which is never silent, and never done


def _is_closed(sock: socket.socket) -> bool:
    """Send a byte of a request. Returns whether the other side has closed the connection."""
    try:
        sock.sendall(b"x")
    except OSError:
        return True
    return False


def test_a_stalled_event_loop_is_reported(
    running: RunningServer, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(endpoint, "WAITING", 0.0)
    monkeypatch.setattr(endpoint.MetricsEndpoint, "deliver", lambda self, text: None)
    assert answer(port, GET).startswith(b"HTTP/1.1 503 Service Unavailable")


def test_clients_share_a_snapshot(running: RunningServer, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    begin = running.server.metrics._begin
    deliver = endpoint.MetricsEndpoint.deliver
    held: list[tuple[endpoint.MetricsEndpoint, endpoint.Text]] = []
    monkeypatch.setattr(endpoint.MetricsEndpoint, "deliver", lambda self, text: held.append((self, text)))

    def count() -> None:
        taken.append(1)
        begin()

    monkeypatch.setattr(running.server.metrics, "_begin", count)
    with ExitStack() as stack:
        socks = [_connect(stack, port) for _ in range(5)]
        for sock in socks:
            sock.sendall(GET)
        eventually(lambda: held)
        assert b"404" in answer(port, b"GET / HTTP/1.1\r\n\r\n")  # the thread has read the requests before this one
        for one, text in held:
            deliver(one, text)
        for sock in socks:
            assert sock.recv(15) == b"HTTP/1.1 200 OK"
    assert len(taken) == 1


def test_a_bug_is_an_error_500_and_the_thread_survives(
    running: RunningServer, port: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    with monkeypatch.context() as patched:
        patched.setattr("respserver.metrics.exporter.lines", lambda *_: 1 / 0)
        assert answer(port, GET).startswith(b"HTTP/1.1 500 Internal Server Error")
    assert scrape(port)("streams") == 0
    with monkeypatch.context() as patched:
        patched.setattr("respserver.metrics.values.commands", lambda *_: 1 / 0)
        assert answer(port, GET).startswith(b"HTTP/1.1 500 Internal Server Error")
    assert scrape(port)("streams") == 0
    assert "ZeroDivisionError" in capfd.readouterr().out
