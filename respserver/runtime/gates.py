"""Gates: the current reasons to refuse or delay commands.

Rule 1: each gate has a method, called by the part that knows its state. The dispatcher only reads.
Rule 2: ``closed`` and ``reads_pass`` are computed from the gates. The dispatcher's fast path looks only at these two.
"""

from __future__ import annotations


class Gates:
    """The gates of one server. Initially, all are open."""

    __slots__ = (
        "closed", "held", "held_reads", "loading", "monitored", "no_data", "out_of_memory", "pause_writes_only",
        "paused", "reads_pass", "readonly", "redirects", "stale", "too_few", "unwritable",
    )  # fmt: skip

    def __init__(self) -> None:
        self.closed = False  # at least one gate is closed
        self.reads_pass = True  # no closed gate affects commands that do not write, as is usual on a replica
        self.unwritable = ""  # error line for commands that write, while the disk accepts no writes; otherwise empty
        self.out_of_memory = False  # maxmemory is reached; commands that add data are refused
        self.readonly = False  # this server is a replica
        self.redirects = False  # a replica of a cluster: it sends clients to the leader
        self.stale = False  # a replica without a link to its leader, and with replica-serve-stale-data no
        self.no_data = ""  # error line for commands that need data, of a group's member that has none; otherwise empty
        self.loading = False  # the data is being replaced
        self.too_few = False  # fewer good replicas than min-replicas-to-write
        self.held = False  # commands that write wait for a FAILOVER, or for replicas before shutdown
        self.held_reads = False  # commands that show data wait, too, while another member may become the leader
        self.paused = False  # by CLIENT PAUSE
        self.pause_writes_only = False
        self.monitored = False  # a client has sent MONITOR

    def disk(self, error: str) -> None:
        """Set the error line for commands that write; empty if the disk accepts writes."""
        self.unwritable = error
        self._update()

    def memory(self, full: bool) -> None:
        self.out_of_memory = full
        self._update()

    def role(self, readonly: bool, stale: bool, redirects: bool = False, no_data: str = "") -> None:
        self.readonly, self.stale, self.redirects, self.no_data = readonly, stale, redirects, no_data
        self._update()

    def load(self, loading: bool) -> None:
        self.loading = loading
        self._update()

    def replicas(self, too_few: bool) -> None:
        self.too_few = too_few
        self._update()

    def hold(self, hold: bool, reads: bool = False) -> None:
        self.held, self.held_reads = hold, hold and reads
        self._update()

    def pause(self, paused: bool, writes_only: bool) -> None:
        self.paused, self.pause_writes_only = paused, writes_only
        self._update()

    def monitors(self, active: bool) -> None:
        self.monitored = active
        self._update()

    def _update(self) -> None:
        refuses = self.stale or self.redirects or self.loading or bool(self.no_data)
        blocks_all = refuses or self.held or self.monitored or self.paused
        self.reads_pass = not blocks_all
        self.closed = blocks_all or self.readonly or self.too_few or self.out_of_memory or bool(self.unwritable)
