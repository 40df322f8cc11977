"""A proxy before one etcd that understands requests: it can lose a request, or the reply to it."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Literal

LONGEST: Final = 30.0  # seconds for a connection to etcd, and for the messages of a watch
Loss = Literal["", "request", "reply"]
Judge = Callable[[str, bytes], Loss]


def written(path: str, body: bytes) -> tuple[str, bytes]:
    """Return the key that a request changes, and its new value; empty if it changes none."""
    if not path.endswith("/kv/txn"):
        return "", b""
    put = json.loads(body)["success"][0].get("request_put", {})
    return base64.b64decode(put.get("key", "")).decode(), base64.b64decode(put.get("value", ""))


class EtcdProxy:
    """Listens on ``port``. ``judge`` says what is lost, given the path of a request and its body."""

    def __init__(self, target: int) -> None:
        self.judge: Judge = lambda path, body: ""
        self.lost = 0  # requests and replies
        self.closed = False  # nothing passes
        self._open: set[socket.socket] = set()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self.close_connection = proxy.closed
                loss = "request" if proxy.closed else proxy.judge(self.path, body)
                proxy._open.add(self.connection)
                try:
                    if loss == "request":
                        proxy.lost += 1
                        self.close_connection = True
                    else:
                        self._pass(body, loss == "reply")
                except (OSError, http.client.HTTPException):  # one of both ends has closed its connection
                    self.close_connection = True
                finally:
                    proxy._open.discard(self.connection)

            def _pass(self, body: bytes, lost: bool) -> None:
                headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
                with closing(http.client.HTTPConnection("127.0.0.1", target, timeout=LONGEST)) as etcd:
                    etcd.request("POST", self.path, body, headers)
                    with etcd.getresponse() as reply:
                        if lost:
                            reply.read()
                            proxy.lost += 1
                            self.close_connection = True
                            return
                        self.send_response(reply.status)
                        self.send_header("Content-Type", "application/json")
                        self.send_header("Transfer-Encoding", "chunked")
                        self.end_headers()
                        while data := reply.read1(1 << 16):  # a watch sends for as long as it is open
                            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
                        self.wfile.write(b"0\r\n\r\n")

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def cut(self) -> None:
        """Close all connections, and let no new one pass."""
        self.closed = True
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.cut()
        self._server.shutdown()
        self._server.server_close()
