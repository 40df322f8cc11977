"""Servers of different versions beside one another: who is served what, and who is told to upgrade."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest
import redis

from persistence.storecopy import ENTRY
from replication import formats
from replication.frames import BATCH, COPY, COPY_BODY, DONE, PIECE, encode
from resp.errors import CorruptError
from storage.model import records
from storage.nodes import coder
from tests.persistence.datakit import append, checkpoint, commit, delete, opened
from tests.replication.cluster import Cluster, Node, assert_same, in_sync, wait_until
from tests.replication.fakeleader import FakeLeader, copy, going_on
from tests.replication.test_psync import Replica
from tests.replication.test_rdb_only import Taker

REFUSED = b"-ERR this server's data is of format 2, and this replica reads format 1: upgrade the replica"
REFUSAL = "is refused: it is of an earlier version"
SENT_AWAY = "its version is too old to read the new records"


class Upgraded(Replica):
    """A replica of format 2, by hand; its base class is one of format 1."""

    reads = 2

    def introduce(self) -> None:
        assert self.ask("REPLCONF", "tidelog", 1, "capa", "eof", "capa", f"format-{self.reads}").startswith(b"+OK ")
        assert self.ask("REPLCONF", "listening-port", 2) == b"+OK"


# -- bytes ---------------------------------------------------------------------------------------------------
@pytest.mark.quick
def test_what_a_batch_needs() -> None:
    old = records.set_string(b"k", b"v", 0) + b"".join(records.run(b"s", 1, 1, array("I", [3]), b"abc"))
    new = records.set_last_id(b"s", 9 << 64, 5, 0)
    assert formats.needed(b"") == formats.needed(old) == formats.needed(old + old) == 1
    assert formats.needed(old + new) == formats.needed(new + old) == 2
    assert formats.needed(old + records.producer(b"k", b"p", b"")) == 7
    assert formats.needed(records.tier(b"k", b"") + old) == 9
    assert formats.unknown(old + new) == 0
    assert formats.unknown(old + records.HEAD.pack(199, 3) + b"abc" + old) == 199
    for junk in (old[:-1], new[:3], b"\xff" * 20):
        with pytest.raises(CorruptError, match="ends inside a record"):
            formats.unknown(junk)


@pytest.mark.quick
def test_every_record_has_a_format() -> None:
    """Kinds below 20 were there before formats; what is added needs the newest format."""
    assert formats.FIRST_OF_2 == 20
    assert records.DELETED == formats.FIRST_OF_2
    assert records.RENAME == formats.FIRST_OF_2 - 1


@pytest.mark.quick
@pytest.mark.parametrize(
    ("value", "reads"),
    [(b"format-2", 2), (b"format-10", 10), (b"format-", 0), (b"format-x", 0), (b"format-99999", 0), (b"eof", 0),
     (b"psync2", 0), (b"2", 0)],
)  # fmt: skip
def test_what_a_replica_says(value: bytes, reads: int) -> None:
    assert formats.said(value) == reads


# -- a leader of this version --------------------------------------------------------------------------------
def lines(node: Node, text: str) -> int:
    return sum(text in line for line in node.output)


def asked(leader: Node, replica: Replica, offset: int = -1, *more: str) -> bytes:
    replica.introduce()
    return replica.ask("PSYNC", leader.info()["master_replid"], offset, *more)


def test_an_earlier_replica_is_served_until_it_can_not_read_on(servers: Cluster) -> None:
    leader = servers.node()
    leader("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *range(10))
    leader("SAVE")
    with Replica(leader.port) as old, Upgraded(leader.port) as new:
        for replica in (old, new):
            assert asked(leader, replica).startswith(b"+FULLRESYNC ")
            replica.frame(DONE)
        leader("SET", "k", "v")
        for replica in (old, new):
            wait_until(lambda replica=replica: b"k" in replica.frame(BATCH).payload, "it gets what is logged")  # type: ignore[misc]
        before = leader.offset
        leader("XSETID", "s", "9999999999999-0")
        assert new.frame(BATCH).offset == before
        assert old.closed()
    wait_until(lambda: leader.logged(SENT_AWAY), "the log says why")
    for _ in range(3):
        for offset in (-1, before):
            with Replica(leader.port) as old:
                assert asked(leader, old, offset).startswith(REFUSED)
                assert old.ask("PING") == b"+PONG"
    wait_until(lambda: leader.logged(REFUSAL), "the log says that it is refused")
    assert lines(leader, REFUSAL) == 1
    with Upgraded(leader.port) as new:
        assert asked(leader, new, before).startswith(b"+CONTINUE ")
    assert leader("SET", "k", "w")


def test_after_a_restart_the_log_shows_it(servers: Cluster) -> None:
    leader = servers.node()
    leader("TAPPEND", "s", "f", "v")
    before = leader.offset
    leader("XSETID", "s", "9999999999999-0")
    leader.kill()
    leader.start()
    with Replica(leader.port) as old:
        assert asked(leader, old, before).startswith((b"+CONTINUE ", b"+FULLRESYNC "))
        assert old.closed()
    with Replica(leader.port) as old:
        assert asked(leader, old, before).startswith(REFUSED)


def test_after_a_checkpoint_the_store_shows_it(servers: Cluster) -> None:
    leader = servers.node()
    leader("TAPPEND", "s", "f", "v")
    leader("XSETID", "s", "9999999999999-0")
    leader("SAVE")
    leader.kill()
    leader.start()
    with Replica(leader.port) as old:
        assert asked(leader, old).startswith(REFUSED)
        assert asked(leader, old, leader.offset).startswith((b"+CONTINUE ", REFUSED)), "it has all, or is refused"


def test_a_taker_gets_all_whatever_it_reads(servers: Cluster) -> None:
    leader = servers.node()
    leader("TAPPEND", "s", "f", "v")
    leader("XSETID", "s", "9999999999999-0")
    leader("SAVE")
    leader("XSETID", "s", "9999999999999-1")
    with Taker(leader.port) as taker:
        taker.begin()
        taker.frame(DONE)
        assert formats.needed(taker.frame(BATCH).payload) == 2
        leader("XSETID", "s", "9999999999999-2")
        assert formats.needed(taker.frame(BATCH).payload) == 2


def test_an_earlier_leader_hands_over(servers: Cluster) -> None:
    """It sends what it always sent; then it is a replica of an earlier version."""
    leader, replica = servers.pair()
    with Replica(replica.port) as old:
        assert asked(leader, old, replica.offset, "FAILOVER").startswith(b"+CONTINUE ")
        assert replica.role == "master"
        replica("SET", "k", "v")
        assert b"k" in old.frame(BATCH).payload


def test_a_replica_with_newer_data_takes_nothing_over_from_an_earlier_leader(servers: Cluster) -> None:
    """Refused afterwards, the leader would lead on, beside it."""
    leader, replica = servers.pair()
    leader("TAPPEND", "s", "f", "v")
    wait_until(lambda: in_sync(leader, replica), "both have it")
    with Replica(replica.port) as old:
        assert asked(leader, old, replica.offset).startswith(b"+CONTINUE ")
        leader("XSETID", "s", "9999999999999-0")
        assert old.closed(), "a replica's replicas are treated alike"
    with Replica(replica.port) as old:
        assert asked(leader, old, replica.offset, "FAILOVER").startswith(REFUSED)
    assert replica.role == "slave"
    assert_same(leader, replica)


class Newest(Upgraded):
    reads = formats.FORMAT


def readings(node: Node, first: int, last: int) -> None:
    """Sensor entries, which are coded as soon as a node is full of them."""
    for at in range(first, last):
        node("TAPPEND", "s", "sensor", f"{at % 7:02}", "temperature", f"{at * 37 % 300 / 10:.1f}")


@pytest.mark.skipif(not coder.CODES, reason="nothing is compiled here: no node is coded")
def test_a_copy_with_coded_nodes_is_for_who_can_read_them(servers: Cluster) -> None:
    leader = servers.node(stream_node_max_entries=32)
    readings(leader, 0, 20)
    leader("SAVE")
    with Replica(leader.port) as old, Upgraded(leader.port) as middle:
        for replica in (old, middle):
            assert asked(leader, replica).startswith(b"+FULLRESYNC ")
            replica.frame(DONE)
        readings(leader, 20, 100)
        before = leader.offset
        leader("SAVE")
        leader("SET", "k", "v")
        for replica in (old, middle):
            wait_until(lambda replica=replica: b"k" in replica.frame(BATCH).payload, "it goes on with the log")  # type: ignore[misc]
    with Upgraded(leader.port) as middle:
        refused = asked(leader, middle)
        assert refused.startswith(b"-ERR this server's data is of format 3, and this replica reads format 2: upgrade")
        assert asked(leader, middle, before).startswith(b"+CONTINUE ")
    with Newest(leader.port) as new:
        assert asked(leader, new).startswith(b"+FULLRESYNC ")
        new.frame(DONE)
    follower = servers.node(of=leader.port)
    assert_same(leader, follower)
    assert follower.say("TRANGE", "s", "-", "+") == leader.say("TRANGE", "s", "-", "+")
    for node in (leader, follower):
        node.kill()
        node.start()
    assert_same(leader, follower)
    assert len(leader.say("TRANGE", "s", "-", "+", "COUNT", "50")) == 50


class Previous(Upgraded):
    reads = 4


def test_a_copy_with_changes_of_an_index_of_delayed_entries_is_for_who_can_read_them(servers: Cluster) -> None:
    """Such a replica would otherwise request one copy after another."""
    leader = servers.node()
    leader("TAPPEND", "s", "f", "v")
    leader("TDELAY", "s", "IN", 3_600_000, "ID", "a", "f", "v")
    leader("SAVE")
    with Previous(leader.port) as replica:
        assert asked(leader, replica).startswith(b"+FULLRESYNC ")
        replica.frame(DONE)
        before = leader.offset
        leader("TDELAY", "s", "IN", 3_600_000, "ID", "b", "f", "v")
        leader("SAVE")
        leader("SET", "k", "v")
        wait_until(lambda: b"k" in replica.frame(BATCH).payload, "it goes on with the log")
    for _ in ("before", "after a start"):
        with Previous(leader.port) as replica:
            refused = asked(leader, replica)
            assert refused.startswith(b"-ERR this server's data is of format 5, and this replica reads format 4")
            assert asked(leader, replica, before).startswith(b"+CONTINUE ")
        leader.kill()
        leader.start()
    follower = servers.node(of=leader.port)
    assert_same(leader, follower)


class BeforeTierAfter(Upgraded):
    reads = 8


def test_streams_with_their_own_tier_after_are_for_who_can_read_them(servers: Cluster) -> None:
    leader = servers.node()
    leader("TAPPEND", "s", "f", "v")
    with BeforeTierAfter(leader.port) as replica:
        assert asked(leader, replica).startswith(b"+FULLRESYNC ")
        replica.frame(DONE)
        leader("TCFG", "s", "TIER", "AGE", 5)
        assert replica.closed(), "it can't read the record"
    leader("SAVE")
    for _ in ("before", "after a start"):
        with BeforeTierAfter(leader.port) as replica:
            refused = asked(leader, replica)
            assert refused.startswith(b"-ERR this server's data is of format 9, and this replica reads format 8")
        leader.kill()
        leader.start()
    follower = servers.node(of=leader.port)
    assert_same(leader, follower)


class BeforeParts(Upgraded):
    reads = 5


def test_a_copy_with_an_index_of_delayed_entries_in_parts_is_for_who_can_read_it(servers: Cluster) -> None:
    leader = servers.node()
    with redis.Redis(port=leader.port) as client, client.pipeline(transaction=False) as pipe:
        for number in range(9000):
            pipe.execute_command("TDELAY", "s", "IN", 3_600_000, "f", number)
        pipe.execute()
    leader("SAVE")
    for _ in ("before", "after a start"):
        with BeforeParts(leader.port) as replica:
            refused = asked(leader, replica)
            assert refused.startswith(b"-ERR this server's data is of format 6, and this replica reads format 5")
        leader.kill()
        leader.start()
    follower = servers.node(of=leader.port)
    assert_same(leader, follower)


# -- a replica of this version -------------------------------------------------------------------------------
def test_a_record_of_a_newer_version_stops_it(servers: Cluster) -> None:
    replica = servers.node()
    replica("SET", "k", "v")
    good = records.set_string(b"l", b"w", 0)
    offsets: list[int] = []

    def script(offset: int) -> bytes:
        offsets.append(offset)
        bad = records.set_string(b"k", b"changed", 0) + records.HEAD.pack(99, 0)
        sound = encode(BATCH, offset, good) if len(offsets) == 1 else b""
        return going_on(sound, encode(BATCH, offset + len(good) * bool(sound), bad))

    def stopped() -> bool:
        return replica.logged("a record of kind 99, which this version does not know: upgrade this server; it keeps its"
                              f" data up to log offset {before + len(good)}")  # fmt: skip

    before = replica.offset
    with FakeLeader(script) as fake:
        replica.follow(fake.port)
        wait_until(stopped, "it says why")
        assert (replica.say("GET", "k"), replica.say("GET", "l")) == (b"v", b"w")
        replica.lead()
        replica.follow(fake.port)
        wait_until(lambda: len(offsets) == 2, "told to, it tries again at once")
        assert offsets[1] == offsets[0] + len(good), "no full copy: nothing is wrong with its data"
        assert fake.links == 2
    replica.lead()
    replica.kill()
    replica.start()
    assert (replica("GET", "k"), replica("GET", "l")) == (b"v", b"w")


def test_a_copy_of_a_newer_version_stops_it(servers: Cluster) -> None:
    replica = servers.node()
    replica("SET", "k", "v")
    piece = ENTRY.pack(17, 1, 4) + b"k" + bytes(4)

    def script(_: int) -> bytes:
        return copy(5, encode(COPY, 5, COPY_BODY.pack(1, 10)), encode(PIECE, 5, piece))

    with FakeLeader(script) as fake:
        replica.follow(fake.port)
        wait_until(lambda: replica.logged("a database 17, which this tidelog does not know"), "it says why")
        assert replica.logged("upgrade this server; its data is unchanged")
        assert replica.say("GET", "k") == b"v"
        assert fake.links == 1
    replica.lead()
    assert replica("SET", "k", "w")


def test_it_follows_a_leader_that_ignores_what_it_reads(servers: Cluster) -> None:
    """What it says first must be what earlier leaders take: they know tidelog 1, and ignore any capa."""
    replica = servers.node()
    with FakeLeader(lambda offset: going_on()) as fake:
        replica.follow(fake.port)
        wait_until(lambda: replica.link_up, "it follows")
        assert [b"REPLCONF", b"tidelog", b"1", b"capa", b"format-10", b"capa", b"repair"] in fake.requests


# -- both ----------------------------------------------------------------------------------------------------
def prepared(directory: Path) -> None:
    """Marks and holes, in store and journal."""
    with opened(directory, ring_bytes=1 << 20) as (log, ks, _):
        append(ks, b"s", 95)
        append(ks, b"t", 30)
        checkpoint(log, ks)
        delete(ks, b"s", [7, *range(10, 40), *range(51, 60)])
        checkpoint(log, ks)
        delete(ks, b"s", [80, 81])
        delete(ks, b"t", range(30))
        commit(log, ks)


def test_a_copy_with_marks(servers: Cluster) -> None:
    leader = servers.node(start=False)
    prepared(leader.directory)
    leader.start()
    assert [leader("TLEN", "s"), leader("TLEN", "t")] == [95 - 40 - 2, 0]
    replica = servers.node(of=leader.port)
    assert_same(leader, replica)
    leader("XSETID", "s", "9999999999999-0")
    leader("TAPPEND", "s", "f", "v")
    assert_same(leader, replica)
    replica.kill()
    replica.start()
    assert_same(leader, replica)
    assert replica.say("TRANGE", "s", "-", "+") == leader.say("TRANGE", "s", "-", "+")
    replica("SAVE")
    replica.kill()
    replica.start()
    assert_same(leader, replica)
