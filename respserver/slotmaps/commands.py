"""TCLUSTER at one member: the commands, and the status as one JSON document."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from commands.admin.slotmap import LINKED
from coordinator import slotmap
from coordinator.interface import CoordinatorError
from coordinator.slotmap import SlotMapError
from resp.errors import CommandError
from respserver.group.membership import GroupMembership
from respserver.runtime.parts import RuntimeParts, ServerPart
from respserver.slotmaps.assigning import SlotAssignment
from respserver.slotmaps.importing import NotYetError, SlotImports
from respserver.slotmaps.keeper import MapKeeper
from respserver.slotmaps.moving import SlotMover
from respserver.slotmaps.restoring import MapRestoration
from respserver.slotmaps.unserved import warning

UNKNOWN: Final = "ERR the coordinator is unavailable, and the outcome is unknown: {}"


class MapCommands(ServerPart):
    """Implements ``MapPart``. ``on_result`` is called when a command has ended."""

    def __init__(
        self, parts: RuntimeParts, keeper: MapKeeper, assigning: SlotAssignment, moving: SlotMover,
        imports: SlotImports, membership: GroupMembership, on_result: Callable[[], None],
    ) -> None:  # fmt: skip
        super().__init__(parts)
        self._keeper = keeper
        self._assigning = assigning
        self._moving = moving
        self._imports = imports
        self._restoring = MapRestoration(parts, keeper, membership)
        self._membership = membership
        self._on_result = on_result

    async def finish(self) -> None:
        """Stop what is in progress. Called at shutdown, before the coordinator is closed."""
        await self._moving.finish()
        await self._imports.finish()

    # -- the map -------------------------------------------------------------------------------------------------
    def document(self) -> dict[str, object] | None:
        return self._keeper.map.document() if self._keeper.map is not None else None

    def status(self) -> dict[str, object]:
        slots, known = self._slots, self._keeper.map
        owned = known.ranges(self._keeper.group) if known is not None else []
        return {
            "cluster": self._config.cluster_name, "group": self._keeper.group, "member": self._membership.name,
            "leads": slots.leads, "problem": self._keeper.problem, "warnings": self._warnings(),
            "serves": [str(each) for each in owned] if slots.leads and not slots.down else [],
            "unassigned": [str(each) for each in known.unassigned()] if known is not None else [],
            "unserved": {
                "keys": slots.unserved.keys, "example": slots.unserved.example.decode("utf-8", "backslashreplace"),
                "slots": [str(each) for each in slots.unserved.slots],
            },
            "move": self._moving.status(), "map": self.document(),
        }  # fmt: skip

    def _warnings(self) -> list[str]:
        slots, known = self._slots, self._keeper.map
        if known is None:
            return ["this member does not know the map: it refuses calls with keys (CLUSTERDOWN)"]
        found = []
        missing = known.unassigned()
        if missing:
            effect = "all calls with keys fail" if slots.down else "calls for these slots fail"
            found.append(
                f"{slotmap.said(missing)} {slotmap.belong(missing)} to no group, so {effect} (CLUSTERDOWN): assign them"
                " (TCLUSTER ASSIGN ... TO group)"
            )
        if slots.held.count(1) and not slots.waiting:
            found.append(
                f"{slots.held.count(1)} slots are about to leave group {self._keeper.group}, and the coordinator has"
                " not confirmed it: calls for them fail (CLUSTERDOWN) until it does"
            )
        if slots.unserved.keys:
            found.append(warning(slots.unserved, self._keeper.group))
        return found

    # -- changes -------------------------------------------------------------------------------------------------
    def assignment(self, ranges: list[str], to: str) -> Callable[[], str | None]:
        try:
            wanted = slotmap.parse_ranges(ranges)
        except SlotMapError as error:
            raise CommandError(f"ERR {error}") from error
        return self._begin(self._assigning.assign(wanted, to))

    def movement(self, ranges: list[str], to: str) -> Callable[[], str | None]:
        try:
            wanted = slotmap.parse_ranges(ranges)
        except SlotMapError as error:
            raise CommandError(f"ERR {error}") from error
        return self._begin(self._moving.move(wanted, to))

    def end_of_move(self) -> Callable[[], str | None]:
        return self._begin(self._moving.abort())

    def import_begin(self, name: str) -> Callable[[], str | None]:
        return self._begin(self._imports.begin(name))

    def import_link(self, name: str, url: str, objects: list[tuple[str, int]]) -> Callable[[], str | None]:
        async def linked() -> str:
            return f"{LINKED} {await self._imports.link(name, url, objects)}"

        return self._begin(linked())

    def import_part(self, name: str, part: bytes) -> None:
        self._imports.part(name, part)

    def import_data(self, name: str, away: int, batch: bytes) -> None:
        self._imports.data(name, away, batch)

    def import_end(self, name: str) -> None:
        self._imports.end(name)

    def removal(self, group: str) -> Callable[[], str | None]:
        return self._begin(self._remove(group))

    async def _remove(self, group: str) -> None:
        known = self._keeper.map
        if known is not None:
            slotmap.remove_group(known, group, 0)  # raises for a group that owns slots, running or not
        if await self._keeper.store.coordinator.get(f"tidelog/groups/{group}/leader") is not None:
            raise SlotMapError(f"group {group} is running, and would join the cluster again: stop its members first")
        await self._keeper.change(lambda slots: slotmap.remove_group(slots, group, self._clock.now()))

    def restoration(self) -> Callable[[], str | None]:
        return self._begin(self._restoring.restore())

    def _begin(self, work: Coroutine[Any, Any, str | None]) -> Callable[[], str | None]:
        """Start a change. Returns a function that returns None until it has ended, then its result or error line."""
        task = self._loop.create_task(_error_line(work))
        task.add_done_callback(lambda _: self._on_result())
        return lambda: task.result() if task.done() else None


async def _error_line(work: Coroutine[Any, Any, str | None]) -> str:
    """Do the work. Return its result or an empty string, or the line of its error."""
    try:
        return await work or ""
    except NotYetError as error:
        return f"TRYAGAIN {error}"
    except SlotMapError as error:
        return f"ERR {error}"
    except (CoordinatorError, OSError) as error:
        return UNKNOWN.format(error)
    except asyncio.CancelledError:
        return "ERR the server is shutting down"
