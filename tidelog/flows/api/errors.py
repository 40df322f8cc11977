"""Errors of flows."""

from __future__ import annotations

from collections.abc import Sequence


class FlowError(Exception):
    """A flow can't be made or steered as asked. The text names the flow, the thing and the way out."""


class FlowFileError(FlowError):
    """Something in flow files or in a flow made in Python is wrong. ``problems``: all that was found, a line each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class RejectError(Exception):
    """Raised by operators and sinks: these events will never work. They go to the dead letters."""


class RetryError(Exception):
    """Raised by operators and sinks: these events may work another time.

    Any other exception of a sink means the same.
    """


class DisconnectedError(ConnectionError):
    """Raised by connectors: the peer is gone. Connect again, and give back what was under way."""


class PeerGoneError(Exception):
    """Raised by sinks: the peer is gone, and there is no way to get it back. The flow fails."""
