"""Rates and dead letters, in the one form of all status commands."""

from __future__ import annotations

import pytest

from tidelog.operating.throughput import THROUGHPUT, Throughput, measured, rate


@pytest.mark.parametrize(("value", "text"), [(None, "-"), (0.0, "0"), (0.25, "0.2"), (9.96, "10.0"), (1234.5, "1,234")])
def test_rates_as_text(value: float | None, text: str) -> None:
    assert rate(value) == text


def test_a_counter_that_was_reset_has_no_rate() -> None:
    assert measured(10, 15, 500) == 10.0
    assert measured(15, 10, 500) is None
    assert measured(10, 15, 0) is None


def test_cells_details_and_json_are_of_the_same_values() -> None:
    found = Throughput(12.0, None, {"orders.dead": 1002, "clicks.dead": 0, "failures": 1})
    assert found.cells() == ["12", "-", "1,003"]
    details = {"in/s": "12", "out/s": "-", "dead letters": "1,002 in orders.dead, 1 in failures; see: tidelog dlq list"}
    assert found.pairs() == details
    assert tuple(details) == THROUGHPUT
    assert found.data() == {"in_rate": 12.0, "out_rate": None, "dead_letters": found.dead_letters}


def test_without_dead_letters_and_with_a_topic_that_cannot_be_read() -> None:
    assert Throughput().cells() == ["-", "-", "0"]
    assert Throughput().pairs()["dead letters"] == Throughput(dead_letters={"a.dead": 0}).pairs()["dead letters"] == "0"
    unknown = Throughput(dead_letters={"a.dead": None, "b.dead": 2})
    assert unknown.cells()[2] == "-"
    assert unknown.pairs()["dead letters"] == "? in a.dead, 2 in b.dead; see: tidelog dlq list"
