"""Slots that are copied to this group: the leader applies what the leader of the other group sends, and logs it [112].

    TCLUSTER IMPORT id BEGIN             the map has the move; no key has its slots
    TCLUSTER IMPORT id PART bytes        the next part of a large record, which DATA ends
    TCLUSTER IMPORT id LINK url object bytes ...   links to history objects of the other group, before the records that
                                                   refer to them (Rule 5). The reply is LINKED epoch 101...
    TCLUSTER IMPORT id DATA away bytes   copies and records; ``away``: of the sender (Rule 6 of ``keyspace``)
    TCLUSTER IMPORT id END               everything was sent

The replies are withheld like those of all writes, so they acknowledge that the in-sync set has the data.

Rule 1: ``Keyspace.imports`` has a description of each import, which the next leader finds in its log: a JSON object, by
ID of the move, with "slots" and "state": "open", "complete", or "broken".
Rule 2: the map decides what becomes of an import, see settle(). While the map has the move, and it is not finished, the
import continues. If it is finished, the import is adopted: its description is removed, and this is confirmed by the
in-sync set before the leader uses the map, and before it writes to the map that it has seen it. If the map does not
have the move any more, it was aborted: the keys are deleted before the group can get the slots in another way.
Rule 3: deadlines in served time are converted when they arrive. If this server then can't serve for more than LATE_MS,
they would be that much later, although the other group has served its clients meanwhile. The import then begins again.
Rule 4: the description with the ID "" has no slots. Its "version" is a version of the map in which this group does not
own slots whose keys are then deleted or copied. It is logged before that. Its "used" is the last version that the
leader has settled. So a replica knows when its map is older than its data, and when its data is older than its map
(``runtime.ownership``, Rule 4).
Rule 5: objects are linked only if all connected replicas can read references in the log, and no backup is connected. An
error has no effect on the import: the other group sends the entries. After the import, a checkpoint begins. The store
then has the references, so that reads of them read ahead, and the pin of the move can be removed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from commands.slots import NO_SLOTS, slot_of
from coordinator.interface import CoordinatorError
from coordinator.slotmap import SlotMap, SlotMapError, SlotRange, owners_of, said
from resp.errors import CommandError, CorruptError
from respserver.group.membership import GroupMembership
from respserver.runtime.ownership import either, table
from respserver.runtime.parts import RuntimeParts, ServerPart
from respserver.runtime.servedtime import ServedTime
from respserver.slotmaps.cleaning import SlotCleaning, staged_in
from respserver.slotmaps.inert import InertSlots
from respserver.slotmaps.keeper import MapKeeper
from respserver.tiering.helperprocess import HelperError
from storage.keyspace import copymutators
from storage.keyspace.importing import apply
from storage.keyspace.validation import check

AT_ONCE: Final = 1000  # names that are searched before other clients have their turn
TURN: Final = 0.0  # seconds between two of these parts
POLL: Final = 0.001  # seconds
LATE_MS: Final = 1000  # by which messages may fall due late, or early, because of a move
LARGEST: Final = (1 << 30) + (1 << 20)  # bytes of a record: the key and the value of a string have up to 512 MB each
MAP_SECONDS: Final = 5.0  # for which an import waits until this member has the map that has its move
OPEN: Final = "open"
COMPLETE: Final = "complete"
BROKEN: Final = "broken"
MAP: Final = "map"  # Rule 4


class NotYetError(SlotMapError):
    """Another attempt may succeed."""


Imports = dict[str, dict[str, Any]]
#: Arguments: the ID of a move, the prefix and the ID of the other group, and objects, see ``Tiering.link``.
Link = Callable[[str, str, str, list[tuple[str, int]]], Awaitable[tuple[int, list[bool]]]]


class SlotImports(ServerPart):
    """The imports of this group. Used on the event loop only."""

    def __init__(
        self, parts: RuntimeParts, keeper: MapKeeper, membership: GroupMembership, inert: InertSlots,
        cleaning: SlotCleaning, served_time: ServedTime, unready: Callable[[], str], link: Link,
        checkpoint: Callable[[], None],
    ) -> None:  # fmt: skip
        """``unready``: returns why the log must not refer to history objects; "" if it may. ``link``: see
        ``Tiering.link``. ``checkpoint``: starts one soon."""
        super().__init__(parts)
        self._unready, self._link_objects, self._checkpoint = unready, link, checkpoint
        self._keeper = keeper
        self._served_time = served_time
        self._away: dict[str, int] = {}  # by import that this leader has begun: ``Keyspace.away`` at that time (Rule 3)
        self._parts: dict[str, list[bytes]] = {}  # by import: the record that is being received
        self._standing = membership.standing
        self._in_sync = membership.in_sync
        self._membership = membership
        self._inert = inert
        self._cleaning = cleaning
        self._dropping: dict[str, asyncio.Task[None]] = {}
        keeper.settle = self.settle
        self._data.on_use = self._loaded
        self._loaded()

    def _loaded(self) -> None:
        self._data.ks.on_imports = self._changed
        self._changed()

    def _changed(self) -> None:
        """The imports have changed, by this server or by its leader."""
        copied = NO_SLOTS
        for each in self.imports().values():
            copied = either(copied, table(_slots(each)))
        self._inert.copied = copied
        self._inert.apply()
        self._slots.required, self._slots.used = self._versions()

    def imports(self) -> Imports:
        """Return the imports (Rule 1)."""
        found: Imports = json.loads(self._data.ks.imports or b"{}")
        found.pop("", None)
        return found

    def _versions(self) -> tuple[int, int]:
        """Return the lowest version of the map with which the data can be read, and the last one that the leader has
        settled (Rule 4); 0: none."""
        found: Imports = json.loads(self._data.ks.imports or b"{}")
        versions = found.get("", {})
        return int(versions.get("version", 0)), int(versions.get("used", 0))

    def require(self, version: int) -> None:
        """Log that the data can only be read with this version of the map, or a later one (Rule 4)."""
        required, used = self._versions()
        if version > required:
            self._log(self.imports(), version, used)

    def _log(self, found: Imports, required: int, used: int) -> None:
        if required or used:
            found[""] = {"slots": [], "state": MAP, "version": required, "used": used}
        copymutators.set_imports(self._data.ks, json.dumps(found).encode() if found else b"")
        self._ticks.queue()

    def _set(self, name: str, state: str | None, slots: list[SlotRange] | None = None) -> None:
        """Change the state of an import; None: remove it. Logs it."""
        found = self.imports()
        if state is None:
            del found[name]
        elif slots is not None:
            found[name] = {"slots": [list(each) for each in slots], "state": state}
        else:
            found[name]["state"] = state
        self._log(found, *self._versions())

    # -- the commands --------------------------------------------------------------------------------------------
    async def begin(self, name: str) -> None:
        """Begin an import. Raises SlotMapError."""
        until = self._loop.time() + MAP_SECONDS
        while (known := self._keeper.map) is None or (move := known.move(name)) is None or not self._slots.leads:
            if self._loop.time() > until:
                raise NotYetError(
                    f"the leader of group {self._keeper.group} does not know the move, or does not lead any more:"
                    f" {self._keeper.problem or 'try again'}"
                )
            self._keeper.read_again()
            await asyncio.sleep(20 * POLL)
        if move.target != self._keeper.group or move.moved:
            raise SlotMapError(f"the move {name} is not one to group {self._keeper.group}")
        self._check_health()
        led, slots = self._standing.led, table(list(move.slots))
        for other, each in self.imports().items():
            if any(map(int.__and__, slots, table(_slots(each)))):
                await self._drop(other)
        found, example = await self._search(slots)
        staged = await staged_in(self._data.ks, slots)
        if found or staged:
            shown = (example or staged[0])[:100].decode("utf-8", "backslashreplace")
            count, what = (found, "key") if found else (len(staged), "stage")
            raise SlotMapError(
                f"group {self._keeper.group} has {count} {what}{'' if count == 1 else 's'} in {said(move.slots)}"
                f" from the time before it joined the cluster, for example {shown!r}: start this group with an empty"
                " directory"
            )
        now = self._keeper.map
        if now is None or now.move(name) is None or self._standing.led != led:
            raise NotYetError("the move has ended meanwhile")
        if self._served_time.behind():
            raise NotYetError(f"group {self._keeper.group} can't serve its clients at the moment")
        described = self.imports()
        self._away = {other: away for other, away in self._away.items() if other in described}
        self._away[name] = self._data.ks.away
        self._parts = {other: parts for other, parts in self._parts.items() if other in described and other != name}
        self.require(now.version)
        self._set(name, OPEN, list(move.slots))

    def _check_health(self) -> None:
        """Raise SlotMapError if this group could not store what it receives."""
        group = self._keeper.group  # that enough members are in sync was checked, as for any write
        if self._data.damaged_lately():
            raise SlotMapError(f"group {group} has a damaged store: wait until it is repaired")
        if not self._ticks.writable:
            raise SlotMapError(f"group {group} accepts no writes: {self._gates.unwritable or 'see its log'}")

    async def _search(self, slots: bytes) -> tuple[int, bytes]:
        """Return the number of keys with some slots, and one of them."""
        ks, cursor, begun, count, example = self._data.ks, 0, False, 0, b""
        while cursor or not begun:
            begun = True
            cursor, names = ks.index.page(cursor, AT_ONCE)
            found = [name for name in names if slots[slot_of(name)]]
            count += len(found)
            example = example or (found[0] if found else b"")
            await asyncio.sleep(TURN)
            if ks is not self._data.ks:
                raise NotYetError("the data was replaced meanwhile")
        return count, example

    def part(self, name: str, part: bytes) -> None:
        """Receive a part of a record. Raises CommandError."""
        self._state(name)
        parts = self._parts.setdefault(name, [])
        if sum(map(len, parts)) + len(part) > LARGEST:
            del self._parts[name]
            raise CommandError(f"ERR a record of a move has more than {LARGEST} bytes")
        parts.append(part)

    def data(self, name: str, away: int, batch: bytes) -> None:
        """Apply copies and records. Raises CommandError."""
        ks = self._data.ks
        parts = self._parts.pop(name, None)
        if parts is not None:
            batch = b"".join((*parts, batch))
        state = self._state(name)
        self._check_time(name)
        if state == COMPLETE:
            self._set(name, OPEN)
        try:
            check(batch)
            apply(ks, batch, away - ks.away)
        except CorruptError as error:
            self._set(name, BROKEN)
            self._logger.warning(f"The import {name} can't be continued: {error}")
            raise CommandError(f"TRYAGAIN the import can't be continued: {error}") from error
        self._ticks.queue()

    def end(self, name: str) -> None:
        """Note that everything was received. Raises CommandError."""
        state = self._state(name)
        self._check_time(name)
        if state != COMPLETE:
            self._set(name, COMPLETE)

    def _check_time(self, name: str) -> None:
        """Raise CommandError if the deadlines that were received would be late (Rule 3)."""
        began = self._away.get(name)
        behind = self._served_time.behind()
        if began is None or abs(self._data.ks.away + behind - began) > LATE_MS:
            self._set(name, BROKEN)
            raise CommandError(f"TRYAGAIN group {self._keeper.group} could not serve its clients meanwhile")

    def _state(self, name: str) -> str:
        """Return the state of an import that continues. Raises CommandError."""
        found = self.imports().get(name)
        if found is None or name in self._dropping:
            raise CommandError("TRYAGAIN the import has ended")
        if found["state"] == BROKEN:
            raise CommandError("TRYAGAIN the import can't be continued")
        return str(found["state"])

    async def link(self, name: str, url: str, objects: list[tuple[str, int]]) -> str:
        """Link history objects of the other group for an import (Rule 5). ``objects``: see ``Tiering.link``. Return the
        epoch in the names of the links, and "1" for each object that is linked, otherwise "0". Raises SlotMapError."""
        why = self._unready() or self._ended(name)
        if why:
            raise SlotMapError(why)
        known = self._keeper.map
        move = None if known is None else known.move(name)
        if known is None or move is None:
            raise SlotMapError("the map does not have the move")
        try:
            epoch, linked = await self._link_objects(name, url, known.groups[move.source].id, objects)
        except HelperError as error:
            raise SlotMapError(f"the objects can't be linked: {error}") from error
        why = self._unready() or self._ended(name)
        if why or self._standing.led != epoch:
            raise SlotMapError(why or f"the leader of group {self._keeper.group} has changed")
        return f"{epoch} {''.join('1' if each else '0' for each in linked)}"

    def _ended(self, name: str) -> str:
        """Return why an import does not continue; "" if it does."""
        found = self.imports().get(name)
        return "the import has ended" if found is None or name in self._dropping or found["state"] == BROKEN else ""

    # -- the map decides -----------------------------------------------------------------------------------------
    async def settle(self, found: SlotMap) -> None:
        """Adopt or drop the imports of moves that have ended (Rule 2). Called by the leader, before it uses a version
        of the map. Raises SlotMapError, CoordinatorError."""
        for name, each in self.imports().items():
            move = found.move(name)
            if move is not None and not move.moved:
                continue
            if move is not None:
                if each["state"] != COMPLETE:
                    raise CoordinatorError(f"group {self._keeper.group} lacks the keys of the move {name}")
                slots = table(_slots(each))
                self._data.ks.resume_copied(partial(_has, slots), self._clock.now())
                self._set(name, None)
                await self._confirmed()
                if self._data.ks.pool.adopted:
                    self._checkpoint()
                self._logger.notice(f"Group {self._keeper.group} has adopted {said(move.slots)}")
            else:
                task = self._dropping.get(name) or self._drop_later(name)
                if self._keeper.group in owners_of(found, _slots(each)):
                    await asyncio.shield(task)
        required, used = self._versions()
        if found.version > used:
            self._log(self.imports(), required, found.version)

    async def _confirmed(self) -> None:
        """Wait until the in-sync set has everything. Raises CoordinatorError if this member does not lead any more."""
        led = self._standing.led
        while self._data.ks.log or self._ticks.stalled or self._in_sync.confirmed() < self._ticks.log_end():
            if self._standing.led != led or not led:
                raise CoordinatorError("this member does not lead any more")
            await asyncio.sleep(POLL)

    async def _drop(self, name: str) -> None:
        await asyncio.shield(self._dropping.get(name) or self._drop_later(name))

    def _drop_later(self, name: str) -> asyncio.Task[None]:
        """Begin to delete the keys of an import."""
        self._parts.pop(name, None)
        task = self._dropping[name] = self._loop.create_task(self._delete(name))
        task.add_done_callback(lambda _: self._dropping.pop(name, None))
        return task

    async def finish(self) -> None:
        """Stop. The next leader drops what is left."""
        for task in (tasks := list(self._dropping.values())):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _delete(self, name: str) -> None:
        led, found = self._standing.led, self.imports().get(name)
        if found is None:
            return
        slots = table(_slots(found))
        count = await self._cleaning.clean(slots, lambda: bool(led) and self._standing.led == led)
        if count is None:
            return
        if name in self.imports():
            self._set(name, None)
            self._logger.notice(f"Deleted {count} keys of the aborted move of {said(_slots(found))} to this group")


def _has(slots: bytes, key: bytes) -> bool:
    return slots[slot_of(key)] != 0


def _slots(found: dict[str, Any]) -> list[SlotRange]:
    return [SlotRange(*each) for each in found["slots"]]
