"""Copies or updates one stream::

XINFO at the source      the last ID: end of the first copy
XRANGE -> XADD           entries that the target lacks
XINFO at the source      again, together with the groups, in one step
XRANGE -> XADD           entries that arrived since
XTRIM, XSETID, expiry    as described in that step
groups                   as described in that step
TDELAY, TCFG             after the comparison

Rule 1: the target does not evict on its own until the copy is complete: a retention policy would evict entries that the
        source has, because the clocks and the positions of the groups differ.
Rule 2: nor does it deliver delayed entries. Those of an earlier copy are cancelled first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tidelog.client.entries import StreamId
from tidelog.moving import delayed, descriptions, entries, groups, pages
from tidelog.moving.descriptions import NEVER, ZERO, StreamDescription, after, dashed, text
from tidelog.moving.endpoints import Command, Endpoint
from tidelog.moving.entries import Appender
from tidelog.moving.errors import CommandRefusedError, MovingError
from tidelog.moving.groups import Carried

TRIES: Final = 3  # attempts to copy a stream that is deleted or changed during the copy
MADE_BY: Final = b"tidelog-import"  # a group that creates an empty stream and is then deleted


@dataclass(slots=True)
class CopiedStream:
    """A copied stream, and the work done for it."""

    key: bytes
    entries: int = 0  # copied
    here: StreamDescription | None = None  # the description of the source to which the target is equal
    tried: StreamId = ZERO  # entries up to this ID may be at the target
    carried: Carried = field(default_factory=Carried)
    delayed: int = 0  # delayed entries that were copied
    missing: int = 0  # entries that cannot be appended at the target any more


class Streams:
    """Copies streams from one server to the other."""

    def __init__(self, source: Endpoint, target: Endpoint, page: int) -> None:
        self.source = source
        self.target = target
        self.page = page

    def bring(
        self,
        moved: CopiedStream,
        here: StreamDescription,
        exact: bool,
        progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> bool:
        """Update a stream, as ``_bring`` does. Repeats if a key or a group is deleted during the copy."""
        for left in range(TRIES - 1, -1, -1):
            try:
                return self._bring(moved, here, exact, progress)
            except CommandRefusedError as error:
                if not left or not error.vanished:
                    raise
                again = descriptions.stream(self.source, moved.key)
                if again is None:
                    return True
                here = again
        return True

    def remove(self, moved: CopiedStream) -> None:
        """Delete a copied stream. Raises MovingError if it was changed at the target."""
        there = descriptions.stream(self.target, moved.key)
        if there is not None:
            self._only_ours(moved, there)
            self.target.ask("DEL", moved.key)

    def retain(self, moved: CopiedStream) -> bool:
        """Set the retention policy of the source at the target, and how much of the stream stays local. Returns False
        if the target cannot have the policy."""
        if moved.here is None:
            return True
        if self.target.tidelog and moved.here.tier:
            self.target.ask("TCFG", moved.key, "TIER", *moved.here.tier.split())
        if self.target.tidelog and moved.here.retain:
            self.target.ask("TCFG", moved.key, "RETAIN", *moved.here.retain.split())
        return self.target.tidelog or not moved.here.retain

    def _only_ours(self, moved: CopiedStream, there: StreamDescription) -> None:
        if there.last > moved.tried:
            raise MovingError(
                f"the stream {text(moved.key)} was written to at the target, by somebody else: its last ID there is "
                f"{dashed(there.last)}. It was not changed. Nobody may write there until the move is over"
            )

    def _bring(
        self, moved: CopiedStream, here: StreamDescription, exact: bool, progress: Callable[[int, int], None]
    ) -> bool:
        """Make the stream of the target equal to that of the source. Return whether anything was changed; False if it
        is deleted.

        ``here`` is the current or a recent description of the source. With ``exact``, groups that seem unchanged and
        deletions in the middle are compared, too. ``progress`` receives the number of copied entries and the total.
        """
        key = moved.key
        there = descriptions.stream(self.target, key)
        if there is not None and self._is_another(moved, here, there):
            self._only_ours(moved, there)
            self.target.ask("DEL", key)
            there, moved.here, moved.carried = None, None, Carried()
        if there is not None and there.retain:
            self.target.ask("TCFG", key, "RETAIN", "NONE")
        if there is not None and there.tier:
            self.target.ask("TCFG", key, "TIER", "DEFAULT")
        if there is not None and moved.here is None:
            self._cancel_delayed(key)
        begin = there.last if there is not None else ZERO
        moved.tried = max(moved.tried, here.last)
        copied = self._copy(key, here, begin, progress)
        again = descriptions.stream(self.source, key)
        if again is None:
            return bool(copied)
        if again.last < here.last:
            return True  # just recreated: the next round handles it
        moved.tried = max(moved.tried, again.last)
        copied += self._copy(key, again, here.last, lambda _done, _total: None)
        moved.entries += copied
        there = self._described(key)
        changed = bool(copied) | entries.trim(self.target, key, again, there)
        there = self._described(key)
        if exact and there.length != again.length:
            moved.missing = entries.prune(self.source, self.target, key, again, self.page)
            there = self._described(key)
            changed = True
        changed |= self._set(key, again, there)
        before = None if exact else moved.carried
        moved.carried = groups.carry(self.source, self.target, key, again, there, before)
        moved.here = again
        return changed | moved.carried.changed

    def _cancel_delayed(self, key: bytes) -> None:
        """Cancel the delayed entries of an earlier copy: the target must not deliver them."""
        if not self.source.tidelog or not self.target.tidelog:
            return
        try:
            delayed.cancel(self.target, key)
        except CommandRefusedError as error:
            if "unknown command" not in error.text:  # a version without delayed entries has none
                raise

    def _is_another(self, moved: CopiedStream, here: StreamDescription, there: StreamDescription) -> bool:
        """Return whether the stream of the source was deleted and recreated since the copy."""
        before = moved.here
        if before is not None and before.added is not None and here.added is not None and here.added < before.added:
            return True
        return here.last < there.last

    def _copy(self, key: bytes, here: StreamDescription, begin: StreamId, progress: Callable[[int, int], None]) -> int:
        if here.last <= begin:
            return 0
        done = 0

        def counted(number: int) -> None:
            nonlocal done
            done += number
            progress(done, here.length)

        appender = Appender(self.target, key, counted)
        for at, flat in pages.entries(self.source, key, after(begin), here.last, self.page, here.largest):
            appender.add(at, flat)
        appender.end()
        return done

    def _described(self, key: bytes) -> StreamDescription:
        """Describe the stream of the target. Create it if the source's stream is empty."""
        there = descriptions.stream(self.target, key)
        if there is None:
            self.target.all([
                ("XGROUP", "CREATE", key, MADE_BY, "0", "MKSTREAM"), ("XGROUP", "DESTROY", key, MADE_BY),
            ])  # fmt: skip
            there = descriptions.stream(self.target, key)
        if there is None:
            raise MovingError(f"{self.target.where}: the stream {text(key)} was deleted while it was copied")
        return there

    def _set(self, key: bytes, here: StreamDescription, there: StreamDescription) -> bool:
        """Set the last ID and the expiry time as at the source."""
        commands: list[Command] = []
        added = max(there.added or 0 if here.added is None else here.added, there.length)
        deleted = there.max_deleted if here.max_deleted is None else here.max_deleted
        if (here.last, added, deleted) != (there.last, there.added, there.max_deleted):
            command: Command = ("XSETID", key, dashed(here.last), "ENTRIESADDED", added)
            commands.append((*command, "MAXDELETEDID", dashed(deleted)) if deleted is not None else command)
        if here.expires == NEVER and there.expires != NEVER:
            commands.append(("PERSIST", key))
        elif here.expires != NEVER and abs(here.expires - there.expires) > descriptions.expiry_slack(self.source):
            commands.append(("PEXPIREAT", key, here.expires))
        if commands:
            self.target.all(commands)
        return bool(commands)
