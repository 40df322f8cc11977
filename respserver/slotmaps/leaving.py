"""Notifies the clients of slots that have left this group.

As in Redis, blocked readers get MOVED, and subscribers of shard channels are unsubscribed. Transactions of clients that
watch keys in these slots fail, and clients that may have cached such keys are notified: from now on, the keys change at
another group.
"""

from __future__ import annotations

import asyncio
from typing import Final

from commands.session import SHARDS
from commands.slots import slot_of
from respserver.clients.pubsub import PubSub
from respserver.clients.tracking import Tracking
from respserver.execution.blocking import Blocking
from respserver.runtime.parts import RuntimeParts, ServerPart

AT_ONCE: Final = 10_000  # names that are examined before other clients have their turn, which takes a few milliseconds


class SlotDeparture(ServerPart):
    """Notifies clients."""

    def __init__(self, parts: RuntimeParts, blocking: Blocking, pubsub: PubSub, tracking: Tracking) -> None:
        super().__init__(parts)
        self._blocking = blocking
        self._pubsub = pubsub
        self._tracking = tracking

    async def left(self, gone: bytes) -> None:
        """Notify clients. ``gone``: a table that has a 1 for each slot."""
        self._blocking.redirect_slots()
        for names, notify in (
            (list(self._data.ks.watchers), self._touch),
            (self._tracking.remembered(), self._touch),
            (self._pubsub.names(SHARDS), self._pubsub.end_shard),
        ):
            for at in range(0, len(names), AT_ONCE):
                for name in names[at : at + AT_ONCE]:
                    if gone[slot_of(name)]:
                        notify(name)
                self._ticks.queue()
                await asyncio.sleep(0)

    def _touch(self, key: bytes) -> None:
        self._data.ks.touch_watchers(key)
