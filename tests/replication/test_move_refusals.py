"""TCLUSTER MOVE and ASSIGN to a group that can't receive slots: each case has a message, and nothing remains."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.replication.cluster import Node, wait_until
from tests.replication.clusters import Groups
from tests.wire.rawclient import Raw

# "b" has slot 3300, of group 1; "a" has slot 15495, of group 2
REMEDY = "set masteruser and masterauth of this server to a user of that group that has the permission +tcluster"


@pytest.fixture
def pair(shared: Groups) -> Iterator[tuple[Node, Node]]:
    """The leaders of both groups. Group 1 has a key."""
    one, two = shared.leader(1), shared.leader(2)
    one("SET", "b", "1")
    yield one, two
    one("CONFIG", "SET", "masteruser", "", "masterauth", "")
    two("CONFIG", "SET", "requirepass", "", "maxmemory", "0")
    two("ACL", "DELUSER", "mover")


def others(node: Node) -> list[Any]:
    """The connections of other groups."""
    return [each for each in node.redis.client_list() if each["cmd"] in ("auth", "tcluster|import")]


@pytest.mark.parametrize(
    ("user", "password", "error"),
    [
        ("mover", "wrong", "WRONGPASS"), ("nobody", "right", "WRONGPASS"), ("", "", "NOAUTH"),
        ("weak", "right", "NOPERM"),
    ],
)  # fmt: skip
def test_another_group_that_refuses_the_login(
    user: str, password: str, error: str, shared: Groups, pair: tuple[Node, Node]
) -> None:
    one, two = pair
    two("ACL", "SETUSER", "mover", "on", ">right", "resetkeys", "-@all", "+tcluster")
    two("ACL", "SETUSER", "weak", "on", ">right", "~*", "+@all", "-tcluster")
    two("CONFIG", "SET", "requirepass", "secret")
    one("CONFIG", "SET", "masteruser", user, "masterauth", password)
    reply = str(one.say("TCLUSTER", "MOVE", "3300", "TO", "2"))
    assert f"the other group: {error}" in reply
    assert f"({REMEDY}): nothing has changed" in reply
    wait_until(lambda: not others(two), "the connection is closed")
    one("CONFIG", "SET", "masteruser", "mover", "masterauth", "right")
    assert one.say("TCLUSTER", "MOVE", "3300", "TO", "2") == b"OK"
    two("CONFIG", "SET", "requirepass", "")
    assert two.say("GET", "b") == b"1"
    assert two.say("TCLUSTER", "MOVE", "3300", "TO", "1") == b"OK"
    two("ACL", "DELUSER", "weak")


def test_another_group_without_memory(pair: tuple[Node, Node]) -> None:
    one, two = pair
    two("CONFIG", "SET", "maxmemory", "1")
    reply = str(one.say("TCLUSTER", "MOVE", "3300", "TO", "2"))
    assert reply.startswith("ERR the other group: OOM command not allowed when used memory > 'maxmemory'.")
    assert reply.endswith("(raise maxmemory of that group, or delete keys): nothing has changed")
    assert one.say("GET", "b") == b"1"


def test_another_group_that_has_a_stage_from_before(shared: Groups, pair: tuple[Node, Node]) -> None:
    """A server that had stages before it joined the cluster: the entries of a stage with the same name would be
    added to them."""
    one, two = pair
    made = shared.servers.node()
    assert made.say("TSTAGE", "{b}stage", 600_000, "{b}y", "FIELDS", 1, "f", "VALUES", "v") == 1
    config = dict(shared.groups[1].nodes[0].config)
    made.kill()
    made.config |= {name: config[name] for name in ("cluster-enabled", "coordinator", "min-in-sync", "move-pause")}
    made.config |= {"group": "3", "group-member": "3a"}
    made.start()
    wait_until(lambda: b'"3a"' in one.say("TCLUSTER", "MAP"), "group 3 joins")
    reply = str(one.say("TCLUSTER", "MOVE", "3300", "TO", "3"))
    assert "group 3 has 1 stage in slot 3300 from the time before it joined the cluster" in reply
    assert "'{b}stage'" in reply
    made.kill()
    wait_until(lambda: b"no leader" in str(one.say("TCLUSTER", "MOVE", "3300", "TO", "3")).encode(), "no leader")
    error = "ERR group 3 has no leader now, so nobody would serve the slots: start its members, or try again after its"
    for action, slot in (("MOVE", "3300"), ("ASSIGN", "1")):
        assert str(one.say("TCLUSTER", action, slot, "TO", "3")).startswith(error)
    assert one.say("TCLUSTER", "REMOVE", "3") == b"OK"
    assert two.say("GET", "b") == f"MOVED 3300 127.0.0.1:{one.port}"


def test_keys_that_are_copied_are_not_counted(pair: tuple[Node, Node]) -> None:
    one, two = pair
    with Raw(one.port) as raw:
        raw.pipeline(*(("SET", f"{{b}}{number}", "1") for number in range(2500)))
        assert raw("CLIENT", "MULTISLOT", "ON") == b"OK"
        assert raw("TSTAGE", "{b}stage", "600000", "{c}y", "FIELDS", "1", "f", "VALUES", "v") == 1  # it can't leave
        with Raw(one.port) as mover:
            mover.send("TCLUSTER", "MOVE", "3300", "TO", "2")
            wait_until(lambda: b"publish or drop it" in raw("TCLUSTER", "STATUS"), "everything is copied")
            wait_until(lambda: two.info("keyspace").get("db0", {}).get("keys") == 2501, "the last copies arrive")
            assert [two.say("DBSIZE"), two.say("CLUSTER", "COUNTKEYSINSLOT", "3300"), raw("DBSIZE")] == [0, 0, 2501]
            assert two.say("CLUSTER", "GETKEYSINSLOT", "3300", "10") == []
            with Raw(two.port) as other:
                assert [other("MULTI"), other("DBSIZE"), other("EXEC")] == [b"OK", b"QUEUED", [0]]
            assert raw("TDROP", "{b}stage") == 1
            assert mover.read() == b"OK"
        assert [two.say("DBSIZE"), raw("DBSIZE")] == [2501, 0]
    assert two.say("TCLUSTER", "MOVE", "3300", "TO", "1") == b"OK"
    one("FLUSHALL")


def test_slots_with_the_dead_letters_of_keys_that_stay(pair: tuple[Node, Node]) -> None:
    one, two = pair
    error = "a group of '{b}k' has its dead letters in '{c}dead', whose slot does not move with it"
    with Raw(one.port) as raw:
        assert raw("CLIENT", "MULTISLOT", "ON") == b"OK"
        raw("XADD", "{b}k", "*", "f", "v")
        options = ("GROUP", "g", "600000", "RETRY", "60000", "90000", "DEADLETTER", "{c}dead")
        entry = raw("TREAD", "{b}k", "0", "9", *options)[0][0]
        for action in ("ASSIGN", "MOVE"):  # 7365 is the slot of c
            assert error in raw("TCLUSTER", action, "7365", "TO", "2")
        assert raw("TACK", "{b}k", "g", entry) == 1
        assert raw("TCLUSTER", "ASSIGN", "7365", "TO", "2") == b"OK"
        assert two.say("TCLUSTER", "ASSIGN", "7365", "TO", "1") == b"OK"
        raw("DEL", "{b}k")


def test_links_that_are_refused(pair: tuple[Node, Node]) -> None:
    one, _ = pair
    link = ("TCLUSTER", "IMPORT", "ab" * 16, "LINK", "/prefix")
    for words, error in (
        ((), "syntax error"), (("object",), "syntax error"), (("object", "1", "other"), "syntax error"),
        (("object", "-1"), "must be positive"), (("object", "x"), "not an integer"),
        (("object", "1") * 65, "a request has more than 64 objects"),
        (("object", "1"), "the import has ended"),
    ):  # fmt: skip
        assert error in str(one.say(*link, *words)), words
