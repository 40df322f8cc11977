"""``Lease``: a key with an owner and a time.

    app:shop:lease:w1 = "w1:17", PX 10000        17: the epoch, from the counter app:shop:epoch

Acquired by SET NX GET PX, renewed by SET IFEQ GET PX, released by DELEX IFEQ. Each may be repeated when its reply was
lost.

Rule 1: a lease is held until ``sent + ttl - margin``. ``sent`` is this machine's clock just before the last renewal
        that succeeded was sent. So the holder stops before the server gives the lease to anybody else, whatever is lost
        or late, as long as the two clocks don't drift apart by more than the margin within one ttl.
Rule 2: a tenure that has ended never begins again. Its successor has another epoch.
Rule 3: one thread acquires, renews and releases. Any thread may ask whether it is held.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable
from typing import Final

import redis

from tidelog.client import strings
from tidelog.client.steps import Steps, checked
from tidelog.coordination.epochs import add_epochs
from tidelog.operating.errortexts import UnreadableDocuments
from tidelog.transport.call import Call

log = logging.getLogger(__name__)
_unreadable: Final = UnreadableDocuments(log)
SHORTEST: Final = 0.2  # seconds, of a ttl
MARGIN: Final = 0.1  # of the ttl
LEAST_MARGIN: Final = 0.05  # seconds


class LeaseLostError(RuntimeError):
    """The lease is not held: it has ended, or was never acquired."""


def now() -> float:
    """Seconds on a clock that never goes back, and goes on while the machine is suspended."""
    return time.clock_gettime(_CLOCK)


# Linux's CLOCK_MONOTONIC stands still while the machine sleeps; a lease doesn't.
_CLOCK: Final = time.CLOCK_BOOTTIME if sys.platform == "linux" else time.CLOCK_MONOTONIC


class Tenure:
    """One holding of a lease, from its acquisition to its end."""

    __slots__ = ("_clock", "epoch", "until", "value")

    def __init__(self, epoch: int, value: bytes, clock: Callable[[], float]) -> None:
        self.epoch = epoch
        self.value = value  # of the lease's key
        self.until = -math.inf  # on ``clock``: held before it
        self._clock = clock

    @property
    def held(self) -> bool:
        return self._clock() < self.until


class Lease:
    """A lease that ``owner`` wants on ``key`` for ``ttl`` seconds at a time; ``epochs`` is the key of the counter.

    The operations are ``Steps``. What they raise is what the server answered, or the error of the connection; the
    lease is then as it was, and the operation may be repeated. ValueError for a ttl or a name that can't be used.
    """

    def __init__(
        self, key: str, owner: str, ttl: float, epochs: str, *, margin: float | None = None,
        clock: Callable[[], float] = now,
    ) -> None:  # fmt: skip
        if not ttl >= SHORTEST:
            raise ValueError(f"a lease lasts {SHORTEST} seconds at least: {ttl!r}")
        if "|" in key or "|" in owner or not owner:
            raise ValueError(f"a lease's key and owner can't be empty or contain '|': {key!r}, {owner!r}")
        self.key = key
        self.owner = owner
        self.ttl = ttl  # seconds
        self.margin = max(ttl * MARGIN, LEAST_MARGIN) if margin is None else margin  # seconds
        self.epochs = epochs
        self.clock = clock
        self.tenure = Tenure(0, b"", clock)  # the current one, or the last
        self._ended = True  # whether the end of ``tenure`` was told
        self._next: Tenure | None = None  # one whose SET NX may have come through
        self._told: dict[object, Callable[[], None]] = {}  # by tokens of their own

    @property
    def held(self) -> bool:
        """Whether the lease is held at this moment."""
        return self.tenure.held

    @property
    def epoch(self) -> int:
        """The epoch of the current tenure, or of the last; 0 before the first."""
        return self.tenure.epoch

    @property
    def value(self) -> bytes:
        """What the key holds while the lease is held."""
        return self.tenure.value

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call ``changed`` after each acquisition and each end, in the lease's thread; returns what stops that."""
        token = object()
        self._told[token] = changed

        def unwatch() -> None:
            self._told.pop(token, None)

        return unwatch

    # -- operations ---------------------------------------------------------------------------------------------
    def acquire(self) -> Steps[bool]:
        """Begin a tenure; False if another owner holds the key. Nothing happens if the lease is held."""
        if self.held:
            return True
        self.end()
        if self._next is None:
            epoch = yield from add_epochs(self.epochs, 1)
            self._next = Tenure(epoch, f"{self.owner}:{epoch}".encode(), self.clock)
        tenure, ms = self._next, self._ms()
        sent = self.clock()
        (there,) = checked((yield [strings.set_absent(self.key, tenure.value, ms)]))
        if there is not None:
            # An attempt before this one had come through at an unknown time, or the last tenure is still there.
            if there not in (tenure.value, self.tenure.value) and self._is_lease(there):
                return False
            sent = self.clock()
            (swapped,) = checked((yield [strings.set_equal(self.key, tenure.value, there, ms)]))
            if swapped != there:
                return False
        self._next = None
        tenure.until = sent + self.ttl - self.margin
        self.tenure, self._ended = tenure, False
        self._tell()
        return True

    def _is_lease(self, value: bytes) -> bool:
        """Whether a process may hold the key by this value. Anything else is reported, and taken over."""
        _, colon, epoch = value.rpartition(b":")
        if colon and epoch.isdigit():
            return True
        _unreadable.tell(self.key, f"{value[:60]!r} is no lease")
        return False

    def renew(self) -> Steps[bool]:
        """Hold the lease for another ttl; False if it is lost: too late, or the key is another's or gone."""
        tenure = self.tenure
        sent = self.clock()
        if sent < tenure.until and (yield from self._prolong(tenure.value)) and self.clock() < tenure.until:
            tenure.until = sent + self.ttl - self.margin
            return True
        self.end()
        return False

    def _prolong(self, value: bytes) -> Steps[bool]:
        (there,) = yield [strings.set_equal(self.key, value, value, self._ms())]
        if not _out_of_memory(there):
            checked([there])
            return bool(there == value)
        # A server that refuses whatever may add data still prolongs. If the key was another's, it is prolonged too,
        # which harms nobody; values are never used twice, so ours after PEXPIRE was ours at PEXPIRE.
        prolonged, there = checked((yield [Call(("PEXPIRE", self.key, self._ms()), bool), strings.get(self.key)]))
        return bool(prolonged and there == value)

    def release(self) -> Steps[bool]:
        """End the tenure and delete the key; whether it was there."""
        value = self.tenure.value
        self.end()
        candidates = [value] if self._next is None else [value, self._next.value]
        self._next = None
        return any(checked((yield [strings.delete_equal(self.key, each) for each in candidates if each])))

    def end(self) -> None:
        """End the tenure here: from now on it isn't held. The key on the server stays until its time is over."""
        self.tenure.until = -math.inf
        if not self._ended:
            self._ended = True
            self._tell()

    def _tell(self) -> None:
        for changed in tuple(self._told.values()):
            try:
                changed()
            except Exception:
                log.exception("lease %s: a listener failed", self.key)

    def _ms(self) -> int:
        return round(self.ttl * 1000)


def _out_of_memory(reply: object) -> bool:
    return isinstance(reply, redis.OutOfMemoryError) or (isinstance(reply, Exception) and str(reply)[:4] == "OOM ")
