"""The errors of all modules of ``tidelog cluster``."""

from __future__ import annotations


class ClusterError(Exception):
    """The cluster, or the directory, does not allow the operation. The text names the remedy."""


class MoveInterruptedError(KeyboardInterrupt):
    """Ctrl-C during a move. The text says whether the slots have moved."""
