"""Mosquitto for tests of ``mqtt``."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.tidelog.flows.peerkit import PeerServer, free_port, program, server_directory

SECRET = "s3cret-Pass"


class Broker:
    """A broker with the user ``tide``; ``port`` is without TLS, ``tls_port`` with it."""

    def __init__(self, server: PeerServer, tls_port: int, ca: str) -> None:
        self.server = server
        self.tls_port = tls_port
        self.ca = ca

    @property
    def url(self) -> str:
        return f"mqtt://tide:{SECRET}@127.0.0.1:{self.server.port}"

    @property
    def tls_url(self) -> str:
        return f"mqtts://tide:{SECRET}@127.0.0.1:{self.tls_port}"


@contextmanager
def broker() -> Iterator[Broker]:
    pytest.importorskip("aiomqtt", reason="aiomqtt is not installed (pip install 'tidelog[flows-mqtt]')")
    mosquitto = program("mosquitto", "mosquitto")
    passwords = program("mosquitto_passwd", "mosquitto")
    with server_directory("mosquitto") as directory:
        port, tls_port = free_port(), free_port()
        subprocess.run([passwords, "-b", "-c", directory / "users", "tide", SECRET], check=True, capture_output=True)
        (directory / "users").chmod(0o644)
        (directory / "rights").write_text("user tide\ntopic readwrite #\ntopic deny forbidden/#\n")
        (directory / "mosquitto.conf").write_text(
            f"listener {port} 127.0.0.1\n"
            f"listener {tls_port} 127.0.0.1\n"
            f"certfile {directory}/server.pem\nkeyfile {directory}/server.key\n"
            f"per_listener_settings false\nallow_anonymous false\npassword_file {directory}/users\n"
            f"acl_file {directory}/rights\nmax_packet_size 20000\nmax_queued_messages 0\n"
            f"persistence true\npersistence_location {directory}/\nautosave_interval 1\nautosave_on_changes true\n"
        )
        server = PeerServer([mosquitto, "-c", str(directory / "mosquitto.conf")], port)
        server.start()
        try:
            yield Broker(server, tls_port, str(directory / "ca.pem"))
        finally:
            server.kill()
