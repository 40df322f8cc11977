"""The comparison finds each kind of difference, and names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.tidelog.moving.movekit import Peer, moved, raw
from tidelog.moving import compared, descriptions, strings
from tidelog.moving.compared import Compared
from tidelog.moving.endpoints import Endpoint
from tidelog.moving.streams import CopiedStream, Streams


def prepared(source: Peer, target: Peer) -> CopiedStream:
    ask = source.client.execute_command
    for n in range(1, 21):
        ask("XADD", "s", f"{n}-0", "n", n)
    for group in ("g", "h"):
        ask("XGROUP", "CREATE", "s", group, "0")
    ask("XREADGROUP", "GROUP", "g", "ann", "COUNT", "5", "STREAMS", "s", ">")
    ask("XREADGROUP", "GROUP", "g", "bob", "COUNT", "3", "STREAMS", "s", ">")
    ask("XDEL", "s", "12-0")
    ask("PEXPIRE", "s", 10_000_000)
    one, other = Endpoint("source", source.url), Endpoint("target", target.url)
    try:
        here = descriptions.stream(one, b"s")
        assert here is not None
        made = CopiedStream(b"s")
        Streams(one, other, 7).bring(made, here, True)
    finally:
        one.close()
        other.close()
    return made


def found(source: Peer, target: Peer, made: CopiedStream, content: bool = True) -> Compared:
    one, other = Endpoint("source", source.url), Endpoint("target", target.url)
    try:
        return compared.compare(one, other, made, 6, content, lambda _done, _total: None)
    finally:
        one.close()
        other.close()


Ask = Callable[..., Any]

#: What is done to the target, and the differences that are told.
INJECTED: dict[str, tuple[list[tuple[object, ...]], list[str]]] = {
    "the stream": ([("DEL", "s")], ["the stream is not at the target"]),
    "an entry deleted": (
        [("XDEL", "s", "5-0")],
        ["length is 19, at the target 18", "entries that are not at the target: 1 (5-0)"],
    ),
    "the first deleted": (
        [("XTRIM", "s", "MINID", "3")],
        ["length is 19, at the target 17", "first-entry is 1-0, at the target 3-0",
         "entries that are not at the target: 2 (1-0, 2-0)"],
    ),
    "many deleted": (
        [("XDEL", "s", *(f"{n}-0" for n in range(3, 8)))],
        ["length is 19, at the target 14", "entries that are not at the target: 5 (3-0, 4-0, 5-0, ...)"],
    ),
    "an entry more": (
        [("XADD", "s", "21-0", "a", "b")],
        ["length is 19, at the target 20", "last-entry is 20-0, at the target 21-0",
         "last-generated-id is 20-0, at the target 21-0", "entries-added is 20, at the target 21"],
    ),
    "the last ID": (
        [("XSETID", "s", "30-0", "ENTRIESADDED", "20", "MAXDELETEDID", "12-0")],
        ["last-generated-id is 20-0, at the target 30-0"],
    ),
    "counters": (
        [("XSETID", "s", "20-0", "ENTRIESADDED", "99", "MAXDELETEDID", "13-0")],
        ["entries-added is 20, at the target 99", "max-deleted-entry-id is 12-0, at the target 13-0"],
    ),
    "expiry": ([("PERSIST", "s")], ["expiry is {expires}, at the target -1"]),
    "a group more": ([("XGROUP", "CREATE", "s", "i", "0")], ["group i is not at the source"]),
    "a group less": ([("XGROUP", "DESTROY", "s", "h")], ["group h is not at the target"]),
    "an offset": (
        [("XGROUP", "SETID", "s", "h", "4-0", "ENTRIESREAD", "2")],
        ["group h: last-delivered-id is 0-0, at the target 4-0", "group h: entries-read is none, at the target 2"],
    ),
    "a consumer more": (
        [("XGROUP", "CREATECONSUMER", "s", "h", "eve")],
        ["group h: consumer eve is not at the source"],
    ),
    "a consumer less": (
        [("XGROUP", "DELCONSUMER", "s", "g", "bob")],
        ["group g: pending messages that are not at the target: 3 (6-0, 7-0, 8-0)",
         "group g: consumer bob is not at the target", "group g: consumer bob has 3 pending messages, at the target 0"],
    ),
    "acknowledged": (
        [("XACK", "s", "g", "2-0")],
        ["group g: pending messages that are not at the target: 1 (2-0)",
         "group g: consumer ann has 5 pending messages, at the target 4"],
    ),
    "pending": (
        [("XCLAIM", "s", "g", "ann", 0, "15-0", "FORCE", "JUSTID")],
        ["group g: pending messages that are not at the source: 1 (15-0)",
         "group g: consumer ann has 5 pending messages, at the target 6"],
    ),
    "an owner": (
        [("XCLAIM", "s", "g", "bob", 0, "2-0", "JUSTID")],
        ["group g: pending messages of another consumer: 1 (2-0)",
         "group g: consumer ann has 5 pending messages, at the target 4",
         "group g: consumer bob has 3 pending messages, at the target 4"],
    ),
    "deliveries": (
        [("XCLAIM", "s", "g", "ann", 0, "2-0", "3-0", "RETRYCOUNT", "9", "JUSTID")],
        ["group g: pending messages with another number of deliveries: 2 (2-0, 3-0)"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", INJECTED)
def test_a_difference_is_named(source: Peer, target: Peer, what: str) -> None:
    made = prepared(source, target)
    assert found(source, target, made).differences == []
    commands, expected = INJECTED[what]
    for command in commands:
        raw(target.client, *command)
    seen = found(source, target, made)
    assert made.here is not None
    assert seen.differences == [text.format(expires=made.here.expires) for text in expected]
    assert seen.source_changes == []


def test_a_value_that_differs(source: Peer, target: Peer) -> None:
    made = prepared(source, target)
    rows = target.client.xrange("s")
    target.client.delete("s")
    for at, fields in rows:
        target.client.xadd("s", {b"n": b"other"} if at == b"9-0" else fields, id=at)
    seen = found(source, target, made)
    assert "entries with other fields or values: 1 (9-0)" in seen.differences
    assert not any("entries" in text and "values" in text for text in found(source, target, made, False).differences)


def test_a_source_that_goes_on_is_no_difference(source: Peer, target: Peer) -> None:
    made = prepared(source, target)
    source.client.xadd("s", {"n": "21"}, id="21-0")
    source.client.xreadgroup("g", "ann", {"s": ">"}, count=1)
    seen = found(source, target, made)
    assert seen.differences == []
    changes = ["the source has added 1 entry since", "group g was changed at the source since"]
    assert seen.source_changes == changes
    source.client.xtrim("s", maxlen=3, approximate=False)
    assert found(source, target, made).differences == []
    source.client.delete("s")
    assert found(source, target, made).source_changes == ["the stream was deleted at the source"]


def test_a_difference_is_found_although_the_source_goes_on(source: Peer, target: Peer) -> None:
    made = prepared(source, target)
    source.client.xadd("s", {"n": "21"}, id="21-0")
    target.client.xdel("s", "4-0")
    assert found(source, target, made).differences == ["entries that are not at the target: 1 (4-0)"]


def test_strings(source: Peer, target: Peer) -> None:
    for n in range(5):
        source.client.set(f"k{n}", "value")
    moved(source.url, target.url)
    target.client.set("k1", "other")
    target.client.delete("k2")
    target.client.pexpireat("k3", 4_000_000_000_000)
    one, other = Endpoint("source", source.url), Endpoint("target", target.url)
    try:
        told = sorted(strings.differences(one, other, None))
    finally:
        one.close()
        other.close()
    assert told == [
        "string k1: the value differs (5 bytes, at the target 5)", "string k2: is not at the target",
        "string k3: expires at no time, at the target 4000000000000",
    ]  # fmt: skip
