"""What a change of many messages does to the runs of a pending list (``pending``), all in one pass.

One message after the other, a thousand neighbours that are a run each cost a thousand searches and copies of chunks in
four sets. Here the runs are walked once; what has to leave and what has to come is then exchanged as a batch.
"""

from __future__ import annotations

from bisect import bisect_left
from struct import Struct
from typing import Final

from storage.groups.pendingformat import ID_SIZE, OWNED
from storage.model.sortedrows import SortedRows

WINDOW: Final = 256  # runs that are looked at together
NEIGHBOURS: Final = 1024  # messages that are compared together
MAX_COUNT: Final = (1 << 32) - 1  # of deliveries
MAX_OWNED_COUNT: Final = (1 << 63) - 1  # of deliveries to consumers

RUN: Final = Struct(">16sQQQQIIIB")
TERMS: Final = Struct(">QQQQIIIB")  # a run without its low
TIME: Final = Struct(">Q")

pack_time: Final = TIME.pack
unpack_time: Final = TIME.unpack_from
pack_terms: Final = TERMS.pack
unpack_run: Final = RUN.unpack

Touched = tuple[bytes, bytes, int, int]


class NewTerms:
    """The terms that messages get, by those of their run."""

    __slots__ = ()

    def of(self, run: bytes) -> bytes:
        """The terms of messages of this run, from now on."""
        raise NotImplementedError


class Fixed(NewTerms):
    """The same terms for all."""

    __slots__ = ("_terms",)

    def __init__(self, terms: bytes) -> None:
        self._terms = terms

    def of(self, run: bytes) -> bytes:  # noqa: ARG002
        return self._terms


class DueAt(NewTerms):
    """Another due time."""

    __slots__ = ("_due",)

    def __init__(self, due: int) -> None:
        self._due = pack_time(due)

    def of(self, run: bytes) -> bytes:
        return run[16:24] + self._due + run[32:60] + b"\0"


class Again(NewTerms):
    """One delivery more; see PendingTable.redeliver(). ``slot``: of the dead letter key, None for that of the run."""

    __slots__ = ("_due", "_most", "_own_retry", "_retry", "_slot")

    def __init__(self, due: int, own_retry: bool, retry: int | None, most: int | None, slot: int | None) -> None:
        self._due = due
        self._own_retry = own_retry
        self._retry = retry
        self._most = most
        self._slot = slot

    def of(self, run: bytes) -> bytes:
        _, first, _, expire, retry, deliveries, most, slot, _ = unpack_run(run)
        return pack_terms(
            first, self._due + retry if self._own_retry else self._due, expire,
            retry if self._retry is None else self._retry, min(deliveries + 1, MAX_COUNT),
            most if self._most is None else self._most, slot if self._slot is None else self._slot, 0,
        )  # fmt: skip


class Owning(NewTerms):
    """A consumer, or nobody, owns them; see PendingTable.own()."""

    __slots__ = ("_count", "_last", "_owner", "_step")

    def __init__(self, owner: int, last: int, count: int, step: int) -> None:
        self._owner = owner
        self._last = last
        self._count = count  # deliveries; -1: as many as they had, and ``step`` more
        self._step = step

    def of(self, run: bytes) -> bytes:
        _, first, _, third, _, deliveries, _, _, kind = unpack_run(run)
        count = self._count
        if count < 0:
            count = max(0, min((third if kind == OWNED else deliveries) + self._step, MAX_OWNED_COUNT))
        return owned_terms(first, self._last, count, self._owner)


class _LastTerms:
    """Terms that were made last: readers that come in the same millisecond mostly want the same."""

    __slots__ = ("due", "expire", "first", "most", "retry", "slot", "terms")

    def __init__(self) -> None:
        self.first = self.due = self.expire = self.retry = self.most = self.slot = -1
        self.terms = b""


_delivered: Final = _LastTerms()
_owned: Final = _LastTerms()


def delivered_terms(first: int, due: int, expire: int, retry: int, most: int, slot: int) -> bytes:
    """Terms of messages that are delivered for the first time."""
    last = _delivered
    if (
        first != last.first or due != last.due or expire != last.expire
        or retry != last.retry or most != last.most or slot != last.slot
    ):  # fmt: skip
        last.terms = pack_terms(first, due, expire, retry, 1, most, slot, 0)
        last.first, last.due, last.expire, last.retry, last.most, last.slot = first, due, expire, retry, most, slot
    return last.terms


def owned_terms(first: int, last: int, deliveries: int, owner: int) -> bytes:
    """Terms of messages that a consumer owns, or nobody (0)."""
    made = _owned
    if first != made.first or last != made.due or deliveries != made.expire or owner != made.slot:
        made.terms = pack_terms(first, last, deliveries, 0, 0, owner, 0, OWNED)
        made.first, made.due, made.expire, made.slot = first, last, deliveries, owner
    return made.terms


def touched(runs: SortedRows, raws: list[bytes]) -> list[Touched]:
    """The runs that these messages (IDs, ascending, all in runs) belong to.

    Each with the run after it (empty: none), and the start and stop of its messages in ``raws``.
    """
    found: list[Touched] = []
    window: list[bytes] = []
    at, i, size, count = 0, 0, 2, len(raws)
    while at < count:
        raw = raws[at]
        while i + 1 < len(window) and window[i + 1][:ID_SIZE] <= raw:
            i += 1
        if i + 1 >= len(window):
            size = min(4 * size, WINDOW) if i else 2  # many, where it goes from run to run
            window = runs.span(runs.floor(raw)[:ID_SIZE], b"", size)
            i = 0
        after = window[i + 1] if i + 1 < len(window) else b""
        stop = count if not after or raws[-1] < after[:ID_SIZE] else bisect_left(raws, after[:ID_SIZE], at)
        found.append((window[i], after, at, stop))
        at = stop
    return found


def emptied(rows: SortedRows, runs: SortedRows, raws: list[bytes]) -> list[bytes]:
    """The runs of these messages (ascending) that have none left. ``rows``: without them."""
    gone: list[bytes] = []
    for run, after, _, _ in touched(runs, raws):
        left = rows.above(run[:ID_SIZE], itself=True)
        if not left or (after and left >= after[:ID_SIZE]):
            gone.append(run)
    return gone


def changed(rows: SortedRows, runs: SortedRows, raws: list[bytes], new: NewTerms) -> tuple[list[bytes], list[bytes]]:
    """The runs to remove and the runs to add, both ascending, when these messages get new terms.

    ``raws``: IDs, ascending, all pending. Neighbours that become alike become one run.
    """
    taken: list[bytes] = []
    put: list[bytes] = []
    last, beyond = b"", b""  # the terms before the next run, and that run, if it follows the last one that was touched
    for run, after, start, stop in touched(runs, raws):
        low, terms, want = run[:ID_SIZE], run[ID_SIZE:], new.of(run)
        if run != beyond:
            if beyond and beyond[ID_SIZE:] == last:
                taken.append(beyond)
            last = _before(runs, low)[ID_SIZE:]
        beyond = after
        if want == terms:
            if last == terms:
                taken.append(run)
            last = terms
            continue
        if low != raws[start] and rows.above(low, itself=True) < raws[start]:
            last = terms  # its first messages stay as they are
        else:
            taken.append(run)
        while start < stop:
            low = raws[start]
            start, left = _neighbours(rows, raws, start, stop)
            if want != last:
                put.append(low + want)
                last = want
            if left and not (after and left >= after[:ID_SIZE]):  # other messages of the run are next
                put.append(left + terms)
                last = terms
    if beyond and beyond[ID_SIZE:] == last:
        taken.append(beyond)
    return taken, put


def _before(runs: SortedRows, low: bytes) -> bytes:
    """The run before the one that begins at ``low``; empty if there is none."""
    number = int.from_bytes(low, "big")
    return runs.floor((number - 1).to_bytes(ID_SIZE, "big")) if number else b""


def _neighbours(rows: SortedRows, raws: list[bytes], start: int, stop: int) -> tuple[int, bytes]:
    """Up to where ``raws`` from ``start`` on are neighbours among the rows; and the row after these, if any."""
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
        step = min(4 * step, NEIGHBOURS)
