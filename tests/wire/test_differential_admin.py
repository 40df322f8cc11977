"""The same words to tidelog and to a real redis-server: the same bytes come back.

The real one may be as old as 7.0; what later versions added is tested elsewhere.
"""

from __future__ import annotations

import re
import socket
import time
from typing import Any, Protocol

import pytest

from tests.waiting import eventually
from tests.wire.rawclient import Raw, pack


class Port(Protocol):
    """What the fixtures ``server`` and ``redis_server`` have in common."""

    port: int


def transcript(port: int, proto: int, script: list[list[str]]) -> bytes:
    """Everything that comes back for the commands, sent at once on a connection of their own, until it closes."""
    words = [["HELLO", "3"], *script] if proto == 3 else script
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        sock.sendall(b"".join(pack(*command) for command in words))
        sock.sendall(pack("QUIT"))
        out = b""
        while data := sock.recv(1 << 16):
            out += data
    if proto == 3:  # who answers HELLO is told apart: leave its map out
        head, found, rest = out.partition(b"$7\r\nmodules\r\n*0\r\n")
        assert head.startswith(b"%7\r\n")
        assert found
        return rest
    return out


# name -> commands, a line each; words are separated by spaces, "" is an empty word
SCRIPTS = {
    "connection": """
        PING
        PING hello
        PING a b
        ECHO x
        ECHO
        SELECT 0
        SELECT 99
        SELECT -1
        SELECT x
        AUTH pw
        AUTH default anything
        AUTH nobody pw
        AUTH a b c
        AUTH
        HELLO 4
        HELLO x
        HELLO 3 NOISE
        HELLO 3 AUTH default
        HELLO 3 AUTH nobody pw
        HELLO 3 SETNAME
        RESET
        RESET now
        nosuch a b
        NOSUCH
    """,
    "client words": """
        CLIENT
        CLIENT NOSUCH
        CLIENT GETNAME
        CLIENT SETNAME a\tb
        CLIENT SETNAME job-1
        CLIENT GETNAME
        CLIENT SETNAME ""
        CLIENT GETNAME
        CLIENT SETNAME
        CLIENT ID x
        CLIENT REPLY MAYBE
        CLIENT REPLY
        CLIENT NO-EVICT ON
        CLIENT NO-EVICT OFF
        CLIENT NO-EVICT x
        CLIENT GETREDIR
        CLIENT TRACKINGINFO
        CLIENT TRACKING OFF
        CLIENT TRACKING x
        CLIENT UNBLOCK 99999999
        CLIENT UNBLOCK x
        CLIENT UNBLOCK 1 x
        CLIENT UNBLOCK 1 ERROR x
        CLIENT PAUSE
        CLIENT PAUSE x
        CLIENT PAUSE -1
        CLIENT PAUSE 1 x
        CLIENT PAUSE 1 ALL x
        CLIENT UNPAUSE
        CLIENT KILL 1.2.3.4:5
        CLIENT KILL ID x
        CLIENT KILL ID 0
        CLIENT KILL ID 99999999
        CLIENT KILL TYPE odd
        CLIENT KILL TYPE master
        CLIENT KILL USER nobody
        CLIENT KILL SKIPME perhaps
        CLIENT KILL ADDR 1.2.3.4:5 LADDR 5.4.3.2:1
        CLIENT KILL ID 1 TYPE
        CLIENT KILL COLOUR red
        CLIENT LIST TYPE odd
        CLIENT LIST ID x
        CLIENT LIST ID
        CLIENT LIST TYPE
        CLIENT LIST ID 99999999
    """,
    "replies off and skipped": """
        CLIENT REPLY SKIP
        PING a
        PING b
        CLIENT REPLY OFF
        PING c
        CLIENT REPLY SKIP
        nosuch
        PING d
        CLIENT REPLY ON
        PING e
        CLIENT REPLY SKIP
        CLIENT REPLY SKIP
        PING f
        PING g
    """,
    "subscribed": """
        SUBSCRIBE a b a
        PSUBSCRIBE n*
        PING
        PING x
        UNSUBSCRIBE b never
        PUNSUBSCRIBE
        UNSUBSCRIBE a
        UNSUBSCRIBE
        PUNSUBSCRIBE
        PUBSUB NUMPAT
        PUBSUB CHANNELS none*
        PUBSUB CHANNELS a b
        PUBSUB NUMSUB
        PUBSUB NUMSUB none
        PUBSUB SOME
        PUBSUB NUMPAT x
        PUBLISH nobody x
        PUBLISH x
        SUBSCRIBE
    """,
    "confirmations with replies off": """
        CLIENT REPLY OFF
        SUBSCRIBE a b
        PSUBSCRIBE n*
        PING
        UNSUBSCRIBE a
        PUNSUBSCRIBE
        UNSUBSCRIBE
        CLIENT REPLY ON
        PING e
        CLIENT REPLY SKIP
        SUBSCRIBE a
        PING f
        RESET
        CLIENT REPLY SKIP
        UNSUBSCRIBE
        PING g
    """,
    "reset ends everything": """
        SUBSCRIBE a
        RESET
        MULTI
        RESET
        EXEC
        CLIENT SETNAME x
        RESET
        CLIENT GETNAME
        CLIENT REPLY OFF
        RESET
        PING
    """,
    "transactions": """
        EXEC
        DISCARD
        MULTI
        MULTI
        WATCH k
        SET diff:k 1
        SET diff:k
        EXEC
        EXISTS diff:k
        MULTI
        nosuch
        EXEC
        MULTI
        SET diff:k 5
        INCR diff:k
        GET
        DISCARD
        MULTI
        SET diff:k 5
        INCR diff:k
        GET diff:k
        SELECT 99
        PING
        EXEC
        MULTI
        EXEC
        WATCH diff:k
        SET diff:k 6
        MULTI
        PING
        EXEC
        WATCH diff:k
        SET diff:k 7
        UNWATCH
        MULTI
        PING
        EXEC
        WATCH diff:k diff:l
        MULTI
        GET diff:k
        EXEC
        WATCH diff:k
        SET diff:k 8
        MULTI
        DISCARD
        MULTI
        EXEC
        WATCH
        MULTI x
        MULTI
        SUBSCRIBE diff:c
        EXEC
        UNSUBSCRIBE
        DEL diff:k
    """,
    "server words": """
        FLUSHALL x
        FLUSHALL SYNC SYNC
        FLUSHDB ASYNC
        DBSIZE
        DBSIZE x
        slowlog
        PuBsUb nosuch
        TIME x
        INFO nosuch
        LASTSAVE x
        BGSAVE x
        SHUTDOWN x
        SHUTDOWN SAVE NOSAVE
        SHUTDOWN ABORT NOW
        SHUTDOWN ABORT
        CONFIG
        CONFIG GET
        CONFIG GET no-such-directive
        CONFIG GET max[^x]emory
        CONFIG GET max[!x]emory
        CONFIG GET maxmem?ry
        CONFIG GET max\\memory
        CONFIG GET [a
        CONFIG SET
        CONFIG SET x
        CONFIG SET a b c
        CONFIG RESETSTAT
        CONFIG NOSUCH
        SLOWLOG RESET
        SLOWLOG GET -2
        SLOWLOG GET x
        SLOWLOG GET 1 2
        SLOWLOG NOSUCH
        LATENCY LATEST
        LATENCY HISTORY nothing
        LATENCY RESET
        LATENCY RESET nothing
        LATENCY HISTOGRAM nothing
        LATENCY HISTORY
        LATENCY GRAPH
        LATENCY GRAPH nothing
        CONFIG SET latency-tracking-info-percentiles 101
        CONFIG SET latency-tracking-info-percentiles -1
        CONFIG SET latency-tracking-info-percentiles abc
        CONFIG SET latency-tracking-info-percentiles 50,99
        CONFIG SET latency-tracking-info-percentiles ""
        CONFIG GET latency-tracking-info-percentiles
        CONFIG SET latency-tracking-info-percentiles 1e1
        CONFIG GET latency-tracking-info-percentiles
        CONFIG SET latency-tracking-info-percentiles 99.99
        CONFIG GET latency-tracking-info-percentiles
        MEMORY USAGE no-such-key
        MEMORY USAGE
        MEMORY USAGE k SAMPLES
        MEMORY USAGE k SAMPLES x
        MEMORY USAGE k SAMPLES -1
        MEMORY USAGE k SAMPLES 1 x
        MEMORY USAGE k DEEP 1
        MEMORY PURGE
        MEMORY NOSUCH
        MONITOR x
        ROLE x
        SAVE x
    """,
    "command words": """
        COMMAND COUNT x
        COMMAND INFO no-such
        COMMAND INFO no-such|sub also-none
        COMMAND DOCS no-such
        COMMAND LIST x
        COMMAND LIST FILTERBY MODULE none
        COMMAND LIST FILTERBY ACLCAT none
        COMMAND LIST FILTERBY PATTERN none*
        COMMAND LIST FILTERBY PATTERN slowlog|l*
        COMMAND LIST FILTERBY SIZE 3
        COMMAND GETKEYS
        COMMAND GETKEYS EXISTS a b
        COMMAND GETKEYS no-such x
        COMMAND GETKEYS PING x
        COMMAND GETKEYS GET k
        COMMAND GETKEYS get k more
        COMMAND GETKEYS WATCH a b c
        COMMAND GETKEYS MEMORY USAGE k
        COMMAND GETKEYS MSET a 1 b 2
        COMMAND GETKEYSANDFLAGS SET k v
        COMMAND GETKEYSANDFLAGS SET k v NX GET EX 5
        COMMAND GETKEYSANDFLAGS MGET a b
        COMMAND GETKEYSANDFLAGS DEL a b
        COMMAND GETKEYSANDFLAGS GETEX a
        COMMAND GETKEYSANDFLAGS INCR a
        COMMAND GETKEYSANDFLAGS EXPIRE a 1
        COMMAND GETKEYSANDFLAGS MEMORY USAGE a
        COMMAND NOSUCH
    """,
}


@pytest.mark.parametrize("proto", [2, 3])
@pytest.mark.parametrize("name", SCRIPTS)
def test_same_bytes(server: Port, redis_server: Port, name: str, proto: int) -> None:
    script = [
        [word if word != '""' else "" for word in line.strip().split(" ")]
        for line in SCRIPTS[name].strip().splitlines()
    ]
    ours, real = (transcript(each.port, proto, script) for each in (server, redis_server))
    assert ours.decode().split("\r\n") == real.decode().split("\r\n")


def both(server: Port, redis_server: Port, play: Any) -> None:
    """``play(raw connections factory)`` returns the same on both."""
    results = []
    for each in (server, redis_server):
        opened: list[Raw] = []

        def connect(proto: int = 2, port: int = each.port, opened: list[Raw] = opened) -> Raw:
            opened.append(Raw(port, proto))
            return opened[-1]

        try:
            results.append(play(connect))
        finally:
            for raw in opened:
                raw.close()
    assert results[0] == results[1]


@pytest.mark.parametrize("proto", [2, 3])
def test_hello(server: Port, redis_server: Port, proto: int) -> None:
    def play(connect: Any) -> Any:
        answer = connect()("HELLO", proto)
        pairs = list(answer.items()) if proto == 3 else list(zip(answer[::2], answer[1::2], strict=True))
        return [(name, value) for name, value in pairs if name not in (b"version", b"id")]

    both(server, redis_server, play)


def counted(raw: Raw, *names: str) -> list[int]:
    """Fields of INFO."""
    text = raw("INFO", "everything").decode()
    return [int(re.search(rf"^{name}:(\d+)", text, re.MULTILINE)[1]) for name in names]  # type: ignore[index]


HITS = """
    GET s | GET none | MGET s none other | STRLEN s | STRLEN none | EXISTS s none | TYPE s | TYPE none | TTL s
    PTTL none | EXPIRETIME s | TOUCH s none | OBJECT ENCODING s | OBJECT IDLETIME none | OBJECT REFCOUNT s
    MEMORY USAGE s | MEMORY USAGE none | RANDOMKEY | SCAN 0 | KEYS * | DBSIZE
    SET s v | SET s v XX | SET none v XX | SET s v GET | SET s v NX | SETNX s v | GETEX s | GETEX none | GETDEL none
    GETEX s EX 100 | PERSIST s | EXPIRE s 100 | EXPIRE none 100 | PERSIST none | INCR n | INCR n | DECRBY n 3
    MSET n 1 m 2 | DEL m none | UNLINK none | GETDEL n | GET s | WATCH s
"""


def test_keyspace_hits_and_misses(server: Port, redis_server: Port) -> None:
    def play(connect: Any) -> Any:
        raw = connect()
        raw("SET", "s", "text")
        seen = []
        for words in HITS.replace("|", "\n").strip().splitlines():
            raw("CONFIG", "RESETSTAT")
            raw(*words.split())
            seen.append((words.strip(), counted(raw, "keyspace_hits", "keyspace_misses")))
        return seen

    both(server, redis_server, play)


def test_paused_clients_are_blocked(server: Port, redis_server: Port) -> None:
    def play(connect: Any) -> Any:
        me, held, reader = connect(), connect(), connect()
        held_id = held("CLIENT", "ID")
        me("SET", "diff:e", "1", "PX", "30")
        me("CLIENT", "PAUSE", 100_000, "WRITE")
        held.send("SET", "diff:k", "v")
        eventually(lambda: counted(me, "blocked_clients") == [1])
        eventually(lambda: not me("EXISTS", "diff:e"))
        line = fields(me("CLIENT", "LIST", "ID", held_id))
        seen = [line["flags"], line["cmd"], counted(me, "clients_in_timeout_table", "expired_keys")]
        seen += [reader("GET", "diff:e"), reader("TTL", "diff:e"), me("DBSIZE"), me("KEYS", "*")]
        me("CLIENT", "UNPAUSE")
        seen += [held.read(), counted(me, "blocked_clients")]
        eventually(lambda: counted(me, "expired_keys") == [1])
        return [*seen, me("DBSIZE")]

    for each in (server, redis_server):
        with Raw(each.port) as raw:
            raw("CONFIG", "RESETSTAT")
    both(server, redis_server, play)


@pytest.mark.parametrize("proto", [2, 3])
def test_messages(server: Port, redis_server: Port, proto: int) -> None:
    def play(connect: Any) -> Any:
        listener, talker = connect(proto), connect()
        seen = [listener("SUBSCRIBE", "diff:a"), listener("PSUBSCRIBE", "diff:*")]
        seen += [talker("PUBLISH", channel, "hello") for channel in ("diff:a", "diff:b", "other")]
        seen += [listener.read() for _ in range(3)]
        seen += [talker("PUBSUB", "CHANNELS", "diff:*"), talker("PUBSUB", "NUMSUB", "diff:a", "diff:b")]
        seen.append(talker("PUBSUB", "NUMPAT"))
        seen.append(listener("GET", "diff:none"))
        return seen

    both(server, redis_server, play)


@pytest.mark.parametrize("mode", ["SKIP", "OFF"])
def test_messages_to_oneself_without_replies(server: Port, redis_server: Port, mode: str) -> None:
    script = [["SUBSCRIBE", "c"], ["PSUBSCRIBE", "*"], ["CLIENT", "REPLY", mode], ["PUBLISH", "c", "m"]]
    script += [["CLIENT", "REPLY", "ON"], ["PING"]]
    ours, real = (transcript(each.port, 3, script) for each in (server, redis_server))
    assert ours.split(b"\r\n") == real.split(b"\r\n")


def test_watch_across_clients(server: Port, redis_server: Port) -> None:
    def play(connect: Any) -> Any:
        a, b = connect(), connect(3)
        seen = []
        for words in (
            ("SET", "diff:w", "2"), ("SET", "diff:w", "1"), ("DEL", "diff:w"), ("DEL", "diff:w"), ("GET", "diff:w"),
            ("SET", "diff:w", "1", "PX", "100000"), ("PERSIST", "diff:w"), ("PEXPIRE", "diff:w", "100000"),
            ("FLUSHALL",), ("FLUSHALL",), ("SET", "diff:other", "1"), ("DEL", "diff:other"),
        ):  # fmt: skip
            a("WATCH", "diff:w")
            b(*words)
            a("MULTI")
            a("PING")
            seen.append((words, a("EXEC")))
        return seen

    both(server, redis_server, play)


def test_expiry_of_a_watched_key(server: Port, redis_server: Port) -> None:
    def play(connect: Any) -> Any:
        a, b = connect(), connect()
        a("SET", "diff:w", "1", "PX", "200")
        a("WATCH", "diff:w")
        while b("EXISTS", "diff:w"):
            time.sleep(0.002)  # the real server's clock is no argument
        a("MULTI")
        a("PING")
        return a("EXEC")

    both(server, redis_server, play)


def test_kill(server: Port, redis_server: Port) -> None:
    def gone(raw: Raw) -> bool:
        try:
            raw.read()
        except (EOFError, ConnectionError):
            return True
        return False

    def play(connect: Any) -> Any:
        me, other, listener = connect(), connect(), connect()
        listener("SUBSCRIBE", "diff:k")
        seen = [me("CLIENT", "KILL", "ID", other("CLIENT", "ID")), gone(other)]
        seen += [me("CLIENT", "KILL", "TYPE", "pubsub"), gone(listener)]
        third = connect()
        addr = re.search(rb" addr=(\S+)", third("CLIENT", "INFO"))
        assert addr
        seen += [me("CLIENT", "KILL", addr[1]), gone(third), me("CLIENT", "KILL", addr[1])]
        own = me("CLIENT", "ID")
        seen += [me("CLIENT", "KILL", "ID", own), me("CLIENT", "KILL", "ID", own, "SKIPME", "NO"), gone(me)]
        return seen

    both(server, redis_server, play)


def fields(line: bytes) -> dict[str, str]:
    return dict(word.split("=", 1) for word in line.decode().split())


def test_client_list_has_the_fields_and_the_state(server: Port, redis_server: Port) -> None:
    same = ["name", "flags", "db", "sub", "psub", "ssub", "multi", "user", "redir", "resp", "events"]

    def play(connect: Any) -> Any:
        a, b, c = connect(), connect(3), connect()
        a("CLIENT", "SETNAME", "asker")
        b("SUBSCRIBE", "diff:x")
        b("PSUBSCRIBE", "diff:y")
        c("MULTI")
        c("PING")
        ids = [a("CLIENT", "ID"), b("CLIENT", "ID")]
        c_id = max(ids) + 1
        lines = a("CLIENT", "LIST", "ID", *ids, c_id).decode().splitlines()
        assert [int(fields(line.encode())["id"]) for line in lines] == [*ids, c_id]
        assert fields(a("CLIENT", "INFO"))["cmd"] == "client|info"
        return [[fields(line.encode())[name] for name in same] for line in lines]

    both(server, redis_server, play)
    with Raw(server.port) as a, Raw(redis_server.port) as b:
        ours, older = fields(a("CLIENT", "INFO")), fields(b("CLIENT", "INFO"))
    assert [name for name in ours if name in older] == list(older)


def test_monitor(server: Port, redis_server: Port) -> None:
    def play(connect: Any) -> Any:
        watcher, talker = connect(), connect()
        assert watcher("MONITOR") == b"OK"
        talker("SET", b'diff:"\r\n\t\x00\xff\\', "v")
        talker("AUTH", "default", "pw")
        talker("HELLO", 2, "AUTH", "default", "pw")
        talker("CONFIG", "GET", "port")
        talker("CLIENT", "ID")
        talker("INCR", b'diff:"\r\n\t\x00\xff\\')
        talker("NOSUCH")
        for word in ("MULTI", "PING", "DISCARD", "MULTI", "PING", "EXEC"):
            talker(word)
        talker("ECHO", "end")
        lines: list[str] = []
        while not lines or not lines[-1].endswith('"end"'):
            lines.append(watcher.read().decode())
        times = [re.fullmatch(r"(\d+\.\d{6}) \[0 127\.0\.0\.1:\d+\] (.*)", line) for line in lines]
        assert all(times)
        return [match[2] for match in times if match]

    both(server, redis_server, play)


# What differs on purpose: command -> why.
OTHER_ARITY = {"command|getkeys": "7.0 says -4, later ones -3", "command|getkeysandflags": "the same"}
OUR_FLAGS = {"skip_monitor", "skip_slowlog"}  # Redis 7.0 prints them for some commands only
SHARED = (  # noqa: SIM905  # reads better as words
    "hello auth ping echo quit reset select client config info time role dbsize flushdb flushall save bgsave "
    "bgrewriteaof lastsave shutdown slowlog latency memory monitor command subscribe psubscribe unsubscribe "
    "punsubscribe publish pubsub multi exec discard watch unwatch"
).split()


def test_command_info(server: Port, redis_server: Port) -> None:
    def rows(port: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        with Raw(port) as raw:
            for row in raw("COMMAND", "INFO", *SHARED):
                for each in [row, *row[9]]:
                    flags = {str(flag) for flag in each[2]} - OUR_FLAGS
                    categories = {word.decode() for word in each[6]}
                    found[each[0].decode()] = (each[1], flags, each[3:6], categories)
        return found

    ours, real = rows(server.port), rows(redis_server.port)
    for name in sorted(ours.keys() & real.keys()):
        if name in OTHER_ARITY:
            continue
        assert ours[name][0] == real[name][0], f"{name}: arity"
        assert ours[name][2] == real[name][2], f"{name}: keys"
        assert ours[name][1] == real[name][1], f"{name}: flags"
        if not name.endswith("|help") and name not in ("client", "pubsub"):  # a container calls nothing itself
            assert ours[name][3] == real[name][3], f"{name}: ACL categories"
