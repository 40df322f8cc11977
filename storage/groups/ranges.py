"""Changes of many messages to the ranges of a pending list, in one pass over the ranges.

Changing a thousand neighbors in separate ranges one by one would take a thousand searches and copies of chunks in four
sets. The functions here visit the ranges once and return the ranges to remove and to add, which the caller then
exchanges in bulk.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Final

from storage.groups.rangerow import (
    DUE,
    EXPIRE,
    FIRST,
    ID_SIZE,
    KIND,
    NOT_SWEPT,
    OWNED,
    pack_terms,
    pack_time,
    unpack_range,
)
from storage.model.sortedrows import SortedRows

WINDOW: Final = 256  # number of ranges that are read together
NEIGHBORS: Final = 1024  # number of messages that are compared together
MAX_COUNT: Final = (1 << 32) - 1  # maximum number of deliveries
MAX_OWNED_COUNT: Final = (1 << 63) - 1  # maximum number of deliveries to consumers

Section = tuple[bytes, bytes, int, int]  # a range, the next range (or empty), start and stop of its messages


NewTerms = Callable[[bytes], bytes]  # returns the new terms of messages in a range


def new_due_time(due: int) -> NewTerms:
    """Return the change of the due time."""
    raw = pack_time(due)

    def terms(range_: bytes) -> bytes:
        return range_[FIRST:DUE] + raw + range_[EXPIRE:KIND] + NOT_SWEPT

    return terms


def redelivered(due: int, own_retry: bool, retry: int | None, most: int | None, slot: int | None) -> NewTerms:
    """Return the change by one more delivery, see PendingTable.redeliver().

    ``slot``: of the dead-letter key; None: unchanged.
    """

    def terms(range_: bytes) -> bytes:
        _, first, _, expire, old_retry, deliveries, old_most, old_slot, _ = unpack_range(range_)
        return pack_terms(
            first, due + old_retry if own_retry else due, expire, old_retry if retry is None else retry,
            min(deliveries + 1, MAX_COUNT), old_most if most is None else most, old_slot if slot is None else slot, 0,
        )  # fmt: skip

    return terms


def new_owner(owner: int, last: int, count: int, step: int) -> NewTerms:
    """Return the change of the owner, see PendingTable.own().

    ``count``: number of deliveries; -1: add ``step`` to the previous number.
    """

    def terms(range_: bytes) -> bytes:
        _, first, _, third, _, deliveries, _, _, kind = unpack_range(range_)
        number = count
        if count < 0:
            number = max(0, min((third if kind == OWNED else deliveries) + step, MAX_OWNED_COUNT))
        return owned_terms(first, last, number, owner)

    return terms


def delivered_terms(first: int, due: int, expire: int, retry: int, most: int, slot: int) -> bytes:
    """Return the terms of messages that are delivered for the first time."""
    return pack_terms(first, due, expire, retry, 1, most, slot, 0)


def owned_terms(first: int, last: int, deliveries: int, owner: int) -> bytes:
    """Return the terms of messages of a consumer, or of messages without an owner (0)."""
    return pack_terms(first, last, deliveries, 0, 0, owner, 0, OWNED)


def ranges_of(ranges: SortedRows, raws: list[bytes]) -> list[Section]:
    """Return the ranges of these messages (ascending IDs, all in ranges).

    Each comes with the next range (empty: none), and with the start and stop of its messages in ``raws``.
    """
    found: list[Section] = []
    window: list[bytes] = []
    at, i, size, count = 0, 0, 2, len(raws)
    while at < count:
        raw = raws[at]
        while i + 1 < len(window) and window[i + 1][:ID_SIZE] <= raw:
            i += 1
        if i + 1 >= len(window):
            size = min(4 * size, WINDOW) if i else 2  # larger if consecutive messages are in different ranges
            window = ranges.span(ranges.floor(raw)[:ID_SIZE], b"", size)
            i = 0
        after = window[i + 1] if i + 1 < len(window) else b""
        stop = count if not after or raws[-1] < after[:ID_SIZE] else bisect_left(raws, after[:ID_SIZE], at)
        found.append((window[i], after, at, stop))
        at = stop
    return found


def emptied_ranges(rows: SortedRows, ranges: SortedRows, raws: list[bytes]) -> list[bytes]:
    """Return the ranges of these messages (ascending) that are now empty. ``rows`` no longer contains the messages."""
    gone: list[bytes] = []
    for range_, after, _, _ in ranges_of(ranges, raws):
        left = rows.above(range_[:ID_SIZE], itself=True)
        if not left or (after and left >= after[:ID_SIZE]):
            gone.append(range_)
    return gone


def changed_ranges(
    rows: SortedRows, ranges: SortedRows, raws: list[bytes], new: NewTerms
) -> tuple[list[bytes], list[bytes]]:  # fmt: skip
    """Return the ranges to remove and the ranges to add, both ascending, if these messages get new terms.

    ``raws``: ascending IDs, all pending. Neighbors whose terms become equal become one range.
    """
    taken: list[bytes] = []
    put: list[bytes] = []
    last, beyond = b"", b""  # the terms before the next range, and that range if it follows the last section
    for range_, after, start, stop in ranges_of(ranges, raws):
        low, terms, want = range_[:ID_SIZE], range_[ID_SIZE:], new(range_)
        if range_ != beyond:
            if beyond and beyond[ID_SIZE:] == last:
                taken.append(beyond)
            last = _range_before(ranges, low)[ID_SIZE:]
        beyond = after
        if want == terms:
            if last == terms:
                taken.append(range_)
            last = terms
            continue
        if low != raws[start] and rows.above(low, itself=True) < raws[start]:
            last = terms  # its first messages keep their terms
        else:
            taken.append(range_)
        while start < stop:
            low = raws[start]
            start, left = _neighbors(rows, raws, start, stop)
            if want != last:
                put.append(low + want)
                last = want
            if left and not (after and left >= after[:ID_SIZE]):  # other messages of the range follow
                put.append(left + terms)
                last = terms
    if beyond and beyond[ID_SIZE:] == last:
        taken.append(beyond)
    return taken, put


def _range_before(ranges: SortedRows, low: bytes) -> bytes:
    """Return the range before the one that begins at ``low``; empty if there is none."""
    number = int.from_bytes(low, "big")
    return ranges.floor((number - 1).to_bytes(ID_SIZE, "big")) if number else b""


def _neighbors(rows: SortedRows, raws: list[bytes], start: int, stop: int) -> tuple[int, bytes]:
    """Return the end of the messages from ``start`` on that are adjacent rows, and the row after them (or empty)."""
    step = 1
    while True:
        some = min(step, stop - start)
        window = rows.span(raws[start], b"", some + 1)
        if window[:some] != raws[start : start + some]:
            same = 1
            while window[same] == raws[start + same]:
                same += 1
            return start + same, window[same]
        start += some
        left = window[some] if some < len(window) else b""
        if start == stop or left != raws[start]:
            return start, left
        step = min(4 * step, NEIGHBORS)
