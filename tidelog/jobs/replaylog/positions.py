"""The position of each partition of a job in each of its inputs, according to its last markers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tidelog.client.entries import Info, StreamId
from tidelog.jobs.declare import Job
from tidelog.jobs.errors import InputsLostError, JobError
from tidelog.jobs.replaylog.marker import Marker
from tidelog.jobs.replaylog.origin import ZERO, Origin
from tidelog.jobs.topics import JobTopics, reset_hint


@dataclass(frozen=True)
class JobPositions:
    """Positions after an epoch; immutable. The epoch is 0 before the first one."""

    shape: JobTopics
    origin: Origin
    epoch: int
    lasts: Sequence[Marker | None]  # by partition of the job
    starts: Sequence[Mapping[str, StreamId]]  # by partition and topic: the ID after which to continue

    @classmethod
    def of(cls, shape: JobTopics, origin: Origin, lasts: Sequence[Marker] | None) -> JobPositions:
        begin = [
            {topic: origin.after(topic, shape.part(topic, at)) for topic in shape.inputs}
            for at in range(shape.partitions)
        ]
        start = cls(shape, origin, 0, [None] * shape.partitions, begin)
        return start if lasts is None else start.after(lasts)

    def after(self, markers: Sequence[Marker]) -> JobPositions:
        """Return the positions after an epoch with these markers."""
        starts = [
            dict(before) | {topic: span.end for topic, span in marker.inputs.items() if topic in before}
            for before, marker in zip(self.starts, markers, strict=True)
        ]
        return replace(self, epoch=markers[0].epoch, lasts=list(markers), starts=starts)

    def by_stream(self) -> dict[str, StreamId]:
        """Return, by stream, how far every partition that reads it has read."""
        least: dict[str, StreamId] = {}
        for stream, start in self._all():
            least[stream] = min(least.get(stream, start), start)
        return least

    def origins(self) -> dict[str, StreamId]:
        """Return, by stream, where the generation started."""
        return {f"{topic}:{at}": self.origin.after(topic, at) for topic, at in self.shape.streams()}

    def has_new(self, lasts: Mapping[str, StreamId]) -> bool:
        """Return whether there are entries to read; ``lasts`` are the last IDs of the streams."""
        return any(lasts.get(stream, ZERO) > start for stream, start in self._all())

    def checked(self, job: Job, origin: Origin, infos: Mapping[str, Info | None]) -> JobPositions:
        """Return these positions, moved to the oldest existing entries for a new job that starts at ``earliest``.

        Raises InputsLostError if the next entries were evicted, and JobError if a stream was deleted.
        """
        starts = [dict(start) for start in self.starts]
        for at, start in enumerate(starts):
            for topic, after in start.items():
                stream = f"{topic}:{self.shape.part(topic, at)}"
                info = infos[stream]
                if after > (info.last if info is not None else ZERO):
                    raise JobError(
                        f"job {job.name!r}: the stream {stream!r} was deleted after it was read up to {after};"
                        f" {reset_hint(job.name)}"
                    )
                if info is None or info.evicted_to <= after:
                    continue
                if self.epoch or origin.start != "earliest":
                    raise InputsLostError(
                        f"job {job.name!r}: entries of topic {topic!r} (stream {stream!r}) after {after}, up to"
                        f" {info.evicted_to}, were evicted before partition {at} read them; give the topic"
                        f" overflow='protect' or a larger partition_size, and {reset_hint(job.name)}"
                    )
                start[topic] = info.evicted_to
        return replace(self, starts=starts)

    def _all(self) -> Iterator[tuple[str, StreamId]]:
        for at, start in enumerate(self.starts):
            for topic, after in start.items():
                yield f"{topic}:{self.shape.part(topic, at)}", after
