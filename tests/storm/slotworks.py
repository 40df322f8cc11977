"""What clients of a cluster do, besides the works of a group. Slots move meanwhile.

Rule 1: an INCR returns each number once. Two owners of a slot would return the same number.
Rule 2: a string has one writer. A read shows what the last acknowledged call has written, or a later one; it never goes
        back. After a call without a reply, which may take effect much later, the writer uses another name with the same
        hash tag.
Rule 3: an entry that is appended with IDMP until there is a reply is there once.
Rule 4: what was refused is never there.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any, Final

from commands.slots import SLOTS, slot_of
from tests.simulation.clients import LostError, RefusedError
from tests.storm.delayworks import DELAYED, Delays, ReplicaReads
from tests.storm.replicatails import IDLE, ReplicaTails, TailRecord, WaitingReads
from tests.storm.routing import Routed
from tests.storm.works import STREAMS, Appends, Groups, Reads, Record, Tail, Work, XAppends, XGroups

COUNTERS: Final = ("n0", "n1", "n2")
IDEMPOTENT: Final = "i"
NAMES: Final = 10  # of a string that a deletion deletes
MOVE_PATIENCE: Final = 8.0  # seconds for the reply to TCLUSTER MOVE


class Count:
    """What clients know of a counter."""

    def __init__(self) -> None:
        self.sent = 0  # less those that were refused
        self.acked = 0
        self.returned: set[int] = set()
        self.shown = 0  # the highest number that a read has shown


class String:
    """What clients know of a string. The writer's calls are numbered; a call sets its number, or deletes the string."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.names = [f"{{{tag}}}0"]
        self.calls: list[bool | None] = [False]  # by number: whether it sets its number; None: it was refused
        self.acked = 0  # the number of the last call with a reply
        self.shown = 0  # the number of a call that a read has shown

    def check(self, found: bytes | None, acked: int, shown: int) -> None:
        """Check a read. ``acked``, ``shown``: when it began."""
        least = max(acked, shown)
        if found is None:
            matching = [at for at in range(least, len(self.calls)) if self.calls[at] is False]
            assert matching, (
                f"{self.tag}: it is gone, and call {least} of {len(self.calls) - 1} was acknowledged or seen"
            )
            self.shown = max(self.shown, matching[0])
        else:
            assert self.calls[int(found)], f"{self.tag}: {found!r} was never sent, or was refused"
            assert least <= int(found), f"{self.tag}: {found!r} is there, and call {least} was acknowledged or seen"
            self.shown = max(self.shown, int(found))


class SlotRecord(TailRecord):
    """The ledger of a round of a cluster. Each key has a slot of its own."""

    def __init__(self, prefix: str, strings: int, earlier: tuple[str, ...] = ()) -> None:
        """``earlier``: streams of earlier rounds that move, too."""
        super().__init__(prefix)
        self._earlier = earlier
        self.counters = {self.key(name): Count() for name in COUNTERS}
        self.strings = [String(f"{prefix}:s{at}") for at in range(strings)]
        self.moves: Counter[str] = Counter()  # calls of TCLUSTER, by command and outcome

    @property
    def keys(self) -> list[str]:
        return [*super().keys, self.key(IDEMPOTENT), *self.delayed_keys]

    @property
    def slots(self) -> list[int]:
        """The slots of all keys."""
        strings = [each.tag for each in self.strings]
        return [slot_of(key.encode()) for key in (*self.keys, self.key(IDLE), *self.counters, *strings, *self._earlier)]


class SlotAppends(Appends):
    """Also transactions over two slots (MULTISLOT), which are refused unless one group owns both."""

    record: SlotRecord

    async def step(self, member: str, server: Any) -> None:
        if self.random.random() < 0.8:
            await super().step(member, server)
            return
        key = self.record.key(self.random.choice(STREAMS))
        (value,) = self.values(key, 1)
        try:
            self.confirm(key, value, await server("TAPPEND", key, "v", value))
        except RefusedError:
            self.record.gone.add((key, value))
            raise


class Idempotent(Work):
    """Appends entries with IDMP, each until there is a reply."""

    def __init__(self, client: int, record: Record, chance: random.Random) -> None:
        super().__init__(client, record, chance)
        self._pending: list[bytes] = []
        self._pad = ""

    async def step(self, member: str, server: Any) -> None:
        key = self.record.key(IDEMPOTENT)
        if not self._pending:
            self._pending, self._pad = self.values(key, 1), self.pad()
        (value,) = self._pending
        self.confirm(key, value, await server("XADD", key, "IDMP", "p", value, "*", "v", value, "pad", self._pad))
        self._pending = []


class Counts(Work):
    """Counts, and reads counters."""

    record: SlotRecord

    async def step(self, member: str, server: Any) -> None:
        key = self.record.key(self.random.choice(COUNTERS))
        counter = self.record.counters[key]
        acked, shown = counter.acked, counter.shown
        if self.random.random() < 0.3:
            found = int(await server("GET", key) or 0)
            counter.shown = max(counter.shown, found)
        else:
            counter.sent += 1
            try:
                found = await server("INCR", key)
            except RefusedError:
                counter.sent -= 1
                raise
            assert found not in counter.returned, f"{key}: two calls of INCR have returned {found}"
            counter.returned.add(found)
            counter.acked += 1
            acked += 1
        self.record.reads += 1
        assert max(acked, shown) <= found <= counter.sent, (
            f"{key} is {found}: {acked} calls were acknowledged and {shown} was shown before, {counter.sent} sent"
        )


class Strings(Work):
    """Sets and deletes its own strings, and reads those of all clients."""

    record: SlotRecord

    async def step(self, member: str, server: Any) -> None:
        strings = self.record.strings
        if self.random.random() < 0.5:
            await self.look(server, self.random.choice(strings))
            return
        own = strings[self._client % 2 :: 2]  # two clients
        await self._write(server, self.random.choice(own))

    async def look(self, server: Any, string: String) -> None:
        """Read a string, and check it."""
        name, acked, shown = string.names[-1], string.acked, string.shown
        found = await server("GET", name)
        if name == string.names[-1]:
            self.record.reads += 1
            string.check(found, acked, shown)

    async def _write(self, server: Any, string: String) -> None:
        number, sets = len(string.calls), self.random.random() < 0.5
        string.calls.append(sets)
        names = string.names[-NAMES:]
        try:
            await (server("SET", names[-1], number) if sets else server("DEL", *names))
        except RefusedError:
            string.calls[number] = None
            raise
        except LostError:
            string.names.append(f"{{{string.tag}}}{len(string.names)}")
            string.calls.append(False)  # the new name has no value
            string.acked = len(string.calls) - 1
            raise
        string.acked = number


class SlotReads(Reads):
    """Reads whole streams, from the owner of the slot."""

    async def step(self, member: str, server: Any) -> None:
        key = self.record.key(self.random.choice((*STREAMS, "x", "g", IDEMPOTENT, *DELAYED)))
        expected = self.record.expected(key)
        rows = await server("TRANGE", key, "-", "+") or []
        self.record.check_read(key, rows, expected)
        self.record.check_ids(key, rows)


class Moves(Work):
    """Moves and assigns slots, and aborts moves."""

    record: SlotRecord

    async def step(self, member: str, server: Any) -> None:
        assert isinstance(server, Routed)
        (found,) = await server.at(self.random.choice(server.members), ("TCLUSTER", "MAP"))
        if not isinstance(found, bytes):
            raise LostError(f"no map: {found}")
        known = json.loads(found)
        slot = self.random.choice(self.record.slots)
        first, last, source = next(each for each in known["slots"] if each[0] <= slot <= each[1])
        width = self.random.choice((0, 0, 100, 2000, SLOTS))
        words = [f"{max(first, slot - width)}-{min(last, slot + width)}"]
        action = self.random.choice(("MOVE", "MOVE", "MOVE", "MOVE", "ASSIGN", "ASSIGN", "ABORT"))
        target = self.random.choice([each for each in known["groups"] if each != source])
        command = ("TCLUSTER", action, *words, "TO", target) if action != "ABORT" else ("TCLUSTER", "ABORT")
        try:
            (reply,) = await server.at(known["groups"][source]["leader"], command, patience=MOVE_PATIENCE)
        except LostError:
            self.record.moves[f"{action} lost"] += 1
            raise
        self.record.moves[f"{action} {'done' if reply == b'OK' else 'refused'}"] += 1
        if reply != b"OK" and "Bug" in str(reply):
            raise AssertionError(f"{command}: {reply}")


WORKS: tuple[type[Work], ...] = (
    SlotAppends, SlotAppends, XAppends, Idempotent, Groups, XGroups, Counts, Counts, Strings, Strings, SlotReads,
    SlotReads, Tail, Moves, Moves, Delays, Delays, ReplicaReads, ReplicaReads,
    ReplicaTails, ReplicaTails, WaitingReads, WaitingReads,
)  # fmt: skip
