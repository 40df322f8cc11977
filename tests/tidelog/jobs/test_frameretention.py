"""The group of a frame job: where it begins, how it moves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tidelog import Client, StreamId
from tidelog.jobs.frames.retention import RetentionGroups
from tidelog.testing import Server
from tidelog.transport.access import Access
from tidelog.transport.leader import LeaderConnection

STREAMS = ["a:0", "a:1"]


@pytest.fixture
def servers(tidelog_server: Server) -> Iterator[LeaderConnection]:
    servers = LeaderConnection(Access((tidelog_server.url,), retries=0), "test")
    yield servers
    servers.close()


def offsets(client: Client) -> list[StreamId]:
    found = [client.tgroup_list(stream) for stream in STREAMS]
    assert all((group.name, group.ttl, group.pending) == (b"job:x", 0, 0) for groups in found for group in groups)
    return [groups[0].offset for groups in found]


def test_groups_begin_where_the_job_does(servers: LeaderConnection, client: Client) -> None:
    first, last = client.tappend("a:0", {"n": 1}), client.tappend("a:0", {"n": 2})
    client.ttrim("a:0", count=1)
    RetentionGroups(servers, "job:x").create(STREAMS, latest=False, restart=True)
    assert offsets(client) == [first, StreamId(0)]
    RetentionGroups(servers, "job:x").create(STREAMS, latest=True, restart=False)
    assert offsets(client) == [first, StreamId(0)], "they are there already"
    RetentionGroups(servers, "job:x").create(STREAMS, latest=True, restart=True)
    assert offsets(client) == [last, StreamId(0)]
    RetentionGroups(servers, "job:x").create(STREAMS, latest=False, restart=True)
    assert offsets(client) == [first, StreamId(0)]


def test_groups_move_now_and_then(servers: LeaderConnection, client: Client) -> None:
    ids = [client.tappend("a:0", {"n": n}) for n in range(3)]
    groups = RetentionGroups(servers, "job:x")
    groups.create(["a:0"], latest=False, restart=True)
    groups.advance({"a:0": ids[0], "a:1": StreamId(0)})  # a:1 is of a topic that has grown
    assert offsets(client) == [ids[0], StreamId(0)]
    groups.advance({"a:0": ids[1]})
    assert offsets(client) == [ids[0], StreamId(0)], "it is too early"
    groups.advance({"a:0": ids[1]}, now=True)
    assert offsets(client) == [ids[1], StreamId(0)]
    client.tgroup_destroy("a:0", "job:x")
    groups.advance({"a:0": ids[2]}, now=True)
    assert offsets(client) == [ids[2], StreamId(0)]
