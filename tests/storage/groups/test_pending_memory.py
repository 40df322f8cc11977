"""The memory of a pending list: at most 150 bytes a message, and 50 for messages of consumers."""

from __future__ import annotations

import gc
import random
import tracemalloc

import pytest

from storage.groups.pending import PendingTable
from tests.storage.groups.pendingkit import (
    NOW,
    raws,
    sequence,
)


@pytest.mark.slow
def test_a_message_of_many_consumers_takes_little_memory() -> None:
    """Each delivered alone, to one of ten."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        table, chance = PendingTable(), random.Random(1)
        for i, entry in enumerate(sequence(60_000)):
            table.own_new(raws(entry), chance.randrange(1, 11), NOW + i, 1)
        took = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert took / len(table) <= 50
    assert 0.8 < table.memory_bytes() / took < 1.25  # the estimate is honest


@pytest.mark.slow
@pytest.mark.parametrize("how", ["sequential", "after random acks", "mixed retry times"])
def test_150_bytes_a_message(how: str) -> None:
    """The same as benchmarks/pending_memory.py, which asks the operating system too, with fewer messages."""
    rng = random.Random(how)
    order = sequence(30_000)
    rng.shuffle(order)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        table = PendingTable()
        for i, entry in enumerate(sequence(30_000)):
            retry = rng.choice((1000, 5000, 60_000)) if how == "mixed retry times" else 1000
            table.add(raws(entry), NOW + i, NOW + i + retry, NOW + i + 3_600_000, retry, 9, b"dead")
        if how == "after random acks":
            for entry in order[:15_000]:
                table.remove(raws(entry))
        took = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert took / len(table) <= 150
    assert 0.9 < table.memory_bytes() / took < 1.25  # the estimate is honest
