"""Object stores that hang: a file whose open() blocks, a server that accepts connections and never answers."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def hanging(path: Path) -> Iterator[None]:
    """A file whose readers hang. Afterwards, it is as before."""
    content = path.read_bytes()
    path.unlink()
    os.mkfifo(path)
    try:
        yield
    finally:
        while True:
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))  # its readers continue
            except OSError:
                break  # there are none
        path.unlink()
        path.write_bytes(content)


@contextmanager
def silent_s3(first: bytes = b"") -> Iterator[str]:
    """The URL of a bucket whose server accepts connections, and never answers. ``first``: its only reply, to the first
    request."""
    s3fs = pytest.importorskip("s3fs", reason="no s3fs here (pip install -e '.[test]')")
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        patch.setenv("AWS_ACCESS_KEY_ID", "a")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "b")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        s3fs.S3FileSystem.clear_instance_cache()
        opened: list[socket.socket] = []
        if first:
            threading.Thread(target=_answer, args=(server, first, opened), daemon=True).start()
        try:
            yield "s3://bucket/tide"
        finally:
            for connection in opened:
                connection.close()
            server.settimeout(0.01)
            with suppress(OSError):
                while True:
                    server.accept()[0].close()
            s3fs.S3FileSystem.clear_instance_cache()


def _answer(server: socket.socket, first: bytes, opened: list[socket.socket]) -> None:
    connection = server.accept()[0]
    opened.append(connection)
    request = b""
    while b"\r\n\r\n" not in request:
        request += connection.recv(4096)
    connection.sendall(first)
