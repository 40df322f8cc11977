"""A server group survives the loss of any member without losing an acknowledged write (real processes)."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from replication import formats
from replication.handshake import VERSION
from replication.members import GroupAnnouncement
from tests.coordinator.etcds import Etcds
from tests.replication.cluster import Cluster, cluster, wait_until
from tests.replication.groups import Group, Writer, status
from tests.wire.rawclient import Raw
from tidelog.testing import ServerError

DOCS = Path(__file__).parent.parent.parent / "docs"
SLOW = 3.0  # seconds, on a busy machine, for what takes less than half a second on an idle one


@pytest.fixture(scope="module")
def shared() -> Iterator[Group]:
    with cluster() as servers:
        yield Group(servers)


@pytest.fixture
def group(shared: Group) -> Group:
    """Three members in sync."""
    for node in shared.nodes:
        if node.running:
            node.thaw()
        node.start()
    leader = shared.wait()
    leader("CONFIG", "SET", "in-sync-timeout", 2000)
    return shared


def test_three_commands_make_a_group(group: Group) -> None:
    leader = group.wait()
    assert leader("SET", "k", "v")
    found = status(leader)
    assert sorted(found["members"][0]) == [
        "address", "clock_ms", "id", "in_sync", "lag_bytes", "lag_seconds", "min_in_sync", "name", "offset", "state",
        "version",
    ] or found["members"][0]["state"] == "leading"  # fmt: skip
    assert found["problem"] == ""
    assert found["replica_acks"] == "insync"
    assert {each["what"] for each in found["events"]} >= {"m1 leads", "in sync: +m2", "in sync: +m3"}
    for node in group.others(leader):
        assert status(node)["leader"] == group.name(leader)
        assert "READONLY" in str(node.say("SET", "k", "v"))
        assert "FAILOVER" in str(node.say("REPLICAOF", "NO", "ONE"))
    facts = leader.info()
    assert (facts["group"], facts["group_in_sync"], facts["group_epoch"]) == ("tide", 3, found["epoch"])
    assert facts["master_replid"].endswith(f"{found['epoch']:016x}")


def test_a_killed_leader_is_replaced(group: Group) -> None:
    leader = group.wait()
    with Writer(group) as writer:
        leader.kill()
        assert writer.after(time.monotonic()) < SLOW
        leader.start()
        leader = group.wait()
        leader.kill()
        writer.after(time.monotonic())
        leader.start()
    writer.check(group.wait())


def test_the_drill_of_the_documentation(group: Group) -> None:
    """Its writer follows the leader, and compares the stream with the acknowledged writes when it is interrupted."""
    leader = group.wait()
    blocks = re.findall(r"^```python\n(.*?)^```$", (DOCS / "groups.md").read_text(), re.MULTILINE | re.DOTALL)
    drill = next(block for block in blocks if "KeyboardInterrupt" in block)
    for port, node in zip((7001, 7002, 7003), group.nodes, strict=True):
        drill = drill.replace(f"127.0.0.1:{port}", f"127.0.0.1:{node.port}")
    with subprocess.Popen([sys.executable, "-c", drill], stdout=subprocess.PIPE, text=True) as writer:
        try:
            wait_until(lambda: leader("TLEN", "drill"), "it writes")
            leader.kill()
            wait_until(lambda: group.leader(*group.others(leader)), "another member leads")
            new = group.leader(*group.others(leader))
            assert new is not None
            before = new("TLEN", "drill")
            wait_until(lambda: new("TLEN", "drill") > before, "it writes to the new leader")
        finally:
            writer.send_signal(signal.SIGINT)
        printed = writer.communicate(timeout=20)[0]
    leader.start()
    assert re.fullmatch(r"[1-9]\d* acknowledged, 0 lost", printed.splitlines()[-1])


def test_a_stopped_leader_says_nothing_when_it_goes_on(group: Group) -> None:
    leader = group.wait()
    leader("SET", "seen", "old")
    with Writer(group) as writer, Raw(leader.port) as late:
        leader.freeze()
        late.send("GET", "seen")
        writer.after(time.monotonic() + 0.5)
        wait_until(lambda: group.leader(*group.others(leader)), "another leader")
        new = group.leader(*group.others(leader))
        assert new is not None
        new("SET", "seen", "new")
        leader.thaw()
        with pytest.raises((ConnectionError, EOFError)):  # otherwise: an answer from a history that was abandoned
            late.read()
    writer.check(group.wait())


@pytest.mark.parametrize("when", ["before", "while it is silent"])
def test_a_leader_needs_its_lease_with_replica_acks_0(group: Group, when: str) -> None:
    leader = group.wait()
    leader("SET", "seen", "old")
    zero = ("CONFIG", "SET", "replica-acks", 0)
    for node in group.others(leader):
        node(*zero)
    if when == "before":
        leader(*zero)
        wait_until(lambda: status(leader)["replica_acks"] == "0", "no member requires more")
        assert leader("GET", "seen") == b"old"
    with Raw(leader.port) as late:
        leader.freeze()
        late.send("GET", "seen")
        if when != "before":
            late.send(*zero)
        wait_until(lambda: group.leader(*group.others(leader)), "another leader")
        leader.thaw()
        with pytest.raises((ConnectionError, EOFError)):
            late.read()
    group.wait()
    for node in group.nodes:
        node("CONFIG", "SET", "replica-acks", "insync")
    wait_until(lambda: "settings" not in str(status(leader)["warnings"]), "all have the same settings again")


def test_a_follower_with_replica_acks_0_withholds_what_the_group_has_not_confirmed(servers: Cluster) -> None:
    group = Group(servers, group_lease=30_000, in_sync_timeout=30_000)  # nobody else leads while the leader is stopped
    leader = group.wait()
    follower, silent = group.others(leader)
    leader("SET", "seen", "old")
    silent.freeze()
    before = follower.info()["slave_repl_offset"]
    with Raw(leader.port) as writer:
        writer.send("SET", "seen", "new")
        wait_until(lambda: follower.info()["slave_repl_offset"] > before, "the follower has the write")
        assert writer.nothing_yet()
        leader.freeze()
        follower.kill()
        follower.config["replica-acks"] = 0
        follower.start()
        with Raw(follower.port) as reader:
            reader.send("GET", "seen")
            wait_until(lambda: follower.info().get("withheld_clients") == 1, "the read waits")
            wait_until(
                lambda: {each["min_in_sync"] for each in status(follower).get("members", ())} == {0, 2}, "joined"
            )
            assert reader.nothing_yet()
            silent.thaw()
            leader.thaw()
            assert reader.read() == b"new"


def test_a_lost_follower_leaves_the_set_first(group: Group) -> None:
    leader = group.wait()
    gone = group.others(leader)[0]
    gone.kill()
    assert leader("SET", "k", "w")
    found = status(leader)
    assert sorted(found["in_sync"]) == sorted(group.name(node) for node in group.nodes if node is not gone)
    assert found["events"][-1]["why"].endswith("has lost its connection")


def test_a_silent_follower_leaves_the_set(group: Group) -> None:
    leader = group.wait()
    silent = group.others(leader)[0]
    silent.freeze()
    began = time.monotonic()
    assert leader("SET", "k", "w")
    assert time.monotonic() - began >= 1.9  # in-sync-timeout
    assert group.name(silent) not in status(leader)["in_sync"]
    silent.thaw()
    group.wait()


def test_a_leader_alone_refuses_writes(group: Group) -> None:
    leader = group.wait()
    leader("CONFIG", "SET", "in-sync-timeout", 500)
    for node in group.others(leader):
        node.kill()

    def refused() -> bool:
        with contextlib.suppress(EOFError):  # what was not confirmed in time: its client is disconnected
            return "NOREPLICAS" in str(leader.say("SET", "k", "alone"))
        return False

    wait_until(refused, "writes are refused")
    assert any("only 1 of 3 members are in sync" in each for each in status(leader)["warnings"])
    group.others(leader)[0].start()
    wait_until(lambda: leader.say("SET", "k", "two") == b"OK", "writes are accepted with two")


def test_unconfirmed_writes_wait_for_a_member_to_return(group: Group) -> None:
    leader = group.wait()
    leader("CONFIG", "SET", "in-sync-timeout", 60_000)
    one, two = group.others(leader)
    one.kill()
    wait_until(lambda: len(status(leader)["in_sync"]) == 2, "two are left")
    two.freeze()
    with Raw(leader.port) as raw:
        raw.send("SET", "k", "waits")
        wait_until(lambda: status(leader)["withheld_clients"] == 1, "it is withheld")
        two.kill()
        wait_until(lambda: len(status(leader)["in_sync"]) == 1, "one is left")
        assert raw.nothing_yet()
        two.start()
        assert raw.read() == b"OK"


def test_planned_failover(group: Group) -> None:
    leader = group.wait()
    target = group.others(leader)[1]
    with Writer(group) as writer:
        assert leader("TMEMBER", "FAILOVER", "TO", group.name(target))
        wait_until(lambda: group.leader() is target, "the target leads")
        writer.after(time.monotonic())
        target("FAILOVER")
        wait_until(lambda: group.leader() not in (None, target), "another one leads")
        writer.after(time.monotonic())
    last = group.wait()
    writer.check(last)
    assert not writer.unknown  # nobody was disconnected with a command that had run
    assert status(last)["events"][-1]["why"].endswith("handed over")


def test_a_member_that_connects_again_loses_its_older_connections(group: Group) -> None:
    leader = group.wait()
    who = GroupAnnouncement(status(leader)["group_id"], "m9", "f" * 40)
    with Raw(leader.port) as first, Raw(leader.port) as second, Raw(leader.port) as other, Raw(leader.port) as last:
        for port, (raw, name) in enumerate([(first, "m9"), (second, "m9"), (other, "m8"), (last, "m9")], 1):
            announced = who._replace(name=name).capability()
            reads = b"format-%d" % formats.FORMAT
            assert raw("REPLCONF", "listening-port", port, "tidelog", VERSION, "capa", reads, "capa", announced)
            raw.send("PSYNC", "?", -1)
            assert raw.sock.recv(1) == b"+"
        for older in (first, second):
            with contextlib.suppress(ConnectionError):
                while older.sock.recv(1 << 16):  # until the leader closes it
                    pass
        wait_until(lambda: leader.logged("this member has connected again"), "it says why")
        ports = {fact["port"] for fact in leader.info().values() if isinstance(fact, dict) and "port" in fact}
        assert ports & {1, 2, 3, 4} == {3, 4}


# A server whose coordinator makes it the follower, and takes a second to reply.
SLOW_HANDOVER = """
import asyncio, sys
from coordinator.directory import DirectoryCoordinator as Slow
swap = Slow.swap
async def late(self, key, value, *rest):
    version = await swap(self, key, value, *rest)
    if value is not None and b"m1 handed over" in value:
        await asyncio.sleep(1)
    return version
Slow.swap = late
from _tidelog_server import main
sys.exit(main())
"""


def test_commands_wait_while_the_leader_changes(servers: Cluster) -> None:
    group = Group(servers, 1, min_in_sync=1, group_lease=5000)
    leader = group.replace(group.nodes[0], SLOW_HANDOVER)
    group.wait()
    other = group.add()
    assert group.wait() is leader
    leader("SET", "k", "v")
    with Raw(leader.port) as reader, Raw(leader.port) as writer:
        leader("TMEMBER", "FAILOVER")
        wait_until(lambda: "confirmed" not in status(leader), "it is silent")
        reader.send("GET", "k")
        writer.send("SET", "k", "w")
        assert reader.nothing_yet()
        with pytest.raises(redis.ResponseError, match="can't be aborted any more"):
            leader("FAILOVER", "ABORT")
        assert reader.read() == b"v"
        assert "READONLY" in str(writer.read())
    wait_until(lambda: group.leader() is other, "the other one leads")


def test_a_stopping_leader_hands_over(group: Group) -> None:
    """It leaves the set, so replies do not wait for it until in-sync-timeout."""
    leader = group.wait()
    for node in group.nodes:
        node("CONFIG", "SET", "in-sync-timeout", 60_000)
    with Writer(group) as writer:
        leader.stop()
        assert writer.after(time.monotonic()) < SLOW
        leader.start()
    writer.check(group.wait())
    why = f"{group.name(leader)} handed over, because it stops"
    assert any(each["why"] == why for each in status(group.nodes[0])["events"][-6:])
    for node in group.nodes:
        node("CONFIG", "SET", "in-sync-timeout", 2000)


def test_a_stopping_leader_does_not_wait_for_a_slow_member(group: Group) -> None:
    leader = group.wait()
    slow = group.others(leader)[0]
    slow.freeze()
    leader("SET", "k", "v")  # the slow member leaves the set, and remains connected
    began = time.monotonic()
    leader.stop()
    wait_until(lambda: group.leader(*[node for node in group.others(leader) if node is not slow]), "another leader")
    assert time.monotonic() - began < SLOW  # shutdown-timeout is 10 seconds
    slow.thaw()
    leader.start()
    group.wait()


def test_removal(group: Group) -> None:
    leader = group.wait()
    extra = group.add()
    try:
        group.wait()
        with pytest.raises(redis.ResponseError, match=r"m4 is running: stop it first"):
            leader("TMEMBER", "REMOVE", "m4")
        extra.kill()
        wait_until(lambda: leader.say("TMEMBER", "REMOVE", "m4") == b"OK", "it is removed")
        assert "m4" not in {each["name"] for each in status(leader)["members"]}
        with pytest.raises(redis.ResponseError, match="no member m9"):
            leader("TMEMBER", "REMOVE", "m9")
    finally:
        extra.kill()
        group.nodes.remove(extra)


# -- bad input -------------------------------------------------------------------------------------------------------
def refused(members: Group, match: str, **config: object) -> None:
    node = members.add(start=False, **config)
    members.nodes.remove(node)
    node.config = {name: value for name, value in node.config.items() if value != ""}
    with pytest.raises(ServerError, match=match):
        node.start()


def test_settings_that_contradict_each_other(group: Group) -> None:
    refused(group, "group and coordinator must be set together", coordinator="")
    refused(group, "is not the URL of a coordinator", coordinator="zoo://x")
    refused(group, "replicaof can't be set in a server group", replicaof="127.0.0.1 6379")
    refused(group, "insync or 0 in a server group", replica_acks=2)
    refused(group, "1 to 64 of the characters", group="a b")


def test_a_name_that_is_taken(group: Group) -> None:
    second = group.add()
    try:
        second.kill()
        second.config["group-member"] = "m1"
        (second.directory / "group").unlink(missing_ok=True)
        second.start()
        wait_until(lambda: "another member with this name is running" in status(second)["problem"], "it waits")
        wait_until(lambda: second.logged("another member with this name is running"), "and says so in the log")
        assert status(second)["phase"] == "joining"
    finally:
        second.kill()
        group.nodes.remove(second)
        leader = group.leader()
        assert leader is not None
        leader.say("TMEMBER", "REMOVE", "m4")


def test_directories_of_other_groups(group: Group) -> None:
    leader = group.wait()
    other = group.others(leader)[0]
    other.kill()
    before = dict(other.config)
    other.config["group"] = "ebb"
    with pytest.raises(ServerError, match="belongs to the group 'tide', not to 'ebb'"):
        other.start()
    other.config = {**before, "group-member": "m7"}
    with pytest.raises(ServerError, match=f"belongs to the member '{before['group-member']}', not to 'm7'"):
        other.start()
    another = f"file://{group.servers.top}/another"
    stranger = group.servers.node(group="ebb", coordinator=another, group_lease=2000)
    wait_until(lambda: status(stranger)["phase"] == "leading", "the other coordinator has a state of another group")
    stranger.kill()
    other.config = {**before, "coordinator": another}
    other.start()
    wait_until(lambda: "has no state of the group tide" in status(other)["problem"], "it says so")
    other.kill()
    other.config = before


def test_a_member_waits_for_the_directory_of_its_coordinator(servers: Cluster) -> None:
    target, link = servers.top / "mounted", servers.top / "link"
    link.symlink_to(target)
    group = Group(servers, members=1, coordinator=f"file://{link}/tide", min_in_sync=1)
    (member,) = group.nodes
    problem = f"is unavailable; this member waits: {link} is a symbolic link to {target}, which does not exist"
    wait_until(lambda: problem in status(member)["problem"], "it says so")
    wait_until(lambda: member.logged(problem), "it logs it")
    assert member.info()["group_phase"] == status(member)["phase"] == "joining"
    assert "READONLY" in str(member.say("SET", "k", "v"))
    assert not target.exists()
    target.mkdir()
    wait_until(lambda: group.leader() is member, "it leads")
    assert status(member)["problem"] == ""
    assert member("SET", "k", "v")
    member.kill()
    target.rename(servers.top / "away")
    target.mkdir()  # as an empty mount point
    (target / "tide").mkdir()
    member.start()
    wait_until(lambda: f"{link}/tide is empty: mount" in status(member)["problem"], "it waits again")
    assert not any((target / "tide").iterdir())
    (target / "tide").rmdir()
    target.rmdir()
    (servers.top / "away").rename(target)
    wait_until(lambda: group.leader() is member, "it leads again")
    assert member("GET", "k") == b"v"


NO_DATA = "MASTERDOWN this member of the group 'tide' has not received the group's data from the leader yet"


def test_a_member_without_data_answers_no_reads(servers: Cluster) -> None:
    group = Group(servers, members=1, min_in_sync=1)
    leader = group.wait()
    leader("SET", "k", "v")
    leader("TAPPEND", "s", "f", "1")
    leader.freeze()  # the new member joins the group, and can't receive a copy
    new = group.add()
    wait_until(lambda: status(new)["phase"] in ("following", "waiting"), "it has joined")
    for words in (("GET", "k"), ("TRANGE", "s", "-", "+"), ("XREAD", "STREAMS", "s", "0"), ("EXISTS", "k")):
        assert new.say(*words) == NO_DATA
    assert new.info()["group_member"] == "m2"
    leader.thaw()
    group.wait()
    wait_until(lambda: new.say("GET", "k") == b"v", "it has a copy")
    new.kill()
    leader.freeze()
    new.start()
    with Raw(new.port) as reader:  # after a restart, it waits for the confirmed offset of a leader
        reader.send("GET", "k")
        wait_until(lambda: new.info().get("withheld_clients") == 1, "the read waits")
    leader.thaw()


def test_a_file_as_the_directory_of_the_coordinator_ends_the_start(servers: Cluster) -> None:
    (servers.top / "file").touch()
    with pytest.raises(ServerError, match=r"coordinator: .*/file is not a directory: use a directory"):
        Group(servers, members=1, coordinator=f"file://{servers.top}/file")


def test_a_lost_directory_is_never_eligible(servers: Cluster) -> None:
    group = Group(servers, 2, min_in_sync=1)
    leader = group.wait()
    leader("SET", "k", "v")
    follower = group.others(leader)[0]
    follower.kill()
    wait_until(lambda: len(status(leader)["in_sync"]) == 1, "one is left")
    leader("SET", "k", "w")
    leader.kill()
    follower.start()
    wait_until(lambda: "it is not in the in-sync set" in status(follower)["problem"], "it can't lead")
    for path in leader.directory.iterdir():
        if path.is_dir():
            for each in path.iterdir():
                each.unlink()
            path.rmdir()
        else:
            path.unlink()
    leader.start()
    wait_until(lambda: "only its previous one has all acknowledged data" in status(leader)["problem"], "it says so")
    assert group.leader() is None


# -- the coordinator -------------------------------------------------------------------------------------------------
def test_etcd(servers: Cluster, tmp_path_factory: pytest.TempPathFactory) -> None:
    etcd = Etcds(tmp_path_factory.mktemp("etcd"))
    try:
        group = Group(servers, coordinator=f"etcd://{etcd.hosts}")
        leader = group.wait()
        with Writer(group) as writer:
            leader.kill()
            writer.after(time.monotonic())
        writer.check(group.wait(*group.others(leader)))
    finally:
        etcd.close()


def test_a_coordinator_that_is_away(servers: Cluster, tmp_path_factory: pytest.TempPathFactory) -> None:
    etcd = Etcds(tmp_path_factory.mktemp("etcd"))
    closed = False
    try:
        group = Group(servers, 2, coordinator=f"etcd://{etcd.hosts}")
        leader = group.wait()
        etcd.close()
        closed = True
        wait_until(lambda: status(leader)["lease_left_ms"] == 0, "its lease expires")
        with Raw(leader.port) as raw:
            raw.send("GET", "k")
            wait_until(lambda: status(leader)["withheld_clients"] == 1, "a leader without a lease is silent")
            assert raw.nothing_yet()
        late = group.add()
        wait_until(lambda: "is unavailable; this member waits" in status(late)["problem"], "it says so")
    finally:
        if not closed:
            etcd.close()
