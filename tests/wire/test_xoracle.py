"""What Redis's stream commands have since 8.2, beside a plain model of its documentation: every reply must be the same.

No redis-server of 7.0 can be asked about it (test_differential_xstreams asks it about the rest). ``TIDELOG_SEED=17
TIDELOG_PROGRAMS=5000`` runs so many programs from the 17th on.
"""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from commands import slicing
from commands.redis_streams import claim, delete, groups, info, longread, pending, readgroup, trimming
from commands.streams import measured, newentries
from respserver.execution import slices
from respserver.testing import HandClock, RunningServer
from tests.wire.rawclient import Raw
from tests.wire.xprograms.compare import shrunk
from tests.wire.xprograms.newer import Maker, Program
from tests.wire.xprograms.oracle import ERROR, Oracle

PROGRAMS = int(os.environ.get("TIDELOG_PROGRAMS") or 60)


def first_seed() -> int:
    """A build machine runs the same programs each time."""
    seed = int(os.environ.get("TIDELOG_SEED") or (0 if os.environ.get("CI") else time.time_ns() % 1_000_000_000))
    print(f"TIDELOG_SEED={seed}")  # pytest shows it where the test fails
    return seed


class Pair:
    """The server and the model."""

    def __init__(self, hand: RunningServer, c: Raw) -> None:
        self._hand = hand
        self._c = c
        self._oracle = Oracle(0)

    def begin(self) -> None:
        assert self._c("FLUSHALL") == b"OK"
        assert isinstance(self._hand.server.clock, HandClock)
        self._oracle = Oracle(self._hand.server.clock.now())

    def run(self, words: list[str]) -> str:
        """Empty if both say the same."""
        if words[0] == "#":
            self._hand.advance(int(words[1]))
            self._oracle.now += int(words[1])
            return ""
        reply, wanted = self._c(*words), self._oracle.run(words)
        if isinstance(reply, str):
            reply = ERROR
        return "" if reply == wanted else f"{' '.join(words)}\n  ours:   {reply}\n  wanted: {wanted}"

    def whole(self) -> str:
        """The same for all that there is."""
        for key in self._oracle.keys:
            if said := self.run(["XRANGE", key, "-", "+"]):
                return said
        for key, name, group in self._oracle.groups():
            for words in (["XPENDING", key, name], ["XPENDING", key, name, "-", "+", "1000"]):
                if said := self.run(words):
                    return said
            rows: list[Any] = self._c("XINFO", "CONSUMERS", key, name)
            owned = [(row[1], row[3]) for row in rows]
            wanted = [
                (one.encode(), sum(each.owner == one for each in group.pending.values()))
                for one in sorted(group.consumers)
            ]
            if owned != wanted:
                return f"consumers of {key} {name}: {owned}, wanted {wanted}"
        return ""

    def differs(self, program: Program, reload: bool) -> str:
        self.begin()
        for words in program:
            if said := self.run(words):
                return said
        if said := self.whole():
            return said
        if reload:
            assert self._c("DEBUG", "RELOAD") == b"OK"
            return self.whole()
        return ""


def check(pair: Pair, seed: int, claim: str = "0") -> None:
    program = Maker(seed, claim).program()
    if pair.differs(program, seed % 4 == 0):
        short = shrunk(program, lambda shorter: bool(pair.differs(shorter, True)))
        lines = "\n".join(" ".join(words) for words in short)
        pytest.fail(f"TIDELOG_SEED={seed}\n{lines}\n\n{pair.differs(short, True)}")


@pytest.mark.timeout(60 + PROGRAMS)
def test_random_programs(hand: RunningServer, c: Raw) -> None:
    pair, seed = Pair(hand, c), first_seed()
    for at in range(seed, seed + PROGRAMS):
        check(pair, at)


@pytest.mark.interpreted
@pytest.mark.timeout(60 + PROGRAMS)
def test_random_programs_in_slices(hand: RunningServer, c: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of two: to a client that is alone they make no difference, but for a millisecond with CLAIM 0."""
    monkeypatch.setattr(slices, "TURN_NS", 1)
    for module in (slicing, claim, delete, groups, info, longread, pending, readgroup, trimming):
        monkeypatch.setattr(module, "AT_ONCE", 2)
    monkeypatch.setattr(measured, "MEASURED_AT_ONCE", 90)
    for each in (newentries, longread):
        monkeypatch.setattr(each, "NEW_AT_ONCE", 2)
    pair, seed = Pair(hand, c), first_seed()
    for at in range(seed, seed + PROGRAMS):
        check(pair, at, "1")
