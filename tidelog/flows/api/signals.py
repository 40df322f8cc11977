"""Messages other than events: signals forward, breaker messages back.

Forward: ``DRAIN`` is sent through the channels, in order with the events. After it, a source only sends retries. An
operator that has received it from all inputs flushes its buffer, stops buffering, and forwards the signal.

Back: ``Trigger`` and ``Restore`` of a reason are sent against the direction of all channels. Each has an increasing
version. On paths of different lengths, an old Trigger can arrive after its Restore; the version shows that it is
outdated.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple


class Signal(Enum):
    """A signal that is sent forward."""

    DRAIN = "drain"


class Trigger(NamedTuple):
    """Stop sending for this reason."""

    reason: str  # kind:owner, as in disconnected:search
    version: int
    detail: str = ""


class Restore(NamedTuple):
    """The reason no longer applies. Other reasons are not affected."""

    reason: str
    version: int
    probe: bool = False  # the reason ended after a delay and not because of a success: send one event first


STARTING: Final = "starting"
DISCONNECTED: Final = "disconnected"
PAUSED: Final = "paused"
API: Final = "api"  # the owner of PAUSED if the whole flow is paused, and not a single connector
WINDOW_FULL: Final = "window_full"
FAILED: Final = "failed"
CHANNEL_FULL: Final = "channel_full"
PROBING: Final = "probing"
