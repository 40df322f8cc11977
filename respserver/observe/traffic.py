"""Counters of bytes, chunks and commands. They are a separate module because it is compiled: every chunk updates
them."""

from __future__ import annotations


class Traffic:
    """Counts since startup or the last CONFIG RESETSTAT, without those of replicas and leaders."""

    __slots__ = ("bytes_in", "bytes_out", "commands", "reads", "writes")

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.reads = 0  # chunks received
        self.writes = 0  # chunks sent
        self.commands = 0  # commands that ran

    def reset(self) -> None:
        """Set all counts to zero (CONFIG RESETSTAT)."""
        self.bytes_in = self.bytes_out = self.reads = self.writes = self.commands = 0
