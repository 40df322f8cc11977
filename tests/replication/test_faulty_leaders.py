"""A leader that is not one, or breaks the protocol: the replica logs why, keeps its data, and tries again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator

import pytest

from replication.frames import ALIVE, BATCH, COPY, COPY_BODY, DONE, DONE_BODY, HEAD, PIECE, encode
from storage.model import records
from tests.replication.cluster import Cluster, Node, cluster, wait_until
from tests.replication.fakeleader import ID, FakeLeader, copy, going_on

RECORDS = b"\x01\x02\x03\x04 these are no records at all"


def turned(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


# What comes after the handshake, from the replica's offset, and a word of the reason that the replica gives.
CASES: dict[str, tuple[Callable[[int], bytes], str]] = {
    "no answer to PSYNC": (lambda _: b"-ERR no\r\n", "answered PSYNC with"),
    "an answer that is none": (lambda _: b"+WHAT\r\n", "answered PSYNC with"),
    "an ID that is none": (lambda _: b"+CONTINUE abc\r\n", "answered PSYNC with"),
    "an offset that is none": (lambda _: b"+FULLRESYNC %b x\r\n" % ID.encode(), "answered PSYNC with"),
    "an endless line": (lambda _: b"+" * 100_000, "no end"),
    "junk": (lambda _: going_on(b"\r\n" * 500), "not a frame"),
    "an HTTP answer": (lambda _: going_on(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 20), "not a frame"),
    "a batch from the future": (lambda o: going_on(encode(BATCH, o + 5, RECORDS)), "batch at log offset"),
    "a batch from the past": (lambda o: going_on(encode(BATCH, max(0, o - 5), RECORDS)), "batch at log offset"),
    "a damaged head": (lambda o: going_on(turned(encode(BATCH, o, RECORDS), 4)), "damaged in transit"),
    "a damaged payload": (lambda o: going_on(turned(encode(BATCH, o, RECORDS), HEAD + 3)), "damaged in transit"),
    "a huge length": (lambda _: going_on(b"B" + b"\0" * 8 + b"\xff" * 4 + b"\0" * 8), "not a frame"),
    "a frame of a kind that isn't": (lambda _: going_on(encode(ord("Z"), 0)), "unknown kind"),
    "half a frame": (lambda o: going_on(encode(BATCH, o, RECORDS)[:-3]), "closed the connection|connection was lost"),
    "a piece of a copy": (lambda o: going_on(encode(PIECE, o, b"x")), "a copy that was not requested"),
    "a batch that is no records": (lambda o: going_on(encode(BATCH, max(0, o), RECORDS)), "can't be applied"),
    "a copy that is none": (lambda _: copy(9, encode(PIECE, 9, b"")), "copy|frame"),
    "a copy with junk in it": (
        lambda _: copy(9, encode(COPY, 9, COPY_BODY.pack(3, 100)), encode(PIECE, 9, b"junk" * 30)),
        "",
    ),
    "a copy with less than was said": (
        lambda _: copy(0, encode(COPY, 0, COPY_BODY.pack(5, 100)), encode(DONE, 0, DONE_BODY.pack(5))),
        "",
    ),
    "a copy of another offset": (
        lambda _: copy(77, encode(COPY, 77, COPY_BODY.pack(0, 0)), encode(DONE, 77, DONE_BODY.pack(0))),
        "",
    ),
    "a copy that ends in the middle": (
        lambda _: copy(9, encode(COPY, 9, COPY_BODY.pack(3, 100)), encode(ALIVE, 9, b"\0")),
        "closed the connection|connection was lost",
    ),
}


@pytest.fixture(scope="module")
def shared() -> Iterator[Node]:
    with cluster() as made:
        node = made.node(repl_timeout=2)
        node("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *range(100))
        node("SET", "k", "v")
        yield node


@pytest.mark.parametrize("name", CASES)
def test_the_link_is_refused(name: str, shared: Node) -> None:
    script, reason = CASES[name]
    before, offset, lines = shared.digest(), shared.offset, len(shared.output)
    fake = FakeLeader(script, close="connection was lost" in reason)
    try:
        shared.follow(fake.port)
        wait_until(lambda: fake.links >= 2, "it tries again")
        said = [line for line in shared.output[lines:] if f"127.0.0.1:{fake.port}:" in line]
        assert any(part in line for line in said for part in reason.split("|")), said
        assert shared.running
        wait_until(lambda: shared.say("GET", "k") == b"v", "it serves what it has")
        assert shared.digest() == before
        assert shared.offset == offset
        assert not any("Traceback" in line for line in shared.output)
    finally:
        shared.lead()
        fake.close()
    assert shared("SET", "k", "v")  # and can lead
    shared("TAPPEND", "s", "f", "v")


def test_a_silent_leader(servers: Cluster) -> None:
    """It sends nothing after the handshake. The replica gives up after repl-timeout, and tries again."""
    node = servers.node(repl_timeout=2)
    node("SET", "k", "v")
    fake = FakeLeader(lambda _: going_on(), close=False)
    try:
        node.follow(fake.port)
        wait_until(lambda: fake.links == 1 and node.link_up, "the link is up")
        wait_until(lambda: fake.links >= 2, "it is given up")
        assert node.logged("repl-timeout")
    finally:
        fake.close()


@pytest.fixture
def redis_node() -> Iterator[Node]:
    if shutil.which("redis-server") is None:
        pytest.skip("no redis-server here (Debian: apt-get install redis-server)")
    with cluster("redis") as made:
        yield made.node()


def test_a_redis_server_can_not_be_followed(redis_node: Node, servers: Cluster) -> None:
    node = servers.node()
    node("TAPPEND", "s", "f", "v")
    node.follow(redis_node.port)
    wait_until(lambda: node.logged("not a tidelog server and can't be followed"), "it says so")
    assert node("TLEN", "s") == 1
    assert not node.link_up
    assert redis_node("PING")


def test_a_redis_server_can_not_follow(redis_node: Node, servers: Cluster) -> None:
    node = servers.node()
    node("TAPPEND", "s", "f", "v")
    redis_node.follow(node.port)
    wait_until(lambda: redis_node.logged("tidelog") or redis_node.logged("ERR"), "it is told why")
    assert not redis_node.link_up
    assert node.info()["connected_slaves"] == 0
    assert node("TAPPEND", "s", "f", "v")
    assert redis_node.running


def test_a_batch_without_effect_here_is_not_taken_for_the_end_of_the_log(servers: Cluster) -> None:
    """A sound leader never logs such a record, so the replica asks for a copy."""
    node = servers.node()
    node("SET", "k", "v")
    asked: list[int] = []

    def script(offset: int) -> bytes:
        asked.append(offset)
        return going_on(encode(BATCH, offset, records.expire(b"k", 0))) if len(asked) == 1 else b"-ERR no\r\n"

    fake = FakeLeader(script, close=False)
    try:
        node.follow(fake.port)
        wait_until(lambda: len(asked) >= 2, "it asks again")
    finally:
        fake.close()
    assert asked[1] == -1
    assert node("GET", "k") == b"v"
