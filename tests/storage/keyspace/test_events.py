"""Classes of keyspace events as letters, and which of them fire."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.keyspace import events
from storage.keyspace.events import fired, parse_classes, show_classes


@given(st.lists(st.sampled_from("KEg$lshzxetdmnocA"), max_size=20).map("".join))
def test_what_is_shown_parses_to_the_same(letters: str) -> None:
    classes = parse_classes(letters)
    assert parse_classes(show_classes(classes)) == classes
    assert show_classes(parse_classes(show_classes(classes))) == show_classes(classes)


@pytest.mark.parametrize(
    ("letters", "shown"),
    [("", ""), ("KEA", "AKE"), ("Ag$x", "A"), ("g$lshzxetd", "A"), ("mEnKx", "xnKEm"), ("coA", "Aoc"), ("d", "d")],
)
def test_the_order_is_always_the_same(letters: str, shown: str) -> None:
    assert show_classes(parse_classes(letters)) == shown


@pytest.mark.parametrize("letters", ["a", "KE?", " ", "ü"])
def test_other_letters_are_refused(letters: str) -> None:
    with pytest.raises(ValueError, match="Invalid event class character"):
        parse_classes(letters)


def test_nothing_fires_without_a_channel() -> None:
    assert fired(parse_classes("Amn"), follower=False) == 0
    assert fired(parse_classes("Em"), follower=False) & events.MISS
    assert not fired(parse_classes("Em"), follower=False) & events.STREAM


def test_replicas_fire_only_misses() -> None:
    assert fired(parse_classes("KEAmn"), follower=True) == events.KEYSPACE | events.KEYEVENT | events.MISS
