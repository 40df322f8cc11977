"""Bytes to events and back: order, errors of one message and of the stream, what is collected."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from tidelog.flows.api.errors import RejectError
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import OK, REJECT
from tidelog.flows.connectors.payload import LinePayloadOptions, PayloadOptions, PayloadReader, PayloadWriter
from tidelog.options.units import PositiveSize


def _reading(**options: Any) -> PayloadReader:
    return PayloadReader(PayloadOptions(**options))


def test_the_way_in_and_the_way_out_are_opposites() -> None:
    stamped = Event({"a": 1}, ingest_ns=1234)
    after: Any = ["ingest_timestamp", "gzip", "base64", "separate"]
    before: Any = ["separate", "base64", "gzip", "ingest_timestamp"]
    pieces, outcomes = PayloadWriter(PayloadOptions(postprocessors=after)).batch([stamped, Event([])])
    assert outcomes == [OK, OK]
    for size in (1, 7, 10_000):
        reading = _reading(preprocessors=before)
        stream = b"".join(pieces)
        events = []
        for at in range(0, len(stream), size):
            events += reading.feed(stream[at : at + size], {"x": 1})
        assert [(each.value, each.ingest_ns, each.meta) for each in events] == [
            ({"a": 1}, 1234, {"x": 1}), ([], 0, {"x": 1}),
        ]  # fmt: skip
        assert reading.end() == []


def test_one_bad_message_among_good_ones() -> None:
    reading = _reading(preprocessors=["separate", "base64"])
    events = reading.feed(b"MQ==\n*\n\xff\neA==\nMg==\n", {"peer": "p"})
    assert [(each.value, each.path) for each in events] == [
        (1, ""), (b"*", "err"), (b"\xff", "err"), (b"x", "err"), (2, ""),
    ]  # fmt: skip
    assert all(each.meta["error"] and each.meta["peer"] == "p" for each in events if each.path == "err")
    assert events[0].meta is not events[-1].meta


def test_a_stream_that_breaks_gives_what_came_before() -> None:
    reading = _reading(preprocessors=["textual_length_prefixed"])
    assert [each.value for each in reading.feed(b"1 12 22x 3")] == [1, 22]
    assert reading.broken
    with pytest.raises(ValueError, match="is not a length"):
        reading.feed(b"1 1")
    assert reading.end() == []
    assert [each.value for each in reading.feed(b"1 1")] == [1]  # another stream
    assert [each.value for each in reading.feed(b"1 2x")] == [2]
    (event,) = reading.end({"peer": "p"})  # nobody was told yet
    assert (event.path, event.meta["peer"]) == ("err", "p")
    assert "is not a length" in event.meta["error"]
    with pytest.raises(ValueError, match="is not a length"):
        reading.feed(b"x")


def test_a_stream_that_breaks_behind_another_preprocessor() -> None:
    reading = _reading(preprocessors=["separate", "length_prefixed"], max_bytes=100)
    good = (1).to_bytes(8, "big") + b"7"
    assert [each.value for each in reading.feed(good + b"\n" + b"\xff" * 8 + b"\n")] == [7]
    assert "exceeds the limit" in reading.broken


def test_messages_are_limited_after_every_step() -> None:
    (event,) = _reading(preprocessors=[], max_bytes=10).feed(b'"' + b"x" * 20 + b'"')
    assert (event.path, len(event.value)) == ("err", 10)
    assert "max_bytes is 10" in event.meta["error"]


def test_sizes_say_where_each_message_ended() -> None:
    options = LinePayloadOptions(preprocessors=["separate", "remove_empty"], max_bytes=PositiveSize(5))
    reading = PayloadReader(options)
    stream = b"1\n\n22\nxxxxxxxxxx\n3\n4"
    found = reading.split(stream)
    found += reading.split_end()
    assert [(size, [each.value for each in events]) for size, events in found] == [
        (2, [1]), (1, []), (3, [22]), (11, [b"xxxxx"]), (2, [3]), (1, [4]),
    ]  # fmt: skip
    assert sum(size for size, _ in found) == len(stream)


def test_what_can_not_be_written_is_an_outcome_and_the_rest_is_written() -> None:
    writing = PayloadWriter(LinePayloadOptions())
    pieces, outcomes = writing.batch([Event(1), Event(object()), Event(3)])
    assert pieces == [b"1\n", b"3\n"]
    assert [each if isinstance(each, int) else each[0] for each in outcomes] == [OK, REJECT, OK]


def test_what_was_collected_is_given_out_with_the_batch() -> None:
    writing = PayloadWriter(PayloadOptions(postprocessors=["separate", {"collect": {"count": 2}}]))
    pieces, _ = writing.batch([Event(1), Event(2), Event(3)])
    assert pieces == [b"1\n2\n", b"3\n"]
    assert writing.end() == []


def test_no_event_is_settled_that_was_collected_into_something_that_can_not_be_written() -> None:
    after: Any = [{"collect": {"count": 3}}, {"length_prefixed": {"width": 1}}]
    options = PayloadOptions(codec="string", postprocessors=after)
    for count in (3, 2):  # within a batch, at its end
        writing = PayloadWriter(options)
        with pytest.raises(RejectError, match="exceed a length"):
            writing.batch([Event("x" * 200)] * count)
        assert writing.batch([Event("a")]) == ([b"\x01a"], [OK])  # nothing of it stayed


def test_lines_of_jsonl_have_one_end() -> None:
    assert PayloadWriter(LinePayloadOptions(codec="jsonl")).batch([Event([1, 2])])[0] == [b"1\n2\n"]
    day = Event({"a": datetime.date(2001, 1, 1)})
    assert PayloadWriter(LinePayloadOptions(codec="yaml")).batch([day])[0] == [b"a: 2001-01-01\n"]


def test_each_message_has_the_indexes_of_the_events_that_may_be_in_it() -> None:
    """If a message can't be written, all of them are retried."""
    values = ["a", "b", b"\xff", "c", "d"]
    after: list[Any] = ["separate", {"collect": {"count": 3}}]
    messages, outcomes = PayloadWriter(PayloadOptions(postprocessors=after, codec="syslog")).messages([Event(1)])
    assert messages == []
    assert isinstance(outcomes[0], tuple)
    assert outcomes[0][0] == REJECT
    writing = PayloadWriter(PayloadOptions(postprocessors=after, codec="string"))
    for _ in range(2):  # nothing stays in it
        messages, outcomes = writing.messages([Event(each) for each in values])
        assert messages == [([0, 1, 2], b"a\nb\n\xff\n"), ([2, 3, 4], b"c\nd\n")]
        assert outcomes == [OK] * 5
    plain = PayloadWriter(PayloadOptions(postprocessors=["remove_empty"], codec="string"))
    assert plain.messages([Event("a"), Event(""), Event("b")])[0] == [([0], b"a"), ([2], b"b")]


def test_wrong_options_are_told_when_a_flow_is_declared() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"codec": "jsn"}, "did you mean 'json'"),
        ({"preprocessors": [{"separate": {"delimter": 1}}]}, "did you mean 'delimiter'"),
        ({"postprocessors": ["decompress"]}, "there is no postprocessor 'decompress'"),
    ]
    for options, text in cases:
        with pytest.raises(ValueError, match=text):
            PayloadOptions(**options)
