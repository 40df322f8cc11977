"""ACL: the same words to tidelog and to a real redis-server: the same replies.

Debian's redis-server is 7.0. Later versions have other texts for NOPERM (``told_alike`` undoes that) and for ACL
DRYRUN, and keep the rules for commands in the order in which they were given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, Protocol

import hiredis
import pytest

from tests.wire.rawclient import Raw

HASH = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"  # of "test"


class Port(Protocol):
    """What the fixtures ``server`` and ``redis_server`` have in common."""

    port: int


Word = str | bytes | int
Connect = Callable[..., Raw]


def told_alike(reply: Any) -> Any:
    """The reply without what differs between versions of Redis."""
    if isinstance(reply, bytes):
        return told_alike(reply.decode("latin-1"))
    if isinstance(reply, hiredis.ReplyError):
        return told_alike(str(reply))
    if isinstance(reply, str):
        older = r"this user has no permissions to access one of the (\w+)s used .*"
        reply = re.sub(older, r"No permissions to access a \1", reply)
        return re.sub(r"\b(User \w+|this user) has no permissions to run", "USER has no permissions to run", reply)
    if isinstance(reply, list | tuple):
        return [told_alike(item) for item in reply]
    if isinstance(reply, dict):
        return {told_alike(name): told_alike(value) for name, value in reply.items()}
    if isinstance(reply, set | frozenset):
        return {told_alike(item) for item in reply}
    return reply


@pytest.fixture
def both(server: Port, redis_server: Port) -> Iterator[Callable[[Callable[[Connect], Any]], None]]:
    """both(play): ``play(connect)`` returns the same for both servers."""
    opened: list[Raw] = []

    def compare(play: Callable[[Connect], Any]) -> None:
        results = []
        for each in (server, redis_server):

            def connect(proto: int = 2, port: int = each.port) -> Raw:
                opened.append(Raw(port, proto))
                return opened[-1]

            results.append(told_alike(play(connect)))
        assert results[0] == results[1]

    yield compare
    for raw in opened:
        raw.close()
    with Raw(redis_server.port) as raw:
        raw("ACL", "DELUSER", "al", "bo", "cy")
        raw("ACL", "LOG", "RESET")


# Each line: rules for a new user.
RULES = f"""
    on
    off
    on off ON
    nopass
    >test
    >test >test >other
    >test <test
    <test
    #{HASH}
    #{HASH} !{HASH}
    #{HASH.upper()}
    #{HASH}0
    !x
    !{HASH}
    >test nopass
    nopass >test
    >test resetpass
    nopass resetpass
    >
    # !
    allkeys
    ~*
    ~a ~b ~a
    ~
    %R~a %W~b %RW~c %WR~d
    %r~a %w~b
    %R~a %W~a
    %R~a ~a
    %RR~a
    %X~a
    %~a
    allkeys ~a
    ~a allkeys
    ~* resetkeys ~b
    %R~*
    %R~a allkeys
    &a &b &a
    &
    allchannels
    &* &a
    &a &* resetchannels &b
    allchannels resetchannels
    +@all
    allcommands
    +@all -@all
    +@all nocommands
    +get
    +GET
    +nosuch
    -nosuch
    +
    -
    +@
    +@nosuch
    -@nosuch
    +config|nosuch
    -config|nosuch
    +config|get|x
    -get|x
    +config
    +config|get
    +config|get +config
    +config -config|set
    +@all -@dangerous
    +@all -@dangerous +config|get
    +@all -get
    +@read
    +@pubsub -@all
    on >test ~a* &c* +@all -@admin
    noise
    ON
    clearselectors
"""


@pytest.mark.parametrize("rules", [line.strip() for line in RULES.strip().splitlines()])
def test_rules(both: Callable[[Callable[[Connect], Any]], None], rules: str) -> None:
    def play(connect: Connect) -> Any:
        c, c3 = connect(), connect(3)
        seen = [c("ACL", "SETUSER", "al", *rules.split(" ")), c("ACL", "GETUSER", "al"), c3("ACL", "GETUSER", "al")]
        return [*seen, [line for line in c("ACL", "LIST") if line.startswith(b"user al ")], c("ACL", "DELUSER", "al")]

    both(play)


@pytest.mark.parametrize("word", [b"~a b", b"&a b", b"%R~ a", b"> a", b"~\xff\xfe", b"~\"a'\\"])
def test_rules_of_any_bytes(both: Callable[[Callable[[Connect], Any]], None], word: bytes) -> None:
    def play(connect: Connect) -> Any:
        c = connect()
        return [c("ACL", "SETUSER", "al", word), c("ACL", "GETUSER", "al")]

    both(play)


WORDS = """
    ACL
    ACL NOSUCH
    ACL WHOAMI
    ACL WHOAMI x
    ACL USERS
    ACL USERS x
    ACL LIST
    ACL LIST x
    ACL CAT
    ACL CAT nosuch
    ACL CAT read x
    ACL GETUSER
    ACL GETUSER nobody
    ACL SETUSER
    ACL SETUSER al
    ACL SETUSER al
    ACL SETUSER al +get noise
    ACL GETUSER al
    ACL SETUSER b\to
    ACL SETUSER b\0o
    ACL DELUSER
    ACL DELUSER nobody
    ACL DELUSER default
    ACL DELUSER al default
    ACL DELUSER al al nobody
    ACL GENPASS 0
    ACL GENPASS 4097
    ACL GENPASS -1
    ACL GENPASS x
    ACL GENPASS 1 2
    ACL LOAD
    ACL SAVE
    ACL LOG
    ACL LOG x
    ACL LOG 5 x
    ACL LOG RESET
    ACL DRYRUN
    ACL DRYRUN default
    ACL DRYRUN nobody get k
    ACL DRYRUN default nosuch
    ACL DRYRUN default get
    ACL DRYRUN default get k
    ACL DRYRUN default config nosuch
    ACL DRYRUN default config
    AUTH nobody x
    AUTH default x
    AUTH x
    CLIENT KILL USER nobody
"""


@pytest.mark.parametrize("proto", [2, 3])
def test_words(both: Callable[[Callable[[Connect], Any]], None], proto: int) -> None:
    def play(connect: Connect) -> Any:
        c = connect(proto)
        return [(line, c(*line.split(" "))) for line in map(str.strip, WORDS.strip("\n").split("\n")) if line]

    both(play)


def test_generated_passwords(both: Callable[[Callable[[Connect], Any]], None]) -> None:
    def play(connect: Connect) -> Any:
        c = connect()
        made = [c("ACL", "GENPASS", *bits) for bits in ((), (1,), (4,), (5,), (13,), (4096,))]
        assert len({made[0], c("ACL", "GENPASS")}) == 2
        assert all(re.fullmatch(rb"[0-9a-f]+", each) for each in made)
        return [len(each) for each in made]

    both(play)


CONTAINERS = {b"acl", b"client", b"config", b"latency", b"memory", b"object", b"pubsub", b"slowlog"}

OTHERS = {b"debug", b"wait"}  # DEBUG has no subcommands in Redis; WAIT is in @blocking since 7.2

# rules of a user -> calls
CALLS: dict[str, str] = {
    "+get +set ~a* %R~r* %W~w*": """
        GET a1
        SET a1 x
        GET r1
        SET r1 x
        GET w1
        SET w1 x
        GET z
        SET z x
        SET a1 x GET
        SET w1 x GET
        DEL a1
        nosuch
        GET
        PING
        AUTH al wrong
        ACL WHOAMI
    """,
    "+@all -@dangerous ~a %R~r %W~w": """
        EXISTS a
        EXISTS r
        EXISTS w
        EXISTS z
        EXISTS a r z
        MGET a r
        MGET a w
        MSET a 1 w 2
        MSET a 1 r 2
        DEL a w
        DEL a r
        GETDEL w
        GETDEL a
        GETEX w
        GETEX w PERSIST
        EXPIRE w 10
        EXPIRE r 10
        TTL w
        TTL r
        TYPE w
        STRLEN w
        INCR w
        INCR a
        PERSIST w
        OBJECT ENCODING r
        OBJECT ENCODING z
        MEMORY USAGE r
        MEMORY USAGE z
        WATCH z
        WATCH a r w
        UNWATCH
        TOUCH z
        UNLINK z
        SETNX w 1
        SETNX r 1
        KEYS *
        CONFIG GET port
        CLIENT LIST
        CLIENT ID x
        CLIENT GETNAME
        FLUSHALL
        INFO
        SHUTDOWN
        MONITOR
        ACL LIST
        ACL WHOAMI
        CONFIG
        CONFIG NOSUCH
        CLIENT NOSUCH
    """,
    "+@pubsub &c* &lit": """
        PUBLISH c1 x
        PUBLISH d x
        SUBSCRIBE d
        SUBSCRIBE c1 d
        PSUBSCRIBE c*
        PSUBSCRIBE c1
        PSUBSCRIBE lit
        UNSUBSCRIBE d
        PUNSUBSCRIBE nothing
        PUBSUB NUMSUB z
    """,
    "+client|getname +client|setname -client|setname +command ~*": """
        CLIENT GETNAME
        CLIENT SETNAME x
        CLIENT ID
        COMMAND COUNT x
        COMMAND GETKEYS GET k
        RESET
        PING
    """,
    "+multi +exec +discard +set +get ~a": """
        MULTI
        GET b
        EXEC
        MULTI
        SET a 1
        DEL a
        EXEC
        MULTI
        SET a 1
        GET a
        EXEC
        MULTI
        WATCH a
        DISCARD
    """,
}


@pytest.mark.parametrize("rules", CALLS)
def test_calls(both: Callable[[Callable[[Connect], Any]], None], rules: str) -> None:
    def play(connect: Connect) -> Any:
        admin, c = connect(), connect()
        admin("ACL", "SETUSER", "al", "on", ">test", *rules.split(" "))
        seen = [c("AUTH", "al", "test")]
        seen += [(line, c(*line.split(" "))) for line in map(str.strip, CALLS[rules].strip().splitlines())]
        log = []
        for entry in admin("ACL", "LOG", 1000):
            fields = dict(zip(entry[::2], entry[1::2], strict=True))
            log.append([fields[name] for name in (b"count", b"reason", b"context", b"object", b"username")])
        return seen, log

    both(play)


@pytest.mark.parametrize("rules", CALLS)
def test_dry_runs(both: Callable[[Callable[[Connect], Any]], None], rules: str) -> None:
    def play(connect: Connect) -> Any:
        admin = connect()
        admin("ACL", "SETUSER", "al", *rules.split(" "))
        lines = [line.strip() for line in CALLS[rules].strip().splitlines()]
        return [(line, admin("ACL", "DRYRUN", "al", *line.split(" ")) == b"OK") for line in lines]

    both(play)


def test_changes_concern_connected_clients(both: Callable[[Callable[[Connect], Any]], None]) -> None:
    def play(connect: Connect) -> Any:
        admin, c = connect(), connect()
        admin("ACL", "SETUSER", "al", "on", "nopass", "~a", "+@all")
        seen = [c("AUTH", "al", "whatever"), c("GET", "a"), c("MULTI"), c("GET", "a"), c("SET", "a", "1"), c("PING")]
        seen.append(admin("ACL", "SETUSER", "al", "resetkeys", "%R~a", "-ping"))
        seen += [c("EXEC"), c("SET", "a", "2"), c("GET", "a"), c("PING")]
        seen += [admin("ACL", "SETUSER", "al", "-@all"), c("GET", "a"), c("RESET"), c("PING")]
        return seen

    both(play)


def gone(raw: Raw) -> bool:
    try:
        while raw.read() is not None:
            pass
    except (EOFError, ConnectionError):
        return True
    return False


def test_who_is_disconnected(both: Callable[[Callable[[Connect], Any]], None]) -> None:
    def play(connect: Connect) -> Any:
        admin = connect()
        for name in ("al", "bo"):
            admin("ACL", "SETUSER", name, "on", "nopass", "~*", "&a*", "&b", "+@all")

        def logged_in(name: str) -> Raw:
            raw = connect()
            assert raw("AUTH", name, "x") == b"OK"
            return raw

        idle, channels, patterns, other = (logged_in("al") for _ in range(4))
        bo = logged_in("bo")
        channels("SUBSCRIBE", "a1")
        patterns("PSUBSCRIBE", "b")
        other("SUBSCRIBE", "b")
        seen = [admin("ACL", "SETUSER", "al", "resetchannels", "&a1", "&b"), other("PING")]
        seen += [channels("PING"), patterns("PING"), admin("ACL", "SETUSER", "al", "resetchannels", "&b")]
        seen += [gone(channels), idle("PING"), patterns("PING"), admin("ACL", "SETUSER", "al", "resetchannels", "&b*")]
        seen += [gone(patterns), other("PING"), admin("ACL", "SETUSER", "al", "resetchannels"), gone(other)]
        seen += [admin("CLIENT", "KILL", "USER", "bo"), gone(bo), idle("PING")]
        seen += [admin("ACL", "DELUSER", "al"), gone(idle)]
        self_deleting = logged_in("bo")
        seen += [self_deleting("ACL", "DELUSER", "bo"), gone(self_deleting)]
        return seen

    both(play)


def test_names_in_client_list(both: Callable[[Callable[[Connect], Any]], None]) -> None:
    def play(connect: Connect) -> Any:
        admin, c = connect(), connect()
        admin("ACL", "SETUSER", "al", "on", "nopass", "+@all")
        c("AUTH", "al", "x")
        found = re.search(rb" user=(\S+)", c("CLIENT", "INFO"))
        assert found
        c("RESET")
        again = re.search(rb" user=(\S+)", c("CLIENT", "INFO"))
        assert again
        return found[1], again[1]

    both(play)


def test_categories_of_shared_commands(server: Port, redis_server: Port) -> None:
    with Raw(server.port) as ours, Raw(redis_server.port) as real:
        shared = set(ours("COMMAND", "LIST")) & set(real("COMMAND", "LIST")) - OTHERS
        categories = ours("ACL", "CAT")
        assert categories == real("ACL", "CAT")
        for category in categories:
            mine, its = ({name for name in c("ACL", "CAT", category) if name in shared} for c in (ours, real))
            assert {name for name in mine ^ its if name not in CONTAINERS} == set(), category


def test_every_command_of_a_newer_redis_can_be_in_a_rule(server: Port, newer_redis: Port) -> None:
    """Also those that tidelog does not have, and the line in which Redis shows the user."""
    with closing(Raw(server.port)) as ours, closing(Raw(newer_redis.port)) as theirs:
        names = [name for each in theirs("COMMAND") for name in command_names(each)]
        assert len(names) > 350
        for sign in "-+":
            rules = [f"{sign}{name}" for name in names]
            all_or_none = "-@all" if sign == "+" else "+@all"
            for each in (ours, theirs):
                assert each("ACL", "SETUSER", "al", "reset", all_or_none, *rules) == b"OK"
            (line,) = [line for line in theirs("ACL", "LIST") if line.startswith(b"user al ")]
            assert ours("ACL", "SETUSER", "bo", *line.split(b" ")[2:]) == b"OK"
        assert theirs("ACL", "DELUSER", "al") == 1


def command_names(described: list[Any]) -> list[str]:
    """A command and its subcommands, from a reply to COMMAND."""
    return [described[0].decode(), *[name for sub in described[9] for name in command_names(sub)]]
