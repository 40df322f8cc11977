"""``SlicedWork``: long computations of an operator in steps, between which other tasks run.

Rule 1: Work is a generator. Each ``yield`` ends a step, which should take at most 10 ms.
Rule 2: Work is done in the order in which it was added. Its first step is done immediately if no other work waits.
Rule 3: While there is work, ``busy`` of the operator returns True, so its input waits, and ``drained`` returns False.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from tidelog.flows.api.operator import OperatorRuntime


class SlicedWork:
    """The work of one operator."""

    def __init__(self) -> None:
        self._waiting: deque[Iterator[None]] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, node: OperatorRuntime, work: Iterator[None]) -> None:
        if self._waiting:
            self._waiting.append(work)
        elif _unfinished(work):
            self._waiting.append(work)
            node.later(lambda: self._step(node))

    def _step(self, node: OperatorRuntime) -> None:
        if self._waiting and not _unfinished(self._waiting[0]):
            self._waiting.popleft()
        if self._waiting:
            node.later(lambda: self._step(node))
        else:
            node.wake()  # the input, or the drain, can continue

    def forget(self) -> None:
        self._waiting.clear()


def _unfinished(work: Iterator[None]) -> bool:
    """Do a step. Return whether others follow."""
    return next(work, False) is None
