"""Publish and subscribe: confirmations, deliveries in RESP2 and RESP3, and PUBSUB."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.session import CHANNELS, PATTERNS
from tests.commands.fakeserver import FakeServer, FakeTransport


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


def test_confirmations_count_channels_and_patterns(server: FakeServer) -> None:
    me = server.connect()
    assert server.run(me, "SUBSCRIBE", "a", "b", "a") == (
        b"*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n"
        b"*3\r\n$9\r\nsubscribe\r\n$1\r\nb\r\n:2\r\n"
        b"*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:2\r\n"
    )
    assert server.run(me, "PSUBSCRIBE", "x*") == b"*3\r\n$10\r\npsubscribe\r\n$2\r\nx*\r\n:3\r\n"
    assert not me.plain
    assert server.run(me, "UNSUBSCRIBE", "b", "never") == (
        b"*3\r\n$11\r\nunsubscribe\r\n$1\r\nb\r\n:2\r\n*3\r\n$11\r\nunsubscribe\r\n$5\r\nnever\r\n:2\r\n"
    )
    assert server.run(me, "PUNSUBSCRIBE") == b"*3\r\n$12\r\npunsubscribe\r\n$2\r\nx*\r\n:1\r\n"
    assert server.run(me, "UNSUBSCRIBE") == b"*3\r\n$11\r\nunsubscribe\r\n$1\r\na\r\n:0\r\n"
    assert server.run(me, "UNSUBSCRIBE") == b"*3\r\n$11\r\nunsubscribe\r\n$-1\r\n:0\r\n"
    assert me.plain


def test_confirmations_are_pushes_in_resp3(server: FakeServer) -> None:
    me = server.connect(proto=3)
    assert server.run(me, "SUBSCRIBE", "a") == b">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n"
    assert server.run(me, "PUNSUBSCRIBE") == b">3\r\n$12\r\npunsubscribe\r\n_\r\n:1\r\n"
    assert me.plain, "in RESP3 a subscriber may call anything"


def test_delivery_by_channel_and_by_pattern(server: FakeServer) -> None:
    talker, plain, modern, watcher = (server.connect(port) for port in (1, 2, 3, 4))
    modern.proto = 3
    server.run(plain, "SUBSCRIBE", "news.it")
    server.run(modern, "SUBSCRIBE", "news.it")
    server.run(watcher, "PSUBSCRIBE", "news.*", "*.it", "sport.*")
    assert server.run(talker, "PUBLISH", "news.it", b"hi\r\n") == b":4\r\n"
    body = b"$7\r\nmessage\r\n$7\r\nnews.it\r\n$4\r\nhi\r\n\r\n"
    tail = b"$7\r\nnews.it\r\n$4\r\nhi\r\n\r\n"
    assert server.pushed == [
        (plain.id, b"*3\r\n" + body),
        (modern.id, b">3\r\n" + body),
        (watcher.id, b"*4\r\n$8\r\npmessage\r\n$6\r\nnews.*\r\n" + tail),
        (watcher.id, b"*4\r\n$8\r\npmessage\r\n$4\r\n*.it\r\n" + tail),
    ]
    assert server.run(talker, "PUBLISH", "weather", "x") == b":0\r\n"
    assert len(server.pushed) == 4


def test_pubsub_channels_numsub_numpat(server: FakeServer) -> None:
    me, other = server.connect(1), server.connect(2)
    server.run(me, "SUBSCRIBE", "a1", "b1")
    server.run(other, "SUBSCRIBE", "a1")
    server.run(me, "PSUBSCRIBE", "p*")
    server.run(other, "PSUBSCRIBE", "p*", "q*")
    assert server.run(me, "PUBSUB", "CHANNELS") == b"*2\r\n$2\r\na1\r\n$2\r\nb1\r\n"
    assert server.run(me, "PUBSUB", "CHANNELS", "a?") == b"*1\r\n$2\r\na1\r\n"
    assert server.run(me, "PUBSUB", "NUMSUB", "a1", "zz") == b"*4\r\n$2\r\na1\r\n:2\r\n$2\r\nzz\r\n:0\r\n"
    assert server.run(me, "PUBSUB", "NUMSUB") == b"*0\r\n"
    assert server.run(me, "PUBSUB", "NUMPAT") == b":2\r\n"


def test_subscriptions_end_with_the_connection(server: FakeServer) -> None:
    me, other = server.connect(1), server.connect(2)
    server.run(me, "SUBSCRIBE", "a", "b")
    server.run(me, "PSUBSCRIBE", "*")
    server.run(other, "SUBSCRIBE", "b")
    server.pubsub.drop(me)
    assert (me.channels, me.patterns) == (set(), set())
    assert server.pubsub.names(CHANNELS) == [b"b"]
    assert server.pubsub.count(PATTERNS) == 0
    assert server.pubsub.publish(b"b", b"x") == 1


def test_a_subscriber_dropped_during_delivery(server: FakeServer) -> None:
    first, second = server.connect(1), server.connect(2)
    server.run(first, "SUBSCRIBE", "c")
    server.run(second, "SUBSCRIBE", "c")
    seen: list[int] = []

    class Dropped(FakeTransport):
        def push(self, data: bytes) -> None:
            seen.append(self.session.id)
            server.pubsub.drop(self.session)

    for session in (first, second):
        session.transport = Dropped(server, session)
    server.pubsub.publish(b"c", b"x")
    assert seen == [first.id, second.id]
    assert server.pubsub.names(CHANNELS) == []


steps = st.lists(
    st.tuples(
        st.sampled_from(["SUBSCRIBE", "UNSUBSCRIBE", "PSUBSCRIBE", "PUNSUBSCRIBE"]), st.integers(0, 2),
        st.sampled_from("abc"),
    ),
    max_size=40,
)  # fmt: skip


@given(steps)
def test_the_registry_agrees_with_a_model_of_sets(script: list[tuple[str, int, str]]) -> None:
    server = FakeServer()
    clients = [server.connect(port) for port in range(3)]
    model: set[tuple[int, bool, bytes]] = set()
    for verb, who, name in script:
        server.run(clients[who], verb, name)
        fact = (who, verb.startswith("P"), name.encode())
        if "UN" in verb:
            model.discard(fact)
        else:
            model.add(fact)
        assert len(clients[who].channels) + len(clients[who].patterns) == sum(w == who for w, _, _ in model)
    assert set(server.pubsub.names(CHANNELS)) == {name for _, pattern, name in model if not pattern}
    assert server.pubsub.count(PATTERNS) == len({name for _, pattern, name in model if pattern})
    for channel in (b"a", b"b", b"c"):
        assert server.pubsub.subscribers(CHANNELS, channel) == sum(not p and n == channel for _, p, n in model)
        assert server.pubsub.publish(channel, b"m") == sum(n == channel for _, _, n in model)
