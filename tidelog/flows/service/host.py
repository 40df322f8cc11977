"""``FlowHost``: the flows of one process by name: deployment, replacement, pausing, draining.

The instances of a flow ``orders`` have the aliases ``orders.1``, ``orders.2``, and so on. The name refers to all of
them.

Rule 1: The operations on a flow are executed one after another. Other flows are not affected.
Rule 2: A failure in one flow does not affect another one.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal, TypeAlias

from tidelog.flows.api.errors import FlowError, FlowFileError
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.connectors.tidelog.deadletters import DeadLetterQueue
from tidelog.flows.files import no_server, read_flow
from tidelog.flows.runtime.runningflow import DrainReport, RunningFlow
from tidelog.flows.service.desired import Desired, DesiredDocument, DesiredStateError
from tidelog.flows.service.streamgroups import sources_of
from tidelog.flows.service.warnings import RecentWarnings
from tidelog.flows.service.watchdog import Watchdog
from tidelog.flows.spec import FlowSpec
from tidelog.options.structs import Problems
from tidelog.transport.errors import DeniedError

log = logging.getLogger("tidelog.flows")

AGAIN: Final = 2.0  # s between attempts to read the desired state
FLOWS: Final = 200  # maximum number of flows in a process that were deployed over HTTP
INSTANCES: Final = 64  # maximum number of instances of such a flow

ORDER: Final = ("failed", "initializing", "draining", "paused", "stopped", "drained", "running")  # from worst to best

By: TypeAlias = Literal["file", "python", "api"]


class NoFlowError(FlowError):
    """There is no flow, instance or connector with this name."""


class BusyError(FlowError):
    """The operation is not possible now: the flow exists already, or has ended."""


def worst(statuses: Iterable[str]) -> str:
    """Return the status of several instances together."""
    return min(statuses, key=ORDER.index, default="initializing")


def _changed(deployed: DeployedFlow, before: DesiredDocument, now: DesiredDocument) -> bool:
    """Return whether the desired status of an instance or of one of its connectors differs."""
    name = deployed.name
    return any(
        before.status(name, alias) != now.status(name, alias)
        or before.connectors(name, alias) != now.connectors(name, alias)
        for alias in deployed.aliases
    )


async def _apply(running: RunningFlow, before: DesiredDocument, now: DesiredDocument) -> None:
    """Apply what has changed: a source that ``on_error`` has paused stays paused."""
    name, alias = running.spec.name, running.alias
    wanted = now.status(name, alias)
    if wanted is not None and wanted != before.status(name, alias):
        await (running.pause if wanted == "paused" else running.resume)(None)
    known = before.connectors(name, alias)
    for connector, status in now.connectors(name, alias).items():
        if connector in running.graph.connectors and status != known.get(connector):
            await (running.pause if status == "paused" else running.resume)(connector)


class DeployedFlow:
    """A flow and its instances."""

    def __init__(self, spec: FlowSpec, by: By, given: dict[str, Any] | None = None) -> None:
        self.name = spec.name
        self.spec = spec
        self.by = by
        self.given = given  # the flow as it was declared; None: in Python
        self.instances: list[RunningFlow] = []
        self.reports: dict[str, DrainReport] = {}  # of drained instances
        self.lock = asyncio.Lock()
        self.replacing = False  # another flow replaces it as soon as it is drained
        self.watchers: list[asyncio.Task[None]] = []
        self.letters: list[DeadLetterQueue] = []  # the dead-letter queues of the instances

    @property
    def aliases(self) -> list[str]:
        count = self.spec.instances
        return [self.name] if count == 1 else [f"{self.name}.{number}" for number in range(1, count + 1)]

    @property
    def status(self) -> str:
        return worst(each.status for each in self.instances)

    @property
    def ended(self) -> bool:
        return bool(self.instances) and not self.replacing and all(each.ended for each in self.instances)

    def end(self) -> None:
        """Release the tasks and dead-letter queues of its instances, which have ended or are about to."""
        for task in self.watchers:
            task.cancel()
        for letters in self.letters:
            letters.close()

    def chosen(self, alias: str) -> list[RunningFlow]:
        return [each for each in self.instances if alias in (self.name, each.alias)]


class FlowHost:
    """Runs flows: ``host = FlowHost(server); await host.start([DeployedFlow(flow.spec(), "python")])``."""

    def __init__(self, server: str | None = None, name: str = "default", *, local: bool = False) -> None:
        """Raises FlowError if the server's URL is invalid."""
        if server is not None and (wrong := no_server(server)):
            raise FlowError(wrong)
        self.server = server
        self.name = name
        self.local = local  # whether flows deployed over HTTP can use Python functions and local files
        self.flows: dict[str, DeployedFlow] = {}
        self.shared: dict[str, Any] = {}  # shared by connectors of all flows
        self.watchdog = Watchdog()  # of the process, if it was started
        self.warnings = RecentWarnings()  # the same
        self.started_with = DesiredDocument()  # the desired state that was in effect at the start
        self.problem = "the stored flows are not known yet"  # why nothing can be deployed yet
        self.draining = False
        self.desired = None if server is None else Desired(server, name)
        self.reading = asyncio.Lock()  # held while flows from HTTP or from files are parsed in a thread
        self.read_files: Callable[[], Sequence[DeployedFlow]] | None = None
        # Reads the flow files again; raises FlowFileError. None: the flows were not read from files.
        self.reload_turn = asyncio.Lock()  # held during a reload
        self._changed = asyncio.Event()
        self._deleting = 0  # the number of flows that are being deleted

    # -- begin -----------------------------------------------------------------------------------------------
    async def start(self, flows: Sequence[DeployedFlow]) -> None:
        """Start these flows, and those that were deployed over HTTP before. Waits until the desired state is known."""
        for each in flows:
            self.flows[each.name] = each
        kept = self.started_with = await self._kept()
        for name, given in kept.deployed.items():
            if name in self.flows:
                log.warning("%s: is declared in a file now; the declaration from HTTP is not used", name)
                continue
            try:
                self.flows[name] = DeployedFlow(self.read(name, given), "api", given)
            except FlowFileError as error:
                log.error("%s: the stored declaration from HTTP is not valid any more: %s", name, error)
        self.problem = ""
        for each in list(self.flows.values()):
            async with each.lock:
                if each.name in self.flows and not each.instances and not self.draining:
                    await self._begin(each, kept)

    async def _kept(self) -> DesiredDocument:
        if self.desired is None:
            return DesiredDocument()
        while True:
            try:
                kept = await self.desired.read()
            except DeniedError as error:
                raise FlowError(f"the server replied: {error}") from None
            except DesiredStateError as error:
                if self.problem != str(error):
                    log.warning("no flow is started yet: %s", error)
                self.problem = str(error)
                await asyncio.sleep(AGAIN)
            else:
                return kept

    async def _begin(self, deployed: DeployedFlow, kept: DesiredDocument) -> None:
        deployed.instances = [await self._built(deployed, alias, kept) for alias in deployed.aliases]
        deployed.reports = {}
        await self._begin_instances(deployed, deployed.instances)

    async def _built(self, deployed: DeployedFlow, alias: str, kept: DesiredDocument) -> RunningFlow:
        """Build an instance with its desired state, without starting it."""
        spec = deployed.spec
        wanted = kept.status(spec.name, alias)
        paused = spec.paused if wanted is None else wanted == "paused"
        context = FlowContext(alias, spec.server, debug=spec.debug, queue=spec.queue, shared=self.shared)
        if spec.server is not None:
            letters = DeadLetterQueue(alias, spec.server)
            context.dead_letters = letters
            deployed.letters.append(letters)
        running = RunningFlow(dataclasses.replace(spec, paused=paused), context)
        for connector, status in kept.connectors(spec.name, alias).items():
            if connector in running.graph.connectors:
                await (running.pause if status == "paused" else running.resume)(connector)
        return running

    async def _begin_instances(self, deployed: DeployedFlow, made: Sequence[RunningFlow]) -> None:
        watching = [each for each in deployed.watchers if not each.done()]
        new = [asyncio.create_task(self._watch(each), name=f"{each.alias}/watch") for each in made]
        deployed.watchers = watching + new
        for each in made:
            await each.start()
        await self._record_sources(deployed.spec)
        log.info("%s: started, %s", deployed.name, ", ".join(f"{each.alias} is {each.status}" for each in made))

    async def _record_sources(self, spec: FlowSpec) -> None:
        """Store the sources of a flow on the server, so that their groups are known while no process runs."""
        if self.desired is None:
            return
        try:
            await self.desired.change(lambda document: document.sources.update({spec.name: sources_of(spec)}))
        except DesiredStateError as error:
            log.warning("%s: its sources were not recorded: %s", spec.name, error)

    async def _watch(self, running: RunningFlow) -> None:
        """Stop an instance when all its sources have ended."""
        await running.finished()
        if not running.ended and running.status != "draining":
            log.info("%s: finished", running.alias)
            await running.stop("drained")
        self._changed.set()

    # -- deploy, replace, undeploy ---------------------------------------------------------------------------
    def read(self, name: str, given: Any) -> FlowSpec:
        """Parse a flow from HTTP. Raises FlowFileError with all errors."""
        problems = Problems()
        spec = read_flow(name, given, name, self.server, problems, outside=self.local)
        if spec is not None and spec.instances > INSTANCES:
            problems.add(f"{name}.instances", f"{spec.instances}: {INSTANCES} instances are the maximum over HTTP")
        if problems or spec is None:
            raise FlowFileError([f"{path}: {text}" for path, text in problems.found])
        return spec

    async def deploy(
        self, name: str, given: dict[str, Any], *, replace: bool = False, spec: FlowSpec | None = None
    ) -> tuple[DeployedFlow, dict[str, DrainReport]]:
        """Deploy a flow from HTTP. ``replace``: drain and replace the flow with this name. ``spec``: the result of
        ``read``.

        Raises FlowFileError if it is invalid, or BusyError if it exists and is not to be replaced, or there are too
        many.
        """
        spec = spec or self.read(name, given)
        if self.problem or self.draining:
            raise BusyError(self.problem or "the process is stopping")
        old = self.flows.get(name)
        if old is None:
            if sum(each.by == "api" for each in self.flows.values()) >= FLOWS:
                raise BusyError(f"{FLOWS} flows were deployed over HTTP: this is the maximum")
            new = self.flows[name] = DeployedFlow(spec, "api", given)
            async with new.lock:
                await self._put(new, DesiredDocument())
            return new, {}
        if not replace:
            raise BusyError(f"there is already a flow {name!r}: PUT replaces it")
        new = DeployedFlow(spec, old.by, given)
        return new, await self.replace(old, new)

    async def replace(self, old: DeployedFlow, new: DeployedFlow) -> dict[str, DrainReport]:
        """Drain a flow, and start another one with its name and its desired state.

        Raises BusyError if it was replaced or deleted meanwhile, or if the process is stopping.
        """
        async with old.lock:
            if self.flows.get(old.name) is not old:
                raise BusyError(f"the flow {old.name!r} was replaced or deleted meanwhile")
            kept = await self._current_state(old)
            reports = await self._drain_replaced(old)
            async with new.lock:
                self.flows[new.name] = new
                await self._put(new, kept)
        return reports

    async def rescale(self, deployed: DeployedFlow, new: DeployedFlow) -> dict[str, DrainReport]:
        """Change the number of instances to that of ``new``, from 2 or more to 2 or more. The others continue.

        Raises BusyError if the flow was replaced or deleted meanwhile, or if the process is stopping.
        """
        async with deployed.lock:
            if self.draining or self.flows.get(deployed.name) is not deployed:
                raise BusyError(f"the flow {deployed.name!r} was replaced or deleted meanwhile")
            kept = await self._current_state(deployed)
            count = new.spec.instances
            left, surplus = deployed.instances[:count], deployed.instances[count:]
            reports = await asyncio.gather(*(each.drain(None) for each in surplus))
            for letters in deployed.letters[count:]:
                letters.close()
            del deployed.letters[count:]
            deployed.spec, deployed.given = new.spec, new.given
            more = [await self._built(deployed, alias, kept) for alias in new.aliases[len(left) :]]
            deployed.instances = [*left, *more]
            await self._begin_instances(deployed, more)
        return {each.alias: report for each, report in zip(surplus, reports, strict=True)}

    async def add(self, new: DeployedFlow) -> None:
        """Start a flow that is in ``flows`` and has not been started. Raises BusyError if the process is stopping."""
        async with new.lock:
            if self.draining:
                raise BusyError(f"the process is stopping: {new.name!r} was not started")
            await self._put(new, DesiredDocument() if self.desired is None else await self.desired.read())

    async def _drain_replaced(self, old: DeployedFlow) -> dict[str, DrainReport]:
        """Drain a flow that is being replaced. Raises BusyError if the process is stopped meanwhile."""
        old.replacing = True
        try:
            reports = await self._drained(old, None)
        finally:
            old.replacing = False
        if self.draining:
            self._changed.set()
            raise BusyError(f"the process is stopping: {old.name!r} was drained and not replaced")
        return reports

    async def _current_state(self, old: DeployedFlow) -> DesiredDocument:
        """Return the desired state of a flow's instances, for those that replace them."""
        kept = DesiredDocument()
        for each in old.instances:
            kept.set(old.name, each.alias, "paused" if each.paused else "running")
        if old.instances and all(each.paused for each in old.instances):
            kept.set(old.name, old.name, "paused")
        if self.desired is not None:
            found = await self.desired.read()
            for alias, wanted in found.wanted.items():
                for connector, status in wanted.connectors.items():
                    kept.set(old.name, alias, status, connector)
        return kept

    async def _put(self, new: DeployedFlow, kept: DesiredDocument) -> None:
        try:
            await self._begin(new, kept)
        except Exception:
            self.flows.pop(new.name, None)
            raise
        given = new.given
        if self.desired is not None and new.by == "api" and given is not None:
            await self.desired.change(lambda kept: kept.deployed.update({new.name: given}))

    async def undeploy(
        self, name: str, seconds: float | None = None, *, forget: bool = True
    ) -> dict[str, DrainReport]:
        """Drain and delete a flow, and its desired state if ``forget`` is set. Raises NoFlowError."""
        deployed = self.find(name)
        if name != deployed.name:
            raise BusyError(f"{name!r} is an instance of {deployed.name!r}: only the whole flow can be deleted")
        async with deployed.lock:
            if self.flows.get(name) is not deployed:
                raise NoFlowError(f"there is no flow {name!r} any more")
            self._deleting += 1  # the process does not end before the desired state is stored
            try:
                reports = await self._drained(deployed, seconds)
                del self.flows[name]
                if self.desired is not None and forget:
                    await self.desired.change(lambda kept: kept.forget(name))
            finally:
                self._deleting -= 1
                self._changed.set()
        return reports

    async def _drained(self, deployed: DeployedFlow, seconds: float | None) -> dict[str, DrainReport]:
        instances = deployed.instances
        reports = await asyncio.gather(*(each.drain(seconds) for each in instances))
        deployed.end()
        deployed.reports = {each.alias: report for each, report in zip(instances, reports, strict=True)}
        return deployed.reports

    # -- pause, resume ---------------------------------------------------------------------------------------
    def find(self, alias: str) -> DeployedFlow:
        """Return the flow with this name, or of the instance with this alias. Raises NoFlowError."""
        for each in self.flows.values():
            if alias == each.name or alias in each.aliases:
                return each
        raise NoFlowError(f"there is no flow {alias!r}")

    async def set_status(
        self, alias: str, status: Literal["paused", "running"], connector: str | None = None
    ) -> DeployedFlow:
        """Pause or resume a flow, an instance or a connector. The change is in effect and stored when this returns.

        Raises NoFlowError; BusyError if the flow has ended; DesiredStateError if the change is in effect, but not
        stored.
        """
        deployed = self.find(alias)
        if connector is not None and connector not in deployed.spec.connectors:
            raise NoFlowError(f"the flow {alias!r} has no connector {connector!r}")
        self._active_instances(deployed, alias)  # before waiting for a drain
        async with deployed.lock:
            if self.flows.get(deployed.name) is not deployed:
                raise BusyError(f"the flow {alias!r} was replaced or deleted meanwhile")
            for each in self._active_instances(deployed, alias):
                await (each.pause if status == "paused" else each.resume)(connector)
            if self.desired is not None:
                await self.desired.change(lambda kept: kept.set(deployed.name, alias, status, connector))
        return deployed

    async def follow(self, before: DesiredDocument, now: DesiredDocument) -> None:
        """Apply what others have paused or resumed: statuses that differ between two readings of the desired state."""
        for deployed in list(self.flows.values()):
            if not deployed.instances or self.desired is None or not _changed(deployed, before, now):
                continue
            async with deployed.lock:
                if self.flows.get(deployed.name) is not deployed:
                    continue
                fresh = await self.desired.read()  # a local operation may have changed it meanwhile
                for each in deployed.instances:
                    if not each.ended and each.status != "draining":
                        await _apply(each, before, fresh)

    def _active_instances(self, deployed: DeployedFlow, alias: str) -> list[RunningFlow]:
        """Return the instances that can be paused. Raises BusyError if there are none."""
        chosen = deployed.chosen(alias)
        if not chosen:
            raise BusyError(f"the flow {alias!r} is not started yet: {self.problem or 'it is being started'}")
        alive = [each for each in chosen if not each.ended and each.status != "draining"]
        if not alive:
            raise BusyError(f"the flow {alias!r} is {chosen[0].status}: it can't be paused or resumed any more")
        return alive

    # -- the end ---------------------------------------------------------------------------------------------
    async def finished(self) -> None:
        """Wait until all flows have ended or failed, and no flow is being deleted."""
        while self.problem or self._deleting or not all(each.ended for each in self.flows.values()):
            self._changed.clear()
            await self._changed.wait()

    async def drain(self, seconds: float | None = None) -> dict[str, DrainReport]:
        """Drain all flows in parallel. Return the result for each instance."""
        self.draining = True
        found: dict[str, DrainReport] = {}

        async def one(deployed: DeployedFlow) -> None:
            async with deployed.lock:  # waits for the current operation
                if deployed.instances and not deployed.ended:
                    found.update(await self._drained(deployed, seconds))

        await asyncio.gather(*(one(each) for each in list(self.flows.values())))
        self._changed.set()
        return found

    async def stop(self) -> None:
        """Stop all flows immediately; events in flight stay unsettled. Can be called several times."""
        self.draining = True
        await asyncio.gather(*(each.stop() for deployed in self.flows.values() for each in deployed.instances))
        for deployed in self.flows.values():  # last: running instances would reopen their queues
            deployed.end()
        if self.desired is not None:
            self.desired.close()
        self._changed.set()

    @property
    def failed(self) -> list[str]:
        """The reasons for which flows have failed, one line each."""
        every = [each for deployed in self.flows.values() for each in deployed.instances]
        return [f"{each.alias}: {each.error}" for each in every if each.status == "failed"]
