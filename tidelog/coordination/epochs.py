"""The counter that leases and claims get their epochs from.

Rule 1: an epoch is never used twice, and later ones are higher.
Rule 2: a counter that is not a number would block all programs. It is reported, and restarts at the server's time in
        ms, which is higher than any epoch before.
"""

from __future__ import annotations

import logging
from typing import Final

from tidelog.client import strings
from tidelog.client.steps import Steps, good
from tidelog.operating.errortexts import Unreadable
from tidelog.transport.errors import again, denies, words

_unreadable: Final = Unreadable(logging.getLogger(__name__))
_NUMBERS: Final = ("ERR value is not an integer", "ERR increment or decrement would overflow")


def add_epochs(key: str, count: int) -> Steps[int]:
    """Take so many epochs; returns the last one."""
    while True:
        (epoch,) = yield [strings.add(key, count)]
        if not isinstance(epoch, Exception):
            number: int = epoch
            return number
        if again(epoch) or denies(epoch) or not words(epoch).startswith(_NUMBERS):
            raise epoch
        there, now = good((yield [strings.get(key), strings.server_time()]))
        if there is not None:
            _unreadable.tell(key, f"{there[:60]!r} is no counter; it goes on at {now}")
            good((yield [strings.set_equal(key, b"%d" % now, there)]))
