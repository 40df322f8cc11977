"""The whole procedure: inventory, checks, copy, rounds, and verification."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tidelog.client.entries import StreamId
from tidelog.moving import compared, delayed, descriptions, inventory, strings
from tidelog.moving.compared import Compared
from tidelog.moving.delayed import DelayedLists
from tidelog.moving.descriptions import dashed, text
from tidelog.moving.endpoints import Endpoint, different_servers
from tidelog.moving.errors import CommandRefusedError, MovingError
from tidelog.moving.following import SourceFollower
from tidelog.moving.inventory import STREAM, STRING, Inventory
from tidelog.moving.outcome import CopyOutcome, ProgressListener, StreamOutcome
from tidelog.moving.streams import CopiedStream, Streams
from tidelog.operating.tables import counted
from tidelog.transport.errors import is_denied, is_temporary

PAGE: Final = 1000  # entries per command
PASSES: Final = 5  # exact passes after following, until the source is unchanged
SHOWN: Final = 10  # keys that an error names
DELAYED_CHANGES: Final = "the stream or its delayed entries were changed at the source since"


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of a copy."""

    source: str  # URLs
    target: str
    source_password: str | None = None  # replaces the password in the URL
    target_password: str | None = None
    match: str | None = None  # a SCAN pattern for keys
    page: int = PAGE
    replace: bool = False  # delete existing keys at the target first
    resume: bool = False  # continue streams that exist at the target
    follow: bool = False
    until_idle: float | None = None  # seconds
    delayed: bool = True  # copy delayed entries, if both servers are tidelog servers
    verify_content: bool = True


def move(plan: Plan, watch: ProgressListener, stopping: Callable[[], bool]) -> CopyOutcome:
    """Copy, follow, and verify. While following, ``stopping`` is polled; True ends the rounds with an exact pass.

    Raises MovingError if the copy is impossible, and OSError if a server does not answer.
    """
    began = time.monotonic()
    source = Endpoint("source", plan.source, plan.source_password)
    try:
        target = Endpoint("target", plan.target, plan.target_password)
        try:
            with DelayedLists() as lists:
                outcome = _Move(plan, source, target, watch, lists).run(stopping)
        finally:
            target.close()
    finally:
        source.close()
    outcome.seconds = time.monotonic() - began
    return outcome


class _Move:
    def __init__(
        self, plan: Plan, source: Endpoint, target: Endpoint, watch: ProgressListener, lists: DelayedLists
    ) -> None:
        self._plan = plan
        self._source = source
        self._target = target
        self._watch = watch
        self._streams = Streams(source, target, plan.page)
        self._moved: dict[bytes, CopiedStream] = {}
        self._lists = lists
        self._listed = False  # the delayed entries of the source are in the lists
        self._unknown = ""  # why the delayed entries of the source are not known
        self._outcome = CopyOutcome(f"{source.place} ({source.name})", f"{target.place} ({target.name})")

    def run(self, stopping: Callable[[], bool]) -> CopyOutcome:
        plan, outcome = self._plan, self._outcome
        different_servers(self._source, self._target)
        found = inventory.take(self._source, self._target, plan.match)
        outcome.others = found.others
        self._check(found)
        names: set[bytes] | None = set() if plan.follow else None
        if found.strings:
            outcome.strings = strings.copy(self._source, self._target, plan.match, names)
        for key in found.streams:
            self._first(key)
        if plan.follow:
            self._follow(names, stopping)
        else:
            self._compare()
            if outcome.verdict == "same":
                self._list_delayed()
        self._send_delayed()
        self._retain()
        self._note()
        return outcome

    # -- what stands against it --------------------------------------------------------------------------------
    def _check(self, found: Inventory) -> None:
        plan = self._plan
        if plan.replace or not found.taken:
            return
        if not plan.resume:
            raise MovingError(
                f"the target already has {counted(len(found.taken), 'key')}: {_named(list(found.taken))}. Nothing was "
                "changed. --resume continues an interrupted copy, --replace deletes existing keys first"
            )
        other = [
            key for key, kind in found.taken.items() if kind != (STREAM if key in found.streams else STRING)
        ]  # fmt: skip
        if other:
            raise MovingError(f"at the target, {_named(other)} are of another type. Nothing was changed")
        for key in found.taken:
            if key in found.streams:
                self._check_copy(key)

    def _check_copy(self, key: bytes) -> None:
        """Raise MovingError unless the stream of the target is a copy of a part of the source's stream."""
        here, there = descriptions.stream(self._source, key), descriptions.stream(self._target, key)
        if here is None or there is None:
            return
        reason = ""
        if there.last > here.last:
            reason = f"its last ID at the target, {dashed(there.last)}, is above the source's, {dashed(here.last)}"
        elif there.newest is not None and there.newest < there.last and self._has(key, there.newest, there.last):
            reason = f"the target lacks entries before its last ID, {dashed(there.last)}"
        for at in (there.first, there.newest):
            if at is not None and not self._agree(key, at):
                reason = f"entry {dashed(at)} at the target is not the one at the source"
        if reason:
            raise MovingError(f"stream {text(key)} can't be continued: {reason}. --replace copies it again")

    def _has(self, key: bytes, newest: StreamId, last: StreamId) -> bool:
        """Return whether the source has entries before the target's newest ID that cannot be appended any more."""
        return bool(self._source.ask("XRANGE", key, dashed(descriptions.after(newest)), dashed(last), "COUNT", 1))

    def _agree(self, key: bytes, at: StreamId) -> bool:
        """Return whether an entry of the target equals that of the source or was deleted at the source."""
        mine, its = (end.ask("XRANGE", key, dashed(at), dashed(at)) for end in (self._source, self._target))
        return not mine or mine[0][1] == its[0][1]

    # -- the copy ----------------------------------------------------------------------------------------------
    def _first(self, key: bytes) -> None:
        here = descriptions.stream(self._source, key)
        if here is None:
            return  # deleted since it was found
        if self._plan.replace:
            self._target.ask("DEL", key)
        moved = CopiedStream(key)
        self._watch.copying(key, 0, here.length)
        self._streams.bring(
            moved, here, not self._plan.follow, lambda done, total: self._watch.copying(key, done, total)
        )  # fmt: skip
        self._moved[key] = moved
        self._watch.copied(moved)

    def _follow(self, names: set[bytes] | None, stopping: Callable[[], bool]) -> None:
        follower = SourceFollower(self._streams, self._plan.match, self._moved, self._watch)
        follower.strings = names
        self._watch.report("following: stop the writers, then end this with Ctrl-C; it ends with an exact pass")
        follower.run(stopping, self._plan.until_idle)
        self._watch.report("ending: an exact pass, and the comparison")
        for _ in range(PASSES):
            follower.attempt(lambda: follower.round(exact=True), lambda: False)
            follower.attempt(self._compare, lambda: False)
            if self._outcome.verdict == "same":
                follower.attempt(self._list_delayed, lambda: False)
            if self._outcome.verdict == "same":
                return

    def _compare(self) -> None:
        outcome = self._outcome
        outcome.streams = []
        for key, moved in self._moved.items():
            outcome.streams.append(StreamOutcome(moved, self._compared(key, moved)))
        outcome.string_differences = list(strings.differences(self._source, self._target, self._plan.match))
        outcome.compared = True

    def _compared(self, key: bytes, moved: CopiedStream) -> Compared:
        try:
            return compared.compare(
                self._source, self._target, moved, self._plan.page, self._plan.verify_content,
                lambda done, total: self._watch.verifying(key, done, total),
            )  # fmt: skip
        except CommandRefusedError as error:
            if not error.vanished:
                raise
            return Compared(source_changes=[f"it was changed while it was compared: {error.text}"])

    # -- delayed entries ---------------------------------------------------------------------------------------
    @property
    def _with_delayed(self) -> bool:
        return self._plan.delayed and self._source.tidelog and self._target.tidelog

    def _list_delayed(self) -> None:
        """Read the delayed entries of the source. Streams that changed since the comparison get that verdict."""
        self._lists.clear()
        self._listed = False
        if not self._with_delayed:
            return
        for each in self._outcome.streams:
            moved = each.moved
            if moved.here is None or each.found is None:
                continue
            try:
                taken = self._lists.take(self._source, moved.key, moved.here.last)
            except CommandRefusedError as error:
                if is_temporary(error.text):
                    raise
                if is_denied(error.text) or "unknown command" in error.text:
                    self._unknown = str(error)
                    return
                each.found.differences.append(f"the delayed entries can't be read: {error}")
                continue
            if not taken:
                each.found.source_changes.append(DELAYED_CHANGES)
        self._listed = self._outcome.verdict == "same"

    def _send_delayed(self) -> None:
        """Add the delayed entries at the target, compare them, and then look for changes at the source.

        A lost connection is not retried: entries that the target has delivered might be added again.
        """
        if not self._listed:
            return
        found = {each.moved.key: each.found for each in self._outcome.streams if each.found is not None}
        if number := sum(each.number for each in self._lists.lists):
            self._watch.report(f"copying {counted(number, 'delayed entry')}: from now on, the target delivers them")
        for each in self._lists.lists:
            try:
                self._lists.send(self._target, each)
                self._moved[each.key].delayed = each.number
                found[each.key].differences += self._lists.differences(
                    self._target, each, self._plan.verify_content
                )  # fmt: skip
            except CommandRefusedError as error:
                found[each.key].differences.append(f"the delayed entries were not copied completely: {error}")
        for each in self._lists.lists:
            if not delayed.unchanged(self._source, each):
                found[each.key].source_changes.append(DELAYED_CHANGES)

    def _not_delayed(self) -> Iterator[str]:
        """Yield a note about delayed entries that were not copied."""
        if self._unknown:
            yield f"the delayed entries of the source are not known, and were not copied: {self._unknown}"
            return
        if self._listed:
            return
        try:
            number = sum(self._source.ask("TDELAY", key, "COUNT") for key in self._moved)
        except CommandRefusedError as error:
            yield f"the number of delayed entries of the source is not known: {error}"
            return
        if not number:
            return
        text = f"not copied: {counted(number, 'delayed entry')} of the source"
        if self._with_delayed:
            yield f"{text}. They are copied after a comparison without differences: run the command with --resume"
        elif self._target.tidelog:
            yield f"{text} (--no-delayed). To copy them at the end, run the command with --resume"
        else:
            yield (
                f"{text}. Keep the source, and copy again after they have joined their streams, or list them with"
                " TDELAY LIST and add them at the target"
            )

    # -- what is set last --------------------------------------------------------------------------------------
    def _retain(self) -> None:
        """Set the retention policies at the target. The copy is complete, so a refusal is only noted."""
        without = 0
        for moved in self._moved.values():
            try:
                without += not self._streams.retain(moved)
            except CommandRefusedError as error:
                self._outcome.notes.append(f"the retention policies were not copied: {error}")
                return
        if without:
            self._outcome.notes.append(
                f"{counted(without, 'stream')} of the source had a retention policy, which {self._target.name} does not"
                " support"
            )

    # -- what should be known ----------------------------------------------------------------------------------
    def _note(self) -> None:
        notes = self._outcome.notes
        if not self._moved and not self._outcome.strings:
            notes.append("there was nothing to move")
        if not self._plan.verify_content and self._moved:
            notes.append("the entries themselves were not compared")
        gone = sum(moved.carried.gone for moved in self._moved.values())
        if gone:
            notes.append(
                f"could not move {counted(gone, 'pending message')}: the source has deleted or trimmed the entries"
            )
        if self._source.tidelog:
            try:
                if ttl := self._with_ttl():
                    notes.append(
                        f"{counted(ttl, 'group')} of the source would expire without readers; at the target, none"
                        " expires"
                    )
            except CommandRefusedError as error:  # the copy is complete; a missing detail is not a reason to fail
                notes.append(f"whether groups of the source expire without readers is not known: {error}")
            notes += self._not_delayed()

    def _with_ttl(self) -> int:
        count = 0
        for key, moved in self._moved.items():
            if moved.here is not None and moved.here.groups:
                rows = self._source.ask("TGROUP", "LIST", key)
                count += sum(bool(descriptions.pairs(row).get("ttl")) for row in rows)
        return count


def _named(keys: list[bytes]) -> str:
    more = ", ..." if len(keys) > SHOWN else ""
    return ", ".join(text(key) for key in keys[:SHOWN]) + more
