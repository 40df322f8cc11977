"""Repeats the copy in rounds, until the writers have stopped.

A round describes all streams of the source, and updates those that differ. Between rounds, one connection waits for new
entries (XREAD BLOCK) of up to WATCHED streams, for at most ROUND ms. Acknowledgements and changes of other streams are
found in the next round.

A lost connection is reconnected without a time limit, because a round starts from the state of the target. However,
deletions at the source are copied to the target. A source that was restarted, perhaps without its data, therefore ends
the command.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from tidelog.moving import descriptions, inventory, strings
from tidelog.moving.descriptions import StreamDescription, dashed
from tidelog.moving.endpoints import Command
from tidelog.moving.errors import CommandRefusedError, MovingError
from tidelog.moving.outcome import ProgressListener
from tidelog.moving.streams import CopiedStream, Streams
from tidelog.transport.errors import is_temporary

ROUND: Final = 500  # ms
WATCHED: Final = 1000  # streams
SCAN_EVERY: Final = 10.0  # seconds between two searches for new streams
RETRY: Final = 1.0  # seconds between two attempts to connect


class SourceFollower:
    """Keeps a target up to date. ``stopping`` returns whether to end."""

    def __init__(
        self, streams: Streams, match: str | None, moved: dict[bytes, CopiedStream], watch: ProgressListener
    ) -> None:
        self.moved = moved
        self.strings: set[bytes] | None = None  # keys of copied strings
        self._streams = streams
        self._source, self._target = streams.source, streams.target
        self._match = match
        self._watch = watch
        self._scanned = time.monotonic()
        self._changed = time.monotonic()  # time of the last write at the source

    def run(self, stopping: Callable[[], bool], until_idle: float | None) -> None:
        """Run rounds until ``stopping``, or until nothing was written for ``until_idle`` seconds."""
        self._changed = time.monotonic()
        while not stopping():
            self.attempt(self.round, stopping)
            if until_idle is not None and time.monotonic() - self._changed >= until_idle:
                return
            if not stopping():
                self.attempt(self._wait, stopping)

    def attempt(self, do: Callable[[], None], stopping: Callable[[], bool]) -> None:
        """Call it. After a lost connection or a temporary error, reconnect and call it again."""
        while True:
            try:
                do()
                return
            except (OSError, CommandRefusedError) as error:
                if isinstance(error, CommandRefusedError) and (
                    not is_temporary(error.text) or error.code == "READONLY"
                ):
                    raise
                if stopping():
                    raise
                self._watch.report(f"{error}; trying again")
            self._reconnect(stopping)

    def _reconnect(self, stopping: Callable[[], bool]) -> None:
        while True:
            time.sleep(RETRY)
            try:
                self._source.connect()
                self._target.connect()
                same = self._source.is_as_before()
            except (OSError, CommandRefusedError):
                if stopping():
                    raise
            else:
                break
        if not same:
            raise MovingError(
                f"{self._source.where} was restarted: what is at the target was left as it is. If the source still has "
                "all of its data, go on with --resume"
            )

    def round(self, exact: bool = False) -> None:
        """Update everything once. ``exact``: also compare what seems unchanged."""
        if exact or time.monotonic() - self._scanned > SCAN_EVERY:
            self._scan()
        found = list(descriptions.streams(self._source, list(self.moved)))
        self._watch.following(self._lag(found), len(found))
        for key, here in found:
            moved = self.moved[key]
            if here is None:
                self._streams.remove(moved)
                del self.moved[key]
                self._changed = time.monotonic()
            elif (exact or self._may_differ(moved, here)) and self._bring(moved, here, exact):
                self._changed = time.monotonic()
        if exact and self.strings is not None:
            self._strings()

    def _bring(self, moved: CopiedStream, here: StreamDescription, exact: bool) -> bool:
        try:
            return self._streams.bring(moved, here, exact)
        except CommandRefusedError as error:
            if not error.vanished or error.where != self._source.where:
                raise
            return True  # deleted repeatedly: the next round handles it

    def _scan(self) -> None:
        self._scanned = time.monotonic()
        for key in inventory.take(self._source, None, self._match).streams:
            if key not in self.moved:
                self.moved[key] = CopiedStream(key)
                self._changed = time.monotonic()

    def _strings(self) -> None:
        before, self.strings = self.strings or set(), set()
        strings.copy(self._source, self._target, self._match, self.strings)
        gone = sorted(before - self.strings)
        for begin in range(0, len(gone), inventory.SCANNED):
            self._target.ask("DEL", *gone[begin : begin + inventory.SCANNED])

    def _lag(self, found: list[tuple[bytes, StreamDescription | None]]) -> int:
        lag = 0
        for key, here in found:
            then = self.moved[key].here
            if here is None or (then is not None and then.last == here.last):
                continue
            if then is None or here.added is None or then.added is None:
                lag += here.length if then is None else 1
            else:
                lag += max(0, here.added - then.added)
        return lag

    def _may_differ(self, moved: CopiedStream, here: StreamDescription) -> bool:
        """Return whether groups may differ. The description is sufficient only for groups without consumers."""
        return moved.here != here or any(group.consumers or group.pending for group in here.groups.values())

    def _wait(self) -> None:
        """Wait until a stream has a new entry, for at most ROUND ms."""
        watched = [(key, moved.here.last) for key, moved in self.moved.items() if moved.here is not None][:WATCHED]
        if not watched:
            time.sleep(ROUND / 1000)
            return
        command: Command = (
            "XREAD", "COUNT", 1, "BLOCK", ROUND, "STREAMS", *(key for key, _ in watched),
            *(dashed(last) for _, last in watched),
        )  # fmt: skip
        try:
            for _ in self._source.elements(*command):
                pass
        except CommandRefusedError as error:
            if not error.vanished:  # the next round handles a key of another type
                raise
