"""``Stats``: the counters of one processor in one worker."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.topics.groupreader import ReadCounts


@dataclass(slots=True)
class Stats(ReadCounts):
    """Counters since the start of the worker. They are not thread-safe."""

    finished: int = 0  # events that were processed without an error
    failed: int = 0  # attempts that ended with an error
    retried: int = 0  # of these, attempts that were followed by another one
    skipped: int = 0  # events that were given up and only acknowledged
    deadlettered: int = 0
    parked: int = 0  # events set aside because their key is parked
    acknowledged: int = 0  # IDs acknowledged by TACK or in a transaction
    returned: int = 0  # IDs returned by TNACK
    dropped: int = 0  # events in flight when their partition was lost
    transactions: int = 0  # commits of a transactional processor
    busy: int = 0  # calls of user code in progress

    @property
    def attempts(self) -> int:
        """Attempts that have ended."""
        return self.finished + self.failed
