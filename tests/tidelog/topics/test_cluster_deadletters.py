"""Dead letters in a cluster: ``tidelog dlq`` over two groups, replays to partitions of both, and slots that move."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tests.replication.clusters import Groups
from tidelog import Client
from tidelog.cli.program import main
from tidelog.client import alone
from tidelog.client.alone import run_alone
from tidelog.client.entries import Entry, StreamId
from tidelog.client.steps import drive, run
from tidelog.topics import Topic, deadletters
from tidelog.topics.partition import partition_of
from tidelog.transport.call import Call
from tidelog.transport.slots import slot_of

PARTITIONS = 8
QUEUE = "orders.dead:0"


@pytest.fixture
def client(groups: Groups) -> Iterator[Client]:
    for group in (1, 2):
        groups.leader(group).say("FLUSHALL")
    with Client(groups.url()) as made:
        yield made


@pytest.fixture
def letters(groups: Groups, client: Client) -> Iterator[Topic[Any]]:
    """A topic with 40 records, each of which has a dead letter."""
    topic: Topic[Any] = Topic("orders", dict, partition_by="key", partitions=PARTITIONS, url=groups.url())
    run(client, deadletters.ready("orders.dead", deadletters.home("orders")))
    for number in range(40):
        key = f"key-{number}"
        record = {"key": key, "n": str(number)}
        entry = Entry(StreamId(number + 1), [word.encode() for pair in record.items() for word in pair])
        at = topic_partition(key)
        fields = deadletters.fields_of("orders", at, entry, key, "shop.bill", ValueError("no"), 1, "w", 5)
        client.run(deadletters.append("orders.dead", fields))
    client.redis.set("topic:orders", topic.declared.complete().written())
    yield topic
    topic.sync.close()


def topic_partition(key: str) -> int:
    return partition_of(key, PARTITIONS)


def dlq(groups: Groups, *words: str) -> str:
    result = CliRunner().invoke(main, ["dlq", *words, "--url", groups.url()])
    assert result.exit_code == 0, result.output
    return result.output


def replayed(client: Client) -> list[list[int]]:
    return [[int(each["n"]) for each in client.trange(f"orders:{at}", "-", "+")] for at in range(PARTITIONS)]


def every_number(client: Client) -> list[int]:
    return sorted(number for numbers in replayed(client) for number in numbers)


def test_the_commands(groups: Groups, client: Client, letters: Topic[Any]) -> None:
    assert {slot_of(f"orders:{at}") // 8192 for at in range(PARTITIONS)} == {0, 1}
    assert "40" in dlq(groups, "list")
    first = client.trange(QUEUE, "-", "+", 1)[0]
    assert "ValueError: no" in dlq(groups, "show", "orders", str(first.id))
    assert "1 dead letter" in dlq(groups, "replay", "orders", str(first.id))
    assert every_number(client) == [0]
    assert "39 dead letters" in dlq(groups, "replay", "orders", "--all")
    assert every_number(client) == [*range(40)]
    for at, numbers in enumerate(replayed(client)):
        assert numbers == [number for number in range(40) if topic_partition(f"key-{number}") == at]
    assert run(client, deadletters.count("orders.dead")) == 0
    assert client.tlen(QUEUE) == 0


def test_a_purge(groups: Groups, client: Client, letters: Topic[Any]) -> None:
    assert "40 dead letters" in dlq(groups, "purge", "orders", "--all", "--yes")
    assert (run(client, deadletters.count("orders.dead")), every_number(client)) == (0, [])


def test_two_replays_at_the_same_time(groups: Groups, client: Client, letters: Topic[Any]) -> None:
    def replay() -> None:
        with Client(groups.url()) as own:
            run_alone(own, deadletters.replay("orders.dead"))

    threads = [threading.Thread(target=replay) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert every_number(client) == [*range(40)]


@pytest.mark.parametrize("before", ["WATCH", "MULTI"])
def test_the_queue_moves_during_a_replay(
    before: str, groups: Groups, client: Client, letters: Topic[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its slot, and that of a partition, move while a replay is under way: after WATCH, or before it."""
    moved = False
    send = alone._Connection.send

    def sent(self: Any, calls: list[Call[Any]]) -> list[Any]:
        nonlocal moved
        if calls[0].args[0] == before and not moved:
            moved = True
            for key in (QUEUE, "orders:0"):
                at = groups.owner(key)
                groups.move(str(slot_of(key)), to="2" if at == "1" else "1", at=at)
        return send(self, calls)

    monkeypatch.setattr(alone._Connection, "send", sent)
    done = run_alone(client, deadletters.replay("orders.dead"))
    assert moved
    assert (done.letters, done.refused) == (40, ())
    assert every_number(client) == [*range(40)]


def test_a_replay_that_ends_between_both_steps_is_repeated(groups: Groups, client: Client, letters: Topic[Any]) -> None:
    """The events were appended, and the dead letters are still open."""
    steps = deadletters.replay("orders.dead")

    def interrupted(calls: Any) -> list[Any]:
        if calls[0].args[0] == "MULTI" and not any(call.args[0] == "TAPPEND" for call in calls):
            raise KeyboardInterrupt
        return original(calls)

    single = alone._InCluster(client, alone._Connection(client))
    original = single.send
    with pytest.raises(KeyboardInterrupt):
        drive(interrupted, steps)
    single._alone.close()
    assert every_number(client) == [*range(40)]
    assert run(client, deadletters.count("orders.dead")) == 40
    run_alone(client, deadletters.replay("orders.dead"))
    assert every_number(client) == [*range(40)]
    assert run(client, deadletters.count("orders.dead")) == 0


def test_an_edited_replay(groups: Groups, client: Client, letters: Topic[Any]) -> None:
    at = [each.id for each in client.trange(QUEUE, "-", "+", PARTITIONS)]
    places = [
        run_alone(client, deadletters.replay_edited("orders.dead", each, lambda letter, _: letter)) for each in at
    ]
    found = [client.trange(stream, id_, id_) for stream, id_ in filter(None, places)]
    assert [int(entry["n"]) for (entry,) in found] == [*range(PARTITIONS)]
    assert len({slot_of(stream) // 8192 for stream, _ in filter(None, places)}) == 2


@given(st.text(alphabet="ab{}:.", min_size=1, max_size=8))
def test_the_counter_is_in_the_slot_of_the_queue(key: str) -> None:
    assert slot_of(deadletters.counter_of(key)) == slot_of(key)
