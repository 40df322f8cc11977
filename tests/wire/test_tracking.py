"""CLIENT TRACKING [60]: the same script on ours and on a real redis-server; every byte that every client gets."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.cache import CacheConfig

from respserver.testing import HandClock, RunningServer, start_in_thread
from tests.wire.alike import MARK, Bytes
from tests.wire.rawclient import Raw, pack


class Clients:
    """Connections by a letter each: those of ``three`` speak RESP3. ``{a}`` in a command is the ID of ``a``."""

    def __init__(self, port: int, two: str, three: str) -> None:
        self._port = port
        self._all: dict[str, Bytes] = {}
        self.ids: dict[str, bytes] = {}
        for name in two + three:
            self.connect(name, 3 if name in three else 2)

    def connect(self, name: str, proto: int) -> None:
        self._all[name] = Bytes(self._port, proto)
        self.ids[name] = self._all[name].ask("CLIENT", "ID")[1:-2]

    def close(self, name: str) -> None:
        self._all.pop(name).close()

    def close_all(self) -> None:
        for name in list(self._all):
            self.close(name)

    def run(self, name: str, commands: str) -> dict[str, bytes]:
        """Send commands, joined by ``;``, for a client; what each client has got then, IDs replaced by letters."""
        calls = []
        for words in commands.split(";"):
            for letter, number in self.ids.items():
                words = words.replace("{" + letter + "}", number.decode())
            calls.append(shlex.split(words))
        got = {name: self._marked(self._all[name], calls)}
        for other in self._all:
            if other != name:
                got[other] = self._marked(self._all[other], [])
        return {client: self._masked(data) for client, data in got.items()}

    @staticmethod
    def _marked(client: Bytes, calls: list[list[str]]) -> bytes:
        """The bytes around the replies of two PINGs, which subscribers may send, too: what comes at the end of a tick
        comes after the first one."""
        end = b"$%d\r\n%b\r\n" % (len(MARK), MARK)
        data = b""
        for words in (calls, []):
            client._sock.sendall(b"".join(pack(*call) for call in words) + pack("PING", MARK))
            while end not in data:
                piece = client._sock.recv(1 << 16)
                assert piece
                data += piece
            data = data.replace(end, b"")
        return data

    def _masked(self, data: bytes) -> bytes:
        for letter, number in self.ids.items():
            if b"redir" in data:
                data = data.replace(b":%b\r\n" % number, b":%b\r\n" % letter.encode())
        return data


SETTINGS = {"enable_debug_command": "yes"}
Same = Callable[..., None]


@pytest.fixture
def same(emptied: RunningServer, redis_server: Any) -> Iterator[Same]:
    """same(script, two="ab", three="cd"): each line is a client's letter and commands. ``#close x`` closes one."""
    opened: list[Clients] = []

    def same(script: str, two: str = "", three: str = "ab") -> None:
        ours, theirs = Clients(emptied.port, two, three), Clients(redis_server.port, two, three)
        opened.extend((ours, theirs))
        for line in filter(None, map(str.strip, script.splitlines())):
            if line.startswith("#close "):
                for clients in (ours, theirs):
                    clients.close(line[-1])
                continue
            name, commands = line.split(" ", 1)
            assert ours.run(name, commands) == theirs.run(name, commands), line

    yield same
    for clients in opened:
        clients.close_all()


INFO = "CLIENT TRACKINGINFO"


def test_what_was_read_is_invalidated_once(same: Same) -> None:
    same("""
        a CLIENT TRACKING ON
        a GET k; MGET k l m; STRLEN n; EXISTS o p
        b SET k 1
        b SET k 2
        b MSET l 1 m 2 n 3 q 4
        b DEL o p
        a GET k; SET r 1; GET r
        b SET r 2
        b EXPIRE k 100
        a TTL k
        b PERSIST k
        a GET k
        b DEL k
        a GET k
        b RENAME n k
        a GET k; GET n
        b RENAME k n
        a GET n
        b APPEND n x
        a GET n
        b INCR l
        b INCR m
        a GET m; TYPE l
        b COPY m l REPLACE
        a GET l
        b GETDEL l
        a GET l
        b SETRANGE l 3 x
        a CLIENT TRACKING OFF
        a GET l
        b SET l 1
    """)


def test_own_changes(same: Same) -> None:
    same("""
        a CLIENT TRACKING ON
        a GET k; SET k 1; GET k
        a GET k; MULTI; SET k 1; GET k; SET k 2; EXEC; GET k
        b SET k 3
        a CLIENT TRACKING OFF; CLIENT TRACKING ON NOLOOP
        a GET k; SET k 1; GET k
        b SET k 1
        b SET k 1
        a GET k; MULTI; GET l; SET k 1; SET l 2; EXEC; GET k
        b SET k 1
        b SET l 1
    """)


def test_broadcasts(same: Same) -> None:
    same("""
        a CLIENT TRACKING ON BCAST
        b SET k 1
        b SET k 2
        b MSET l 1 m 2 k 3
        b SET z 1; SET y 1; SET z 2
        a SET k 1
        b FLUSHALL
        b SET k 2
        a CLIENT TRACKING ON BCAST PREFIX x
        a CLIENT TRACKING OFF
        b SET k 3
        a CLIENT TRACKING ON BCAST PREFIX one PREFIX two NOLOOP
        a SET one 1
        b SET one:2 1
        b MSET on 1 two 1 one 2 three 3
        a CLIENT TRACKING ON BCAST PREFIX three
        b MSET on 1 two 1 one 2 three 3
        a CLIENT TRACKINGINFO
        c CLIENT TRACKING ON BCAST PREFIX two
        b MSET on 1 two 1 one 2 three 3
        c SET two 2
        a SET two 2
    """, three="abc")


def test_flush(same: Same) -> None:
    same("""
        a CLIENT TRACKING ON
        c CLIENT TRACKING ON BCAST
        b FLUSHALL
        b SET k 1
        a GET k
        a FLUSHALL
        b FLUSHDB
        b SET k 1
        d CLIENT TRACKING ON REDIRECT {e}
        b FLUSHALL
        e SUBSCRIBE __redis__:invalidate
        b FLUSHALL
        a GET k; MULTI; SET k 1; FLUSHALL; EXEC
    """, two="de", three="abc")


def test_opt_in_and_out(same: Same) -> None:
    same("""
        a CLIENT TRACKING ON OPTIN
        a GET k; CLIENT CACHING YES; GET l; GET m
        a CLIENT CACHING YES; CLIENT ID; CLIENT TRACKINGINFO; GET n; CLIENT TRACKINGINFO
        a CLIENT CACHING YES; MULTI; GET o; GET p; EXEC; GET q
        a CLIENT CACHING YES; PING; GET r
        b MSET k 1 l 1 m 1 n 1 o 1 p 1 q 1 r 1
        a CLIENT CACHING NO; CLIENT CACHING maybe; CLIENT CACHING; CLIENT CACHING YES NO
        a CLIENT TRACKING ON OPTOUT
        a CLIENT TRACKING OFF; CLIENT CACHING YES
        a CLIENT TRACKING ON OPTOUT; GET k; CLIENT CACHING NO; GET l; GET m
        a CLIENT CACHING NO; CLIENT TRACKINGINFO; MULTI; GET n; EXEC; GET o
        a CLIENT CACHING YES
        b MSET k 1 l 1 m 1 n 1 o 1 p 1 q 1 r 1
        a CLIENT TRACKING OFF; CLIENT TRACKING ON; CLIENT CACHING YES; CLIENT CACHING NO
    """)


def test_redirections(same: Same) -> None:
    same("""
        a CLIENT TRACKING ON REDIRECT {b}; CLIENT TRACKINGINFO; CLIENT GETREDIR
        a GET k
        c SET k 1
        b SUBSCRIBE x
        a GET k
        c SET k 1
        b SUBSCRIBE __redis__:invalidate
        a GET k; GET l
        c SET k 1
        c MSET k 1 l 2
        d CLIENT TRACKING ON REDIRECT {b} BCAST PREFIX p
        c MSET p1 1 p2 1
        e CLIENT TRACKING ON REDIRECT {d}
        e GET k
        c SET k 1
        #close b
        a GET k; CLIENT TRACKINGINFO
        c SET k 2
        a CLIENT TRACKINGINFO
        c SET p 1
        d CLIENT TRACKINGINFO; CLIENT GETREDIR
        a CLIENT TRACKING ON; CLIENT TRACKINGINFO
        a CLIENT TRACKING OFF; CLIENT GETREDIR
    """, two="abc", three="de")


def test_errors(same: Same) -> None:
    same("""
        a CLIENT TRACKING; CLIENT TRACKING maybe; CLIENT TRACKING ON FOO; CLIENT TRACKING OFF FOO
        a CLIENT TRACKING ON REDIRECT; CLIENT TRACKING ON PREFIX; CLIENT TRACKING ON REDIRECT x
        a CLIENT TRACKING ON REDIRECT 999999; CLIENT TRACKING ON REDIRECT {a} REDIRECT {a}
        a CLIENT TRACKING ON PREFIX x; CLIENT TRACKING ON BCAST OPTIN; CLIENT TRACKING ON BCAST OPTOUT
        a CLIENT TRACKING ON OPTIN OPTOUT; CLIENT TRACKING ON BCAST PREFIX a PREFIX b PREFIX ab
        a CLIENT TRACKING ON BCAST PREFIX abc PREFIX ab; CLIENT TRACKING ON BCAST PREFIX ab PREFIX ab
        a CLIENT TRACKING OFF; CLIENT TRACKING OFF PREFIX x; CLIENT TRACKING OFF BCAST OPTIN
        a CLIENT TRACKING ON; CLIENT TRACKING ON BCAST; CLIENT TRACKING ON OPTIN; CLIENT TRACKING ON OPTOUT
        a CLIENT TRACKING OFF; CLIENT TRACKING ON BCAST PREFIX foo; CLIENT TRACKING ON
        a CLIENT TRACKING ON BCAST PREFIX foo; CLIENT TRACKING ON BCAST PREFIX foobar; CLIENT TRACKING ON BCAST PREFIX f
        a CLIENT TRACKING ON BCAST; CLIENT TRACKINGINFO
        a CLIENT CACHING; CLIENT CACHING maybe; CLIENT GETREDIR 1; CLIENT TRACKINGINFO 1
    """)


@pytest.mark.parametrize("proto", [2, 3])
def test_what_is_told_of_the_options(same: Same, proto: int) -> None:
    script = "\n".join([
        f"a CLIENT TRACKING {options}; {INFO}; CLIENT TRACKING OFF; {INFO}" for options in (
            "ON", "OFF", "ON BCAST", "ON OPTIN", "ON OPTOUT", "ON NOLOOP", "ON BCAST PREFIX b PREFIX a NOLOOP",
            "ON REDIRECT {a}", "ON REDIRECT {b} OPTIN NOLOOP", "on bcast prefix x redirect {b}",
        )
    ])  # fmt: skip
    same(script, *(("ab", "") if proto == 2 else ("", "ab")))


def test_reset_and_the_protocol(same: Same) -> None:
    same("""
        a CLIENT TRACKING ON; GET k
        a HELLO 2 SETNAME x; GET l
        b MSET k 1 l 1
        a GET k
        b SET k 2
        a CLIENT TRACKING ON; GET k; RESET; CLIENT TRACKINGINFO
        b SET k 1
    """.replace("a HELLO 2 SETNAME x; GET l", "a GET l"))


# -- at random -----------------------------------------------------------------------------------------------------
KEYS = st.sampled_from(["a", "ab", "b", "s"])
VALUES = st.sampled_from(["1", "x"])
READS = st.one_of(
    st.tuples(st.sampled_from(["GET", "STRLEN", "EXISTS", "TYPE", "TTL", "XLEN"]), KEYS),
    st.tuples(st.just("MGET"), KEYS, KEYS),
    st.tuples(st.just("XRANGE"), KEYS, st.just("- +")),
    st.tuples(st.just("XREAD COUNT 1 STREAMS"), KEYS, KEYS, st.just("0 0")),
)
WRITES = st.one_of(
    st.tuples(st.sampled_from(["SET", "APPEND", "SETNX", "GETSET"]), KEYS, VALUES),
    st.tuples(st.sampled_from(["DEL", "INCR", "PERSIST", "GETDEL"]), KEYS),
    st.tuples(st.sampled_from(["RENAME", "RENAMENX"]), KEYS, KEYS),
    st.tuples(st.just("MSET"), KEYS, VALUES, KEYS, VALUES),
    st.tuples(st.just("EXPIRE"), KEYS, st.sampled_from(["1000", "-1"])),
    st.tuples(st.just("XADD"), st.just("s"), st.sampled_from(["1-*", "2-*", "1-1"]), st.just("f"), st.just("v")),
    st.tuples(st.just("XTRIM"), st.just("s"), st.just("MAXLEN"), st.just("1")),
    st.tuples(st.just("FLUSHALL")),
)
OPTIONS = st.sampled_from([
    "", "NOLOOP", "OPTIN", "OPTOUT", "BCAST", "BCAST PREFIX a", "BCAST PREFIX b PREFIX s NOLOOP", "REDIRECT {c}",
])  # fmt: skip
SWITCHES = st.one_of(
    OPTIONS.map(lambda options: f"CLIENT TRACKING ON {options}"),
    st.sampled_from(["CLIENT TRACKING OFF", "CLIENT CACHING YES", "CLIENT CACHING NO", "CLIENT TRACKINGINFO"]),
)
PLAIN = st.one_of(READS, READS, WRITES).map(" ".join)
LINES = st.one_of(
    PLAIN,
    SWITCHES,
    st.tuples(SWITCHES, PLAIN).map("; ".join),
    st.lists(PLAIN, min_size=1, max_size=4).map(lambda lines: "; ".join(["MULTI", *lines, "EXEC"])),
)
PROGRAMS = st.lists(st.tuples(st.sampled_from("abb"), LINES), min_size=5, max_size=30)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PROGRAMS)
def test_random_programs(emptied: RunningServer, redis_server: Any, program: list[tuple[str, str]]) -> None:
    """``a`` and ``b`` speak RESP3, ``c`` RESP2 and subscribes to what others redirect to it."""
    both = [Clients(port, "c", "ab") for port in (emptied.port, redis_server.port)]
    try:
        for clients in both:
            clients.run("c", "FLUSHALL; SUBSCRIBE __redis__:invalidate")
            clients.run("a", "CLIENT TRACKING ON")
        for name, line in program:
            ours, theirs = [clients.run(name, line) for clients in both]
            # Redis sends RESP3's null to a client of RESP2, if the one that redirects to it speaks RESP3
            theirs["c"] = theirs["c"].replace(b"invalidate\r\n_\r\n", b"invalidate\r\n$-1\r\n")
            assert ours == theirs, (name, line)
    finally:
        for clients in both:
            clients.close_all()


# -- what can't be compared --------------------------------------------------------------------------------------------
def test_what_clients_list(emptied: RunningServer) -> None:
    with Raw(emptied.port, 3) as a, Raw(emptied.port) as b:

        def told(client: Raw) -> str:
            line = str(client("CLIENT", "INFO"))
            return " ".join(word for word in line.split() if word.startswith(("flags=", "redir=")))

        assert told(a) == "flags=N redir=-1"
        a("CLIENT", "TRACKING", "ON")
        assert told(a) == "flags=t redir=0"
        a("CLIENT", "TRACKING", "OFF")
        number = b("CLIENT", "ID")
        a("CLIENT", "TRACKING", "ON", "BCAST", "REDIRECT", number)
        assert told(a) == f"flags=tB redir={number}"
        b.close()
        while True:
            with Raw(emptied.port) as other:
                other("SET", "k", 1)
            reply = a("CLIENT", "INFO")
            if reply == [b"tracking-redir-broken", number]:
                break
        assert "flags=tRB" in str(a.read())


def test_what_info_counts(emptied: RunningServer) -> None:
    with Raw(emptied.port, 3) as a, Raw(emptied.port, 3) as b, Raw(emptied.port) as c:

        def counted() -> list[int]:
            text = c("INFO", "clients", "stats").decode()
            facts = dict(line.split(":", 1) for line in text.split() if ":" in line)
            names = "tracking_clients", "tracking_total_keys", "tracking_total_items", "tracking_total_prefixes"
            return [int(facts[name]) for name in names]

        assert counted() == [0, 0, 0, 0]
        a("CLIENT", "TRACKING", "ON")
        a("MGET", "k", "l", "k")
        b("CLIENT", "TRACKING", "ON")
        b("MGET", "k", "m")
        assert counted() == [2, 3, 4, 0]
        c("SET", "k", 1)
        assert counted() == [2, 2, 2, 0]
        assert [a.read(), b.read()] == [[b"invalidate", [b"k"]]] * 2
        used = emptied.call(lambda: emptied.server.memory.used())
        a("MGET", *[f"key:{n}" for n in range(1000)])
        assert emptied.call(lambda: emptied.server.memory.used()) > used + 100_000
        b("CLIENT", "TRACKING", "OFF")
        b("CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "x", "PREFIX", "y")
        assert counted() == [2, 1002, 1002, 2]
        c("FLUSHALL")
        assert counted() == [2, 0, 0, 2]
        a.close()
        b.close()
        while counted() != [0, 0, 0, 0]:
            pass


def test_the_table_is_bounded() -> None:
    with start_in_thread(tracking_table_max_keys="3") as server, Raw(server.port, 3) as a, Raw(server.port) as b:
        a("CLIENT", "TRACKING", "ON")
        a("MGET", "k", "l", "m")
        a.send("GET", "n")
        assert [a.read(), a.read()] in ([None, [b"invalidate", [b"k"]]], [[b"invalidate", [b"k"]], None])
        b.pipeline(*[("SET", key, 1) for key in "klmn"])
        assert [a.read() for _ in range(3)] == [[b"invalidate", [key.encode()]] for key in "lmn"]
        assert b("CONFIG", "SET", "tracking-table-max-keys", 0) == b"OK"
        a("MGET", *range(100))
        b("CONFIG", "SET", "tracking-table-max-keys", 50)
        a.send("GET", "x")
        told = [a.read() for _ in range(52)]
        assert sorted(told[-1:] + told[:1], key=repr) == sorted(told[-1:] + told[:1], key=repr)
        assert len([message for message in told if message is not None]) == 51


def test_expired_keys() -> None:
    with start_in_thread(clock=HandClock()) as server, Raw(server.port, 3) as a, Raw(server.port) as b:
        b.pipeline(("SET", "k", 1, "PX", 1000), ("SET", "l", 1, "PX", 10**6))
        a("CLIENT", "TRACKING", "ON")
        a("MGET", "k", "l")
        server.advance(2000)
        assert a.read() == [b"invalidate", [b"k"]]
        server.call(lambda: server.server.clock.move(10**6))  # type: ignore[attr-defined]
        assert b("GET", "l") is None
        assert a.read() == [b"invalidate", [b"l"]]


def test_streams(emptied: RunningServer) -> None:
    with Raw(emptied.port, 3) as a, Raw(emptied.port) as b:
        a("CLIENT", "TRACKING", "ON")

        def told(*words: bytes | str | int) -> bool:
            a("TLEN", "s")
            a("TLEN", "t")
            b(*words)
            b("PING")
            return not a.nothing_yet() and a.read() == [b"invalidate", [b"s"]]

        assert told("TAPPEND", "s", "f", "v")
        assert told("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", 1, 2)
        assert told("TAPPEV", "s", "COUNT", 1)
        assert told("TREAD", "s", 0, 1, "GROUP", "g", 0)
        b("TSTAGE", "stage", 0, "s", "FIELDS", 1, "f", "VALUES", 1, 2)
        assert told("TPUBLISH", "fence", 1, "stage")
        assert told("DEL", "s")


def test_fences(emptied: RunningServer) -> None:
    """A fence that was read is told of when another epoch is published, by whomever, and not when one is skipped."""
    with Raw(emptied.port, 3) as a, Raw(emptied.port) as b:
        a("CLIENT", "TRACKING", "ON")
        for epoch in (1, 2):
            b("TSTAGE", "stage", 0, "s", "FIELDS", 1, "f", "VALUES", 1)
            assert a("TFENCE", "fence") == (epoch - 1 or None)
            assert b("TPUBLISH", "other", epoch, "stage") == [b"published", 1]
            assert a.nothing_yet()
            b("TSTAGE", "stage", 0, "s", "FIELDS", 1, "f", "VALUES", 1)
            assert b("TPUBLISH", "fence", epoch, "stage") == [b"published", 1]
            assert a.read() == [b"invalidate", [b"fence"]]
        assert a("TFENCE", "fence") == 2
        assert b("TPUBLISH", "fence", 2, "stage") == [b"skipped", 0]
        assert a.nothing_yet()


def test_a_read_that_waited(emptied: RunningServer) -> None:
    """What it returns counts as read when it is returned."""
    with Raw(emptied.port, 3) as a, Raw(emptied.port) as b:
        a("CLIENT", "TRACKING", "ON")
        a.send("TREAD", "s", "", 1, "BLOCK", 0)
        while b"blocked_clients:1" not in b("INFO", "clients"):
            pass
        b("TAPPEND", "s", "f", "v")
        assert a.read() == [b"invalidate", [b"s"]]
        assert len(a.read()) == 1
        b("TAPPEND", "s", "f", "v")
        assert a.read() == [b"invalidate", [b"s"]]


def test_reload(emptied: RunningServer) -> None:
    with Raw(emptied.port, 3) as a, Raw(emptied.port) as b:
        a("CLIENT", "TRACKING", "ON")
        a("GET", "k")
        b("DEBUG", "RELOAD")
        assert a.read() == [b"invalidate", None]
        a("GET", "k")
        b("SET", "k", 1)
        assert a.read() == [b"invalidate", [b"k"]]


@pytest.fixture
def cached(emptied: RunningServer) -> Iterator[redis.Redis]:
    client = redis.Redis(port=emptied.port, protocol=3, cache_config=CacheConfig())
    yield client
    client.close()


def test_redis_py_caches(emptied: RunningServer, cached: redis.Redis) -> None:
    cache = cached.get_cache()
    assert cache is not None
    with redis.Redis(port=emptied.port) as other:
        other.set("k", "one")
        assert cached.get("k") == cached.get("k") == b"one"
        assert cache.size == 1
        other.set("k", "two")
        assert cached.get("k") == b"two"
        other.delete("k")
        assert cached.get("k") is None
        other.mset({"a": 1, "b": 2})
        assert cached.mget("a", "b") == [b"1", b"2"]
        other.incr("b")
        assert cached.mget("a", "b") == [b"1", b"3"]
        other.flushall()
        assert cached.mget("a", "b") == [None, None]
