"""TCLUSTER MOVE of streams whose history objects the new owner links below its own prefix."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from persistence.tiering.objectstore import HistoryStore
from storage.history import owner
from tests.persistence.tiering.kit import History
from tests.replication.cluster import Cluster, Node, cluster, wait_until
from tests.replication.clusters import Groups, cluster_status
from tests.replication.test_tiered_moves import COUNT, KEY, empty_cache, fill, seen, wait_until_freed
from tests.respserver.tiering.test_tiering import fields, helpers
from tests.tidelog.jobs.s3kit import s3_bucket
from tests.wire.rawclient import Raw


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Cluster]:
    with cluster() as made:
        yield made


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_bucket() as url:
        yield url


@pytest.fixture(params=["directory", "s3"])
def top(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the prefixes are."""
    if request.param == "directory":
        return str(tmp_path)
    return f"{request.getfixturevalue('bucket')}/{tmp_path.name}"


def groups_of(servers: Cluster, top: str, count: int = 2, **config: Any) -> Groups:
    """Groups with prefixes of their own. The last one owns {a}."""
    made = Groups(servers, groups=0, divide=False)
    for number in range(1, count + 1):
        url = f"{top}/{number}"
        if url.startswith("/"):
            Path(url).mkdir()
        made.add(
            tier_url=url, tier_after=0, tier_interval=0, tier_free="yes", tier_grace=0, stream_node_max_entries=10,
            node_cache_size=0, save="", move_pause=5000, **config,
        )  # fmt: skip
    made.divide()
    return made


def count(node: Node, name: str) -> int:
    with Raw(node.port) as client:
        return int(fields(client)[name])


def store(top: str, group: int) -> HistoryStore:
    return HistoryStore(f"{top}/{group}", 30, lambda: None)


def moves_pinned(top: str, group: int) -> list[str]:
    return [name for name in store(top, group).names("pins") if name.startswith("move-")]


def unlisted(top: str, group: int) -> set[str]:
    """Return the objects that no manifest lists."""
    listed: set[str] = set()
    for key in (KEY, "{a}y"):
        found = History(store(top, group)).manifest(key.encode())
        listed |= {part.name for part in found.parts} if found is not None else set()
    return set(store(top, group).names("objects")) - listed


def checked(top: str, node: Node, group: int) -> None:
    """Wait until the history of a group has the stream from its beginning, and compare it with the stream."""
    with Raw(node.port) as client:
        entries = client("XRANGE", KEY, "-", "+")

        def listed() -> bool:
            client("SAVE")
            return bool(History(store(top, group)).entries(KEY.encode())[:1] == entries[:1])

        wait_until(listed, "a manifest with the first entry")
    history = [one for one in History(store(top, group)).entries(KEY.encode()) if one[0] not in (b"55-1", b"56-1")]
    assert history == entries[: len(history)]
    assert len(history) > COUNT - 40


def test_objects_are_linked_and_not_read(servers: Cluster, top: str) -> None:
    groups = groups_of(servers, top)
    one, two = groups.leader(1), groups.leader(2)
    fill(two)
    before = seen(two)
    empty_cache(two)
    fetched, log = count(two, "tier_fetched_nodes"), one.offset
    groups.move("15495", to="1", at=2)
    assert count(two, "tier_fetched_nodes") == fetched, "no server reads the entries"
    assert one.logged("Group 1 has adopted")
    assert one.offset - log < 40_000, "nor are they sent"
    assert seen(one) == before
    assert count(one, "tier_fetched_nodes") > 30
    if top.startswith("/"):  # the other group's history is gone
        Path(top, "2").rename(Path(top, "away"))
        empty_cache(one)
        assert seen(one) == before
        Path(top, "away").rename(Path(top, "2"))
    checked(top, one, 1)
    assert count(one, "tier_entries") < 100, "only entries that were not copied yet are copied"
    wait_until(lambda: not moves_pinned(top, 1), "the end of the pin")
    empty_cache(one)
    assert seen(one) == before
    groups.move("15495", to="2", at=1)
    empty_cache(two)
    assert seen(two) == before, "and back"
    checked(top, two, 2)
    wait_until(lambda: not moves_pinned(top, 2), "the end of the pin")
    empty_cache(two)
    assert seen(two) == before


def test_a_store_of_another_group_under_the_same_url(servers: Cluster, tmp_path: Path) -> None:
    """The new owner has another endpoint, or another mount. Nothing is linked there, and the entries are sent."""
    groups = groups_of(servers, str(tmp_path))
    one, two = groups.leader(1), groups.leader(2)
    fill(two)
    before = seen(two)
    file = tmp_path / "2" / owner.NAME
    file.write_bytes(owner.encode("ab" * 20))
    groups.move("15495", to="1", at=2)
    assert seen(one) == before
    assert two.logged("0 of 1 history objects of the moving slots are linked")
    assert one.logged(f"belongs to {'ab' * 20} here, instead of to the group that has the slots")
    assert not moves_pinned(str(tmp_path), 1)


# -- kills -----------------------------------------------------------------------------------------------------
class Moving:
    """A move that is in progress."""

    def __init__(self, groups: Groups) -> None:
        self._node = groups.leader(2)
        self.reply: object = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError, EOFError, ValueError):  # the server is killed
            self.reply = self._node.say("TCLUSTER", "MOVE", "15495", "TO", "1")

    def end(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()


def helper_of(node: Node) -> int:
    return wait_until(lambda: helpers(node, b"tiering.helper"), "the helper process")[0]


def kill(groups: Groups, victim: str) -> None:
    """Kill the leader of the source or of the target, or the helper of the target, and start the servers again."""
    if victim == "helper":
        os.kill(helper_of(groups.groups[0].nodes[0]), signal.SIGKILL)
    else:
        node = groups.groups[1 if victim == "source" else 0].nodes[0]
        node.kill()
        node.start()


def check_all(groups: Groups, top: str, before: list[Any], ended: str = "either") -> None:
    """Wait for the end of the move, and let the slot move to group 1 if it has not. The sweeps of both groups run, and
    nothing that is needed is missing. ``ended``: the owner before."""
    wait_until(lambda: not groups.agree()["moves"], "the end of the move")
    owner = groups.owner(KEY)
    assert ended in ("either", owner)
    assert seen(groups.leader(owner)) == before
    if owner == "2":
        groups.move("15495", to="1", at=2)
    one, two = groups.leader(1), groups.leader(2)
    assert seen(one) == before
    wait_until_swept(one, two)
    checked(top, one, 1)
    wait_until(lambda: not moves_pinned(top, 1), "the end of the pins")
    wait_until_swept(one, two)
    empty_cache(one)
    assert seen(one) == before
    wait_until(lambda: not store(top, 2).names("objects"), "the deletion of the objects of the former owner")
    wait_until(lambda: not unlisted(top, 1), "the deletion of links that nothing needs")


def wait_until_swept(*nodes: Node) -> None:
    """Wait until three passes have begun and ended."""
    for node in nodes:
        wait_until(lambda node=node: node.say("SAVE") == b"OK", "no other checkpoint is in progress")  # type: ignore[misc]
        passes = count(node, "tier_passes") + 3
        wait_until(lambda node=node, passes=passes: count(node, "tier_passes") >= passes, "three passes")  # type: ignore[misc]


@pytest.mark.parametrize("victim", ["source", "target", "helper"])
def test_a_kill_while_objects_are_linked(servers: Cluster, tmp_path: Path, victim: str) -> None:
    top = str(tmp_path)
    groups = groups_of(servers, top)
    fill(groups.leader(2))
    before = seen(groups.leader(2))
    helper = helper_of(groups.leader(1))
    os.kill(helper, signal.SIGSTOP)
    moving = Moving(groups)
    wait_until(lambda: cluster_status(groups.leader(1))["map"]["moves"], "the begin of the move")
    kill(groups, victim)
    with contextlib.suppress(ProcessLookupError):
        os.kill(helper, signal.SIGCONT)
    moving.end()
    check_all(groups, top, before, {"source": "2", "helper": "1"}.get(victim, "either"))


@pytest.mark.parametrize("victim", ["source", "target", "helper", "abort"])
def test_a_kill_after_everything_is_copied(servers: Cluster, tmp_path: Path, victim: str) -> None:
    top = str(tmp_path)
    groups = groups_of(servers, top)
    one, two = groups.leader(1), groups.leader(2)
    fill(two)
    before = seen(two)
    with Raw(two.port) as raw:
        assert raw("CLIENT", "MULTISLOT", "ON") == b"OK"
        assert raw("TSTAGE", "{a}stage", "600000", "{d}y", "FIELDS", "1", "f", "VALUES", "v") == 1
    moving = Moving(groups)
    wait_until(lambda: moves_pinned(top, 1) and linked(two) == 1, "links")
    wait_until(lambda: "the stage" in str(cluster_status(two)["move"]), "a move that only waits for the stage")
    wait_until_swept(one, two)
    if victim == "abort":
        assert two.say("TCLUSTER", "ABORT") == b"OK"
    else:
        kill(groups, victim)
    wait_until(lambda: groups.leader(2).say("TDROP", "{a}stage") == 1, "the end of the stage")
    moving.end()
    check_all(groups, top, before, {"source": "2", "abort": "2", "helper": "1"}.get(victim, "either"))


def linked(node: Node) -> int:
    return int((cluster_status(node)["move"] or {}).get("linked", 0))


@pytest.mark.parametrize("victim", ["source", "target", "helper"])
def test_a_kill_right_after_the_map_has_changed(servers: Cluster, tmp_path: Path, victim: str) -> None:
    top = str(tmp_path)
    groups = groups_of(servers, top)
    fill(groups.leader(2))
    before = seen(groups.leader(2))
    moving = Moving(groups)
    wait_until(
        lambda: moving.reply or any(each["moved"] for each in cluster_status(groups.leader(1))["map"]["moves"]),
        "a changed map",
    )
    kill(groups, victim)
    moving.end()
    check_all(groups, top, before, "1")


def test_a_chain_of_moves_and_a_failover(servers: Cluster, tmp_path: Path) -> None:
    """From 3 to 2 to 1, whose leader is then killed. The history of the former owners is gone."""
    top = str(tmp_path)
    groups = groups_of(servers, top, 3)
    follower = groups.groups[0].add()
    fill(groups.leader(3))
    before = seen(groups.leader(3))
    for at in (3, 2):
        node = groups.leader(at)
        groups.move("15495", to=str(at - 1), at=at)
        assert node.logged("history objects of the moving slots are linked")
        assert not node.logged("0 of")
        wait_until(lambda node=node: not node.say("DBSIZE"), "the deletion of the keys")  # type: ignore[misc]
        wait_until_swept(node)
    for former in "32":
        Path(top, former).rename(Path(top, f"away{former}"))
    one = groups.leader(1)
    empty_cache(one)
    assert seen(one) == before
    one.kill()
    wait_until(lambda: cluster_status(follower)["leads"], "another leader of group 1")
    assert seen(follower) == before
    wait_until_swept(follower)
    checked(top, follower, 1)
    wait_until(lambda: not moves_pinned(top, 1), "the end of the pin")
    empty_cache(follower)
    assert seen(follower) == before


def test_an_object_that_is_lost(servers: Cluster, tmp_path: Path) -> None:
    """One of several objects is missing: those before it are linked, and the move ends because of its entries."""
    top = str(tmp_path)
    groups = groups_of(servers, top)
    one, two = groups.leader(1), groups.leader(2)
    fill(two)
    chance = random.Random(1)
    with Raw(two.port) as client:
        client.pipeline(
            *[("XADD", KEY, f"{n}-1", "t", chance.randbytes(60).hex()) for n in range(COUNT + 1, 2 * COUNT)]
        )
    wait_until_freed(two, 50)
    before = seen(two)
    names = store(top, 2).names("objects")
    assert len(names) > 1
    found = History(store(top, 2)).manifest(KEY.encode())
    assert found is not None
    lost = Path(top, "2", "objects", found.parts[-1].name)
    lost.rename(tmp_path / "lost")
    empty_cache(two)
    reply = two.say("TCLUSTER", "MOVE", "15495", "TO", "1")
    assert "are only in the object store" in reply
    assert reply.endswith("the slots stay in this group")
    assert two.logged(f"{len(names) - 1} of {len(names)} history objects of the moving slots are linked")
    assert one.logged("1 objects of")
    (tmp_path / "lost").rename(lost)
    wait_until(lambda: not groups.agree()["moves"], "the end of the move")
    wait_until(lambda: not one.say("DBSIZE"), "the deletion of the copies")
    wait_until(lambda: seen(two) == before, "the entries, once a second has passed since the last failure")
    check_all(groups, top, before, "2")
