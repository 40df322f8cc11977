"""Deletes the keys of slots that have left this group, or whose copy to this group was aborted.

Rule 1: keys are deleted in slices, through the log. A slice takes a few milliseconds, and at most a third of the time.
Stages are searched in such slices, too.
Fences remain: they are small, and a later owner never lowers one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from commands.slots import slot_of
from respserver.runtime.parts import ServerPart
from storage.keyspace import stagemutators
from storage.keyspace.keyspace import Keyspace

NAMES: Final = 200  # that are examined before the time is checked
SLICE: Final = 0.003  # seconds
PAUSE: Final = 2.0  # slices
WAIT: Final = 0.1  # seconds until the next attempt, while the disk or the group accepts no writes


async def staged_in(ks: Keyspace, slots: bytes) -> list[bytes]:
    """Return the stages with some slots, or with entries for keys in them. Other clients are served meanwhile, and may
    create others."""
    loop, found = asyncio.get_running_loop(), []
    began = loop.time()
    for name in list(ks.stages.by_name):
        if is_staged(ks, name, slots):
            found.append(name)
        if loop.time() - began > SLICE:
            await asyncio.sleep(PAUSE * SLICE)
            began = loop.time()
    return [name for name in found if name in ks.stages.by_name]


def is_staged(ks: Keyspace, name: bytes, slots: bytes) -> bool:
    """Return whether a stage exists, and has some slots, or entries for keys in them."""
    stage = ks.stages.by_name.get(name)
    return stage is not None and bool(
        slots[slot_of(name)] or any(slots[slot_of(piece.key)] for piece in stage.pieces)
    )


class SlotCleaning(ServerPart):
    """Deletes keys, while this member leads."""

    async def clean(self, slots: bytes, leads: Callable[[], bool]) -> int | None:
        """Delete all keys and stages that have these slots. Return the number of keys; None if this member does not
        lead any more. ``slots``: a table that has a 1 for each of them."""
        ks, cursor, begun, count = self._data.ks, 0, False, 0
        while cursor or not begun:
            if not leads() or ks is not self._data.ks:
                return None
            if not self._ticks.writable or self._gates.held or self._gates.paused:
                await asyncio.sleep(WAIT)
                continue
            began = self._loop.time()
            while (cursor or not begun) and self._loop.time() - began <= SLICE:
                begun = True
                cursor, names = ks.index.page(cursor, NAMES)
                for name in names:
                    if slots[slot_of(name)] and ks.remove(name):
                        count += 1
            self._ticks.queue()
            await asyncio.sleep(PAUSE * (self._loop.time() - began))
        staged = await staged_in(ks, slots)
        if staged and leads() and ks is self._data.ks:
            stagemutators.unstage(ks, staged)
            self._ticks.queue()
        return count if leads() and ks is self._data.ks else None
