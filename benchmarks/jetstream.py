"""NATS JetStream for comparison: a nats-server with streams in files, and its protocol as far as publishing needs it.

The protocol is lines of text. A message is published with the name of an inbox; JetStream answers there when it has
written it: ``MSG inbox sid size``, then JSON with the stream and the number that the message got in it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks.servers import CORES, free_port

INBOX = "_INBOX.load"  # each connection has its own, with a number
ROOTS = "/usr/sbin:/usr/local/sbin"
PATIENCE = 60.0  # seconds for a start, and for a reply
HELLO = {"verbose": False, "pedantic": False, "tls_required": False, "lang": "python", "version": "0", "protocol": 1}


def installed(path: str | None = None) -> list[str]:
    """Return the command of the installed program, which Debian has where only root's PATH leads; empty if none is."""
    found = shutil.which("nats-server", path=path) or shutil.which("nats-server", path=ROOTS)
    return [found] if found else []


def version(command: Sequence[str]) -> str:
    said = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout
    return said.rpartition(":")[2].strip().lstrip("v")


class JetStream:
    """A running nats-server."""

    name = "nats"

    def __init__(self, program: Sequence[str], directory: Path) -> None:
        self.port = free_port()
        command = [*program, "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(directory)]
        before = os.sched_getaffinity(0)
        if len(CORES) > 1:  # before it starts: it makes its threads at once, and as many as it sees cores
            os.sched_setaffinity(0, {min(CORES)})
        try:
            self.process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=directory
            )
        finally:
            os.sched_setaffinity(0, before)
        self.pid = self.process.pid
        end = time.monotonic() + PATIENCE
        while True:
            try:
                self.connect().close()
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > end:
                    self.stop()
                    raise click.ClickException(f"{shlex.join(program)} did not start") from None
                time.sleep(0.01)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def connect(self, number: int = 0) -> socket.socket:
        """A connection that has introduced itself and listens to the inbox of that number."""
        sock = socket.create_connection(("127.0.0.1", self.port), PATIENCE)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Newer versions send a line of information after the first reply, so a second one is awaited.
        hello = b"CONNECT %b\r\nSUB %b.%d 1\r\nPING\r\nPING\r\n"
        sock.sendall(hello % (json.dumps(HELLO).encode(), INBOX.encode(), number))
        said = b""
        while said.count(b"PONG\r\n") < 2:
            data = sock.recv(1 << 16)
            if not data or b"-ERR" in data:
                sock.close()
                raise ConnectionError(f"nats-server refuses a client: {said + data!r}")
            said += data
        return sock

    def ask(self, subject: str, **what: object) -> dict[str, Any]:
        """A request to JetStream itself."""
        with self.connect() as sock:
            sock.sendall(publish(subject, json.dumps(what).encode() if what else b""))
            said = b""
            while (found := re.search(rb"^MSG \S+ \S+ (\d+)\r\n", said, re.MULTILINE)) is None or (
                len(said) < found.end() + int(found[1])
            ):
                data = sock.recv(1 << 16)
                if not data or said.startswith(b"-ERR"):
                    raise click.ClickException(f"nats-server: {said!r}")
                said += data
        answer: dict[str, Any] = json.loads(said[found.end() : found.end() + int(found[1])])
        if "error" in answer:
            raise click.ClickException(f"nats-server: {answer['error']}")
        return answer

    def create(self, stream: str) -> None:
        """A stream in files that keeps what is published to the subject of its name. All else is the default."""
        self.ask(f"$JS.API.STREAM.CREATE.{stream}", name=stream, subjects=[stream], storage="file", num_replicas=1)

    def length(self, stream: str) -> int:
        return int(self.ask(f"$JS.API.STREAM.INFO.{stream}")["state"]["messages"])


def publish(subject: str, payload: bytes, number: int = 0) -> bytes:
    """The message that makes JetStream answer to the inbox of that number."""
    return b"PUB %b %b.%d %d\r\n%b\r\n" % (subject.encode(), INBOX.encode(), number, len(payload), payload)


def acknowledgement(stream: str) -> re.Pattern[bytes]:
    """JetStream's answer to a message that it has written to that stream."""
    inbox, name = re.escape(INBOX).encode(), re.escape(stream).encode()
    return re.compile(rb'MSG %b\.\d+ 1 +\d+\r\n\{"stream": ?"%b", ?"seq": ?\d+\}\r\n' % (inbox, name))


@contextlib.contextmanager
def running(program: Sequence[str]) -> Iterator[JetStream]:
    """A server on an empty directory; gone with its data at the end."""
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-") as directory:
        server = JetStream(program, Path(directory))
        try:
            yield server
        finally:
            server.stop()
