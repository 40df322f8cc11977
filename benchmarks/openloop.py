"""Requests that are sent when they are due, and the time that each one takes.

Rule 1: requests are due at a fixed rate, whatever the server does. The time of a request begins when it is due, even if
all connections wait for replies then. So a stall of the server counts for each request that is due meanwhile. A closed
loop would send nothing during the stall.
Rule 2: a connection has one request at a time. The highest rate is that of the same connections without a schedule.
Rule 3: the load polls its sockets without waiting, because epoll_wait has a resolution of 1 ms. It needs its own core.
"""

from __future__ import annotations

import gc
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from statistics import quantiles
from typing import Any, NamedTuple

import click
import hiredis

PATIENCE = 60.0  # seconds that the requests may be late


class Times(NamedTuple):
    """Percentiles, in microseconds."""

    p50: float
    p99: float
    p999: float


def percentiles(seconds: Sequence[float]) -> Times:
    """Return the percentiles of times in seconds."""
    cuts = quantiles(seconds, n=1000, method="inclusive")
    return Times(cuts[499] * 1e6, cuts[989] * 1e6, cuts[998] * 1e6)


class Requests:
    """A connection that sends requests. ``request`` returns the next one; it gets the last reply, None at first."""

    def __init__(self, sock: socket.socket, request: Callable[[Any], bytes], replies: int = 1) -> None:
        """``replies``: of each request."""
        self.sock = sock
        self.due = 0.0  # time.perf_counter() when the current request was due
        self._request = request
        self._replies = replies
        self._left = 0
        self._reader = hiredis.Reader()
        self._last: Any = None

    def send(self, due: float) -> None:
        """Send the next request."""
        self.due, self._left = due, self._replies
        self.sock.sendall(self._request(self._last))

    def receive(self) -> bool:
        """Receive what has arrived; return whether all replies have. Raises click.ClickException."""
        data = self.sock.recv(1 << 16)
        if not data:
            raise click.ClickException("the server closed the connection")
        self._reader.feed(data)
        while self._left:
            reply = self._reader.gets()
            if reply is False:
                return False
            if isinstance(reply, hiredis.ReplyError):
                raise click.ClickException(str(reply))
            self._last = reply
            self._left -= 1
        return True

    def close(self) -> None:
        """Close the connection."""
        self.sock.close()


class Load:
    """The connections of a load, as a context manager."""

    def __init__(self, made: Sequence[Requests]) -> None:
        self.made = made

    def __enter__(self) -> Load:
        self._epoll = select.epoll()
        self._by_number = {one.sock.fileno(): one for one in self.made}
        for number in self._by_number:
            self._epoll.register(number, select.EPOLLIN)
        return self

    def __exit__(self, *_: object) -> None:
        self._epoll.close()
        for one in self.made:
            one.close()

    def _complete(self) -> list[Requests]:
        found = [self._by_number[number] for number, _ in self._epoll.poll(0)]
        return [one for one in found if one.receive()]

    def highest(self, count: int) -> float:
        """Send about ``count`` requests, each when its connection has the reply to the last one. Return how many were
        served per second."""
        now = time.perf_counter
        began, done, waiting = now(), 0, len(self.made)
        for one in self.made:
            one.send(began)
        while waiting:
            for one in self._complete():
                done += 1
                if done + waiting <= count:
                    one.send(began)
                else:
                    waiting -= 1
        return done / (now() - began)

    def at_rate(self, rate: float, count: int) -> list[float]:
        """Send ``count`` requests at ``rate`` per second. Return the seconds from when each was due to its last reply.

        Raises:
            click.ClickException: the server serves fewer.
        """
        now, found, free = time.perf_counter, list[float](), deque(self.made)
        interval, sent = 1 / rate, 0
        gc.disable()
        try:
            began = now()
            while len(found) < count:
                at = now()
                while free and sent < count and began + sent * interval <= at:
                    free.popleft().send(began + sent * interval)
                    sent += 1
                if at - began > count * interval + PATIENCE:
                    raise click.ClickException(f"the server does not serve {rate:,.0f} requests per second")
                for one in self._complete():
                    found.append(now() - one.due)
                    free.append(one)
        finally:
            gc.enable()
        return found
