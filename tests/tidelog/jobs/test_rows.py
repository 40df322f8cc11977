"""Invariant: every row is in one call, in order; and a marker says enough to make the same calls again."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow", reason="no pyarrow here (pip install 'tidelog[spark]')")

from tidelog.client.entries import SEQ_MAX, Entry, StreamId  # noqa: E402 - needs pyarrow
from tidelog.codecs import UndecodableError  # noqa: E402
from tidelog.jobs.declare import Job, Merge, job  # noqa: E402
from tidelog.jobs.errors import JobError  # noqa: E402
from tidelog.jobs.state import State  # noqa: E402
from tidelog.jobs.store import MemoryStore  # noqa: E402
from tidelog.jobs.task.calls import CallContext, FunctionCalls  # noqa: E402
from tidelog.jobs.task.rows import CallRange, InputRows, bounded, recorded, shares, split_calls  # noqa: E402
from tidelog.topics import Topic  # noqa: E402

TOPICS: list[Topic[Any]] = [Topic(f"t{at}") for at in range(3)]
#: Small, so that they meet, and at the ends of what an ID can be.
ids = st.one_of(
    st.tuples(st.integers(0, 6), st.integers(0, 3)),
    st.tuples(st.sampled_from([0, SEQ_MAX]), st.sampled_from([0, SEQ_MAX - 1, SEQ_MAX])),
)
inputs = st.lists(st.sets(ids, max_size=12), min_size=1, max_size=3)
merges: st.SearchStrategy[Merge] = st.sampled_from(["inputs", "time"])


def made(sets: list[set[tuple[int, int]]]) -> list[InputRows]:
    result = []
    for topic, some in zip(TOPICS, sets, strict=False):
        texts = [f"{ms}.{seq}" for ms, seq in sorted(some)]
        result.append(InputRows(topic, pa.table({"id": pa.array(texts, pa.string())}), pa.array(texts, pa.string())))
    return result


def listed(rows: list[InputRows], pieces: list[CallRange]) -> list[tuple[StreamId, int]]:
    return [
        (StreamId.parse(text), at)
        for at, start, stop in pieces
        for text in rows[at].ids.slice(start, stop - start).to_pylist()
    ]


@given(inputs, merges, st.integers(0, 5))
def test_every_row_is_in_one_call_in_order(sets: list[set[tuple[int, int]]], merge: Merge, max_rows: int) -> None:
    rows = made(sets)
    pieces = split_calls(rows, merge, max_rows)
    found = listed(rows, pieces)
    expected = [(StreamId(*one), at) for at, some in enumerate(sets) for one in sorted(some)]
    assert found == (sorted(expected) if merge == "time" else expected)
    assert all(start < stop for _, start, stop in pieces)
    if max_rows:
        assert all(stop - start <= max_rows for _, start, stop in pieces)
    for before, after in pairwise(pieces):  # no call ends before it must
        assert before.input != after.input or before.stop - before.start == max_rows


@given(inputs, merges, st.integers(1, 5))
def test_recorded_calls_are_the_same(sets: list[set[tuple[int, int]]], merge: Merge, max_rows: int) -> None:
    rows = made(sets)
    pieces = split_calls(rows, merge, max_rows)
    ends = [(rows[at].topic.name, rows[at].ids[stop - 1].as_py()) for at, _, stop in pieces]
    assert recorded(rows, ends) == pieces
    if pieces:
        with pytest.raises(JobError):
            recorded(rows, ends[:-1])
        with pytest.raises(JobError):
            recorded(rows, [*ends, ("t0", "99.9")])


@given(inputs, st.lists(st.booleans(), min_size=3, max_size=3), st.integers(1, 8))
def test_nothing_comes_before_what_was_taken(sets: list[set[tuple[int, int]]], more: list[bool], now_ms: int) -> None:
    rows = made(sets)
    kept = bounded(rows, more[: len(rows)], now_ms)
    bound = StreamId(now_ms - 1, SEQ_MAX)
    for some, is_more in zip(sets, more, strict=False):
        if is_more and some:
            bound = min(bound, StreamId(*max(some)))
    for some, one in zip(sets, kept, strict=True):
        assert [StreamId.parse(text) for text in one.ids.to_pylist()] == [
            StreamId(*one) for one in sorted(some) if StreamId(*one) <= bound
        ]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=5), st.integers(1, 50))
def test_shares(counts: list[int], most: int) -> None:
    given_ = shares(counts, most)
    assert sum(given_) == min(most, sum(counts))
    assert all(0 <= got <= count for got, count in zip(given_, counts, strict=True))
    short = [got for got, count in zip(given_, counts, strict=True) if got < count]
    assert not short or max(given_) <= max(short) + 1  # nobody has much more than who has too little
    assert max(short, default=0) - min(short, default=0) <= 1


@given(st.integers(1, 40), st.sets(st.integers(0, 39)), st.sets(st.integers(0, 39)), st.integers(1, 10))
def test_bisecting_leaves_out_what_fails_and_nothing_else(
    number: int, poison: set[int], bad: set[int], max_rows: int
) -> None:  # fmt: skip
    texts = [f"{n + 1}.0" for n in range(number)]
    errors = {at: UndecodableError(b"t0:0", Entry(StreamId(at), ()), "bad") for at in bad if at < number}
    rows = InputRows(TOPICS[0], pa.table({"n": list(range(number))}), pa.array(texts, pa.string()), errors)

    def function(batch: Any, state: Any) -> list[int]:
        numbers: list[int] = batch.table["n"].to_pylist()
        state.put_many([b"%d" % n for n in numbers], [b""] * len(numbers))
        if poison.intersection(numbers):
            raise ValueError
        return numbers

    @job(inputs=[TOPICS[0]], state=True, name="bisected")
    def declared(batch: Any, state: Any) -> None: ...

    store = MemoryStore()
    changes = store.begin(0)
    taken: list[int] = []
    place = CallContext(_with(declared, function), 0, 1, 0, "")
    calls = FunctionCalls(place, taken.extend, changes, bisects=True)
    kept = calls.decoded(rows)
    calls.run([kept], split_calls([kept], "inputs", max_rows))
    good = [n for n in range(number) if n not in poison and n not in errors]
    assert taken == good
    assert [key for key, _ in State(changes, bytes, job="bisected").scan()] == sorted(b"%d" % n for n in good)
    left_out = {int(one.id.partition(".")[0]) - 1 for one in calls.skipped}
    assert left_out == set(range(number)) - set(good)
    remaining = rows.without([n for n in range(number) if n not in good])
    if calls.bisected:
        assert listed([remaining], recorded([remaining], calls.ends)) == [(StreamId(n + 1), 0) for n in good]


def _with(declared: Job, function: Any) -> Job:
    return replace(declared, function=function)
