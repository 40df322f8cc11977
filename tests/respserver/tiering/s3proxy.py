"""A proxy in front of moto's S3: refuses requests, changes headers, and changes what a read returns."""

from __future__ import annotations

import http.client
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from tests.tidelog.jobs.s3kit import s3_bucket

REFUSAL = "<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>{text}</Message></Error>"
TEXTS = {
    "ExpiredToken": "The provided token has expired.",
    "RequestTimeTooSkewed": "The difference between the request time and the current time is too large.",
}
HOP = {"connection", "transfer-encoding", "keep-alive"}


class S3Proxy:
    """What the proxy does. A test changes the attributes meanwhile."""

    def __init__(self, upstream: str) -> None:
        self.upstream = urlsplit(upstream).netloc
        self.url = ""
        #: Returns the error code with which a request is refused; "": it is not.
        self.refusal: Callable[[Message], str] = lambda _headers: ""
        #: Returns the body of a response to GET, given the path and the body.
        self.change: Callable[[str, bytes], bytes] = lambda _path, body: body
        self.headers: dict[str, str] = {}  # that replace those of responses
        self.refused = 0
        self.answers = threading.Event()  # otherwise, it accepts requests and is silent, as if its process was stopped
        self.answers.set()
        self.silent = 0  # requests that had to wait


def _handler(proxy: S3Proxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _forward(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            if not proxy.answers.is_set():
                proxy.silent += 1
                proxy.answers.wait()
            code = proxy.refusal(self.headers)
            if code:
                proxy.refused += 1
                self._send(403, {"Content-Type": "application/xml"}, _refusal(code))
                return
            upstream = http.client.HTTPConnection(proxy.upstream, timeout=60)
            try:
                upstream.request(self.command, self.path, body, dict(self.headers.items()))
                response = upstream.getresponse()
                content = response.read()
                headers = {name: value for name, value in response.getheaders() if name.lower() not in HOP}
                if self.command == "GET" and response.status < 300:
                    before, content = content, proxy.change(urlsplit(self.path).path, content)
                    if content != before:  # the driver would report a checksum that does not match
                        headers = {name: value for name, value in headers.items() if "checksum" not in name.lower()}
                self._send(response.status, headers, content)
            finally:
                upstream.close()

        def _send(self, status: int, headers: dict[str, str], content: bytes) -> None:
            self.send_response_only(status)
            head = self.command == "HEAD"
            for name, value in headers.items():
                if name.title() not in proxy.headers and (head or name.lower() != "content-length"):
                    self.send_header(name, value)
            for name, value in proxy.headers.items():
                self.send_header(name, value)
            if not head:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if not head:
                self.wfile.write(content)

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _forward  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def _refusal(code: str) -> bytes:
    return REFUSAL.format(code=code, text=TEXTS[code]).encode()


@contextmanager
def s3_proxy() -> Iterator[tuple[S3Proxy, str]]:
    """A proxy, and the URL of a bucket behind it. The environment leads to the proxy meanwhile."""
    with s3_bucket() as bucket, pytest.MonkeyPatch.context() as patch:
        proxy = S3Proxy(os.environ["AWS_ENDPOINT_URL"])
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(proxy))
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        proxy.url = f"http://127.0.0.1:{server.server_port}"
        patch.setenv("AWS_ENDPOINT_URL", proxy.url)
        try:
            yield proxy, bucket
        finally:
            proxy.answers.set()
            server.shutdown()
            thread.join()
            server.server_close()
