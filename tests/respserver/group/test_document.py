"""The state of a server group: its changes keep the rules, whatever order they come in."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from respserver.group import document
from respserver.group.document import GroupStateError, MemberRecord, ServerGroupState

ID = "a" * 40
NAMES = ("m1", "m2", "m3", "m4")
names = st.sampled_from(NAMES)


def record(name: str, directory: int = 0, version: str = "0.1.0") -> MemberRecord:
    return MemberRecord(f"{name}:6379", f"{NAMES.index(name)}{directory:039d}", version)


def group(*members: str, in_sync: tuple[str, ...] = ()) -> ServerGroupState:
    state = document.create(ID, members[0], record(members[0]), 1)
    for name in members[1:]:
        state = document.join(state, name, record(name), 2)
    return document.set_in_sync(state, in_sync or members, 3, "a test")


def test_a_new_group_has_one_member_that_leads() -> None:
    state = document.create(ID, "m1", record("m1"), 1)
    assert (state.epoch, state.leader, state.in_sync) == (1, "m1", ("m1",))
    assert state.events[-1].why == "the group was created"


def test_a_member_joins_out_of_sync() -> None:
    state = document.join(group("m1"), "m2", record("m2"), 2)
    assert state.in_sync == ("m1",)
    assert document.join(state, "m2", record("m2"), 3) is state


def test_a_member_with_a_new_directory_leaves_the_set() -> None:
    state = document.join(group("m1", "m2"), "m2", record("m2", 1), 4)
    assert state.in_sync == ("m1",)
    assert "new data directory" in state.events[-1].why


def test_the_only_member_with_all_data_cannot_come_back_without_it() -> None:
    with pytest.raises(GroupStateError, match="only its previous one has all acknowledged data"):
        document.join(group("m1", "m2", in_sync=("m1",)), "m1", record("m1", 1), 4)


def test_the_only_member_with_all_data_is_not_removed() -> None:
    state = document.join(group("m1", "m2"), "m1", record("m1", 1), 4)
    assert (state.leader, state.in_sync) == ("m1", ("m2",))
    with pytest.raises(GroupStateError, match="m2 is the only member in sync"):
        document.remove(state, "m2", 5)


def test_a_leader_that_lost_its_data_does_not_return_to_the_set_by_a_change_of_the_set() -> None:
    state = document.join(group("m1", "m2"), "m1", record("m1", 1), 4)
    assert document.set_in_sync(state, ("m1", "m2"), 5, "a test") is state


def test_a_new_leader_removes_the_old_one() -> None:
    state = document.elect(group("m1", "m2", "m3"), "m2", 4, "a test")
    assert (state.epoch, state.leader, state.in_sync) == (2, "m2", ("m2", "m3"))


def test_a_leader_that_is_elected_again_keeps_the_others() -> None:
    assert document.elect(group("m1", "m2"), "m1", 4, "a test").in_sync == ("m1", "m2")


def test_only_members_in_sync_lead() -> None:
    state = group("m1", "m2", "m3", in_sync=("m1", "m2"))
    with pytest.raises(GroupStateError, match="m3 is not in the in-sync set"):
        document.elect(state, "m3", 4, "a test")
    with pytest.raises(GroupStateError, match="m3 is not in the in-sync set"):
        document.hand_over(state, "m3", 4, "a test")


def test_handing_over_keeps_the_old_leader() -> None:
    state = document.hand_over(group("m1", "m2"), "m2", 4, "a test")
    assert (state.epoch, state.leader, state.in_sync) == (2, "m2", ("m1", "m2"))


def test_handing_over_and_leaving_the_set() -> None:
    state = document.hand_over(group("m1", "m2", "m3"), "m2", 4, "a test", stays=False)
    assert (state.epoch, state.leader, state.in_sync) == (2, "m2", ("m2", "m3"))


def test_removal() -> None:
    state = document.remove(group("m1", "m2", "m3"), "m3", 4)
    assert (sorted(state.members), state.in_sync) == (["m1", "m2"], ("m1", "m2"))
    with pytest.raises(GroupStateError, match="no member m3: it has m1, m2"):
        document.remove(state, "m3", 5)
    with pytest.raises(GroupStateError, match="m1 is the leader: hand over first"):
        document.remove(state, "m1", 5)
    with pytest.raises(GroupStateError, match="m1 is the leader"):
        document.remove(state, "m1", 5, state.epoch - 1)
    vacant = document.remove(state, "m1", 5, state.epoch)
    assert (vacant.leader, sorted(vacant.members), vacant.in_sync) == ("", ["m2"], ("m2",))
    assert document.elect(vacant, "m2", 6, "a test").leader == "m2"


def test_the_only_member_in_sync_is_not_removed() -> None:
    """The leader has lost its disk, and the other member is stopped: the set would be empty, and nobody could lead."""
    state = document.join(group("m1", "m2"), "m1", record("m1", 1), 4)
    assert (state.leader, state.in_sync) == ("m1", ("m2",))
    with pytest.raises(GroupStateError, match="m2 is the only member in sync, so only it has all acknowledged data"):
        document.remove(state, "m2", 5)


def test_a_leader_without_its_data_does_not_return_to_the_set() -> None:
    state = document.join(group("m1", "m2"), "m1", record("m1", 1), 4)
    assert document.set_in_sync(state, ["m1", "m2"], 5, "a test") == state


def test_the_last_member_in_sync_stays() -> None:
    state = group("m1", "m2", in_sync=("m1",))
    assert document.withdraw(state, "m1", 4, "a test") is state
    assert document.withdraw(group("m1", "m2"), "m2", 4, "a test").in_sync == ("m1",)


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b'{"format": 1}', json.dumps({"format": 1, "group_id": ID, "epoch": 1}).encode()]
)
def test_a_damaged_state(text: bytes) -> None:
    with pytest.raises(GroupStateError, match="is damaged"):
        document.decode(text)


def changed(part: str, **fields: object) -> bytes:
    """A state in which each member, each event, or the state itself has these fields; None removes one."""
    found = json.loads(group("m1", "m2").encode())
    for each in {"members": found["members"].values(), "events": found["events"], "state": [found]}[part]:
        each.update(fields)
        for name in [name for name, value in fields.items() if value is None]:
            del each[name]
    return json.dumps(found).encode()


@pytest.mark.parametrize("part", ["members", "events", "state"])
def test_fields_of_another_version_are_ignored(part: str) -> None:
    assert document.decode(changed(part, later=[1])) == group("m1", "m2")


@pytest.mark.parametrize(
    ("part", "fields", "what"),
    [
        ("members", {"address": None}, "address"),
        ("members", {"id": 7}, "id"),
        ("members", {"version": []}, "version"),
        ("events", {"why": None}, "why"),
        ("events", {"time": "1"}, "time"),
        ("events", {"epoch": True}, "epoch"),
        ("state", {"members": {"m1": []}}, "list"),
        ("state", {"events": None}, "events"),
    ],
)
def test_fields_that_are_missing_or_of_another_type_are_damage(part: str, fields: dict[str, object], what: str) -> None:
    with pytest.raises(GroupStateError, match=rf"is damaged \(.*{what}.* delete the keys of the group"):
        document.decode(changed(part, **fields))


def test_a_newer_format() -> None:
    text = json.dumps({**json.loads(group("m1").encode()), "format": 2}).encode()
    with pytest.raises(GroupStateError, match=r"has format 2, .* only format 1: upgrade this member"):
        document.decode(text)


@settings(max_examples=20, deadline=None)
@given(st.lists(names, min_size=1, unique=True), st.sampled_from([1, document.MOST_EVENTS + 1]))
def test_encoding(members: list[str], changes: int) -> None:
    state = group(*members)
    for number in range(changes):
        state = document.hand_over(state, members[number % len(members)], number, "a test")
    assert document.decode(state.encode()) == state
    assert len(state.events) <= document.MOST_EVENTS


class Changes(RuleBasedStateMachine):
    """Changes by members whose data is a number of acknowledged writes: no leader ever lacks one."""

    def __init__(self) -> None:
        super().__init__()
        self.state = document.create(ID, "m1", record("m1"), 0)
        self.directory = dict.fromkeys(NAMES, 0)
        self.writes = 0
        self.has = dict.fromkeys(NAMES, 0)  # acknowledged writes that each has on disk

    @rule()
    def write(self) -> None:
        """Acknowledged by all members of the set."""
        self.writes += 1
        for name in self.state.in_sync:
            self.has[name] = self.writes

    @rule(name=names)
    def join(self, name: str) -> None:
        self.state = document.join(self.state, name, record(name, self.directory[name]), 1)

    @rule(name=names)
    def catch_up(self, name: str) -> None:
        if name in self.state.members:
            self.has[name] = self.writes
            self.state = document.set_in_sync(self.state, {*self.state.in_sync, name}, 1, "a test")

    @rule(name=names)
    def shrink(self, name: str) -> None:
        self.state = document.set_in_sync(self.state, set(self.state.in_sync) - {name}, 1, "a test")

    @rule(name=names)
    def withdraw(self, name: str) -> None:
        self.state = document.withdraw(self.state, name, 1, "a test")

    @rule(name=names)
    def lose_disk(self, name: str) -> None:
        """The member starts with an empty directory; it joins before anything else."""
        fresh = record(name, self.directory[name] + 1)
        try:
            self.state = document.join(self.state, name, fresh, 1)
        except GroupStateError:
            return
        self.directory[name] += 1
        self.has[name] = 0

    @rule(name=names)
    def elect(self, name: str) -> None:
        before = self.state
        try:
            self.state = document.elect(self.state, name, 1, "a test")
        except GroupStateError:
            return
        assert self.state.epoch == before.epoch + 1
        assert before.leader == name or before.leader not in self.state.in_sync

    @rule(name=names, stays=st.booleans())
    def hand_over(self, name: str, stays: bool) -> None:
        if name in self.state.in_sync:
            self.state = document.hand_over(self.state, name, 1, "a test", stays)

    @rule(name=names)
    def remove(self, name: str) -> None:
        try:
            self.state = document.remove(self.state, name, 1)
        except GroupStateError:
            pass

    @invariant()
    def members_in_sync_have_everything(self) -> None:
        assert self.state.in_sync
        assert set(self.state.in_sync) <= set(self.state.members)
        assert all(self.has[name] == self.writes for name in self.state.in_sync)
        assert document.decode(self.state.encode()) == self.state


TestChanges = Changes.TestCase
TestChanges.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
