"""Texts for status displays."""

from __future__ import annotations

import pytest

from tidelog.operating.tables import counted, utc


@pytest.mark.parametrize(
    ("count", "what", "text"),
    [
        (1, "partition", "1 partition"), (0, "partition", "0 partitions"), (1000, "key", "1,000 keys"),
        (1, "entry", "1 entry"), (2, "pending entry", "2 pending entries"),
    ],
)  # fmt: skip
def test_nouns(count: int, what: str, text: str) -> None:
    assert counted(count, what) == text


def test_times() -> None:
    assert utc(1_700_000_000_000) == "2023-11-14 22:13:20 UTC"
    assert utc(1 << 60) == f"{1 << 60} ms"
