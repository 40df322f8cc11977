"""The progress of a job: the last marker of each partition.

Rule 1: Markers and fence are read in one transaction, so a publication is visible in all of them or in none. In a
        cluster of several groups, they are read after what was decided is published; if the fence has changed
        meanwhile, another engine publishes.
Rule 2: Every epoch has a marker in every partition, so all last markers have the epoch of the fence.
Rule 3: Markers of earlier generations don't count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import hiredis

from tidelog.client import calls
from tidelog.client.entries import Entry, StreamId
from tidelog.client.steps import checked
from tidelog.jobs import keys
from tidelog.jobs.commits import CLOSED
from tidelog.jobs.errors import JobError, SupersededError
from tidelog.jobs.replaylog.marker import Marker, read_marker
from tidelog.jobs.topics import Ask, reset_hint
from tidelog.transport.call import Call
from tidelog.transport.errors import ReplyError

PAGE: Final = 200  # markers per request


def last_markers(
    ask: Ask, name: str, generation: int, partitions: int, complete: Callable[[], object] | None = None
) -> list[Marker] | None:
    """Return the last marker of each partition; None before the first epoch.

    ``complete`` publishes what was decided, if several groups of a cluster have the keys. Raises SupersededError if
    there is a later generation or another engine publishes, and JobError if the log is incomplete.
    """
    logs = [keys.log(name, at) for at in range(partitions + 1)]  # one more, which must be empty
    lasts = [calls.trevrange(key, "+", "-", 1) for key in logs]
    fence = calls.tfence(keys.fence(name, generation))
    if complete is None:
        *found, last = together(ask, [*lasts, fence])
    else:
        (last,) = checked(ask(fence))
        complete()
        found = checked(ask(*lasts))
        (now,) = checked(ask(fence))
        if now not in (last, CLOSED):
            raise SupersededError(f"job {name!r}: epoch {now} was published by another engine")
        last = now
    if last == CLOSED:
        raise SupersededError(f"job {name!r}: generation {generation} was closed by a later one")
    markers = [_marker(key, entries, name, generation) for key, entries in zip(logs, found, strict=True)]
    ours = [marker for marker in markers[:partitions] if marker is not None]
    if last is None and not ours:
        return None
    epochs = {at: marker.epoch for at, marker in enumerate(markers) if marker is not None}
    if len(ours) < partitions or markers[partitions] is not None or set(epochs.values()) != {last}:
        listed = ", ".join(f"{at}: {epoch}" for at, epoch in epochs.items()) or "none"
        raise JobError(
            f"job {name!r}: its replay log ({keys.log(name, 0)!r} and so on) is incomplete: epoch {last} was published"
            f" last, in {partitions} partitions, but the epochs of the last markers are {listed}. Entries of the log"
            f" were deleted, or the number of partitions changed; {reset_hint(name)}"
        )
    return ours


def read_log(ask: Ask, key: str, start: StreamId | None = None) -> Iterator[tuple[StreamId, Marker]]:
    """Yield the markers of a log with their IDs: from an ID on, or the newest first. Raises JobError."""
    at = "+" if start is None else str(start)
    while True:
        call = calls.trevrange(key, at, "-", PAGE) if start is None else calls.trange(key, at, "+", PAGE)
        (page,) = checked(ask(call))
        for entry in page:
            yield entry.id, read_marker(key, entry)
        if len(page) < PAGE:
            return
        at = f"({page[-1].id}"


def together(ask: Ask, requests: Sequence[Call[Any]]) -> list[Any]:
    """Send calls as one transaction and return their results."""
    commands = (("MULTI",), *[call.args for call in requests], ("EXEC",))
    raw: list[Call[Any]] = [Call(words, _itself) for words in commands]
    *_, replies = checked(ask(*raw))
    for reply in replies:
        if isinstance(reply, hiredis.ReplyError):
            raise ReplyError(str(reply))
    return [call.read(reply) for call, reply in zip(requests, replies, strict=True)]


def _marker(key: str, entries: list[Entry], name: str, generation: int) -> Marker | None:
    if not entries:
        return None
    marker = read_marker(key, entries[0])
    if marker.generation > generation:
        raise SupersededError(f"job {name!r}: generation {marker.generation} has started, this one is {generation}")
    return marker if marker.generation == generation else None


def _itself(reply: Any) -> Any:
    return reply
