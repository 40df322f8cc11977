"""What is sent to ours and to a real redis-server, and what comes back, byte for byte."""

from __future__ import annotations

import socket
from typing import Final

from tests.wire.rawclient import pack

MARK: Final = b"that was all"


class Bytes:
    """A connection whose replies are the bytes as they came."""

    def __init__(self, port: int, proto: int) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), timeout=10)
        if proto == 3:
            self._sock.sendall(pack("HELLO", 3))
            self.ask("PING")

    def close(self) -> None:
        self._sock.close()

    def ask(self, *words: bytes | str | int) -> bytes:
        return self.script([words])

    def script(self, commands: list[tuple[bytes | str | int, ...]]) -> bytes:
        """Every reply to the commands, joined."""
        self._sock.sendall(b"".join(pack(*words) for words in commands) + pack("ECHO", MARK))
        end = b"$%d\r\n%b\r\n" % (len(MARK), MARK)
        data = b""
        while not data.endswith(end):
            piece = self._sock.recv(1 << 16)
            assert piece, "the server closed the connection"
            data += piece
        return data[: -len(end)]


Pair = tuple[Bytes, Bytes]  # ours and theirs
