"""Delays logins after failures from the same address, so that passwords can't be guessed at the speed of the server.

The first failures are free. After that, every login from the address is delayed, including those with the right
password, and is tried only when its delay has passed: an immediate answer would reveal which password is right. The
delay doubles with each failure, up to a maximum.

Logins that wait at the same time are spaced, so many connections guess hardly faster than one: each login is tried at
least 1/ABREAST of the delay after the one before it. Their queue is bounded, so a login with the right password is
always tried in the end.

Rule 1: no clock is read here; times are monotonic ms.
Rule 2: the table is bounded: the address whose last failure is the oldest is removed first.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

FREE: Final = 10  # failures before logins are delayed
FIRST_MS: Final = 100  # the first delay
LONGEST_MS: Final = 4000  # less than the five seconds after which many clients give up
# for this machine, so that another process cannot lock out a local replica or Sentinel
LONGEST_LOCAL_MS: Final = 250
ABREAST: Final = 16
QUEUE: Final = 4  # maximum wait in the queue, in multiples of the longest delay
FORGET_MS: Final = 60_000  # an address is removed after this long without a failure
ADDRESSES: Final = 10_000


class _AddressState:
    """The state of one address."""

    __slots__ = ("failed_at", "failures", "next_at")

    def __init__(self) -> None:
        self.failures = 0
        self.failed_at = 0  # when the last login failed
        self.next_at = 0  # when the last waiting login will be tried


class LoginThrottle:
    """The failures of the latest addresses. An address is any text that identifies the origin of logins."""

    def __init__(self) -> None:
        self._addresses: OrderedDict[str, _AddressState] = OrderedDict()  # the latest failure is at the end

    def __len__(self) -> int:
        return len(self._addresses)

    def wait(self, address: str, local: bool, now: int) -> int:
        """Admit a login: return the ms after which it may be tried; 0: immediately. ``local``: from this machine."""
        state = self._addresses.get(address)
        if state is None:
            return 0
        if now - max(state.failed_at, state.next_at) > FORGET_MS:
            del self._addresses[address]
            return 0
        if state.failures < FREE:
            return 0
        longest = LONGEST_LOCAL_MS if local else LONGEST_MS
        wait = min(FIRST_MS << min(state.failures - FREE, 16), longest)
        state.next_at = min(max(now + wait, state.next_at + wait // ABREAST), now + QUEUE * longest)
        return state.next_at - now

    def failed(self, address: str, now: int) -> int:
        """Record a failed login. Returns the number of recent failures from the address."""
        state = self._addresses.get(address)
        if state is None or now - max(state.failed_at, state.next_at) > FORGET_MS:
            state = self._addresses[address] = _AddressState()
        self._addresses.move_to_end(address)
        state.failures += 1
        state.failed_at = now
        if len(self._addresses) > ADDRESSES:
            self._addresses.popitem(last=False)
        return state.failures
