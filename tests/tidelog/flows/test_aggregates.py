"""Aggregates: standard deviation, percentiles, collected values; merged parts have the result of the whole."""

from __future__ import annotations

import bisect
import math
import random
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.flows.operators.aggregates import Aggregates

ALL: dict[str, Any] = {
    "n": "count", "with": {"count": "@"}, "sum": {"sum": "@"}, "mean": {"mean": "@"}, "min": {"min": "@"},
    "max": {"max": "@"}, "first": {"first": "@"}, "last": {"last": "@"}, "distinct": {"distinct": "@"},
    "some": {"collect": "@", "limit": 5}, "deviation": {"stddev": "@"},
    "tenths": {"percentile": "@", "at": [0, 90, 100]},
}  # fmt: skip

NUMBERS = st.one_of(st.none(), st.integers(-1000, 1000))


def folded(aggregates: Aggregates, values: list[Any]) -> list[Any]:
    states = aggregates.first()
    for value in values:
        states = aggregates.folded(states, value)
    return states


def computed(values: list[Any], **aggregates: Any) -> dict[str, Any]:
    made = Aggregates(aggregates)
    return made.results(folded(made, values))


def reference(values: list[Any]) -> dict[str, Any]:
    some = [each for each in values if each is not None]
    return {
        "n": len(values), "with": len(some), "sum": sum(some), "mean": statistics.fmean(some) if some else None,
        "min": min(some, default=None), "max": max(some, default=None), "first": some[0] if some else None,
        "last": some[-1] if some else None, "distinct": len(set(some)), "some": some[:5],
        "deviation": statistics.stdev(some) if len(some) > 1 else None,
    }  # fmt: skip


def check(found: dict[str, Any], values: list[Any]) -> None:
    tenths = found.pop("tenths")
    assert found == {key: each if each is None or isinstance(each, list) else pytest.approx(each) for key, each in
                     reference(values).items()}  # fmt: skip
    some = sorted(each for each in values if each is not None)
    if some:
        assert (tenths["p0"], tenths["p100"]) == (some[0], some[-1])
        assert some[math.floor(0.85 * (len(some) - 1))] <= tenths["p90"] <= some[-1]
    else:
        assert tenths == {"p0": None, "p90": None, "p100": None}


@given(values=st.lists(NUMBERS, max_size=30))
def test_all_aggregates(values: list[Any]) -> None:
    check(computed(values, **ALL), values)


@given(values=st.lists(NUMBERS, max_size=30), data=st.data())
def test_merged_parts_have_the_result_of_the_whole(values: list[Any], data: st.DataObject) -> None:
    aggregates = Aggregates(ALL)
    parts = [aggregates.first() for _ in range(data.draw(st.integers(1, 4)))]
    for value in values:
        number = data.draw(st.integers(0, len(parts) - 1))
        parts[number] = aggregates.folded(parts[number], value)
    for _ in range(2):  # merging changes no part
        check(aggregates.results(aggregates.merged(parts)), values)


def test_percentiles_of_many_values() -> None:
    chance = random.Random(7)
    values = [chance.expovariate(1) for _ in range(20_000)]
    found = computed(values, low={"percentile": "@", "at": 1}, high={"percentile": "@", "at": [50, 99, 99.9]})
    values.sort()
    for rank, value in ((0.01, found["low"]), *zip((0.5, 0.99, 0.999), found["high"].values(), strict=True)):
        off = 0.08 * rank * (1 - rank) + 0.0001  # t-digests are most exact at both ends
        assert bisect.bisect(values, value) / len(values) == pytest.approx(rank, abs=off)
    assert list(found["high"]) == ["p50", "p99", "p99.9"]


def test_strings_and_numbers_in_different_parts() -> None:
    aggregates = Aggregates({"low": {"min": "@"}, "high": {"max": "@"}})
    parts = [folded(aggregates, each) for each in ([None], ["b", "a"], [3], ["c"])]
    assert aggregates.results(aggregates.merged(parts)) == {"low": "a", "high": "c"}


def test_results_share_nothing_with_the_state() -> None:
    aggregates = Aggregates({"all": {"collect": "@"}, "first": {"first": "@"}, "last": {"last": "@"}})
    states = folded(aggregates, [{"a": [1]}])
    for _ in range(2):
        found = aggregates.results(states)
        assert found == {"all": [{"a": [1]}], "first": {"a": [1]}, "last": {"a": [1]}}
        for each in (found["all"][0], found["first"], found["last"]):
            each["a"].append(2)


@pytest.mark.parametrize("kind", [{"stddev": "@"}, {"percentile": "@", "at": 50}])
@pytest.mark.parametrize("bad", ["x", True, [1], math.inf, -math.inf, math.nan, 10**400])
def test_values_that_are_no_finite_number_change_nothing(kind: dict[str, Any], bad: Any) -> None:
    aggregates = Aggregates({"all": kind, "d": {"distinct": "@"}, "c": {"collect": "@"}})
    states = folded(aggregates, [1, 1])
    with pytest.raises((TypeError, ValueError, OverflowError)):
        aggregates.folded(states, bad)
    assert aggregates.results(states) == {"all": 0 if "stddev" in kind else 1, "d": 1, "c": [1, 1]}


def test_a_deviation_beyond_the_range_of_numbers_is_null() -> None:
    assert computed([1e308, -1e308, 1e308], all={"stddev": "@"}) == {"all": None}


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ({"percentile": "a"}, "aggregates.x: percentile: at is None: it is a percentage from 0 to 100"),
        ({"percentile": "a", "at": 101}, "at is 101"), ({"percentile": "a", "at": [50, "x"]}, "or a list of them"),
        ({"percentile": "a", "at": []}, "at is empty"), ({"percentile": "a", "at": True}, "at is True"),
        ({"percentile": "a", "at": 5, "of": 3}, "percentile: 'of': its only option is at"),
        ({"collect": "a", "limit": 0}, "limit is 0: it is a number of values from 1 to 100,000"),
        ({"collect": "a", "limit": 100_001}, "limit is 100001"), ({"collect": "a", "limit": "3"}, "limit is '3'"),
        ({"sum": "a", "limit": 3}, "aggregates.x: sum: 'limit': it has no options"),
        ({}, "use one kind"), ({"at": 3}, "there is no aggregate 'at'"),
    ],
)  # fmt: skip
def test_wrong_options(what: Any, said: str) -> None:
    with pytest.raises(ValueError, match=r"aggregates\.x") as raised:
        Aggregates({"x": what})
    assert said in str(raised.value)
