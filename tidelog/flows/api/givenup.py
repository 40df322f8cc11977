"""Logs events that will not be retried: at most one message for each entity and period ``EVERY``, with a count.

The first event is logged immediately. The events that follow within ``EVERY`` are reported in one message, with their
number and reasons.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

EVERY: Final = 10.0  # s between two messages of one entity
REASONS: Final = 3  # in a message
KNOWN: Final = 100  # reasons that are counted separately
EXCERPT: Final = 200  # characters of a value, or of a reason

log = logging.getLogger("tidelog.flows")


@dataclass
class _Since:
    """The events of one entity since its last message."""

    timer: asyncio.TimerHandle
    reasons: Counter[str] = field(default_factory=Counter)


class GivenUpLog:
    """The log of one instance of a flow."""

    def __init__(self, flow: str) -> None:
        self._flow = flow
        self._since: dict[str, _Since] = {}

    def add(self, name: str, reason: str, ident: Any = None, value: Any = None) -> None:
        """Add an event of the entity ``name``. The reason and the value are truncated in the log."""
        since = self._since.get(name)
        if since is None:
            shown = "" if value is None else f": {repr(value)[:EXCERPT]}"
            event = "an event" if ident is None else repr(ident)
            text = f"{event} is given up ({reason[:EXCERPT]}){shown}"
            self._say(name, text, 1, reason)
            self._since[name] = _Since(self._timer(name))
        else:
            short = reason[:EXCERPT]
            since.reasons[short if short in since.reasons or len(since.reasons) < KNOWN else "others"] += 1

    def _timer(self, name: str) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(EVERY, self._look, name)

    def _look(self, name: str) -> None:
        since = self._since[name]
        if since.reasons:
            self._sum(name, since)
            since.reasons.clear()
            since.timer = self._timer(name)
        else:
            del self._since[name]

    def _sum(self, name: str, since: _Since) -> None:
        count = since.reasons.total()
        most = since.reasons.most_common(REASONS)
        parts = [f"{reason or 'no reason'} ({number:,})" for reason, number in most]
        left = count - sum(number for _, number in most)
        if left:
            parts.append(f"other reasons ({left:,})")
        text = f"{count:,} more given up within {EVERY:g} s: {'; '.join(parts)}"
        self._say(name, text, count, most[0][0])

    def _say(self, name: str, text: str, count: int, reason: str) -> None:
        about = {"flow": self._flow, "entity": name, "given_up": count, "reason": reason}
        log.error("%s: %s: %s", self._flow, name, text, extra=about)

    def stop(self) -> None:
        """Log the remaining events, because the flow has ended."""
        for name, since in self._since.items():
            since.timer.cancel()
            if since.reasons:
                self._sum(name, since)
        self._since.clear()
