"""Gates: the reasons to refuse commands or to hold them back, as they are now.

Rule 1: each gate is set by the part that knows its state, with the method for it. The dispatcher only reads.
Rule 2: ``closed`` and ``reads_pass`` are computed from the gates. The dispatcher's fast path looks only at these two.
"""

from __future__ import annotations


class Gates:
    """The gates of one server. All open at first."""

    __slots__ = (
        "closed", "held", "loading", "monitored", "out_of_memory", "pause_until", "pause_writes_only", "reads_pass",
        "readonly", "stale", "too_few", "unwritable",
    )  # fmt: skip

    def __init__(self) -> None:
        self.closed = False  # at least one gate is closed
        self.reads_pass = True  # no closed gate concerns commands that don't write; on a replica this is usual
        self.unwritable = ""  # error line for commands that write, while the disk takes no writes; else empty
        self.out_of_memory = False  # maxmemory is reached: commands that add data are refused
        self.readonly = False  # this server is a replica
        self.stale = False  # a replica without a link to its leader, and with replica-serve-stale-data no
        self.loading = False  # the data is being replaced
        self.too_few = False  # fewer good replicas than min-replicas-to-write
        self.held = False  # commands that write wait: for a FAILOVER, or for replicas before the server's end
        self.pause_until = 0  # ms since epoch: the end of a CLIENT PAUSE; 0: none
        self.pause_writes_only = False
        self.monitored = False  # a client has sent MONITOR

    def disk(self, error: str) -> None:
        """``error``: the error line for commands that write; empty if the disk takes writes."""
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
        """``until_ms``: ms since epoch; 0 for no pause."""
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
