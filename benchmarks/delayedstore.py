"""An S3 server that answers each request after a delay: moto's, behind a proxy, as two processes.

Rule 1: a response begins ``delay`` seconds after its request has arrived, or later if the response takes longer.
Rule 2: moto is slow, because it needs milliseconds of CPU time per request. So the proxy reads each history object from
moto once, and then answers its GETs from memory. History objects never change. All other requests go to moto.
Rule 3: the proxy reports how late it was, so that its own share is known (``share``).
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import multiprocessing
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from typing import NamedTuple

import click

from benchmarks.servers import TIED, free_port

BUCKET = "bench"
PATIENCE = 60.0  # seconds until moto must have answered
KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
HOP = ("connection", "transfer-encoding", "keep-alive", "content-length", "expect", "host")
REPORT = "/report"  # the path of the proxy's report
RANGE = re.compile(r"bytes=(\d+)-(\d+)")


class Share(NamedTuple):
    """What the proxy did since the last report."""

    late: list[float]  # for each GET that was answered from memory, by how many seconds the response was late
    seconds: float  # of CPU time


class Proxy:
    """Forwards requests, and answers reads of objects."""

    def __init__(self, upstream: int, delay: float) -> None:
        self._upstream = upstream  # port
        self._delay = delay
        self._objects: dict[str, tuple[dict[str, str], bytes]] = {}  # path -> headers and content
        self._late: list[float] = []
        self._reported = 0.0  # seconds of CPU time

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a connection."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                due = time.perf_counter() + self._delay
                line, *lines = head.rstrip("\r\n").split("\r\n")
                method, path, _ = line.split(" ")
                headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in lines)}
                if headers.get("expect", "").lower() == "100-continue":
                    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                status, out, content = await self._answer(method, path, headers, body)
                await asyncio.sleep(due - time.perf_counter())
                is_read = method == "GET" and path in self._objects
                if is_read:
                    self._late.append(time.perf_counter() - due)
                out.setdefault("content-length", str(len(content)))
                fields = "".join(f"{name}: {value}\r\n" for name, value in out.items())
                writer.write(f"HTTP/1.1 {status} -\r\n{fields}\r\n".encode("latin-1") + content)
                await writer.drain()
        writer.close()

    async def _answer(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        if path == REPORT:
            return 200, {}, self._report()
        wanted = RANGE.fullmatch(headers.get("range", ""))
        if method != "GET" or "/objects/" not in path or wanted is None:
            return await asyncio.to_thread(self._forward, method, path, headers, body)
        if path not in self._objects:
            whole = {name: value for name, value in headers.items() if name != "range"}
            status, out, content = await asyncio.to_thread(self._forward, method, path, whole, body)
            if status != 200:
                return status, out, content
            self._objects[path] = {name: value for name, value in out.items() if "checksum" not in name}, content
        out, content = self._objects[path]
        start, end = int(wanted[1]), min(int(wanted[2]), len(content) - 1)
        return 206, out | {"content-range": f"bytes {start}-{end}/{len(content)}"}, content[start : end + 1]

    def _report(self) -> bytes:
        now = time.process_time()
        report = {"late": self._late, "seconds": now - self._reported}
        self._late, self._reported = [], now
        return json.dumps(report).encode()

    def _forward(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        """Send a request to moto. Any thread."""
        connection = http.client.HTTPConnection("127.0.0.1", self._upstream, timeout=PATIENCE)
        try:
            sent = {name: value for name, value in headers.items() if name not in HOP}
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            content = response.read()
            out = {name.lower(): value for name, value in response.getheaders() if name.lower() not in HOP}
            if method == "HEAD" and (length := response.getheader("content-length")):
                out["content-length"] = length
            return response.status, out, content
        finally:
            connection.close()


def _proxy(port: int, upstream: int, delay: float, ended: Event) -> None:
    """Run the proxy until ``ended``. In a process of its own."""

    async def run() -> None:
        async with await asyncio.start_server(Proxy(upstream, delay).serve, "127.0.0.1", port):
            await asyncio.to_thread(ended.wait)

    import uvloop

    uvloop.run(run())


def share() -> Share:
    """Return what the proxy did since the last call."""
    with urllib.request.urlopen(os.environ["AWS_ENDPOINT_URL"] + REPORT) as response:
        return Share(**json.load(response))


@contextmanager
def delayed_store(delay: float) -> Iterator[str]:
    """Run an S3 server, and return the URL of a bucket. The environment of this process leads there meanwhile.

    ``delay``: in seconds.

    Raises:
        click.ClickException: moto is not installed, or does not start.
    """
    upstream, port = free_port(), free_port()
    command = [*TIED, sys.executable, "-m", "moto.server", "-p", str(upstream)]
    moto = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ended = multiprocessing.Event()
    proxy = multiprocessing.Process(target=_proxy, args=(port, upstream, delay, ended), daemon=True)
    before = dict(os.environ)
    try:
        _create_bucket(moto, upstream)
        proxy.start()
        os.environ.update(KEYS, AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}")
        yield f"s3://{BUCKET}/tide"
    finally:
        os.environ.clear()
        os.environ.update(before)
        ended.set()
        if proxy.pid is not None:
            proxy.join()
        moto.kill()
        moto.wait()


def _create_bucket(moto: subprocess.Popen[bytes], port: int) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and moto.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        with contextlib.suppress(OSError):
            connection.request("PUT", f"/{BUCKET}")
            if connection.getresponse().status == 200:
                return
        connection.close()
        time.sleep(0.1)
    raise click.ClickException("moto's S3 server does not start: pip install -e '.[test]'")
