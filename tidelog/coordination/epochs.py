"""The counter that supplies the epochs of leases and claims.

Rule 1: an epoch is never used twice, and later ones are higher.
Rule 2: a counter that is not a number would block all programs. It is reported, and restarts at the server's time in
        ms, which is higher than any epoch before.
"""

from __future__ import annotations

import logging
from typing import Final

from tidelog.client import strings
from tidelog.client.steps import Steps, checked
from tidelog.operating.errortexts import UnreadableDocuments
from tidelog.transport.errors import is_denied, is_retryable, message_of

_unreadable: Final = UnreadableDocuments(logging.getLogger(__name__))
_NUMBERS: Final = ("ERR value is not an integer", "ERR increment or decrement would overflow")


def add_epochs(key: str, count: int) -> Steps[int]:
    """Reserve ``count`` epochs and return the last one."""
    while True:
        (epoch,) = yield [strings.increment(key, count)]
        if not isinstance(epoch, Exception):
            number: int = epoch
            return number
        if is_retryable(epoch) or is_denied(epoch) or not message_of(epoch).startswith(_NUMBERS):
            raise epoch
        there, now = checked((yield [strings.get(key), strings.server_time()]))
        if there is not None:
            _unreadable.report(key, f"{there[:60]!r} is not a counter; it continues at {now}")
            checked((yield [strings.set_equal(key, b"%d" % now, there)]))
