"""A simulated server group loses nothing that was acknowledged or seen, whatever fails."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest

from respserver.group.document import MemberRecord, ServerGroupState, decode
from tests.simulation.clients import LostError, RefusedError, SimConnection, answer
from tests.simulation.groupchecks import STATE, GroupRecord, forbidden
from tests.simulation.groupmembers import SimStore
from tests.simulation.groupmutations import GROUP_MUTATIONS
from tests.simulation.groups import GroupCase, GroupWorld, case, run
from tests.simulation.mutations import MUTATIONS, broken
from tests.simulation.simloop import SimLoop
from tests.simulation.slotmutations import SLOT_MUTATIONS
from tests.simulation.test_seeds import MINUTES
from tests.simulation.world import SimulationError, play

GUIDE = Path(__file__).parent.parent.parent / "docs/simulation.md"
pytestmark = pytest.mark.interpreted
QUICK = [name for name, mutation in GROUP_MUTATIONS.items() if mutation.quick]


def test_without_faults() -> None:
    result = run(GroupCase(1, faults=("failover",), seconds=2.0))
    assert result.acknowledged > 50


def test_a_planned_failover_does_not_wait_for_the_watches() -> None:
    """The lost connection to the old leader notifies the members. Without it, this takes 5 s."""
    with patch.object(SimStore, "_notify", lambda store, key: None):
        result = run(GroupCase(2, faults=("failover",), seconds=4.0))
    assert result.epochs > 2
    assert result.longest < 0.3


class Removal(GroupWorld):
    """A follower with a long lease is removed: while it runs, after it was killed, and when it has started again."""

    async def run(self) -> None:
        for member in self.members:
            member.start()
        await self._synced()
        await asyncio.sleep(2.5)  # followers have long leases
        leader, gone, other = sorted(self.members, key=lambda each: not each.may_release())
        running = f"{gone.name} is running: stop it first. If it has already ended, its lease expires within 22 s"
        for member in (leader, other):
            with pytest.raises(RefusedError, match=running):
                await answer(self.loop, member, "TMEMBER", "REMOVE", gone.name)
        gone.kill()
        with pytest.raises(RefusedError, match=running):  # a follower does not know whether it is connected
            await answer(self.loop, other, "TMEMBER", "REMOVE", gone.name)
        assert await answer(self.loop, leader, "TMEMBER", "REMOVE", gone.name) == b"OK"
        gone.start()  # it joins again
        await self._synced()

    async def _synced(self) -> None:
        """Wait until all members are in sync."""
        while STATE not in self.store.keys or len(decode(self.store.keys[STATE].value).in_sync) < len(self.members):
            self.check_trouble()
            await asyncio.sleep(0.1)


def test_a_follower_that_was_killed_is_removed_before_its_lease_ends() -> None:
    only = GroupCase(3, faults=(), works=())
    play(only.seed, lambda loop, top: Removal(only, loop, top), only)


@pytest.mark.parametrize("seed", [9, 12, 31])
def test_seeds(seed: int) -> None:
    """9 deletes the end of a log, 12 has many epochs, and 31 a long time without a leader."""
    assert run(replace(case(seed), seconds=4.0)).acknowledged > 10


def test_the_same_seed_is_the_same_run() -> None:
    short = replace(case(22), seconds=2.0)
    assert run(short) == run(short)


def detected(name: str) -> None:
    """Run seeds until one detects a mutation. The report is checked, and that the rule was what was wrong."""
    mutation = GROUP_MUTATIONS[name]
    with broken(mutation):
        for tried in mutation.tried():
            try:
                run(tried)
            except SimulationError as error:
                if mutation.report in str(error).partition("\n")[0]:
                    break
        else:
            pytest.fail(f"no seed detects this mutation: {mutation.patches.__doc__}")
    run(tried)


@pytest.mark.parametrize("name", QUICK)
def test_a_broken_rule_is_detected(name: str) -> None:
    detected(name)


@pytest.mark.long(short=True)
def test_every_broken_rule_is_detected() -> None:
    """Without TIDELOG_LONG, only one of those that are not quick."""
    for name in [name for name in GROUP_MUTATIONS if name not in QUICK][: None if MINUTES else 1]:
        detected(name)


@pytest.mark.long(short=True)
def test_many_seeds() -> None:
    end, seed, failed = time.monotonic() + MINUTES * 60, int(time.time()) * 1000 if MINUTES else 0, []
    while True:
        try:
            run(case(seed))
        except SimulationError as error:
            print(error)
            failed.append(seed)
        seed += 1
        if time.monotonic() >= end:
            break
    assert not failed


def test_the_guide_lists_all_broken_rules() -> None:
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| (\d+) \| ([^|]+) \|$", GUIDE.read_text(), re.MULTILINE)
    listed = {name: (each.case.seed, each.report) for name, each in GROUP_MUTATIONS.items()}
    listed |= {name: (each.case.seed, each.report) for name, each in SLOT_MUTATIONS.items()}
    listed |= {name: (each.seed, each.case.kind) for name, each in MUTATIONS.items()}
    assert {name: (int(seed), rest) for name, seed, rest in rows} == listed


@pytest.mark.parametrize(
    ("word", "error", "message"),
    [
        ("KEYS", RefusedError("MASTERDOWN Link with MASTER is down"), r"m[123] to KEYS \*: MASTERDOWN"),
        ("TRANGE", LostError("no answer in time"), r"m1 to TRANGE log - \+: no answer in time"),
        ("HELLO", TypeError("a bug"), "TypeError.*a bug"),
    ],
)
def test_a_member_that_does_not_answer_at_the_end(word: str, error: Exception, message: str) -> None:
    """The report names the member, the command, and the case. It does not say that entries are lost."""
    call = SimConnection.__call__

    async def failing(connection: SimConnection, *words: Any, **options: Any) -> Any:
        if words[0] == word and cast(SimLoop, asyncio.get_running_loop()).current.name == "world":
            raise error
        return await call(connection, *words, **options)

    with (
        patch.object(SimConnection, "__call__", failing),
        pytest.raises(SimulationError, match=f"(?s){message}.*GroupCase.seed=1,"),
    ):
        run(GroupCase(1, faults=("failover",), seconds=1.0))


def test_an_entry_keeps_its_id() -> None:
    record = GroupRecord()
    record.tell(1, b"5-0")
    record.show({(b"5-0", b"1"), (b"5-1", b"2")})
    with pytest.raises(AssertionError, match="the entries 2 and 3 have the same ID"):
        record.show({(b"5-1", b"3")})
    with pytest.raises(AssertionError, match="the ID of entry 1 changes"):
        record.tell(1, b"6-0")


@pytest.mark.parametrize(
    ("who", "new", "message"),
    [
        ("a", {"in_sync": ("a",)}, ""),
        ("a", {"in_sync": ("a", "b", "c")}, ""),
        ("c", {"in_sync": ("a", "b", "c")}, "it adds"),
        ("b", {"in_sync": ("a",)}, ""),  # it withdraws
        ("b", {"epoch": 5, "leader": "b", "in_sync": ("b",)}, ""),
        ("a", {"epoch": 5, "leader": "b"}, ""),  # it hands over
        ("b", {"epoch": 5, "leader": "b"}, "did not consent"),
        ("b", {"leader": "b"}, "leads in epoch 4"),
        ("b", {"epoch": 6, "leader": "b", "in_sync": ("b",)}, "epoch 6 follows"),
        ("c", {"epoch": 5, "leader": "c", "in_sync": ("c",)}, "the set was"),
    ],
)
def test_changes_of_the_state(who: str, new: dict[str, Any], message: str) -> None:
    record = MemberRecord("h:1", "0" * 40, "1")
    old = ServerGroupState("0" * 40, 4, "a", ("a", "b"), dict.fromkeys("abc", record))
    wrong = forbidden(who, old, replace(old, **new))
    assert message in wrong
    assert bool(message) == bool(wrong)
