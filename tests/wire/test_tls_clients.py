"""TLS and unix sockets, against a real process: redis-py, client certificates, and peers that speak plain text."""

from __future__ import annotations

import socket
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import trustme

from tests.wire.rawclient import Raw, pack
from tidelog.testing import Server, free_port, running_server


class Secured:
    """A process with tls-port and unixsocket, and what clients need."""

    def __init__(self, server: Server, tls_port: int, where: Path, authority: trustme.CA) -> None:
        self.server = server
        self.tls_port = tls_port
        self.where = where
        self.authority = authority
        self.socket = str(where / "s.sock")

    def redis(self, **options: object) -> redis.Redis:
        ca = str(self.where / "ca.pem")
        return redis.Redis(host="localhost", port=self.tls_port, ssl=True, ssl_ca_certs=ca, **options)  # type: ignore[arg-type]

    def raw(self) -> ssl.SSLSocket:
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        plain = socket.create_connection(("localhost", self.tls_port), timeout=10)
        return context.wrap_socket(plain, server_hostname="localhost", suppress_ragged_eofs=False)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    where = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(where / "ca.pem"))
    own, client = authority.issue_cert("localhost"), authority.issue_cert("client@example.org")
    for name, leaf in (("server", own), ("client", client)):
        leaf.cert_chain_pems[0].write_to_path(str(where / f"{name}.pem"))
        leaf.private_key_pem.write_to_path(str(where / f"{name}.key"))
    tls_port = free_port()
    with running_server(
        tls_port=tls_port, tls_cert_file=str(where / "server.pem"), tls_key_file=str(where / "server.key"),
        tls_ca_cert_file=str(where / "ca.pem"), tls_auth_clients="optional", unixsocket=str(where / "s.sock"),
        unixsocketperm="700", appendfsync="no", wal_size="1mb", bind="127.0.0.1 -::1",
    ) as server:  # fmt: skip
        yield Secured(server, tls_port, where, authority)


@pytest.mark.parametrize("proto", [2, 3])
def test_redis_py(secured: Secured, proto: int) -> None:
    with secured.redis(protocol=proto) as client:
        assert client.ping()
        assert client.set("k", b"x" * 3_000_000)
        assert client.get("k") == b"x" * 3_000_000
        pipe = client.pipeline()
        for _ in range(200):
            pipe.execute_command("TAPPEND", f"s{proto}", "f", "y" * 20_000)
        assert len(pipe.execute()) == 200
        assert len(client.execute_command("TRANGE", f"s{proto}", "-", "+")) == 200
        with client.pubsub() as listener:
            listener.subscribe("news")
            assert listener.get_message(timeout=5)
            client.publish("news", "hello")
            message = listener.get_message(timeout=5)
            assert message is not None
            assert message["data"] == b"hello"


def test_client_certificate(secured: Secured) -> None:
    cert, key = str(secured.where / "client.pem"), str(secured.where / "client.key")
    with secured.redis(ssl_certfile=cert, ssl_keyfile=key) as client:
        assert client.ping()


def test_client_certificates_are_demanded(secured: Secured, tmp_path: Path) -> None:
    where, port = secured.where, free_port()
    with running_server(
        tls_port=port, tls_cert_file=str(where / "server.pem"), tls_key_file=str(where / "server.key"),
        tls_ca_cert_file=str(where / "ca.pem"), tls_auth_clients="yes", wal_size="1mb",
    ) as server:  # fmt: skip
        demanding = Secured(server, port, where, secured.authority)
        cert, key = str(where / "client.pem"), str(where / "client.key")
        with demanding.redis(ssl_certfile=cert, ssl_keyfile=key) as client:
            assert client.ping()
        with demanding.redis(retry=None) as client, pytest.raises(redis.exceptions.ConnectionError):
            client.ping()
        foreign = trustme.CA().issue_cert("client@example.org")
        foreign.cert_chain_pems[0].write_to_path(str(tmp_path / "f.pem"))
        foreign.private_key_pem.write_to_path(str(tmp_path / "f.key"))
        options = {"ssl_certfile": str(tmp_path / "f.pem"), "ssl_keyfile": str(tmp_path / "f.key"), "retry": None}
        with demanding.redis(**options) as client, pytest.raises(redis.exceptions.ConnectionError):
            client.ping()
        with Raw(server.port) as plain:
            assert plain("PING") == b"PONG"
        assert not any("Traceback" in line for line in server.output)


@pytest.mark.parametrize("said", [b"PING\r\n", pack("SET", "k", "v"), b"\x16\x03\x01garbage", b""])
def test_plain_text_on_the_tls_port(secured: Secured, said: bytes) -> None:
    """The connection ends, nothing runs, nothing but a line is logged, everyone else goes on."""
    with socket.create_connection(("localhost", secured.tls_port), timeout=10) as sock:
        sock.sendall(said)
        sock.shutdown(socket.SHUT_WR)
        try:
            while sock.recv(4096):
                pass
        except ConnectionResetError:
            pass
    with secured.redis() as client:
        assert client.ping()
    assert not any("Traceback" in line or "Bug" in line for line in secured.server.output)


def test_replies_reach_a_client_that_hangs_up_at_once(secured: Secured) -> None:
    """As ``printf ... | openssl s_client`` may do: requests and close_notify in one segment."""
    context = ssl.create_default_context()
    secured.authority.configure_trust(context)
    to_us, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(to_us, to_server, server_hostname="localhost")
    with socket.create_connection(("localhost", secured.tls_port), timeout=10) as sock:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                sock.sendall(to_server.read())
                to_us.write(sock.recv(65536))
        tls.write(pack("PING") + pack("ECHO", "x" * 10_000) + pack("TREAD", "none", "", 1, "BLOCK", 0))
        with pytest.raises(ssl.SSLWantReadError):  # the server's close_notify isn't there yet
            tls.unwrap()
        sock.sendall(to_server.read())
        while data := sock.recv(65536):
            to_us.write(data)
    assert tls.read(100) == b"+PONG\r\n$10000\r\n" + b"x" * (100 - 15)
    with Raw(secured.server.port) as c:
        while b"blocked_clients:0" not in c("INFO", "clients") or b"connected_clients:1\r" not in c("INFO", "clients"):
            pass


def test_a_stuck_reader_is_killed(secured: Secured) -> None:
    with Raw(secured.server.port) as c:
        c.pipeline(*[("TAPPEND", "wide", "f", b"x" * 60_000)] * 300)
        with secured.raw() as sock:
            sock.sendall(pack("CLIENT", "SETNAME", "stuck") + pack("TRANGE", "wide", "-", "+"))
            sock.recv(100)
            assert c("CLIENT", "KILL", "SKIPME", "yes") >= 1
            while b"name=stuck" in c("CLIENT", "LIST"):
                pass
        c("DEL", "wide")


LAST: dict[str, tuple[bytes, bytes]] = {
    "a protocol error": (b"*1\r\n:1\r\n", b"-ERR Protocol error: expected '$', got ':'\r\n"),
    "QUIT": (pack("QUIT"), b"+OK\r\n"),
    "CLIENT KILL": (pack("CLIENT", "KILL", "SKIPME", "no", "TYPE", "normal"), b":"),
}


@pytest.mark.parametrize("last", LAST)
def test_nothing_is_read_after_the_end(secured: Secured, last: str) -> None:
    """A peer that ignores the server's close_notify and goes on sending is not listened to, as without TLS."""
    request, reply = LAST[last]
    with secured.raw() as sock:
        sock.sendall(request)
        assert sock.recv(1000).startswith(reply)
        assert accepted(sock) < 16 << 20  # what the buffers of the sockets take
    with secured.redis() as client:
        assert client.ping()


def test_nothing_is_read_from_a_client_that_is_refused(secured: Secured) -> None:
    with Raw(secured.server.port) as c:
        while b"connected_clients:1\r" not in c("INFO", "clients"):
            pass
        c("CONFIG", "SET", "maxclients", 1)
        with secured.raw() as sock:
            assert sock.recv(1000) == b"-ERR max number of clients reached\r\n"
            assert accepted(sock) < 16 << 20
        c("CONFIG", "SET", "maxclients", 1000)


def accepted(sock: ssl.SSLSocket) -> int:
    """Bytes that can be sent until the connection is gone."""
    sent, chunk = 0, b"x" * 65536
    with pytest.raises(OSError):  # noqa: PT012 - the loop is the subject
        while sent < 64 << 20:
            sent += sock.send(chunk)
    return sent


@pytest.mark.parametrize("last", ["a protocol error", "QUIT"])
def test_a_peer_that_reads_late_gets_the_last_reply(secured: Secured, last: str) -> None:
    """And the server's close_notify: without it, this client raises."""
    request, reply = LAST[last]
    with secured.raw() as sock:
        sock.sendall(pack("ECHO", b"x" * 4_000_000) + request + b"more" * 1000)
        got = b""
        while piece := sock.recv(1 << 16):
            got += piece
    assert got.endswith(b"x\r\n" + reply)


# -- unix socket -------------------------------------------------------------------------------------------------
def test_unix_socket(secured: Secured) -> None:
    assert stat.S_IMODE(Path(secured.socket).stat().st_mode) == 0o700
    with redis.Redis(unix_socket_path=secured.socket) as client:
        assert client.ping()
        line = client.client_info()
        assert line["addr"] == f"{secured.socket}:0"
        assert "U" in line["flags"]
        assert client.execute_command("TAPPEND", "unix", "a", b"x" * 2_000_000)
        assert len(client.execute_command("TRANGE", "unix", "-", "+")) == 1


def test_unix_socket_alone_and_over_a_dead_one(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with running_server(unixsocket=str(path), protected_mode="yes", wal_size="1mb") as server:
        with redis.Redis(unix_socket_path=str(path)) as client:
            assert client.ping()
        server.stop()
        assert not path.exists()
