"""Rules of the commit protocol that are broken on purpose (``commits``), each with a seed that detects it."""

from __future__ import annotations

from typing import Any, Final

from tests.simulation.commits import (
    FENCE,
    HOME,
    LOG,
    Command,
    Commits,
    Driver,
    LostReplyError,
    Marker,
    Protocol,
    RepeatingDriver,
    checked,
)
from tidelog.client import calls
from tidelog.transport.call import Call


class PublishesFirst(Driver):
    """The outputs are published before the marker (Rule 2)."""

    def decide(self, marker: Marker) -> Protocol:
        yield from super().publish(marker)
        yield from super().decide(marker)


class IgnoresTheFence(Driver):
    """A driver publishes its outputs although another run has decided the epoch (Rule 1)."""

    def decide(self, marker: Marker) -> Protocol:
        publish = calls.tpublish(FENCE, marker.epoch, f"marker:{marker.run}", check=marker.run)
        yield [Command(HOME, publish)]


class HasNoCheck(Driver):
    """Epochs are published without the run as their check, so a second run takes the epoch for its own (Rule 1)."""

    def decide(self, marker: Marker) -> Protocol:
        checked((yield [Command(HOME, calls.tpublish(FENCE, marker.epoch, f"marker:{marker.run}"))]))


class Aborts(Driver):
    """Recovery drops the stages of the last decided epoch instead of publishing them (Rule 2)."""

    def recover(self) -> Protocol:
        last = yield from self.last()
        yield from self.clean(last)
        return last


class LeavesEpochsOpen(Driver):
    """A driver begins the next epoch although the last one is not published everywhere (Rule 2)."""

    def recover(self) -> Protocol:
        return (yield from self.last())


class DropsBeforePublishing(Driver):
    """Recovery drops stages before it publishes what the marker names (Rule 3)."""

    def recover(self) -> Protocol:
        last = yield from self.last()
        yield from self.clean(last)
        yield from self.publish(last)
        return last


class DropsUndecided(Driver):
    """Recovery also drops the stages of epochs that are not decided: their run may still decide them (Rule 3)."""

    def clean(self, last: Marker) -> Protocol:
        yield from super().clean(Marker(last.epoch + 1, last.run, last.end, last.stages))


class StagesExpire(Driver):
    """Stages have a time to live when their epoch is decided (Rule 3)."""

    def keep(self, marker: Marker) -> Protocol:
        yield []


class StagesNeverExpire(Driver):
    """Stages have no time to live at first, so those of a driver that another one has overtaken remain (Rule 5)."""

    def staging(self, stage: str, key: str, rows: list[list[Any]]) -> Call[int]:
        return calls.tstage(stage, 0, key, ["m"], rows)

    def keep(self, marker: Marker) -> Protocol:
        yield []


class KeepsDecided(Driver):
    """Stages lose their time to live although another run may have decided the epoch (Rule 5)."""

    def look(self, marker: Marker) -> Protocol:
        yield []


class LooksTooEarly(Driver):
    """The fence is read before the rows are staged (Rule 5)."""

    def begin(self, marker: Marker) -> Protocol:
        yield from super().begin(marker)
        yield from super().look(marker)

    def look(self, marker: Marker) -> Protocol:
        yield []


class DoesNotCount(Driver):
    """A stage that has expired between two commands is published with the rows of the second one (Rule 3)."""

    def counted(self, commands: list[Command], totals: list[int], rows: dict[int, list[int]], part: int) -> None:
        pass


class ReusesNames(Driver):
    """A stage is named after its epoch, so a run finds the rows of another one in it (Rule 4)."""

    def begin(self, marker: Marker) -> Protocol:
        marker.stages.update({at: f"stage:{marker.epoch}:{at}" for at in marker.stages})
        yield from super().begin(marker)


class RepeatsStaging(Driver):
    """Rows are staged again, under the same name, if there was no reply (Rule 4)."""

    def stage(self, marker: Marker, rows: dict[int, list[int]]) -> Protocol:
        for at, numbers in rows.items():
            staging = Command(at, self.staging(marker.stages[at], "out", [[number] for number in numbers]))
            (reply,) = yield [staging]
            while isinstance(reply, Exception):
                (reply,) = yield [staging]
        checked((yield [Command(HOME, self.staging(f"marker:{marker.run}", LOG, [[marker.written()]]))]))


class TrustsTheCheck(RepeatingDriver):
    """A run takes an epoch with the same content for its own, though another run may have decided it (Rule 2)."""

    def last(self) -> Protocol:
        if self.deciding is None:
            return (yield from super().last())
        yield []
        return self.deciding

    deciding: Marker | None = None

    def decide(self, marker: Marker) -> Protocol:
        self.deciding = marker
        try:
            yield from super().decide(marker)
        finally:
            self.deciding = None


class DropsInDoubt(Driver):
    """A driver drops its stages if there was no reply to the decision, which may have been executed (Rule 3)."""

    def decide(self, marker: Marker) -> Protocol:
        try:
            yield from super().decide(marker)
        except LostReplyError:
            yield [Command(at, calls.tdrop(name)) for at, name in marker.stages.items()]
            raise


class FencesStay(Commits):
    """The fence of a partition does not move with its slot (Rule 6)."""

    def moved(self, slot: int) -> None:
        if slot != HOME:
            self.slots[slot].ks.stages.fences.clear()
            self.slots[slot].ks.stages.checks.clear()


#: The broken rule, and a seed that detects it.
SEEDS: Final[dict[type[Driver] | type[Commits], int]] = {
    PublishesFirst: 0, IgnoresTheFence: 0, HasNoCheck: 0, Aborts: 0, LeavesEpochsOpen: 0, DropsBeforePublishing: 0,
    DropsUndecided: 0, StagesExpire: 4, StagesNeverExpire: 5, KeepsDecided: 7, LooksTooEarly: 76, DoesNotCount: 16,
    ReusesNames: 0, RepeatsStaging: 0, TrustsTheCheck: 0, DropsInDoubt: 0, FencesStay: 0,
}  # fmt: skip
