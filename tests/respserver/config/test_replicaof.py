"""``replicaof`` and the other directives of replication: in files, flags, CONFIG SET and CONFIG REWRITE."""

from __future__ import annotations

from pathlib import Path

import pytest

from resp.errors import CommandError
from respserver.config.conffile import ConfigError
from respserver.config.config import Config
from respserver.config.rewrite import REWRITE_MARK


def loaded(path: Path, text: str, *flags: str) -> Config:
    path.write_text(text)
    return Config.load([str(path), *flags])


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("replicaof 10.0.0.1 6379", ["10.0.0.1", "6379"]),
        ("slaveof leader.example 07000", ["leader.example", "7000"]),
        ("REPLICAOF ::1 1", ["::1", "1"]),
        ("replicaof no one", []),
        ("replicaof NO ONE", []),
        ("replicaof h 1\nreplicaof no one", []),
        ("replicaof no one\nslaveof h 1", ["h", "1"]),
    ],
)
def test_valid_lines(tmp_path: Path, line: str, value: list[str]) -> None:
    config = loaded(tmp_path / "a.conf", line + "\n")
    assert config.replicaof == value
    assert config.get([b"replicaof"]) == [("replicaof", " ".join(value))]
    assert config.warnings == []


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("replicaof", "wrong number of arguments"),
        ("replicaof h", "wrong number of arguments"),
        ('replicaof ""', "wrong number of arguments"),
        ("replicaof h 1 2", "wrong number of arguments"),
        ("replicaof h x", "Invalid master port"),
        ("replicaof h -1", "Invalid master port"),
        ("replicaof h 65536", "Invalid master port"),
        ("replicaof no two", "Invalid master port"),
        ('replicaof "a b" 1', "Invalid host name or address"),
        ('replicaof "" 1', "Invalid host name or address"),
        ('replicaof "h\\nport 1" 1', "Invalid host name or address"),
        ('replica-announce-ip "a b"', "Invalid host name or address"),
        ('bind 127.0.0.1 "-a\\nb"', "Invalid host name or address"),
        ("repl-timeout 0", "argument must be between 1 and 2147483647 inclusive"),
        ("replica-announce-port 65536", "argument must be between 0 and 65535 inclusive"),
        ("repl-backlog-size 0", "argument must be between 1 and 9223372036854775807 inclusive"),
    ],
)
def test_wrong_lines(tmp_path: Path, line: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path / "a.conf", line + "\n")
    assert caught.value.text == text


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    assert loaded(tmp_path / "a.conf", "replicaof h 1\n", "--replicaof", "no", "one").replicaof == []
    assert loaded(tmp_path / "a.conf", "", "--slaveof", "h", "2").replicaof == ["h", "2"]


def test_older_names_of_redis() -> None:
    config = Config()
    for name, value in (
        ("slave-priority", "5"), ("min-slaves-to-write", "2"), ("min-slaves-max-lag", "3"),
        ("repl-ping-slave-period", "4"), ("slave-serve-stale-data", "no"), ("slave-announce-ip", "10.0.0.1"),
        ("slave-announce-port", "7"),
    ):  # fmt: skip
        config.set([(name.encode(), value.encode())])
        assert config.get([name.encode()]) == [(name, value)]
    assert (config.replica_priority, config.min_replicas_to_write, config.min_replicas_max_lag) == (5, 2, 3)
    assert (config.repl_ping_replica_period, config.replica_serve_stale_data) == (4, False)
    assert (config.replica_announce_ip, config.replica_announce_port) == ("10.0.0.1", 7)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("replicaof", "h 1", "can't set immutable config"),
        ("slaveof", "no one", "can't set immutable config"),
        ("slave-read-only", "no", "it can't accept writes of its own"),
    ],
)
def test_config_set_refuses(name: str, value: str, why: str) -> None:
    with pytest.raises(CommandError, match=why):
        Config().set([(name.encode(), value.encode())])


@pytest.mark.parametrize("host", ["a b", "a\nb", "a,b", "a\0", 'a"', "\udcff", "x" * 256])
@pytest.mark.parametrize("name", ["replica-announce-ip", "slave-announce-ip"])
def test_config_set_of_what_can_be_no_host(name: str, host: str) -> None:
    config = Config()
    with pytest.raises(CommandError) as caught:
        config.set([(name.encode(), host.encode("utf-8", "surrogateescape"))])
    where = f"CONFIG SET failed (possibly related to argument '{name}')"
    assert caught.value.text == f"ERR {where} - Invalid host name or address"
    assert config.replica_announce_ip == ""
    config.set([(name.encode(), b"fe80::1%eth0")])
    config.set([(name.encode(), b"")])


# -- CONFIG REWRITE, which Sentinel sends after a change of role ----------------------------------------------------
def rewritten(path: Path, config: Config) -> str:
    config.rewrite()
    text = path.read_text()
    assert Config.load([str(path)]).replicaof == config.replicaof, "the next start has the role that the server has now"
    config.rewrite()
    assert path.read_text() == text
    return text


def test_rewrite_of_a_leader_that_became_a_replica(tmp_path: Path) -> None:
    path = tmp_path / "a.conf"
    config = loaded(path, "port 7000\n")
    config.replicaof = ["10.0.0.1", "6379"]
    assert rewritten(path, config) == f"port 7000\n\n{REWRITE_MARK}\nreplicaof 10.0.0.1 6379\n"
    config.replicaof = ["10.0.0.2", "6379"]
    assert rewritten(path, config) == f"port 7000\n\n{REWRITE_MARK}\nreplicaof 10.0.0.2 6379\n"


def test_rewrite_of_a_replica_that_became_a_leader(tmp_path: Path) -> None:
    path = tmp_path / "a.conf"
    config = loaded(path, "slaveof h 1\nport 7000\nreplicaof h 2\n# the end\n")
    config.replicaof = []
    assert rewritten(path, config) == "port 7000\n# the end\n"


def test_rewrite_of_a_leader_whose_included_file_makes_it_a_replica(tmp_path: Path) -> None:
    (tmp_path / "b.conf").write_text("replicaof h 1\n")
    path = tmp_path / "a.conf"
    config = loaded(path, f"include {tmp_path}/b.conf\n")
    config.replicaof = []
    assert rewritten(path, config).endswith("\nreplicaof no one\n")


def test_rewrite_to_a_file_that_could_not_be_loaded_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.conf"
    config = loaded(path, "port 7000\n")
    config.replicaof = ["h\nrequirepass x", "1"]
    with pytest.raises(CommandError) as caught:
        config.rewrite()
    assert caught.value.text == "ERR Rewriting config file: Invalid host name or address"
    assert path.read_text() == "port 7000\n"
