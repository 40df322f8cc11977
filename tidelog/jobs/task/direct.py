"""Reads the entries of an input from history objects. The option ``history`` of a job selects this.

Rule 1: a read returns entries without a gap from the beginning of its range on, but not necessarily to its end: the
        objects can end before. The next read continues there.
Rule 2: if the objects can't be read, ``auto`` returns what was read before the error, and the caller reads on from the
        server. ``direct`` raises HistoryError, after which the epoch is repeated until the objects can be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from weakref import WeakKeyDictionary

from tidelog.arrow.direct import history_pages
from tidelog.arrow.pages import Page, PageContent
from tidelog.client import calls
from tidelog.client.entries import Info, StreamId
from tidelog.client.steps import existing
from tidelog.history import choice
from tidelog.history.errors import HistoryError
from tidelog.history.location import ManyDeletedError
from tidelog.history.planning import HistoryPiece, HistoryPlanner
from tidelog.transport.leader import LeaderConnection

PAGE: Final = 5000  # rows

_planners: WeakKeyDictionary[LeaderConnection, HistoryPlanner] = WeakKeyDictionary()


class InputHistory:
    """The history of an input."""

    def __init__(self, key: str, history: str, wanted: PageContent) -> None:
        """``history``: see ``tidelog.history.choice``."""
        self._key = key
        self._choice = history
        self._wanted = wanted

    def read(
        self, servers: LeaderConnection, after: StreamId, end: StreamId, entries: int, most: int | None = None
    ) -> Iterator[tuple[Page, Info | None]]:
        """Yield the entries after an ID, at most ``most``, in pages; each with the stream as it was when the plan was
        made. Nothing if they are not in objects.

        ``entries``: the number of entries in (after, end]. Raises HistoryError by Rule 2, OSError or ReplyError.
        """
        if self._choice == choice.SERVER or (self._choice == choice.AUTO and entries < choice.FEWEST):
            return
        planner = _planners.get(servers)
        if planner is None:
            planner = _planners[servers] = HistoryPlanner(servers.ask)
        try:
            piece = self._piece(planner, after, end)
            if piece is None:
                return
            # Requested after the deleted and evicted entries: what it has, the plan has.
            (reply,) = servers.ask(calls.tinfo(self._key))
            info = existing(self._key, reply)
            for page in history_pages(piece, self._wanted, PAGE, most):
                yield page, info
        except (HistoryError, ManyDeletedError) as error:
            choice.report(error, self._choice)

    def _piece(self, planner: HistoryPlanner, after: StreamId, end: StreamId) -> HistoryPiece | None:
        history = planner.histories({self._key: StreamId(after.ms + 1)}).get(self._key)
        if self._key in planner.problems:
            raise planner.problems[self._key]
        return None if history is None else history.piece(after, end)
