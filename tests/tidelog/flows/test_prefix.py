"""The settled prefix, against a list that is looked through from its beginning."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tidelog.flows.connectors.settledprefix import SettledPrefix


class PrefixMachine(RuleBasedStateMachine):
    """The position is behind the last read of those that are settled from the beginning without a gap."""

    def __init__(self) -> None:
        super().__init__()
        self.prefix: SettledPrefix[int] = SettledPrefix(0)
        self.begin = 0
        self.end = 0
        self.number = 0
        self.reads: list[list[int]] = []  # key, position after it, settlements that are missing
        self.gone: list[int] = []

    def expected(self) -> int:
        position = self.begin
        for _, after, missing in self.reads:
            if missing:
                break
            position = after
        return position

    @rule(size=st.integers(0, 5), events=st.integers(0, 3))
    def read(self, size: int, events: int) -> None:
        before = self.expected()
        self.end += size
        self.number += 1
        self.reads.append([self.number, self.end, events])
        moved = self.prefix.add(self.number, self.end, events)
        assert moved == (events == 0 and all(not each[2] for each in self.reads))
        assert moved or self.expected() == before

    @precondition(lambda self: any(each[2] for each in self.reads))
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from([each for each in self.reads if each[2]]))
        first = next(each for each in self.reads if each[2]) is one
        one[2] -= 1
        assert self.prefix.settle(one[0]) == (first and not one[2])

    @rule(data=st.data())
    def settle_what_is_gone(self, data: st.DataObject) -> None:
        done = [each[0] for each in self.reads if not each[2]] + self.gone
        if done:
            assert not self.prefix.settle(data.draw(st.sampled_from(done)))

    @rule(position=st.integers(0, 100))
    def restart(self, position: int) -> None:
        self.gone += [each[0] for each in self.reads]
        self.reads.clear()
        self.begin = self.end = position
        self.prefix.restart(position)

    @invariant()
    def agrees(self) -> None:
        assert self.prefix.position == self.expected()
        settled = 0
        for each in self.reads:
            if each[2]:
                break
            settled += 1
        assert len(self.prefix) == len(self.reads) - settled


TestPrefix = PrefixMachine.TestCase


def test_a_key_is_added_once() -> None:
    prefix = SettledPrefix(0)
    prefix.add("a", 1)
    with pytest.raises(ValueError, match="added before"):
        prefix.add("a", 2)
    assert prefix.settle("a")
    prefix.add("a", 2)
    assert prefix.position == 1
    assert prefix.settle_all(["x", "a"])
    assert prefix.position == 2
