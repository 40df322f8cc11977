"""``RetentionTask``: the singleton task that evicts entries according to the retention of the app's topics.

    check      TLEN of each partition and the topic's settings; with max_age, the age of its oldest entry
    eviction   from partitions that exceed the retention, up to the slowest group: see ``tidelog.topics.retention``

Rule 1: a check is cheap, and becomes rarer while nothing changes: from LEAST seconds after an eviction to MOST.
Rule 2: nothing is evicted before each processor of the app that reads the topic has its group on the partition. Groups
        of other apps hold up eviction as well, including unused groups, which are named in the log.
Rule 3: an error that concerns one topic or partition does not hold up the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

import redis

from tidelog.client import calls, strings
from tidelog.client.steps import CallSender, Steps, arun, checked
from tidelog.coordination import Claim
from tidelog.operating.errortexts import FailureLog, text_of
from tidelog.topics.retention import trim
from tidelog.topics.settings import Retention, TopicError, key_of, read_settings
from tidelog.transport.asyncconnection import LostError
from tidelog.workers import logs
from tidelog.workers.declare.processor import Processor

log = logs.get(__name__)
LEAST: Final = 1.0  # seconds between two checks after an eviction
CHANGING: Final = 5  # times LEAST, while partitions grow
MOST: Final = 300.0  # seconds while nothing changes
PAGE: Final = 500  # partitions per pipeline


class RetentionTask:
    """Evicts from the topics ``names`` of ``app``; ``processors``: all processors of the app."""

    def __init__(
        self, app: str, names: Iterable[str], processors: Iterable[Processor], link: CallSender, *,
        least: float = LEAST, most: float = MOST,
    ) -> None:  # fmt: skip
        self.evicted = 0  # entries
        self._app = app
        self._names = sorted(set(names))
        self._link = link
        self._least, self._most = least, most
        self._groups: dict[str, set[bytes]] = {name: set() for name in self._names}
        for declared in processors:
            self._groups.setdefault(declared.topic.name, set()).add(declared.group.encode())
        self._seen: dict[str, list[int]] = {}  # by topic: lengths of the partitions at the last check
        self._partitions: dict[str, int] = {}  # by topic: the number at the first check
        self._logged: set[str] = set()  # messages that were logged
        self._trouble = FailureLog(log)

    async def lead(self, claim: Claim) -> None:
        """Check the topics periodically until cancelled."""
        wait = self._least
        while self._names:
            await asyncio.sleep(wait)
            if not claim.held:
                continue
            before = self.evicted
            try:
                changed = [await self._try_evict(name) for name in self._names]
            except (redis.RedisError, OSError) as error:
                if not isinstance(error, LostError):  # already logged by the connector
                    self._trouble.warn(f"app {self._app}: retention: {text_of(error)}; trying again")
                wait = min(self._most, wait * 2)
                continue
            self._trouble.succeeded()
            if self.evicted > before:
                wait = self._least
            else:
                wait = min(self._most, self._least * CHANGING if any(changed) else wait * 2)

    async def _try_evict(self, name: str) -> bool:
        try:
            return await arun(self._link, self.evict(name))
        except (redis.ResponseError, TopicError) as error:
            self._log_once(f"topic {name}: nothing is evicted: {error}")
            return False

    def evict(self, name: str) -> Steps[bool]:
        """Evict the excess of a topic; returns whether its lengths have changed since the last check."""
        (text,) = checked((yield [strings.get(key_of(name))]))
        if text is None:
            return False
        settings = read_settings(name, text)
        known = self._partitions.setdefault(name, settings.partitions or 0)
        if settings.partitions != known:
            self._log_once(
                f"topic {name}: it had {known} partitions and now has {settings.partitions}. Workers keep using the old"
                " number: restart them"
            )
        retention = settings.retention
        if retention.partition_size is None and retention.max_age_ms is None:
            return False
        streams = [f"{name}:{at}" for at in range(settings.partitions or 0)]
        lengths: list[int] = []
        for at in range(0, len(streams), PAGE):
            lengths += [
                reply if isinstance(reply, int) else self._unknown(name, reply)
                for reply in (yield [calls.tlen(stream) for stream in streams[at : at + PAGE]])
            ]
        for stream in (yield from self._overfull(streams, lengths, retention)):
            evicted = yield from trim(stream, retention, self._groups[name])
            self.evicted += evicted
            lengths[streams.index(stream)] -= evicted
            if not retention.drops and not evicted:
                yield from self._explain(name, stream)
        changed = lengths != self._seen.get(name)
        self._seen[name] = lengths
        return changed

    def _overfull(self, streams: Sequence[str], lengths: Sequence[int], retention: Retention) -> Steps[list[str]]:
        """Return the partitions that contain more or older entries than the retention allows."""
        size, age = retention.partition_size, retention.max_age_ms
        found = {stream for stream, length in zip(streams, lengths, strict=True) if size is not None and length > size}
        filled = [stream for stream, length in zip(streams, lengths, strict=True) if length]
        if age is not None and filled:
            (now,) = checked((yield [strings.server_time()]))
            for at in range(0, len(filled), PAGE):
                part = filled[at : at + PAGE]
                batches = checked((yield [calls.tread(stream, "0", 0, with_info=True) for stream in part]))
                found.update(
                    stream
                    for stream, batch in zip(part, batches, strict=True)
                    if batch.info.first is not None and batch.info.first.ms + age <= now
                )
        return [stream for stream in streams if stream in found]

    def _unknown(self, name: str, error: Exception) -> int:
        self._log_once(f"topic {name}: nothing is evicted from a partition: {error}")
        return 0

    def _log_once(self, text: str) -> None:
        if text not in self._logged:
            self._logged.add(text)
            log.warning(text)

    def _explain(self, name: str, stream: str) -> Steps[None]:
        """Log what holds up the eviction, once per cause: a processor or a group that has not begun."""
        (groups,) = checked((yield [calls.tgroup_list(stream)]))
        for missing in sorted(self._groups[name] - {group.name for group in groups}):
            self._log_once(
                f"topic {name}: nothing is evicted before all processors have begun, and {missing.decode()} has not."
                " Does a worker run it?"
            )
        ours = f"{self._app}.".encode()
        for group in groups:
            if not group.name.startswith(ours) or group.name in self._groups[name]:
                continue
            title = group.name.decode(errors="replace")
            self._log_once(
                f"topic {name}: the group {title}, which no processor of the app uses, holds up eviction. If nobody"
                f" needs it: TGROUP DESTROY {name}:N {title} for each partition N"
            )
