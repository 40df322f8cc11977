"""``BlockingConnection``: pipelined commands, and long ranges in pages of bounded size.

redis-py reads a whole reply into memory, which is not acceptable for a TRANGE of a million entries. Here, only the
header of the reply is parsed. The bytes after it are passed, as they arrive, to a ``PageBuilder`` of the caller, which
builds pages of entries.

    *1000000\\r\\n                         parsed here: the number of entries
    *3\\r\\n$17\\r\\n1700000000000.0\\r\\n...    for the PageBuilder: the first entry
    *3\\r\\n...                              the second

Rule 1: RESP2 only.
Rule 2: after an OSError, the connection can't be used any more: close it.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol, TypeVar

import hiredis

from tidelog.transport.access import Access, without_credentials
from tidelog.transport.address import Address
from tidelog.transport.call import Call, Value, fill_in, is_sent, plain, read_one
from tidelog.transport.errors import ReplyError

CHUNK: Final = 1 << 18  # bytes read from the socket at a time, at most
PAGE_BYTES: Final = 1 << 24  # a page ends once this many bytes were received for it
#: The largest entry, in bytes. With a page and a chunk it stays below 2^31, the limit of an Arrow column.
ENTRY_BYTES: Final = (1 << 31) - (1 << 25)


class NotAnEntryError(Exception):
    """The peer sent something else in place of an entry. The text describes it."""


P_co = TypeVar("P_co", covariant=True)


class PageBuilder(Protocol[P_co]):
    """Builds pages of entries from the bytes of a range. There is one object for each range."""

    def feed(self, data: bytes) -> None:
        """Append received bytes, which may end anywhere."""

    def parse(self, limit: int) -> int:
        """Add complete entries to the page until it has ``limit``; returns how many it has.

        Raises ReplyError for an error reply, and NotAnEntryError for anything else that is not an entry.
        """

    def page(self) -> P_co:
        """Return the page and begin the next one. It is only called if the page has entries."""


class BlockingConnection:
    """A connection to the server at ``url``, authenticated, and listed as ``name`` in CLIENT LIST.

    ``url`` need not be one of ``access.urls``. Raises OSError if no server answers, ReplyError for a wrong password.
    """

    def __init__(self, access: Access, url: str, name: str) -> None:
        self.url = url
        address = access.address(url)
        self._reader = hiredis.Reader()
        self._sock = _connect(access, address)
        self._patience = self._sock.gettimeout()
        try:
            for call in greeting(address, name):
                if self.ask(*call.args) != b"OK":
                    raise ConnectionError(f"{self.place} does not speak RESP")
            self.run(MULTISLOT)  # whatever the reply: an earlier version does not know it, and does not need it
        except BaseException:
            self.close()
            raise

    @property
    def place(self) -> str:
        """The URL, without user and password."""
        return without_credentials(self.url)

    def close(self) -> None:
        self._sock.close()

    def fileno(self) -> int:
        """Return the socket's descriptor, for selectors: when it is readable, ``poll`` may return a reply."""
        return self._sock.fileno()

    # -- requests and replies -----------------------------------------------------------------------------------
    def send(self, *commands: tuple[Value, ...]) -> None:
        """Send commands without waiting. Read a reply for each of them later."""
        self._sock.sendall(b"".join(map(_pack, commands)))

    def send_raw(self, data: bytes) -> None:
        """Send commands that are already encoded in RESP."""
        self._sock.sendall(data)

    def reply(self) -> Any:
        """Return the next reply. Raises ReplyError if it is an error."""
        reply = self.take()
        if isinstance(reply, hiredis.ReplyError):
            raise ReplyError(str(reply))
        return reply

    def take(self) -> Any:
        """Return the next reply. An error is returned as a hiredis.ReplyError."""
        try:
            while (reply := self._reader.gets()) is False:
                self._reader.feed(self._receive())
        except hiredis.ProtocolError as error:
            raise ConnectionError(f"{self.place} does not speak RESP: {error}") from None
        return reply

    def poll(self) -> Any:
        """Return the next reply as ``take`` does, without waiting; False if it has not arrived completely."""
        self._sock.settimeout(0)
        try:
            return self.take()
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        finally:
            self._sock.settimeout(self._patience)

    def ask(self, *command: Value) -> Any:
        """Send one command and return its reply. Raises ReplyError if it is an error."""
        self.send(command)
        return self.reply()

    def run(self, *calls: Call[Any]) -> list[Any]:
        """Send calls in one pipeline and return their results. Calls that send nothing are skipped.

        An error reply is not raised: a ReplyError takes the place of the result.
        """
        return self.results(calls, self.exchange(calls))

    def exchange(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Send calls in one pipeline, and return the replies of those that send something; errors as in ``take``."""
        sent = list(filter(is_sent, calls))
        self.send_raw(b"".join([_pack(call.args) if call.packed is None else call.packed for call in sent]))
        return [self.take() for _ in sent]

    @staticmethod
    def results(calls: Sequence[Call[Any]], replies: Sequence[Any]) -> list[Any]:
        """Return the results of ``run`` for the replies of ``exchange``."""
        results = [
            ReplyError(str(reply)) if isinstance(reply, hiredis.ReplyError) else read_one(call, reply)
            for call, reply in zip(filter(is_sent, calls), replies, strict=True)
        ]
        return fill_in(calls, results)

    # -- long ranges --------------------------------------------------------------------------------------------
    def header(self) -> tuple[int, bytes]:
        """Return the number of elements of the next reply, an array, and the bytes received after that number.

        Read all earlier replies first. Raises ReplyError if the reply is an error.
        """
        data = b""
        while b"\n" not in data:
            data += self._receive()
        line, _, rest = data.partition(b"\r\n")
        if line[:1] != b"*":
            self._reader.feed(data)
            raise ConnectionError(f"{self.place}: an array was expected, not {self.reply()!r}")
        return int(line[1:]), rest

    def elements(self) -> Iterator[Any]:
        """Yield the elements of the next reply, an array, as they arrive; an error is a hiredis.ReplyError.

        Read all earlier replies first, and all elements before anything else. A null reply has no elements.
        Raises ReplyError if the reply is an error.
        """
        number, first = self.header()
        self._reader.feed(first)
        for _ in range(number):
            yield self.take()

    def pages(self, number: int, first: bytes, gather: PageBuilder[P_co], size: int) -> Iterator[P_co]:
        """Yield ``number`` entries as they arrive, in pages of at most ``size`` entries and about PAGE_BYTES bytes.

        ``header`` returned ``number`` and ``first``. Close the connection if you stop before the end. Raises
        ConnectionError if anything but entries arrives, and OverflowError for an entry larger than ENTRY_BYTES.
        """
        received, left = len(first), number
        gather.feed(first)
        while left:
            limit = min(size, left)
            try:
                there = gather.parse(limit)
            except NotAnEntryError as error:
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


_pack: Callable[[tuple[Value, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]  # of any length


def _connect(access: Access, address: Address) -> socket.socket:
    seconds = access.connect_ms / 1000
    if address.path:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(seconds)
        sock.connect(address.path)
    else:
        sock = socket.create_connection((address.host, address.port), seconds)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address.tls:
            try:
                sock = tls_context(access, address).wrap_socket(sock, server_hostname=address.host)
            except BaseException:
                sock.close()
                raise
    sock.settimeout(access.read_ms / 1000)
    return sock


# Keys of different slots may be used together, because the leader has all slots. It has an effect on servers with
# cluster-enabled; whether a server has it is known only after HELLO, which older servers do not have.
MULTISLOT: Final = plain("CLIENT", "MULTISLOT", "ON")


def greeting(address: Address, name: str) -> list[Call[Any]]:
    """Return the calls with which a connection begins: login, database, and its name in CLIENT LIST."""
    calls = [plain("CLIENT", "SETNAME", name)]
    if address.db:
        calls.insert(0, plain("SELECT", address.db))
    if address.password is not None:
        calls.insert(0, plain("AUTH", *((address.username,) if address.username else ()), address.password))
    return calls


def tls_context(access: Access, address: Address) -> ssl.SSLContext:
    """Return the TLS settings of ``address``, which ``access`` has completed. Raises FileNotFoundError."""
    for name in ("ca_file", "ca_path", "cert_file", "key_file"):
        path = getattr(address, name)
        if path and not os.path.exists(path):
            raise FileNotFoundError(f"{access.called(name)}: no such file here: {path}")
    context = ssl.create_default_context(cafile=address.ca_file, capath=address.ca_path)
    if not address.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif not address.check_hostname:
        context.check_hostname = False
    if address.cert_file:
        context.load_cert_chain(address.cert_file, address.key_file, address.key_password)
    return context
