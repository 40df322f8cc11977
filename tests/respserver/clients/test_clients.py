"""Clients are looked after in turn: all of them, some at a time."""

from __future__ import annotations

from commands.session import Session
from respserver.clients.clients import Clients


def connected(count: int) -> tuple[Clients, list[Session]]:
    clients = Clients()
    sessions = [Session(clients.next_id(), "", "", 0) for _ in range(count)]
    for session in sessions:
        clients.add(session)
    return clients, sessions


def test_each_comes_once_before_the_first_comes_again() -> None:
    clients, sessions = connected(7)
    assert clients.some(3) + clients.some(3) + clients.some(3) == sessions
    assert clients.some(3) == sessions[:3]


def test_who_comes_while_a_turn_is_under_way_is_in_the_next() -> None:
    clients, sessions = connected(3)
    assert clients.some(2) == sessions[:2]
    late = Session(clients.next_id(), "", "", 0)
    clients.add(late)
    clients.remove(sessions[0])
    assert clients.some(5) == sessions[2:3]
    assert clients.some(5) == [*sessions[1:], late]


def test_nobody_is_there() -> None:
    assert Clients().some(100) == []
