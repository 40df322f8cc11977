"""What a server leaves behind when it stops: no socket stays open in its process."""

from __future__ import annotations

from respserver.testing import start_in_thread
from tests.wire.rawclient import Raw

MB = 1 << 20


def test_the_socket_of_a_client_that_does_not_read_is_closed() -> None:
    with start_in_thread() as running:
        client = Raw(running.port)
        client("SET", "large", b"x" * (32 * MB))
        client.send("GET", "large")
        while not running.call(lambda: running.server.clients.connections()[0].flow.throttled):
            pass
        (connection,) = running.call(lambda: running.server.clients.connections())
        socket = connection.socket.transport.get_extra_info("socket")
    assert socket.fileno() == -1
    client.close()
