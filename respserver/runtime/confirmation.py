"""Decides when withheld replies may be released. Not compiled, because interpreted classes derive from it."""

from __future__ import annotations

from typing import Final

EVERYTHING: Final = 1 << 61  # a log offset that no log reaches


class Confirmation:
    """The interface to ``Ticks``. This base class withholds no replies."""

    def needed(self) -> bool:
        """Return whether replies wait at all. ``Ticks`` reads it only in confirmed_changed()."""
        return False

    def each(self) -> bool:
        """Return whether the replicas of this server acknowledge each tick, and learn what is confirmed."""
        return self.needed()

    def confirmed(self) -> int:
        """Return the log offset up to which replies may be released now; -1: none at all."""
        return EVERYTHING
