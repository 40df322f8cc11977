"""Replies with their types kept apart: ``+OK`` is not ``$2 OK``, a null array not a null string, a map not an array."""

from __future__ import annotations

import socket
from typing import Any, NamedTuple

from tests.wire.rawclient import pack

MARK = b"that was all"
NULLS = {"$": "(nil string)", "*": "(nil array)", "_": "(null)"}
Words = tuple[bytes, ...]


class Reply(NamedTuple):
    """A reply as it was sent. ``kind`` is its first byte; None is what has no value."""

    kind: str
    value: Any  # bytes, int, a list of replies, None; pairs of a map follow one another

    def __repr__(self) -> str:
        return shown(self)


def shown(reply: Reply, indent: str = "") -> str:
    """For people, in the way of redis-cli."""
    kind, value = reply
    if value is None:
        return NULLS[kind]
    if isinstance(value, list):
        name = {"*": "array", "%": "map", "~": "set", ">": "push"}[kind]
        if not value:
            return f"(empty {name})"
        inner = indent + "   "
        return "".join([f"({name})", *(f"\n{inner}{shown(each, inner)}" for each in value)])
    if isinstance(value, int):
        return f"(integer) {value}"
    text: str = value.decode("latin-1")
    return {"+": text, "-": f"(error) {text}", "$": f'"{text}"'}.get(kind, f"({kind}) {text}")


def parse(data: bytes, at: int) -> tuple[Reply, int]:
    """The reply that begins there, and where the next one begins."""
    kind = chr(data[at])
    end = data.index(b"\r\n", at)
    head = data[at + 1 : end]
    at = end + 2
    if kind in "+-,#(":
        return Reply(kind, head), at
    if kind == ":":
        return Reply(kind, int(head)), at
    if kind == "_":
        return Reply(kind, None), at
    size = int(head)
    if size < 0:
        return Reply(kind, None), at
    if kind in "$=":
        return Reply(kind, data[at : at + size]), at + size + 2
    assert kind in "*%~>", data[at - 20 : at + 20]
    found = []
    for _ in range(size * 2 if kind == "%" else size):
        reply, at = parse(data, at)
        found.append(reply)
    return Reply(kind, found), at


class Typed:
    """A connection that runs whole programs in one go."""

    def __init__(self, port: int, proto: int = 2) -> None:
        self.port = port
        self.proto = proto
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=20)
        if proto == 3:
            self.sock.sendall(pack("HELLO", 3))
            self.run([(b"PING",)])  # takes the reply to HELLO, too
        said = self("INFO", "server").value
        told = said.partition(b"redis_version:")[2].split(b".")
        self.version = (int(told[0]), int(told[1]))  # of Redis; ours says which one it is like
        self.old = self.version < (7, 2)  # of 2022

    def __enter__(self) -> Typed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close()

    def raw(self, program: list[Words]) -> bytes:
        """What the program is answered, as bytes. A transaction that it leaves open is discarded."""
        self.sock.sendall(b"".join([pack(*words) for words in (*program, (b"DISCARD",), (b"ECHO", MARK))]))
        end = b"$%d\r\n%b\r\n" % (len(MARK), MARK)
        pieces = [b""]
        while not pieces[-1].endswith(end) and not (len(pieces) > 2 and b"".join(pieces[-2:]).endswith(end)):
            pieces.append(self.sock.recv(1 << 18))
            assert pieces[-1], "the server closed the connection"
        return b"".join(pieces)[: -len(end)]

    def run(self, program: list[Words]) -> list[Reply]:
        """The replies to the program's commands."""
        return replies(self.raw(program))[: len(program)]

    def __call__(self, *words: bytes | str | int) -> Reply:
        return self.run([tuple(w if isinstance(w, bytes) else str(w).encode() for w in words)])[0]


def replies(data: bytes) -> list[Reply]:
    found, at = [], 0
    while at < len(data):
        reply, at = parse(data, at)
        found.append(reply)
    return found
