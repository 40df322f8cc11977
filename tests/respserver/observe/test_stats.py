"""Counters, rates, and the memory of the process."""

from __future__ import annotations

import pytest

from respserver.observe.stats import Counters, SampledRate, process_memory, system_memory


def test_rate_is_the_mean_of_the_last_samples() -> None:
    rate = SampledRate()
    assert rate.per_second == 0
    for step in range(40):
        rate.sample(1000 + 100 * step, 5 * step)
    assert rate.per_second == pytest.approx(50)
    for step in range(40, 60):
        rate.sample(1000 + 100 * step, 5 * 39)
    assert rate.per_second == 0


def test_rate_after_resetstat_and_after_the_clock_was_set_back() -> None:
    rate = SampledRate()
    for now, count in ((1000, 10), (2000, 20), (3000, 0), (2500, 5), (3500, 15)):
        rate.sample(now, count)
    assert rate.per_second == pytest.approx((10 + 0 + 10) / 3)


def test_the_number_of_error_codes_is_bounded() -> None:
    counters = Counters()
    counters.note_error("WRONGTYPE Operation against a key")
    counters.note_error("WRONGTYPE again")
    for number in range(1000):
        counters.note_error(f"X{number} strange")
    assert counters.errors["WRONGTYPE"] == 2
    assert counters.error_replies == 1002
    assert len(counters.errors) == 128


def test_memory_of_this_process() -> None:
    memory = process_memory()
    assert 0 < memory.anonymous <= memory.resident <= memory.peak < system_memory()
