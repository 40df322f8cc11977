"""Lets the other group of a move link the history objects to which the moving streams refer [112].

The other group then gets references instead of entries that are only in these objects. Its helper process links them
below its own prefix (``persistence.tiering.linking``), on a connection of its own: an error has no effect on the move,
and the entries are sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from commands.admin.slotmap import MOST_OBJECTS
from coordinator.slotmap import MapGroup
from resp.errors import CorruptError
from respserver.config.conffile import ConfigError
from respserver.runtime.parts import RuntimeParts, ServerPart
from respserver.slotmaps.peer import GroupPeer, PeerError
from storage.keyspace.linking import NOT_LINKED, find_objects

SECONDS: Final = 300.0  # for which one request may take: a copy within a bucket has no other limit
PROBE: Final = 10.0  # seconds between two calls of ``alive``
SLICE: Final = 0.002  # seconds of the search before other clients have their turn


class ObjectLinking(ServerPart):
    """The links for one move at a time."""

    def __init__(self, parts: RuntimeParts) -> None:
        super().__init__(parts)
        self.objects = 0  # of the move: to which its streams refer
        self.linked = 0  # of the move: that the other group has

    async def link(
        self, move: str, moves: Callable[[bytes], bool], group: MapGroup, alive: Callable[[], None]
    ) -> Mapping[str, int]:
        """Return the objects that the other group has, with the epoch in the names that they have there.

        ``moves``: whether a key has one of the moving slots. ``alive``: called at least every PROBE seconds of waiting.
        It may raise an error that ends the move.
        """
        self.objects = self.linked = 0
        config = self._config
        if not config.tier_url or not config.tier_free or not self._data.ks.pool.tiered:
            return NOT_LINKED
        found: dict[str, int] = {}
        try:
            await self._find(find_objects(self._data.ks, moves, found))
        except (CorruptError, OSError) as error:
            self._note(error)
            return NOT_LINKED
        self.objects = len(found)
        linked: dict[str, int] = {}
        if not found:
            return linked
        peer: GroupPeer | None = None
        try:
            peer = await GroupPeer.open(group, config, min(config.repl_timeout, 30.0))
            objects = sorted(found.items())
            for first in range(0, len(objects), MOST_OBJECTS):
                some = objects[first : first + MOST_OBJECTS]
                words = [word for one in some for word in one]
                asked = peer.ask("TCLUSTER", "IMPORT", move, "LINK", config.tier_url, *words)
                async with asyncio.timeout(SECONDS):
                    while not (await asyncio.wait((asked,), timeout=PROBE))[0]:
                        alive()
                alive()
                _add(linked, some, asked.result())
                self.linked = len(linked)
        except (PeerError, ConfigError, OSError, ValueError) as error:  # TimeoutError is an OSError
            self._note(error)
        finally:
            if peer is not None:
                peer.close()
        self._logger.notice(f"{len(linked)} of {len(found)} history objects of the moving slots are linked")
        return linked

    async def _find(self, steps: Iterator[None]) -> None:
        began = self._loop.time()
        for _ in steps:
            if self._loop.time() - began > SLICE:
                await asyncio.sleep(0)
                began = self._loop.time()

    def _note(self, error: Exception) -> None:
        why = str(error) or f"no reply within {SECONDS:.0f} seconds"
        self._logger.notice(f"History objects of the moving slots can't be linked, so entries are sent: {why}")


def _add(linked: dict[str, int], some: list[tuple[str, int]], reply: str) -> None:
    """Add the objects that a reply confirms. Raises ValueError if it has another form."""
    _, epoch, flags = reply.split(" ")
    if len(flags) != len(some) or set(flags) - {"0", "1"}:
        raise ValueError(f"the other group replied {reply[:100]!r}")
    for (name, _), flag in zip(some, flags, strict=True):
        if flag == "1":
            linked[name] = int(epoch)
