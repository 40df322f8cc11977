"""Whose turn it is, without Spark."""

from __future__ import annotations

from tidelog.jobs.pools import LEAST, WELL, PoolNumbers, pool_name


def test_who_began_first_goes_first() -> None:
    turns = PoolNumbers()
    first, second = turns.acquire(), turns.acquire()
    assert pool_name(first) < pool_name(second)
    turns.release(first)
    assert pool_name(second) < pool_name(turns.acquire())


def test_names_are_used_again_and_never_by_two() -> None:
    turns = PoolNumbers()
    kept = [turns.acquire() for _ in range(10)]
    seen = set()
    for _ in range(10 * LEAST):
        number = turns.acquire()
        assert number not in kept
        seen.add(number)
        turns.release(number)
    assert len(seen) + len(kept) == LEAST
    many = [turns.acquire() for _ in range(500)]
    assert len({*many, *kept}) == 510


def test_one_that_was_late_leaves_a_core_to_the_others() -> None:
    turns = PoolNumbers()
    assert turns.width("slow", 4, 4) == 4
    turns.ended("slow", late=True)
    assert [turns.width("slow", 4, cores) for cores in (1, 2, 4, 8)] == [1, 1, 3, 4]
    assert turns.width("other", 4, 4) == 4
    for _ in range(WELL):
        assert turns.width("slow", 4, 4) == 3
        turns.ended("slow", late=False)
    assert turns.width("slow", 4, 4) == 4
