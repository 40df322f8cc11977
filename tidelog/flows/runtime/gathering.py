"""``GatheredRelease``: releases events that operators store until more arrive, if the source waits for exactly these.

This resolves a deadlock, for example if a batch is larger than ``max_unsettled`` of its source.
"""

from __future__ import annotations

from typing import Final

from tidelog.flows.api.flowcontext import Gatherer
from tidelog.flows.runtime.node import FlowNode
from tidelog.flows.runtime.sourcebreaker import SourceBreaker
from tidelog.flows.runtime.sourcewindow import SourceWindow

FIRST: Final = 0.05  # s until the first check; doubled each time, up to MOST
MOST: Final = 1.0  # s


class GatheredRelease:
    """The checks of one source. They only run while the source waits for settlements."""

    def __init__(self, node: FlowNode, window: SourceWindow, breaker: SourceBreaker) -> None:
        self._node = node
        self._window = window
        self._breaker = breaker
        self._delay = 0.0  # s until the next check; 0: no check is scheduled

    def watch(self, seconds: float = FIRST) -> None:
        """Schedule a check if it may be necessary."""
        if not self._delay and self._node.context.gatherers and self._window.waits:
            self._delay = seconds
            self._node.after(seconds, self._check)

    def _check(self) -> None:
        delay, self._delay = self._delay, 0.0
        if self._window.waits:
            found = [(each, self._gathered_by(each)) for each in self._node.context.gatherers]
            tokens_of_all = set().union(*(tokens for _, tokens in found))
            if not self._breaker.blocked and self._window.waits_only_for(tokens_of_all):
                for gatherer, tokens in found:
                    if tokens:
                        gatherer.release(self._node.name, "max_unsettled")
                delay = FIRST / 2
        self.watch(min(delay * 2, MOST))

    def _gathered_by(self, gatherer: Gatherer) -> set[int]:
        return {id(token) for token in gatherer.gathered(self._node)}
