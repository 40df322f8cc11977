"""Configuration: the table, loading, CONFIG GET / SET / REWRITE, and the page that is generated from it."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import socket
import subprocess
import tomllib
from pathlib import Path

import pytest

from resp.errors import CommandError
from respserver import __version__
from respserver.config.conffile import ConfigError
from respserver.config.config import Config
from respserver.config.directives import ALIASES, DIRECTIVES, Directive
from respserver.config.ignored import IGNORED
from respserver.config.rewrite import REWRITE_MARK
from respserver.config.values import OPEN_TO_ALL, Values

ROOT = Path(__file__).resolve().parents[3]


def load(text: str, *flags: str) -> Config:
    return Config.load([*flags, "-"], lambda: text)


def wrong(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(text)
    return caught.value.text


def refused(config: Config, *words: str) -> str:
    before = {d.attr: getattr(config, d.attr) for d in DIRECTIVES.values()}
    pairs = [(words[i].encode(), words[i + 1].encode()) for i in range(0, len(words), 2)]
    with pytest.raises(CommandError) as caught:
        config.set(pairs)
    assert {d.attr: getattr(config, d.attr) for d in DIRECTIVES.values()} == before
    return caught.value.text


# -- the table -----------------------------------------------------------------------------------------------


def test_every_directive_is_an_attribute_and_the_other_way_round() -> None:
    assert set(Values.__annotations__) == {d.attr for d in DIRECTIVES.values()}
    config = Config()
    for directive in DIRECTIVES.values():
        assert hasattr(config, directive.attr), directive.name
        assert directive.doc.endswith((".", ")")), directive.name


def test_no_directive_is_both_used_and_ignored() -> None:
    assert not set(IGNORED) & (set(DIRECTIVES) | set(ALIASES))


@pytest.mark.parametrize("directive", [d for d in DIRECTIVES.values() if not d.hidden], ids=lambda d: d.name)
def test_what_is_shown_can_be_read_again(directive: Directive) -> None:
    value = getattr(Config(), directive.attr)
    text = directive.show(value)
    words = directive.split(text) if text or directive.kind == "string" else []
    assert directive.parse(words, {}) == value


def test_version_is_the_projects() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == __version__


def test_the_reference_page_is_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "scripts/config_reference.py"))
    page = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    assert page == script["reference"](), "run scripts/config_reference.py"
    missing = [name for name in (*DIRECTIVES, *IGNORED) if f"`{name}`" not in page]
    assert not missing


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")
def test_every_directive_of_the_installed_redis_is_known(tmp_path: Path) -> None:
    path = tmp_path / "redis.sock"
    server = subprocess.Popen(
        ["redis-server", "--port", "0", "--unixsocket", str(path), "--save", "", "--dir", str(tmp_path)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        assert any("ready to accept connections" in line.lower() for line in server.stdout)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(path))
            sock.sendall(b"CONFIG GET *\r\nQUIT\r\n")
            reply = b"".join(iter(lambda: sock.recv(65536), b""))
    finally:
        server.terminate()
        server.communicate()
    names = re.findall(rb"\$\d+\r\n([^\r]*)\r\n\$\d+\r\n[^\r]*\r\n", reply)
    assert len(names) > 150
    assert [n for n in names if not Config().get([n])] == []


# -- loading -------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("text", ['save ""', 'save 900 1\nsave ""'])
def test_no_save_points(text: str) -> None:
    assert load(text).save_points == []


def test_flags_that_say_nothing() -> None:
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
        ("timeout", "Bad directive or wrong number of arguments"),
        ("save", "Bad directive or wrong number of arguments"),
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
        ("cluster-enabled yes", "this server can't be a node of a Redis Cluster"),
    ],
)
def test_wrong_values(line: str, text: str) -> None:
    assert wrong(f"\n{line}\n") == text


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("user default off", "to ignore this line would leave the server open"),
        ("aclfile /x", "to ignore this line would leave the server open"),
        ("cluster-enabled yes", "this server can't be a node of a Redis Cluster"),
        ("replica-read-only no", "it can't take writes of its own"),
    ],
)
def test_what_would_be_dangerous_to_ignore_is_refused(line: str, why: str) -> None:
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


def test_useless_directives_are_warned_about() -> None:
    config = load("rdbcompression no\nrdbchecksum no\nio-threads 4\nsearch-timeout 1\nREPLICAOF NO ONE\n")
    assert config.warnings == [
        "Ignored: rdbcompression, rdbchecksum (tidelog has its own files, always compressed and checked)",
        "Ignored: io-threads (tidelog runs its commands in one thread and leaves placement to the system)",
        "Ignored: search-timeout (there are no scripts, functions or modules)",
    ]
    assert config.value("rdbcompression") == "no"
    assert config.value("rdb-del-sync-files") == "no"
    assert config.replicaof == []


def test_decided_directives_stay() -> None:
    config = load("appendonly no\ndatabases 16\ndaemonize yes\nmaxmemory-policy allkeys-lru\n")
    assert config.appendonly is True
    assert (config.databases, config.daemonize, config.maxmemory_policy) == (1, False, "noeviction")
    assert config.warnings[0] == "appendonly no: every write is on disk anyway; it stays yes"
    assert len(config.warnings) == 4


def test_warning_for_a_server_open_to_all() -> None:
    assert load("protected-mode no\nbind 0.0.0.0\n").warnings == [OPEN_TO_ALL]
    assert load("protected-mode no\nbind 0.0.0.0\nrequirepass x\n").warnings == []
    assert load("protected-mode no\n").warnings == []


def test_debians_redis_conf_is_accepted() -> None:
    path = Path("/etc/redis/redis.conf")
    if not os.access(path, os.R_OK):
        pytest.skip("no readable /etc/redis/redis.conf: install redis-server")
    config = Config.load([str(path)])
    warned = " ".join(config.warnings)
    used = {line.split()[0] for line in path.read_text().splitlines() if line and line[0] not in "# \t"}
    assert all(name in warned or name in DIRECTIVES for name in used)


# -- CONFIG GET ----------------------------------------------------------------------------------------------


def test_get() -> None:
    config = load("maxmemory 64mb\nunixsocketperm 770\nsave 900 1\nnotify-keyspace-events ''\n")
    assert config.get([b"MAXMEMORY"]) == [("maxmemory", "67108864")]
    assert config.get([b"unixsocketperm", b"save"]) == [("unixsocketperm", "770"), ("save", "900 1")]
    assert config.get([b"save", b"sav[e]", b"sa?e"]) == [("save", "900 1")]
    assert config.get([b"nothing", b"rename-command", b"user", b"\xff"]) == []
    assert dict(config.get([b"*"]))["client-output-buffer-limit"] == (
        "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60"
    )
    assert [name for name, _ in config.get([b"appendf*"])] == ["appendfsync", "appendfilename"]
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
        (("maxmemory-policy", "allkeys-lru"), FAILED.format("maxmemory-policy", "tidelog evicts nothing to make room: writes answer -OOM instead")),  # noqa: E501
        (("timeout", "7", "notify-keyspace-events", "KEA"), FAILED.format("notify-keyspace-events", "tidelog sends no keyspace notifications: follow a stream with TREAD BLOCK")),  # noqa: E501
    ],
)  # fmt: skip
def test_set_refuses(words: tuple[str, ...], text: str) -> None:
    assert refused(Config(), *words) == text


def test_set_of_what_has_no_effect() -> None:
    config = Config()
    config.set([(b"appendonly", b"no"), (b"hash-max-listpack-entries", b"7"), (b"notify-keyspace-events", b"")])
    assert config.appendonly is True
    assert config.value("hash-max-listpack-entries") == "7"
    assert config.warnings == [
        "appendonly no: every write is on disk anyway; it stays yes",
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


# -- CONFIG REWRITE ------------------------------------------------------------------------------------------


def test_rewrite_without_a_file() -> None:
    with pytest.raises(CommandError) as caught:
        load("port 1").rewrite()
    assert caught.value.text == "ERR The server is running without a config file"


def test_rewrite_keeps_what_it_need_not_change(tmp_path: Path) -> None:
    path = tmp_path / "a.conf"
    path.write_text(
        "# my server\nport 7000\n\n# sync\nappendfsync   ALWAYS\nmaxmemory 64mb\nsave 900 1\n# more\nsave 300 10\n"
        "timeout 5\nrdbcompression no\n"
    )
    path.chmod(0o640)
    config = Config.load([str(path), "--hz", "20"])
    config.set([(b"timeout", b"6"), (b"save", b"60 1"), (b"requirepass", b'a "b')])
    config.rewrite()
    assert path.read_text() == (
        "# my server\nport 7000\n\n# sync\nappendfsync   ALWAYS\nmaxmemory 64mb\nsave 60 1\n# more\n"
        f'timeout 6\nrdbcompression no\n\n{REWRITE_MARK}\nhz 20\nrequirepass "a \\"b"\n'
    )
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["a.conf"]
    text = path.read_text()
    config.rewrite()
    assert path.read_text() == text
    config.set([(b"loglevel", b"verbose")])
    config.rewrite()
    assert path.read_text() == text + "loglevel verbose\n"


def test_rewrite_with_includes_says_what_the_server_does(tmp_path: Path) -> None:
    (tmp_path / "b.conf").write_text("timeout 5\nsave 900 1\nclient-output-buffer-limit normal 1 1 1\n")
    path = tmp_path / "a.conf"
    path.write_text(f"include {tmp_path}/b.conf\nsave 300 10\n")
    config = Config.load([str(path)])
    config.set([(b"timeout", b"0"), (b"save", b"60 1"), (b"client-output-buffer-limit", b"normal 0 0 0")])
    config.rewrite()
    again = Config.load([str(path)])
    assert again.get([b"*"]) == config.get([b"*"])
    assert (again.timeout, again.save_points) == (0, [(60, 1)])


def test_rewrite_of_everything_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "a.conf"
    path.write_text("")
    config = Config.load([str(path), "--rename-command", "flushall", "", "--bind", "--tls-protocols", "TLSv1.3",
                          "--unixsocketperm", "770", "--dir", str(tmp_path), "--protected-mode", "no"])  # fmt: skip
    config.set([(b"save", b""), (b"requirepass", b"\xff\n"), (b"proto-max-bulk-len", b"1mb")])
    config.rewrite()
    again = Config.load([str(path)])
    assert {d.attr: getattr(again, d.attr) for d in DIRECTIVES.values()} == {
        d.attr: getattr(config, d.attr) for d in DIRECTIVES.values()
    }


def test_rewrite_of_a_file_that_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "a.conf"
    path.write_text("")
    config = Config.load([str(path)])
    path.unlink()
    with pytest.raises(CommandError) as caught:
        config.rewrite()
    assert caught.value.text == "ERR Rewriting config file: No such file or directory"
