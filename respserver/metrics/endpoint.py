"""The HTTP server of ``/metrics``: one thread with non-blocking sockets.

Rule 1: the event loop of the server is not involved, except for the snapshot. Requests that arrive while a snapshot is
        being taken receive the same one, so that clients can't multiply its cost.
Rule 2: everything is bounded: CONNECTIONS clients, REQUEST bytes of a request, SILENT seconds without progress, and
        WHOLE seconds from the connection to the end of the reply. A client that does not read delays no other client.
Rule 3: the thread holds the interpreter's lock for about 0.1 ms at a time while it formats the text. A thread of Python
        that computes without a pause delays the event loop by up to 5 ms each time it wakes up.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from respserver.metrics.text import CONTENT_TYPE

CONNECTIONS: Final = 16  # fewer than the file descriptors that the program reserves
REQUEST: Final = 8192  # bytes
SILENT: Final = 10.0  # seconds
WHOLE: Final = 60.0  # seconds
READ: Final = 4096  # bytes at a time
REST: Final = 0.0005  # seconds after each piece of the text, see Rule 3
AFTER_BUG: Final = 0.1  # seconds without requests after an unexpected error
WAITING: Final = 30.0  # seconds for a snapshot, for example while the event loop is stalled

Text = Callable[[], Iterator[bytes]]  # makes the text in pieces


class MetricsClient:
    """One connection."""

    __slots__ = ("allowed", "heard", "output", "received", "since", "sock", "waiting", "with_body")

    def __init__(self, sock: socket.socket, allowed: bool, now: float) -> None:
        self.sock = sock
        self.allowed = allowed  # False: protected mode refuses it
        self.since = self.heard = now  # monotonic seconds
        self.received = b""
        self.output: list[memoryview] = []  # empty: the request is not complete, or waits for the snapshot
        self.waiting = False  # for the snapshot
        self.with_body = True


class MetricsEndpoint:
    """The sockets and the thread. Methods are called by the event loop's thread unless stated otherwise."""

    def __init__(
        self, request: Callable[[], None], may_serve: Callable[[str], bool], on_bug: Callable[[Exception], None]
    ) -> None:  # fmt: skip
        """All functions are called in the thread. ``request``: starts a snapshot, whose text deliver() passes.
        ``may_serve``: whether a client with this address is served. ``on_bug``: logs an error of the text."""
        self._request = request
        self._may_serve = may_serve
        self._on_bug = on_bug
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._listening: list[socket.socket] = []
        self._clients: set[MetricsClient] = set()
        self._asked_at = 0.0  # when the snapshot in progress was requested; 0.0: none is
        self._lock = threading.Lock()
        self._delivered: list[Text | None] = []  # at most one, which is not formatted yet
        self._closing = False
        self._thread: threading.Thread | None = None

    def start(self, listening: list[socket.socket]) -> None:
        """Serve on these listening sockets."""
        self._listening = listening
        for sock in listening:
            sock.setblocking(False)
            self._selector.register(sock, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="tidelog-metrics", daemon=True)
        self._thread.start()

    def deliver(self, text: Text | None) -> None:
        """Pass the text of the requested snapshot; None: it failed, and the log has the reason."""
        with self._lock:
            self._delivered = [text]
        self._wake()

    def close(self) -> None:
        """Close all sockets, and wait for the thread."""
        self._closing = True
        self._wake()
        if self._thread is not None:
            self._thread.join()
        for sock in (*self._listening, self._wake_read, self._wake_write):
            sock.close()
        self._selector.close()

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # the thread is awake if the buffer is full
            self._wake_write.send(b"x")

    # -- the thread ------------------------------------------------------------------------------------------
    def _run(self) -> None:
        while not self._closing:
            try:
                self._turn()
            except Exception as error:  # noqa: BLE001 - a bug, which must not end the thread
                self._on_bug(error)
                self._asked_at = 0.0
                self._drop_all()  # one of them may cause the same error at each turn
                time.sleep(AFTER_BUG)
        self._drop_all()

    def _turn(self) -> None:
        for key, _ in self._selector.select(1.0):
            if key.fileobj is self._wake_read:
                with suppress(BlockingIOError):
                    self._wake_read.recv(READ)
            elif key.data is None:
                self._accept(key.fileobj)  # type: ignore[arg-type]
            elif key.data in self._clients:
                self._serve(key.data)
        with self._lock:
            delivered, self._delivered = self._delivered, []
        for text in delivered:
            self._asked_at = 0.0
            self._answer(text)
        self._close_late()

    def _drop_all(self) -> None:
        for client in list(self._clients):
            self._drop(client)

    def _accept(self, listening: socket.socket) -> None:
        try:
            sock, address = listening.accept()
        except OSError:  # the client has gone, or no file descriptor is free
            time.sleep(REST)
            return
        if len(self._clients) >= CONNECTIONS:
            sock.close()
            return
        sock.setblocking(False)
        client = MetricsClient(sock, self._may_serve(str(address[0])), time.monotonic())
        self._clients.add(client)
        self._selector.register(sock, selectors.EVENT_READ, client)

    def _serve(self, client: MetricsClient) -> None:
        try:
            if client.output:
                self._send(client)
            else:
                self._receive(client)
        except BlockingIOError:
            return
        except OSError:
            self._drop(client)

    def _receive(self, client: MetricsClient) -> None:
        data = client.sock.recv(READ)
        client.heard = time.monotonic()
        if not data:
            self._drop(client)
            return
        if client.waiting:
            return  # the rest is ignored: the connection is closed after the reply
        client.received += data
        if b"\r\n\r\n" in client.received or b"\n\n" in client.received:
            self._handle(client)
        elif len(client.received) > REQUEST:
            self._reply(client, "431 Request Header Fields Too Large", b"the request is too large\n")

    def _handle(self, client: MetricsClient) -> None:
        words = client.received.split(b"\n", 1)[0].split()
        client.received = b""
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            self._reply(client, "400 Bad Request", b"this port serves HTTP: GET /metrics\n")
        elif not client.allowed:
            self._reply(client, "403 Forbidden", PROTECTED)
        elif words[0] not in (b"GET", b"HEAD"):
            self._reply(client, "405 Method Not Allowed", b"only GET and HEAD are allowed\n", "Allow: GET, HEAD\r\n")
        elif words[1].split(b"?", 1)[0] != b"/metrics":
            self._reply(client, "404 Not Found", b"the metrics are at /metrics\n")
        else:
            client.waiting, client.with_body = True, words[0] == b"GET"
            if not self._asked_at:
                self._asked_at = time.monotonic()
                self._request()

    def _answer(self, text: Text | None) -> None:
        """Format the text, and send it to all clients that wait."""
        body = None if text is None else self._body(text)
        for client in [client for client in self._clients if client.waiting]:
            if body is None:
                self._reply(client, "500 Internal Server Error", b"the log of the server has the reason\n")
            else:
                self._reply(client, "200 OK", body, kind=CONTENT_TYPE)

    def _body(self, text: Text) -> bytes | None:
        """Return the text; None if it failed, or if the endpoint is being closed."""
        parts = []
        try:
            for piece in text():
                parts.append(piece)
                time.sleep(REST)  # Rule 3
                if self._closing:
                    return None
        except Exception as error:  # noqa: BLE001 - a bug, which must not end the thread
            self._on_bug(error)
            return None
        return b"".join(parts)

    def _reply(
        self, client: MetricsClient, status: str, body: bytes, more: str = "", kind: str = "text/plain"
    ) -> None:  # fmt: skip
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{more}"
        )
        client.waiting, client.heard = False, time.monotonic()
        client.output = [memoryview(head.encode() + b"\r\n")]
        if client.with_body:
            client.output.append(memoryview(body))  # clients share the text
        self._selector.modify(client.sock, selectors.EVENT_WRITE, client)
        self._serve(client)

    def _send(self, client: MetricsClient) -> None:
        while client.output:
            part = client.output[0]
            sent = client.sock.send(part)
            client.heard = time.monotonic()
            if sent == len(part):
                del client.output[0]
            else:
                client.output[0] = part[sent:]
        with suppress(OSError):
            client.sock.shutdown(socket.SHUT_WR)
        self._drop(client)

    def _close_late(self) -> None:
        """Close clients that are too slow (Rule 2)."""
        now = time.monotonic()
        if self._asked_at and now - self._asked_at > WAITING:
            for client in [client for client in self._clients if client.waiting]:
                self._reply(client, "503 Service Unavailable", b"the server did not produce a snapshot in time\n")
            self._asked_at = 0.0
        for client in list(self._clients):
            silent = 0.0 if client.waiting else now - client.heard
            if silent > SILENT or now - client.since > WHOLE:
                self._drop(client)

    def _drop(self, client: MetricsClient) -> None:
        self._clients.discard(client)
        with suppress(KeyError, ValueError):
            self._selector.unregister(client.sock)
        client.sock.close()


PROTECTED: Final = (
    b"tidelog is running in protected mode, and no password is set for the default user: the metrics are served on the"
    b" loopback interface only. Set a password with requirepass, or set protected-mode no.\n"
)
