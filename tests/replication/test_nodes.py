"""Requests for nodes and their answers, as bytes and on the link."""

from __future__ import annotations

from contextlib import suppress
from hashlib import shake_256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistence.noderepair import NodeRange
from replication import frames
from replication import nodes as protocol
from replication.frames import LONGEST_REQUEST, LinkError
from replication.nodes import pack_answer, pack_request, read_answer, read_request
from respserver.roles import nodes as serving
from respserver.testing import RunningServer, start_in_thread
from storage.nodes.node import seal
from storage.nodes.packed import open_packed
from storage.streams.stream import Stream
from tests.persistence.datakit import range_copy
from tests.persistence.test_scrub import damage_node, noise
from tests.replication.fakeleader import FakeLeader, going_on
from tests.replication.test_psync import Replica
from tests.waiting import eventually
from tests.wire.rawclient import Raw, pack

NUMBER = st.integers(0, (1 << 64) - 1)
RANGES = st.builds(
    NodeRange, NUMBER, NUMBER, st.integers(0, (1 << 128) - 1), st.integers(0, (1 << 32) - 1), st.binary()
)


@given(RANGES, RANGES, st.binary())
def test_what_is_packed_is_read(wanted: NodeRange, other: NodeRange, blob: bytes) -> None:
    assert read_request(pack_request(wanted)) == wanted
    assert read_answer(pack_answer(wanted, blob), wanted) == blob
    if other[:4] != wanted[:4]:
        assert read_answer(pack_answer(other, blob), wanted) is None


@given(st.binary(max_size=35))
def test_a_short_request_is_an_error(payload: bytes) -> None:
    with pytest.raises(LinkError, match="too short"):
        read_request(payload)
    assert read_answer(payload, NodeRange(1, 2, 3, 4, b"k")) is None


def fill(server: RunningServer) -> NodeRange:
    """Add entries. Return what a member requests to get the five entries from the second one on."""
    with Raw(server.port) as raw:
        raw("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *range(10))
    stream = server.call(lambda: server.server.data.ks.keys[b"s"])
    assert isinstance(stream, Stream)
    return NodeRange(stream.sid, 1, server.call(lambda: stream.id_at(1)), 5, b"s")


def asked(replica: Replica, wanted: NodeRange) -> bytes:
    """The blob with which a leader answers."""
    replica.sock.sendall(pack("REPLCONF", "GETNODE", pack_request(wanted)))
    blob = read_answer(replica.frame(frames.NODE).payload, wanted)
    assert blob is not None
    return blob


def test_a_leader_answers() -> None:
    with start_in_thread() as server, Replica(server.port) as replica:
        wanted = fill(server)
        replica.introduce()
        assert replica.ask("PSYNC", "?", -1).startswith(b"+FULLRESYNC")
        node = open_packed(asked(replica, wanted))
        with Raw(server.port) as raw:
            assert len(node) == len(raw("TRANGE", "s", "-", "+")[1:6])
        assert b"".join(node.each(0, 5)).count(b"$1\r\nf\r\n") == 5
        for other in (
            wanted._replace(sid=99), wanted._replace(key=b"t"), wanted._replace(first_id=5), wanted._replace(size=99),
            wanted._replace(first_ord=1 << 62), wanted._replace(size=0),
        ):  # fmt: skip
            assert asked(replica, other) == b""
        replica.sock.sendall(pack("REPLCONF", "GIVENODE", b"nobody asked"))
        assert asked(replica, wanted)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(serving, "AT_ONCE", 0)
            assert asked(replica, wanted) == b""


def test_a_node_that_is_too_long_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its entries nor its blob may be too long. A blob can be longer than the entries."""
    with start_in_thread() as server, Replica(server.port) as replica:
        fill(server)
        with Raw(server.port) as raw:
            raw("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", noise(1)[:100], "x" * 10_000)
        stream = server.call(lambda: server.server.data.ks.keys[b"s"])
        assert isinstance(stream, Stream)
        ranges = server.call(lambda: [NodeRange(stream.sid, at, stream.id_at(at), 1, b"s") for at in (10, 11)])
        replica.introduce()
        assert replica.ask("PSYNC", "?", -1).startswith(b"+FULLRESYNC")
        for each in ranges:
            blob = asked(replica, each)
            entries = len(b"".join(open_packed(blob).unpack().each(0, 1)))
            assert (entries < len(blob)) == (each is ranges[0])
            for longest, sent in ((max(entries, len(blob)) - 1, b""), (max(entries, len(blob)), blob)):
                monkeypatch.setattr(serving, "LONGEST", longest)
                assert asked(replica, each) == sent
            monkeypatch.undo()


def test_answers_that_are_not_read_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "LONGEST", 200_000)
    with start_in_thread() as server, Raw(server.port) as raw, Replica(server.port) as replica:
        raw("TAPPEND", "s", "f", shake_256(b"").digest(100_000))
        stream = server.call(lambda: server.server.data.ks.keys[b"s"])
        assert isinstance(stream, Stream)
        wanted = NodeRange(stream.sid, 0, server.call(lambda: stream.id_at(0)), 1, b"s")
        replica.introduce()
        assert replica.ask("PSYNC", "?", -1).startswith(b"+FULLRESYNC")
        assert len(asked(replica, wanted)) > 100_000
        (feed,) = server.call(lambda: list(server.server.replicas.feeds))
        answers: list[bytes] = []

        def packed(wanted: NodeRange, blob: bytes) -> bytes:
            answers.append(blob)
            return pack_answer(wanted, blob)

        monkeypatch.setattr(serving, "pack_answer", packed)
        for number in range(150):  # more than the buffers of the system take
            replica.sock.sendall(pack("REPLCONF", "GETNODE", pack_request(wanted)))
            eventually(lambda: len(answers) > number)  # noqa: B023 - at once
        assert all(answers)
        assert 200_000 < server.call(feed._transport.get_write_buffer_size) < 400_000
        while server.call(feed._transport.get_write_buffer_size):
            assert replica.frame(frames.NODE)
        assert asked(replica, wanted)


def test_late_answers_are_dropped_and_unrequested_ones_end_the_link() -> None:
    with start_in_thread() as server, Replica(server.port) as replica:
        wanted = fill(server)
        replica.introduce()
        assert replica.ask("PSYNC", "?", -1).startswith(b"+FULLRESYNC")
        (feed,) = server.call(lambda: list(server.server.replicas.feeds))
        long = noise(1) * (LONGEST_REQUEST // 1000)  # longer than any other request
        for _ in range(3):  # the owner requests the next one when it no longer waits for the previous one
            server.call(lambda: feed.request_node(pack_request(wanted)))
            assert replica.frame(frames.WANT)
        for _ in range(3):
            replica.sock.sendall(pack("REPLCONF", "GIVENODE", pack_answer(wanted, long)))
        assert asked(replica, wanted)
        with suppress(ConnectionError):  # it is closed while the rest is sent
            replica.sock.sendall(pack("REPLCONF", "GIVENODE", pack_answer(wanted, long)))
            replica.sock.sendall(pack("REPLCONF", "GETNODE", pack_request(wanted)))
        with pytest.raises((AssertionError, ConnectionError)):  # otherwise: an answer
            replica.frame(frames.NODE)


@pytest.mark.parametrize(
    "words",
    [
        ("GETNODE", b"short"), ("GETNODE",), ("GETNODE", b"x" * 36, b"y"), ("GIVENODE",),
        ("GIVENODE", b"x" * (LONGEST_REQUEST + 1)),  # nothing was requested
    ],
    ids=["short", "without", "more", "nothing", "unrequested"],
)  # fmt: skip
def test_wrong_requests_end_the_link(words: tuple[str | bytes, ...]) -> None:
    with start_in_thread() as server, Replica(server.port) as replica:
        wanted = fill(server)
        replica.introduce()
        assert replica.ask("PSYNC", "?", -1).startswith(b"+FULLRESYNC")
        with suppress(ConnectionError):  # it is closed while the rest is sent
            replica.sock.sendall(pack("REPLCONF", *words) + pack("REPLCONF", "GETNODE", pack_request(wanted)))
        with pytest.raises((AssertionError, ConnectionError)):  # otherwise: an answer
            replica.frame(frames.NODE)


@pytest.mark.parametrize("fits", [True, False])
def test_an_answer_must_fit_the_request(tmp_path: Path, fits: bool) -> None:
    config: dict[str, Any] = {"save": "", "stream_node_max_entries": "10", "node_cache_size": "0", "scrub_rate": "1gb"}
    with start_in_thread(tmp_path / "data", **config) as server, Raw(server.port) as raw:
        for number in range(200):
            raw("TAPPEND", "s", "body", noise(number))
        raw("SAVE")
        stream = server.call(lambda: server.server.data.ks.keys[b"s"])
        assert isinstance(stream, Stream)
        nodes = server.call(lambda: [range_copy(stream, first, stream.id_at(first), 10) for first in (50, 60)])
        blob, other = [seal(node) for node in nodes if node is not None]
        damage_node(tmp_path / "data")

        def answers() -> bytes:
            wanted = read_request(fake.requests[-1][2])
            assert (wanted.first_ord, wanted.size, wanted.key) == (50, 10, b"s")
            wrong = [
                wanted._replace(sid=99), wanted._replace(first_ord=60), wanted._replace(first_id=wanted.first_id + 1),
                wanted._replace(size=9),
            ]  # fmt: skip
            payloads = [b"short", *[pack_answer(each, other) for each in wrong]]
            payloads += [pack_answer(wanted, blob if fits else other), pack_answer(wanted, other)]  # the last: too late
            return b"".join(frames.encode(frames.NODE, 0, payload) for payload in payloads)

        def fields() -> dict[str, str]:
            lines = raw("INFO", "persistence").decode().splitlines()
            return dict(line.split(":", 1) for line in lines if ":" in line)

        with FakeLeader(lambda _: going_on(), answers={b"GETNODE": answers}) as fake:
            raw("REPLICAOF", "127.0.0.1", fake.port, "FORCE")
            eventually(lambda: b"master_link_status:up" in raw("INFO", "replication"))
            assert "entries 50 to 59" in raw("TRANGE", "s", "-", "+", "COUNT", "60")
            eventually(lambda: fields()["scrub_fetched" if fits else "scrub_irreparable"] == "1")
            if fits:
                eventually(lambda: fields()["scrub_damaged"] == "0")
                assert len(raw("TRANGE", "s", "-", "+")) == 200
            else:
                assert (fields()["scrub_fetched"], fields()["scrub_damaged"]) == ("0", "1")
                assert "entries 50 to 59" in raw("TRANGE", "s", "-", "+")
            assert fake.links == 1
            assert [argv[:2] for argv in fake.requests].count([b"REPLCONF", b"GETNODE"]) == 1
            raw("REPLICAOF", "NO", "ONE", "FORCE")


def test_a_leader_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "PATIENCE", 0.2)
    config: dict[str, Any] = {"save": "", "stream_node_max_entries": "10", "node_cache_size": "0", "scrub_rate": "1gb"}
    with start_in_thread(tmp_path / "data", **config) as server, Raw(server.port) as raw:
        for number in range(100):
            raw("TAPPEND", "s", "body", noise(number))
        raw("SAVE")
        damage_node(tmp_path / "data")
        with FakeLeader(lambda _: going_on()) as fake:
            raw("REPLICAOF", "127.0.0.1", fake.port, "FORCE")
            eventually(lambda: b"master_link_status:up" in raw("INFO", "replication"))
            assert "entries 50 to 59" in raw("TRANGE", "s", "-", "+", "COUNT", "60")
            repairs = server.server.scrubbing._repairs
            (why,) = eventually(lambda: server.call(lambda: [why for why, _ in repairs._failed.values()]))
            assert why.startswith(f"no answer within 5 seconds from leader 127.0.0.1:{fake.port}, and no other member")
            raw("REPLICAOF", "NO", "ONE", "FORCE")


def test_a_replica_answers() -> None:
    with start_in_thread() as server:
        wanted = fill(server)
        request = frames.encode(frames.WANT, 0, pack_request(wanted))
        with FakeLeader(lambda _: going_on(request)) as fake, Raw(server.port) as raw:
            raw("REPLICAOF", "127.0.0.1", fake.port, "FORCE")

            def answer() -> bytes | None:
                given = [argv[2] for argv in fake.requests if argv[:2] == [b"REPLCONF", b"GIVENODE"]]
                return read_answer(given[0], wanted) if given else None

            blob = eventually(answer)
            assert len(open_packed(blob)) == 5
            raw("REPLICAOF", "NO", "ONE", "FORCE")
