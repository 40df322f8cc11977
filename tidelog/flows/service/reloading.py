"""Reads the flow files of a process again, and applies what has changed.

    a flow that is new                 is started
    a flow whose declaration changed   is drained and replaced; what was paused stays paused
    a flow with another number of instances   has the others started or drained (2 or more before and after)
    a flow that is not in the files    is drained and deleted; its desired state remains
    all others                         continue: their connections, windows and positions are not affected

Rule 1: Nothing changes if the files are not valid, if a new flow can't be built, or if the desired state can't be read.
Rule 2: Flows are compared by their declaration, with environment variables replaced. Flows from Python and from HTTP
        are not affected, but a file replaces a flow from HTTP that has the same name.
Rule 3: Changed flows are drained and replaced in parallel. An error of one does not affect the others.
Rule 4: There is one reload at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tidelog.flows.api.errors import FlowError, FlowFileError
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.runtime.graph import build
from tidelog.flows.runtime.runningflow import DrainReport
from tidelog.flows.service.host import BusyError, DeployedFlow, FlowHost
from tidelog.operating.errortexts import summary_of

log = logging.getLogger("tidelog.flows")


@dataclass
class ReloadReport:
    """The result of a reload: the names of flows, and the results of drains by instance."""

    started: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    rescaled: list[str] = field(default_factory=list)  # flows of which only the number of instances has changed
    removed: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # the reason by flow
    drained: dict[str, DrainReport] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether all changes are in effect and no event was abandoned."""
        return not self.failed and all(each.complete for each in self.drained.values())

    def __str__(self) -> str:
        lists = {name: getattr(self, name) for name in ("started", "replaced", "rescaled", "removed", "unchanged")}
        text = "; ".join(f"{name}: {', '.join(sorted(flows))}" for name, flows in lists.items() if flows)
        failed = "".join(f"; failed: {name}: {reason}" for name, reason in self.failed.items())
        return f"{text or 'there are no flows'}{failed}"


async def reload(host: FlowHost) -> ReloadReport:
    """Apply the files of a process. Raises FlowFileError, BusyError, or DesiredStateError if nothing was changed."""
    async with host.reload_turn:
        try:
            wanted = await _read(host)
        except FlowError as error:
            log.error("reload: nothing was changed: %s", error)
            raise
        report = await _apply(host, wanted)
        (log.info if report.complete else log.warning)("reload: %s", report)
        return report


async def _read(host: FlowHost) -> dict[str, DeployedFlow]:
    """Return the flows of the files by name, after all that can prevent a reload was checked."""
    if host.read_files is None:
        raise BusyError("there are no files to reload: the process was started without flow files")
    _check(host)
    async with host.reading:
        wanted = {each.name: each for each in await asyncio.to_thread(host.read_files)}
    _verify(host, list(wanted.values()))
    if host.desired is not None:
        await host.desired.read()  # raises before anything is drained
    _check(host)
    return wanted


async def _apply(host: FlowHost, wanted: Mapping[str, DeployedFlow]) -> ReloadReport:
    known = dict(host.flows)
    report = ReloadReport()
    steps: list[tuple[str, list[str], Coroutine[Any, Any, Mapping[str, DrainReport]]]] = []
    for name, new in wanted.items():
        old = known.get(name)
        if old is None:
            host.flows[name] = new  # first, so that the process does not end when the last of the others is removed
            steps.append((name, report.started, _start(host, new)))
        elif _same(old, new):
            report.unchanged.append(name)
        elif _same_instances(old, new):
            steps.append((name, report.rescaled, host.rescale(old, new)))
        else:
            steps.append((name, report.replaced, host.replace(old, new)))
    for name, old in known.items():
        if name not in wanted and old.by == "file":
            steps.append((name, report.removed, host.undeploy(name, forget=False)))
        elif name not in wanted:
            report.unchanged.append(name)
    results = await asyncio.gather(*(work for _, _, work in steps), return_exceptions=True)
    for (name, names, _), result in zip(steps, results, strict=True):
        if isinstance(result, BaseException):
            report.failed[name] = str(result) if isinstance(result, FlowError) else summary_of(result)
        else:
            names.append(name)
            report.drained.update(result)
    return report


async def _start(host: FlowHost, new: DeployedFlow) -> Mapping[str, DrainReport]:
    try:
        await host.add(new)
    except BaseException:
        if host.flows.get(new.name) is new and not new.instances:
            del host.flows[new.name]
        raise
    return {}


def _check(host: FlowHost) -> None:
    if host.problem or host.draining:
        raise BusyError(host.problem or "the process is stopping")


def _verify(host: FlowHost, flows: Sequence[DeployedFlow]) -> None:
    """Raise FlowFileError if a flow can't be built, or has the name of a flow from Python."""
    problems = []
    for each in flows:
        known = host.flows.get(each.name)
        if known is not None and known.by == "python":
            problems.append(f"{each.name}: there is already a flow with this name, from Python")
        elif known is None or not _same(known, each):
            try:
                build(each.spec, FlowContext(each.name, each.spec.server, queue=each.spec.queue))
            except Exception as error:  # noqa: BLE001 - constructors of connectors and operators can raise any
                problems.append(f"{each.name}: {summary_of(error)}")
    if problems:
        raise FlowFileError(problems)


def _same(old: DeployedFlow, new: DeployedFlow) -> bool:
    """Return whether a flow that is deployed has the declaration of another one."""
    return old.by == new.by and old.spec.server == new.spec.server and _text(old) == _text(new)


def _same_instances(old: DeployedFlow, new: DeployedFlow) -> bool:
    """Return whether two flows differ only in the number of instances, and all of them run under the same aliases.

    The only instance of a flow has another alias than the first one of several.
    """
    if old.by != new.by or old.spec.server != new.spec.server or min(len(old.instances), new.spec.instances) < 2:
        return False
    alike = _text(old, "instances") == _text(new, "instances")
    return alike and not any(each.ended for each in old.instances)


def _text(flow: DeployedFlow, *omitted: str) -> bytes:
    """Return a text that is equal for equal declarations, and in which true is not 1."""
    given = {name: each for name, each in (flow.given or {}).items() if name not in omitted}
    return msgspec.json.encode(given, order="deterministic")
