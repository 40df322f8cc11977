"""CONFIG GET and CONFIG SET."""

from __future__ import annotations

import pytest

from resp.errors import CommandError
from respserver.config.conffile import ConfigError
from respserver.config.config import Config
from respserver.config.directives import DIRECTIVES


def refused(config: Config, *words: str) -> str:
    before = {d.attr: getattr(config, d.attr) for d in DIRECTIVES.values()}
    pairs = [(words[i].encode(), words[i + 1].encode()) for i in range(0, len(words), 2)]
    with pytest.raises(CommandError) as caught:
        config.set(pairs)
    assert {d.attr: getattr(config, d.attr) for d in DIRECTIVES.values()} == before
    return caught.value.text


# -- CONFIG GET ----------------------------------------------------------------------------------------------


def test_get() -> None:
    lines = "maxmemory 64mb\nunixsocketperm 770\nsave 900 1\nnotify-keyspace-events ''\n"
    config = Config.load(["-"], lambda: lines)
    assert config.get([b"MAXMEMORY"]) == [("maxmemory", "67108864")]
    assert config.get([b"unixsocketperm", b"save"]) == [("unixsocketperm", "770"), ("save", "900 1")]
    assert config.get([b"save", b"sav[e]", b"sa?e"]) == [("save", "900 1")]
    assert config.get([b"nothing", b"rename-command", b"user", b"\xff"]) == []
    assert dict(config.get([b"*"]))["client-output-buffer-limit"] == (
        "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60"
    )
    assert [name for name, _ in config.get([b"appendf*"])] == ["appendfsync", "appendfilename"]
    assert [name for name, _ in config.get([b"APPENDF[^A-R]*", b"\\port"])] == ["appendfsync"]
    with pytest.raises(CommandError, match="the pattern has 4097 bytes; at most 4096 are allowed"):
        config.get([b"*" * 4097])
    assert config.get([b"bind", b"slaveof"]) == [("bind", "127.0.0.1 -::1"), ("slaveof", "")]


# -- CONFIG SET ----------------------------------------------------------------------------------------------

FAILED = "ERR CONFIG SET failed (possibly related to argument '{}') - {}"


def test_set() -> None:
    config = Config()
    config.set([(b"Timeout", b"5"), (b"maxmemory", b"1kb"), (b"save", b"60 1 30 2"), (b"loglevel", b"DEBUG")])
    assert (config.timeout, config.maxmemory, config.loglevel) == (5, 1024, "debug")
    assert config.save_points == [(60, 1), (30, 2)]
    config.set([(b"save", b""), (b"client-output-buffer-limit", b"pubsub 1mb 1k 60"), (b"requirepass", b"a b \xff")])
    assert config.save_points == []
    assert config.client_output_buffer_limit["pubsub"] == (1 << 20, 1000, 60)
    assert config.client_output_buffer_limit["replica"] == (256 << 20, 64 << 20, 60)
    assert config.password() == b"a b \xff"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("foo", "1"), "ERR Unknown option or number of arguments for CONFIG SET - 'foo'"),
        (("timeout", "1", "foo", "2"), "ERR Unknown option or number of arguments for CONFIG SET - 'foo'"),
        (("rename-command", "a b"), "ERR Unknown option or number of arguments for CONFIG SET - 'rename-command'"),
        (("timeout", "5", "TIMEOUT", "6"), FAILED.format("timeout", "duplicate parameter")),
        (("dir", "/tmp"), FAILED.format("dir", "can't set immutable config")),
        (("timeout", "5", "hz", "x"), FAILED.format("hz", "argument couldn't be parsed into an integer")),
        (("timeout", ""), FAILED.format("timeout", "argument couldn't be parsed into an integer")),
        (("save", "900"), FAILED.format("save", "Invalid save parameters")),
        (("save", '"900'), FAILED.format("save", "Unbalanced quotes in configuration line")),
        (("maxmemory-policy", "foo"), FAILED.format("maxmemory-policy", "argument(s) must be one of the following: volatile-lru, volatile-lfu, volatile-random, volatile-ttl, allkeys-lru, allkeys-lfu, allkeys-random, noeviction")),  # noqa: E501
        (("maxmemory-policy", "allkeys-lru"), FAILED.format("maxmemory-policy", "tidelog evicts nothing to free memory: writes fail with -OOM instead")),  # noqa: E501
        (("timeout", "7", "notify-keyspace-events", "KEq"), FAILED.format("notify-keyspace-events", "Invalid event class character. Use 'Ag$lshzxeKEtmdnoc'.")),  # noqa: E501
    ],
)  # fmt: skip
def test_set_refuses_wrong_pairs(words: tuple[str, ...], text: str) -> None:
    assert refused(Config(), *words) == text


def test_set_of_directives_without_effect() -> None:
    config = Config()
    config.set([(b"appendonly", b"no"), (b"hash-max-listpack-entries", b"7"), (b"notify-keyspace-events", b"")])
    assert config.appendonly is True
    assert config.value("hash-max-listpack-entries") == "7"
    assert config.warnings == [
        "appendonly no: every write is on disk anyway; it remains yes",
        "CONFIG SET hash-max-listpack-entries: ignored (tidelog has strings and streams only)",
    ]


def test_callbacks_are_called_once_with_the_new_values() -> None:
    config = Config()
    seen: list[tuple[int, int]] = []

    def changed() -> None:
        seen.append((config.timeout, config.tcp_keepalive))

    config.on_change["timeout"] = config.on_change["tcp-keepalive"] = changed
    config.set([(b"timeout", b"1"), (b"tcp-keepalive", b"2"), (b"hz", b"3")])
    assert seen == [(1, 2)]


def test_a_callback_that_refuses_undoes_everything() -> None:
    config = Config()
    seen: list[int] = []

    def timeout_changed() -> None:
        seen.append(config.timeout)

    def tls_changed() -> None:
        if config.tls_cert_file:
            raise ConfigError("tls-cert-file: can't read x")

    config.on_change["timeout"] = timeout_changed
    config.on_change["tls-cert-file"] = tls_changed
    text = refused(config, "timeout", "9", "io-threads", "4", "tls-cert-file", "x")
    assert text == FAILED.format("tls-cert-file", "tls-cert-file: can't read x")
    assert seen == [9, 0]
    assert config.value("io-threads") == "1"


def test_a_callback_that_refuses_the_old_value_too_is_only_warned_about() -> None:
    config = Config()

    def never() -> None:
        raise OSError("no")

    config.on_change["timeout"] = never
    assert refused(config, "timeout", "9") == FAILED.format("timeout", "no")
    assert config.warnings == ["CONFIG SET timeout: the old settings could not be applied again: no"]
