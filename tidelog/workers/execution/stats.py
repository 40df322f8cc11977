"""``Stats``: what one processor has done in one worker since it started."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Stats:
    """Counters. Nothing here is shared with another thread."""

    fetched: int = 0  # entries delivered to this worker, repetitions included
    repeated: int = 0  # of these, entries that were in hand already, and were dropped
    missing: int = 0  # nulls in the place of entries that were evicted before they were read
    finished: int = 0  # events that the processor is through with, without an error
    failed: int = 0  # attempts that ended with an error
    retried: int = 0  # of these, attempts that another one follows
    skipped: int = 0  # events given up: acknowledged, and nothing else
    deadlettered: int = 0
    parked: int = 0  # events held back with their key
    acknowledged: int = 0  # IDs that left with TACK or in a transaction
    returned: int = 0  # IDs given back by TNACK
    dropped: int = 0  # events in hand when their partition was lost
    transactions: int = 0  # commits of a transactional processor
    busy: int = 0  # calls of user code under way now

    @property
    def attempts(self) -> int:
        """Events that user code was called with, each attempt counted."""
        return self.finished + self.failed
