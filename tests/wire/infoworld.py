"""The servers whose INFO tests read, and the checks of how a field moves."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from respserver.testing import RunningServer
from tests.waiting import eventually
from tests.wire.rawclient import Raw

Check = Callable[[str, str], bool]


def grew(before: str, after: str) -> bool:
    return float(after or 0) > float(before or 0)


def fell(before: str, after: str) -> bool:
    return float(after) < float(before)


def changed(before: str, after: str) -> bool:
    return after != before


def is_positive(before: str, after: str) -> bool:
    return float(after) > 0


def became(value: str) -> Check:
    return lambda before, after: after == value != before


def fields(raw: Raw) -> dict[str, str]:
    text = raw("INFO", "everything").decode()
    return dict(line.split(":", 1) for line in text.split("\r\n") if line and not line.startswith("#"))


class World:
    """A server on a hand-moved clock, a replica of it on the wall clock, and connections to both."""

    def __init__(self, hand: RunningServer, replica: RunningServer) -> None:
        self.hand = hand
        self.replica = replica
        self.stack = contextlib.ExitStack()  # of one step
        self.me = Raw(hand.port, 3)
        self.me("SUBSCRIBE", "always")  # `timeout` does not close subscribers
        self.its = Raw(replica.port, 3)

    def connect(self) -> Raw:
        return self.stack.enter_context(Raw(self.hand.port))

    def set(self, name: str, value: str, back: str) -> None:
        """CONFIG SET for the time of this step."""
        assert self.me("CONFIG", "SET", name, value) == b"OK"
        self.stack.callback(lambda: self.me("CONFIG", "SET", name, back))

    def patch(self, owner: object, name: str, value: object) -> None:
        """Replace a method for the time of this step."""
        self.hand.call(lambda: setattr(owner, name, value))
        self.stack.callback(lambda: self.hand.call(lambda: delattr(owner, name)))

    def follow(self) -> None:
        """Make the replica follow the server, and wait until it does."""
        self.its("REPLICAOF", "127.0.0.1", self.hand.port, "FORCE")  # it has data of its own
        eventually(lambda: fields(self.its)["master_link_status"] == "up")
        eventually(lambda: fields(self.me).get("slave0", "").find("state=online") > 0)


Step = Callable[[World], object]
