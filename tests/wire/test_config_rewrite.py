"""CONFIG REWRITE against clients that want more in the file than they may set."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.wire.rawclient import Raw
from tidelog.testing import Server

SMUGGLED = 'enable-debug-command yes\nrequirepass ""\nlogfile {log}\n#'


def started(directory: Path, conf: Path) -> Server:
    """A server whose only password and DEBUG settings are those of the file."""
    return Server(directory, {}, [sys.executable, "-P", "-m", "_tidelog_server", str(conf)])


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("REPLICAOF", "127.0.0.1 1\n{more}", 1),
        ("CONFIG", "SET", "replica-announce-ip", "10.0.0.1\n{more}"),
        ("CONFIG", "SET", "masterauth", "x\n{more}"),
        ("CONFIG", "SET", "masteruser", 'x"\n{more}'),
        ("CONFIG", "SET", "dbfilename", "x\n{more}"),
        ("CONFIG", "SET", "search-x\n{more}", "x"),
        ("CONFIG", "SET", "shutdown-on-sigint", "default\n{more}"),
    ],
    ids=lambda words: words[0] if words[0] == "REPLICAOF" else words[2].split("\n")[0],
)
def test_nothing_is_smuggled_into_the_file(tmp_path: Path, words: tuple[str | int, ...]) -> None:
    conf, log = tmp_path / "a.conf", tmp_path / "log"
    conf.write_text("requirepass secret\n")
    more = SMUGGLED.format(log=log)
    server = started(tmp_path / "data", conf)
    try:
        server.start()
        with Raw(server.port) as client:
            assert client("AUTH", "secret") == b"OK"
            client(*[word.replace("{more}", more) if isinstance(word, str) else word for word in words])
            client("CONFIG", "REWRITE")  # it may be refused, as the words before it may
        server.restart()
        with Raw(server.port) as client:
            assert client("PING") == "NOAUTH Authentication required."
            assert client("AUTH", "secret") == b"OK"
            assert client("CONFIG", "GET", "enable-debug-command") == [b"enable-debug-command", b"no"]
            assert client("CONFIG", "GET", "logfile") == [b"logfile", b""]
            assert client("CONFIG", "REWRITE") == b"OK"
        assert not log.exists()
    finally:
        server.kill()


@pytest.mark.slow
def test_what_was_set_is_set_after_a_restart(tmp_path: Path) -> None:
    conf = tmp_path / "a.conf"
    conf.write_text("# mine\ndbfilename a.rdb\n")
    wanted = {
        b"masterauth": b'a "b\n\xff\x00', b"masteruser": b"# x", b"replica-announce-ip": b"replica.example",
        b"dbfilename": b"b c.rdb", b"search-timeout": b"5", b"client-output-buffer-limit": b"normal 1 2 3",
    }  # fmt: skip
    server = started(tmp_path / "data", conf)
    try:
        server.start()
        with Raw(server.port) as client:
            assert client("CONFIG", "SET", *[word for pair in wanted.items() for word in pair]) == b"OK"
            before = client("CONFIG", "GET", "*")
            assert client("CONFIG", "REWRITE") == b"OK"
        written = conf.read_bytes()
        server.restart()
        with Raw(server.port) as client:
            assert client("CONFIG", "GET", "*") == before
            assert client("CONFIG", "REWRITE") == b"OK"
        assert conf.read_bytes() == written
        assert written.count(b"dbfilename") == 1
    finally:
        server.kill()
