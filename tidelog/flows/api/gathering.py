"""``GatheredRelease``: releases events that operators store until more arrive, if an entity waits for exactly these.

This resolves a deadlock, for example if a batch is larger than ``max_unsettled`` of its source.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Set
from typing import Final, Protocol

from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.api.tokens import Token, TokenOwner
from tidelog.transport.backoff import Backoff, Delays

BACKOFF: Final = Backoff(first=0.05, most=1.0)  # between checks


class GatheringEntity(TokenOwner, Protocol):
    """The entity that waits: a source, or an operator that limits its events in flight."""

    name: str
    context: FlowContext

    def after(self, seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle: ...


class GatheredRelease:
    """The checks of one entity. They only run while it waits for settlements."""

    def __init__(
        self, entity: Callable[[], GatheringEntity], option: str, waits: Callable[[], object],
        stuck: Callable[[Mapping[int, Token]], Set[int]],
    ) -> None:  # fmt: skip
        self._entity = entity
        self._option = option  # the option that limits the events in flight
        self._waits = waits  # whether nothing is sent until events are settled
        self._stuck = stuck  # returns those of the gathered tokens, by id(), that are all that the entity waits for
        self._scheduled = False
        self._delays = Delays(BACKOFF)

    def watch(self) -> None:
        """Schedule a check if it may be necessary."""
        entity = self._entity()
        if not self._scheduled and entity.context.gatherers and self._waits():
            self._scheduled = True
            entity.after(self._delays.next(), self._check)

    def _check(self) -> None:
        self._scheduled = False
        entity = self._entity()
        stuck: Set[int] = frozenset()
        if self._waits():
            found = [(each, {id(token): token for token in each.gathered(entity)}) for each in entity.context.gatherers]
            tokens = {key: token for _, some in found for key, token in some.items() if token.pending > 0}
            stuck = self._stuck(tokens)
            for gatherer, some in found:
                if not stuck.isdisjoint(some):
                    gatherer.release(entity.name, self._option)
        if stuck or not self._waits():
            self._delays.reset()
        self.watch()
