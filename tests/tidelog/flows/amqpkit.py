"""RabbitMQ for tests of ``amqp``."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.tidelog.flows.peerkit import PeerServer, free_port, program, server_directory

SECRET = "s3cret-Pass"


class Rabbit:
    """A broker with the user ``tide``; ``tls_url`` is with TLS."""

    def __init__(self, server: PeerServer, tls_port: int, ca: str) -> None:
        self.server = server
        self.url = f"amqp://tide:{SECRET}@127.0.0.1:{server.port}"
        self.tls_url = f"amqps://tide:{SECRET}@127.0.0.1:{tls_port}"
        self.ca = ca


@contextmanager
def rabbit() -> Iterator[Rabbit]:
    pytest.importorskip("aio_pika", reason="aio-pika is not installed (pip install 'tidelog[flows-amqp]')")
    server = program("rabbitmq-server", "rabbitmq-server", "/usr/lib/rabbitmq/bin")
    epmd = program("epmd", "erlang-base")
    if os.geteuid() == 0:
        server = "/usr/lib/rabbitmq/bin/rabbitmq-server"  # the script on the path changes the user by itself
    with server_directory("rabbitmq") as directory:
        port, tls_port, names, nodes = (free_port() for _ in range(4))
        (directory / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{port}\nlisteners.ssl.1 = 127.0.0.1:{tls_port}\n"
            f"ssl_options.certfile = {directory}/server.pem\nssl_options.keyfile = {directory}/server.key\n"
            f"default_user = tide\ndefault_pass = {SECRET}\nloopback_users = none\n"
        )
        (directory / "plugins").write_text("[].\n")
        environment: Any = {
            "ERL_EPMD_PORT": str(names), "ERL_EPMD_ADDRESS": "127.0.0.1", "HOME": str(directory),
            "RABBITMQ_NODENAME": f"t{port}@localhost", "RABBITMQ_MNESIA_BASE": f"{directory}/data",
            "RABBITMQ_LOG_BASE": f"{directory}/log", "RABBITMQ_LOGS": "-", "RABBITMQ_DIST_PORT": str(nodes),
            "RABBITMQ_CONFIG_FILE": f"{directory}/rabbitmq.conf",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{directory}/plugins",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none",
        }  # fmt: skip
        # epmd, which maps names of nodes to ports, would otherwise remain as a daemon.
        mapper = subprocess.Popen(
            [epmd, "-port", str(names), "-address", "127.0.0.1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        peer = PeerServer([server], port, user="rabbitmq", **environment)
        try:
            peer.start()
            yield Rabbit(peer, tls_port, str(directory / "ca.pem"))
        finally:
            peer.kill()
            mapper.kill()
            mapper.wait()
