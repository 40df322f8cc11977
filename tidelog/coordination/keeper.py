"""``Keeper``: a thread with its own connection that renews a lease, independently of the rest of the process.

The lease is not lost if the main thread computes for minutes, since Python switches threads every few milliseconds. It
can only be lost through code that does not release the interpreter's lock.

Rule 1: a lost lease is acquired again, as a new tenure, until ``stop``.
Rule 2: errors never end the thread. A bug is logged, and the next attempt follows.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any, Final

from tidelog.client.steps import drive
from tidelog.coordination.lease import Lease
from tidelog.transport.access import Access
from tidelog.transport.backoff import Backoff, Delays
from tidelog.transport.call import Call
from tidelog.transport.errors import ReplyError, is_denied, message_of
from tidelog.transport.leader import LeaderConnection

log = logging.getLogger(__name__)
RENEWALS: Final = 3  # per ttl
ATTEMPTS: Final = 20  # per ttl, while the server does not answer or another process holds the lease
MOST: Final = 2.0  # maximum delay in seconds between two attempts after the lease has expired
PATIENCE: Final = 4  # if a server has not answered after ttl / PATIENCE, another connection is opened
LEAST_PATIENCE: Final = 0.5  # seconds


class Keeper:
    """Renews ``lease`` on the server of ``access``. It follows a failover.

    >>> with Keeper(Access(("redis://localhost:6379",)), lease) as keeper:
    ...     keeper.wait(10)
    ...     lease.held

    ``name`` is the name of the connection in CLIENT LIST.
    """

    def __init__(self, access: Access, lease: Lease, name: str = "tidelog-lease") -> None:
        self.lease = lease
        ms = round(max(lease.ttl / PATIENCE, LEAST_PATIENCE) * 1000)
        self.denied = ""  # the server's message if it denies a required permission
        self._servers = LeaderConnection(access.single_attempt(ms), name, returned=("OOM",))  # the lease handles OOM
        self._stopping = threading.Event()
        self._acquired = threading.Event()
        self._trouble = ""  # the last text logged, so that each outage is logged once
        self._delays = Delays(Backoff(lease.ttl / ATTEMPTS, max(lease.ttl / ATTEMPTS, MOST)))
        self._thread = threading.Thread(target=self._run, name=f"{name} {lease.key}", daemon=True)
        self._unwatch = lease.watch(self._changed)

    def start(self) -> None:
        """Start acquiring the lease."""
        self._thread.start()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the lease is held. Returns False after ``seconds`` seconds."""
        return self._acquired.wait(seconds)

    def stop(self) -> None:
        """End the tenure, release the lease and stop the thread. If no server answers, the key expires by itself."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._unwatch()

    def __enter__(self) -> Keeper:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _changed(self) -> None:
        (self._acquired.set if self.lease.held else self._acquired.clear)()

    def _run(self) -> None:
        wait = 0.0
        while not self._stopping.wait(wait):
            try:
                wait = self._turn()
            except (OSError, ReplyError) as error:
                wait = self._failed(error)
            except Exception:
                log.exception("lease %s: unexpected error; trying again", self.lease.key)
                wait = self.lease.ttl / ATTEMPTS
        for left in (1, 0):  # with a second attempt, since the connection may have been lost long ago
            try:
                drive(self._send, self.lease.release())
                break
            except (OSError, ReplyError) as error:
                if not left:
                    log.info("lease %s: not released (%s); expires in %g s", self.lease.key, error, self.lease.ttl)
        self._servers.close()

    def _turn(self) -> float:
        """Renew or acquire; returns the seconds until the next turn."""
        lease = self.lease
        began = lease.clock()
        if lease.held:
            if drive(self._send, lease.renew()):
                self._well()
                return max(0.0, lease.ttl / RENEWALS - (lease.clock() - began))
            log.warning("lease %s: lost (epoch %d); acquiring it again", lease.key, lease.epoch)
            return 0.0
        if drive(self._send, lease.acquire()):
            self._well()
            return lease.ttl / RENEWALS
        self._troubled(f"lease {lease.key}: another process holds it; is the name {lease.owner!r} used twice?")
        return lease.ttl / ATTEMPTS

    def _failed(self, error: Exception) -> float:
        lease = self.lease
        if is_denied(error):
            self.denied = message_of(error)
        if lease.held:
            self._delays.reset()
        else:
            lease.end()
        self._troubled(f"lease {lease.key}: {error}; retrying until it is held")
        return self._delays.next()

    def _send(self, calls: Sequence[Call[Any]]) -> list[Any]:
        return self._servers.ask(*calls)

    def _troubled(self, text: str) -> None:
        if not self._trouble:
            log.warning(text)
        self._trouble = text

    def _well(self) -> None:
        if self._trouble:
            log.info("lease %s: held, epoch %d", self.lease.key, self.lease.epoch)
        self._trouble, self.denied = "", ""
        self._delays.reset()
