"""TCLUSTER MOVE: slots with keys leave this group, while clients use them [112].

    register  the map gets the move, by compare-and-set
    link      the other group links history objects below its own prefix, if both have tier-free
    copy      the other leader gets copies of the keys, and their records from then on (``storage.keyspace.exporting``)
    hold      when it has everything, calls for the slots wait, from the same turn of the event loop on
    confirm   it gets the rest, and its in-sync set acknowledges it. So does the in-sync set of this group.
    finish    the map gives the slots to the other group, by compare-and-set. Its outcome is repeated until it is known.
    release   when the new owner has written that it uses the new map, the waiting calls get MOVED
    delete    this group deletes the keys, and removes the move from the map

Rule 1: calls wait for at most move-pause. If the change of the map has not been sent by then, they run here, and the
hold is repeated later. If its outcome is unknown then, they get CLUSTERDOWN until it is known.
Rule 2: until the change of the map, nothing has changed for clients. A move that fails is removed from the map, and the
other group then deletes what it has received. A new leader of this group removes it with its epoch.
Rule 3: nothing of the slots changes while they are held: no command, no expiry, no delivery, and no blocked reader.
If anything is logged nevertheless, the hold ends before the change of the map is sent.
Rule 4: what was not acknowledged takes memory. Copying waits for it. If it is more than BEHIND bytes, calls for the
slots wait for most of the time, until the other group has caught up. A string is one record, of up to 512 MB: its size
does not count.
Rule 5: entries that are only in the object store are not sent if the other group has linked their objects: it gets
references (``linking``). Others are read from there, and sent as all others. The other group has another prefix, and
copies them again. If they can't be read, the move fails.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from commands.slots import ALL_SLOTS, NO_SLOTS, slot_of
from coordinator import slotmap
from coordinator.interface import CoordinatorError
from coordinator.slotmap import MapGroup, SlotMap, SlotMapError, SlotRange
from resp.errors import AbsentNodeError, DamagedNodeError
from respserver.clients.pauses import Pauses
from respserver.config.conffile import ConfigError
from respserver.config.config import Config
from respserver.execution.blocking import Blocking
from respserver.execution.slices import Slicing
from respserver.group.membership import GroupMembership
from respserver.runtime.ownership import either, table
from respserver.runtime.parts import RuntimeParts, ServerPart
from respserver.runtime.servedtime import ServedTime
from respserver.slotmaps.assigning import BUSY, SlotAssignment
from respserver.slotmaps.cleaning import SlotCleaning
from respserver.slotmaps.inert import InertSlots
from respserver.slotmaps.keeper import MapKeeper
from respserver.slotmaps.linking import ObjectLinking
from respserver.slotmaps.peer import GroupPeer, PeerError
from storage.keyspace.exporting import KeyExport
from storage.keyspace.moving import MoveAgainError, MoveEndedError

MESSAGE: Final = 256 << 10  # bytes of records in a message, at least if they were copied
WINDOW: Final = 2 << 20  # bytes that are not acknowledged while keys are copied
CLOSE: Final = 128 << 10  # bytes that are not acknowledged when the slots can be held
BEHIND: Final = 16 << 20  # bytes that are not acknowledged, after which writers wait (Rule 4)
MOST_BEHIND: Final = 256 << 20  # bytes that are not acknowledged, after which the move is aborted
SLICE: Final = 0.002  # seconds of copying before other clients have their turn
TURN: Final = 0.0  # seconds until the next slice; longer in simulations, which have few keys
POLL: Final = 0.001  # seconds
RETRY: Final = 0.02  # seconds
AFTER_BUG: Final = 1.0  # seconds until the next attempt to delete keys
THROTTLE: Final = 0.02  # seconds for which writers wait if the other group is behind
FIRST_AGAIN, LONGEST_AGAIN = 0.2, 5.0  # seconds after which the hold is repeated
ATTEMPTS: Final = 5
PAUSE: Final = 1.0  # seconds between two attempts
SILENCE: Final = 30.0  # seconds without an acknowledgement, or a reply to a PING, after which an attempt has failed
PROBE: Final = 10.0  # seconds between two PINGs
PART: Final = 512 << 10  # bytes of a record in an argument: the lowest proto-max-bulk-len is 1 MB


class HoldEndedError(Exception):
    """The slots are served again. The text says why."""


class SlotMover(ServerPart):
    """Moves slots, one call at a time."""

    def __init__(
        self, parts: RuntimeParts, keeper: MapKeeper, membership: GroupMembership, assigning: SlotAssignment,
        inert: InertSlots, cleaning: SlotCleaning, pauses: Pauses, slicing: Slicing, blocking: Blocking,
        served_time: ServedTime, fetch: Callable[[AbsentNodeError, Callable[[], None]], None],
        require: Callable[[int], None],
    ) -> None:  # fmt: skip
        """``fetch``: reads a node from the object store, and then calls a function. ``require``: logs that
        the data can only be read with a version of the map."""
        super().__init__(parts)
        self._keeper = keeper
        self._standing = membership.standing
        self._in_sync = membership.in_sync
        self._assigning = assigning
        self._inert = inert
        self._cleaning = cleaning
        self._pauses = pauses
        self._slicing = slicing
        self._blocking = blocking
        self._served_time = served_time
        self._fetch = fetch
        self._require = require
        self._fetching = False  # the next step of the export waits for entries from the object store
        self._task: asyncio.Task[None] | None = None  # the move in progress
        self._linking = ObjectLinking(parts)
        self._export: KeyExport | None = None
        self._peer: GroupPeer | None = None
        self._peer_led = ("", 0)  # the group of the peer, and the epoch in which the peer leads it
        self._led = 0  # the epoch in which this member leads
        self._ended: MoveEndedError | None = None  # why the records can't be moved any more
        self._state: dict[str, object] = {}
        self._left_by = ""  # the last move by which slots have left, as far as this member knows
        self._deleting: asyncio.Task[None] | None = None
        self._stopping = False
        keeper.on_used = self._map_used
        self._map_used()  # of the saved map

    # -- the command ---------------------------------------------------------------------------------------------
    async def move(self, ranges: Sequence[SlotRange], to: str) -> None:
        """Move slots of this group, and return when the other group serves them and the keys are deleted here. Raises
        SlotMapError with the reason, CoordinatorError, OSError."""
        known = await self._keeper.current()
        owners = slotmap.owners_of(known, ranges)
        if set(owners) == {to}:
            return
        self._assigning.check_owners(known, {owner: owned for owner, owned in owners.items() if owner != to})
        if "" in owners:
            raise SlotMapError(
                f"{slotmap.said(owners[''])} {slotmap.belong(owners[''])} to no group: assign them (TCLUSTER ASSIGN)"
            )
        led = self._standing.led
        own = owners[self._keeper.group]
        slotmap.begin_move(known, "", own, self._keeper.group, led, to, 0)  # raises
        await self._assigning.check_leader(to)
        if self._assigning.busy:
            raise SlotMapError(BUSY)
        self._assigning.busy, self._task = True, asyncio.current_task()
        try:
            await self._attempts(own, to, led)
            await self._deleted(led)
        except asyncio.CancelledError:
            if self._task is None:
                raise SlotMapError("the move was aborted (TCLUSTER ABORT)") from None
            raise
        finally:
            self._assigning.busy, self._task, self._state = False, None, {}

    async def abort(self) -> None:
        """Abort the move in progress, and wait for its end. Raises SlotMapError."""
        task = self._task
        if task is None:
            raise SlotMapError("no slots of this group are moving, or this member does not lead it")
        if self._state.get("state") in ("finishing", "deleting"):
            raise SlotMapError("the map is being changed, or has changed: the move can't be aborted any more")
        self._task = None
        task.cancel()
        await asyncio.wait((task,))

    def status(self) -> dict[str, object] | None:
        """Return the state of the move in progress, for TCLUSTER STATUS; None if there is none."""
        if not self._state:
            return None
        found = dict(self._state)
        if self._export is not None and self._peer is not None:
            found["keys"], found["copied"] = self._export.keys, self._export.copied
            found["behind_bytes"] = self._export.size + self._peer.unacknowledged
            found["objects"], found["linked"] = self._linking.objects, self._linking.linked
        return found

    async def _attempts(self, own: list[SlotRange], to: str, led: int) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            name = secrets.token_hex(16)
            self._state = {
                "id": name, "to": to, "slots": [str(each) for each in own], "state": "copying", "attempt": attempt,
                "problem": self._state.get("problem", ""),
            }  # fmt: skip
            try:
                await self._register(name, own, to, led)
                await self._attempt(name, own, to, led)
            except (PeerError, HoldEndedError, MoveAgainError, TimeoutError, OSError, ConfigError) as error:
                why = str(error) or "the other group does not reply"
                await self._remove(name, led, why)
                final = isinstance(error, ConfigError) or (isinstance(error, PeerError) and not error.passing)
                if final or attempt == ATTEMPTS:
                    raise SlotMapError(f"{why}: nothing has changed") from error
                self._state["problem"] = why
                self._logger.warning(f"The move of {slotmap.said(own)} to group {to} starts again: {why}")
                await asyncio.sleep(PAUSE)
            except asyncio.CancelledError:
                await self._remove(name, led, "TCLUSTER ABORT")
                raise
            except (MoveEndedError, DamagedNodeError) as error:
                await self._remove(name, led, str(error))
                raise SlotMapError(f"{error}: the slots stay in this group") from error
            except Exception as error:
                await self._remove(name, led, str(error))
                raise
            else:
                return

    async def _deleted(self, led: int) -> None:
        """Wait until the keys are deleted. Then, the slots can move again."""
        self._state["state"] = "deleting"
        while self._standing.led == led and any(  # noqa: ASYNC110
            each.id == self._state["id"] for each in self._own()
        ):
            await asyncio.sleep(RETRY)

    async def _register(self, name: str, own: list[SlotRange], to: str, led: int) -> None:
        group = self._keeper.group
        await self._keeper.change(
            lambda slots: slotmap.begin_move(slots, name, own, group, led, to, self._clock.now())
        )

    async def _remove(self, name: str, led: int, why: str) -> None:
        """Remove a move that has failed from the map, unless this member does not lead any more."""
        while self._standing.led == led and not self._stopping:
            try:
                await self._keeper.change(lambda slots: _aborted(slots, name, led, self._clock.now(), why))
            except (CoordinatorError, OSError):
                await asyncio.sleep(RETRY)
            except SlotMapError:
                return
            else:
                return

    # -- one attempt ---------------------------------------------------------------------------------------------
    async def _attempt(self, name: str, own: list[SlotRange], to: str, led: int) -> None:
        """Move the slots. Raises PeerError, HoldEndedError, MoveEndedError, SlotMapError, and others; nothing has
        changed then."""
        known = self._keeper.map
        assert known is not None, "the map has the move"  # noqa: S101
        slots = table(own)
        seconds = min(self._config.repl_timeout, SILENCE)
        peer = await GroupPeer.open(known.groups[to], self._config, seconds)
        self._peer, self._ended, self._led = peer, None, led
        self._peer_led = to, known.groups[to].epoch
        try:
            self._compare_peer()
            async with asyncio.timeout(10 * SILENCE):
                await self._begin(peer, name, to, known.groups[to], self._config)
            linked = await self._linking.link(
                name, lambda key: slots[slot_of(key)] != 0, known.groups[to], lambda: self._still_begun(peer)
            )
            self._check(peer)
            await self._settled()
            self._fetching = False
            export = self._export = KeyExport(self._data.ks, lambda key: slots[slot_of(key)] != 0, linked)
            self._ticks.on_records = self._records
            await self._copy(peer, export, name)
            again = FIRST_AGAIN
            while True:
                try:
                    await self._hold(peer, export, name, slots, to)
                    return
                except HoldEndedError as error:
                    self._state["problem"], self._state["state"] = str(error), "copying"
                    self._logger.notice(f"The slots that move to group {to} are served here again: {error}")
                await self._copy_for(again, peer, export, name)
                again = min(2 * again, LONGEST_AGAIN)
        finally:
            self._ticks.on_records = None
            if not self._stopping:  # otherwise, the slots may have left
                self._release_slots()
            peer.close()
            if self._export is not None:
                self._export.close()
            self._export = self._peer = None

    def _compare_peer(self) -> None:
        """End the attempt if the other group has a new leader. If the machine of the earlier one has failed, its
        connections stay open and silent."""
        known, (to, epoch) = self._keeper.map, self._peer_led
        if self._peer is not None and known is not None and to in known.groups and known.groups[to].epoch != epoch:
            self._peer.fail(PeerError(f"the leader of group {to} has changed"))

    @staticmethod
    async def _begin(peer: GroupPeer, name: str, to: str, group: MapGroup, config: Config) -> None:
        """Let the other leader begin the import. This may take long, because it first deletes what an earlier move has
        left. Meanwhile, it must reply to a PING on another connection. Raises PeerError, SlotMapError."""
        begun = peer.ask("TCLUSTER", "IMPORT", name, "BEGIN")
        while not (await asyncio.wait((begun,), timeout=PROBE))[0]:
            try:
                async with asyncio.timeout(SILENCE):
                    probe = await GroupPeer.open(group, config, SILENCE)
                    try:
                        await probe.ask("PING")
                    finally:
                        probe.close()
            except TimeoutError:
                raise PeerError(f"the leader of group {to} was silent for {SILENCE:.0f} seconds") from None
        try:
            begun.result()
        except PeerError as error:
            if error.code == "NOREPLICAS":
                raise SlotMapError(
                    f"group {to} is not in sync: fewer than min-in-sync members are: start its other members, and wait"
                    " until they have caught up"
                ) from error
            raise

    def _still_begun(self, peer: GroupPeer) -> None:
        """Raise the reason why the attempt has failed, if it has. Sends a PING, so that the connection is not idle."""
        self._check(peer)
        peer.ask("PING")

    def _release_slots(self) -> None:
        self._slots.hold(NO_SLOTS)
        if self._inert.leaving != NO_SLOTS:
            self._inert.leaving = NO_SLOTS
            self._inert.apply()
        self._pauses.retry()
        self._blocking.redirect_slots()
        self._blocking.resume_slots()

    def _records(self, batch: bytes) -> None:
        """Select the records of a tick."""
        export = self._export
        if export is None or self._ended is not None:
            return
        try:
            export.on_batch(batch)
        except MoveEndedError as error:
            self._ended = error
        except Exception as error:  # noqa: BLE001 - after a bug, the move ends, and the tick that logs this continues
            self._logger.trace("Bug while selecting the records of a move", error)
            self._ended = MoveEndedError(f"a bug: {error!r} (see the log)")

    def _check(self, peer: GroupPeer) -> None:
        """Raise the reason why the attempt has failed, if it has."""
        if self._ended is not None:
            raise self._ended
        if peer.failed is not None:
            raise peer.failed
        if self._export is not None and self._export.ks is not self._data.ks:
            raise HoldEndedError("the data of this server was loaded again")
        if self._standing.led != self._led:
            raise SlotMapError("this member does not lead any more: nothing has changed")
        if self._ticks.stalled:
            raise HoldEndedError("the disk of this server accepts no writes")

    async def _settled(self) -> None:
        """Wait until nothing is unlogged: the next step then begins at the end of a tick."""
        while self._data.ks.log and not self._ticks.settle():
            if self._standing.led != self._led:
                raise SlotMapError("this member does not lead any more: nothing has changed")
            await asyncio.sleep(RETRY)

    def _send(self, peer: GroupPeer, export: KeyExport, name: str, least: int = 1) -> asyncio.Future[str] | None:
        """Send the records so far, if they have ``least`` bytes. Return the reply to the last request; None: none."""
        if export.size < least:
            return None
        reply = None
        while records := export.take(PART):
            if len(records) > PART:  # one record: a string can be as long as a request may be
                for at in range(0, len(records), PART):
                    peer.ask("TCLUSTER", "IMPORT", name, "PART", records[at : at + PART])
                records = b""
            reply = peer.ask("TCLUSTER", "IMPORT", name, "DATA", self._data.ks.away, records)
        return reply

    async def _copy(self, peer: GroupPeer, export: KeyExport, name: str) -> None:
        """Copy the keys, until the other group has nearly everything."""
        heard, before = self._loop.time(), peer.acknowledged
        while True:
            self._check(peer)
            await self._settled()
            if export.size + peer.unacknowledged < WINDOW and not self._fetching:
                began = self._loop.time()
                while export.step() and export.size < MESSAGE and self._loop.time() - began < SLICE:
                    if export.absent is not None:
                        self._fetching = True
                        self._fetch(export.absent, self._fetched)
                        break
            self._send(peer, export, name, 1 if export.complete else MESSAGE)
            if export.complete and export.size + peer.unacknowledged <= CLOSE:
                why = export.held_up()
                if not why:
                    return
                self._state["problem"] = why
                await asyncio.sleep(RETRY)
            now = self._loop.time()
            if peer.acknowledged > before or not peer.unacknowledged:
                heard = now
            before = peer.acknowledged
            if now - heard > SILENCE:
                raise PeerError(f"the other group has acknowledged nothing for {SILENCE:.0f} seconds")
            await self._throttle(export.size + peer.unacknowledged - export.largest)
            busy = export.size + peer.unacknowledged < WINDOW and not export.complete and not self._fetching
            await asyncio.sleep(TURN if busy else POLL)

    def _fetched(self) -> None:
        self._fetching = False

    async def _throttle(self, behind: int) -> None:
        """Let calls for the slots wait for a while if the other group is behind (Rule 4)."""
        if behind > MOST_BEHIND:
            raise PeerError(f"the other group is {behind} bytes behind")
        if behind > BEHIND:
            self._slots.hold(self._slots_of_move())
            await asyncio.sleep(THROTTLE)
            self._slots.hold(NO_SLOTS)
            self._pauses.retry()
            self._blocking.resume_slots()

    def _slots_of_move(self) -> bytes:
        known = self._keeper.map
        move = known.move(str(self._state["id"])) if known is not None else None
        return NO_SLOTS if move is None else table(list(move.slots))

    async def _copy_for(self, seconds: float, peer: GroupPeer, export: KeyExport, name: str) -> None:
        """Continue to send records, for at least some time."""
        until = self._loop.time() + seconds
        while self._loop.time() < until:
            await self._copy(peer, export, name)
            await asyncio.sleep(RETRY)

    # -- the pause -----------------------------------------------------------------------------------------------
    async def _hold(self, peer: GroupPeer, export: KeyExport, name: str, slots: bytes, to: str) -> None:
        """Let the slots leave. Raises HoldEndedError if they are served here again (Rule 1)."""
        self._served_time.update()  # a time without service ends the attempt (``storage.keyspace.moving``)
        until = self._loop.time() + self._config.move_pause / 1000
        self._state["state"] = "holding"
        self._slots.hold(slots)
        self._inert.leaving = slots
        self._inert.apply()
        self._blocking.redirect_slots()  # with TRYAGAIN, if only some of their slots leave
        try:
            await self._acknowledged(peer, export, name, until)
            self._check(peer)
            if export.size or export.held_up():
                raise HoldEndedError(export.held_up() or "keys of the slots have changed")
            self._state["state"] = "finishing"
        except BaseException:
            self._release_slots()
            raise
        late = self._loop.call_at(until, lambda: self._give_up_waiting(slots))
        try:
            version = await self._finish(name)
            while self._loop.time() < until and not self._served(to, version):  # noqa: ASYNC110
                await asyncio.sleep(POLL)
        finally:
            late.cancel()

    async def _acknowledged(self, peer: GroupPeer, export: KeyExport, name: str, until: float) -> None:
        """Send the rest, and wait until both in-sync sets have everything."""
        while self._slicing.writing:  # a command that began earlier and writes in slices
            self._wait_until(until, "a long command changes keys")
            await asyncio.sleep(POLL)
        await self._settled()
        while export.step():  # a key was renamed
            if export.absent is not None:
                raise HoldEndedError("keys were renamed, and their entries are in the object store")
            self._wait_until(until, "keys were renamed")
        self._send(peer, export, name)
        end = peer.ask("TCLUSTER", "IMPORT", name, "END")
        position = self._ticks.log_end()
        while not end.done():
            self._wait_until(until, "the other group has not acknowledged the last records within move-pause")
            await asyncio.sleep(POLL / 4)
        await end
        while self._in_sync.confirmed() < position:
            self._wait_until(until, "the in-sync set of this group has not acknowledged the log within move-pause")
            await asyncio.sleep(POLL)
        self._wait_until(until, "move-pause has ended")

    def _wait_until(self, until: float, why: str) -> None:
        if self._loop.time() > until:
            raise HoldEndedError(f"{why} ({self._config.move_pause} ms)")

    def _give_up_waiting(self, held: bytes) -> None:
        self._slots.hold(held, waiting=False)
        self._pauses.retry()

    def _served(self, to: str, version: int) -> bool:
        """Return whether the leader of a group uses a version of the map."""
        known = self._keeper.map
        return known is not None and to in known.groups and known.groups[to].seen >= version

    async def _finish(self, name: str) -> int:
        """Change the map, and return its version. Repeat it until the outcome is known, or this member does not lead
        any more. Raises SlotMapError if the map has not changed, and cannot change any more."""
        refused = False

        def decide(slots: SlotMap) -> SlotMap:
            nonlocal refused
            refused = True
            changed = slotmap.finish_move(slots, name, self._led, self._clock.now())
            refused = False
            return changed

        while True:
            try:
                changed = await self._keeper.change(decide)
            except (CoordinatorError, OSError, SlotMapError) as error:
                if refused and self._left_by == name:
                    return 0  # an earlier change has taken effect, and the move is complete by now
                if refused:
                    raise
                if self._standing.led != self._led:
                    raise SlotMapError(
                        f"this member does not lead any more, and the outcome is unknown: {error}"
                    ) from error
                await asyncio.sleep(RETRY)
            else:
                move = changed.move(name) if changed is not None else None
                return move.moved if move is not None else 0

    # -- after the move ------------------------------------------------------------------------------------------
    def _map_used(self) -> None:
        """The keeper uses a map: keys of slots that have left are inert, and are deleted by the leader."""
        self._compare_peer()
        left = NO_SLOTS
        for move in self._left():
            left = either(left, table(list(move.slots)))
            self._left_by = move.id
        known = self._keeper.map
        own = ALL_SLOTS if known is None else table(known.ranges(self._keeper.group))
        if (left, own) != (self._inert.left, self._inert.own):
            self._inert.left, self._inert.own = left, own
            self._inert.apply()
        if self._deleting is None and self._slots.leads and (left != NO_SLOTS or self._forgotten()):
            self._deleting = self._loop.create_task(self._tidy())

    def _own(self) -> list[slotmap.MapMove]:
        """Return the moves from this group."""
        known = self._keeper.map
        return [] if known is None else [move for move in known.moves if move.source == self._keeper.group]

    def _left(self) -> list[slotmap.MapMove]:
        """Return the moves whose slots have left this group."""
        return [move for move in self._own() if move.moved]

    def _forgotten(self) -> list[slotmap.MapMove]:
        """Return the moves that nobody continues: the request that added them arrived after their end."""
        return [move for move in self._own() if not move.moved and move.id != self._state.get("id")]

    async def _tidy(self) -> None:
        """Delete the keys of slots that have left, once the new owner serves them, and remove the moves."""
        try:
            led = self._standing.led
            while self._slots.leads and self._standing.led == led and (self._left() or self._forgotten()):
                try:
                    await self._tidy_once(led)
                except Exception as error:  # noqa: BLE001 - even after a bug: the next move waits for the deletion
                    self._logger.trace("Bug while deleting the keys of slots that have left", error)
                    await asyncio.sleep(AFTER_BUG)
                await asyncio.sleep(RETRY)
        finally:
            self._deleting = None

    async def _tidy_once(self, led: int) -> None:
        for move in self._forgotten():
            await self._remove(move.id, led, "it was aborted before")
        for move in self._left():
            if self._served(move.target, move.moved):
                await self._delete_keys(move, led)

    async def _delete_keys(self, move: slotmap.MapMove, led: int) -> None:
        if self._standing.led != led:
            return
        self._require(move.moved)
        count = await self._cleaning.clean(table(list(move.slots)), lambda: bool(led) and self._standing.led == led)
        if count is None or not await self._deletion_confirmed(led):
            return
        with suppress(CoordinatorError, SlotMapError, OSError):
            await self._keeper.change(
                lambda slots: slotmap.end_move(slots, move.id, led, self._clock.now(), f"{count} keys were deleted")
            )
            self._logger.notice(f"Deleted {count} keys of {slotmap.said(move.slots)}, now of group {move.target}")

    async def _deletion_confirmed(self, led: int) -> bool:
        """Wait until the in-sync set has deleted the keys, too: once the map has no move, the next leader keeps them.
        Return False if this member does not lead any more."""
        while self._data.ks.log or self._ticks.stalled or self._in_sync.confirmed() < self._ticks.log_end():
            if self._standing.led != led or not led:
                return False
            await asyncio.sleep(RETRY)
        return True

    async def finish(self) -> None:
        """Stop. Called at shutdown. The next leader removes the move from the map."""
        self._stopping = True
        tasks = [task for task in (self._task, self._deleting) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _aborted(slots: SlotMap, name: str, led: int, now: int, why: str) -> SlotMap:
    """Return the map without a move, unless it is finished."""
    move = slots.move(name)
    return slots if move is None or move.moved else slotmap.end_move(slots, name, led, now, why[:300])
