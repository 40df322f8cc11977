"""The registry of clients: IDs, and rounds over all clients."""

from __future__ import annotations

from commands.session import Session
from respserver.clients.clients import Clients

NOW = 1_700_000_000_000


def connected(count: int) -> tuple[Clients, list[Session]]:
    clients = Clients()
    sessions = [Session(clients.next_id(), "", "", 0) for _ in range(count)]
    for session in sessions:
        clients.add(session)
    return clients, sessions


def test_a_round_visits_each_client_once() -> None:
    clients, sessions = connected(7)
    assert clients.some(3) + clients.some(3) + clients.some(3) == sessions
    assert clients.some(3) == sessions[:3]


def test_a_client_that_connects_during_a_round_is_in_the_next_one() -> None:
    clients, sessions = connected(3)
    assert clients.some(2) == sessions[:2]
    late = Session(clients.next_id(), "", "", 0)
    clients.add(late)
    clients.remove(sessions[0])
    assert clients.some(5) == sessions[2:3]
    assert clients.some(5) == [*sessions[1:], late]


def test_a_round_without_clients() -> None:
    assert Clients().some(100) == []


def test_client_ids_are_never_used_twice() -> None:
    clients = Clients()
    first = Session(clients.next_id(), "a", "b", NOW)
    clients.add(first)
    clients.remove(first)
    clients.remove(first)
    second = Session(clients.next_id(), "a", "b", NOW)
    clients.add(second)
    assert (first.id, second.id) == (1, 2)
    assert (len(clients), clients.get(1), clients.get(2), clients.all()) == (1, None, second, [second])
