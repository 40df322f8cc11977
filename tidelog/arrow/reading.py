"""Reads one range of one stream in pages. After a lost connection, reading continues after the last page.

Rule 1: no entry is returned twice.
Rule 2: the caller's ``ask`` sends the TRANGE, so it decides whether the entries before the next attempt may be missing.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from tidelog.arrow.pages import Page, PageContent, gather
from tidelog.client.entries import StreamId
from tidelog.transport.access import without_credentials
from tidelog.transport.call import Name
from tidelog.transport.connection import BlockingConnection
from tidelog.transport.errors import ReplyError, is_temporary
from tidelog.transport.leader import LeaderConnection, UnreachableError

log = logging.getLogger(__name__)

REDIRECTIONS: Final = 3  # that follow each other: slots were assigned meanwhile
#: Sends the TRANGE for the entries after an ID; returns the result of ``header`` (tidelog.arrow.pages).
RangeRequest = Callable[[BlockingConnection, StreamId], tuple[int, bytes]]


class LaggingError(Exception):
    """A replica has not reached the end of the range, so the leader is asked. The text describes the range."""


def read_pages(
    servers: LeaderConnection, after: StreamId, ask: RangeRequest, wanted: PageContent, size: int, replica: str = "",
    key: Name | None = None,
) -> Iterator[Page]:  # fmt: skip
    """Yield the entries after an ID in pages of at most ``size``. The connection to the leader can be reused then.

    ``replica``: the URL of a server to ask first; "" is the leader. ``key``: of the stream, so that it is read from the
    leader that has it, in a cluster of several groups. Raises UnreachableError if no server answers, and
    the errors of ``ask`` that are not temporary.
    """
    collecting = gc.isenabled()
    # hiredis creates ten thousand lists per page without cycles: collecting costs twice as much as reading
    gc.disable()
    try:
        yield from _pages(servers, after, ask, wanted, size, replica, key)
    finally:
        if collecting:
            gc.enable()


def _pages(
    servers: LeaderConnection, after: StreamId, ask: RangeRequest, wanted: PageContent, size: int, replica: str,
    key: Name | None,
) -> Iterator[Page]:  # fmt: skip
    failures = 0
    while True:
        wire: BlockingConnection | None = None
        usable = False  # whether the whole reply was read
        try:
            if replica:
                wire = BlockingConnection(servers.access, replica, servers.name)
            else:
                wire = servers.attempts(partial(servers.leader, key))
            number, first = ask(wire, after)
            for page in wire.pages(number, first, gather(wanted), size):
                yield page
                after, failures = StreamId.parse(page.last), 0
            usable = True
            return
        except UnreachableError:
            raise
        except LaggingError as error:
            log.warning("replica %s has not reached %s; the leader is asked", without_credentials(replica), error)
            replica = ""
        except (OSError, ReplyError) as error:
            if isinstance(error, ReplyError) and not is_temporary(error):
                raise
            failures += 1
            if replica:
                log.warning("replica %s: %s; the leader is asked", without_credentials(replica), error)
                replica = ""
            else:
                _wait(servers, error, key, failures)
        finally:
            if wire is not None and (replica or not usable):
                wire.close()
            if not usable:
                servers.close()


def _wait(servers: LeaderConnection, error: OSError | ReplyError, key: Name | None, failures: int) -> None:
    """Wait before the next attempt, not after a redirection to another group. Raises the error after the last one."""
    moved = isinstance(error, ReplyError) and servers.redirected(error, key)
    if failures > servers.access.retries + (REDIRECTIONS if moved else 0):
        raise error
    if not moved or failures > 1:
        time.sleep(servers.access.retry_ms / 1000)
