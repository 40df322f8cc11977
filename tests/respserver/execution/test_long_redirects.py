"""Redirections of calls with very many keys: the errors are those of short calls, and all keys count."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from commands import registry  # noqa: F401  (fills the command table)
from commands.declare import Command, lookup
from commands.slots import NO_SLOTS, SLOTS, slot_of
from coordinator import slotmap
from coordinator.slotmap import MapGroup, MapMember, SlotMap, SlotRange
from resp.errors import CommandError
from respserver.execution import redirects
from respserver.runtime.ownership import MOST_NOTED, SlotOwnership, table

pytestmark = pytest.mark.interpreted
NAMES = [b"{%d}k" % number for number in range(30)]


def _map(chance: random.Random) -> SlotMap:
    member = MapMember("1" * 40, "10.0.0.1", 7000)
    found = slotmap.create("c" * 40, "1", MapGroup("1" * 40, 1, "1a", 0, {"1a": member}), 1)
    found = slotmap.put_group(found, "2", MapGroup("2" * 40, 1, "2a", 0, {"2a": member}), 1)
    for name in NAMES:
        to = chance.choice(["1", "1", "1", "1", "2", ""] if chance.random() < 0.5 else ["1"])
        slot = slot_of(name)
        if to != found.owner(slot):
            epoch = 1 if found.owner(slot) == "1" else 0
            found = slotmap.assign(found, [SlotRange(slot, slot)], to, 1, "a test", "1", epoch)
    return found


def _outcome(slots: SlotOwnership, calls: list[tuple[Command, list[bytes]]]) -> object:
    cluster = SimpleNamespace(leader_of=lambda owner, session: (owner, 1), reads_when_down=False)
    ctx: Any = SimpleNamespace(ks=SimpleNamespace(follower=False), server=SimpleNamespace(cluster=cluster))
    session: Any = SimpleNamespace(multislot=True, queued=[], multi=False)
    try:
        redirects.check_calls(ctx, slots, session, calls)
    except CommandError as error:
        return error.text
    return redirects.must_wait(ctx, slots, *calls[0][:1], session, calls[0][1])


def test_a_long_call_gets_the_same_error_as_a_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    chance, seen = random.Random(1), set[object]()
    for _ in range(400):
        slots = SlotOwnership()
        slots.be_mapped("1")
        slots.use(_map(chance))
        slots.require(chance.random() < 0.3)
        slots.lead(chance.random() < 0.8, preparing=chance.random() < 0.2)
        held = [SlotRange(slot, slot) for slot in sorted(map(slot_of, chance.sample(NAMES, 5)))]
        slots.hold(table(held) if chance.random() < 0.5 else NO_SLOTS, waiting=chance.random() < 0.7)
        names = chance.sample(NAMES, chance.choice([1, 2, 3, 8]))
        argv = [b"MSET", *(word for name in names for word in (name, b"v"))]
        calls = [(lookup(argv), argv)]
        found = _outcome(slots, calls)
        with monkeypatch.context() as patch:
            patch.setattr(redirects, "_AT_ONCE", 0)
            assert _outcome(slots, calls) == found
        seen.add(str(found).split()[0])
    assert seen == {"MOVED", "CLUSTERDOWN", "TRYAGAIN", "True", "False"}


@pytest.mark.parametrize("distinct", [1, MOST_NOTED + 1])
def test_a_call_with_too_many_keys_ends_the_search(distinct: int) -> None:
    """The search for keys can't note all of them. Repeated keys count, too."""
    slots = SlotOwnership()
    slots.note(table([SlotRange(slot_of(b"x"), slot_of(b"x"))]))
    argv = [b"MSET", *(word for at in range(MOST_NOTED + 1) for word in (b"{y}%d" % (at % distinct), b"v"))]
    redirects._note(slots, [(lookup(argv), argv)])
    assert (slots.noted, slots.too_many) == (set(), False)
    redirects._note(slots, [(lookup(argv), [*argv, b"x", b"v"])])
    assert (slots.noted, slots.too_many) == (set(), True)
    slots.note(b"\1" * SLOTS)
    assert not slots.too_many
    short = [b"MSET", b"x", b"v", b"y", b"v"]
    redirects._note(slots, [(lookup(short), short)])
    assert (slots.noted, slots.too_many) == ({b"x", b"y"}, False)
