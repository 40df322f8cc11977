"""Which commands a server's role refuses, and who may wait for replicas: the dispatcher's gates, WAIT, WAITAOF.

Role and acknowledgements are set by hand here; tests/replication has real replicas.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from commands.session import LEADER, Session
from replication.link import ReplicationConnection as Socket
from respserver.roles.link import LeaderLink, LeaderTransport
from respserver.testing import HandClock, RunningServer, start_in_thread
from tests.wire.rawclient import Raw

READONLY = "READONLY You can't write against a read only replica."
MASTERDOWN = "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."
LOADING = "LOADING Redis is loading the dataset in memory"
NO_REPLICAS = "NOREPLICAS Not enough good replicas to write."
UNBLOCKED = "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)"

Connect = Callable[..., Raw]


def follow(hand: RunningServer, follower: bool = True) -> None:
    def change() -> None:
        hand.server.data.follow(follower)
        hand.server.roles.set_gates()

    hand.call(change)


class Acks:
    """What replicas have acknowledged: log offsets, taken as on disk as well."""

    def __init__(self, hand: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hand = hand
        self.said: list[int] = []
        self.asked = 0
        replicas = hand.server.replicas
        for name in ("acknowledged", "synced"):
            monkeypatch.setattr(replicas, name, lambda offset: sum(has >= offset for has in self.said))
        monkeypatch.setattr(replicas, "good", lambda: len(self.said))
        monkeypatch.setattr(replicas, "ask", self.ask)

    def ask(self) -> None:
        self.asked += 1

    def say(self, *offsets: int) -> None:
        self.said[:] = offsets
        self.hand.call(self.hand.server.blocking.acknowledged)

    def everything(self, replicas: int = 1) -> None:
        self.say(*[self.end()] * replicas)

    def end(self) -> int:
        return self.hand.call(lambda: self.hand.server.data.disk.offset)


@pytest.fixture
def acks(hand: RunningServer, monkeypatch: pytest.MonkeyPatch) -> Acks:
    return Acks(hand, monkeypatch)


# -- a replica takes no writes -----------------------------------------------------------------------------------
WRITES = ["SET k v", "TAPPEND s a 1", "TREAD s 0 10 GROUP g 0", "TREAD s 0 10 WITHINFO group g 0", "FLUSHALL", "DEL s"]


@pytest.mark.parametrize("words", WRITES)
def test_a_replica_refuses_writes(hand: RunningServer, c: Raw, words: str) -> None:
    c("TAPPEND", "s", "a", 1)
    follow(hand)
    assert c(*words.split()) == READONLY
    assert c("TLEN", "s") == 1
    assert c("INFO", "errorstats") == b"# Errorstats\r\nerrorstat_READONLY:count=1\r\n"
    follow(hand, False)
    assert c("SET", "k", "v") == b"OK"


def test_a_replica_serves_plain_readers(hand: RunningServer, c: Raw, connect: Connect) -> None:
    c("TAPPEND", "s", "a", 1)
    follow(hand)
    assert len(c("TREAD", "s", 0, 10)) == 1
    assert c("TREAD", "group", 0, 10, "WITHINFO") == [[None, b"0.0"]]  # a key of that name is no option
    reader = connect()
    reader.send("TREAD", "s", "", 10, "BLOCK", 0)
    while c("INFO", "clients").find(b"blocked_clients:1") < 0:
        pass
    follow(hand, False)
    c("TAPPEND", "s", "a", 2)
    assert len(reader.read()) == 1


def test_transactions_of_a_replica(hand: RunningServer, c: Raw) -> None:
    follow(hand)
    c("MULTI")
    assert c("SET", "k", "v") == READONLY
    assert c("EXEC") == "EXECABORT Transaction discarded because of previous errors."
    follow(hand, False)
    assert c.pipeline(("WATCH", "k"), ("MULTI",)) == [b"OK", b"OK"]
    assert c.pipeline(("SET", "k", "v"), ("GET", "k")) == [b"QUEUED", b"QUEUED"]
    follow(hand)
    assert c("EXEC") == f"EXECABORT Transaction discarded because of: {READONLY}"
    assert c("GET", "k") is None, "the transaction is over"
    assert c.pipeline(("MULTI",), ("GET", "k"), ("EXEC",)) == [b"OK", b"QUEUED", [None]]


def test_what_is_over_is_not_shown_and_not_logged(hand: RunningServer, c: Raw) -> None:
    c("SET", "k", "v", "PX", 50)
    follow(hand)
    before = hand.call(lambda: hand.server.data.disk.offset)
    hand.call(lambda: hand.server.clock.move(100))  # type: ignore[attr-defined]  # and the server has not noticed
    assert (c("GET", "k"), c("EXISTS", "k"), c("DBSIZE")) == (None, 0, 1)
    assert hand.call(lambda: hand.server.data.disk.offset) == before


# -- a replica without its leader, or without its data -----------------------------------------------------------
def test_stale_data(hand: RunningServer, c: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    c("SET", "k", "v")
    follow(hand)
    assert c("GET", "k") == b"v"
    assert c("CONFIG", "SET", "slave-serve-stale-data", "no") == b"OK"
    for words in (("GET", "k"), ("PING",), ("TREAD", "s", 0, 1)):
        assert c(*words) == MASTERDOWN
    assert c("SET", "k", "w") == READONLY
    assert b"role:slave" in c("INFO", "replication")
    assert c.pipeline(("MULTI",), ("GET", "k")) == [b"OK", MASTERDOWN]
    c("DISCARD")
    with monkeypatch.context() as patch:
        patch.setattr(LeaderLink, "up", True)
        follow(hand)
        assert c.pipeline(("MULTI",), ("GET", "k")) == [b"OK", b"QUEUED"]
    follow(hand)
    assert c("EXEC") == f"EXECABORT Transaction discarded because of: {MASTERDOWN}"
    follow(hand, False)
    assert c("GET", "k") == b"v"


def test_while_a_copy_is_opened(hand: RunningServer, c: Raw) -> None:
    hand.call(lambda: hand.server.gates.load(True))
    for words in (("GET", "k"), ("SET", "k", "v"), ("PING",), ("TREAD", "s", 0, 1), ("WAIT", 0, 0)):
        assert c(*words) == LOADING
    assert b"\r\nloading:1\r\n" in c("INFO", "persistence")
    hand.call(lambda: hand.server.gates.load(False))
    assert c("SET", "k", "v") == b"OK"


# -- too few replicas --------------------------------------------------------------------------------------------
def test_min_replicas_to_write(hand: RunningServer, c: Raw, acks: Acks) -> None:
    assert c("CONFIG", "SET", "min-replicas-to-write", 2) == b"OK"
    assert c("SET", "k", "v") == NO_REPLICAS
    assert c("TREAD", "s", 0, 10, "GROUP", "g", 0) == NO_REPLICAS
    assert c("GET", "k") is None
    assert b"min_slaves_good_slaves" in c("INFO", "replication")
    assert c("CONFIG", "SET", "min-replicas-max-lag", 0) == b"OK"
    assert c("SET", "k", "v") == b"OK", "0 asks for none"
    assert c("CONFIG", "SET", "min-slaves-max-lag", 10) == b"OK"
    acks.said = [0]
    hand.call(hand.server.roles.set_gates)
    assert c("SET", "k", "w") == NO_REPLICAS
    acks.said = [0, 0]
    hand.call(hand.server.roles.set_gates)
    assert c("SET", "k", "w") == b"OK"
    c.pipeline(("MULTI",), ("SET", "k", "x"))
    acks.said = []
    hand.call(hand.server.roles.set_gates)
    assert c("EXEC") == f"EXECABORT Transaction discarded because of: {NO_REPLICAS}"
    follow(hand)
    assert c("SET", "k", "x") == READONLY


# -- WAIT --------------------------------------------------------------------------------------------------------
def blocked(c: Raw, count: int) -> None:
    while f"blocked_clients:{count}\r\n".encode() not in c("INFO", "clients"):
        pass


def test_wait_counts_who_has_what_was_written(hand: RunningServer, c: Raw, acks: Acks) -> None:
    assert c("WAIT", 0, 0) == 0
    before = acks.end()
    acks.said = [before, before]
    assert c("WAIT", 2, 0) == 2, "nothing was written yet"
    c("SET", "k", "v")
    assert c.pipeline(("MULTI",), ("WAIT", 1, 0), ("EXEC",))[2] == [0]
    acks.said = [acks.end(), before]
    assert c("WAIT", 1, 0) == 1
    assert acks.asked == 0


def test_wait_ends_when_enough_have_it(hand: RunningServer, c: Raw, connect: Connect, acks: Acks) -> None:
    writer = connect()
    assert writer("SET", "k", "v") == b"OK"
    first = acks.end()
    writer.send("WAIT", 2, 0)
    writer.send("PING")
    blocked(c, 1)
    assert acks.asked == 1
    assert c("SET", "other", "x") == b"OK"
    acks.say(0, first)
    assert writer.nothing_yet()
    acks.say(first, first + 5)
    assert (writer.read(), writer.read()) == (2, b"PONG")
    blocked(c, 0)


def test_a_write_and_its_wait_in_one_packet(hand: RunningServer, c: Raw, connect: Connect, acks: Acks) -> None:
    acks.said = [acks.end()]
    writer = connect()
    for words in ((), (("BGSAVE",),), (("SAVE",),), (("DEBUG", "RELOAD"),)):
        acks.everything()
        old = acks.end()
        writer.sock.sendall(b"".join(map(packed, (("SET", "k", len(words)), *words, ("WAIT", 1, 0)))))
        assert writer.read() == b"OK"
        for _ in words:
            writer.read()
        blocked(c, 1)
        acks.say(old)
        assert writer.nothing_yet(), words
        acks.everything()
        assert writer.read() == 1


def packed(words: tuple[object, ...]) -> bytes:
    return b" ".join(str(word).encode() for word in words) + b"\r\n"


def test_wait_times_out(hand: RunningServer, c: Raw, connect: Connect, acks: Acks) -> None:
    writer = connect()
    writer("SET", "k", "v")
    acks.said = [acks.end()]
    writer.send("WAIT", 2, 500)
    blocked(c, 1)
    hand.advance(499)
    assert writer.nothing_yet()
    hand.advance(1)
    assert writer.read() == 1
    blocked(c, 0)


def test_what_a_served_group_reader_got_is_a_write(hand: RunningServer, c: Raw, connect: Connect, acks: Acks) -> None:
    reader = connect()
    reader("TREAD", "s", 0, 0, "GROUP", "g", 0)
    reader.send("TREAD", "s", 0, 1, "BLOCK", 0, "GROUP", "g", 0)
    blocked(c, 1)
    acks.everything()
    old = acks.end()
    c("TAPPEND", "s", "a", 1)
    assert len(reader.read()) == 1
    reader.send("WAIT", 1, 0)
    blocked(c, 1)
    acks.say(old)
    assert reader.nothing_yet()
    acks.everything()
    assert reader.read() == 1


def test_waits_end_from_outside(hand: RunningServer, c: Raw, connect: Connect, acks: Acks) -> None:
    writer = connect()
    number = writer("CLIENT", "ID")
    writer("SET", "k", "v")
    acks.said = [acks.end(), 0]
    for how, answer in (("TIMEOUT", 1), ("ERROR", "UNBLOCKED client unblocked via CLIENT UNBLOCK")):
        writer.send("WAIT", 2, 0)
        blocked(c, 1)
        assert b"flags=b db=0" in c("CLIENT", "LIST", "ID", number)
        assert c("CLIENT", "UNBLOCK", number, how) == 1
        assert writer.read() == answer
    writer.send("WAIT", 2, 0)
    blocked(c, 1)
    assert c("CLIENT", "KILL", "ID", number) == 1
    blocked(c, 0)
    acks.everything(2)  # nobody is there any more
    gone = connect()
    gone("SET", "k", "v")
    gone.send("WAIT", 3, 0)
    blocked(c, 1)
    gone.close()
    blocked(c, 0)
    acks.everything(3)
    assert c("PING") == b"PONG"


def test_waitaof(hand: RunningServer, c: Raw, connect: Connect, acks: Acks) -> None:
    c("SET", "k", "v")
    assert c("WAITAOF", 1, 0, 0) == [1, 0], "appendfsync always"
    acks.everything()
    assert c("WAITAOF", 1, 1, 0) == [1, 1]
    writer = connect()
    writer("SET", "k", "w")
    writer.send("WAITAOF", 0, 1, 0)
    blocked(c, 1)
    acks.everything()
    assert writer.read() == [1, 1]
    assert writer.pipeline(("SET", "k", "x"), ("WAITAOF", 1, 0, 0)) == [b"OK", [1, 0]]


def test_a_sync_ends_waits_for_this_disk() -> None:
    with start_in_thread(clock=HandClock(), appendfsync="no") as server, Raw(server.port) as c:
        assert c("SET", "k", "v") == b"OK"
        c.send("WAITAOF", 1, 0, 0)
        while c.nothing_yet():  # the journal syncs what it takes over; nobody says so
            server.advance(100)
        assert c.read() == [1, 0]


# -- a change of role --------------------------------------------------------------------------------------------
def test_who_waits_for_a_leader_hears_of_its_end(hand: RunningServer, c: Raw, connect: Connect, acks: Acks) -> None:
    member, other, plain, writer = (connect() for _ in range(4))
    member("TREAD", "s", 0, 0, "GROUP", "g", 1000)
    member.send("TREAD", "s", 0, 1, "BLOCK", 0, "GROUP", "g", 1000)
    other.send("TREAD", "s", 0, 1, "BLOCK", 5000, "GROUP", "g", 1000)
    plain.send("TREAD", "s", 0, 1, "BLOCK", 0)
    writer("SET", "k", "v")
    writer.send("WAIT", 1, 0)
    blocked(c, 4)

    def change() -> None:
        hand.server.data.follow(True)
        hand.server.blocking.unblock_groups(UNBLOCKED)
        hand.server.roles.set_gates()

    before = acks.end()
    hand.call(change)
    assert [raw.read() for raw in (member, other, writer)] == [UNBLOCKED] * 3
    blocked(c, 1)
    assert c("WAIT", 0, 0).startswith("ERR WAIT cannot be used with replica instances")
    hand.advance(10_000)
    assert acks.end() == before, "a replica lets no group expire"
    follow(hand, False)
    c("TAPPEND", "s", "a", 1)
    assert len(plain.read()) == 1


# -- replicas among the clients ----------------------------------------------------------------------------------
def test_a_pause_does_not_hold_replicas(hand: RunningServer, c: Raw, connect: Connect) -> None:
    replica, writer = connect(), connect()
    assert c("CLIENT", "PAUSE", 60_000, "ALL") == b"OK"
    writer.send("SET", "k", "v")
    assert replica("REPLCONF", "listening-port", "7000") == b"OK"
    assert writer.nothing_yet()
    assert c("CLIENT", "UNPAUSE") == b"OK"
    assert writer.read() == b"OK"


NO_HOSTS = ["", "a b", "a\r\nrole:master", "a\n", "a\tb", "a\0", 'a"b', "a'b", "a\\b", b"\xff", "\u00a0", "h" * 256]


@pytest.mark.parametrize("host", NO_HOSTS)
def test_hosts_that_are_none(host: str | bytes, c: Raw) -> None:
    """They would stand in ROLE and INFO, and in lines of the configuration."""
    assert c("REPLICAOF", host, 7000) == "ERR Invalid master host"
    assert c("SLAVEOF", host, 7000) == "ERR Invalid master host"
    if host:
        answer = c("REPLCONF", "ip-address", host)
        assert answer in (
            "ERR REPLCONF ip-address must be a host's name or address",
            "ERR REPLCONF ip-address provided by replica instance is too long",
        )
        answer = c("CONFIG", "SET", "replica-announce-ip", host)
        assert str(answer).endswith("- Invalid host name or address"), answer
    assert c("ROLE")[0] == b"master"


HOSTS = ["::1", "fe80::1%eth0", "10.0.0.1", "db-1.example.com", "b\u00fccher.example", "h" * 255]


@pytest.mark.parametrize("host", HOSTS)
def test_hosts(host: str, c: Raw) -> None:
    assert c("REPLCONF", "ip-address", host) == b"OK"
    assert c("CONFIG", "SET", "replica-announce-ip", host) == b"OK"
    assert c("CONFIG", "SET", "replica-announce-ip", "") == b"OK"


@pytest.mark.parametrize("port", ["0", "-1", "65536", "x", "", " 1", "+1", "01", "1.0", "9" * 30])
def test_ports_that_are_none(port: str, c: Raw) -> None:
    assert c("REPLICAOF", "127.0.0.1", port) == "ERR Invalid master port"
    if port != "0":
        assert str(c("REPLCONF", "listening-port", port)).startswith("ERR")
    assert c("ROLE")[0] == b"master"


def test_a_failover_holds_what_writes(hand: RunningServer, c: Raw, connect: Connect) -> None:
    """Whatever clients say of pauses."""
    writers = [connect(), connect()]
    writers[1].pipeline(("MULTI",), ("TAPPEND", "s", "a", 1))
    assert c("CLIENT", "PAUSE", 1000, "WRITE") == b"OK"
    hand.call(lambda: hand.server.pauses.hold_writes(True))
    writers[0].send("SET", "k", "v")
    writers[1].send("EXEC")
    assert c("GET", "k") is None
    assert c("CLIENT", "UNPAUSE") == b"OK"
    hand.advance(2000)
    assert c("GET", "k") is None
    assert all(writer.nothing_yet() for writer in writers)
    hand.call(lambda: hand.server.pauses.hold_writes(False))
    assert writers[0].read() == b"OK"
    assert len(writers[1].read()) == 1
    assert hand.call(lambda: hand.server.gates.closed) is False


def test_a_link_can_be_killed(hand: RunningServer, c: Raw) -> None:
    class Killed(Socket):
        def __init__(self) -> None:
            self.killed = 0

        def kill(self) -> None:
            self.killed += 1

    link = Killed()

    def add() -> None:
        server = hand.server
        session = Session(server.clients.next_id(), "10.0.0.1:6379", "10.0.0.2:5555", server.clock.now())
        session.replica, session.transport = LEADER, LeaderTransport(link)
        server.clients.add(session)

    hand.call(add)
    assert b"addr=10.0.0.1:6379" in c("CLIENT", "LIST", "TYPE", "master")
    assert c("CLIENT", "KILL", "TYPE", "replica") == 0
    assert c("CLIENT", "KILL", "TYPE", "master") == 1
    assert link.killed == 1
