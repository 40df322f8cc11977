"""One connection to a server: requests out, replies in; a long range comes in pieces of bounded size.

redis-py reads a reply as a whole. A TRANGE of a million entries must not be in memory as a whole, so its header is read
here, and what follows goes, as it comes, to somebody who gathers entries to pages (pages.py).

    *3\\r\\n                               read here: so many entries follow
    *3\\r\\n$17\\r\\n1700000000000.0\\r\\n...    gathered: the first
    *3\\r\\n...                              the next

Rule 1: RESP2 only. Rule 2: after any OSError the connection is of no further use.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

import hiredis

from tidelog.client.calls import Call, Value
from tidelog.spark.options import Access

CHUNK: Final = 1 << 18  # bytes asked of the socket at a time
PAGE_BYTES: Final = 1 << 24  # a page ends where so many were received for it
#: An entry may have so many bytes: with those of a page and a chunk below 2^31, which a column of Arrow holds.
ENTRY_BYTES: Final = (1 << 31) - (1 << 25)
PORT: Final = 6379

#: What a server says while it starts, or has lost its leader: worth another attempt.
PASSING: Final = frozenset({"LOADING", "MASTERDOWN", "READONLY", "TRYAGAIN", "BUSY"})


class ReplyError(Exception):
    """A server's error; the text is its own."""

    @property
    def code(self) -> str:
        """Its first word: ERR, WRONGTYPE, ..."""
        return str(self).partition(" ")[0]


class StrangeError(Exception):
    """Something came that is no entry; the text says what."""


P_co = TypeVar("P_co", covariant=True)


class Gather(Protocol[P_co]):
    """What makes pages of the bytes of a range."""

    def feed(self, data: bytes) -> None: ...

    def parse(self, limit: int) -> int:
        """Fill the page up to ``limit`` entries; how many it has. StrangeError, and ReplyError for an error's text."""

    def page(self) -> P_co:
        """The page, which has at least one entry; the next one begins."""


class Wire:
    """A connection that is authenticated and has its name."""

    def __init__(self, access: Access, url: str, name: str) -> None:
        """OSError where nobody answers, ReplyError where the server refuses the password."""
        parts = urlsplit(url)
        self.url = url
        self._reader = hiredis.Reader()
        self._sock = _connect(access, url)
        try:
            username = access.username or (unquote(parts.username) if parts.username else None)
            password = access.password if access.password is not None else parts.password and unquote(parts.password)
            if password is not None:
                self.ask("AUTH", *((username,) if username else ()), password)
            if self.ask("CLIENT", "SETNAME", name) != b"OK":
                raise ConnectionError(f"{self.place} does not speak RESP")
        except BaseException:
            self.close()
            raise

    @property
    def place(self) -> str:
        """Where this connection goes, without a password."""
        return self.url.rpartition("@")[2]

    def close(self) -> None:
        self._sock.close()

    # -- requests and replies -----------------------------------------------------------------------------------
    def send(self, *commands: tuple[Value, ...]) -> None:
        self._sock.sendall(b"".join(map(_pack, commands)))

    def send_raw(self, data: bytes) -> None:
        """Send commands that are in RESP already."""
        self._sock.sendall(data)

    def reply(self) -> Any:
        """The next reply. ReplyError if it is one."""
        reply = self.take()
        if isinstance(reply, hiredis.ReplyError):
            raise ReplyError(str(reply))
        return reply

    def take(self) -> Any:
        """The next reply; an error is returned, as hiredis has it."""
        try:
            while (reply := self._reader.gets()) is False:
                self._reader.feed(self._receive())
        except hiredis.ProtocolError as error:
            raise ConnectionError(f"{self.place} does not speak RESP: {error}") from None
        return reply

    def ask(self, *command: Value) -> Any:
        self.send(command)
        return self.reply()

    def run(self, *calls: Call[Any]) -> list[Any]:
        """What calls read from their replies, all asked at once; in the place of each error, a ReplyError."""
        self.send(*[call.args for call in calls])
        replies = [self.take() for _ in calls]
        return [
            ReplyError(str(reply)) if isinstance(reply, hiredis.ReplyError) else call.read(reply)
            for call, reply in zip(calls, replies, strict=True)
        ]

    # -- long ranges --------------------------------------------------------------------------------------------
    def header(self) -> tuple[int, bytes]:
        """How many elements the array that comes next has, and what bytes came behind that.

        To be called when all replies before it were taken. ReplyError if there is an error in its place.
        """
        data = b""
        while b"\n" not in data:
            data += self._receive()
        line, _, rest = data.partition(b"\r\n")
        if line[:1] != b"*":
            self._reader.feed(data)
            raise ConnectionError(f"{self.place}: an array was expected, not {self.reply()!r}")
        return int(line[1:]), rest

    def pages(self, number: int, first: bytes, gather: Gather[P_co], size: int) -> Iterator[P_co]:
        """``number`` entries as they come, in pages of at most ``size`` and of bounded bytes.

        ``first`` as header() returned it. Whoever stops halfway must close the connection. ConnectionError where
        something else comes than entries, OverflowError for an entry of more than ENTRY_BYTES.
        """
        received, left = len(first), number
        gather.feed(first)
        while left:
            limit = min(size, left)
            try:
                there = gather.parse(limit)
            except StrangeError as error:
                raise ConnectionError(f"{self.place} does not speak RESP: {error}") from None
            if there == limit or (there and received > PAGE_BYTES):
                yield gather.page()
                received = 0
                left -= there
                continue
            if received > ENTRY_BYTES:
                raise OverflowError(f"{self.place}: an entry of more than {ENTRY_BYTES} bytes")
            data = self._receive()
            received += len(data)
            gather.feed(data)

    def _receive(self) -> bytes:
        data = self._sock.recv(CHUNK)
        if not data:
            raise ConnectionError(f"{self.place} closed the connection")
        return data


_pack: Callable[[tuple[Value, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]  # any length will do


def _connect(access: Access, url: str) -> socket.socket:
    parts = urlsplit(url)
    seconds = access.connect_ms / 1000
    if parts.scheme == "unix":
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(seconds)
        sock.connect(unquote(parts.path))
    else:
        host, port = parts.hostname or "localhost", parts.port or PORT
        sock = socket.create_connection((host, port), seconds)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if access.tls:
            try:
                sock = _context(access, parse_qs(parts.query)).wrap_socket(sock, server_hostname=host)
            except BaseException:
                sock.close()
                raise
    sock.settimeout(access.read_ms / 1000)
    return sock


def _context(access: Access, query: dict[str, list[str]]) -> ssl.SSLContext:
    """TLS as the options say; of the URL's own, redis-py's ssl_ca_certs counts too."""
    ca_file = access.ca_file or query.get("ssl_ca_certs", [None])[0]
    if ca_file and not os.path.exists(ca_file):
        raise FileNotFoundError(f"tlsCaFile: no such file here: {ca_file}")
    context = ssl.create_default_context(cafile=ca_file)
    if not access.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if access.cert_file:
        context.load_cert_chain(access.cert_file, access.key_file)
    return context
