"""XRANGE and XREVRANGE: long replies, and entries deleted in the middle. ``test_differential_streams`` has the rest."""

from __future__ import annotations

from respserver.testing import RunningServer
from storage.model.ids import parse_id
from tests.wire.rawclient import Raw


def test_a_range_larger_than_every_buffer_streams(c: Raw, hand: RunningServer) -> None:
    """Of nodes, of the tail, and of both, either way; what is added meanwhile is not in it."""
    value = b"x" * 5000
    for start in range(0, 400, 50):
        c.pipeline(*[("XADD", "s", f"{n + 1}-5", "n", n, "v", value) for n in range(start, start + 50)])
    expected = [[b"%d-5" % (n + 1), [b"n", b"%d" % n, b"v", value]] for n in range(400)]
    assert c("XRANGE", "s", "-", "+") == expected
    assert c("XREVRANGE", "s", "+", "-") == expected[::-1]
    assert c("XRANGE", "s", "100", "(300", "COUNT", 150) == expected[99:249]
    assert c("XREVRANGE", "s", "(300-5", "(100-5", "COUNT", 150) == expected[298:148:-1]
    assert c("XREAD", "COUNT", 300, "STREAMS", "s", "s", 0, 200) == [[b"s", expected[:300]], [b"s", expected[199:]]]


def test_two_digits_of_fields_and_ids_of_many_lengths(c: Raw) -> None:
    expected = []
    for number, name in enumerate(("1-1", "1-10", "9-0", "10-0", "10-99999", "123456-1", "1700000000000-1")):
        pairs = [word for n in range(number * 3 + 1) for word in (b"f%d" % n, b"1.5")]
        c("XADD", "s", name, *pairs)
        expected.append([name.encode(), pairs])
    assert c("XRANGE", "s", "-", "+") == expected
    assert c("XREVRANGE", "s", "+", "-") == expected[::-1]


def test_what_was_deleted_in_the_middle_is_not_there(c: Raw, hand: RunningServer) -> None:
    c("CONFIG", "SET", "stream-node-max-entries", 8)
    c.pipeline(*[("XADD", "s", f"{n}-0", "f", n) for n in range(1, 41)])
    gone = {2, 3, 8, 9, 16, 17, *range(20, 31), 40}

    def delete() -> None:
        ks = hand.server.data.ks
        stream = ks.stream(b"s", 0)
        assert stream is not None
        found = [stream.locate(parse_id(b"%d" % n)) for n in sorted(gone)]
        ordinals = [position.ordinal for position in found if position is not None]
        ks.delete_entries(b"s", stream, ordinals, parse_id(b"40"))

    hand.call(delete)
    numbers = [n for n in range(1, 41) if n not in gone]
    left = [[b"%d-0" % n, [b"f", b"%d" % n]] for n in numbers]
    assert c("XLEN", "s") == len(left)
    assert c("XRANGE", "s", "-", "+") == left
    assert c("XREVRANGE", "s", "+", "-") == left[::-1]
    for count in range(1, len(left) + 2):
        assert c("XRANGE", "s", "2", "+", "COUNT", count) == left[1 : 1 + count]
        assert c("XREVRANGE", "s", "39", "-", "COUNT", count) == left[::-1][:count]
        assert c("XREAD", "COUNT", count, "STREAMS", "s", "1-0") == [[b"s", left[1 : 1 + count]]]
    assert c("XREAD", "STREAMS", "s", "+") == [[b"s", left[-1:]]]
    assert c("XREAD", "STREAMS", "s", "39-0") is None
    assert c("XRANGE", "s", 20, 30) == []
    assert c("XTRIM", "s", "MAXLEN", len(left) - 3) == 3
    assert c("XTRIM", "s", "MINID", 25) == len([n for n in range(1, 25) if n not in gone]) - 3
    assert c("XRANGE", "s", "-", "+") == left[sum(n < 25 for n in numbers) :]
    assert c("XTRIM", "s", "MAXLEN", 0) == 9
    assert c("XLEN", "s") == 0
