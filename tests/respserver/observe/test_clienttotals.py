"""Sums over many clients are made some clients at a time."""

from __future__ import annotations

from commands.session import Session
from respserver.observe.clienttotals import ClientTotals, ClientWalk


def sessions(count: int) -> list[Session]:
    made = [Session(number, "127.0.0.1:1", "127.0.0.1:2", 0) for number in range(count)]
    for session in made[::3]:
        session.channels.add(b"channel")
    return made


def test_many_clients() -> None:
    many = sessions(3 * ClientWalk.PAGE + 1)
    walk = ClientWalk()
    steps = 1
    while not walk.more(list(many)):
        steps += 1
    assert steps == 4
    ready = walk.take([])  # it looks at none now
    assert ready == ClientTotals().add(many)
    assert (ready.connected, ready.subscribed) == (len(many), len(many[::3]))
    assert not walk.more(list(many)), "the totals of the last walk are not used again"


def test_few_clients_are_counted_at_that_moment() -> None:
    few = sessions(5)
    walk = ClientWalk()
    assert walk.more(list(few))
    few.pop()
    assert walk.take(few).connected == 4


def test_without_a_walk() -> None:
    assert ClientWalk().take(sessions(1000)).connected == 1000
