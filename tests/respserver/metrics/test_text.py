"""The text format, read back with the parser of prometheus-client."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from respserver.metrics.families import COUNTER, GAUGE, HISTOGRAM, MetricFamily
from respserver.metrics.text import LABEL_MOST, LINES, label, lines, number, pieces
from respserver.metrics.values import BOUNDS
from respserver.observe.slowlog import Histogram

ONE = MetricFamily("tidelog_one", GAUGE, "One.", ("name", "other"))


def parsed(text: str) -> list[tuple[str, dict[str, str], float]]:
    families = list(text_string_to_metric_families(text))
    return [(sample.name, sample.labels, sample.value) for family in families for sample in family.samples]


@given(st.text(max_size=LABEL_MOST), st.integers(0, 1 << 62) | st.floats(allow_nan=False, allow_infinity=False))
def test_values_survive(name: str, value: float) -> None:
    text = "".join(lines(ONE, [((name.encode("utf-8", "surrogatepass"), "x"), value)], []))
    if any(0xD800 <= ord(character) < 0xE000 for character in name):
        return  # not UTF-8
    ((sample, labels, found),) = parsed(text)
    assert (sample, labels, float(found)) == ("tidelog_one", {"name": name, "other": "x"}, float(value))


@given(st.lists(st.binary(max_size=3 * LABEL_MOST), unique=True, max_size=5))
def test_different_bytes_have_different_labels(names: list[bytes]) -> None:
    assert len({label(name) for name in names}) == len(names)


def test_labels() -> None:
    assert label('a"b\\c\nd') == 'a\\"b\\\\c\\nd'
    assert label(b"\xff").startswith("\\\\xff~")
    assert len(label("x" * 1000)) == len(label(b"x" * 1_000_000)) == LABEL_MOST + 17
    assert label("x" * 1000) != label("x" * 1001)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (5.0, "5"), (0.25, "0.25"), (1e-06, "1e-06"), (1 << 60, str(1 << 60)), (1e300, "1e+300")],
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


def test_a_family_without_samples_has_no_lines() -> None:
    assert list(lines(ONE, [], [])) == []


def test_a_counter() -> None:
    text = "".join(lines(MetricFamily("tidelog_x_total", COUNTER, "X."), [((), 3)], []))
    assert text == "# HELP tidelog_x_total X.\n# TYPE tidelog_x_total counter\ntidelog_x_total 3\n"


@given(st.lists(st.tuples(st.integers(0, 1 << 26), st.integers(1, 5)), max_size=30))
def test_histograms(calls: list[tuple[int, int]]) -> None:
    """Each bucket has the calls that took less than its bound, except those near it: the server's buckets are exact at
    powers of two."""
    histogram = Histogram()
    for usec, count in calls:
        histogram.note(usec, count)
    below = histogram.below(BOUNDS)
    assert below == [sum(count for usec, count in calls if usec < bound) for bound in BOUNDS]
    total = sum(count for _, count in calls)
    assert (histogram.calls, histogram.usec) == (total, sum(usec * count for usec, count in calls))
    family = MetricFamily("tidelog_h", HISTOGRAM, "H.", ("command",))
    bounds = [(bound / 1e6, count) for bound, count in zip(BOUNDS, below, strict=True)]
    text = "".join(lines(family, [], [(("get",), (bounds, histogram.calls, histogram.usec / 1e6))]))
    found = parsed(text)
    counts = [value for name, _, value in found if name == "tidelog_h_bucket"]
    assert counts == sorted(counts)
    assert counts[-1] == total
    assert [float(labels["le"]) for name, labels, _ in found if name == "tidelog_h_bucket"][-1] == math.inf
    assert found[-1] == ("tidelog_h_count", {"command": "get"}, total)


def test_pieces_are_short() -> None:
    text = [f"{at}\n" for at in range(2 * LINES + 1)]
    parts = list(pieces(iter(text)))
    assert [part.count(b"\n") for part in parts] == [LINES, LINES, 1]
    assert b"".join(parts).decode() == "".join(text)
    assert list(pieces(iter(()))) == []
