"""A limit that CONFIG SET lowers holds at once, also for what is beyond it already, where it does in Redis. [84]"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from respserver.config.directives import DIRECTIVES
from respserver.testing import RunningServer
from tests.respserver.metrics.scraping import scrape
from tests.wire.rawclient import Raw, pack
from tests.wire.test_maxmemory import OOM, used
from tidelog.testing import free_port

Connect = Callable[..., Raw]
MB = 1 << 20


class Case:
    """A server on a hand-moved clock, a client that sets directives, and others."""

    def __init__(self, hand: RunningServer, c: Raw, connect: Connect) -> None:
        self.hand = hand
        self.c = c
        self.connect = connect

    def set(self, *pairs: Any) -> None:
        assert self.c("CONFIG", "SET", *pairs) == b"OK"

    def info(self, section: str) -> dict[str, str]:
        lines = self.c("INFO", section).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def number(self, client: Raw) -> int:
        number: int = client("CLIENT", "ID")
        return number

    def there(self, number: int) -> bool:
        return b"id=%d " % number in self.c("CLIENT", "LIST")

    def with_replies(self, *, size: int = 6 * MB) -> int:
        """The ID of a client that does not read so many bytes of replies."""
        self.c("SET", "value", b"x" * size)
        client = self.connect()
        number = self.number(client)
        client.send("GET", "value")
        while b" omem=0 " in self.c("CLIENT", "LIST", "ID", number):
            pass
        return number


def tracking_table(case: Case) -> None:
    reader = case.connect(3)
    reader("CLIENT", "TRACKING", "ON")
    case.c.pipeline(*[("SET", f"k{n}", n) for n in range(12_000)])
    reader.pipeline(*[("GET", f"k{n}") for n in range(12_000)])
    case.set("tracking-table-max-keys", 10)
    told = {reader.read()[1][0] for _ in range(11_990)}
    assert told == {b"k%d" % n for n in range(11_990)}  # the oldest ones
    assert case.info("stats")["tracking_total_keys"] == "10"


def output_hard(case: Case) -> None:
    number = case.with_replies()
    case.set("client-output-buffer-limit", "normal 1mb 0 0")
    assert not case.there(number)


def output_soft(case: Case) -> None:
    number = case.with_replies()
    case.set("client-output-buffer-limit", "normal 0 1mb 5")
    assert case.there(number)
    case.hand.advance(4_000)
    assert case.there(number)
    case.hand.advance(3_000)
    assert not case.there(number)


def output_of_subscribers(case: Case) -> None:
    listener = case.connect()
    number = case.number(listener)
    listener("SUBSCRIBE", "channel")
    for _ in range(6):
        case.c("PUBLISH", "channel", b"x" * MB)
    assert case.there(number)
    case.set("client-output-buffer-limit", "pubsub 1mb 0 0")
    assert not case.there(number)


def query_buffer(case: Case) -> None:
    client = case.connect()
    number = case.number(client)
    raw = pack("SET", "k", b"x" * (3 * MB))
    client.sock.sendall(raw[: 2 * MB])
    while b" qbuf=0 " in case.c("CLIENT", "LIST", "ID", number):
        pass
    case.set("client-query-buffer-limit", "1mb")
    client.sock.sendall(raw[2 * MB : 2 * MB + 10])  # as in Redis it is looked at when more comes
    while case.there(number):
        pass


def bulk_length(case: Case) -> None:
    client = case.connect()
    case.set("proto-max-bulk-len", "1mb")
    assert client("SET", "k", b"x" * (MB + 1)) == "ERR Protocol error: invalid bulk length"


def expansion(case: Case) -> None:
    call = ("TMAPPEND", "s", "FIELDS", 1, b"f" * MB, "VALUES", *range(4))
    assert isinstance(case.c(*call), list)
    case.set("proto-max-command-expansion", "1mb")
    assert case.c(*call).startswith("ERR ")


def clients(case: Case) -> None:
    others = [case.connect() for _ in range(4)]
    assert [other("PING") for other in others] == [b"PONG"] * 4
    case.set("maxclients", 2)
    assert [other("PING") for other in others] == [b"PONG"] * 4  # as in Redis, nobody is sent away
    assert case.connect().read() == "ERR max number of clients reached"


def idle(case: Case) -> None:
    number = case.number(case.connect())
    case.hand.advance(10_000)
    case.c("PING")
    case.set("timeout", 5)
    case.hand.advance(1_000)
    assert not case.there(number)


def memory(case: Case) -> None:
    case.c("SET", "k", b"x" * MB)
    case.set("maxmemory", MB)
    assert case.c("SET", "l", "x") == OOM


def memory_of_clients(case: Case) -> None:
    case.with_replies()
    case.c("DEL", "value")
    case.set("maxmemory", 2 * MB)
    assert case.c("SET", "l", "x") == OOM


def slow_log(case: Case) -> None:
    case.set("slowlog-log-slower-than", 0)
    for _ in range(20):
        case.c("PING")
    case.set("slowlog-max-len", 3)
    assert len(case.c("SLOWLOG", "GET", -1)) == 3


def acl_log(case: Case) -> None:
    case.c("ACL", "SETUSER", "few", "on", "nopass", "~mine", "+get")
    client = case.connect()
    client("AUTH", "few", "")
    for number in range(20):
        assert client("GET", number).startswith("NOPERM")
    assert len(case.c("ACL", "LOG", 100)) == 20
    case.set("acllog-max-len", 3)
    assert len(case.c("ACL", "LOG", 100)) == 3


def node_cache(case: Case) -> None:
    case.c("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *[os.urandom(1000) for _ in range(2_000)])
    assert case.c("DEBUG", "RELOAD") == b"OK"
    for number in range(0, 2_000, 50):
        case.c("TRANGE", "s", case.c("TSEEK", "s", 0, number + 1), "+", "COUNT", 1)
    before = used(case.c)
    case.set("node-cache-size", 0)
    assert used(case.c) < before - MB


def nodes(case: Case) -> None:
    case.c("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *range(300))
    case.set("stream-node-max-entries", 10)
    case.c("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *range(25))
    facts = case.c("TINFO", "s")
    assert facts[facts.index(b"nodes") + 1] == 4  # the one that is there, ten, ten, and what is left


def node_bytes(case: Case) -> None:
    case.c("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *[b"x" * 1000] * 30)
    case.set("stream-node-max-bytes", 1024)
    case.c("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *[b"x" * 1000] * 4)
    facts = case.c("TINFO", "s")
    assert facts[facts.index(b"nodes") + 1] >= 3


def produced(case: Case) -> None:
    for number in range(10):
        case.c("XADD", "s", "IDMP", "p", number, "*", "f", "v")
    case.set("stream-idmp-maxsize", 2)
    case.c("XADD", "s", "IDMP", "p", "more", "*", "f", "v")
    facts = case.c("XINFO", "STREAM", "s")
    assert facts[facts.index(b"iids-tracked") + 1] == 2


def checkpoints(case: Case) -> None:
    case.set("save", "")
    case.c("SET", "k", os.urandom(2 * MB))
    before = case.c("LASTSAVE")
    case.set("checkpoint-size", "1mb")
    while case.c("LASTSAVE") == before:
        case.hand.advance(1_000)


def backlog(case: Case) -> None:
    server = case.hand.server
    case.hand.call(server.replicas.expected)
    case.c("SET", "k", os.urandom(2 * MB))
    case.hand.advance(1_000)
    case.set("repl-backlog-size", 1000)
    assert server.replicas.disk.retain == server.data.disk.offset - 1000


def backlog_time(case: Case) -> None:
    server = case.hand.server
    case.hand.call(server.replicas.expected)
    case.hand.advance(10_000)
    case.set("repl-backlog-ttl", 5)
    assert server.replicas.disk.retain > server.data.disk.offset  # nothing is kept


def replicas_needed(case: Case) -> None:
    case.set("min-replicas-to-write", 1)
    assert case.c("SET", "k", "v") == "NOREPLICAS Not enough good replicas to write."
    case.set("min-replicas-max-lag", 0)
    assert case.c("SET", "k", "v") == b"OK"


def metrics_keys(case: Case) -> None:
    port = free_port()
    case.set("metrics-port", port)
    for name in "abc":
        case.c("XADD", name, "*", "f", "v")
    assert len(scrape(port).labels("stream_entries", "stream")) == 3
    case.set("metrics-keys", 2)
    assert len(scrape(port).labels("stream_entries", "stream")) == 2


LOWERED: dict[str, list[Callable[[Case], None]]] = {
    "tracking-table-max-keys": [tracking_table],
    "client-output-buffer-limit": [output_hard, output_soft, output_of_subscribers],
    "client-query-buffer-limit": [query_buffer],
    "proto-max-bulk-len": [bulk_length],
    "proto-max-command-expansion": [expansion],
    "maxclients": [clients],
    "timeout": [idle],
    "maxmemory": [memory, memory_of_clients],
    "slowlog-max-len": [slow_log],
    "acllog-max-len": [acl_log],
    "metrics-keys": [metrics_keys],
    "node-cache-size": [node_cache],
    "stream-node-max-entries": [nodes],
    "stream-node-max-bytes": [node_bytes],
    "stream-idmp-maxsize": [produced],
    "checkpoint-size": [checkpoints],
    "repl-backlog-size": [backlog],
    "repl-backlog-ttl": [backlog_time],
    "min-replicas-to-write": [replicas_needed],
    "min-replicas-max-lag": [replicas_needed],
}
NOTHING_IS_BEYOND = {  # they say when or how, of what comes
    "tcp-keepalive", "hz", "shutdown-timeout", "stream-idmp-duration", "slowlog-log-slower-than",
    "latency-monitor-threshold", "repl-ping-replica-period", "repl-timeout", "replica-priority",
    "replica-announce-port", "cluster-announce-port", "cluster-announce-tls-port", "scrub-rate", "min-in-sync",
    "in-sync-timeout", "metrics-port", "move-pause", "tier-cache", "tier-grace", "tier-interval",
    "tier-timeout",
}  # fmt: skip


@pytest.mark.parametrize(("name", "check"), [(name, check) for name, checks in LOWERED.items() for check in checks])
def test_it_holds_at_once(
    hand: RunningServer, c: Raw, connect: Connect, name: str, check: Callable[[Case], None]
) -> None:
    assert name in DIRECTIVES
    check(Case(hand, c, connect))


def test_the_table_has_every_limit() -> None:
    limits = {
        directive.name for directive in DIRECTIVES.values()
        if directive.mutable and directive.kind in ("integer", "memory", "limits")
    }  # fmt: skip
    assert set(LOWERED) | NOTHING_IS_BEYOND == limits


def test_a_long_table_of_tracked_keys_shrinks_bit_by_bit(hand: RunningServer, c: Raw, connect: Connect) -> None:
    """Also where one command adds more than a step forgets."""
    reader = connect()
    c("CONFIG", "SET", "tracking-table-max-keys", 100)
    reader("CLIENT", "TRACKING", "ON", "REDIRECT", c("CLIENT", "ID"))
    c.pipeline(*[("SET", f"k{n}", n) for n in range(20_000)])
    reader("MGET", *[f"k{n}" for n in range(20_000)])
    while b"tracking_total_keys:100\r\n" not in c("INFO", "stats"):
        hand.advance(100)
