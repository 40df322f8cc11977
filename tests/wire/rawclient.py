"""A minimal client for tests: a socket, commands out, replies in."""

from __future__ import annotations

import socket
from typing import Any

import hiredis

from tests.waiting import PATIENCE


def pack(*words: bytes | str | int) -> bytes:
    """One command as RESP."""
    raw = [w if isinstance(w, bytes) else str(w).encode() for w in words]
    return b"*%d\r\n" % len(raw) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in raw)


class Raw:
    """Blocking, with a time limit on every reply. Error replies are returned, not raised."""

    def __init__(self, port: int, proto: int = 2) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self._reader = hiredis.Reader()
        if proto == 3:
            self("HELLO", 3)

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close()

    def send(self, *words: bytes | str | int) -> None:
        self.sock.sendall(pack(*words))

    def read(self) -> Any:
        while (reply := self._reader.gets()) is False:
            data = self.sock.recv(1 << 16)
            if not data:
                raise EOFError("the server closed the connection")
            self._reader.feed(data)
        return str(reply) if isinstance(reply, hiredis.ReplyError) else reply

    def __call__(self, *words: bytes | str | int) -> Any:
        self.send(*words)
        return self.read()

    def pipeline(self, *commands: tuple[bytes | str | int, ...]) -> list[Any]:
        self.sock.sendall(b"".join(pack(*words) for words in commands))
        return [self.read() for _ in commands]

    def nothing_yet(self) -> bool:
        """True if no reply is there and the server has seen everything sent so far (a blocked client).

        Another connection's round trip would be needed to know it for sure: use it after one.
        """
        self.sock.settimeout(0.05)
        try:
            data = self.sock.recv(1 << 16)
            self._reader.feed(data)
            return not data
        except TimeoutError:
            return True
        finally:
            self.sock.settimeout(PATIENCE)
