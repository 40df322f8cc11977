"""``Lease``: a key with an owner and a time to live.

    app:shop:lease:w1 = "w1:17", PX 10000        17: the epoch, from the counter app:shop:epoch

It is acquired by SET NX GET PX, renewed by SET IFEQ GET PX, and released by DELEX IFEQ. Each command may be repeated if
its reply was lost.

Rule 1: a lease is held until ``sent + ttl - margin``. ``sent`` is this machine's clock just before the last successful
        renewal was sent. The holder therefore stops before the server can grant the lease to another process, even if
        messages are lost or late, as long as the two clocks do not drift by more than the margin within one ttl.
Rule 2: a tenure that has ended never begins again. Its successor has another epoch.
Rule 3: one thread acquires, renews and releases the lease. Any thread may check whether it is held.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

import redis

from tidelog.client import strings
from tidelog.client.steps import Steps, checked
from tidelog.coordination.epochs import add_epochs
from tidelog.operating.errortexts import UnreadableDocuments
from tidelog.transport.call import Call

log = logging.getLogger(__name__)
_unreadable: Final = UnreadableDocuments(log)
SHORTEST: Final = 0.2  # seconds: the minimum ttl
MARGIN: Final = 0.1  # fraction of the ttl
LEAST_MARGIN: Final = 0.05  # seconds


class LeaseLostError(RuntimeError):
    """The lease is not held: it has expired, or was never acquired."""


def now() -> float:
    """Return the seconds of a monotonic clock that continues while the machine is suspended."""
    return time.clock_gettime(_CLOCK)


# On Linux, CLOCK_MONOTONIC stops while the machine is suspended, but a lease expires.
_CLOCK: Final = time.CLOCK_BOOTTIME if sys.platform == "linux" else time.CLOCK_MONOTONIC


def read_leases(keys: Sequence[str]) -> Steps[list[tuple[bytes | None, int]]]:
    """Return the value of each lease, and its remaining milliseconds as PTTL returns them."""
    replies = checked((yield [call for key in keys for call in (strings.get(key), strings.remaining_ms(key))]))
    return list(zip(replies[::2], replies[1::2], strict=True))


class Tenure:
    """The time during which a lease is held, from its acquisition to its end."""

    __slots__ = ("_clock", "epoch", "until", "value")

    def __init__(self, epoch: int, value: bytes, clock: Callable[[], float]) -> None:
        self.epoch = epoch
        self.value = value  # of the lease's key
        self.until = -math.inf  # time of ``clock`` until which it is held
        self._clock = clock

    @property
    def held(self) -> bool:
        return self._clock() < self.until

    @property
    def left(self) -> float:
        """The seconds until it ends, unless the lease is renewed; 0 if it has ended."""
        return max(0.0, self.until - self._clock())


class Lease:
    """A lease of ``owner`` on ``key`` for ``ttl`` seconds at a time; ``epochs`` is the key of the epoch counter.

    The operations are ``Steps``. They raise error replies and the errors of the connection. The lease is then
    unchanged, and the operation may be repeated. Raises ValueError for an invalid ttl or name.
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
        self._ended = True  # whether listeners were notified of the end of ``tenure``
        self._next: Tenure | None = None  # one whose SET NX may have been executed
        self._listeners: dict[object, Callable[[], None]] = {}  # by token

    @property
    def held(self) -> bool:
        """Whether the lease is held now."""
        return self.tenure.held

    @property
    def epoch(self) -> int:
        """The epoch of the current tenure, or of the last; 0 before the first."""
        return self.tenure.epoch

    @property
    def value(self) -> bytes:
        """The value of the key while the lease is held."""
        return self.tenure.value

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call ``changed`` after each acquisition and end, in the lease's thread. Returns a function to stop that."""
        token = object()
        self._listeners[token] = changed

        def unwatch() -> None:
            self._listeners.pop(token, None)

        return unwatch

    # -- operations ---------------------------------------------------------------------------------------------
    def acquire(self) -> Steps[bool]:
        """Begin a tenure. Returns False if another owner holds the key. Nothing happens if the lease is held."""
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
            # An earlier attempt was executed at an unknown time, or the value of the last tenure still exists.
            if there not in (tenure.value, self.tenure.value) and self._is_lease(there):
                return False
            sent = self.clock()
            (swapped,) = checked((yield [strings.set_equal(self.key, tenure.value, there, ms)]))
            if swapped != there:
                return False
        self._next = None
        tenure.until = sent + self.ttl - self.margin
        self.tenure, self._ended = tenure, False
        self._notify()
        return True

    def _is_lease(self, value: bytes) -> bool:
        """Return whether the value may be that of a lease. Any other value is reported, and the key is taken over."""
        _, colon, epoch = value.rpartition(b":")
        if colon and epoch.isdigit():
            return True
        _unreadable.report(self.key, f"{value[:60]!r} is not a lease")
        return False

    def renew(self) -> Steps[bool]:
        """Extend the lease by another ttl. Returns False if it is lost: expired, deleted, or held by another owner."""
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
        # A server without memory refuses SET but not PEXPIRE. Extending the lease of another owner does no harm.
        # Values are never reused, so if the value is ours after PEXPIRE, it was ours at PEXPIRE.
        prolonged, there = checked((yield [Call(("PEXPIRE", self.key, self._ms()), bool), strings.get(self.key)]))
        return bool(prolonged and there == value)

    def release(self) -> Steps[bool]:
        """End the tenure and delete the key. Returns whether the key existed."""
        value = self.tenure.value
        self.end()
        candidates = [value] if self._next is None else [value, self._next.value]
        self._next = None
        return any(checked((yield [strings.delete_equal(self.key, each) for each in candidates if each])))

    def end(self) -> None:
        """End the tenure in this process only. The key on the server remains until it expires."""
        self.tenure.until = -math.inf
        if not self._ended:
            self._ended = True
            self._notify()

    def _notify(self) -> None:
        for changed in tuple(self._listeners.values()):
            try:
                changed()
            except Exception:
                log.exception("lease %s: a listener failed", self.key)

    def _ms(self) -> int:
        return round(self.ttl * 1000)


def _out_of_memory(reply: object) -> bool:
    return isinstance(reply, redis.OutOfMemoryError) or (isinstance(reply, Exception) and str(reply)[:4] == "OOM ")
