"""Dead letters on a real server: written, read, replayed once, purged."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import redis

from tidelog import Client, Entry, StreamId
from tidelog.client.alone import run_alone
from tidelog.client.steps import run
from tidelog.testing import Server
from tidelog.topics import Topic, TopicMismatchError, admin, deadletters, partition_of
from tidelog.topics.deadletters import DeadLetterRecord, NotADeadLetterError
from tidelog.topics.settings import key_of

DEAD = "orders.dead"
STREAM = "orders.dead:0"


@pytest.fixture
def client(tidelog_server: Server) -> Iterator[Client]:
    with tidelog_server.client() as client:
        Topic("orders", dict, partition_by="id", partitions=4).use(sync=client)
        topic: Topic[dict[str, str]] = Topic("orders", dict, partition_by="id", partitions=4)
        topic.use(sync=client)
        topic.sync.ready()
        run(client, deadletters.ready(DEAD))
        yield client


def raised(message: str = "no money") -> ValueError:
    try:
        raise ValueError(message)
    except ValueError as error:
        return error


def bury(client: Client, number: int, key: int | None = None, processor: str = "shop.bill") -> StreamId:
    """Write a letter of the event ``number.0``; returns its ID."""
    entry = Entry(StreamId(number), [b"id", b"%d" % number, b"\xff", b"\x00\r\n"])
    fields = deadletters.fields_of("orders", 2, entry, key, processor, raised(), 4, "host-1", 1_700_000_000_000)
    return client.run(deadletters.append(DEAD, fields))


def opened(client: Client) -> list[int]:
    """The events of the open letters, in order."""
    found: list[DeadLetterRecord] = []
    start: StreamId | None = None
    while True:
        entries, start = run(client, deadletters.page(DEAD, start, 3))
        found += map(deadletters.read, entries)
        if start is None:
            assert run(client, deadletters.count(DEAD)) == len(found)
            return [letter.event_id.ms for letter in found]


def orders(client: Client) -> dict[int, list[bytes]]:
    """The IDs of the records in each partition that has any."""
    found = {at: [entry["id"] for entry in client.trange(f"orders:{at}")] for at in range(4)}
    return {at: ids for at, ids in found.items() if ids}


# -- the format ----------------------------------------------------------------------------------------------
def test_a_letter_as_it_is_written() -> None:
    entry = Entry(StreamId(7, 1), [b"id", b"7", b"id", b"8", b"dlq:topic", b"\xff"])
    key, error, time = "M\u00fcller", raised(), 1_700_000_000_000
    pairs = deadletters.fields_of("orders", 2, entry, key, "shop.bill", error, 4, "host-1", time)
    assert [name for name, _ in pairs[:11]] == [
        b"dlq:topic", b"dlq:partition", b"dlq:id", b"dlq:key", b"dlq:processor", b"dlq:error", b"dlq:message",
        b"dlq:traceback", b"dlq:attempts", b"dlq:worker", b"dlq:time",
    ]  # fmt: skip
    values = dict(pairs[:7] + pairs[8:11])
    assert list(values.values()) == [
        b"orders", b"2", b"7.1", "M\u00fcller".encode(), b"shop.bill", b"ValueError", b"no money", b"4", b"host-1",
        b"1700000000000",
    ]  # fmt: skip
    assert pairs[11:] == entry.pairs
    letter = deadletters.read(Entry(StreamId(9), [word for pair in pairs for word in pair]))
    assert letter.entry == entry
    assert (letter.id, letter.topic, letter.partition, letter.key) == (StreamId(9), "orders", 2, "M\u00fcller".encode())
    assert (letter.processor, letter.error, letter.message) == ("shop.bill", "ValueError", "no money")
    assert (letter.attempts, letter.worker, letter.time) == (4, "host-1", 1_700_000_000_000)
    assert letter.traceback.startswith("Traceback (most recent call last):")
    assert letter.traceback.endswith("ValueError: no money\n")
    assert "raise ValueError(message)" in letter.traceback


def test_errors_of_any_size_and_kind() -> None:
    entry = Entry(StreamId(7), [b"id", b"7"])
    long = deadletters.fields_of("t", 0, entry, None, "a.b", raised("x" * 100_000), 1, "w", 0)
    values = dict(long)
    assert len(values[b"dlq:message"]) == deadletters.MESSAGE
    assert len(values[b"dlq:traceback"]) == deadletters.TRACEBACK
    assert values[b"dlq:key"] == b""
    odd = dict(deadletters.fields_of("t", 0, entry, 5, "a.b", redis.ConnectionError("\udcff"), 1, "w", 0))
    assert odd[b"dlq:error"] == b"redis.exceptions.ConnectionError"
    assert odd[b"dlq:message"] == b"?"
    assert odd[b"dlq:key"] == b"5"


def test_entries_that_are_no_letters() -> None:
    for flat in ([b"a", b"b"], [word for name in deadletters.FIELDS for word in (name, b"1")]):
        with pytest.raises(NotADeadLetterError, match=r"entry 9\.0 is not a dead letter"):
            deadletters.read(Entry(StreamId(9), flat))
    flat = [word for name in deadletters.FIELDS for word in (name, b"x")]
    with pytest.raises(NotADeadLetterError, match=r"entry 9\.0 is not a dead letter: .*'x'"):
        deadletters.read(Entry(StreamId(9), [*flat, b"id", b"7"]))


# -- the topic -----------------------------------------------------------------------------------------------
def test_the_topic_is_made_once(client: Client) -> None:
    facts = run(client, deadletters.ready(DEAD))
    assert (facts.partitions, facts.codec) == (1, "plain")
    assert deadletters.is_dead_letter_queue(facts)
    assert run(client, deadletters.ready(DEAD)) == facts
    reader: Topic[dict[str, str]] = Topic(DEAD, dict)
    reader.use(sync=client)
    assert reader.sync.ready() == facts  # programs may read it like any other


def test_a_topic_that_was_declared_before(client: Client) -> None:
    mine: Topic[dict[str, str]] = Topic("failures", dict, partitions=4)
    mine.use(sync=client)
    assert not deadletters.is_dead_letter_queue(mine.sync.ready())
    facts = run(client, deadletters.ready("failures"))
    assert (facts.partitions, deadletters.is_dead_letter_queue(facts)) == (4, True)
    with pytest.raises(TopicMismatchError, match="topic 'orders': partition_by is 'id' on the server, None here"):
        run(client, deadletters.ready("orders"))


# -- open letters --------------------------------------------------------------------------------------------
def test_open_counts(client: Client) -> None:
    run(client, deadletters.ready(DEAD))
    for number in (1, 2):
        bury(client, number)
    client.redis.set(key_of("broken.dead"), "{}")
    client.redis.set("broken.dead:0", "no stream")
    found = run(client, deadletters.open_counts(["nowhere.dead", DEAD, "broken.dead", DEAD]))
    assert found == {"broken.dead": None, "nowhere.dead": 0, DEAD: 2}


def test_open_letters_page_by_page(client: Client) -> None:
    assert opened(client) == []
    for number in range(1, 8):
        bury(client, number)
    assert opened(client) == [1, 2, 3, 4, 5, 6, 7]
    assert client.tgroup_list(STREAM) == []  # looking changes nothing
    run_alone(client, deadletters.purge(DEAD, lambda letter, _: letter is not None and letter.event_id.ms in (2, 4)))
    bury(client, 8)
    assert opened(client) == [1, 3, 5, 6, 7, 8]  # pending ones, then new ones


def test_one_letter(client: Client) -> None:
    first, second = bury(client, 1), bury(client, 2)
    entry = run(client, deadletters.one(DEAD, first))
    assert entry is not None
    assert deadletters.read(entry).event_id == StreamId(1)
    run_alone(client, deadletters.purge(DEAD, lambda _, at: at == second))
    assert run(client, deadletters.one(DEAD, first)) == entry
    assert run(client, deadletters.one(DEAD, second)) is None
    assert run(client, deadletters.one(DEAD, StreamId(5))) is None
    third = bury(client, 3)
    assert run(client, deadletters.one(DEAD, third)) is not None


# -- replaying -----------------------------------------------------------------------------------------------
def test_letters_are_replayed_once_as_they_came(client: Client) -> None:
    for number in range(1, 4):
        bury(client, number, key=number)
    done = run_alone(client, deadletters.replay(DEAD))
    assert (done.letters, done.refused) == (3, ())
    expected: dict[int, list[bytes]] = {}
    for number in range(1, 4):
        expected.setdefault(partition_of(number, 4), []).append(b"%d" % number)
    assert orders(client) == expected
    entry = client.trange(f"orders:{partition_of(1, 4)}")[0]
    assert entry.flat == (b"id", b"1", b"\xff", b"\x00\r\n")
    assert opened(client) == []
    assert run_alone(client, deadletters.replay(DEAD)).letters == 0
    assert sum(len(ids) for ids in orders(client).values()) == 3
    assert client.tlen(STREAM) == 0  # what is done was evicted


def test_an_event_without_a_key_goes_back_to_its_partition(client: Client) -> None:
    bury(client, 1)
    run_alone(client, deadletters.replay(DEAD))
    assert orders(client) == {2: [b"1"]}


def test_an_event_that_two_processors_gave_up_is_sent_once(client: Client) -> None:
    for _ in range(60):  # more than a page
        bury(client, 1, processor="shop.bill")
        bury(client, 1, processor="shop.index")
    bury(client, 2)
    assert run_alone(client, deadletters.replay(DEAD)).letters == 121
    assert orders(client) == {2: [b"1", b"2"]}
    assert opened(client) == []


def test_many_letters(client: Client) -> None:
    for number in range(1, 251):
        bury(client, number)
    chosen = run_alone(client, deadletters.replay(DEAD, lambda letter, _: bool(letter and letter.event_id.ms % 2)))
    assert chosen.letters == 125
    assert orders(client) == {2: [b"%d" % n for n in range(1, 251, 2)]}
    assert opened(client) == list(range(2, 251, 2))
    assert client.tlen(STREAM) == 249  # only the first was done before all that are open


def test_two_at_a_time_replay_each_letter_once(tidelog_server: Server, client: Client) -> None:
    for number in range(1, 401):
        bury(client, number)
    ready = threading.Barrier(3)
    counted: list[int] = []

    def go() -> None:
        with tidelog_server.client() as own:
            ready.wait()
            counted.append(run_alone(own, deadletters.replay(DEAD)).letters)

    threads = [threading.Thread(target=go) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counted) == 400
    assert sorted(map(int, orders(client)[2])) == list(range(1, 401))


def test_a_replay_that_somebody_else_passes_begins_again(client: Client) -> None:
    """In step: the second takes the letters between the first one's look and its transaction."""
    for number in (1, 2):
        bury(client, number)
    passed = False

    def meanwhile(letter: DeadLetterRecord | None, at: StreamId) -> bool:
        nonlocal passed
        if not passed:
            passed = True
            assert run_alone(client, deadletters.purge(DEAD, lambda other, _: bool(other and other.event_id.ms == 1)))
        return True

    assert run_alone(client, deadletters.replay(DEAD, meanwhile)).letters == 1
    assert orders(client) == {2: [b"2"]}


def test_letters_that_arrive_meanwhile_disturb_nobody(client: Client) -> None:
    bury(client, 1)

    def meanwhile(letter: DeadLetterRecord | None, at: StreamId) -> bool:
        bury(client, 2)
        return True

    assert run_alone(client, deadletters.replay(DEAD, meanwhile)).letters == 1
    assert opened(client) == [2]


def test_what_cannot_be_replayed_stays(client: Client) -> None:
    bury(client, 1)
    client.tappend(STREAM, {"written": "by hand"})
    client.redis.delete("topic:orders")
    done = run_alone(client, deadletters.replay(DEAD))
    assert done.letters == 0
    assert "the topic 'orders' was deleted" in done.refused[0]
    assert "is not a dead letter: it can only be purged" in done.refused[1]
    assert run(client, deadletters.count(DEAD)) == 2
    assert run_alone(client, deadletters.purge(DEAD)).letters == 2
    assert (run(client, deadletters.count(DEAD)), client.tlen(STREAM)) == (0, 0)


def forge(client: Client, topic: str, partition: int, name: str = DEAD) -> None:
    fields = deadletters.fields_of(topic, partition, Entry(StreamId(1), [b"id", b"1"]), None, "x.y", raised(), 1, "", 0)
    client.run(deadletters.append(name, fields))


def test_a_letter_decides_no_target(client: Client) -> None:
    """Who may only append letters would choose what the operator's replay writes."""
    Topic("other", dict, partition_by="id", partitions=1, url="redis://unused").use(sync=client)
    client.redis.set("topic:other", client.redis.get("topic:orders") or b"")
    forge(client, "jobs:registry", -1)
    forge(client, "other", 0)
    forge(client, "orders", -1)  # the stream, not the topic
    bury(client, 1)
    done = run_alone(client, deadletters.replay(DEAD))
    assert done.letters == 1
    assert [each.partition("belong to the ")[2].partition(", so")[0] for each in done.refused] == [
        "stream jobs:registry", "topic other", "stream orders",
    ]  # fmt: skip
    assert client.redis.exists("jobs:registry", "other:0", "orders") == 0
    assert run(client, deadletters.count(DEAD)) == 3
    allowed = [deadletters.home("jobs:registry", -1)]
    assert run_alone(client, deadletters.replay(DEAD, allowed=allowed)).letters == 1
    assert client.tlen("jobs:registry") == 1


def test_a_topic_of_another_name_belongs_to_what_its_processors_say(client: Client) -> None:
    run(client, deadletters.ready("failed", deadletters.home("orders")))
    run(client, deadletters.ready("failed", deadletters.home("jobs", -1), deadletters.home("orders")))
    assert admin.settings_of(client, "failed").letters_of == ("topic orders", "stream jobs")
    for topic, partition in (("orders", 1), ("jobs", -1), ("jobs:registry", -1)):
        forge(client, topic, partition, "failed")
    done = run_alone(client, deadletters.replay("failed"))
    assert (done.letters, len(done.refused)) == (2, 1)
    assert client.tlen("jobs") == 1


def test_a_partition_that_is_no_stream_loses_no_letter(client: Client) -> None:
    bury(client, 1)
    client.redis.set("orders:2", "text")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        run_alone(client, deadletters.replay(DEAD))
    assert opened(client) == [1]


def test_a_topic_that_has_grown(client: Client) -> None:
    key = next(n for n in range(100) if partition_of(n, 8) >= 4)
    bury(client, 1, key=key)
    admin.grow(client, "orders", 8, force=True)
    run_alone(client, deadletters.replay(DEAD))
    assert client.tlen(f"orders:{partition_of(key, 8)}") == 1


def test_evicted_letters_are_gone(client: Client) -> None:
    for number in (1, 2, 3):
        bury(client, number)
    run_alone(client, deadletters.purge(DEAD, lambda letter, _: False))
    client.ttrim(STREAM, count=1)
    assert [deadletters.read(entry).event_id.ms for entry in run(client, deadletters.page(DEAD))[0]] == [3]
    assert run_alone(client, deadletters.replay(DEAD)).letters == 1
    assert run(client, deadletters.count(DEAD)) == 0


def test_other_groups_keep_what_they_have_not_read(client: Client) -> None:
    bury(client, 1)
    client.tread(STREAM, "0", 0, group="shop.alarm")
    run_alone(client, deadletters.purge(DEAD))
    assert client.tlen(STREAM) == 1
    client.tread(STREAM, "0", 10, group="shop.alarm")
    run_alone(client, deadletters.purge(DEAD))
    assert client.tlen(STREAM) == 0
