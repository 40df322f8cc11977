"""Commands that change a stream and then need a damaged node: what they have done is in the reply."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.waiting import eventually
from tests.wire.damagedstore import damage, noise
from tests.wire.rawclient import Raw
from tidelog.testing import Server, running_server

COUNT = 40  # entries of each stream, in nodes of ten; those from 10 to 19 are damaged
MOST = 26  # entries to retain: after one append, the border is in the damaged node
ADDED = 10  # appends of each test; the border is then after the damaged node, unless it is an ID in this node
LONG = 1200  # entries of the streams that are read in slices; the last 50 begin with a damaged node
SMALL = ("field", "value")
LARGE = ("field", "x" * 5000)
# the appends, and the length of the stream after all of them
APPENDS: dict[str, tuple[tuple[Any, ...], int]] = {
    "count": (("TAPPEV", "count", "COUNT", MOST), MOST),
    "minid": (("TAPPEV", "minid", "MINID", "ID15"), COUNT + ADDED - 10),
    "maxlen": (("XADD", "maxlen", "MAXLEN", "=", MOST, "*"), MOST),
    "plain": (("XADD", "plain", "NOMKSTREAM", "MAXLEN", MOST, "*"), MOST),
    "xminid": (("XADD", "xminid", "MINID", "ID15", "*"), COUNT + ADDED - 10),
    "limit": (("XADD", "limit", "MINID", "~", "ID15", "LIMIT", 100, "*"), COUNT + ADDED - 10),
    "idmp": (("XADD", "idmp", "IDMP", "producer", "name", "MAXLEN", MOST, "*"), COUNT + 1 - 10),
    "delref": (("XADD", "delref", "DELREF", "MAXLEN", MOST, "*"), MOST),
    "acked": (("XADD", "acked", "ACKED", "MINID", "ID15", "*"), COUNT + ADDED),
}
KEYS = (*APPENDS, "trim", "trimref", "ackdel", "whole", "retain", "intact", "slices")


@pytest.fixture(scope="module")
def ids(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, dict[str, list[bytes]]]]:
    """A server, and the IDs of the entries of each stream."""
    place = tmp_path_factory.mktemp("damaged") / "data"
    with running_server(place, stream_node_max_entries=10, node_cache_size=0) as server, Raw(server.port) as raw:
        found: dict[str, list[bytes]] = {}
        for at, key in enumerate(KEYS):
            numbers = range(at * COUNT, at * COUNT + COUNT)
            found[key] = raw.pipeline(*[("TAPPEND", key, "body", noise(number, 400)) for number in numbers])
        for key in ("delref", "acked", "trimref", "ackdel"):
            raw("XGROUP", "CREATE", key, "g", "0")
            raw("XREADGROUP", "GROUP", "g", "c", "COUNT", COUNT, "STREAMS", key, ">")
        raw("XACK", "acked", "g", *found["acked"])
        for key in ("intact", "slices"):
            raw("XGROUP", "CREATE", key, "g", "0")
        for key in ("redelivered", "claimed"):
            raw.pipeline(*[("TAPPEND", key, "body", noise(100_000 + number, 400)) for number in range(LONG)])
            raw("XGROUP", "CREATE", key, "g", "0")
        raw("TREAD", "redelivered", 0, LONG, "GROUP", "g", 0, "RETRY", 1, 0)
        raw("XREADGROUP", "GROUP", "g", "other", "STREAMS", "claimed", ">")
        server.stop()
        damage(place, [100_000 + LONG - 48])
        damage(place, [at * COUNT + 12 for at, key in enumerate(KEYS) if key != "intact"])
        server.start()
        yield server, found


@pytest.mark.parametrize("key", APPENDS)
def test_an_append_replies_its_id(ids: tuple[Server, dict[str, list[bytes]]], key: str) -> None:
    """One call, similar calls that are executed as one, large ones, and a call in a transaction."""
    server, found = ids
    command, length = APPENDS[key]
    call = tuple(found[key][15] if word == "ID15" else word for word in command)
    with Raw(server.port) as raw:
        replies = [raw(*call, *SMALL)]
        if key != "idmp":
            replies += raw.pipeline(*[(*call, *SMALL)] * 5)
            replies += raw.pipeline(*[(*call, *LARGE)] * 3)
        raw("MULTI")
        raw(*call, *SMALL)
        replies += raw("EXEC")
        assert not [reply for reply in replies if not isinstance(reply, bytes)]
        assert len(set(replies)) == (1 if key == "idmp" else ADDED)
        assert raw("TLEN", key) == length


def test_an_eviction_alone_is_complete_or_an_error(ids: tuple[Server, dict[str, list[bytes]]]) -> None:
    server, found = ids
    with Raw(server.port) as raw:
        for call in (("XTRIM", "trim", "MAXLEN", 25), ("TAPPEV", "trim", "MINID", found["trim"][15])):
            assert raw(*call).startswith("ERR damaged data")
            assert raw("TLEN", "trim") == COUNT
        assert raw("XTRIM", "trim", "MAXLEN", 30) == 10
        assert raw("TAPPEV", "whole", "COUNT", 20) == 20  # the damaged node is not needed: it is evicted as a whole
        assert len(raw("TRANGE", "whole", "-", "+")) == 20
        assert raw("TREAD", "whole", found["whole"][18], 1)[0] is None  # entries are missing


def test_a_trimming_in_steps_replies_what_it_has_evicted(ids: tuple[Server, dict[str, list[bytes]]]) -> None:
    server, found = ids
    with Raw(server.port) as raw:
        others = [name for number, name in enumerate(found["trimref"]) if number not in (5, 15)]
        raw("XACK", "trimref", "g", *others)
        assert raw("XTRIM", "trimref", "ACKED", "MAXLEN", 30) == 9  # then it must find 15
        assert raw("XTRIM", "trimref", "ACKED", "MAXLEN", 30).startswith("ERR damaged data")
        assert raw("TLEN", "trimref") == COUNT - 9


def test_messages_stay_pending_if_their_entries_cannot_be_deleted(ids: tuple[Server, dict[str, list[bytes]]]) -> None:
    server, found = ids
    with Raw(server.port) as raw:
        names = found["ackdel"][8:13]
        for option in ("KEEPREF", "DELREF", "ACKED"):
            reply = raw("XACKDEL", "ackdel", "g", option, "IDS", len(names), *names)
            assert reply.startswith("ERR damaged data")
            assert raw("XPENDING", "ackdel", "g")[0] == COUNT
        assert raw("XACKDEL", "ackdel", "g", "IDS", 2, *found["ackdel"][8:10]) == [1, 1]
        assert raw("XPENDING", "ackdel", "g")[0] == COUNT - 2


def test_delivered_messages_are_in_the_reply(ids: tuple[Server, dict[str, list[bytes]]]) -> None:
    """Without acknowledgements, an error would lose them."""
    server, _ = ids
    with Raw(server.port) as raw:
        raw("XREADGROUP", "GROUP", "g", "c", "NOACK", "COUNT", 10, "STREAMS", "slices", ">")
        reply = raw("XREADGROUP", "GROUP", "g", "c", "NOACK", "STREAMS", "intact", "slices", ">", ">")
        assert [(key, len(entries)) for key, entries in reply] == [(b"intact", COUNT)]
        reply = raw("XREADGROUP", "GROUP", "g", "c", "NOACK", "STREAMS", "intact", "slices", ">", ">")
        assert reply.startswith("ERR damaged data")


def test_messages_in_the_reply_to_a_long_read_are_delivered(ids: tuple[Server, dict[str, list[bytes]]]) -> None:
    """A second read does not deliver them again."""
    server, _ = ids
    with Raw(server.port) as raw:
        read = ("TREAD", "redelivered", 0, 5000, "GROUP", "g", 0, "RETRY", 60_000, 0)
        assert len(raw(*read)) == LONG - 50
        assert raw(*read).startswith("ERR damaged data")
        claim = ("XREADGROUP", "GROUP", "g", "c", "CLAIM", 1, "STREAMS", "claimed", ">")
        assert len(raw(*claim)[0][1]) == LONG - 50
        assert raw("XPENDING", "claimed", "g")[3] == [[b"c", b"%d" % (LONG - 50)], [b"other", b"50"]]


def test_retention_evicts_the_nodes_before_a_damaged_one(ids: tuple[Server, dict[str, list[bytes]]]) -> None:
    server, _ = ids
    with Raw(server.port) as raw:
        raw("TCFG", "retain", "RETAIN", "COUNT", 25, "EXACT")
        eventually(lambda: raw("TLEN", "retain") == COUNT - 10)
        raw("TCFG", "retain", "RETAIN", "COUNT", 20, "EXACT")
        eventually(lambda: raw("TLEN", "retain") == 20)


def test_evictions_before_a_damaged_node_are_durable(ids: tuple[Server, dict[str, list[bytes]]]) -> None:
    server, _ = ids
    with Raw(server.port) as raw:
        lengths = [raw("TLEN", key) for key in KEYS]
    server.kill()
    server.start()
    with Raw(server.port) as raw:
        assert [raw("TLEN", key) for key in KEYS] == lengths
    server.stop()
    assert "Traceback" not in "".join(server.output)
