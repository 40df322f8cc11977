"""Requests for nodes and their answers, as bytes and on the link."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistence.noderepair import NodeRange
from replication import frames
from replication.frames import LinkError
from replication.nodes import pack_answer, pack_request, read_answer, read_request
from respserver.testing import RunningServer, start_in_thread
from storage.nodes.packed import open_packed
from storage.streams.stream import Stream
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
        replica.sock.sendall(pack("REPLCONF", "GETNODE", b"short"))
        assert replica.closed()


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
