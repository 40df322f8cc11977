"""The option ``start``."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime

import pytest

from tidelog.client.entries import SEQ_MAX, StreamId
from tidelog.options.start import EARLIEST, LATEST, StartPosition
from tidelog.options.structs import Problems, Struct, read


@pytest.mark.parametrize(
    ("value", "text", "after", "last_id"),
    [
        ("earliest", "earliest", StreamId(0, 0), "0.0"),
        ("latest", "latest", None, ""),
        ("1700000000000.7", "1700000000000.7", StreamId(1700000000000, 7), "1700000000000.7"),
        ("5-3", "5.3", StreamId(5, 3), "5.3"),
        (StreamId(5, 3), "5.3", StreamId(5, 3), "5.3"),
        ("1970-01-01T00:00:01Z", "1970-01-01T00:00:01Z", StreamId(999, SEQ_MAX), f"999.{SEQ_MAX}"),
        (datetime(1970, 1, 1, tzinfo=UTC), "1970-01-01T00:00:00+00:00", StreamId(0, 0), "0.0"),
    ],
)
def test_positions(value: object, text: str, after: StreamId | None, last_id: str) -> None:
    start = StartPosition(value)
    assert (str(start), start.after, start.last_id) == (text, after, last_id)
    for again in (StartPosition(start), StartPosition(text), pickle.loads(pickle.dumps(start))):
        assert (again, again.after) == (start, start.after)


@pytest.mark.parametrize("value", ["", "oldest", "2026-01-31T12:00:00", "1969-12-31T23:59:59Z", "1.2.3", 5, None, True])
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="start must be earliest, latest, an ID such as"):
        StartPosition(value)


class Options(Struct):
    start: StartPosition = EARLIEST


def test_as_an_option() -> None:
    problems = Problems()
    assert read(Options, {}, "flow", problems) == Options(start=EARLIEST)
    assert read(Options, {"start": "latest"}, "flow", problems) == Options(start=LATEST)
    assert not problems
    assert read(Options, {"start": "newest"}, "flow", problems) is None
    ((path, text),) = problems.found
    assert path == "flow.start"
    assert text.startswith("start must be earliest, latest, ")
