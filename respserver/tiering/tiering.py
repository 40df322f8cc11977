"""Schedules the passes of the helper process, and keeps their statistics.

Rule 1: only a leader copies; in a server group, one with a valid lease. The helper is killed when this ends.
Rule 2: an error never affects clients. The helper is replaced, and the next attempt follows after RETRY_MS.
Rule 3: in a server group, and with ``replica-acks``, only confirmed records are copied. A new leader copies and deletes
nothing until its store has all records of its log: the history can contain entries that its last checkpoint lacks.
Rule 4: with ``tier-free``, nodes leave the store after the helper has compared them with the bytes that the object
store returns (``persistence.tiering.freeing``). The store replaces a node only if it is the one that was compared. The
helper of a replica does only this, with the objects of its leader. A replica outside a server group learns from its
leader who owns the leader's history (``replication.handshake``). If the prefix belongs to another server, such as the
one from whose backup the leader was restored, it frees nothing: that server would not know which objects it needs.
Rule 5: the helper serves one request at a time. Links for moves of slots to this group are created between two passes,
because a pass deletes objects (``persistence.tiering.linking``). Each pass gets the IDs of the moves to this group.

Decision: a pass runs every ``tier-interval`` and copies everything that is due, rather than each node as soon as it is
due. The number of objects then depends on the interval, not on the number of nodes: one object per interval on a quiet
server, objects of 64 MB on a busy one.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

from persistence import nodeid
from resp.errors import CorruptError
from respserver.config.valuetypes import tier_after
from respserver.observe.stats import TierStats
from respserver.runtime.parts import RuntimeParts, ServerPart
from respserver.runtime.threads import in_thread
from respserver.tiering.helperprocess import HelperError, HelperProcess
from respserver.tiering.historyreads import HistoryReads

RETRY_MS: Final = 30_000  # after an error, at most
SOON_MS: Final = 1000  # until the rest of a pass that met unconfirmed records, and after an error, at least
FOLLOWS: Final = -1  # instead of the epoch of a leader: a replica that frees space
LONGEST_ERROR: Final = 1000  # characters
BUSY: Final = 60.0  # seconds for which links for a move wait until a pass has ended
POLL: Final = 0.005  # seconds
FREED: Final = 2000  # nodes that the store replaces in one transaction
#: In the lines of the helper.
TOTALS: Final = ("objects", "entries", "bytes", "calls", "failed", "deleted_objects", "deleted_bytes")


class TierLeadership(Protocol):
    """The leadership of a member of a server group, see ``GroupMembership``."""

    @property
    def epoch_led(self) -> int:
        """The epoch in which this member leads with a valid lease; 0 if it does not."""

    @property
    def group_id(self) -> str:
        """40 hex digits; "" until the member has joined."""


class Tiering(ServerPart):
    """Copies the history to the object store. Without ``tier-url``, it does nothing."""

    def __init__(
        self, parts: RuntimeParts, group: TierLeadership | None, reads: HistoryReads, checkpoint: Callable[[], None]
    ) -> None:  # fmt: skip
        """``group``: None if this server is in no server group. ``checkpoint``: starts one soon."""
        super().__init__(parts)
        self._reads = reads
        self._checkpoint = checkpoint
        parts.config.on_change["tier-free"] = parts.config.check_tiering
        self._group = group
        self._task: asyncio.Task[Any] | None = None  # a pass, or another request to the helper
        self._helper: HelperProcess | None = None
        self._began = 0  # the epoch for which the helper was started, or FOLLOWS
        self._floor: tuple[int, int] | None = None  # the last epoch led, and the end of the log when it began
        self._follows = False  # this server was a replica that frees space
        self._idle_since: int | None = None  # ms (monotonic): end of the last pass; None: there was none
        self._retry: int | None = None  # ms until the next pass; None: tier-interval
        self._covered = 0  # ms since epoch: start of the last complete pass; 0: none yet
        self._ended: Counter[str] = Counter()  # the totals of the helpers that have ended
        self._totals: Counter[str] = Counter()  # those of the current helper
        self._passes = self._errors = 0
        self._error = ""  # of the last pass
        self._works = False  # the last pass had no error
        self._server_id = ""  # without a server group; "": not read yet
        self.leader_owner: Callable[[], str | None] = lambda: None  # see ``LeaderLink.history_owner``
        self._server = ""  # the owner for which the helper was started
        self._freed: list[tuple[bytes, bytes, bytes]] = []  # nodes that the store can replace, see ``Store.free``
        self._freeing: asyncio.Task[None] | None = None
        self._freed_nodes = self._freed_bytes = 0
        self._waiting = 0, 0  # objects that wait for their deletion, and their bytes
        self._deletion_error = ""  # of the last pass

    def target(self) -> tuple[str, str]:
        """Return ``tier-url`` and the ID of its owner; "" if there is none, or this server does not know it."""
        if not self._config.tier_url:
            return "", ""
        if self._group is not None:
            return self._config.tier_url, self._group.group_id
        if self._data.follower:  # the owner is its leader
            return self._config.tier_url, ""
        if not self._server_id:
            with suppress(OSError, CorruptError):
                self._server_id = nodeid.known(Path(self._config.dir))
        return self._config.tier_url, self._server_id

    # -- time ------------------------------------------------------------------------------------------------
    def on_time(self) -> None:
        """Start a pass if it is due, or kill the helper of a server that no longer leads. Called ``hz`` times a
        second."""
        if self._data.follower:
            self._floor = None
        if not self._config.tier_url:
            return
        epoch = self._epoch()
        if epoch is None or (epoch == FOLLOWS) != self._follows:  # a lag is that of a leader; this server begins again
            self._follows = epoch == FOLLOWS
            self._covered, self._idle_since, self._error, self._works = 0, None, "", False
            self._waiting, self._deletion_error = (0, 0), ""
        if self._helper is not None and (epoch != self._began or (epoch == FOLLOWS and self._server != self._owner())):
            self._helper.kill()
            if self._task is None:
                self._task = self._loop.create_task(self._discard())
        if self._task is None and epoch is not None and self._is_due():
            self._task = self._loop.create_task(self._run(epoch))

    def _is_due(self) -> bool:
        wait = self._config.tier_interval * 1000 if self._retry is None else self._retry
        return self._idle_since is None or self._clock.mono() >= self._idle_since + wait

    async def finish(self) -> None:
        """Kill the helper. Called at shutdown."""
        self._freed.clear()
        if self._freeing is not None:
            await asyncio.gather(self._freeing, return_exceptions=True)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._end_helper()

    def _epoch(self) -> int | None:
        """Return the epoch in which this server leads, 0 without a server group. Return FOLLOWS on a replica that frees
        space. None: there is nothing to do."""
        if self._gates.loading:
            return None
        if self._data.follower:
            joined = self.leader_owner() is not None if self._group is None else self._group.group_id
            return FOLLOWS if self._config.tier_free and joined else None
        if self._group is None:
            return 0
        return self._group.epoch_led or None

    # -- a pass ----------------------------------------------------------------------------------------------
    async def _run(self, epoch: int) -> None:
        self._retry = None
        try:
            await self._pass(epoch, self._clock.now())
        except HelperError as error:
            self._retry = min(RETRY_MS, max(self._config.tier_interval * 1000, SOON_MS))
            await self._end_helper()
            if self._epoch() == epoch:  # otherwise, it was killed because the server has another role
                self._fail(str(error))
        except Exception as error:  # noqa: BLE001 - a bug must not end the passes
            self._retry = RETRY_MS
            await self._end_helper()
            self._logger.trace("Bug in tiering", error)
        finally:
            self._idle_since = self._clock.mono()
            self._task = None

    async def _discard(self) -> None:
        try:
            await self._end_helper()
        finally:
            self._task = None

    async def _pass(self, epoch: int, now: int) -> None:
        """Run a pass. Raises HelperError."""
        config = self._config
        helper = await self._started(epoch)
        request = {
            "directory": str(self._data.disk.store.path.parent), "epoch": max(0, epoch), "offset": self._confirmed(),
            "floor": self._begun(epoch),
            "now": now, "after": tier_after(config.tier_after).pack().hex(),
            "seconds": config.tier_timeout, "frees": config.tier_free,
            # a node that was reported earlier can still become a reference to an object that could be deleted
            "deletes": not self._freed and self._freeing is None,
            "grace": config.tier_grace, "points": self._data.disk.history.points(self._data.disk.offset),
            "moves": [name for name in json.loads(self._data.ks.imports or b"{}") if name],
            "end": self._ticks.log_end(),
        }  # fmt: skip
        line = await helper.request(request, config.tier_timeout)
        self._note_undeleted(line["undeleted"])
        if line["problems"]:
            self._fail("; ".join(line["problems"]))
            return
        if not self._works:
            does = "leaves the store if it is in" if epoch == FOLLOWS else "is copied to"
            self._logger.notice(f"History {does} {config.tier_url}")
        self._works, self._error = True, ""
        self._passes += 1
        if epoch == FOLLOWS:
            return
        if line["complete"]:
            self._covered = now
        else:
            self._retry = SOON_MS

    async def _started(self, epoch: int) -> HelperProcess:
        """Return the helper for an epoch, and start it if necessary. Raises HelperError."""
        config = self._config
        if self._helper is None or self._began != epoch:
            await self._end_helper()
            follows = epoch == FOLLOWS
            self._server = self._owner()
            if not self._server:
                raise HelperError(
                    "the leader has not sent the ID of its history's owner, so it is unknown whether objects remain"
                    " while this replica needs them: set tier-url at the leader, and upgrade it"
                )
            self._began = epoch
            self._helper = await HelperProcess.start(self._note)
            first = {
                "url": config.tier_url, "server": self._server, "seconds": config.tier_timeout, "follows": follows,
                "self": self._own_id() if follows and self._group is None else "",
            }  # fmt: skip
            await self._helper.request(first, config.tier_timeout)
        return self._helper

    # -- moves of slots ----------------------------------------------------------------------------------------
    async def link(
        self, move: str, url: str, owner: str, objects: list[tuple[str, int]]
    ) -> tuple[int, list[bool]]:  # fmt: skip
        """Link objects of another group below the prefix of this one, for a move of slots to it [112].

        ``url``, ``owner``: the prefix and the ID of the other group. ``objects``: names, and the bytes of
        moving streams in each. Return the epoch in the names of the links, and which objects are linked. Raises
        HelperError.
        """
        until = self._loop.time() + BUSY
        while self._task is not None:
            if self._loop.time() > until:
                raise HelperError(f"a pass takes longer than {BUSY:.0f} seconds")
            await asyncio.sleep(POLL)
        epoch = self._epoch()
        if not self._config.tier_url or not self._config.tier_free or epoch is None or epoch <= 0:
            raise HelperError("this server does not lead, or tier-free is no")
        self._task = linking = self._loop.create_task(self._link(move, url, owner, objects, epoch))
        return epoch, await asyncio.shield(linking)

    async def _link(
        self, move: str, url: str, owner: str, objects: list[tuple[str, int]], epoch: int
    ) -> list[bool]:  # fmt: skip
        try:
            helper = await self._started(epoch)
            request = {"move": move, "url": url, "owner": owner, "objects": objects, "epoch": epoch}
            seconds, grace = self._config.tier_timeout, self._config.tier_grace
            line = await helper.request({"link": request, "seconds": seconds, "grace": grace}, seconds)
            return [bool(each) for each in line["linked"]]
        except HelperError:
            await self._end_helper()
            raise
        finally:
            self._task = None

    def _owner(self) -> str:
        """Return the ID that owns the prefix: that of the server group, of this server, or of the leader of a replica
        without a group; "" if the leader has not sent it. Raises HelperError."""
        if self._group is not None:
            return self._group.group_id
        if self._data.follower:
            return self.leader_owner() or ""
        return self._own_id()

    def announced_owner(self) -> str:
        """Return the ID that owns the history, for replicas; "" if there is none, or it is unknown."""
        if not self._config.tier_url:
            return ""
        with suppress(HelperError):
            return self._owner()
        return ""

    def _own_id(self) -> str:
        """Return the ID of this server. Raises HelperError."""
        try:
            self._server_id = nodeid.load(Path(self._config.dir))
            return self._server_id
        except (OSError, CorruptError) as error:
            raise HelperError(f"this server has no ID: {error}") from error

    def _begun(self, epoch: int) -> int:
        """Return the end of the log when this server began to lead. Starts a checkpoint if the store has not reached
        it, also if no save point is set, or if the server is idle."""
        if epoch == FOLLOWS:
            return 0
        if self._floor is None or self._floor[0] != epoch:
            self._floor = epoch, self._data.disk.offset
        if self._data.disk.store.offset < self._floor[1]:
            self._checkpoint()
        return self._floor[1]

    def _confirmed(self) -> int:
        """Return the log offset up to which records may be copied; -1: no limit."""
        confirmation = self._ticks.confirmation
        return max(0, confirmation.confirmed()) if confirmation.needed() else -1

    def _note(self, line: dict[str, Any]) -> None:
        """Note a line of the helper."""
        self._totals = Counter({name: line[name] for name in TOTALS})
        self._waiting = line["waiting"][0], line["waiting"][1]
        if "warning" in line:
            self._logger.warning(f"History: {line['warning']}")
        if "freed" in line and self._config.tier_free:
            self._freed += [
                (bytes.fromhex(key), bytes.fromhex(digest), bytes.fromhex(raw)) for key, digest, raw in line["freed"]
            ]
            if self._freeing is None:
                self._freeing = self._loop.create_task(self._free())

    async def _free(self) -> None:
        """Let the store replace nodes, in a thread."""
        try:
            while self._freed:
                disk, nodes, self._freed = self._data.disk, self._freed[:FREED], self._freed[FREED:]
                if disk.check_files() is not None:
                    self._freed.clear()
                    return
                count, size = await in_thread(lambda nodes=nodes, store=disk.store: store.free(nodes))  # type: ignore[misc]
                self._freed_nodes += count
                self._freed_bytes += size
                if count and disk is self._data.disk and not self._gates.loading:
                    self._data.ks.pool.tiered = True
                    disk.renew_view()
        except (OSError, CorruptError) as error:
            self._freed.clear()
            self._logger.warning(f"Copied entries can't leave the store: {error}. The next start tries again")
        except Exception as error:  # noqa: BLE001 - a bug must not end the passes
            self._freed.clear()
            self._logger.trace("Bug in tiering", error)
        finally:
            self._freeing = None

    def _fail(self, error: str) -> None:
        error = " ".join(error.split())[:LONGEST_ERROR]  # drivers report whole documents; INFO has one line
        self._works = False
        self._errors += 1
        if error != self._error:
            self._error = error
            what = "be compared with" if self._follows else "be copied to"
            self._logger.warning(
                f"History can't {what} {self._config.tier_url}: {error}. Nothing is lost, and writes continue"
            )

    def _note_undeleted(self, problems: list[str]) -> None:
        error = " ".join("; ".join(problems).split())[:LONGEST_ERROR]
        if error and error != self._deletion_error:
            self._logger.warning(f"Removed history can't be deleted in {self._config.tier_url}: {error}")
        self._deletion_error = error

    async def _end_helper(self) -> None:
        helper, self._helper = self._helper, None
        if helper is None:
            return
        await helper.ended()
        self._ended.update(self._totals)
        self._totals = Counter()
        with suppress(OSError):  # the store was closed
            await in_thread(self._data.disk.store.forget_dead_readers)

    # -- statistics ------------------------------------------------------------------------------------------
    def stats(self) -> TierStats:
        total = self._ended + self._totals
        return TierStats(
            bool(self._config.tier_url), self._task is not None, not self._error, self._error, self._passes,
            self._errors, total["objects"], total["entries"], total["bytes"], total["calls"], total["failed"],
            max(0, self._clock.now() - self._covered) // 1000 if self._covered else -1, self._freed_nodes,
            self._freed_bytes, total["deleted_objects"], total["deleted_bytes"], *self._waiting, self._deletion_error,
            self._reads.stats(),
        )  # fmt: skip
