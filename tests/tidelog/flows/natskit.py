"""nats-server for tests of ``nats``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.tidelog.flows.peerkit import PeerServer, free_port, program, server_directory

SECRET = "s3cret-Pass"


class NatsPeer:
    """A server with JetStream and the user ``tide``, who may not use ``forbidden``."""

    def __init__(self, server: PeerServer, scheme: str, ca: str) -> None:
        self.server = server
        self.ca = ca
        self.url = f"{scheme}://tide:{SECRET}@127.0.0.1:{server.port}"

    def stream(self, name: str, *subjects: str, **options: Any) -> None:
        """Create a stream."""
        asyncio.run(self._stream(name, list(subjects), options))

    async def _stream(self, name: str, subjects: list[str], options: dict[str, Any]) -> None:
        import nats

        connection = await nats.connect(self.url)
        await connection.jetstream().add_stream(name=name, subjects=subjects, **options)
        await connection.close()


@contextmanager
def nats_peer(*, tls: bool = False) -> Iterator[NatsPeer]:
    pytest.importorskip("nats", reason="nats-py is not installed (pip install 'tidelog[flows-nats]')")
    server = program("nats-server", "nats-server")
    with server_directory("root") as directory:
        port = free_port()
        secure = f'tls {{ cert_file: "{directory}/server.pem", key_file: "{directory}/server.key" }}\n' if tls else ""
        (directory / "nats.conf").write_text(
            f'listen: "127.0.0.1:{port}"\n{secure}max_payload: 20000\n'
            f'jetstream {{ store_dir: "{directory}/js", max_mem: 64MB, max_file: 64MB }}\n'
            f'authorization {{ users: [{{ user: tide, password: "{SECRET}", permissions: '
            f'{{ publish: {{ deny: "forbidden" }}, subscribe: {{ deny: "forbidden" }} }} }}] }}\n'
        )
        process = PeerServer([server, "-c", str(directory / "nats.conf")], port)
        process.start()
        try:
            yield NatsPeer(process, "tls" if tls else "nats", str(directory / "ca.pem"))
        finally:
            process.kill()
