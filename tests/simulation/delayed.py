"""What must be true of one stream with delayed entries and a retention policy, and the record of the replies.

One client changes the stream. It repeats tokens with other values, so that a value tells which TDELAY made an entry.

Rule 1: An acknowledged entry is either delayed or in its stream, never both, until its cancellation is sent or the
        policy evicts it. A token makes one entry, however often it is sent.
Rule 2: No entry is in the stream before it is due. Its ID is of the time of its delivery, by the clock of a leader.
Rule 3: If CANCEL returned 1, the entry is gone. If it returned 0, the entry is in the stream.
Rule 4: Entries with AT join in the order of their times, and of the commands within a millisecond.
Rule 5: The policy evicts nothing that it retains. At the end, nothing exceeds it.

As in ``checker``, without ``lossless`` only what WAIT has confirmed must hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

from tests.simulation.checker import Ledger, check_rows, number
from tests.simulation.clients import SimConnection, Word
from tidelog.flows.testing.virtualloop import BEGIN_NS

FAR: Final = 3_600_000  # ms: not due within a run
ROUNDING: Final = 60  # ms by which served time may deviate (servedtime.DRIFT_MS), and times are rounded
ALL: Final = 1000  # most entries of a page of LIST; a stream has fewer
Rows = Sequence[Sequence[bytes]]


def wall() -> float:
    """Return the time in ms, by a clock without drift."""
    loop: Any = asyncio.get_running_loop()
    return float(BEGIN_NS / 1e6 + loop.virtual * 1000)


class DelayedEntry:
    """One logical entry. ``name``: its token; empty until the server has chosen it, and no longer known after the
    delivery then."""

    def __init__(self, name: bytes, ms: int, due: int) -> None:
        self.name = name
        self.chosen = bool(name)
        self.ms = ms  # until it is due, for IN
        self.due = due  # ms since the epoch, for AT; 0: IN
        self.sent: dict[bytes, float] = {}  # value -> when it was sent (ms), of each TDELAY that may have made it
        self.unanswered = 0  # TDELAYs without a reply: they may still be executed
        self.acked = 0.0  # when the first reply arrived; 0: none did
        self.promised = False  # and all replicas have it
        self.cancels = 0  # CANCELs that were sent
        self.cancelled = False  # CANCEL returned 1, and nothing can add it again
        self.cancelled_for_good = False  # and all replicas have that
        self.joined = False  # it was seen, or CANCEL returned 0
        self.id = b""  # under which it was seen

    @property
    def far(self) -> bool:
        return self.ms >= FAR

    def words(self, key: str, value: bytes) -> tuple[Word, ...]:
        when: tuple[Word, ...] = ("AT", self.due) if self.due else ("IN", self.ms)
        chosen: tuple[Word, ...] = ("ID", self.name) if self.name else ()
        return ("TDELAY", key, *when, *chosen, "v", value, "pad", b"x" * (len(self.sent) % 3 * 300))


class DelayedStream:
    """One stream. ``policy``: the arguments of TCFG RETAIN; () if there is none."""

    def __init__(self, ledger: Ledger, key: str, policy: tuple[Word, ...]) -> None:
        self.ledger = ledger
        self.key = key
        self.policy = policy
        self.entries: list[DelayedEntry] = []  # in the order of the commands
        self.by_value: dict[bytes, DelayedEntry] = {}
        self.repeats: set[bytes] = set()  # values of TDELAYs whose token was known, and which therefore make no entry

    def send(self, entry: DelayedEntry, value: bytes) -> tuple[Word, ...]:
        """Return the command that adds an entry, or repeats it."""
        if not entry.sent:
            self.entries.append(entry)
        words = entry.words(self.key, value)
        if self.must_hold(entry):
            self.repeats.add(value)
        else:
            entry.sent[value] = wall()
            self.by_value[value] = entry
        entry.unanswered += 1
        return words

    def must_hold(self, entry: DelayedEntry) -> bool:
        """Return whether an entry is delayed or in its stream, if it was not cancelled or evicted."""
        return bool(entry.acked) if self.ledger.lossless else entry.promised

    def cancelled(self, entry: DelayedEntry) -> bool:
        return entry.cancelled if self.ledger.lossless else entry.cancelled_for_good

    def expected(self) -> tuple[list[DelayedEntry], list[DelayedEntry]]:
        """Return the entries that a read of the leader that begins now must show: all, and those that have joined."""
        all_ = [entry for entry in self.entries if self.must_hold(entry) and not entry.cancels]
        joined = [entry for entry in self.entries if entry.joined and self.ledger.lossless]
        return all_, joined

    async def ask(self, server: SimConnection) -> None:
        """Check the stream and the delayed entries at one moment. A replica may show an earlier state."""
        all_, joined = self.expected()
        replies = await server.ask(
            ("MULTI",), ("ROLE",), ("TRANGE", self.key, "-", "+"), ("TDELAY", self.key, "LIST", 0, "COUNT", ALL),
            ("TINFO", self.key), ("EXEC",),
        )  # fmt: skip
        if not isinstance(replies[-1], list):
            return
        role, rows, page, about = replies[-1]
        if any(isinstance(reply, Exception) for reply in (role, rows, page)):
            return
        self.check(rows, page)
        if not isinstance(about, Exception):
            self.check_policy(rows, dict(zip(about[::2], about[1::2], strict=True)))
        if role[0] == b"master":
            self.check_missing(rows, page, all_, joined)

    def see(self, rows: Rows) -> list[DelayedEntry]:
        """Check entries of the stream, as any member may show them, and return them."""
        found, now, skew = [], wall(), self.ledger.skew
        for row, value in zip(rows, check_rows(self.key, rows), strict=True):
            assert value not in self.repeats, f"{self.key}: a repeated token has made the entry {value!r}"
            assert value in self.by_value, f"{self.key}: the entry {value!r}, which nobody has sent"
            entry, ms = self.by_value[value], number(row[0])[0]
            sent = entry.sent[value]
            assert ms <= now + skew + 1, f"{self.key}: the ID of {value!r} is of the future, by {ms - now} ms"
            if entry.due:
                assert ms >= entry.due, f"{self.key}: {value!r} joined {entry.due - ms} ms before it was due"
            else:
                early = sent + entry.ms - ROUNDING - min(ms + skew, now + self.ledger.served_skew)
                assert early <= 0, f"{self.key}: {value!r} joined {early} ms before it was due"
            assert not self.cancelled(entry), f"{self.key}: {value!r} was cancelled, and has joined"
            if self.ledger.lossless:
                assert entry.id in (b"", row[0]), f"{self.key}: the ID of {value!r} changes"
                entry.id, entry.joined = row[0], True
            found.append(entry)
        names = [entry.name for entry in found if entry.chosen]
        assert len(names) == len(set(names)), f"{self.key}: a token has two entries"
        self.ledger.delayed += len(found)
        return found

    def check(self, rows: Rows, page: Any) -> None:
        """Check what any member may show at one moment."""
        cursor, listed = page
        assert cursor == b"0", f"{self.key}: more delayed entries than were sent"
        found, waiting = self.see(rows), [self.by_value.get(row[3]) for row in listed]
        times = [row[1] for row in listed]
        assert times == sorted(times), f"{self.key}: LIST is not in the order of the times"
        for entry, row in zip(waiting, listed, strict=True):
            assert row[3] not in self.repeats, f"{self.key}: a repeated token has delayed the entry {row[3]!r}"
            assert entry is not None, f"{self.key}: the delayed entry {row[3]!r}, which nobody has sent"
        names = [entry.name if entry.chosen else id(entry) for entry in (*found, *waiting) if entry is not None]
        assert len(names) == len(set(names)), f"{self.key}: an entry is in the stream and delayed, or twice delayed"
        if self.ledger.lossless:
            self._check_order(found)

    def _check_order(self, found: list[DelayedEntry]) -> None:
        """Rule 4, of the entries that were certainly delayed when they were due."""
        at = {id(entry): at for at, entry in enumerate(self.entries)}
        rows = [
            (entry.due, at[id(entry)]) for entry in found
            if entry.due and len(entry.sent) == 1 and 0 < entry.acked < entry.due - self.ledger.skew
        ]  # fmt: skip
        assert all(one < other for one, other in pairwise(rows)), f"{self.key}: entries joined in the wrong order"

    def check_policy(self, rows: Rows, about: dict[bytes, Any]) -> None:
        """Rule 5, at any member: what was evicted."""
        evicted = about[b"entries-added"] - len(rows)
        limits = dict(zip(self.policy[::2], self.policy[1::2], strict=False))
        if "COUNT" in limits:
            assert not evicted or len(rows) >= int(limits["COUNT"]), f"{self.key}: {len(rows)} entries are left"
        elif "AGE" in limits and evicted:
            young = number(about[b"evicted-to"])[0] + int(limits["AGE"]) - wall() - self.ledger.skew
            assert young <= 1, f"{self.key}: an entry was evicted {young} ms too early"
        else:
            assert not evicted, f"{self.key}: {evicted} entries are gone"

    def check_missing(
        self, rows: Rows, page: Any, all_: list[DelayedEntry], joined: list[DelayedEntry]
    ) -> None:  # fmt: skip
        """Check that the leader shows what it must."""
        cancelled = [row[3] for row in page[1] if self.cancelled(self.by_value[row[3]])]
        assert not cancelled, f"{self.key}: {cancelled[0]!r} was cancelled, and is delayed"
        there = {id(self.by_value[row[2]]) for row in rows}
        waiting = {id(self.by_value[row[3]]) for row in page[1]}
        again = [entry for entry in joined if id(entry) in waiting]
        assert not again, f"{self.key}: {again[0].name!r} has joined, and is delayed again"
        if self.policy:  # it may have evicted any entry that has joined; a far one has not
            gone = [entry for entry in all_ if entry.far and id(entry) not in waiting]
        else:
            gone = [entry for entry in joined if id(entry) not in there]
            gone += [entry for entry in all_ if id(entry) not in there | waiting]
        assert not gone, f"{self.key}: {len(gone)} entries are lost, such as {gone[0].name!r}"
