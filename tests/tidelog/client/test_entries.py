"""IDs, entries and batches."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tidelog import MISSING, Batch, Entry, StreamId

A, B = StreamId(5, 0), StreamId(5, 1)
EA, EB = Entry(A, [b"f", b"1"]), Entry(B, [b"f", b"2", b"f", b"3"])


class TestStreamId:
    @pytest.mark.parametrize("text", ["5.1", "5-1", b"5.1", b"5-1"])
    def test_forms(self, text: str | bytes) -> None:
        assert StreamId.parse(text) == StreamId(5, 1)

    def test_plain_milliseconds(self) -> None:
        assert StreamId.parse("1486475519747") == StreamId(1486475519747, 0)

    @pytest.mark.parametrize(
        "text", ["", ".", "5.", ".5", "a.1", "1.b", "-1.0", "1.-1", "+1.0", "1_0.0", "٣.0", "18446744073709551616.0"]
    )
    def test_not_an_id(self, text: str) -> None:
        with pytest.raises(ValueError, match="not a stream ID"):
            StreamId.parse(text)

    def test_order_is_numeric_and_text_is_parsed_back(self) -> None:
        ids = [StreamId(9, 0), StreamId(10, 2), StreamId(10, 11)]
        assert sorted([ids[2], ids[0], ids[1]]) == ids
        assert [StreamId.parse(str(i)) for i in ids] == ids

    def test_time(self) -> None:
        assert StreamId(1486475519747, 3).time == datetime(2017, 2, 7, 13, 51, 59, 747_000, UTC)


class TestEntry:
    def test_access(self) -> None:
        assert EB.pairs == [(b"f", b"2"), (b"f", b"3")]
        assert EB.fields == {b"f": b"3"}
        assert EB["f"] == EB[b"f"] == b"3"
        assert EB.get("g") is None
        assert EB.get("g", b"-") == b"-"
        assert EA.text() == {"f": "1"}
        with pytest.raises(KeyError):
            EA["g"]

    def test_text_of_bytes_that_are_not_utf_8(self) -> None:
        entry = Entry(A, [b"f", b"\xff"])
        with pytest.raises(UnicodeDecodeError):
            entry.text()
        assert entry.text("replace") == {"f": "�"}

    def test_equality_and_hash(self) -> None:
        assert Entry(A, (b"f", b"1")) == EA
        assert Entry(B, (b"f", b"1")) != EA
        assert Entry(A, (b"f", b"2")) != EA
        assert len({EA, Entry(A, (b"f", b"1")), EB}) == 2


class TestBatch:
    def test_markers_are_false_and_left_out(self) -> None:
        batch = Batch([MISSING, EA, EB])
        assert [bool(item) for item in batch] == [False, True, True]
        assert batch.entries == [EA, EB]

    def test_last_id_is_the_newest_also_when_old_ones_are_redelivered(self) -> None:
        assert Batch([EB, EA]).last_id == B
        assert Batch([MISSING]).last_id is None
