"""What stands against commands at the moment. The parts that know set it; the dispatcher only reads.

Rule 1: each part sets its own fields, through the method named for it. Rule 2: ``closed`` and ``reads_pass`` follow
from the others; they are what the dispatcher's short way looks at.
"""

from __future__ import annotations


class Gates:
    """One for the server."""

    __slots__ = (
        "closed", "held", "loading", "monitored", "out_of_memory", "pause_until", "pause_writes_only", "reads_pass",
        "readonly", "stale", "too_few", "unwritable",
    )  # fmt: skip

    def __init__(self) -> None:
        self.closed = False  # something stands against some commands
        self.reads_pass = True  # ... and against none that doesn't write: a replica's usual case
        self.unwritable = ""  # error line for commands that write, from the disk; empty: it takes writes
        self.out_of_memory = False  # maxmemory is reached: commands that may grow are refused
        self.readonly = False  # this is a replica
        self.stale = False  # a replica that does not hear its leader, and is not to show what it has
        self.loading = False  # the data is being replaced
        self.too_few = False  # fewer replicas are well than min-replicas-to-write
        self.held = False  # a FAILOVER is under way, or the end: what writes waits
        self.pause_until = 0  # ms since epoch: CLIENT PAUSE; 0: none
        self.pause_writes_only = False
        self.monitored = False  # somebody MONITORs

    def disk(self, error: str) -> None:
        """``error``: the error line for commands that write; empty: the disk takes writes."""
        self.unwritable = error
        self._update()

    def memory(self, full: bool) -> None:
        self.out_of_memory = full
        self._update()

    def role(self, readonly: bool, stale: bool) -> None:
        self.readonly, self.stale = readonly, stale
        self._update()

    def load(self, loading: bool) -> None:
        self.loading = loading
        self._update()

    def replicas(self, too_few: bool) -> None:
        self.too_few = too_few
        self._update()

    def hold(self, hold: bool) -> None:
        self.held = hold
        self._update()

    def pause(self, until_ms: int, writes_only: bool) -> None:
        """``until_ms`` 0: there is no pause."""
        self.pause_until, self.pause_writes_only = until_ms, writes_only
        self._update()

    def monitors(self, there_are: bool) -> None:
        self.monitored = there_are
        self._update()

    def _update(self) -> None:
        against_all = self.stale or self.loading or self.held or self.monitored or self.pause_until != 0
        self.reads_pass = not against_all
        self.closed = (
            against_all or self.readonly or self.too_few or self.out_of_memory or bool(self.unwritable)
        )
