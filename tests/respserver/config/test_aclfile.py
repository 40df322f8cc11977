"""Users in files: ``user`` lines, the ACL file, and CONFIG REWRITE of users."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from commands.acl.rules import describe
from commands.users.user import hashed
from respserver.clients.clients import Clients
from respserver.clients.users import Users
from respserver.config.conffile import ConfigError
from respserver.config.config import Config
from respserver.config.rewrite import REWRITE_MARK
from respserver.observe.logs import Logger
from respserver.runtime.clock import Clock
from respserver.testing import start_in_thread
from tests.wire.rawclient import Raw

HASH = hashed(b"secret").decode()


def users(config: Config) -> dict[bytes, bytes]:
    """Name -> rules, as the server would have them."""
    made = Users(config, Clock(), Clients(), Logger(level="nothing"))
    return {user.name: b" ".join(describe(user)) for user in made.all()}


def load(tmp_path: Path, text: str, *flags: str) -> Config:
    path = tmp_path / "a.conf"
    path.write_text(text)
    return Config.load([str(path), *flags])


def test_user_lines(tmp_path: Path) -> None:
    config = load(tmp_path, 'user al on >secret ~a* +get\nuser "b\\xff" off "~\\"x\\"" &*\nrequirepass secret\n')
    assert users(config) == {
        b"al": b"on #" + HASH.encode() + b" ~a* resetchannels -@all +get",
        b"b\xff": b'off ~"x" &* -@all',
        b"default": b"on #" + HASH.encode() + b" ~* &* +@all",
    }


def test_a_user_line_for_default_counts_instead_of_requirepass(tmp_path: Path) -> None:
    config = load(tmp_path, "user default off\nrequirepass secret\n")
    assert users(config) == {b"default": b"off resetchannels -@all"}


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("user al +nosuch", "Error in user declaration '+nosuch': Unknown command or category name in ACL"),
        ("user al (+get ~a)", "Error in user declaration '(+get': Selectors are not supported"),
        ('user "a b" on', "Error in user declaration 'a b': Usernames can't contain spaces or null characters"),
        ("user al on\nuser al off", "Duplicate user found. A user can only be defined once in config files"),
        ("user", "wrong number of arguments"),
    ],
)
def test_wrong_user_lines(tmp_path: Path, line: str, error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, line + "\n")
    assert error in caught.value.text
    assert caught.value.line is not None
    assert caught.value.line.number == line.count("\n") + 1


def test_a_flag_wins(tmp_path: Path) -> None:
    config = load(tmp_path, "user al on\nuser bo on\n", "--user", "al", "off", "+get")
    assert users(config)[b"al"] == b"off resetchannels -@all +get"
    assert users(config)[b"bo"] == b"on resetchannels -@all"


@pytest.mark.parametrize(
    ("lines", "warned"),
    [
        ("", True),
        ("requirepass x\n", False),
        ("user default on nopass +@all\nrequirepass x\n", True),
        ("user default off\n", False),
        ("user default on >x\n", False),
        ("user al on\n", True),
    ],
)
def test_the_warning_that_the_server_is_open(tmp_path: Path, lines: str, warned: bool) -> None:
    config = load(tmp_path, "protected-mode no\nbind *\n" + lines)
    assert any("every client that reaches this server has full access" in each for each in config.warnings) == warned


# -- the ACL file ------------------------------------------------------------------------------------------------
def test_an_acl_file(tmp_path: Path) -> None:
    path = tmp_path / "users.acl"
    path.write_bytes(b"\nuser al  on ~a\xff* +get\r\n   \nuser bo off #" + HASH.encode() + b"\n")
    config = Config.load(["--aclfile", str(path), "--requirepass", "secret"])
    assert users(config) == {
        b"al": b"on ~a\xff* resetchannels -@all +get",
        b"bo": b"off #" + HASH.encode() + b" resetchannels -@all",
        b"default": b"on #" + HASH.encode() + b" ~* &* +@all",  # a password isn't lost because a file lacks a line
    }


def test_wrong_acl_files(tmp_path: Path) -> None:
    path = tmp_path / "users.acl"
    config = Config.load(["--aclfile", str(path)])
    with pytest.raises(ConfigError, match=r"Error loading ACLs, opening file '.*users\.acl': No such file"):
        users(config)
    path.write_text("user al on\nusr bo on\nuser al off\nuser cy +nosuch\nuser\n")
    with pytest.raises(ConfigError) as caught:
        users(config)
    for number, what in (
        (2, "should start with user keyword"), (3, "Duplicate user found"), (4, "+nosuch: Unknown command"),
        (5, "should start with user keyword"),
    ):  # fmt: skip
        assert f"{path}:{number}: {what}" in caught.value.text
    config = load(tmp_path, f"aclfile {path}\nuser al on\n")
    with pytest.raises(ConfigError, match="define them in one place"):
        users(config)


SENTINEL = (
    "user sentinel-user on >secret allchannels +multi +slaveof +ping +exec +subscribe +config|rewrite +role +publish "
    "+info +client|setname +client|kill +script|kill"
)
FROM_REDIS = {  # a line made for a Redis -> what is told of it, and what it may do
    SENTINEL: ("+script|kill", "info", "get"),
    "user a on nopass sanitize-payload ~* &* +@all -function": ("-function", "get", ""),
    "user a on nopass ~* &* +@all -@hash -@geo": ("-@hash -@geo", "get", ""),
    "user a on nopass ~* &* +@all -@dangerous -hget +function|load": ("-hget +function|load", "get", "flushall"),
    "user a on nopass ~cached:* -@all +get +hget +hset +config|get": ("+hget +hset", "config|get", "set"),
    "user a on nopass ~* -@all +@read -json.get +@search +ft.search": ("-json.get +@search +ft.search", "get", "set"),
    "user a on nopass skip-sanitize-payload %RW~* resetchannels -@all +@stream -sentinel|masters": (
        "-sentinel|masters", "xadd", "get",
    ),
    "user worker +@list +@connection ~jobs:* on >ffa9203c493aa99": ("+@list", "ping", "get"),
    "user antirez on nopass ~objects:* ~items:* ~public:* +@all": ("", "get", ""),
}  # fmt: skip


@pytest.mark.parametrize("line", FROM_REDIS)
def test_lines_made_for_redis(tmp_path: Path, line: str) -> None:
    """Rules about commands that are not there are warned of, and kept; in a file as well as in a configuration."""
    names, may, may_not = FROM_REDIS[line]
    path = tmp_path / "users.acl"
    path.write_text(line + "\n")
    told: list[str] = []
    for config in (Config.load(["--aclfile", str(path)]), load(tmp_path, line + "\n")):
        log = tmp_path / f"{len(told)}.log"
        log.touch()
        made = Users(config, Clock(), Clients(), Logger(str(log), "warning"))
        user = made.get(line.split(" ")[1].encode())
        assert user is not None
        assert may in user.commands
        assert may_not not in user.commands
        assert set(names.encode().split()) <= set(describe(user))
        told.append(log.read_text().partition("# ")[2])
    name = line.split(" ")[1]
    assert told == 2 * [
        f"User '{name}': these rules have no effect, since tidelog has no such commands: {names}\n" if names else ""
    ]


@pytest.mark.parametrize("rule", ["+nosuch", "-nosuch", "+@nosuch", "-@nosuch", "+config|nosuch", "-cluster|nosuch"])
def test_what_redis_does_not_have_either_is_an_error(tmp_path: Path, rule: str) -> None:
    path = tmp_path / "users.acl"
    path.write_text(f"user al on {rule}\n")
    with pytest.raises(ConfigError, match="Unknown command or category name in ACL"):
        users(Config.load(["--aclfile", str(path)]))


def test_rules_without_effect_at_run_time(tmp_path: Path) -> None:
    """They are saved and loaded again, so a file can go back to a Redis."""
    path = tmp_path / "users.acl"
    path.write_text(SENTINEL + "\n")
    with serving(path) as c:
        assert c("ACL", "SETUSER", "al", "on", "nopass", "+@all", "-function", "+hget") == b"OK"
        assert c("ACL", "SETUSER", "al", "-nosuch").startswith("ERR Error in ACL SETUSER modifier '-nosuch': Unknown")
        assert c("ACL", "SAVE") == b"OK"
        assert b"resetchannels +@all -function +hget\n" in path.read_bytes()
        before = c("ACL", "LIST")
        assert b" +script|kill" in b"".join(before)
        assert c("ACL", "LOAD") == b"OK"
        assert c("ACL", "LIST") == before


@contextmanager
def serving(path: Path) -> Iterator[Raw]:
    """A connection to a server with this ACL file."""
    with start_in_thread(aclfile=str(path)) as server, Raw(server.port) as raw:
        yield raw


def test_load_and_save(tmp_path: Path) -> None:
    path = tmp_path / "users.acl"
    path.write_text("user al on nopass +@all\nuser bo on nopass +@all &a\n")
    path.chmod(0o640)
    with start_in_thread(aclfile=str(path)) as server, Raw(server.port) as c:
        al, bo, cy = (Raw(server.port) for _ in range(3))
        assert [al("AUTH", "al", ""), bo("AUTH", "bo", "")] == [b"OK", b"OK"]
        bo("SUBSCRIBE", "a")
        assert c("ACL", "SETUSER", "cy", "on", ">secret", "~\xff", "-@all") == b"OK"
        assert c("ACL", "SAVE") == b"OK"
        saved = path.read_bytes()
        assert saved == b"user al on nopass resetchannels +@all\nuser bo on nopass resetchannels &a +@all\n" + (
            b"user cy on #%b ~\xc3\xbf resetchannels -@all\nuser default on nopass ~* &* +@all\n" % HASH.encode()
        )
        assert path.stat().st_mode & 0o777 == 0o640
        assert os.listdir(tmp_path) == ["users.acl"]
        path.write_text("user al on +nosuch\n")
        assert "users.acl:1: +nosuch: Unknown command or category" in c("ACL", "LOAD")
        assert c("ACL", "USERS") == [b"al", b"bo", b"cy", b"default"]
        path.write_text("user al on nopass -@all +ping\nuser bo on nopass &b +@all\n")
        assert c("ACL", "LOAD") == b"OK"
        assert c("ACL", "USERS") == [b"al", b"bo", b"default"]
        assert al("PING") == b"PONG"  # stays connected, with the new rules
        assert al("GET", "k") == "NOPERM User al has no permissions to run the 'get' command"
        with pytest.raises((EOFError, ConnectionError)):
            bo.read()
        assert str(cy("AUTH", "cy", "secret")).startswith("WRONGPASS ")
        path.unlink()
        assert c("ACL", "SAVE") == b"OK"
        assert path.stat().st_mode & 0o777 == 0o600
        for raw in (al, bo, cy):
            raw.close()


def test_save_into_a_directory_that_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "etc"
    folder.mkdir()
    (folder / "users.acl").write_text("")
    with serving(folder / "users.acl") as c:
        (folder / "users.acl").unlink()
        folder.rmdir()
        assert "There was an error trying to save the ACLs" in c("ACL", "SAVE")
        assert "No such file or directory" in c("ACL", "LOAD")


def test_a_server_with_a_wrong_acl_file_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "users.acl").write_text("user al +nosuch\n")
    with pytest.raises(ConfigError, match="Unknown command"), serving(tmp_path / "users.acl"):
        pass


# -- CONFIG REWRITE ------------------------------------------------------------------------------------------------
class Caller:
    """A session that changes users and is not among the clients."""


def rewritten(config: Config, *changes: tuple[Any, ...]) -> str:
    made = Users(config, Clock(), Clients(), Logger(level="nothing"))
    caller: Any = Caller()
    for name, *words in changes:
        if words == ["delete"]:
            made.delete(caller, [name.encode()])
        else:
            made.change(caller, name.encode(), [word.encode() for word in words])
    config.rewrite()
    assert config.file is not None
    text = Path(config.file).read_text()
    again = Config.load([config.file])
    assert users(again) == {user.name: b" ".join(describe(user)) for user in made.all()}
    config.rewrite()
    assert Path(config.file).read_text() == text
    return text


def test_rewrite_writes_users(tmp_path: Path) -> None:
    config = load(tmp_path, "port 7000\n# the end\n")
    assert rewritten(config) == "port 7000\n# the end\n"
    assert rewritten(config, ("al", "on", ">secret", '~"a\\', "&#", "+@all", "-@admin")) == (
        f'port 7000\n# the end\n\n{REWRITE_MARK}\n'
        f'user al on "#{HASH}" "~\\"a\\\\" resetchannels &# +@all -@admin\n'
    )  # fmt: skip


def test_rewrite_changes_and_removes_users(tmp_path: Path) -> None:
    text = "# users\nuser al on nopass +get\n# more\nuser bo off\nport 7000\n"
    config = load(tmp_path, text)
    assert rewritten(config) == text
    assert rewritten(config, ("bo", "on")) == (
        "# users\nuser al on nopass resetchannels -@all +get\nuser bo on resetchannels -@all\n# more\nport 7000\n"
    )
    assert rewritten(config, ("al", "delete"), ("bo", "delete")) == "# users\n# more\nport 7000\n"


def test_rewrite_of_the_default_user(tmp_path: Path) -> None:
    config = load(tmp_path, "requirepass secret\n")
    assert rewritten(config) == "requirepass secret\n"
    text = rewritten(config, ("default", ">other", "-flushall"))
    other = hashed(b"other").decode()
    assert text == (
        f'requirepass secret\n\n{REWRITE_MARK}\nuser default on "#{HASH}" "#{other}" ~* &* +@all -flushall\n'
    )


def test_rewrite_of_users_in_included_files(tmp_path: Path) -> None:
    (tmp_path / "b.conf").write_text("user al on\n")
    config = load(tmp_path, f"include {tmp_path}/b.conf\n")
    assert rewritten(config) == f"include {tmp_path}/b.conf\n"
    with pytest.raises(Exception, match="user lines in included files can't be changed"):
        rewritten(config, ("al", "off"))


def test_rewrite_leaves_users_of_an_acl_file_there(tmp_path: Path) -> None:
    (tmp_path / "users.acl").write_text("user al on\n")
    config = load(tmp_path, f"aclfile {tmp_path}/users.acl\n")
    made = Users(config, Clock(), Clients(), Logger(level="nothing"))
    caller: Any = Caller()
    made.change(caller, b"bo", [b"on"])
    config.rewrite()
    assert (tmp_path / "a.conf").read_text() == f"aclfile {tmp_path}/users.acl\n"


def test_protected_mode_looks_at_the_default_user() -> None:
    with start_in_thread(user=["default", "on", ">x"]) as server, Raw(server.port) as c:
        assert c("PING") == "NOAUTH Authentication required."
        assert not server.server.users.default.nopass
