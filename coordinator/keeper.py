"""Renews the lease of a leader in a thread, while the server's event loop advances.

The thread has its own event loop and its own connection to the coordinator, so commands do not delay renewals. The
server's loop calls ``beat`` at least twice per renewal (a tenth of the lease), and ``valid`` before it sends replies.
Both only access an attribute and need no lock.

``keep_renewing`` is the same without a thread, for a simulation.

Decision: stop() sets a flag and cancels the task. The flag ends the task even if a call swallows the cancellation.
Before Python 3.12, ``asyncio.wait_for`` does that if its result arrives at the same moment. One of eight threads that
were stopped within 8 ms of a renewal then never ended, and the server, which waited for the thread, had to be killed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Final

from .clock import boottime
from .interface import Coordinator, Lease
from .renewals import Renewals

LONGEST_STOP: Final = 1.0  # seconds that stop() waits for the thread; the server's event loop waits as long


async def keep_renewing(
    renewals: Renewals, coordinator: Coordinator, lease: Lease, counter: Callable[[], int],
    clock: Callable[[], float], changed: Callable[[], None],
) -> None:  # fmt: skip
    """Renew a lease until it is lost or not needed. ``changed`` is called after each renewal, and when the lease is
    lost."""
    while not renewals.ended:
        now, count = clock(), counter()
        wait = renewals.wait(now, count)
        if wait > 0:
            await asyncio.sleep(wait)
            continue
        renewals.send(now, count)
        try:
            kept = await coordinator.keep(lease)
        except Exception:  # noqa: BLE001 - without renewals, a leader would never send a reply again
            renewals.failed(clock())
            continue
        if kept:
            renewals.succeeded()
        else:
            renewals.lose()
        changed()


class LeaseKeeper:
    """The thread that renews one lease. ``valid`` and ``beat`` belong to the server's event loop."""

    def __init__(
        self, connect: Callable[[], Coordinator], lease: Lease, granted: float, changed: Callable[[], None],
        *, clock: Callable[[], float] = boottime,
    ) -> None:  # fmt: skip
        """Start the thread.

        ``connect`` returns the thread's coordinator, with a timeout of at most a fifth of the lease; the thread closes
        it. ``granted`` is the time by ``clock`` just before ``grant`` was called. ``changed`` is called in the thread
        after each renewal and when the lease is lost (``loop.call_soon_threadsafe`` leads back to the loop).
        """
        self._renewals = Renewals(lease.ms, granted)
        self._clock = clock
        self._beats = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(connect, lease, changed), name="lease-keeper", daemon=True
        )
        self._thread.start()

    def valid(self) -> bool:
        """Whether the lease is valid now."""
        return self._clock() < self._renewals.valid_until

    @property
    def valid_until(self) -> float:
        """The time by the clock until which the lease is valid; minus infinity if it is lost."""
        return self._renewals.valid_until

    @property
    def lost(self) -> bool:
        """Whether the coordinator has reported that the lease is lost. It is no longer renewed."""
        return self._renewals.lost

    def beat(self) -> None:
        """Note that the event loop advances."""
        self._beats += 1

    def stop(self, *, wait: bool = True) -> None:
        """Stop the thread. The lease is not revoked. ``wait``: for its end, but not for a disk that hangs."""
        self._renewals.stopped = True
        if wait:
            self._started.wait(LONGEST_STOP)
        loop, task = self._loop, self._task
        if loop is not None and task is not None and self._thread.is_alive():
            try:
                loop.call_soon_threadsafe(task.cancel)
            except RuntimeError:  # the loop has ended: the lease was lost
                pass
        if wait:
            self._thread.join(LONGEST_STOP)

    def _run(self, connect: Callable[[], Coordinator], lease: Lease, changed: Callable[[], None]) -> None:
        try:
            asyncio.run(self._renew(connect, lease, changed))
        except asyncio.CancelledError:  # stop()
            pass
        except Exception:  # noqa: BLE001 - it can't connect: the member gets another lease
            self._renewals.lose()
            changed()
        finally:
            self._started.set()

    async def _renew(self, connect: Callable[[], Coordinator], lease: Lease, changed: Callable[[], None]) -> None:
        self._task = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        self._started.set()
        coordinator = connect()
        try:
            await keep_renewing(self._renewals, coordinator, lease, lambda: self._beats, self._clock, changed)
        finally:
            await coordinator.close()
