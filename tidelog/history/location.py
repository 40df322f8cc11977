"""TMANIFEST: the history of a stream as its server knows it."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tidelog.client.steps import existing
from tidelog.transport.call import Call

MOST_DELETED: Final = 100_000  # ranges of deleted entries of a stream that a reader accepts


class ManyDeletedError(Exception):
    """More ranges of entries were deleted than a reader accepts."""


@dataclass(frozen=True)
class HistoryLocation:
    """Where the history of a stream is, and which of its entries no longer exist."""

    url: str  # "": this server copies no history
    server: str  # the ID of the history's owner; "": not known to this server
    folder: str  # of the manifest
    sid: int  # of the stream: a stream that was deleted and created again has another one
    first_ord: int  # entries with lower ordinals were evicted
    end_ord: int  # the ordinal of the next entry
    deleted: tuple[int, ...]  # ordinals: start and end of each range of deleted entries, up to deleted_until
    deleted_until: int


def tmanifest(key: str, start: int = 0, end: int | None = None) -> Call[HistoryLocation]:
    """Return the call. ``start``, ``end``: the range of ordinals whose deleted entries are listed."""
    words = ("TMANIFEST", key) if end is None else ("TMANIFEST", key, "RANGE", start, end)
    return Call(words, _location)


def _location(reply: Any) -> HistoryLocation:
    named = reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))
    return HistoryLocation(
        (named[b"url"] or b"").decode(), (named[b"server"] or b"").decode(), named[b"folder"].decode(), named[b"sid"],
        named[b"first-ordinal"], named[b"end-ordinal"], tuple(named[b"deleted"]), named[b"deleted-until"],
    )  # fmt: skip


def deleted_ranges(
    ask: Callable[..., list[Any]], key: str, located: HistoryLocation, start: int, end: int
) -> array[int] | None:
    """Return the ranges of deleted entries among the ordinals [start, end): start and end of each.

    None if the stream is another one by now. Raises ManyDeletedError, and errors of ``ask``.
    """
    found = array("Q", located.deleted)
    while located.deleted_until < min(end, located.end_ord):
        if len(found) > 2 * MOST_DELETED:
            raise ManyDeletedError(f"more than {MOST_DELETED} ranges of entries of stream {key!r} were deleted")
        first = max(start, located.deleted_until)
        (reply,) = ask(tmanifest(key, first, end))
        more: HistoryLocation | None = existing(key, reply)
        if more is None or more.sid != located.sid or more.deleted_until <= first:
            return None
        found.extend(more.deleted)
        located = more
    return found
