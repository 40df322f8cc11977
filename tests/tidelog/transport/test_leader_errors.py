"""A server that accepts connections, and then replies to ROLE with an error, or not at all."""

from __future__ import annotations

import socket
import threading

import pytest

from tidelog.testing import Server
from tidelog.transport.access import Access
from tidelog.transport.errors import ReplyError
from tidelog.transport.lookup import find_leader


class Fake:
    """Replies OK to each call, except for ROLE. ``closed``: set when the client has closed the connection."""

    def __init__(self, role: bytes) -> None:
        self._role = role
        self.closed = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        sock, _ = self._listening.accept()
        with sock:
            while data := sock.recv(65536):
                calls = data.count(b"*")
                if b"ROLE" in data:
                    sock.sendall(b"+OK\r\n" * (calls - 1) + self._role)
                    if not self._role:
                        sock.shutdown(socket.SHUT_RDWR)
                else:
                    sock.sendall(b"+OK\r\n" * calls)
        self._listening.close()
        self.closed.set()


@pytest.mark.parametrize("role", [b"-LOADING the data is loaded\r\n", b""])
def test_the_next_server_is_asked(role: bytes, tidelog_server: Server) -> None:
    fake = Fake(role)
    found = find_leader(Access((fake.url, tidelog_server.url)), "x")
    assert found.place == tidelog_server.url
    found.close()
    assert fake.closed.wait(20)


def test_a_missing_permission_is_an_error(tidelog_server: Server) -> None:
    fake = Fake(b"-NOPERM User x has no permissions to run the 'role' command\r\n")
    with pytest.raises(ReplyError, match="NOPERM"):
        find_leader(Access((fake.url, tidelog_server.url)), "x")
    assert fake.closed.wait(20)
