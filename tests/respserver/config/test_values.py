"""How the values of directives are loaded: from files, standard input and flags."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from respserver.config.conffile import ConfigError
from respserver.config.config import Config
from respserver.config.values import OPEN_TO_ALL


def load(text: str, *flags: str) -> Config:
    return Config.load([*flags, "-"], lambda: text)


def wrong(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(text)
    return caught.value.text


def test_defaults() -> None:
    config = Config()
    assert (config.port, config.bind, config.protected_mode) == (6379, ["127.0.0.1", "-::1"], True)
    assert (config.appendfsync, config.stream_node_max_entries) == ("always", 512)
    assert config.save_points == [(3600, 1), (300, 100), (60, 10000)]
    assert config.client_output_buffer_limit == {
        "normal": (0, 0, 0), "replica": (256 << 20, 64 << 20, 60), "pubsub": (32 << 20, 8 << 20, 60),
    }  # fmt: skip
    assert config.dir == os.path.abspath("data")
    assert config.warnings == []
    assert Config.load([]).warnings == []


def test_file_then_stdin_then_flags(tmp_path: Path) -> None:
    path = tmp_path / "a.conf"
    path.write_text("PORT 1\ntimeout 1\nmaxclients 1\n")
    config = Config.load([str(path), "--maxclients", "3", "-"], lambda: "timeout 2\nmaxclients 2\n")
    assert (config.port, config.timeout, config.maxclients) == (1, 2, 3)
    assert config.file == str(path)


def test_repeated_directives() -> None:
    config = load(
        "save 900 1\nsave 300 10 60 5\n"
        "client-output-buffer-limit normal 1mb 0 0\nclient-output-buffer-limit slave 1 2 3\n"
        'rename-command FLUSHALL ""\nrename-command config c0\nbind 1.1.1.1\nbind 127.0.0.1 ::1\n'
    )
    assert config.save_points == [(900, 1), (300, 10), (60, 5)]
    assert config.client_output_buffer_limit["normal"] == (1 << 20, 0, 0)
    assert config.client_output_buffer_limit["replica"] == (1, 2, 3)
    assert config.client_output_buffer_limit["pubsub"] == (32 << 20, 8 << 20, 60)
    assert config.rename_command == {"flushall": "", "config": "c0"}
    assert config.bind == ["127.0.0.1", "::1"]


@pytest.mark.parametrize("text", ['save ""', 'save 900 1\nsave ""', "save", "save\nsave"])
def test_no_save_points(text: str) -> None:
    assert load(text).save_points == []


def test_flags_without_values() -> None:
    config = Config.load(["--save", "--bind", "--port", "5"])
    assert (config.save_points, config.bind, config.port) == ([], [], 5)
    assert Config.load(["--save", "900 1 300 2"]).save_points == [(900, 1), (300, 2)]


def test_a_password_of_any_bytes() -> None:
    assert load(r'requirepass "\xff \x00"').password() == b"\xff \x00"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("timeout abc", "argument couldn't be parsed into an integer"),
        ("timeout 1_0", "argument couldn't be parsed into an integer"),
        ("timeout 99999999999999999999", "argument couldn't be parsed into an integer"),
        ("timeout -5", "argument must be between 0 and 2147483647 inclusive"),
        ("timeout 1 2", "wrong number of arguments"),
        ("timeout", "wrong number of arguments"),
        ("client-output-buffer-limit", "wrong number of arguments"),
        ("port 70000", "argument must be between 0 and 65535 inclusive"),
        ("unixsocketperm 999", "argument must be between 0 and 777 inclusive"),
        ("maxmemory 5xb", "argument must be a memory value"),
        ("appendonly maybe", "argument must be 'yes' or 'no'"),
        ("appendfsync sometimes", "argument(s) must be one of the following: everysec, always, no"),
        ("shutdown-on-sigterm soon", "argument(s) must be one of the following: default, save, nosave, now, force"),
        ("save 900", "Invalid save parameters"),
        ("save 900 x", "Invalid save parameters"),
        ("save 0 1", "Invalid save parameters"),
        ("client-output-buffer-limit foo 1 2 3", "Invalid client class specified in buffer limit configuration."),
        ("client-output-buffer-limit normal 1 2", "Wrong number of arguments in buffer limit configuration."),
        ("rename-command a", "wrong number of arguments"),
        ("cluster-enabled maybe", "argument must be 'yes' or 'no'"),
    ],
)
def test_wrong_values(line: str, text: str) -> None:
    assert wrong(f"\n{line}\n") == text


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("replica-read-only no", "it can't accept writes of its own"),
    ],
)
def test_directives_that_are_dangerous_to_ignore_are_refused(line: str, why: str) -> None:
    assert why in wrong(line)


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("prot 1", "unknown word 'prot'; did you mean 'port'?"),
        ("apendfsync no", "unknown word 'apendfsync'; did you mean 'appendfsync'?"),
        ("hash-max-listpack-entry 1", "did you mean 'hash-max-listpack-entries'?"),
        ("xyzzy 1", "unknown word 'xyzzy'"),
        ("port=6379", "write it as 'port 6379'"),
    ],
)
def test_unknown_words_are_refused_with_the_nearest_known_one(line: str, hint: str) -> None:
    text = wrong(line)
    assert text.startswith("Bad directive or wrong number of arguments: ")
    assert text.endswith(hint)


def test_an_error_names_line_and_file(tmp_path: Path) -> None:
    path = tmp_path / "a.conf"
    path.write_text("# x\nprot 1\n")
    with pytest.raises(ConfigError) as caught:
        Config.load([str(path)])
    assert f"at line 2 of file {path}\n>>> 'prot 1'\n" in caught.value.report("1")


def test_a_missing_file() -> None:
    with pytest.raises(ConfigError, match=r"can't open config file '/no/such\.conf': No such file or directory"):
        Config.load(["/no/such.conf"])


def test_fixed_directives_keep_their_values() -> None:
    config = load("appendonly no\ndatabases 16\ndaemonize yes\nmaxmemory-policy allkeys-lru\n")
    assert config.appendonly is True
    assert (config.databases, config.daemonize, config.maxmemory_policy) == (1, False, "noeviction")
    assert config.warnings[0] == "appendonly no: every write is on disk anyway; it remains yes"
    assert len(config.warnings) == 4


def test_a_server_open_to_all_gets_a_warning() -> None:
    assert load("protected-mode no\nbind 0.0.0.0\n").warnings == [OPEN_TO_ALL]
    assert load("protected-mode no\nbind 0.0.0.0\nrequirepass x\n").warnings == []
    assert load("protected-mode no\n").warnings == []
