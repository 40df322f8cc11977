"""What stands against a move is said in one clear line, and nothing is changed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme

from tests.tidelog.moving.movekit import Peer, fill, moved, running_redis, tidelog
from tidelog.testing import free_port


def refused(*words: object) -> str:
    result = tidelog("import", *words, code=1)
    assert result.stderr.startswith("Error: ")
    assert "Traceback" not in result.output
    return result.stderr


@pytest.mark.parametrize("url", ["localhost:6379", "http://localhost", "redis://", "orders"])
def test_no_url(target: Peer, url: str) -> None:
    assert "is not the URL of a server" in refused(url, "--url", target.url)


def test_a_database_that_is_no_number(target: Peer) -> None:
    assert "'first' is not the number of a database" in refused("redis://localhost/first", "--url", target.url)


def test_nobody_answers(target: Peer) -> None:
    url = f"redis://user:secret@127.0.0.1:{free_port()}"
    output = refused(url, "--url", target.url)
    assert "no answer" in output
    assert "secret" not in output


@contextmanager
def other_server(answer: bytes) -> Iterator[str]:
    """A server that says this to whoever connects."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(answer)
                connection.recv(1000)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def test_a_source_that_is_no_redis(target: Peer) -> None:
    with other_server(b"HTTP/1.1 400 Bad Request\r\n\r\n") as url:
        assert "does not speak RESP" in refused(url, "--url", target.url)


def test_a_server_whose_info_is_another(target: Peer) -> None:
    with other_server(b"+OK\r\n+OK\r\n$7\r\nno:info\r\n") as url:
        assert "is no Redis: its INFO tells no version" in refused(url, "--url", target.url)


def test_the_same_server(source: Peer) -> None:
    output = refused(source.url, "--url", f"redis://localhost:{source.port}/1")
    assert "are the same server" in output


def test_a_replica_as_target(source: Peer, tmp_path: Path) -> None:
    with running_redis(tmp_path, "--replicaof", "127.0.0.1", str(source.port)) as replica:
        assert "is a replica, and can't be written to" in refused(source.url, "--url", replica.url)


def test_a_replica_as_source(source: Peer, target: Peer, tmp_path: Path) -> None:
    source.client.xadd("s", {"a": "1"})
    with running_redis(tmp_path, "--replicaof", "127.0.0.1", str(source.port)) as replica:
        source.client.wait(1, 20_000)
        assert moved(replica.url, target.url)["verdict"] == "same"


def test_a_cluster(target: Peer, tmp_path: Path) -> None:
    with running_redis(tmp_path, "--cluster-enabled", "yes") as node:
        assert "is a node of a Redis Cluster" in refused(node.url, "--url", target.url)


def test_wrong_passwords_are_not_told(target: Peer, tmp_path: Path) -> None:
    with running_redis(tmp_path, "--requirepass", "s3cret") as locked:
        place = f"127.0.0.1:{locked.port}"
        assert "NOAUTH" in refused(locked.url, "--url", target.url)
        output = refused(f"redis://:wr0ng@{place}", "--url", target.url)
        assert "WRONGPASS" in output
        assert "wr0ng" not in output
        file = tmp_path / "password"
        file.write_text("s3cret\n")
        report = moved(locked.url, target.url, "--password-file", file)
        assert report["source"].startswith(place) or report["source"].startswith(f"redis://{place}")
        for url in (f"redis://:s3cret@{place}", f"redis://default:s3cret@{place}/0"):
            assert "s3cret" not in tidelog("import", url, "--url", target.url).output


def test_an_empty_password_file(source: Peer, target: Peer, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("\n")
    assert "is empty" in refused(source.url, "--url", target.url, "--password-file", file)


@pytest.mark.parametrize(
    ("side", "denied", "named"),
    [
        ("source", "-scan", "scan"),
        ("source", "-xinfo", "xinfo"),
        ("source", "-xrange", "xrange"),
        ("source", "-xpending", "xpending"),
        ("source", "-info", "info"),
        ("target", "-xadd", "xadd"),
        ("target", "-xsetid", "xsetid"),
        ("target", "-xgroup", "xgroup"),
        ("target", "-xclaim", "xclaim"),
        ("target", "-set", "set"),
    ],
)
def test_what_is_not_permitted_is_named(source: Peer, target: Peer, side: str, denied: str, named: str) -> None:
    peer = source if side == "source" else target
    ask = source.client.execute_command
    ask("XADD", "s", "1-0", "a", "1")
    ask("XGROUP", "CREATE", "s", "g", "0")
    ask("XREADGROUP", "GROUP", "g", "ann", "STREAMS", "s", ">")
    ask("XSETID", "s", "5-0", "ENTRIESADDED", "7", "MAXDELETEDID", "3-0")
    ask("SET", "k", "v")
    peer.client.execute_command("ACL", "SETUSER", "mover", "on", ">pw", "~*", "+@all", denied)
    try:
        url = f"redis://mover:pw@127.0.0.1:{peer.port}"
        urls = (url, target.url) if side == "source" else (source.url, url)
        output = refused(urls[0], "--url", urls[1])
        assert "NOPERM" in output
        assert f"refuses {named.upper()}" in output
        assert f"the {side} " in output
    finally:
        peer.client.execute_command("ACL", "DELUSER", "mover")


def test_the_permissions_that_the_docs_name_are_enough(source: Peer, target: Peer) -> None:
    text = (Path(__file__).parents[3] / "docs" / "moving.md").read_text()
    rules = {line.split()[2]: line.split()[3:] for line in text.splitlines() if line.strip().startswith("ACL SETUSER")}
    assert rules.keys() == {"mover-out", "mover-in"}
    source.client.execute_command("ACL", "SETUSER", "mover-out", *rules["mover-out"])
    target.client.execute_command("ACL", "SETUSER", "mover-in", *rules["mover-in"])
    fill(source.client)
    source.client.hset("h", "a", "b")
    passwords = {name: next(word[1:] for word in words if word[0] == ">") for name, words in rules.items()}
    one = f"redis://mover-out:{passwords['mover-out']}@127.0.0.1:{source.port}"
    other = f"redis://mover-in:{passwords['mover-in']}@127.0.0.1:{target.port}"
    try:
        assert moved(one, other)["verdict"] == "same"
        source.client.xdel("orders", "10-1")
        source.client.xtrim("trimmed", maxlen=1, approximate=False)
        source.client.xgroup_destroy("made", "waiting")
        source.client.delete("lock")
        assert moved(one, other, "--resume", "--follow", "--until-idle", "0.1")["verdict"] == "same"
        assert moved(one, other, "--replace")["verdict"] == "same"
    finally:
        source.client.execute_command("ACL", "DELUSER", "mover-out")
        target.client.execute_command("ACL", "DELUSER", "mover-in")


def test_options_that_contradict_each_other(source: Peer, target: Peer) -> None:
    tidelog("import", source.url, "--resume", "--replace", code=2)
    tidelog("import", source.url, "--until-idle", "1", code=2)


def test_tls(target: Peer, tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    port = free_port()
    files = {"--tls-cert-file": "cert.pem", "--tls-key-file": "key.pem", "--tls-ca-cert-file": "ca.pem"}
    options = [word for name, file in files.items() for word in (name, str(tmp_path / file))]
    with running_redis(tmp_path, "--tls-port", str(port), *options, "--tls-auth-clients", "no") as secure:
        secure.client.xadd("s", {"a": "1"})
        url = f"rediss://localhost:{port}"
        assert "CERTIFICATE_VERIFY_FAILED" in refused(url, "--url", target.url)
        assert moved(f"{url}/0?ssl_ca_certs={tmp_path / 'ca.pem'}", target.url)["verdict"] == "same"
        assert moved(f"{url}?ssl_cert_reqs=none", target.url, "--replace")["verdict"] == "same"


class TestResume:
    """--resume goes on only with a copy."""

    def test_entries_that_differ(self, source: Peer, target: Peer) -> None:
        for client, value in ((source.client, "1"), (target.client, "2")):
            client.xadd("s", {"a": value}, id="1-0")
        assert "entry 1-0 at the target is not the one" in refused(source.url, "--url", target.url, "--resume")
        assert target.client.xrange("s") == [(b"1-0", {b"a": b"2"})]

    def test_a_target_that_is_ahead(self, source: Peer, target: Peer) -> None:
        source.client.xadd("s", {"a": "1"}, id="1-0")
        target.client.xadd("s", {"a": "1"}, id="2-0")
        assert "2-0, is above the source's, 1-0" in refused(source.url, "--url", target.url, "--resume")

    def test_a_target_with_a_hole(self, source: Peer, target: Peer) -> None:
        for n in (1, 2, 3):
            source.client.xadd("s", {"a": "1"}, id=f"{n}-0")
        target.client.xadd("s", {"a": "1"}, id="1-0")
        target.client.execute_command("XSETID", "s", "3-0")
        assert "the target lacks entries" in refused(source.url, "--url", target.url, "--resume")

    def test_another_type(self, source: Peer, target: Peer) -> None:
        source.client.xadd("s", {"a": "1"}, id="1-0")
        target.client.set("s", "text")
        assert "at the target, s are of another type" in refused(source.url, "--url", target.url, "--resume")
