"""S3 with TLS for tests of ``object_store``: the server of moto in a process of its own, which can be stopped."""

from __future__ import annotations

import ssl
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.tidelog.flows.peerkit import PeerServer, free_port, server_directory

SECRET = "s3cret-Pass"


class S3Peer:
    """A server with the bucket ``shop``. ``options``: ``storage_options`` that lead there."""

    def __init__(self, server: PeerServer, ca: Path) -> None:
        self.server = server
        self._url = f"https://127.0.0.1:{server.port}"
        self._trust = ssl.create_default_context(cafile=ca)
        self.options: dict[str, Any] = {
            "key": "tide", "secret": SECRET, "endpoint_url": self._url,
            "client_kwargs": {"region_name": "eu-west-1", "verify": str(ca)},
        }  # fmt: skip

    def files(self) -> Any:
        """A file system with blocking calls."""
        import s3fs

        return s3fs.S3FileSystem(**self.options, skip_instance_cache=True, use_listings_cache=False)

    def deny_after(self, calls: int) -> None:
        """Refuse unknown users after a number of calls. 1000: accept all again."""
        request = urllib.request.Request(
            f"{self._url}/moto-api/reset-auth", str(calls).encode(), {"Content-Type": "text/plain"}
        )
        with urllib.request.urlopen(request, timeout=30, context=self._trust) as answer:
            assert answer.status == 200


@contextmanager
def s3_peer() -> Iterator[S3Peer]:
    pytest.importorskip("s3fs", reason="s3fs is not installed (pip install 'tidelog[flows-objects]')")
    pytest.importorskip("moto.server", reason="moto is not installed (pip install -e '.[test]')")
    with server_directory("root") as directory:
        port = free_port()
        keys = ["--ssl", "--ssl-cert", str(directory / "server.pem"), "--ssl-key", str(directory / "server.key")]
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port), *keys]
        process = PeerServer(command, port)
        process.start()
        try:
            peer = S3Peer(process, directory / "ca.pem")
            peer.files().makedirs("shop", exist_ok=True)
            yield peer
        finally:
            process.kill()
