"""Entries as lines, and JSON lines back into fields."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog import Entry, StreamId
from tidelog.cli import lines

words = st.one_of(st.text(st.characters(codec="utf-8")).map(str.encode), st.binary(max_size=8))


@settings(deadline=None)
@given(st.lists(st.tuples(words, words), min_size=1, max_size=5))
def test_a_dumped_entry_comes_back_whole(pairs: list[tuple[bytes, bytes]]) -> None:
    entry = Entry(StreamId(5, 1), [word for pair in pairs for word in pair])
    line = lines.to_json(entry)
    assert "\n" not in line
    assert json.loads(line)["id"] == "5.1"
    back = lines.fields_from_json(json.loads(line))
    assert [tuple(w.encode() if isinstance(w, str) else w for w in pair) for pair in back] == pairs


def test_entries_as_text() -> None:
    entry = Entry(StreamId(1486475519747, 3), [b"sensor", b"01", b"note", b"a b", b"raw", b"\xff\x1b[0m", b"", b""])
    assert lines.to_text(entry) == (
        r'2017-02-07 13:51:59.747  1486475519747.3  sensor=01 note="a b" raw="\\xff\u001b[0m" ""=""'
    )
    assert lines.to_text(Entry(StreamId(2**64 - 1, 0), [b"a", b"1"])).split() == ["-", f"{2**64 - 1}.0", "a=1"]
