"""Users: who may do what, through the wire. ``test_differential_acl`` compares what Redis has, too."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from commands.registry import all_commands
from respserver.testing import HandClock, RunningServer, start_in_thread
from tests.wire.rawclient import Raw, pack

Word = str | bytes | int
KEY = "NOPERM No permissions to access a key"
CHANNEL = "NOPERM No permissions to access a channel"


@pytest.fixture
def admin(c: Raw) -> Raw:
    """A connection of the user ``default``."""
    return c


@pytest.fixture
def login(admin: Raw, connect: Callable[..., Raw]) -> Callable[..., Raw]:
    """login("al", *rules) makes a user and returns a connection of it."""

    def login(name: str, *rules: Word, proto: int = 2) -> Raw:
        assert admin("ACL", "SETUSER", name, "on", "nopass", *rules) == b"OK"
        raw = connect(proto)
        assert raw("AUTH", name, "x") == b"OK"
        return raw

    return login


def closed(raw: Raw) -> bool:
    try:
        raw.read()
    except (EOFError, ConnectionError):
        return True
    return False


def denied(name: str, command: str) -> str:
    return f"NOPERM User {name} has no permissions to run the '{command}' command"


# -- each kind of command with each kind of permission ---------------------------------------------------------------
# the words of a call with key k -> what it does with the key: r, w, rw, or - where any pattern is enough
ACCESS = {
    "TAPPEND k f v": "w",
    "TAPPEV k COUNT 1": "w",
    "TCFG k": "r",
    "TDELAY k IN 5 f v": "w",
    "TDELAY k CANCEL t": "w",
    "TDELAY k LIST": "r",
    "TDELAY k COUNT": "r",
    "TCFG k RETAIN COUNT 1": "rw",
    "TMAPPEND k FIELDS 1 f VALUES v": "w",
    "TSTAGE k 0 k FIELDS 1 f VALUES v": "w",
    "TPUBLISH k 1 k": "rw",
    "TPUBLISH k 1 CHECK sum k": "rw",
    "TDROP k": "w",
    "TPERSIST k": "w",
    "TFENCE k": "r",
    "TREAD k 0 1": "r",
    "TREAD k 0 1 WITHINFO": "r",
    "TREAD k 0 1 GROUP g 0": "rw",
    "TREAD k 0 0 GROUP g 0": "rw",
    "TRANGE k - +": "r",
    "TREVRANGE k + -": "r",
    "TLEN k": "-",
    "TCOUNT k - +": "r",
    "TSEEK k 0 1": "r",
    "TINFO k": "r",
    "TMANIFEST k": "r",
    "TPENDING k g": "r",
    "TACK k g 1.1": "w",
    "TNACK k g 1.1": "w",
    "TTOUCH k g 1 1.1": "w",
    "TGROUP LIST k": "r",
    "TGROUP SETID k g 0": "w",
    "TGROUP DESTROY k g": "w",
    "XADD k * f v": "w",
    "XADD k IDMP p 1 * f v": "w",
    "XADD k MAXLEN 1 DELREF * f v": "w",
    "XTRIM k MAXLEN 1": "w",
    "XDEL k 1-0": "w",
    "XDELEX k IDS 1 1-0": "w",
    "XACKDEL k g IDS 1 1-0": "w",
    "XSETID k 1-0": "w",
    "XCFGSET k IDMP-MAXSIZE 1": "w",
    "XRANGE k - +": "r",
    "XREVRANGE k + -": "r",
    "XLEN k": "-",
    "XREAD STREAMS k 0": "r",
    "XREADGROUP GROUP g c STREAMS k >": "r",  # as in Redis
    "XREADGROUP GROUP g c CLAIM 0 STREAMS k >": "r",
    "XACK k g 1-0": "w",
    "XNACK k g FAIL IDS 1 1-0": "w",
    "XPENDING k g": "r",
    "XPENDING k g - + 1": "r",
    "XCLAIM k g c 0 1-0": "rw",
    "XCLAIM k g c 0 1-0 FORCE": "rw",
    "XCLAIM k g c 0 1-0 FORCE JUSTID": "rw",
    "XAUTOCLAIM k g c 0 0": "rw",
    "XAUTOCLAIM k g c 0 0 JUSTID": "rw",
    "XGROUP CREATE k g 0": "w",
    "XGROUP SETID k g 0": "w",
    "XGROUP CREATECONSUMER k g c": "w",
    "XGROUP DELCONSUMER k g c": "w",
    "XGROUP DESTROY k g": "w",
    "XINFO STREAM k FULL": "r",
    "XINFO GROUPS k": "r",
    "XINFO CONSUMERS k g": "r",
    "GET k": "r",
    "GETRANGE k 0 1": "r",
    "SUBSTR k 0 1": "r",
    "GETEX k": "rw",
    "GETSET k v": "rw",
    "DUMP k": "r",
    "DIGEST k": "r",
    "STRLEN k": "-",
    "DELEX k": "w",
    "DELEX k IFEQ v": "rw",
    "DELIFEQ k v": "rw",
    "APPEND k v": "w",
    "SETRANGE k 0 v": "w",
    "SETNX k v": "w",
    "SETEX k 9 v": "w",
    "PSETEX k 9000 v": "w",
    "MSETEX 1 k v": "w",
    "MSETNX k v": "w",
    "INCRBY k 1": "rw",
    "INCRBYFLOAT k 1": "rw",
    "INCREX k": "rw",
    "DECR k": "rw",
    "DECRBY k 1": "rw",
    "COPY k k": "rw",
    "RENAME k k": "rw",
    "RENAMENX k k": "rw",
    "MOVE k 0": "rw",
    "RESTORE k 0 v": "w",
    "UNLINK k": "w",
    "TOUCH k": "-",
    "EXPIREAT k 1": "w",
    "PEXPIRE k 1": "w",
    "PEXPIREAT k 1": "w",
    "PERSIST k": "w",
    "PTTL k": "r",
    "EXPIRETIME k": "r",
    "PEXPIRETIME k": "r",
    "EVAL return 1 k": "r",
    "EVALSHA 0000 1 k": "r",
    "OBJECT FREQ k": "-",
    "OBJECT IDLETIME k": "-",
    "OBJECT REFCOUNT k": "-",
    "DEBUG OBJECT k": "-",
    "SET k v": "w",
    "SET k v GET": "rw",
    "SET k v IFEQ w": "rw",
    "GETDEL k": "rw",
    "INCR k": "rw",
    "MSET k v": "w",
    "MGET k": "r",
    "EXISTS k": "-",
    "TYPE k": "-",
    "DEL k": "w",
    "EXPIRE k 1": "w",
    "TTL k": "r",
    "WATCH k": "-",
    "OBJECT ENCODING k": "-",
    "MEMORY USAGE k": "-",
}
PATTERNS = {"~k": "rw", "%R~k": "r", "%W~k": "w", "~other": None, "%RW~?": "rw"}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_keys(login: Callable[..., Raw], pattern: str) -> None:
    al = login("al", "+@all", pattern)
    gives = PATTERNS[pattern]
    for call, needs in ACCESS.items():
        allowed = gives is not None and (needs == "-" or set(needs) <= set(gives))
        assert (al(*call.split(" ")) != KEY) == allowed, call


def test_every_command_with_keys_is_in_the_table() -> None:
    """So it is decided of a new one whether its reply tells what a key holds: then it needs read permission."""
    words = {tuple(call.lower().split(" ")) for call in ACCESS}
    named = {each[0] for each in words} | {"|".join(each[:2]) for each in words}
    keyed = {each.name for each in all_commands() if any("not_key" not in spec.flags for spec in each.key_specs)}
    assert keyed - named == {"twait"}  # see test_the_key_of_a_wait()


@pytest.mark.parametrize("kind", [("XCLAIM", "k", "g", "c", 0, "1-0"), ("XCLAIM", "k", "g", "c", 0, "1-0", "FORCE"),
    ("XCLAIM", "k", "g", "c", 0, "1-0", "JUSTID"), ("XAUTOCLAIM", "k", "g", "c", 0, 0),
    ("XREADGROUP", "GROUP", "g", "c", "STREAMS", "k", ">"), ("XREADGROUP", "GROUP", "g", "c", "STREAMS", "k", "0"),
    ("XREAD", "STREAMS", "k", 0), ("TREAD", "k", 0, 9, "GROUP", "g", 0), ("TWAIT", 0, "GROUP", "g", "k"),
], ids=str)  # fmt: skip
def test_who_may_only_write_reads_no_entries(
    admin: Raw, login: Callable[..., Raw], kind: tuple[str | int, ...]
) -> None:  # fmt: skip
    for number in (1, 2):
        admin("XADD", "k", f"{number}-0", "secret", "text")
    admin("XGROUP", "CREATE", "k", "g", 0)
    admin("XREADGROUP", "GROUP", "g", "other", "COUNT", 1, "STREAMS", "k", ">")
    writer, both = login("writer", "+@all", "%W~*", "%R~other"), login("both", "+@all", "%W~k", "~k")
    before = admin("XPENDING", "k", "g", "-", "+", 9)
    assert writer(*kind) == KEY
    assert writer.pipeline(("MULTI",), kind, ("EXEC",))[1] == KEY
    assert [row[:2] for row in admin("XPENDING", "k", "g", "-", "+", 9)] == [row[:2] for row in before]
    assert b"NOPERM" not in str(both(*kind)).encode()


def test_commands(login: Callable[..., Raw]) -> None:
    """A command can be allowed and forbidden alone, also a subcommand."""
    names = {each.name for each in all_commands()}
    for call in ACCESS:
        words = call.split(" ")
        name = words[0].lower()
        name = next((each for each in (f"{name}|{words[1].lower()}", name) if each in names), name)
        with closing(login("al", "~*", "-@all", f"+{name}")) as al:
            assert al("PING") == denied("al", "ping"), call
            assert "NOPERM" not in str(al(*words)), call
        with closing(login("bo", "~*", "+@all", f"-{name}")) as bo:
            assert bo("PING") == b"PONG"
            assert bo(*words) == denied("bo", name), call


def test_every_command_can_be_denied(login: Callable[..., Raw]) -> None:
    """But for those that a client needs to become another user, and the one that clients send on each connection."""
    al = login("al", "~*", "&*")
    for cmd in all_commands():
        if cmd.bare or cmd.name in ("auth", "hello", "quit", "reset", "client|multislot"):
            continue
        words = [*cmd.name.split("|"), *["x"] * (abs(cmd.arity) - cmd.name.count("|") - 1)]
        assert al(*words) == denied("al", cmd.name)
    assert al("RESET") == b"RESET"


def test_categories_follow_from_declarations(login: Callable[..., Raw]) -> None:
    al = login("al", "~*", "+@stream", "-@write")
    assert al("TLEN", "s") == 0
    assert al("TAPPEND", "s", "f", "v") == denied("al", "tappend")
    assert al("TREAD", "s", 0, 1) == denied("al", "tread")
    assert al("GET", "s") == denied("al", "get")


def test_a_reader_that_may_only_read(login: Callable[..., Raw]) -> None:
    """TREAD is in @write; who gets it with read permission can't change anything by it."""
    al = login("al", "%R~*", "+@read", "+tread")
    assert al("TREAD", "s", 0, 1) == []
    assert al("TREAD", "s", 0, 1, "GROUP", "g", 0) == KEY


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        (["k", 0, 1, "GROUP", "g", 0, "RETRY", 1, 0, "DEADLETTER", "k2"], True),
        (["k", 0, 1, "GROUP", "g", 0, "RETRY", 1, 0, "DEADLETTER", "other"], False),
        (["k", 0, 1, "GROUP", "DEADLETTER", 0, "RETRY", 1, 0, "DEADLETTER", "other"], False),
        (["k", 0, 1, "GROUP", "deadletter", 0, "RETRY", 1, 0, "deadletter", "k2"], True),
        (["k", 0, 1, "GROUP", "deadletter", 0], True),
        (["kDEADLETTER", 0, 1], True),
        (["k", 0, 1, "DEADLETTER", "other", "GROUP", "g", 0, "RETRY", 1, 0], False),
        (["k", 0, 1, "WITHINFO", "BLOCK", 1, "RETRY", 1, 0, "MAXDELIVERIES", 1, "DEADLETTER", "other", "GROUP", "g", 0],
         False),
    ],
)  # fmt: skip
def test_dead_letter_keys(login: Callable[..., Raw], words: list[Word], allowed: bool) -> None:
    """Also where another argument looks like the option."""
    al = login("al", "~k*", "+@all")
    assert al("TREAD", *words) == ([] if allowed else KEY)


def test_who_publishes_must_be_allowed_to_write_what_was_staged(admin: Raw, login: Callable[..., Raw]) -> None:
    al = login("al", "~a", "~one", "~two", "~none", "~fence", "+@all")
    assert admin("TSTAGE", "one", 0, "a", "FIELDS", 1, "f", "VALUES", "v") == 1
    assert admin("TSTAGE", "two", 0, "b", "FIELDS", 1, "f", "VALUES", "v") == 1
    assert al("TPUBLISH", "fence", 1, "one", "two") == KEY
    assert al("TPUBLISH", "fence", 1, "check", "sum", "two") == KEY
    assert al("TDROP", "two") == KEY
    assert al("TPUBLISH", "fence", 1, "CHECK", "sum", "one") == [b"published", 1]
    assert al("TDROP", "none") == 0
    assert admin("TLEN", "b") == 0
    assert admin("TPUBLISH", "fence", 2, "two") == [b"published", 1]


STAGED = ("FIELDS", 1, "f", "VALUES", "v")


@pytest.mark.parametrize(
    "words",
    [
        ("TPUBLISH", "al:fence", 2**63 - 1, "bo:stage"),
        ("TPUBLISH", "al:fence", 2**63 - 1, "CHECK", "sum", "bo:stage"),
        ("TPUBLISH", "bo:fence", 1, "al:stage"),
        ("TPUBLISH", "bo:fence", 1, "bo:stage", "al:stage"),
        ("TPUBLISH", "bo:fence", 1, "CHECK", "sum", "bo:stage", "al:stage"),
        ("TSTAGE", "al:stage", 600_000, "bo:out", *STAGED),
        ("TSTAGE", "al:stage", 1, "bo:out", *STAGED),
        ("TDROP", "al:stage"),
        ("TDROP", "bo:stage", "al:stage"),
        ("TDROP", "al:absent"),
        ("TFENCE", "al:fence"),
    ],
)
def test_stages_and_fences_belong_to_those_who_may_use_their_names(
    login: Callable[..., Raw], hand: RunningServer, words: tuple[Word, ...]
) -> None:
    """Whoever may only use other names can't publish under a fence, nor add to a stage, drop it or let it end."""
    al, bo = login("al", "~al:*", "+@stream"), login("bo", "~bo:*", "+@stream")
    assert al("TSTAGE", "al:stage", 600_000, "al:out", *STAGED) == 1
    assert bo("TSTAGE", "bo:stage", 600_000, "bo:out", *STAGED) == 1
    assert bo(*words) == KEY
    hand.advance(1000)
    assert al("TPUBLISH", "al:fence", 7, "al:stage") == [b"published", 1]
    assert bo("TPUBLISH", "bo:fence", 7, "bo:stage") == [b"published", 1]
    assert (al("TFENCE", "al:fence"), bo("TFENCE", "bo:fence")) == (7, 7)


# -- batches -----------------------------------------------------------------------------------------------------
def test_pipelines_of_appends(admin: Raw, login: Callable[..., Raw]) -> None:
    al = login("al", "%W~a", "+tappend", "+tlen")
    admin("CONFIG", "RESETSTAT")
    appends = [("TAPPEND", key, "f", b"%d" % n) for n in range(100) for key in ("a", "b")]
    assert [reply for reply in al.pipeline(*appends) if reply == KEY] == [KEY] * 100
    assert len({bytes(reply) for reply in al.pipeline(*appends[::2])}) == 100
    assert al("TLEN", "a") == 200
    assert admin("TLEN", "b") == 0
    admin("ACL", "SETUSER", "al", "-tappend")
    assert set(al.pipeline(*appends[::2])) == {denied("al", "tappend")}
    stats = admin("INFO", "commandstats").decode()
    assert re.search(r"cmdstat_tappend:calls=200,.*rejected_calls=200,failed_calls=0", stats)


@pytest.mark.interpreted
def test_appends_of_a_restricted_user_are_batches(
    admin: Raw, login: Callable[..., Raw], hand: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher = hand.server.dispatcher
    sizes: list[int] = []

    def counted(*arguments: Any, inner: Any = dispatcher._call_alike) -> Any:
        answer = inner(*arguments)
        sizes.append(dispatcher._calls)
        return answer

    monkeypatch.setattr(dispatcher, "_call_alike", counted)
    al = login("al", "%W~a", "+tappend")
    al.sock.sendall(pack("TAPPEND", "a", "f", "v") * 50)
    assert len({al.read() for _ in range(50)}) == 50
    assert max(sizes) > 10


def queued(raw: Raw, *words: str) -> object:
    """The reply to a command that would wait, inside MULTI."""
    return raw.pipeline(("MULTI",), words, ("DISCARD",))[1]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_key_of_a_wait(login: Callable[..., Raw], pattern: str) -> None:
    al = login("al", "+@all", pattern)
    gives = PATTERNS[pattern] or ""
    assert queued(al, "TWAIT", "0", "k", "0") == (b"QUEUED" if "r" in gives else KEY)
    assert queued(al, "TWAIT", "0", "GROUP", "g", "k") == (b"QUEUED" if gives == "rw" else KEY)


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        ("0 a 0 b 0", True),
        ("0 a 0 c 0", False),
        ("0 b 0 GROUP 0", False),
        ("0 GROUP 0", False),
        ("0 GROUP g b a", True),
        ("0 GROUP g b a c", False),
        ("0 GROUP a b g", False),  # the second word is the group's name, and g a key
        ("0 GROUP c b", True),
    ],
)
def test_all_keys_of_a_wait(login: Callable[..., Raw], words: str, allowed: bool) -> None:
    al = login("al", "~a", "~b", "+twait", "+multi", "+discard")
    assert queued(al, "TWAIT", *words.split()) == (b"QUEUED" if allowed else KEY)


# -- clients that are connected when rules change -------------------------------------------------------------------
def test_a_blocked_reader_that_loses_its_key(admin: Raw, login: Callable[..., Raw]) -> None:
    al, group, bo = login("al", "~a", "~b", "+@all"), login("al", "~a", "~b", "+@all"), login("bo", "~*", "+@all")
    al.send("TREAD", "a", "", 1, "BLOCK", 0)
    group.send("TREAD", "b", "", 1, "BLOCK", 0, "GROUP", "g", 0)
    bo.send("TREAD", "a", "", 1, "BLOCK", 0)
    while b"blocked_clients:3" not in admin("INFO", "clients"):
        pass
    admin("ACL", "SETUSER", "al", "%R~b")
    assert admin("TLEN", "a") == 0
    admin("ACL", "SETUSER", "al", "resetkeys", "%R~b")
    assert al.read() == KEY
    assert group.read() == KEY
    assert al("TREAD", "b", 0, 1) == []
    assert b"blocked_clients:1" in admin("INFO", "clients")
    admin("TAPPEND", "a", "f", "v")
    assert bo.read()[0][1:] == [b"f", b"v"]
    assert [entry[7] for entry in admin("ACL", "LOG")[:2]] == [b"b", b"a"]


def test_a_wait_that_loses_one_of_its_keys(admin: Raw, login: Callable[..., Raw]) -> None:
    al, bo = login("al", "~a", "~b", "+@all"), login("bo", "~a", "+@all")
    admin("TREAD", "b", "", 0, "GROUP", "g", 0)
    group = login("al")
    al.send("TWAIT", 0, "a", 0, "b", 0)
    group.send("TWAIT", 0, "GROUP", "g", "b")
    bo.send("TWAIT", 0, "a", 0)
    while b"blocked_clients:3" not in admin("INFO", "clients"):
        pass
    admin("ACL", "SETUSER", "al", "resetkeys", "~a", "%R~b")
    assert group.read() == KEY
    assert b"blocked_clients:2" in admin("INFO", "clients")
    admin("ACL", "SETUSER", "al", "resetkeys", "~a")
    assert al.read() == KEY
    admin("TAPPEND", "a", "f", "v")
    assert bo.read() == [b"a"]


def test_a_blocked_reader_that_loses_its_command_or_its_user(admin: Raw, login: Callable[..., Raw]) -> None:
    al, bo = login("al", "~a", "+@all"), login("bo", "~*", "+@all")
    for raw in (al, bo):
        raw.send("TREAD", "a", "", 1, "BLOCK", 0)
    while b"blocked_clients:2" not in admin("INFO", "clients"):
        pass
    admin("ACL", "SETUSER", "al", "-@stream")
    assert al.read() == denied("al", "tread")
    assert admin("ACL", "DELUSER", "bo") == 1
    assert closed(bo)
    assert b"blocked_clients:0" in admin("INFO", "clients")


def test_a_user_that_is_disabled(admin: Raw, login: Callable[..., Raw], connect: Callable[..., Raw]) -> None:
    al = login("al", "+@all")
    admin("ACL", "SETUSER", "al", "off")
    assert al("PING") == b"PONG"  # as in Redis, connections that are there stay
    other = connect()
    assert str(other("AUTH", "al", "x")).startswith("WRONGPASS ")
    admin("ACL", "SETUSER", "al", "on")
    assert other("AUTH", "al", "x") == b"OK"


def test_a_user_that_deletes_itself_in_a_transaction(login: Callable[..., Raw], admin: Raw) -> None:
    al = login("al", "+@all", "~*")
    al.pipeline(("MULTI",), ("SET", "k", 1), ("ACL", "DELUSER", "al"), ("SET", "k", 2))
    replies = al("EXEC")
    assert replies[:2] == [b"OK", 1]
    assert str(replies[2]).startswith("NOPERM ")
    assert closed(al)
    assert admin("GET", "k") == b"1"


def test_a_monitor_that_loses_its_command(admin: Raw, login: Callable[..., Raw]) -> None:
    al, bo = login("al", "+@all"), login("bo", "+@all")
    assert al("MONITOR") == b"OK"
    assert bo("MONITOR") == b"OK"
    admin("ACL", "SETUSER", "al", "-monitor")
    admin("PING")
    assert closed(al)
    assert b'"PING"' in bo.read()


def test_a_default_user_that_is_opened_lets_everybody_in(connect: Callable[..., Raw], admin: Raw) -> None:
    admin("ACL", "SETUSER", "default", ">secret")
    other = connect()
    assert other("PING") == "NOAUTH Authentication required."
    assert admin("PING") == b"PONG"
    admin("ACL", "SETUSER", "default", "nopass")
    assert other("PING") == b"PONG"


def test_requirepass_is_the_password_of_default(connect: Callable[..., Raw], admin: Raw) -> None:
    admin("CONFIG", "SET", "requirepass", "one")
    other = connect()
    assert other("AUTH", "one") == b"OK"
    admin("ACL", "SETUSER", "default", ">two", "-debug")
    assert [connect()("AUTH", word) for word in ("one", "two")] == [b"OK", b"OK"]
    admin("CONFIG", "SET", "requirepass", "three")
    assert str(connect()("AUTH", "two")).startswith("WRONGPASS ")
    assert connect()("HELLO", 3, "AUTH", "default", "three")[b"proto"] == 3
    assert admin("DEBUG", "DIGEST") == denied("default", "debug|digest")


def test_resubscribing_and_channels(login: Callable[..., Raw], admin: Raw) -> None:
    al = login("al", "+@all", "&a*")
    assert al("SUBSCRIBE", "b") == CHANNEL
    assert al("PSUBSCRIBE", "a1*") == CHANNEL
    assert al("SUBSCRIBE", "a1")[2] == 1
    admin("ACL", "SETUSER", "al", "resetchannels", "&a1")
    assert admin("PUBLISH", "a1", "x") == 1
    assert al.read() == [b"message", b"a1", b"x"]
    admin("ACL", "SETUSER", "al", "resetchannels")
    assert closed(al)


# -- what others see -------------------------------------------------------------------------------------------------
def test_nothing_about_users_is_shown(admin: Raw, connect: Callable[..., Raw]) -> None:
    admin("CONFIG", "SET", "slowlog-log-slower-than", 0)
    watcher = connect()
    watcher("MONITOR")
    admin("ACL", "SETUSER", "al", "on", ">secret")
    admin("ACL", "GETUSER", "al")
    admin("AUTH", "al", "wrong")
    admin("ACL", "DELUSER", "al")
    admin("ECHO", "end")
    lines: list[bytes] = []
    while not lines or b"end" not in lines[-1]:
        lines.append(watcher.read())
    assert not [line for line in lines if b"secret" in line or b"wrong" in line or b"SETUSER" in line]
    shown = [entry[3] for entry in admin("SLOWLOG", "GET", -1)]
    assert [b"ACL", b"SETUSER", b"(redacted)", b"(redacted)", b"(redacted)"] in shown
    assert [b"ACL", b"DELUSER", b"(redacted)"] in shown
    assert b"secret" not in b" ".join(word for words in shown for word in words)


def test_the_log_of_denials(admin: Raw, login: Callable[..., Raw], hand: RunningServer) -> None:
    admin("CONFIG", "SET", "acllog-max-len", 3)
    al = login("al", "+get", "+multi", "~a")
    al.pipeline(("GET", "b"), ("GET", "b"), ("SET", "b", 1), ("AUTH", "al2", "x"), ("MULTI",), ("GET", "b"))
    rows = [dict(zip(row[::2], row[1::2], strict=True)) for row in admin("ACL", "LOG")]
    names = (b"count", b"reason", b"context", b"object", b"username", b"entry-id")
    assert [[row[name] for name in names] for row in rows] == [
        [1, b"key", b"multi", b"b", b"al", 3],
        [1, b"auth", b"toplevel", b"AUTH", b"al2", 2],
        [1, b"command", b"toplevel", b"set", b"al", 1],
    ]
    assert b" user=al " in rows[0][b"client-info"]
    assert rows[0][b"timestamp-created"] == rows[0][b"timestamp-last-updated"] == hand.server.clock.now()
    hand.advance(2500)
    assert dict(zip(*[iter(admin("ACL", "LOG", 1)[0])] * 2, strict=True))[b"age-seconds"] == b"2.5"
    assert b"acl_access_denied_cmd:1\r\nacl_access_denied_key:3\r\n" in admin("INFO", "stats")
    assert admin("ACL", "LOG", "RESET") == b"OK"
    assert admin("ACL", "LOG") == []


def test_selectors_are_refused(admin: Raw) -> None:
    assert admin("ACL", "SETUSER", "al", "+get", "(+set ~a)") == (
        "ERR Error in ACL SETUSER modifier '(+set ~a)': Selectors are not supported: give the rules to the user "
        "itself, or create another user"
    )
    assert admin("ACL", "GETUSER", "al") is None
    assert "except for subcommands" in admin("ACL", "SETUSER", "al", "+select|0")


def test_renamed_commands() -> None:
    """Rules use the names as declared, and errors those that clients use."""
    renames = ["GET", "fetch"]
    with start_in_thread(clock=HandClock(), rename_command=renames) as server, Raw(server.port) as c:
        assert c("ACL", "SETUSER", "al", "on", "nopass", "+@all", "-get", "~*") == b"OK"
        assert c("AUTH", "al", "x") == b"OK"
        assert c("FETCH", "k") == denied("al", "fetch")


# -- redis-py ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py(hand: RunningServer, protocol: int) -> None:
    with redis.Redis(port=hand.port, protocol=protocol, decode_responses=True) as r:
        assert r.acl_setuser(
            "al", enabled=True, passwords=["+one", "+two"], categories=["+@read", "-@dangerous"],
            commands=["+tread", "-get"], keys=["a*"], channels=["c*"],
        )  # fmt: skip
        found = r.acl_getuser("al")
        assert found["enabled"]
        assert sorted(found["flags"]) == ["on"]
        assert len(found["passwords"]) == 2
        assert found["categories"] == ["-@all", "+@read", "-@dangerous"]
        assert found["commands"] == ["+tread", "-get"]
        assert found["keys"] == ["~a*"]
        assert found["channels"] == ["&c*"]
        assert found["selectors"] == []
        assert r.acl_users() == ["al", "default"]
        assert r.acl_whoami() == "default"
        assert [line.split()[1] for line in r.acl_list()] == ["al", "default"]
        assert "stream" in r.acl_cat()
        assert "tappend" in r.acl_cat("stream")
        assert r.acl_dryrun("al", "strlen", "a1") == "OK"
        assert r.acl_dryrun("al", "strlen", "b") == "User al has no permissions to access the 'b' key"
        assert r.acl_dryrun("al", "get", "a1") == "User al has no permissions to run the 'get' command"
        assert len(r.acl_genpass()) == 64
        al = redis.Redis(port=hand.port, username="al", password="two", protocol=protocol)
        with al, pytest.raises(redis.exceptions.NoPermissionError):
            al.get("a1")
        once = Retry(NoBackoff(), 0)
        wrong = redis.Redis(port=hand.port, username="al", password="three", protocol=protocol, retry=once)
        with wrong, pytest.raises(redis.exceptions.AuthenticationError):
            wrong.ping()
        log = r.acl_log()
        assert [(entry["reason"], entry["object"]) for entry in log[:2]] == [
            ("auth", "AUTH" if protocol == 2 else "HELLO"), ("command", "get"),
        ]  # fmt: skip
        assert isinstance(log[0]["age-seconds"], float)
        assert r.acl_log_reset()
        assert r.acl_deluser("al") == 1
        assert isinstance(r.acl_help(), list)


# -- docs/acl.md -------------------------------------------------------------------------------------------------
def test_the_examples_of_the_docs(admin: Raw, connect: Callable[..., Raw]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "acl.md").read_text()
    examples = re.findall(r"^    redis-cli (ACL SETUSER (?!default).*?)(?:  +#.*)?$", text, re.MULTILINE)
    assert len(examples) == 3
    for example in examples:
        assert admin(*shlex.split(example)) == b"OK"
    needed = re.findall(r"`([^`]*\+ping[^`]*)`", text)
    assert len(needed) == 2
    for rules in needed:
        assert admin("ACL", "SETUSER", "link", "reset", *rules.split()) == b"OK"
    sensors, report, workers = connect(), connect(), connect()
    assert [raw("AUTH", name, "secret") for raw, name in (
        (sensors, "sensors"), (report, "report"), (workers, "workers"),
    )] == [b"OK"] * 3  # fmt: skip
    assert sensors("TAPPEND", "temps:oslo", "celsius", 4)
    assert sensors("TRANGE", "temps:oslo", "-", "+") == denied("sensors", "trange")
    assert len(report("TREAD", "temps:oslo", 0, 10)) == 1
    assert report("TREAD", "temps:oslo", 0, 10, "GROUP", "g", 0) == KEY
    assert report("PING") == b"PONG"
    assert workers("TREAD", "jobs", "", 1, "GROUP", "g", 0, "RETRY", 1, 0, "DEADLETTER", "jobs:failed") == []
    assert workers("TREAD", "temps:oslo", "", 1) == KEY
    assert admin("ACL", "SETUSER", "default", "off") == b"OK"
    assert connect()("PING") == "NOAUTH Authentication required."
