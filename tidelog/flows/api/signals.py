"""What travels besides events: signals forward, breaker messages back.

Forward, in the channels, in order with the events: ``DRAIN``, after which a source sends nothing but what it sends
again. An operator that has it from all its inputs flushes what it keeps, from then on keeps nothing, and passes it on.

Back, along all channels: ``Trigger`` and ``Restore`` of a reason. Each has a version, which grows: on two ways of
different length an old Trigger may come after its Restore, and is then known to be old.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple


class Signal(Enum):
    """Forward."""

    DRAIN = "drain"


class Trigger(NamedTuple):
    """Don't send, because of this reason."""

    reason: str  # kind:owner, as in disconnected:search
    version: int
    detail: str = ""


class Restore(NamedTuple):
    """This reason is gone. Nothing is said of others."""

    reason: str
    version: int
    probe: bool = False  # it ended by time, not because all is well: send one event first


STARTING: Final = "starting"
DISCONNECTED: Final = "disconnected"
PAUSED: Final = "paused"
API: Final = "api"  # the owner of that reason where the flow is paused, not a connector
WINDOW_FULL: Final = "window_full"
FAILED: Final = "failed"
CHANNEL_FULL: Final = "channel_full"
PROBING: Final = "probing"
