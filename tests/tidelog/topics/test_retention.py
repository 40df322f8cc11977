"""The retention of topics on a real server, which enforces it while no program of the topic runs."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
import redis

from tests.tidelog.topics.topickit import Order, orders, sent
from tests.waiting import eventually
from tidelog import Client, StreamPolicy
from tidelog.client import steps
from tidelog.testing import Server
from tidelog.topics import Retention, Topic, TopicError, TopicMismatchError, admin
from tidelog.topics import retention as module
from tidelog.transport.call import Call

PROTECT = StreamPolicy(count=10, groups=True, exact=True)


def policies(client: Client, partitions: int = 4) -> list[StreamPolicy | None]:
    return [client.tcfg(f"orders:{at}") for at in range(partitions)]


def without_policies(client: Client, partitions: int = 4) -> None:
    """Remove the policies, as in a topic of an earlier version, or after a program has died too early."""
    for at in range(partitions):
        client.tcfg_retain(f"orders:{at}", None)


@pytest.mark.parametrize(
    ("options", "policy"),
    [
        ({"partition_size": 10}, PROTECT),
        ({"partition_size": 10, "hard_limit": 10}, PROTECT),
        ({"max_age": 2.5}, StreamPolicy(ms=2500, groups=True, exact=True)),
        ({"partition_size": 9, "max_age": 60, "overflow": "drop"}, StreamPolicy(count=9, ms=60_000, exact=True)),
    ],
)
def test_the_first_program_sets_the_policies(
    tidelog_server: Server, client: Client, options: dict[str, Any], policy: StreamPolicy
) -> None:
    orders(tidelog_server, **options).sync.ready()
    assert policies(client) == [policy] * 4


def test_a_topic_without_limits_sets_nothing(tidelog_server: Server, client: Client) -> None:
    client.redis.config_set("stream-retention", "orders:* RETAIN COUNT 77")
    try:
        orders(tidelog_server, hard_limit=5).sync.ready()
        assert client.redis.keys() == [b"topic:orders"]
        orders(tidelog_server).sync.send_many(Order(n, "x") for n in range(40))
        admin.alter(client, "orders", fields={"item": "bytes"})
        assert policies(client) == [StreamPolicy(count=77)] * 4
    finally:
        client.redis.config_set("stream-retention", "")


def test_a_program_sets_policies_that_are_missing(tidelog_server: Server, client: Client) -> None:
    orders(tidelog_server, partition_size=10).sync.ready()
    without_policies(client)
    client.redis.delete("orders:2")
    orders(tidelog_server, partitions=None).sync.send(Order(1, "x"))
    assert policies(client) == [PROTECT] * 4


def test_policies_follow_the_settings(tidelog_server: Server, client: Client) -> None:
    orders(tidelog_server).sync.ready()
    admin.alter(client, "orders", Retention(partition_size=10))
    assert policies(client) == [PROTECT] * 4
    admin.grow(client, "orders", 8)
    assert policies(client, 8) == [PROTECT] * 8
    client.redis.delete("orders:5")
    admin.alter(client, "orders", Retention(overflow="protect"))
    assert [client.tcfg(f"orders:{at}") for at in (0, 7)] == [None, None]
    assert client.redis.exists("orders:5") == 0


def test_a_running_program_completes_a_change(
    tidelog_server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.topics.topic.CHECKED", 0.0)  # seconds pass between all calls
    topic = orders(tidelog_server)
    topic.sync.send(Order(1, "x"))
    for retention, expected in ((Retention(10), PROTECT), (Retention(), None)):
        with monkeypatch.context() as patch:  # a program that dies after it has written the settings
            patch.setattr(admin, "enforce", lambda *_: iter(()))
            admin.alter(client, "orders", retention)
        topic.sync.send(Order(1, "x"))
        assert policies(client) == [expected] * 4


def test_the_last_settings_win(tidelog_server: Server, client: Client) -> None:
    """They are changed by another program while the policies of the previous ones are set."""
    orders(tidelog_server, partition_size=99).sync.ready()
    before = admin.settings_of(client, "orders")
    changes = [Retention(50), Retention(10)]

    def send(calls: Sequence[Call[Any]]) -> list[Any]:
        if changes:
            admin.alter(client, "orders", changes.pop(0))
        return client.together(*calls, raise_on_error=False)

    steps.drive(send, module.enforce("orders", before))
    assert policies(client) == [PROTECT] * 4


def test_topics_with_many_partitions(
    tidelog_server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE", 3)
    orders(tidelog_server, partitions=8, partition_size=10).sync.ready()
    assert policies(client, 8) == [PROTECT] * 8


def test_a_program_without_the_permission_sends_anyway(
    tidelog_server: Server, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    orders(tidelog_server, partition_size=10).sync.ready()
    without_policies(client)
    client.redis.execute_command("ACL", "SETUSER", "sender", "on", ">secret", "~*", "+@all", "-tcfg")
    topic = orders(tidelog_server)
    topic.url = tidelog_server.url.replace("redis://", "redis://sender:secret@")
    try:
        for number in range(3):
            topic.sync.send(Order(number, "x"))
    finally:
        topic.close_sync()
        client.redis.acl_deluser("sender")
    assert sum(client.tlen(f"orders:{at}") for at in range(4)) == 3
    (warning,) = caplog.messages
    assert warning.startswith("topic 'orders': the retention of 4 of 4 partitions can't be set: NOPERM")
    assert warning.endswith("the server retains these partitions as before. Use tidelog topics alter orders")


def test_a_partition_of_another_type_does_not_hold_up_the_others(tidelog_server: Server, client: Client) -> None:
    orders(tidelog_server).sync.ready()
    client.redis.set("orders:1", "text")
    with pytest.raises(TopicError, match="the retention of 1 of 4 partitions can't be set: WRONGTYPE"):
        admin.alter(client, "orders", Retention(10))
    assert [client.tcfg(f"orders:{at}") for at in (0, 2, 3)] == [PROTECT] * 3


def test_temporary_errors_are_raised(tidelog_server: Server, client: Client) -> None:
    """The next call tries again."""
    orders(tidelog_server, partition_size=10).sync.ready()
    settings = admin.settings_of(client, "orders")
    refused = redis.ResponseError("LOADING the data set is loaded")

    def send(calls: Sequence[Call[Any]]) -> list[Any]:
        return [refused, *client.together(*calls[1:], raise_on_error=False)]

    with pytest.raises(redis.ResponseError, match="LOADING"):
        steps.drive(send, module.enforce_changed("orders", settings, None))


def test_drop_evicts_whether_entries_were_read_or_not(tidelog_server: Server, client: Client) -> None:
    topic = orders(tidelog_server, partitions=1, partition_size=10, overflow="drop")
    topic.sync.send_many(Order(number, "x") for number in range(1000))
    topic.sync.producer("import").send_many([Order(1000, "x")])
    eventually(lambda: client.tlen("orders:0") == 10)
    assert [order.id for order in sent(client, topic, 1)[0]] == list(range(991, 1001))


def test_drop_by_age(tidelog_server: Server, client: Client) -> None:
    topic = orders(tidelog_server, partitions=1, max_age=timedelta(milliseconds=1), overflow="drop")
    topic.sync.send(Order(1, "x"))
    eventually(lambda: client.tlen("orders:0") == 0)
    assert topic.sync.ready().retention == Retention(None, 1, "drop", None)


def test_protect_retains_what_a_group_has_not_finished(tidelog_server: Server, client: Client) -> None:
    topic = orders(tidelog_server, partitions=1, partition_size=10)
    topic.sync.send_many(Order(number, "x") for number in range(100))

    def excess() -> int:
        return client.tcfg_retain("orders:0", PROTECT, dry=True)

    assert excess() == 0  # nobody has read anything
    slow = client.tread("orders:0", "0", 30, group="slow", retry=60_000).entries
    client.tread("orders:0", "0", 80, group="fast")
    assert excess() == 0  # the slow group has 30 pending
    client.tack("orders:0", "slow", *slow[:20])
    eventually(lambda: client.tlen("orders:0") == 80)
    (state,) = admin.partitions(client, "orders", topic.sync.ready())
    assert (state.length, state.groups, state.unfinished) == (80, 2, 80)
    client.tack("orders:0", "slow", *slow[20:])
    client.tread("orders:0", "0", 100, group="slow")
    assert excess() == 60  # up to what the fast group has read
    client.tread("orders:0", "0", 100, group="fast")
    eventually(lambda: client.tlen("orders:0") == 10)
    assert [order.id for order in sent(client, topic, 1)[0]] == list(range(90, 100))


def test_a_full_partition_opens_when_a_group_has_finished(tidelog_server: Server, client: Client) -> None:
    topic = orders(tidelog_server, partitions=1, max_age=0.001, hard_limit=5)
    topic.sync.send_many(Order(number, "x") for number in range(5))
    with pytest.raises(TopicError, match=r"holds 5 entries.*or the topic retains them: tidelog topics show orders"):
        topic.sync.send(Order(5, "x"))
    client.tread("orders:0", "0", 5, group="g")
    eventually(lambda: client.tlen("orders:0") == 0)
    topic.sync.send(Order(5, "x"))


def tiers(client: Client, partitions: int = 4) -> list[str | None]:
    return [client.tinfo(f"orders:{at}").tier for at in range(partitions)]


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (3600, "AGE 3600000"), (timedelta(days=7), "AGE 604800000"), ("7d", "AGE 604800000"), ("60", "AGE 60000"),
        (0, "AGE 0"), ("1GB", "BYTES 1073741824"), ("5 mb", "BYTES 5242880"), ("0b", "BYTES 0"),
    ],
)  # fmt: skip
def test_what_stays_local(tidelog_server: Server, client: Client, after: Any, words: str) -> None:
    """A topic sets it on its partitions, and not their policies. Its copy by pickle has the same declaration."""
    client.redis.config_set("stream-retention", "orders:* RETAIN COUNT 77")
    try:
        topic = orders(tidelog_server, tier_after=after)
        topic.sync.ready()
        assert tiers(client) == [words] * 4
        assert policies(client) == [StreamPolicy(count=77)] * 4
        assert pickle.loads(pickle.dumps(topic)).declared == topic.declared
        admin.grow(client, "orders", 8)
        assert tiers(client, 8) == [words] * 8
        admin.alter(client, "orders", Retention(tier_after="AGE 5"))
        assert tiers(client, 8) == ["AGE 5"] * 8
        client.redis.delete("orders:5")
        admin.alter(client, "orders", Retention(tier_after="DEFAULT"))
        assert [client.tinfo(f"orders:{at}").tier for at in (0, 7)] == [None, None]
        assert client.redis.exists("orders:5") == 0
        assert client.tcfg("orders:0") == StreamPolicy(count=77)
    finally:
        client.redis.config_set("stream-retention", "")


def test_another_declaration_of_what_stays_local(tidelog_server: Server) -> None:
    orders(tidelog_server, tier_after="1GB").sync.ready()
    orders(tidelog_server).sync.ready()
    with pytest.raises(TopicMismatchError, match="--tier-after 7200000ms"):
        orders(tidelog_server, tier_after="2h").sync.ready()


@pytest.mark.parametrize("after", [-1, True, "5 parsecs", "", b"7d", "1gb 1mb", float("nan")])
def test_invalid_values_of_what_stays_local(after: Any) -> None:
    with pytest.raises(TopicError, match="tier_after is an age"):
        Topic("orders", Order, tier_after=after)
    with pytest.raises(TopicError, match="words of TCFG TIER"):
        Retention(tier_after=str(after))
