"""A damaged node in the store of a running server: an error where one can be said, the end of the connection where the
reply has begun, one line in the log, and no harm to anybody else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import eventually
from tests.wire.damagedstore import damage, noise
from tests.wire.rawclient import Raw
from tidelog.testing import Server, running_server

COUNT = 400  # entries, in nodes of ten


@pytest.fixture
def damaged(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server over a stream in which the given nodes, by their numbers, are damaged."""
    place = tmp_path / "data"
    with running_server(place, stream_node_max_entries=10, node_cache_size=0) as server, Raw(server.port) as raw:
        for number in range(COUNT):
            raw("TAPPEND", "s", "n", number, "body", noise(number))
        raw("TAPPEND", "other", "f", "v")
        server.stop()
        damage(place, [node * 10 + 5 for node in request.param])
        server.start()
        yield server


def log_of(server: Server) -> list[str]:
    """What the server said of the damage, after its end: until then, lines may still be on their way."""
    server.stop()
    return [line for line in server.output if "damaged" in line or "Traceback" in line]


@pytest.mark.parametrize("damaged", [[0, 39]], indirect=True)
@pytest.mark.parametrize("words", [("TRANGE", "s", "-", "+"), ("TREVRANGE", "s", "+", "-")])
def test_where_the_reply_has_not_begun_it_is_an_error(damaged: Server, words: tuple[str, ...]) -> None:
    with Raw(damaged.port) as raw:
        found = raw.pipeline(words, ("PING",), ("TLEN", "s"), ("TRANGE", "other", "-", "+"))
        assert found[0].startswith("ERR damaged data: the store is damaged at stream")
        assert found[1:3] == [b"PONG", COUNT]
        assert len(found[3]) == 1
    lines = log_of(damaged)
    assert len(lines) == 1, damaged.output
    assert "met damaged data" in lines[0]


@pytest.mark.parametrize("damaged", [[20]], indirect=True)
@pytest.mark.parametrize("words", [("TRANGE", "s", "-", "+"), ("TREVRANGE", "s", "+", "-")])
def test_where_the_reply_has_begun_the_connection_ends(damaged: Server, words: tuple[str, ...]) -> None:
    with Raw(damaged.port) as raw, Raw(damaged.port) as other:
        with pytest.raises((EOFError, ConnectionError)):
            raw(*words)
        assert other("PING") == b"PONG"
    lines = log_of(damaged)
    assert len(lines) == 1, damaged.output
    assert "closed: its reply met damaged data: the store is damaged at stream" in lines[0]


@pytest.mark.parametrize("damaged", [[1]], indirect=True)
def test_retention_continues_when_it_no_longer_needs_the_node(damaged: Server) -> None:
    with Raw(damaged.port) as raw:
        assert raw("TCFG", "s", "RETAIN", "COUNT", COUNT - 15, "EXACT") == 15  # the last one is in the damaged node
        raw("TCFG", "other", "RETAIN", "COUNT", 1, "EXACT")
        raw("TAPPEND", "other", "f", "w")
        eventually(lambda: raw("TLEN", "other") == 1)  # it is checked later
        assert raw("TLEN", "s") == COUNT - 10  # the node before the damaged one is evicted
        for number in range(10):
            raw("TAPPEND", "s", "n", number)
        eventually(lambda: raw("TLEN", "s") == COUNT - 15)
    lines = log_of(damaged)
    assert len(lines) == 1, damaged.output
    assert "is damaged at node 10" in lines[0]


@pytest.mark.parametrize("form", [(), ("JUSTID",)])
def test_xautoclaim_passes_a_damaged_node(tmp_path: Path, form: tuple[str, ...]) -> None:
    """Its messages stay pending for their consumer."""
    with running_server(tmp_path, stream_node_max_entries=10, node_cache_size=0) as server:
        with Raw(server.port) as raw:
            ids = [raw("XADD", "s", "*", "body", noise(number)) for number in range(40)]
            raw("XGROUP", "CREATE", "s", "g", "0")
            raw("XREADGROUP", "GROUP", "g", "one", "STREAMS", "s", ">")
        server.stop()
        damage(tmp_path, [15])
        server.start()
        with Raw(server.port) as raw:
            claimed: list[bytes] = []
            at = b"0-0"
            while at != b"0-0" or not claimed:
                at, found, gone = raw("XAUTOCLAIM", "s", "g", "two", 0, at, "COUNT", 7, *form)
                assert gone == []
                claimed += found if form else [row[0] for row in found]
            assert claimed == ids[:10] + ids[20:]
            assert [row[0] for row in raw("XPENDING", "s", "g", "-", "+", 100, "one")] == ids[10:20]
        eventually(lambda: any("damaged" in line for line in server.output))  # the periodic work logs it
        assert len(log_of(server)) == 1, server.output


def test_appends_do_not_need_the_last_node(tmp_path: Path) -> None:
    """A restarted server would continue it. Delayed entries must not leave their list and then fail to join."""
    with running_server(tmp_path, stream_node_max_entries=10, node_cache_size=0) as server:
        with Raw(server.port) as raw:
            for key, start in (("s", 0), ("many", 100)):
                raw.pipeline(*[("TAPPEND", key, "body", noise(start + number)) for number in range(15)])
            raw("TDELAY", "s", "AT", int(time.time() * 1000) + 1500, "f", "v")
        server.stop()
        damage(tmp_path, (12, 112))
        server.start()
        with Raw(server.port) as raw:
            assert len(raw("TMAPPEND", "many", "FIELDS", 1, "f", "VALUES", "v", "w")) == 2
            eventually(lambda: raw("TLEN", "s") == 16)
            assert raw("TDELAY", "s", "COUNT") == 0
            assert raw("TRANGE", "many", "-", "+").startswith("ERR damaged data")
            assert len(raw("TREVRANGE", "s", "+", "-", "COUNT", 1)) == 1
        server.stop()
        assert "Traceback" not in "".join(server.output)
