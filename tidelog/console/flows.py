"""Flows: their processes, status, groups, and rows. A flow is known if its process has a tidelog server.

Each process writes its status to its server every few seconds, and follows the desired state there. The console reads
and changes both, and does not connect to processes.

Rule: the desired state of a process can have megabytes. It is read again only if its digest has changed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from tidelog.client import strings
from tidelog.client.steps import CallSender, Steps, arun
from tidelog.console.errors import PageError
from tidelog.console.infotext import text
from tidelog.console.programs import REFUSED, SHOWN, Level, ProgramList, ProgramRow, some, unreadable
from tidelog.coordination import programs
from tidelog.flows.api.errors import FlowError
from tidelog.flows.service import flowstatus, streamgroups
from tidelog.flows.service.desired import DesiredDocument, decoded, key_of
from tidelog.flows.service.flowstatus import FlowProcessStatus, PublishedFlow
from tidelog.flows.service.streamgroups import GroupState
from tidelog.operating.tables import counted
from tidelog.operating.throughput import Throughput, measured

ERRORS: Final = (FlowError, programs.ProgramNamesError)  # of operations on flows
DEFAULT: Final = "default"  # name of a process without --name
ORDER: Final = ("failed", "initializing", "draining", "paused", "stopped", "drained", "running")  # from worst to best
CUT_OFF: Final = ("disconnected", "unreachable", "failed")  # reasons of a source that need a person


@dataclass(frozen=True)
class RunningIn:
    """A flow in one process."""

    process: FlowProcessStatus
    flow: PublishedFlow


@dataclass(frozen=True)
class FlowSeen:
    """A flow of a name, in all processes with this name."""

    name: str  # of the processes
    alias: str
    desired: str  # paused or running
    running: tuple[RunningIn, ...]  # empty: no process runs it
    groups: tuple[GroupState, ...]
    dead_letters: Mapping[str, int | None]

    @property
    def status(self) -> str:
        statuses = [each.flow.status for each in self.running]
        return min(statuses, key=lambda each: ORDER.index(each) if each in ORDER else 0, default="stopped")


class FlowReader:
    """Reads flows with one sender of calls. It remembers counters, to measure rates."""

    def __init__(self, sender: CallSender) -> None:
        self._sender = sender
        self._documents: dict[str, tuple[bytes, DesiredDocument]] = {}  # by name: its digest, and the document
        self._before: dict[tuple[str, str], tuple[int, int, int]] = {}  # by process and flow: time, in, out
        self._rates: dict[tuple[str, str], tuple[float | None, float | None]] = {}

    async def rows(self) -> ProgramList:
        """Return the rows of all flows of at most SHOWN process names."""
        try:
            names = sorted((await arun(self._sender, programs.read())).flows)
        except (*REFUSED, *ERRORS) as error:
            return ProgramList(problem=f"The flows can't be listed: {error}")
        found = await some(names[:SHOWN], self._rows)
        rows = [row for rows in found for row in rows]
        return ProgramList(rows[:SHOWN], total=len(rows) if len(names) <= SHOWN else len(names))

    async def _rows(self, name: str) -> Sequence[ProgramRow]:
        try:
            document, processes = await self.processes(name)
            aliases = self._aliases(document, processes)
            return [self.row_of(await self._seen(name, each, document, processes)) for each in aliases[:SHOWN]]
        except (*REFUSED, *ERRORS) as error:
            return (unreadable("flow", name, error),)

    async def seen(self, name: str, alias: str) -> FlowSeen:
        """Return a flow. Raises PageError if there is none, redis.ResponseError, ReplyError, FlowError."""
        document, processes = await self.processes(name)
        if alias not in self._aliases(document, processes):
            raise PageError(404, f"There is no flow {text(alias)!r} of the process {text(name)!r} on this server."
                                 " Flows of processes without a tidelog server are not shown.")  # fmt: skip
        return await self._seen(name, alias, document, processes)

    async def processes(self, name: str) -> tuple[DesiredDocument, list[FlowProcessStatus]]:
        """Return the desired state of a name, and the processes that live."""
        key, (known, document) = key_of(name), self._documents.get(name, (b"", DesiredDocument()))
        (digest,) = await self._sender.together(flowstatus.digest(key))
        if digest is not None and digest != known:
            (raw,) = await self._sender.together(strings.get(key))
            document = decoded(key, raw)
            self._documents[name] = (digest, document)
        elif digest is None:
            document = DesiredDocument()
        return document, await arun(self._sender, flowstatus.read(name, document.processes))

    def _aliases(self, document: DesiredDocument, processes: Sequence[FlowProcessStatus]) -> list[str]:
        published = {flow.alias for process in processes for flow in process.flows}
        return sorted({*document.sources, *document.deployed, *published})

    async def _seen(
        self, name: str, alias: str, document: DesiredDocument, processes: Sequence[FlowProcessStatus]
    ) -> FlowSeen:
        running = [RunningIn(each, flow) for each in processes for flow in each.flows if flow.alias == alias]
        sources = document.sources.get(alias, [])
        queues = {each.flow.dead_letters for each in running if each.flow.dead_letters}
        groups, letters = await arun(self._sender, _stored(sources, queues))
        desired = document.status(alias, alias) or "running"
        return FlowSeen(name, alias, desired, tuple(running), tuple(groups), letters)

    def row_of(self, seen: FlowSeen) -> ProgramRow:
        """Return the row of a flow."""
        status, reasons, level = seen.status, _reasons(seen), "good"
        if status == "failed":
            level = "bad"
        elif not seen.running:
            waits = any(each.lag for each in seen.groups)
            level = "bad" if waits and seen.desired == "running" else "wait"
            reasons = ["no process runs it"]
            if seen.desired == "paused":
                reasons.append("it is paused after the next start")
        elif any(each.partition(":")[0] in CUT_OFF for each in _kinds(seen)) or _has_errors(seen):
            level = "bad"
        elif status != "running":
            level = "wait"
        lag = sum(each.lag for each in seen.groups) if seen.groups else None
        age = max((each.lag_ms for each in seen.groups), default=0)
        oldest = min((each.flow.oldest for each in seen.running if each.flow.oldest), default=0)
        if oldest:
            age = max(age, int(time.time() * 1000) - oldest)
        named: Level = level  # type: ignore[assignment] # one of the three above
        rates = self.rates(seen)
        return ProgramRow(
            "flow", seen.alias, "", status, named, tuple(reasons), lag, age, Throughput(*rates, seen.dead_letters),
            seen.name,
        )  # fmt: skip

    def rates(self, seen: FlowSeen) -> tuple[float | None, float | None]:
        """Return the events per second that sources sent and sinks delivered, in all processes."""
        totals: list[list[float]] = [[], []]
        for each in seen.running:
            key = (each.process.process, seen.alias)
            came, went = each.flow.total("source", "out"), each.flow.total("sink", "ok")
            before = self._before.get(key)
            if before is None or before[0] != each.process.at:
                self._before[key] = (each.process.at, came or 0, went or 0)
                ms = each.process.at - before[0] if before is not None else 0
                self._rates[key] = (
                    measured(before[1], came, ms) if before is not None and came is not None else None,
                    measured(before[2], went, ms) if before is not None and went is not None else None,
                )
            for total, found in zip(totals, self._rates[key], strict=True):
                if found is not None:
                    total.append(found)
        return (sum(totals[0]) if totals[0] else None), (sum(totals[1]) if totals[1] else None)


def _stored(
    sources: Sequence[streamgroups.FlowSource], queues: set[str]
) -> Steps[tuple[list[GroupState], dict[str, int | None]]]:  # fmt: skip
    groups = yield from streamgroups.states(sources)
    letters = yield from streamgroups.dead_letters(
        [*sources, *[streamgroups.FlowSource("", "", dead_letters=each) for each in queues]]
    )
    return groups, letters


def _kinds(seen: FlowSeen) -> list[str]:
    return [one.reason for each in seen.running for source in each.flow.sources for one in source.reasons]


def _has_errors(seen: FlowSeen) -> bool:
    return any(
        one.error and one.connectivity != "connected" for each in seen.running for one in each.flow.connectors
    )  # fmt: skip


def _reasons(seen: FlowSeen) -> list[str]:
    found: dict[str, str] = {}
    for each in seen.running:
        if each.flow.error:
            found.setdefault("error", text(each.flow.error))
        for connector in each.flow.connectors:
            if connector.error and connector.connectivity != "connected":
                found.setdefault(connector.alias, text(f"{connector.alias} is not connected: {connector.error}"))
        for source in each.flow.sources:
            for one in source.reasons:
                found.setdefault(one.reason, text(f"{one.reason}: {one.detail}" if one.detail else one.reason))
    shown = list(found.values())
    return shown if len(shown) <= 3 else [*shown[:3], counted(len(shown) - 3, "more reason")]


def graph_of(running: RunningIn | None) -> dict[str, object] | None:
    """Return what the page draws, as JSON: the form of ``FlowGraph.show``. None if the process has not published it."""
    if running is None or running.flow.graph is None:
        return None
    flow = running.flow
    return {
        "at": running.process.at, "graph": msgspec.to_builtins(flow.graph), "where": dict(flow.where),
        "stored": dict(flow.stored),
        "connectors": [
            {"alias": each.alias, "status": each.status, "connectivity": each.connectivity}
            for each in flow.connectors
        ],
    }  # fmt: skip


