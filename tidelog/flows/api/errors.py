"""Errors of flows."""

from __future__ import annotations

from collections.abc import Sequence


class FlowError(Exception):
    """An operation on a flow failed. The text names the flow, the object and the remedy."""


class FlowFileError(FlowError):
    """Flow files or the declaration of a flow in Python contain errors. ``problems``: all errors, one line each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class RejectError(Exception):
    """Raised by operators and sinks if events can never be processed. The events become dead letters."""


class RetryError(Exception):
    """Raised by operators and sinks if events can be processed later. Any other exception of a sink means the same.

    The source retries the event, even if the port ``err`` of the operator is connected: that port receives events for
    which another attempt would fail as well. Otherwise, an outage would divert all events to it.
    """


class DisconnectedError(ConnectionError):
    """Raised by connectors if the connection is lost. The runtime reconnects and returns the events in flight."""


class PeerGoneError(Exception):
    """Raised by sinks if the connection is lost and cannot be reopened. The flow fails."""
