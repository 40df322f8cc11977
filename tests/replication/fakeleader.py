"""A leader that is not one: it answers a replica's handshake, and lies at the stage that a test names.

It listens on a real socket, as a leader does, and everything that it sends is made by the test.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Self

import hiredis

from persistence.storecopy import ENTRY, Entry
from replication.frames import COPY, COPY_BODY, DONE, DONE_BODY, PIECE, encode
from tests.replication.cluster import new_port

ID = "f" * 40

# Stages at which the answer can be another one: the first word of the request, or the option of REPLCONF.
STAGES = (b"PING", b"AUTH", b"TIDELOG", b"LISTENING-PORT", b"IP-ADDRESS", b"HISTORY", b"PSYNC")


class FakeLeader:
    """Sends what ``script`` returns, and closes or waits for the replica. ``answers``: by stage, instead of +OK."""

    def __init__(
        self, script: Callable[[int], bytes | Iterable[bytes]] = lambda _: b"", close: bool = False,
        answers: Mapping[bytes, bytes | Callable[[], bytes | Iterable[bytes]]] | None = None,
    ) -> None:  # fmt: skip
        self.script = script  # from the replica's offset to what follows its PSYNC
        self.close_after = close
        self.answers = dict(answers or {})
        self.port = new_port()
        self.links = 0  # handshakes that came to PSYNC
        self.connections = 0
        self.lies = 0  # how often the answer of ``answers`` was given
        self.requests: list[list[bytes]] = []  # of all links
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        reader = hiredis.Reader()
        with sock, contextlib.suppress(OSError):
            while data := sock.recv(1 << 16):
                reader.feed(data)
                while (argv := reader.gets()) is not False:
                    self.requests.append(argv)
                    self._answer(sock, argv)
                    if argv[0].upper() == b"PSYNC" and self.close_after:
                        return

    def _answer(self, sock: socket.socket, argv: list[bytes]) -> None:
        stage = argv[0 if argv[0] != b"REPLCONF" else 1].upper()
        if stage in self.answers:
            self.lies += 1
            answer = self.answers[stage]
            _send(sock, answer if isinstance(answer, bytes) else answer())
        elif stage == b"PSYNC":
            self.links += 1
            _send(sock, self.script(int(argv[2])))
        elif stage == b"PING":
            sock.sendall(b"+PONG\r\n")
        elif stage != b"ACK":
            sock.sendall(b"+OK\r\n")


def _send(sock: socket.socket, parts: bytes | Iterable[bytes]) -> None:
    for part in [parts] if isinstance(parts, bytes) else parts:
        sock.sendall(part)


def going_on(*frames: bytes) -> bytes:
    """The leader continues."""
    return b"+CONTINUE %b\r\n" % ID.encode() + b"".join(frames)


def copy(offset: int, *frames: bytes) -> bytes:
    """The leader sends a full copy."""
    return b"+FULLRESYNC %b %d\r\n" % (ID.encode(), offset) + b"".join(frames)


def copy_of(entries: list[Entry], offset: int, claimed: int | None = None) -> bytes:
    """A full copy of these entries of a store, with everything that belongs to it."""
    number = len(entries) if claimed is None else claimed
    pieces = [ENTRY.pack(db, len(key), len(value)) + key + value for db, key, value in entries]
    return copy(
        offset, encode(COPY, offset, COPY_BODY.pack(number, 1000)),
        *[encode(PIECE, offset, piece) for piece in pieces], encode(DONE, offset, DONE_BODY.pack(number)),
    )  # fmt: skip
