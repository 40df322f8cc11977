"""The lag of queries. Spark does not report metrics of a Python source, but it reports offsets."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryListener

from tidelog.client import calls
from tidelog.client.entries import StreamId
from tidelog.spark.options import access_of
from tidelog.spark.optionvalues import OptionValues
from tidelog.spark.topicread import MARK
from tidelog.transport.errors import ReplyError
from tidelog.transport.leader import LeaderConnection

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )

log = logging.getLogger(__name__)

Offset = Mapping[str, StreamId]


class Lag(StreamingQueryListener):
    """Counts the unread entries of a query after each batch.

    >>> lag = Lag(url="redis://localhost:6379")
    >>> spark.streams.addListener(lag)

    The arguments are the connection options of the source; ``.`` is written as ``_``. Raises OptionError for other
    options. ``behind`` is ``{query ID: {stream: entries}}`` after the last batch of each running query. Override
    ``report`` in a subclass to export it. If the server does not answer, that is logged, and the numbers do not change.
    """

    def __init__(self, **options: str) -> None:
        self.behind: dict[str, dict[str, int]] = {}
        given = OptionValues({name.replace("_", "."): text for name, text in options.items()})
        self._servers = LeaderConnection(access_of(given), "lag")
        self._lock = threading.Lock()  # Spark calls from its own threads

    def report(self, query: str, name: str | None, behind: Mapping[str, int]) -> None:
        """Called after each batch. ``name`` is the name of the query, or None."""
        log.info("query %s is %d entries behind: %s", name or query, sum(behind.values()), dict(behind))

    def count(self, progress: StreamingQueryProgress) -> dict[str, int]:
        """Return, by stream, how many entries existed when the batch was planned and were not reached by it."""
        ends: dict[str, tuple[StreamId, StreamId]] = {}
        for source in progress.sources:
            read, latest = _offset(source.endOffset), _offset(source.latestOffset)
            for key, last in latest.items():
                ends[key] = (read.get(key, StreamId(0, 0)), last)
        with self._lock:
            replies = self._servers.ask(*[calls.tcount(key, f"({after}", last) for key, (after, last) in ends.items()])
        counted = zip(ends, replies, strict=True)
        return {key: 0 if isinstance(reply, ReplyError) else reply for key, reply in counted}

    def close(self) -> None:
        """Close the connection, for a listener that was removed. ``count`` opens another one."""
        with self._lock:
            self._servers.close()

    # -- as Spark calls them ------------------------------------------------------------------------------------
    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        progress = event.progress
        try:
            behind = self.count(progress)
        except (OSError, ReplyError) as error:
            log.warning("the lag of query %s is not known: %s", progress.id, error)
            return
        self.behind[str(progress.id)] = behind
        self.report(str(progress.id), progress.name, behind)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        self.behind.pop(str(event.id), None)


def _offset(text: str | None) -> dict[str, StreamId]:
    """Parse an offset of tidelog as Spark reports it; {} for an offset of another source."""
    try:
        found = json.loads(text or "{}")
        return {key: StreamId.parse(last) for key, last in found.items() if not last.startswith(MARK)}
    except (AttributeError, TypeError, ValueError):
        return {}
