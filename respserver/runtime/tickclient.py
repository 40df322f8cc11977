"""The part of a client's connection that ticks use."""

from __future__ import annotations


class TickClient:
    """A client whose replies ticks release."""

    __slots__ = ("queued", "shows_data")

    def __init__(self) -> None:
        self.queued = False  # in a list of clients to flush
        self.shows_data = False  # with ``replica-acks``: its replies of this tick may show data

    def flush(self) -> None:
        """Send all queued replies, regardless of withheld ones."""
        raise NotImplementedError

    def check_output_limit(self) -> bool:
        """Close the client if too many of its replies wait. Returns whether it is closed."""
        raise NotImplementedError

    def run_backlog(self) -> None:
        raise NotImplementedError

    def cut(self, why: str) -> None:
        """Close immediately and log why."""
        raise NotImplementedError

    def kill(self) -> None:
        """Close immediately."""
        raise NotImplementedError

    # -- withheld replies (``runtime.withholding``) ------------------------------------------------------------
    def withhold(self, offset: int) -> bool:
        """Let the replies queued since the last call wait for log offset ``offset``, if they can show data or follow
        such a reply; send the others. Returns whether replies are withheld."""
        raise NotImplementedError

    def confirm(self, offset: int) -> None:
        """Send the withheld replies that wait for log offset ``offset`` or an earlier one."""
        raise NotImplementedError

    def withheld_bytes(self) -> int:
        """Return the size of the withheld replies; -1 if none is withheld. A streamed reply counts as 0."""
        raise NotImplementedError
