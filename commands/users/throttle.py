"""Logins wait after failures from their address, so that passwords can't be guessed at the speed of the server.

The first failures are free. After that every login from the address waits, also one with the right password, and is
tried only when its wait is over: a quick answer would tell which password is right. The waits double with each failure
up to a longest one.

Logins that wait at the same time are spaced, so that many connections guess hardly faster than one: each is tried at
least 1/ABREAST of the wait after the one before it. Their queue is bounded, so that a login with the right password is
always tried in the end.

Rule 1: no clock is read here; times are monotonic ms. Rule 2: the table is bounded: the address whose last failure is
the oldest is forgotten first.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

FREE: Final = 10  # failures before logins wait
FIRST_MS: Final = 100  # the wait after them
LONGEST_MS: Final = 4000  # less than the five seconds after which many clients give up
LONGEST_LOCAL_MS: Final = 250  # on this machine: a replica or Sentinel there must not be kept out by a neighbour
ABREAST: Final = 16
QUEUE: Final = 4  # longest waits that a login waits at most
FORGET_MS: Final = 60_000  # without another failure
ADDRESSES: Final = 10_000


class _Place:
    """What is known of one address."""

    __slots__ = ("failed_at", "failures", "next_at")

    def __init__(self) -> None:
        self.failures = 0
        self.failed_at = 0  # when the last login failed
        self.next_at = 0  # when the last one of those that wait will be tried


class Throttle:
    """The failures of the latest addresses. An address is any text that stands for a place where logins come from."""

    def __init__(self) -> None:
        self._places: OrderedDict[str, _Place] = OrderedDict()  # the one that failed last is at the end

    def __len__(self) -> int:
        return len(self._places)

    def wait(self, address: str, local: bool, now: int) -> int:
        """Admit a login: the ms after which it may be tried; 0: at once. ``local``: it comes from this machine."""
        place = self._places.get(address)
        if place is None:
            return 0
        if now - max(place.failed_at, place.next_at) > FORGET_MS:
            del self._places[address]
            return 0
        if place.failures < FREE:
            return 0
        longest = LONGEST_LOCAL_MS if local else LONGEST_MS
        wait = min(FIRST_MS << min(place.failures - FREE, 16), longest)
        place.next_at = min(max(now + wait, place.next_at + wait // ABREAST), now + QUEUE * longest)
        return place.next_at - now

    def failed(self, address: str, now: int) -> int:
        """A login from there failed. Returns how many have, lately."""
        place = self._places.get(address)
        if place is None or now - max(place.failed_at, place.next_at) > FORGET_MS:
            place = self._places[address] = _Place()
        self._places.move_to_end(address)
        place.failures += 1
        place.failed_at = now
        if len(self._places) > ADDRESSES:
            self._places.popitem(last=False)
        return place.failures
