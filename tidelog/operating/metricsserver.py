"""The HTTP server of ``/metrics``: one thread per connection, with limits.

Rule 1: at most CONNECTIONS are open; further ones are closed. A peer that sends nothing for SILENT seconds is
        disconnected. If request and response take longer than WHOLE, the peer is disconnected when another connects.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

log = logging.getLogger(__name__)
CONNECTIONS: Final = 32
SILENT: Final = 5.0  # s
WHOLE: Final = 15.0  # s


class _Handler(WSGIRequestHandler):
    timeout = SILENT

    def log_message(self, *_: Any) -> None:
        """Do not log scrapes."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, address: Any, family: socket.AddressFamily) -> None:
        self.address_family = family
        self._lock = threading.Lock()
        self._open: dict[Any, float] = {}  # by connection: when it was opened
        super().__init__(address, _Handler)

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002 - socketserver's signature
        now = time.monotonic()
        with self._lock:
            late = [each for each, since in self._open.items() if now - since > WHOLE]
            if len(self._open) - len(late) >= CONNECTIONS:
                return False
            self._open[request] = now
        for each in late:
            _disconnect(each)
        return True

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a peer that has disconnected or was too slow."""


def _disconnect(request: Any) -> None:
    try:
        request.shutdown(socket.SHUT_RDWR)
    except OSError:  # it is closed already
        return


def serve(app: Callable[..., Any], port: int, host: str) -> tuple[WSGIServer, threading.Thread]:
    """Start a server; returns it and its thread. Raises OSError if the address is not available."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    server = _Server(address, family)
    server.set_app(app)
    thread = threading.Thread(target=server.serve_forever, name="tidelog-metrics-http", daemon=True)
    thread.start()
    return server, thread


@contextmanager
def serving(collector: Any, port: int, host: str) -> Iterator[int]:
    """Serve ``/metrics`` of a collector and of the default registry; yields the port, which is free if ``port`` is 0.

    Raises ImportError without prometheus-client, and OSError if the port is in use.
    """
    import prometheus_client

    registry = prometheus_client.REGISTRY
    server, thread = serve(prometheus_client.make_wsgi_app(registry), port, host)
    registry.register(collector)
    try:
        log.info("metrics: http://%s:%d/metrics", host, server.server_port)
        yield int(server.server_port)
    finally:
        registry.unregister(collector)
        server.shutdown()
        server.server_close()
        thread.join()
