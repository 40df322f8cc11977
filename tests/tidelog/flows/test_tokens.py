"""Tokens against a model: trees of forks, splits, groups and hops, ended in any order.

Invariant: each token's owner is told once, after its last branch, with the worst status of all its branches.
"""

from __future__ import annotations

import gc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.flows import Event
from tidelog.flows.api.tokens import (
    DISCARD,
    OK,
    REJECT,
    RETRY,
    Settleable,
    SettledTwiceError,
    Token,
    TokenGroup,
    WatchedToken,
    owners,
    settle_all,
)


class Owner:
    def __init__(self) -> None:
        self.done: list[Token] = []
        self.debug = True
        self.wakes = 0
        self.lost: list[str] = []

    def wake(self) -> None:
        self.wakes += 1

    def settled_twice(self, token: Token | TokenGroup) -> None:
        raise SettledTwiceError(repr(token))

    def lost_unsettled(self, text: str) -> None:
        self.lost.append(text)

    def told(self) -> dict[Any, tuple[int, str]]:
        assert len({id(each) for each in self.done}) == len(self.done)
        return {each.key: (each.status, each.reason) for each in self.done}


class Leaf:
    """A branch's end in the model: a token, and the keys of the source's tokens that its end counts for."""

    def __init__(self, token: Settleable, keys: list[int], shares: list[Leaf] | None = None) -> None:
        self.token = token
        self.keys = keys
        self.status: int | None = None
        self.family = [] if shares is None else shares  # parts of one split group: their worst status counts for all
        self.family.append(self)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_owners_are_told_once_with_the_worst_status(data: st.DataObject) -> None:
    owner, hop = Owner(), Owner()
    count = data.draw(st.integers(1, 5))
    leaves = [Leaf(Token(owner, number), [number]) for number in range(count)]
    for _ in range(data.draw(st.integers(0, 15))):
        move = data.draw(st.sampled_from(["fork", "split", "group", "hop"]))
        whole = [each for each in leaves if len(each.family) == 1]
        leaf = data.draw(st.sampled_from(leaves))
        if (move == "fork" and isinstance(leaf.token, Token)) or (move == "fork" and leaf in whole):
            leaves.append(Leaf(leaf.token.fork(), leaf.keys))
        elif move == "split":
            more = data.draw(st.integers(1, 3))
            leaf.token.split(more)
            leaves += [Leaf(leaf.token, leaf.keys, leaf.family) for _ in range(more)]
        elif move == "group" and whole:
            members = data.draw(st.lists(st.sampled_from(whole), min_size=1, unique_by=id))
            leaves = [each for each in leaves if each not in members]
            group = TokenGroup([each.token for each in members])
            leaves.append(Leaf(group, [key for each in members for key in each.keys]))
        elif move == "hop" and leaf in whole:
            leaf.token = Token(hop, None, leaf.token)
    ended: list[Leaf] = []
    for leaf in data.draw(st.permutations(leaves)):
        leaf.status = data.draw(st.sampled_from([OK, DISCARD, REJECT, RETRY]))
        leaf.token.settle(leaf.status, f"{leaf.status}")
        ended.append(leaf)
        while hop.done:
            token = hop.done.pop()
            assert token.parent is not None
            token.parent.settle(token.status, token.reason)
        told = owner.told()
        for key in range(count):
            mine = [each for each in leaves if key in each.keys]
            if all(each.status is not None for each in mine):
                worst = max(each.status for each in mine if each.status is not None)
                assert told[key] == (worst, f"{worst}" if worst else "")
            else:
                assert key not in told
    with pytest.raises(SettledTwiceError):
        ended[-1].token.settle()


@given(st.lists(st.sampled_from([OK, DISCARD, REJECT, RETRY]), min_size=1, max_size=8))
def test_items_are_settled_each_by_its_own(statuses: list[int]) -> None:
    owner = Owner()
    group = TokenGroup([Token(owner, number) for number in range(len(statuses))])
    group.settle_items([(status, f"{status}") for status in statuses])
    assert owner.told() == {number: (each, f"{each}" if each else "") for number, each in enumerate(statuses)}
    with pytest.raises(SettledTwiceError):
        group.settle_items([(OK, "")] * len(statuses))


def test_items_of_a_split_group_share_a_fate() -> None:
    owner = Owner()
    group = TokenGroup([Token(owner, number) for number in range(2)])
    group.split(1)
    with pytest.raises(ValueError, match="split"):
        group.settle_items([(OK, ""), (OK, "")])
    with pytest.raises(ValueError, match="1 outcomes for a group of 2"):
        group.settle_items([(OK, "")])
    group.settle(REJECT, "bad")
    assert owner.told() == {}
    with pytest.raises(ValueError, match="split"):  # what is left is not the whole: its items are not the members
        group.settle_items([(OK, ""), (RETRY, "busy")])
    assert group.apart() is None
    group.settle()
    assert owner.told() == {0: (REJECT, "bad"), 1: (REJECT, "bad")}


def test_a_forked_group_is_a_branch_of_its_own() -> None:
    owner = Owner()
    group = TokenGroup([Token(owner, number) for number in range(2)])
    other = group.fork()
    group.settle_items([(OK, ""), (RETRY, "busy")])
    assert owner.told() == {}
    other.settle(DISCARD, "meant")
    assert owner.told() == {0: (DISCARD, "meant"), 1: (RETRY, "busy")}


def test_many_are_settled_as_one_by_one() -> None:
    first, second = Owner(), Owner()
    forked = Token(first, "forked")
    forked.split(1)
    group = TokenGroup([Token(second, "member")])
    tokens: list[Settleable | None] = [Token(first, 0), Token(second, 1), None, forked, group, Token(first, 2)]
    settle_all([Event(0, token=each) for each in tokens], REJECT, "bad")
    assert first.told() == {0: (REJECT, "bad"), 2: (REJECT, "bad")}
    assert second.told() == {1: (REJECT, "bad"), "member": (REJECT, "bad")}
    assert first.wakes
    assert second.wakes
    forked.settle()
    assert first.told()["forked"] == (REJECT, "bad")


def test_a_watched_token_is_noticed_when_it_is_lost() -> None:
    owner = Owner()
    token = WatchedToken(owner, "lost")
    del token
    assert owner.lost == ["<token 'lost': 1 pending, ok>"]
    token = WatchedToken(owner, "settled")
    token.settle()
    owner.done.clear()
    del token
    assert len(owner.lost) == 1


def test_owners_of_a_token_are_those_of_its_members() -> None:
    first, second = Owner(), Owner()
    inner = TokenGroup([Token(first), Token(second)])
    assert list(owners(TokenGroup([inner, Token(second)]))) == [first, second, second]


def test_a_fork_of_an_event_has_containers_of_its_own() -> None:
    event = Event({"a": [1, {"b": bytearray(b"x")}]}, {"m": 1}, 7, token=Token(Owner(), 7))
    other = event.fork()
    other.value["a"][1]["b"] += b"y"
    other.value["a"].append(2)
    other.meta["m"] = 2
    assert event.value == {"a": [1, {"b": bytearray(b"x")}]}
    assert event.meta == {"m": 1}
    assert other.token is event.token
    assert isinstance(event.token, Token)
    assert event.token.pending == 2
    assert event.fork(counted=False).token is None
    assert event.token.pending == 2


@pytest.mark.parametrize("made", [Token(Owner()), Event(1)])
def test_fields_are_set_by_python_itself_and_nothing_else_can_be(made: Any) -> None:
    assert vars(type(made))["__setattr__"] is object.__setattr__
    with pytest.raises(AttributeError):
        made.other = 1


def test_a_watched_token_is_seen_by_the_collector() -> None:
    """It isn't set as the others are: in debug mode circles of tokens are found."""
    token = WatchedToken(Owner())
    token.key = [token]
    assert gc.is_tracked(token)
    token.settle()
    token.key = None
