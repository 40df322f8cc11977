"""What scripts/demo --spark shows, as far as it can be tried without minutes of Spark."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark", reason="no pyspark here (pip install 'tidelog[spark]')")

from pyspark import accumulators

from scripts.demo_output import hushed


def test_a_query_that_is_stopped_shows_no_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    """Its JVM hangs up in the middle of a report of what its tasks have counted."""
    server = accumulators._start_update_server("token", False)
    try:
        hushed(SimpleNamespace(_accumulatorServer=server))
        with socket.create_connection(("127.0.0.1", server.socket.getsockname()[1])) as connection:
            connection.sendall(b"token" + b"\x00\x00")
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b""
    finally:
        server.shutdown()
        server.server_close()
    assert capfd.readouterr() == ("", "")


def test_another_pyspark_has_no_such_server() -> None:
    hushed(SimpleNamespace())
