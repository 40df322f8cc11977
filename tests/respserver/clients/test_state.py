from __future__ import annotations

import pytest

from respserver.clients.state import (
    CLOSE,
    CLOSED,
    CLOSING,
    END,
    FINISH,
    FINISHING,
    HALF_CLOSED,
    OPEN,
    PEER_SHUTDOWN,
    TRANSITIONS,
    TransitionError,
    next_state,
)
from tests.respserver.local import LocalServer

STATES = (OPEN, HALF_CLOSED, FINISHING, CLOSING, CLOSED)
EVENTS = (PEER_SHUTDOWN, FINISH, CLOSE, END)
INVALID = {(CLOSING, FINISH), (CLOSING, CLOSE), (CLOSED, PEER_SHUTDOWN), (CLOSED, FINISH), (CLOSED, CLOSE)}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("event", EVENTS)
def test_invalid_transitions_are_rejected(state: int, event: str) -> None:
    if (state, event) in INVALID:
        with pytest.raises(TransitionError, match=event):
            next_state(state, event)
    else:
        assert next_state(state, event) == TRANSITIONS[state, event]


def test_a_connection_never_returns_to_an_earlier_state() -> None:
    assert all(after >= before for (before, _), after in TRANSITIONS.items())
    assert {(before, event) for before, event in TRANSITIONS} == {(s, e) for s in STATES for e in EVENTS} - INVALID


def test_states_of_a_connection(local: LocalServer) -> None:
    one, two, three = (local.connect() for _ in range(3))
    one.conn.eof_received()
    assert one.conn.state == HALF_CLOSED
    two.send("QUIT")
    assert two.conn.state == FINISHING
    local.settle()
    assert (one.wire.closing, two.wire.closing, two.taken()) == (True, True, b"+OK\r\n")
    three.conn.kill()
    assert three.conn.state == CLOSED
    with pytest.raises(TransitionError):
        next_state(three.conn.state, CLOSE)
