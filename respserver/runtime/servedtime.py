"""Served time (Rule 6 of ``storage.keyspace.keyspace``): the time during which the server could serve its clients.
Groups and stages expire, and pending entries fall due, in served time [73].

Served time follows the monotonic clock while clients can reach this server and it accepts writes. It stops while the
process is stopped or busy with one long step, while all writes are refused or delayed, and while the leader of a server
group has no valid lease and therefore sends no replies. Changes of the wall clock do not affect it. When its difference
from the wall clock changes, the difference is logged, so that replicas and a restarted server agree.

Rule 1: update() is called in each round of the periodic work, before anything expires. Commands that need served time
call it if the bounds set by the last update() no longer hold, for example after a stall.
Rule 2: after a stall, nothing expires before the sockets have been read.
Rule 3: if nothing can expire, served time equals the wall clock. So an idle server logs nothing.
"""

from __future__ import annotations

from typing import Final

from respserver.runtime.parts import RuntimeParts, ServerPart
from storage.keyspace.keylog import UNBOUNDED
from storage.keyspace.keyspace import Keyspace

# maximum time between two updates, which run ten times a second; after a longer time, the server was stalled
STALL_MS: Final = 200
AGAIN_MS: Final = 1000  # minimum time between two stalls; if it is less, the server is slow rather than stalled
DRIFT_MS: Final = 50  # deviation of the wall clock between two updates that does not count as a change of the clock
LOGGED_MS: Final = 1000  # shorter stalls are not logged


class ServedTime(ServerPart):
    """Implements ``ServedTimePart``."""

    def __init__(self, parts: RuntimeParts, by_hand: bool) -> None:
        """Initialize. ``by_hand``: a test advances the clock, and only a ``longest`` that it sets allows stalls."""
        super().__init__(parts)
        self.longest = UNBOUNDED if by_hand else STALL_MS  # maximum ms between two updates without a stall
        self.late = False  # there was a stall; reset by the code that reacts to it
        self._mono = parts.clock.mono()  # ms (monotonic) of the last update
        self._closed = False  # refuses() at the last update
        self._leads = False  # the fields below are those of a leader's served time
        self._at = 0  # served time at the last update
        self._stalled = -UNBOUNDED  # ms (monotonic) at which the last stall was noticed

    def update(self) -> None:
        ks, mono, now = self._data.ks, self._clock.mono(), self._clock.now()
        passed, self._mono = mono - self._mono, mono
        longest = max(self.longest, 2000 // self._config.hz)
        late = passed > longest
        self.late = self.late or late
        if self._data.follower or self._gates.loading:
            self._leads = self._closed = False
            ks.served_from, ks.served_to = -UNBOUNDED, UNBOUNDED
            return
        was_closed, self._closed = self._closed, self.refuses()
        if not self._leads:
            self._leads, self._at = True, now - ks.away
            counted = 0
        elif self._closed or was_closed:
            counted = 0
        elif late:  # otherwise, nothing would expire on a server that is always late
            counted = longest if mono - passed - self._stalled < AGAIN_MS else 0
            self._stalled = mono
        else:
            counted = passed
        # Served time has passed until the last TDELAY IN, up to 200 ms after an update. If it went back, the next entry
        # with the same delay would be delivered before that one.
        counted = max(counted, min(ks.served_seen - self._at, longest))
        ks.served_seen = -UNBOUNDED
        if self._closed:
            self._at += counted
            ks.served_from = ks.served_to = self._at
            return
        self._at += counted
        self._follow(ks, now)
        ks.served_from, ks.served_to = self._at - DRIFT_MS, self._at + longest
        if late and passed >= LOGGED_MS:
            self._logger.warning(
                f"The server was stopped or busy for {passed} ms: groups, stages and pending entries live that"
                " much longer"
            )

    def behind(self) -> int:
        """Call update(), and return by how much ``away`` grows (ms) once the server can serve again; 0 if it can."""
        self.update()
        return self._clock.now() - self._data.ks.away - self._at if self._closed else 0

    def _follow(self, ks: Keyspace, now: int) -> None:
        """Keep served time in step with the wall clock; shift it if they differ."""
        apart = now - ks.away - self._at
        if abs(apart) <= DRIFT_MS or not _has_deadlines(ks):
            self._at += apart
            return
        ks.set_away(ks.away + apart)
        self._ticks.queue()

    def refuses(self) -> bool:
        """Return whether all commands that write are refused or delayed, or no reply may be sent."""
        gates = self._gates
        if self._ticks.confirmation.confirmed() < 0:  # the leader of a server group without a valid lease
            return True
        return bool(gates.unwritable) or gates.too_few or gates.held or gates.paused


def _has_deadlines(ks: Keyspace) -> bool:
    """Return whether anything depends on served time."""
    return bool(ks.group_bytes or ks.uncounted or ks.stages.by_name or ks.delayed_count)
