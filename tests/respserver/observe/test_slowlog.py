"""The slow log, latency events and histograms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from respserver.observe.slowlog import MAX_SAMPLES, Histogram, LatencyEvents, SlowLog


def test_slowlog_returns_the_newest_entries_first() -> None:
    log = SlowLog(slower_than=100, max_len=2)
    for number, usec in enumerate((99, 100, 5000, 101)):
        log.note(number, usec, [b"GET"], "a", "n")
    assert [(entry[0], entry[1], entry[2]) for entry in log.entries()] == [(2, 3, 101), (1, 2, 5000)]
    log.resize(1)
    assert [entry[0] for entry in log.entries()] == [2]
    log.reset()
    assert log.entries() == []
    log.note(9, 100, [b"GET"], "a", "n")
    assert log.entries()[0][0] == 3, "IDs go on after a reset"


@pytest.mark.parametrize(("slower_than", "kept"), [(-1, 0), (0, 3), (10, 1)])
def test_slowlog_thresholds(slower_than: int, kept: int) -> None:
    log = SlowLog(slower_than=slower_than)
    for usec in (0, 9, 10):
        log.note(1, usec, [b"x"], "", "")
    assert len(log.entries()) == kept


def test_slowlog_cuts_large_commands() -> None:
    log = SlowLog(slower_than=0)
    log.note(1, 1, [b"SET", b"k" * 128, b"v" * 1000], "", "")
    log.note(1, 1, [b"%d" % n for n in range(32)], "", "")
    log.note(1, 1, [b"%d" % n for n in range(33)], "", "")
    many, fits, long = (entry[3] for entry in log.entries())
    assert long == [b"SET", b"k" * 128, b"v" * 128 + b"... (872 more bytes)"]
    assert fits == [b"%d" % n for n in range(32)]
    assert many == [*[b"%d" % n for n in range(31)], b"... (2 more arguments)"]


def test_latency_events() -> None:
    events = LatencyEvents(threshold=10)
    events.note("command", 100, 9)
    assert events.all() == {}
    for second, ms in ((100, 10), (100, 30), (100, 20), (101, 11)):
        events.note("command", second, ms)
    assert events.all() == {"command": [(100, 30), (101, 11)]}
    for second in range(200, 200 + 2 * MAX_SAMPLES):
        events.note("command", second, 10)
    assert len(events.all()["command"]) == MAX_SAMPLES
    assert events.reset(["other"]) == 0
    assert events.reset([]) == 1
    events.threshold = 0
    events.note("command", 1, 1000)
    assert events.all() == {}


durations = st.lists(st.one_of(st.integers(0, 64), st.integers(0, 1 << 33)), min_size=1, max_size=60)


@given(durations, st.sampled_from([50.0, 99.0, 99.9, 100.0]))
def test_a_percentile_is_never_too_low_and_at_most_an_eighth_too_high(times: list[int], percent: float) -> None:
    histogram = Histogram()
    for usec in times:
        histogram.note(usec)
    times.sort()
    rank = max(0, -(-len(times) * percent // 100) - 1)
    exact = times[int(rank)]
    assert exact <= histogram.percentile(percent) <= exact * 1.125


@given(durations)
def test_doublings_are_cumulative(times: list[int]) -> None:
    histogram = Histogram()
    for usec in times:
        histogram.note(usec)
    pairs = histogram.doublings()
    assert pairs[-1][1] == histogram.calls == len(times)
    assert [count for _, count in pairs] == sorted({count for _, count in pairs})
    for limit, count in pairs:
        assert limit.bit_count() == 1
        assert sum(usec < limit for usec in times) <= count <= sum(usec <= limit * 1.125 for usec in times)
    assert (Histogram().doublings(), Histogram().percentile(99.0), Histogram().calls) == ([], 0.0, 0)
