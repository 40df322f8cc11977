"""The partitions of a topic are distributed evenly over the groups of a cluster."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from respserver.testing import RunningServer
from tests.replication.cluster import cluster
from tests.replication.clusters import Groups
from tests.tidelog.topics.test_cluster_producer import Order, topic_of
from tidelog import AsyncClient, Client
from tidelog.cli.program import main
from tidelog.topics import Topic, TopicMismatchError, admin
from tidelog.topics.balancing import PartitionPlace, SlotTransfer, planned, summary
from tidelog.transport.slots import slot_of


# -- the plan ----------------------------------------------------------------------------------------------------
def at(*groups: str, slots: tuple[int, ...] = (), busy: int = -1) -> list[PartitionPlace]:
    """Places of partitions: their groups, and their slots, which are 0, 1, ... by default."""
    numbers = slots or range(len(groups))
    return [PartitionPlace(slot, group, "a:1", slot == busy) for slot, group in zip(numbers, groups, strict=True)]


def test_as_few_partitions_as_possible_change_their_group() -> None:
    assert planned(at("1", "1", "1", "2"), ["1", "2"]) == [SlotTransfer((2,), "1", "2")]
    assert planned(at("1", "2", "1"), ["1", "2"]) == []
    moved = planned(at(*"1" * 7), ["1", "2", "3"])
    assert Counter({each.target: len(each.slots) for each in moved}) == {"2": 2, "3": 2}


def test_unassigned_slots_are_assigned() -> None:
    assert planned(at("-", "1", "2", "-"), ["1", "2"]) == [SlotTransfer((0,), "-", "1"), SlotTransfer((3,), "-", "2")]


def test_slots_that_stay() -> None:
    assert planned(at("1", "1", "1", "1"), ["1", "2"], fixed=[0, 1, 2]) == [SlotTransfer((3,), "1", "2")]
    assert planned(at("1", "1", busy=0), ["1", "2"]) == [SlotTransfer((1,), "1", "2")]
    assert planned(at("1", "1"), ["1", "2"], fixed=[0, 1]) == []


def test_partitions_with_the_same_slot_stay_together() -> None:
    assert planned(at("1", "1", "1", "1", slots=(5, 5, 5, 9)), ["1", "2"]) == [SlotTransfer((9,), "1", "2")]
    assert planned(at("1", "1", slots=(5, 5)), ["1", "2"]) == []


def test_a_group_that_is_not_listed_gives_its_partitions_away() -> None:
    assert planned(at("1", "3"), ["1", "2"]) == [SlotTransfer((1,), "3", "2")]
    assert planned(at("1", "1"), []) == []


@pytest.mark.parametrize("groups", [2, 3, 7, 64])
def test_a_large_topic_is_even(groups: int) -> None:
    names = [str(number) for number in range(groups)]
    places = at(*(names[slot * slot % 11 % groups] for slot in range(1024)))
    owners = {place.slot: place.group for place in places}
    owners |= {slot: each.target for each in planned(places, names) for slot in each.slots}
    counts = Counter(owners.values()).values()
    assert max(counts) - min(counts) <= 1


# -- a cluster ----------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def groups() -> Iterator[Groups]:
    with cluster() as servers:
        made = Groups(servers, divide=False)
        made.assign("12288-16383", to="2")  # with halves, CRC16 divides four partitions evenly, whatever their name is
        yield made


@pytest.fixture
def url(groups: Groups) -> str:
    return f"redis://127.0.0.1:{groups.nodes[0].port},127.0.0.1:{groups.nodes[1].port}"


def uneven(prefix: str, groups: Groups, partitions: int = 4) -> str:
    """Return a name whose partitions the hash distributes unevenly."""
    slots = groups.agree()["slots"]
    return next(
        name
        for name in (f"{prefix}{number}" for number in range(100))
        if max(where(slots, name, partitions).values()) > partitions // 2
    )


def where(slots: Any, name: str, partitions: int) -> Counter[str]:
    owners = [next(g for first, last, g in slots if first <= slot_of(f"{name}:{p}") <= last) for p in range(partitions)]
    return Counter(owners)


def test_a_new_topic_is_even_from_the_start(groups: Groups, url: str) -> None:
    name = uneven("shop", groups)
    with Client(url) as client:
        topic = topic_of(name, client)
        topic.sync.ready()
        assert where(groups.agree()["slots"], name, 4) == {"1": 2, "2": 2}
        assert topic.sync.send_many(Order(n) for n in range(400)) == 400
        places = admin.places(client, name, topic.settings)
        assert summary(places) == "2 on group 1, 2 on group 2"
        version = groups.agree()["version"]
        again = topic_of(name, client)
        again.sync.ready()  # another program: nothing changes
        assert groups.agree()["version"] == version
    shown = CliRunner().invoke(main, ["topics", "show", name, "--url", url])
    assert "4 partitions: 2 on group 1, 2 on group 2" in shown.output, shown.output


def test_a_topic_that_an_event_loop_creates(groups: Groups, url: str) -> None:
    name = uneven("async", groups)

    async def send() -> None:
        client = AsyncClient(url)
        topic: Topic[Order] = Topic(name, Order, partition_by="id", partitions=4)
        topic.use(client)
        await topic.send_many([Order(n) for n in range(100)])
        await client.close()

    asyncio.run(send())
    assert where(groups.agree()["slots"], name, 4) == {"1": 2, "2": 2}


def test_a_slot_with_keys_stays_unless_it_is_moved(groups: Groups, url: str) -> None:
    name = uneven("kept", groups)
    with Client(url) as client:
        for number in range(4):
            client.tappend(f"{name}:{number}", {"id": str(number)})
        topic_of(name, client).sync.ready()
        assert max(where(groups.agree()["slots"], name, 4).values()) > 2
        kept = CliRunner().invoke(main, ["topics", "balance", name, "--url", url])
        assert "--move moves them" in kept.output, kept.output
        moved = CliRunner().invoke(main, ["topics", "balance", name, "--move", "--url", url])
        assert moved.exit_code == 0, moved.output
        assert f"{name} has 4 partitions: 2 on group 1, 2 on group 2" in moved.output
        assert [client.tlen(f"{name}:{number}") for number in range(4)] == [1, 1, 1, 1]


def test_a_topic_that_grows(groups: Groups, url: str) -> None:
    name = uneven("grown", groups, 8)
    with Client(url) as client:
        topic = topic_of(name, client)
        topic.sync.send_many(Order(n) for n in range(40))
        before = [place.group for place in admin.places(client, name, topic.settings)]
        declared = topic_of(name, client, partitions=8)
        with pytest.raises(TopicMismatchError, match=f"tidelog topics grow {name} 8, if that is a multiple"):
            declared.sync.ready()
        refused = CliRunner().invoke(main, ["topics", "grow", name, "6", "--url", url])
        assert refused.exit_code == 1
        assert "it can grow to a multiple of that, not to 6" in refused.output
        grown = CliRunner().invoke(main, ["topics", "grow", name, "8", "--url", url])
        assert f"{name} has 8 partitions: 4 on group 1, 4 on group 2" in grown.output, grown.output
        settings = admin.settings_of(client, name)
        assert [place.group for place in admin.places(client, name, settings)][:4] == before
        declared.sync.send_many(Order(n) for n in range(40, 80))
        assert sum(client.tlen(f"{name}:{number}") for number in range(8)) == 80


def test_a_user_without_the_permission_creates_a_topic(
    groups: Groups, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = uneven("user", groups)
    for node in groups.nodes:
        node.say("ACL", "SETUSER", "ann", "on", ">pw", "~*", "&*", "+@all", "-tcluster")
    with Client(url.replace("redis://", "redis://ann:pw@")) as client:
        assert topic_of(name, client).sync.send(Order(1))
    assert f"topic {name!r}: its partitions are not distributed over the groups" in caplog.text
    assert "TCLUSTER" in caplog.text.upper()


def test_groups_without_slots_get_no_partitions() -> None:
    with cluster() as servers:
        groups = Groups(servers, divide=False)
        with Client(f"redis://127.0.0.1:{groups.nodes[0].port}") as client:
            topic_of("orders", client).sync.ready()
        assert groups.agree()["slots"] == [[0, 16383, "1"]]


def test_a_single_server_has_no_groups(server: RunningServer) -> None:
    url = f"redis://127.0.0.1:{server.port}"
    with Client(url) as client:
        topic = topic_of("alone", client)
        topic.sync.ready()
        assert admin.places(client, "alone", topic.settings) == []
        assert "errorstat" not in str(client.redis.info("errorstats"))
    refused = CliRunner().invoke(main, ["topics", "balance", "alone", "--url", url])
    assert refused.exit_code == 1
    assert "its servers are not a cluster with a coordinator" in refused.output
