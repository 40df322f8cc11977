"""The commit protocol of a job that can be reset: its fence gets an epoch that does not follow the last one.

The driver is that of ``commits``. Some processes close the fence instead: they publish the epoch CLOSED, without
outputs. Another driver may decide its epoch just before, so the log has up to two markers that are not published yet.

Rule 7: whoever recovers publishes all markers of the log that may not be published, in order, before it drops stages.
Rule 8: the end of the fence has no stages, and no intent.
"""

from __future__ import annotations

import random
from typing import Final

from tests.simulation.commits import (
    HOME,
    LOG,
    NOTHING,
    Command,
    Commits,
    LostReplyError,
    Marker,
    Protocol,
    RepeatingDriver,
    SupersededError,
    checked,
)
from tests.simulation.world import SimulationError
from tidelog.client import calls

CLOSED: Final = 2**63 - 1


class ClosingDriver(RepeatingDriver):
    """A driver that ends when the fence is closed, or, at a probability of a fifth, a process that closes it."""

    def __init__(self, name: str, partitions: int, chosen: random.Random) -> None:
        super().__init__(name, partitions, chosen)
        self.closes = chosen.random() < 0.2

    def work(self, until: int) -> Protocol:
        while True:
            try:
                last = yield from self.recover()
                if last.end >= until:
                    return
                if self.closes:
                    self.runs += 1
                    yield from self.close(Marker(CLOSED, f"{self.name}.{self.runs}", until, {}))
                else:
                    yield from self.epoch(last, min(until, last.end + self.chosen.randint(1, 5)))
            except (SupersededError, LostReplyError):
                continue

    def close(self, marker: Marker) -> Protocol:
        yield from self.stage(marker, {})
        yield from self.decide(marker)

    def decide(self, marker: Marker) -> Protocol:
        yield from super(RepeatingDriver, self).decide(marker)  # the check is the run

    def recover(self) -> Protocol:
        found = yield from self.unpublished()
        for marker in found:
            yield from self.publish(marker)
        last = found[-1] if found else NOTHING
        yield from self.clean(last)
        return last

    def unpublished(self) -> Protocol:
        """Return the markers that may not be published. (The real log is trimmed; here, it is needed for checks.)"""
        (found,) = checked((yield [Command(HOME, calls.trevrange(LOG, count=2))]))
        return [Marker.read(entry) for entry in reversed(found)]


class PublishesOnlyTheLast(ClosingDriver):
    """Recovery publishes only the last marker of the log (Rule 7)."""

    def unpublished(self) -> Protocol:
        (found,) = checked((yield [Command(HOME, calls.trevrange(LOG, count=1))]))
        return [Marker.read(entry) for entry in found]


class IntendsToClose(ClosingDriver):
    """The end of the fence has an intent. If it is not decided, the intents behind it are not removed (Rule 8)."""

    def close(self, marker: Marker) -> Protocol:
        yield from self.commit(marker, {})


class ClosedCommits(Commits):
    """The fence may be closed at any time. ``closed``: whether it is."""

    closed = False

    def check(self, end: bool = False) -> None:
        markers = [Marker.read(entry) for entry in self._ask(HOME, calls.trange(LOG))]
        self.closed = bool(markers) and markers[-1].epoch == CLOSED
        regular = markers[:-1] if self.closed else markers
        if [marker.epoch for marker in regular] != list(range(1, len(regular) + 1)):
            raise SimulationError(f"the epochs of the log: {[marker.epoch for marker in markers]}")
        self.check_outputs(regular[-1].end if regular else 0, end)
