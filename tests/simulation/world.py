"""A world: the members, clients and faults of one case on one loop. ``play`` runs it."""

from __future__ import annotations

import gc
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar
from unittest.mock import patch

from respserver.server import RespServer
from tests.replication.differences import differences
from tests.simulation.clients import LostError, RefusedError, answer
from tests.simulation.disk import Disk, simulated
from tests.simulation.members import PORT, Member
from tests.simulation.network import NetworkLoop
from tests.simulation.simloop import Process

SHOWN: Final = 80  # lines of the trace in a report
Patch = tuple[Any, str, Any]  # what is patched, the name, the new value


class SimulationError(AssertionError):
    """Something that must be true is not."""


class SimWorld(ABC):
    """One run of a case."""

    members: Sequence[Member]
    happened: list[str]  # the faults

    def __init__(self, loop: NetworkLoop, top: Path) -> None:
        self.loop = loop
        loop.hidden = str(top)

    @abstractmethod
    async def run(self) -> None:
        """Run the case, and check it. Raises AssertionError."""

    def patches(self) -> Iterable[Patch]:
        """Return what is replaced in addition to ``disk.simulated``."""
        return ()

    def disk_of(self, process: Process) -> Disk | None:
        return next((member.disk for member in self.members if member.process is process), None)

    def check_trouble(self) -> None:
        assert not self.loop.trouble, "; ".join(self.loop.trouble)

    async def main(self) -> None:
        try:
            await self.run()
        except (LostError, RefusedError) as error:  # to the world, when everything is healed
            raise AssertionError(f"a member does not answer: {error}") from error
        finally:
            for member in self.members:
                member.end()
            for process in self.loop.processes:
                if process is not self.loop.world:
                    process.die()


def contents_differ(members: Iterable[Member]) -> tuple[int, str]:
    """Compare members that are connected to their leader, and have its whole log, with it.

    Return the number of comparisons, and what is wrong; "" if nothing is.
    """
    servers = [each.server for each in members if each.running and each.server is not None]
    idle = [each for each in servers if hasattr(each, "checkpoints") and _is_idle(each)]
    count, wrong = 0, ""
    for leader in idle:
        for replica in idle:
            leads = replica.data.follower and replica.link.up and replica.link.leads_to(leader.config.bind[0], PORT)
            if leads and replica.data.disk.offset == leader.data.disk.offset:
                count += 1
                if replica.data.ks.digest() != leader.data.ks.digest():
                    wrong = f"contents differ at log offset {leader.data.disk.offset}"
    return count, wrong


def _is_idle(server: RespServer) -> bool:
    """Return whether memory and log of a server agree now."""
    return not (server.gates.loading or server.data.ks.log or server.ticks.stalled)


async def differences_of(loop: NetworkLoop, one: Member, other: Member) -> list[str]:
    """Return what clients see of a difference. The questions are those of the tests with real processes.

    Raises LostError, and RefusedError if a member refuses to show its keys.
    """
    answers: dict[tuple[Any, ...], Any] = {}

    class NotAskedError(BaseException):
        """Not an Exception: those are answers."""

    def ask(member: Member) -> Callable[..., Any]:
        def asking(*words: Any) -> Any:
            if (member, *words) not in answers:
                raise NotAskedError((member, *words))
            found = answers[(member, *words)]
            if isinstance(found, RefusedError):
                raise found
            return found

        return asking

    while True:
        try:
            return differences(ask(one), ask(other))
        except NotAskedError as question:
            ((member, *words),) = question.args
            try:
                answers[(member, *words)] = await answer(loop, member, *words, proto=3)
            except RefusedError as refusal:
                answers[(member, *words)] = refusal


W = TypeVar("W", bound=SimWorld)


def play(seed: int, make: Callable[[NetworkLoop, Path], W], what: object) -> W:
    """Make a world, run it, and return it. ``what``: the case, for the report. Raises SimulationError."""
    loop = NetworkLoop(seed)
    place = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="tidelog-sim-", dir=place, ignore_cleanup_errors=True) as top:
        world = make(loop, Path(top))
        with ExitStack() as stack:
            stack.enter_context(uncollected())
            stack.enter_context(simulated(loop, world.disk_of))
            for target, name, value in world.patches():
                stack.enter_context(patch.object(target, name, value))
            try:
                loop.run_until_complete(world.main())
            except Exception as error:
                found = str(error) if isinstance(error, AssertionError) else repr(error)
                lines = "\n".join([line for line in loop.lines if " reads " not in line][-SHOWN:])
                raise SimulationError(f"{found}\n{what}\nfaults: {' '.join(world.happened)}\n{lines}") from error
            finally:
                loop.world.die()
                loop.close()
    return world


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect no garbage: what an earlier test has left can delete a file when it is freed, which is a step of the
    process that runs at this moment."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
