"""The invariants of a run, and the record of the replies that clients received.

Rule 1: An entry that was acknowledged is there exactly once, in the order of IDs, until its deletion is sent.
Rule 2: No ID and no entry occurs twice.
Rule 3: An entry that a reader has seen, or that was acknowledged before a read began, is in each later read. The reads
        of a client are therefore monotonic.
Rule 4: A message whose acknowledgement was confirmed never comes again. Every other message comes again.
Rule 5: A transaction is never seen in part, on any member.
Rule 6: At the end, all members have the same digest.

If the leader may change, replication without confirmed replies promises only what WAIT or WAITAOF has confirmed. Rules
1 and 4 then hold for these facts, and Rule 3 is not checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

Fact = tuple[str, bytes]  # key and value of an entry; each value is sent once


class Ledger:
    """All facts of one run. ``lossless``: every confirmed fact is one that must hold."""

    def __init__(self, lossless: bool) -> None:
        self.lossless = lossless
        self.said: set[Fact] = set()  # confirmed entries
        self.promised: set[Fact] = set()  # confirmed by the replicas too
        self.sent: set[Fact] = set()
        self.removed: set[Fact] = set()  # entries whose deletion was sent
        self.deleted: set[Fact] = set()  # entries whose deletion was confirmed
        self.seen: dict[str, set[bytes]] = {}  # values that readers have seen, by key
        self.acking: set[bytes] = set()  # messages whose acknowledgement was sent
        self.acked: set[bytes] = set()  # messages whose acknowledgement was confirmed
        self.acked_for_good: set[bytes] = set()  # and by the replicas too
        self.delivered = 0
        self.reads = 0
        self.skew = 0.0  # ms by which the clock of a member may be wrong
        self.served_skew = 0.0  # ms by which served time of one member may be ahead of that of another
        self.delayed = self.repeated = self.cancelled = 0  # entries with TDELAY: seen in streams; tokens sent again

    @property
    def kept(self) -> set[Fact]:
        """The entries that must be there."""
        return (self.said if self.lossless else self.promised) - self.removed

    @property
    def done(self) -> set[bytes]:
        """The messages that must not come again."""
        return self.acked if self.lossless else self.acked_for_good

    def expected(self, key: str) -> set[bytes]:
        """Return what a read of the leader that begins now must show."""
        if not self.lossless:
            return set()
        written = {value for its_key, value in self.said if its_key == key}
        return written | self.seen.get(key, set())

    def check_read(self, key: str, rows: Sequence[Sequence[bytes]], expected: set[bytes]) -> None:
        """Check a read of the whole stream from the leader; ``expected`` when it began."""
        self.reads += 1
        values = check_rows(key, rows)
        present = set(values)
        missing = {value for value in expected - present if (key, value) not in self.removed}
        assert not missing, f"{key}: {len(missing)} entries are gone, such as {min(missing)!r}"
        unknown = {value for value in present if (key, value) not in self.sent}
        assert not unknown, f"{key}: entries that nobody has sent: {sorted(unknown)[:3]}"
        if self.lossless:
            self.seen.setdefault(key, set()).update(present)

    def check_end(self, rows: dict[str, Sequence[Sequence[bytes]]]) -> None:
        """Check the streams at the end, by key."""
        present = {(key, value) for key in rows for value in check_rows(key, rows[key])}
        missing = self.kept - present
        assert not missing, f"{len(missing)} of {len(self.kept)} confirmed entries are gone, such as {min(missing)}"
        if self.lossless:
            again = self.deleted & present
            assert not again, f"deleted entries are back, such as {min(again)}"
        unknown = present - self.sent
        assert not unknown, f"entries that nobody has sent, such as {min(unknown)}"


def check_rows(key: str, rows: Sequence[Sequence[bytes]]) -> list[bytes]:
    """Return the values of entries. AssertionError if IDs are not in order, or an ID or an entry occurs twice."""
    ids = [number(row[0]) for row in rows]
    assert all(one < other for one, other in pairwise(ids)), f"{key}: IDs are not in order"
    values = [row[2] for row in rows]
    assert len(set(values)) == len(values), f"{key}: an entry is there twice"
    return values


@lru_cache(maxsize=1 << 14)  # readers see the same IDs again and again
def number(entry_id: bytes) -> tuple[int, int]:
    time, _, rest = entry_id.replace(b"-", b".").partition(b".")
    return int(time), int(rest)
