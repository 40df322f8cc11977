"""The map of a cluster: each slot has one owner or none, whatever changes are made, and invalid maps are refused."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator import slotmap
from coordinator.slotmap import SLOTS, MapGroup, MapMember, OwnedRange, SlotMap, SlotMapError, SlotRange

CLUSTER = "c" * 40


def group(name: str, epoch: int = 1) -> MapGroup:
    leader = MapMember("1" * 40, "127.0.0.1", 7000 + ord(name[0]))
    return MapGroup(name[0].encode().hex().ljust(40, "0"), epoch, f"{name}a", 0, {f"{name}a": leader})


def two_groups() -> SlotMap:
    """Return a map of the groups 1, which owns all slots, and 2."""
    return slotmap.put_group(slotmap.create(CLUSTER, "1", group("1"), 1), "2", group("2"), 2)


def give(before: SlotMap, *words: str, to: str, by: str = "1", epoch: int = 1) -> SlotMap:
    return slotmap.assign(before, slotmap.parse_ranges(words), to, 3, "a test", by, epoch)


def test_the_first_group_owns_all_slots() -> None:
    created = slotmap.create(CLUSTER, "1", group("1"), 1)
    assert (created.version, created.slots) == (1, (OwnedRange(0, SLOTS - 1, "1"),))
    assert created.events[-1].what == "group 1 owns all slots"
    assert slotmap.decode(created.encode()) == created


def test_the_document_is_that_of_the_drawing() -> None:
    found = json.loads(give(two_groups(), "8192-16383", to="2").encode())
    assert found["slots"] == [[0, 8191, "1"], [8192, 16383, "2"]]
    assert (found["format"], found["cluster_id"], found["version"]) == (1, CLUSTER, 3)
    assert found["groups"]["2"] == {
        "id": "32" + "0" * 38, "epoch": 1, "leader": "2a", "seen": 0,
        "members": {"2a": {"id": "1" * 40, "host": "127.0.0.1", "port": 7050, "tls_port": 0, "hostname": ""}},
    }  # fmt: skip
    assert found["events"][-1] == {
        "time": 3, "version": 3, "what": "slots 8192-16383 belong to group 2", "why": "a test",
    }  # fmt: skip


def test_slots_change_their_owner() -> None:
    changed = give(two_groups(), "5", "100-200", to="2")
    assert [changed.owner(slot) for slot in (0, 5, 6, 100, 200, 201)] == ["1", "2", "1", "2", "2", "1"]
    assert changed.ranges("2") == [SlotRange(5, 5), SlotRange(100, 200)]
    assert (changed.count("1"), changed.count("2")) == (SLOTS - 102, 102)
    assert give(changed, "5", "100-200", to="1", by="2").slots == (OwnedRange(0, SLOTS - 1, "1"),)


def test_slots_without_an_owner_are_gaps() -> None:
    changed = give(two_groups(), "0-9", "16383", to="")
    assert changed.unassigned() == [SlotRange(0, 9), SlotRange(16383, 16383)]
    assert changed.owner(9) == ""
    assert changed.owner(16383) == ""
    assert slotmap.decode(changed.encode()) == changed
    again = give(changed, "0-9", to="2", by="")  # anybody may assign them
    assert again.owner(3) == "2"


def test_only_the_leader_of_the_current_epoch_gives_slots_away() -> None:
    with pytest.raises(SlotMapError, match="slots 0-9 belong to group 1: only its leader can assign them"):
        give(two_groups(), "0-9", to="2", by="2")
    led = slotmap.put_group(two_groups(), "1", group("1", epoch=2), 4)
    with pytest.raises(SlotMapError, match="group 1 is led in epoch 2, and not in epoch 1"):
        give(led, "0-9", to="2")
    assert give(led, "0-9", to="2", epoch=2).owner(0) == "2"
    with pytest.raises(SlotMapError, match="group 1 is led in epoch 2, and this member led in epoch 1"):
        slotmap.put_group(led, "1", group("1"), 5)


def test_what_does_not_change_has_no_new_version() -> None:
    known = two_groups()
    assert slotmap.put_group(known, "2", group("2"), 9) is known
    assert give(known, "0-9", to="1", by="2") is known


def test_a_group_that_owns_slots_is_not_removed() -> None:
    changed = give(two_groups(), "7", to="2")
    with pytest.raises(SlotMapError, match=r"group 2 owns slot 7: move them to another group first \(TCLUSTER"):
        slotmap.remove_group(changed, "2", 4)
    emptied = give(changed, "7", to="1", by="2")
    assert list(slotmap.remove_group(emptied, "2", 4).groups) == ["1"]
    with pytest.raises(SlotMapError, match="the cluster has no group 3: it has 1, 2"):
        slotmap.remove_group(changed, "3", 4)


def test_groups_with_the_same_name_or_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SlotMapError, match="another group with the name 2"):
        slotmap.put_group(two_groups(), "2", group("3"), 3)
    monkeypatch.setattr(slotmap, "MOST_GROUPS", 2)
    with pytest.raises(SlotMapError, match="2 groups, the largest number"):
        slotmap.put_group(two_groups(), "3", group("3"), 3)
    with pytest.raises(SlotMapError, match="the cluster has no group 3: it has 1, 2"):
        give(two_groups(), "0", to="3")


def test_only_the_last_events_stay() -> None:
    changed = two_groups()
    for epoch in range(2, 150):
        changed = slotmap.put_group(changed, "1", group("1", epoch), epoch)
    assert (changed.version, len(changed.events), changed.events[-1].version) == (150, 100, 150)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["0-5", "5-9"], "the ranges 0-5 and 5-9 overlap: name each slot once"),
        (["7", "7"], "the ranges 7 and 7 overlap"),
        (["0-16384"], "'0-16384' is not a range of slots: they are numbered from 0 to 16383"),
        (["9-5"], "'9-5' is not a range of slots"),
        (["-1"], "'-1' is not a range of slots: write, for example, 0-4095"),
        (["x"], "'x' is not a range"),
        (["123456"], "'123456' is not a range"),
        ([], "no slots are named"),
    ],
)
def test_ranges_that_a_user_got_wrong(words: list[str], error: str) -> None:
    with pytest.raises(SlotMapError, match=error):
        slotmap.parse_ranges(words)


def test_ranges_are_sorted_and_joined() -> None:
    assert slotmap.parse_ranges(["10-20", "0", "1-9"]) == [SlotRange(0, 20)]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"slots": [[0, 9, "1"], [9, 20, "2"]]}, r"0-9 \(group 1\) and 9-20 \(group 2\) overlap or are not sorted"),
        ({"slots": [[5, 9, "1"], [0, 1, "1"]]}, "overlap or are not sorted"),
        ({"slots": [[0, 16384, "1"]]}, "the invalid range 0-16384"),
        ({"slots": [[9, 5, "1"]]}, "the invalid range 9-5"),
        ({"slots": [[True, 5, "1"]]}, "the invalid range"),
        ({"slots": [[0, 5, "7"]]}, "gives 0-5 to the unknown group '7'"),
        ({"slots": [[0, 5, []]]}, "is damaged"),
        ({"slots": [[0, 5]]}, "is damaged"),
        ({"format": 2}, "has format 2, but this version of tidelog supports only format 1: upgrade this member"),
        ({"version": 0}, "is damaged"),
        ({"version": "7"}, "is damaged"),
        ({"cluster_id": "x"}, "is damaged"),
        ({"groups": {"1": {"id": "1" * 40, "epoch": 1, "leader": "a", "seen": 0, "members": {}}}}, "is damaged"),
        ({"groups": []}, "is damaged"),
    ],
)
def test_invalid_maps_are_refused(change: dict[str, Any], error: str) -> None:
    with pytest.raises(SlotMapError, match=error):
        slotmap.decode(json.dumps(two_groups().document() | change).encode())


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b"\xff", b"null", b'"x"'])
def test_what_is_no_map_is_refused(raw: bytes) -> None:
    with pytest.raises(SlotMapError, match=r"is damaged.*restore the key from a backup of the coordinator"):
        slotmap.decode(raw)


def test_fields_of_another_version_are_ignored() -> None:
    found = two_groups().document()
    found["later"] = found["groups"]["1"]["later"] = found["groups"]["1"]["members"]["1a"]["later"] = 1
    assert slotmap.decode(json.dumps(found).encode()) == two_groups()


slots = st.one_of(st.integers(0, 20), st.integers(16370, SLOTS - 1))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(slots, slots, st.sampled_from(["", "1", "2"])), max_size=12))
def test_after_any_changes_each_slot_has_the_last_owner(changes: list[tuple[int, int, str]]) -> None:
    model = ["1"] * SLOTS
    found = two_groups()
    for a, b, to in changes:
        ranges = [SlotRange(min(a, b), max(a, b))]
        for owner, owned in slotmap.owners_of(found, ranges).items():
            found = slotmap.assign(found, owned, to, 1, "a test", owner, 1 if owner else 0)
        model[ranges[0].first : ranges[0].last + 1] = [to] * (ranges[0].last - ranges[0].first + 1)
    assert [found.owner(slot) for slot in range(SLOTS)] == model
    assert slotmap.decode(found.encode()) == found
    assert sum(each.last - each.first + 1 for each in found.unassigned()) == model.count("")
    for before, after in pairwise(found.slots):
        assert before.group != after.group or before.last + 1 < after.first
