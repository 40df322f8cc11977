"""The states of a connection, and the valid transitions between them.

    OPEN         requests are read, run and answered
    HALF_CLOSED  the peer has shut down its side: requests that have arrived are answered, then the connection closes
    FINISHING    requests are no longer read or run; the connection closes when the replies are written to the socket
    CLOSING      nothing is read or answered; the transport sends the bytes that it has
    CLOSED       aborted, lost, or handed over to a replica's feed: nothing is read or written

The reasons to delay commands (``flowcontrol``) are independent of these states.
"""

from __future__ import annotations

from typing import Final

OPEN: Final = 0
HALF_CLOSED: Final = 1
FINISHING: Final = 2
CLOSING: Final = 3
CLOSED: Final = 4

PEER_SHUTDOWN: Final = "peer shutdown"  # the peer sends nothing more
FINISH: Final = "finish"  # QUIT, CLIENT KILL by the client itself, a protocol error
CLOSE: Final = "close"
END: Final = "end"  # aborted, lost, or handed over

TRANSITIONS: Final[dict[tuple[int, str], int]] = {
    (OPEN, PEER_SHUTDOWN): HALF_CLOSED,
    (OPEN, FINISH): FINISHING,
    (OPEN, CLOSE): CLOSING,
    (OPEN, END): CLOSED,
    (HALF_CLOSED, PEER_SHUTDOWN): HALF_CLOSED,  # polling has noticed it before
    (HALF_CLOSED, FINISH): FINISHING,
    (HALF_CLOSED, CLOSE): CLOSING,
    (HALF_CLOSED, END): CLOSED,
    (FINISHING, PEER_SHUTDOWN): FINISHING,
    (FINISHING, FINISH): FINISHING,
    (FINISHING, CLOSE): CLOSING,
    (FINISHING, END): CLOSED,
    (CLOSING, PEER_SHUTDOWN): CLOSING,
    (CLOSING, END): CLOSED,
    (CLOSED, END): CLOSED,  # the connection is lost after it was aborted
}


class TransitionError(Exception):
    """Raised because of a bug: the event is not valid in the connection's state."""


def next_state(state: int, event: str) -> int:
    """Return the state after an event. Raises TransitionError if the event is invalid in ``state``."""
    after = TRANSITIONS.get((state, event))
    if after is None:
        raise TransitionError(f"{event} in state {state} of a connection")
    return after
