"""Runs the members of a cluster on this machine, and stops them.

Rule 1: the members outlive this process if it is killed. The next supervisor adopts those that run.
Rule 2: replicas are stopped before leaders. A leader would otherwise hand over to a replica that is about to stop.
Rule 3: the plan can change while the cluster runs: new groups are started, and removed groups are stopped.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from tidelog.cluster.errors import ClusterError
from tidelog.cluster.folder import ClusterFolder
from tidelog.cluster.member import SupervisedMember
from tidelog.cluster.membership import access_of, wait_for
from tidelog.cluster.moving import divide
from tidelog.cluster.plan import ClusterPlan
from tidelog.operating.signals import ENDING, handling
from tidelog.operating.tables import counted
from tidelog.transport.cancellation import cancel_and_wait

STOPS_WITHIN: Final = 60.0  # s for the members that are stopped at the same time; acknowledged writes survive SIGKILL
POLL: Final = 0.5  # s between two checks of the plan's file
JOINS_WITHIN: Final = 60.0  # s for the leaders of all groups to join the map
TURN: Final = 0.1  # s between two checks of a start
PATIENCE: Final = 20.0  # s after which a start names the members for which it waits


class ClusterSupervisor:
    """The members of a cluster. ``say`` prints a line. ``progress`` shows a line that the next one replaces."""

    def __init__(
        self, folder: ClusterFolder, plan: ClusterPlan, say: Callable[[str], None], progress: Callable[[str], None]
    ) -> None:  # fmt: skip
        self._folder = folder
        self._plan = plan
        self._say = say
        self._progress = progress
        self._members: dict[str, SupervisedMember] = {}
        self._running: dict[str, asyncio.Task[None]] = {}

    async def run(self, started: Callable[[], None]) -> None:
        """Run the members until a signal. ``started``: called when all members run and all groups have leaders."""
        signals: asyncio.Queue[int] = asyncio.Queue()
        with handling(ENDING, signals.put_nowait):
            operating = asyncio.create_task(self._operate(started))
            received = asyncio.create_task(signals.get())
            await asyncio.wait({operating, received}, return_when=asyncio.FIRST_COMPLETED)
            await cancel_and_wait(received)
            if not operating.done():
                self._say(f"Stopping {counted(len(self._members), 'member')} ...")
            await cancel_and_wait(operating)
            killing = asyncio.create_task(self._kill_at_signal(signals))
            await self.stop(list(self._members))
            await cancel_and_wait(killing)
        if not operating.cancelled():
            operating.result()

    async def _operate(self, started: Callable[[], None]) -> None:
        self._start(self._plan)
        await self._until_started()
        await self._complete()
        started()
        stamp = self._folder.stamp()
        while True:
            await asyncio.sleep(POLL)
            try:
                found = self._folder.stamp()
                if found == stamp:
                    continue
                self._plan = self._folder.load()
            except (OSError, ClusterError) as error:
                self._say(f"the plan can't be read: {error}")
                await asyncio.sleep(PATIENCE)
                continue
            stamp = found
            self._start(self._plan)
            await self._stop_removed()

    async def _complete(self) -> None:
        """Divide the slots of a new cluster. Afterwards, the cluster exists at the coordinator for good."""
        if self._plan.created:
            return
        access = access_of(self._plan)
        try:
            await asyncio.to_thread(wait_for, access, tuple(self._plan.groups), JOINS_WITHIN, self._progress)
            done = await asyncio.to_thread(divide, access, self._progress)
        except ClusterError as error:
            self._say(f"the slots were not divided: {error}. See tidelog cluster rebalance")
        else:
            for refusal in done.refusals:
                self._say(f"some slots were not divided: {refusal}. See tidelog cluster rebalance")
        with self._folder.editing() as plan:
            self._folder.save(replace(plan, created=True))

    def _start(self, plan: ClusterPlan) -> None:
        for planned in plan.members:
            if planned.name not in self._members:
                member = self._members[planned.name] = SupervisedMember(self._folder, plan, planned, self._say)
                self._running[planned.name] = asyncio.create_task(member.keep_running())

    async def _stop_removed(self) -> None:
        planned = {each.name for each in self._plan.members}
        if removed := [name for name in self._members if name not in planned]:
            await self.stop(removed)
            self._say(f"stopped: {', '.join(removed)}")

    async def _until_started(self) -> None:
        """Wait until all members reply, and each group has a leader."""
        waited = 0.0
        while True:
            ready = [each for each in self._members.values() if each.ready]
            self._progress(f"starting: {len(ready)} of {len(self._members)} members are ready")
            if len(ready) == len(self._members):
                leaders = await self._leaders(ready)
                missing = {each.group for each in ready} - {self._members[name].group for name in leaders}
                if not missing:
                    return
                self._progress(f"starting: {len(missing)} groups have no leader")
            waited += TURN
            if waited >= PATIENCE:
                names = [name for name, each in self._members.items() if not each.ready]
                logs = ", ".join(str(self._folder.log(name)) for name in names[:3])
                if names:
                    self._say(f"waiting for {', '.join(names)}; to see what they do: {logs}")
                else:
                    self._say(f"waiting for the leaders of groups; to see why: {self._folder.log(ready[0].name)}")
                waited = -2 * PATIENCE
            await asyncio.sleep(TURN)

    async def _leaders(self, members: Iterable[SupervisedMember]) -> set[str]:
        """Return the names of the members that lead."""
        asked = list(members)
        phases = await asyncio.gather(*(each.phase() for each in asked))
        return {each.name for each, phase in zip(asked, phases, strict=True) if phase == "leading"}

    def adopt(self) -> list[str]:
        """Find the members that run without a supervisor; return their names. Raises ClusterError."""
        for planned in self._plan.members:
            member = SupervisedMember(self._folder, self._plan, planned, self._say)
            member.process = self._folder.member(planned.name)
            if member.process is not None:
                self._members[planned.name] = member
        return list(self._members)

    # -- stopping ------------------------------------------------------------------------------------------------
    async def stop(self, names: Iterable[str]) -> None:
        """Stop members, and start them no more."""
        stopped = [self._members[name] for name in names]
        for member in stopped:
            if (task := self._running.pop(member.name, None)) is not None:
                await cancel_and_wait(task)
        running = [each for each in stopped if each.process is not None]
        leaders = await self._leaders(running)
        await self._end([each for each in running if each.name not in leaders])
        await self._end([each for each in running if each.name in leaders])
        for member in stopped:
            del self._members[member.name]

    async def _end(self, members: list[SupervisedMember]) -> None:
        ending = {member.name: asyncio.create_task(_ended(member)) for member in members}
        for member in members:
            if member.process is not None:
                member.process.send(signal.SIGTERM)
        pending = set(ending.values())
        with suppress(TimeoutError):
            async with asyncio.timeout(STOPS_WITHIN):
                while pending:
                    self._progress(f"stopping: {counted(len(pending), 'member')} left")
                    _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for member in members:
            if not ending[member.name].done() and member.process is not None:
                self._say(f"member {member.name} has not stopped within {STOPS_WITHIN:g} s, and is killed")
                member.process.send(signal.SIGKILL)
        for task in ending.values():
            await task

    async def _kill_at_signal(self, signals: asyncio.Queue[int]) -> None:
        await signals.get()
        self._say("Killing the members that have not stopped ...")
        for member in self._members.values():
            if member.process is not None:
                member.process.send(signal.SIGKILL)


async def _ended(member: SupervisedMember) -> None:
    if member.process is not None:
        await member.process.ended()
        _ = member.process.status
        member.process.close()
        member.process = None
