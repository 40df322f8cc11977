"""A server in front of a real one that refuses requests for a while, as the other would if it could not serve them."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from types import TracebackType
from typing import Self

import hiredis

FULL = "ERR max number of clients reached"  # said to whoever connects
CODES = (
    "LOADING Redis is loading the dataset in memory",
    "BUSY Redis is busy running a script",
    "MISCONF Errors writing to the AOF file: No space left on device",
    "NOREPLICAS Not enough good replicas to write.",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "READONLY You can't write against a read only replica.",
    "CLUSTERDOWN Hash slot not served",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "TRYAGAIN Multiple keys request during rehashing of slot",
)


class Refusing:
    """Passes on what clients send to the server at ``port``, but while ``text`` is set: then that is the answer."""

    def __init__(self, port: int, text: str = "") -> None:
        self.text = text
        self.refused = 0  # requests and connections
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._links: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"

    def refuse(self, text: str) -> None:
        """From now on. Connections that there are end: what waits on them asks again."""
        self.text = text
        with self._lock:
            for each in self._links:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def serve(self) -> None:
        """Serve again."""
        self.text = ""

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.refuse("")

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._port)) as server, contextlib.suppress(OSError):
            with self._lock:
                self._links.add(client)
            try:
                if self.text == FULL:
                    self._say(client)
                    client.shutdown(socket.SHUT_WR)
                    while client.recv(1 << 16):  # a close with something unread would take the answer back
                        pass
                    return
                self._pass(client, server)
            finally:
                with self._lock:
                    self._links.discard(client)

    def _pass(self, client: socket.socket, server: socket.socket) -> None:
        reader = hiredis.Reader()
        while True:
            for each in select.select([client, server], [], [])[0]:
                data = each.recv(1 << 16)
                if not data:
                    return
                if each is server:
                    client.sendall(data)
                elif not self.text:
                    server.sendall(data)
                else:
                    reader.feed(data)
                    while (request := reader.gets()) is not False:
                        if request[0].upper() in (b"AUTH", b"CLIENT", b"HELLO"):
                            server.sendall(hiredis.pack_command(tuple(request)))
                        else:
                            self._say(client)

    def _say(self, client: socket.socket) -> None:
        self.refused += 1
        client.sendall(f"-{self.text}\r\n".encode())
