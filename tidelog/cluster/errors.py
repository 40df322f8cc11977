"""The error of all modules of ``tidelog cluster``."""

from __future__ import annotations


class ClusterError(Exception):
    """The cluster, or the directory, does not allow the operation. The text names the remedy."""
