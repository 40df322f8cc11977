"""A TCP proxy between a replica and its leader that can do to a link what networks do to links.

    replica --- up ---> proxy ---> leader
            <-- down ---

Rule 1: without a disturbance, bytes are handed on unchanged and in order, and both ends see each other's end of file.
Rule 2: a trigger (``after`` bytes) counts the bytes of its direction, over all connections, from the moment it is set.
It fires once.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from types import TracebackType
from typing import Self

CHUNK = 1 << 14  # bytes read at once
STEP = 0.02  # seconds of traffic handed on at once where it is throttled


class Flow:
    """What happens to the bytes of one direction. Set from the test's thread, read by the pumps."""

    def __init__(self) -> None:
        self.rate: int | None = None  # bytes a second
        self.delay = 0.0  # seconds that every chunk is late
        self.passed = 0  # bytes handed on since the proxy began
        self.fired = threading.Event()  # the trigger has gone off
        self._gate = threading.Event()  # not set: a black hole, bytes pile up and nobody is told
        self._gate.set()
        self._lock = threading.Lock()
        self._trigger: tuple[int, str] | None = None

    def hold(self) -> None:
        """Hand nothing on and close nothing, as if a cable were pulled."""
        self._gate.clear()

    def release(self) -> None:
        """Hand on what was held, and what follows."""
        self._gate.set()

    def cut(self, after: int) -> None:
        """Close both ends after so many bytes."""
        self._set(after, "cut")

    def swallow(self, after: int) -> None:
        """After so many bytes, drop the rest of that connection while it stays open."""
        self._set(after, "swallow")

    def corrupt(self, after: int) -> None:
        """Flip one bit of the byte after so many."""
        self._set(after, "corrupt")

    def calm(self) -> None:
        """No more disturbances."""
        with self._lock:
            self._trigger, self.rate, self.delay = None, None, 0.0
        self._gate.set()

    def _set(self, after: int, action: str) -> None:
        with self._lock:
            self.fired.clear()
            self._trigger = (self.passed + after, action)

    def take(self, data: bytes) -> tuple[bytes, str]:
        """The part of ``data`` that is handed on, and what is done after it: "", cut or swallow."""
        with self._lock:
            action = ""
            if self._trigger is not None and self.passed + len(data) > self._trigger[0]:
                at, action = self._trigger[0] - self.passed, self._trigger[1]
                self._trigger = None
                self.fired.set()
                if action == "corrupt":
                    data, action = data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :], ""
                else:
                    data = data[:at]
            self.passed += len(data)
            return data, action

    def wait(self) -> None:
        """Until bytes may pass."""
        self._gate.wait()
        if self.delay:
            time.sleep(self.delay)


class Proxy:
    """Listens on ``port`` and hands on to ``target``, a port of this machine that may change."""

    def __init__(self, port: int, target: int) -> None:
        self.port = port
        self.target = target
        self.up = Flow()
        self.down = Flow()
        self.connections = 0  # ever made
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self.accept()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def accept(self) -> None:
        """Take connections (again)."""
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self.port))
            threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def refuse(self) -> None:
        """Refuse new connections; existing ones stay."""
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
            self._listener.close()
            self._listener = None

    def cut(self) -> None:
        """Close every connection now."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            _close(*pair)

    def half_close(self, leader: bool) -> None:
        """Tell the leader, or the replica, that the other end sends no more; the other direction stays open."""
        with self._lock:
            pairs = list(self._pairs)
        for replica_end, leader_end in pairs:
            with contextlib.suppress(OSError):
                (leader_end if leader else replica_end).shutdown(socket.SHUT_WR)

    def calm(self) -> None:
        """No more disturbances; existing connections stay."""
        self.up.calm()
        self.down.calm()
        self.accept()

    def close(self) -> None:
        self.refuse()
        self.up.calm()
        self.down.calm()
        self.cut()

    # -- threads: one accepts, two pump for each connection ----------------------------------------------------
    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.target), timeout=5)
            except OSError:
                _close(near)
                continue
            far.settimeout(None)
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self.connections += 1
                self._pairs.append((near, far))
            for source, sink, flow in ((near, far, self.up), (far, near, self.down)):
                threading.Thread(target=self._pump, args=(source, sink, flow), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, flow: Flow) -> None:
        swallowing = False
        with contextlib.suppress(OSError, ValueError):
            while data := source.recv(CHUNK):
                flow.wait()
                if swallowing:
                    continue
                data, action = flow.take(data)
                _send(sink, data, flow)
                if action == "cut":
                    break
                swallowing = action == "swallow"
            else:
                flow.wait()
                sink.shutdown(socket.SHUT_WR)
                return
        _close(source, sink)


def _send(sink: socket.socket, data: bytes, flow: Flow) -> None:
    while (rate := flow.rate) is not None and data:
        size = max(1, int(rate * STEP))
        sink.sendall(data[:size])
        data = data[size:]
        time.sleep(size / rate)
    sink.sendall(data)


def _close(*sockets: socket.socket) -> None:
    for sock in sockets:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)  # wakes threads that read from it
        sock.close()
