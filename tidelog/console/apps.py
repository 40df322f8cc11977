"""Apps: their declarations, status, timers, and rows. The data is that of ``tidelog app status``.

Rule 1: an app is known by the declaration that its workers write on the server. The console has no code of apps.
Rule 2: anybody with the right can write a declaration. READ and DECLARED limit what one costs the console, and a page
        shows what is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from tidelog.client.steps import CallSender, arun
from tidelog.console.errors import PageError
from tidelog.console.infotext import text
from tidelog.console.programs import REFUSED, SHOWN, Level, ProgramList, ProgramRow, some, unreadable
from tidelog.coordination import programs
from tidelog.operating.tables import counted
from tidelog.operating.throughput import Throughput
from tidelog.topics.settings import TopicError
from tidelog.workers import AppError
from tidelog.workers.coordination import declaration
from tidelog.workers.coordination.declaration import AppDeclaration
from tidelog.workers.coordination.member_document import MembersError
from tidelog.workers.operate import control, status
from tidelog.workers.operate.status import AppStatus, ProcessorStatus

PARTITIONS: Final = 64  # of a processor that a page shows: if there are more, those with the most unfinished entries
READ: Final = 4000  # partitions of an app that are read, of all processors together: these take 0.1 s of CPU time
DECLARED: Final = 100  # processors, and timers, of an app that are shown
ERRORS: Final = (AppError, MembersError, TopicError, programs.ProgramNamesError)  # of operations on apps


class AppReader:
    """Reads apps with one sender of calls. It remembers the last status of each app, to measure rates."""

    def __init__(self, sender: CallSender) -> None:
        self._sender = sender
        self._before: dict[str, AppStatus] = {}

    def continued(self, sender: CallSender) -> AppReader:
        """Return a reader with another sender that knows the same last status."""
        made = AppReader(sender)
        made._before = self._before
        return made

    async def names(self) -> list[str]:
        """Return the names of all apps that have run. Raises redis.ResponseError, ProgramNamesError."""
        return sorted((await arun(self._sender, programs.read())).apps)

    async def declaration(self, name: str) -> AppDeclaration:
        """Return the declaration of an app. Raises PageError if there is none."""
        found = await arun(self._sender, declaration.read(name))
        if found is None:
            raise PageError(404, f"There is no app {text(name)!r}: none of its workers has run on this server.")
        return found

    async def status(self, declared: AppDeclaration) -> tuple[AppStatus, dict[str, Throughput]]:
        """Return the status, and the rates since the last one by processor. READ and DECLARED limit it."""
        first = msgspec.structs.replace(declared, processors=declared.processors[:DECLARED])
        seen = await arun(self._sender, status.read_status(first, limit=READ))
        rates = status.throughput(self._before.get(seen.app), seen)
        self._before[seen.app] = seen
        return seen, rates

    async def rows(self) -> ProgramList:
        """Return the rows of all apps, at most SHOWN apps."""
        try:
            names = await self.names()
        except (*REFUSED, *ERRORS) as error:
            return ProgramList(problem=f"The apps can't be listed: {error}")
        found = await some(names[:SHOWN], self._rows)
        return ProgramList([row for rows in found for row in rows], total=len(names))

    async def _rows(self, name: str) -> Sequence[ProgramRow]:
        try:
            declared = await self.declaration(name)
            seen, rates = await self.status(declared)
        except PageError:  # the app was deleted
            return ()
        except (*REFUSED, *ERRORS) as error:
            return (unreadable("app", name, error),)
        if not seen.processors:
            return (ProgramRow("app", name, "", "running" if seen.leader else "no workers", "good"),)
        rows = [row_of(seen, each, rates[each.name]) for each in seen.processors]
        if more := len(declared.processors) - len(rows):
            reason = f"an app is shown with its first {counted(DECLARED, 'processor')}"
            rows.append(ProgramRow("app", name, "", f"{counted(more, 'more processor')}", "wait", (reason,)))
        return rows


def row_of(seen: AppStatus, processor: ProcessorStatus, rates: Throughput) -> ProgramRow:
    """Return the row of a processor."""
    partitions = processor.partitions
    state, level, reasons = _state(processor)
    if processor.omitted:
        total = counted(len(partitions) + processor.omitted, "partition")
        reasons.append(f"only the first {len(partitions):,} of {total} are read; tidelog app status shows all")
    unfinished = sum(each.unfinished for each in partitions) if partitions else None
    return ProgramRow(
        "app", seen.app, processor.name, state, level, tuple(reasons), unfinished,
        max((each.lag_ms for each in partitions), default=0), rates,
    )  # fmt: skip


def _state(processor: ProcessorStatus) -> tuple[str, Level, list[str]]:
    paused = {each.partition: each.paused for each in processor.partitions if each.paused is not None}
    parked = [key for each in processor.partitions for key in each.parked]
    reasons = []
    by_hand = True
    if processor.halted is not None:
        by_hand = processor.halted.get("worker") == control.WHO
        reasons.append(f"all partitions are paused: {why(processor.halted)}")
    for partition, details in list(paused.items())[:3]:
        by_hand = by_hand and details.get("worker") == control.WHO
        reasons.append(f"partition {partition} is paused: {why(details)}")
    if len(paused) > 3:
        reasons.append(f"{counted(len(paused) - 3, 'more partition')} paused")
    if parked:
        reasons.append(f"{counted(len(parked), 'parked key')}, such as {text(parked[0])}")
    alive = processor.alive or [each.owner for each in processor.partitions if each.owner]
    if not processor.partitions:
        return "no topic", "wait", ["the topic does not exist yet: nobody has sent records"]
    if not alive:
        waiting = any(each.unfinished for each in processor.partitions)
        return "no workers", "bad" if waiting else "wait", ["no worker runs this processor", *reasons]
    if processor.halted is not None:
        return ("paused", "wait", reasons) if by_hand else ("halted", "bad", reasons)
    if paused or parked:
        return "partly paused", "wait" if by_hand and not parked else "bad", reasons
    if processor.ordering != "none" and any(each.owner is None for each in processor.partitions):
        return "starting", "wait", ["partitions are being assigned"]
    return "running", "good", reasons


def why(details: object, what: str = "reason") -> str:
    """Return the reason of a pause."""
    found = details.get(what) if isinstance(details, dict) else None
    reason = str(found or "by hand")
    return text(reason if len(reason) <= 160 else f"{reason[:160]}…")
