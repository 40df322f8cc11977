"""A batch of a producer whose partitions are on several groups of a cluster: published partition by partition.

    GET producer:orders:<id>:import batch                            {"last": 16, "open": null}
    SET producer:orders:<id>:import batch {"last": 16, "open": {"number": 17, "partitions": 4, "digest": ...}} IFEQ ...
    TSTAGE producer:{orders:3}:<id>:import:<random> ...              on the group of each partition
    TPUBLISH producer:{orders:3}:<id>:import 17 CHECK <digest> ...   on the group of each partition
    SET producer:orders:<id>:import batch {"last": 17, "open": null} IFEQ ...

No command can publish on several groups at once, so readers may see the records of one partition before those of
another. Each partition has its own fence, which accepts a number once.

Rule 1: before anything of a batch is published, the record has its number, its digest, and the number of partitions by
        which it is divided. A program that sends the batch again after a crash divides it in the same way, even if the
        topic has grown meanwhile, and publishes the partitions that are missing.
Rule 2: the digest does not depend on the program that sends the batch: it covers partitions, fields and values, but no
        trace context. Records without a key are distributed by their position in the batch. Other records under the
        number of an unfinished batch are refused, because some partitions may have the first ones.
Rule 3: a batch is finished when all its partitions are published. Only then does the record name it as the last one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, Protocol
from uuid import uuid4

import msgspec

from tidelog.client import calls, strings
from tidelog.client.entries import Published
from tidelog.client.steps import Steps, checked
from tidelog.topics.sending import RecordWindow, Sender
from tidelog.topics.settings import TopicError
from tidelog.transport.call import Call
from tidelog.transport.errors import ConflictError, NoStageError, StaleEpochError
from tidelog.transport.slots import hash_tag

STAGE_MS: Final = 600_000  # a stage that is not published expires this long after its last row


class OpenBatch(msgspec.Struct, frozen=True):
    """A batch that was begun, and of which some partitions may be published."""

    number: int
    partitions: int  # by which its records are divided
    digest: str  # hexadecimal


class BatchRecord(msgspec.Struct, frozen=True):
    """What a producer has published by partitions. It is a JSON string on the server."""

    last: int = 0  # the number of the last finished batch
    open: OpenBatch | None = None


class Sending(Protocol):
    """The topic of a producer."""

    @property
    def name(self) -> str: ...
    def sender(self) -> Sender: ...


def record_key(fence: str) -> str:
    """Return the key of the record of a producer with this fence. No other producer's fence has the same name."""
    return f"{fence} batch"


def read_record(fence: str) -> Steps[tuple[BatchRecord, bytes | None]]:
    """Return the record, and its text: None if the producer has never published by partitions."""
    (text,) = checked((yield [strings.get(record_key(fence))]))
    if text is None:
        return BatchRecord(), None
    try:
        return msgspec.json.decode(text, type=BatchRecord), text
    except (ValueError, RecursionError) as error:
        key = record_key(fence)
        raise TopicError(f"the key {key!r} does not have the last batch of a producer: {error}") from None


@dataclass
class _Gathered:
    """The records of a batch, divided by partition."""

    sender: Sender
    windows: list[RecordWindow]
    digests: dict[int, str]  # by partition

    @property
    def rows(self) -> int:
        return sum(window.rows for window in self.windows)

    @property
    def digest(self) -> str:
        """The digest of all partitions."""
        return _hex("".join(f"{at}:{digest}\n" for at, digest in sorted(self.digests.items())))


class DividedBatch:
    """Publishes one batch. ``fence`` is that of the producer, ``name`` and ``topic_id`` are parts of it."""

    def __init__(self, topic: Sending, topic_id: str, name: str, fence: str, records: Iterable[Any]) -> None:
        self._topic = topic
        self._id, self._name, self._fence = topic_id, name, fence
        self._records = records
        self._gathered: _Gathered | None = None
        self._divided_as = 0, 0  # number and partitions of ``_gathered``
        self._number: int | None = None  # once it is known
        self._begun = False  # whether this object may have written the record for its number

    def fence(self, partition: int) -> str:
        """Return the fence of a partition."""
        return f"producer:{hash_tag(f'{self._topic.name}:{partition}')}:{self._id}:{self._name}"

    def publish(self, number: int | None, last: int) -> Steps[Published]:
        """Publish the batch under this number; ``last`` is the number that the fence has.

        None: the number of an unfinished batch with these records, or the next one. After an error, call it again.
        Raises ConflictError, StaleEpochError.
        """
        record, text = yield from read_record(self._fence)
        last = max(last, record.last)
        number = number or self._number or self._next(record, last)
        if number <= last:
            return Published(self._begun, self._gathered.rows if self._begun and self._gathered else 0)
        found = record.open if record.open is not None and record.open.number == number else None
        gathered = self._divided(number, found)
        if not gathered.windows:
            return Published(False, 0)
        self._number = number
        wanted = OpenBatch(number, len(gathered.sender.streams), gathered.digest)
        begun = BatchRecord(last, wanted)
        touched = sorted(gathered.digests)
        if found is None:
            self._check_next(number, record)
            self._begun = True
            yield from self._replace(text, begun)
            left: Sequence[int] = touched
        elif found != wanted:
            raise ConflictError(
                f"CONFLICT producer {self._name!r}: batch {number} was begun with other records, and some partitions of"
                f" topic {self._topic.name!r} may have them. Send the same records again, or use another number"
            )
        else:
            left = yield from self._missing(gathered, number)
        now = yield from self._publish(gathered, left, number)
        yield from self._replace(msgspec.json.encode(begun if found is None else record), BatchRecord(number))
        yield from gathered.sender.settled(touched)
        return Published(True, gathered.rows) if now or self._begun else Published(False, 0)

    def _next(self, record: BatchRecord, last: int) -> int:
        """Return the number of a batch without a number."""
        if record.open is None or record.open.number <= last:
            return last + 1
        unfinished = record.open
        same = self._divided(unfinished.number, unfinished).digest == unfinished.digest
        return unfinished.number if same else unfinished.number + 1

    def _check_next(self, number: int, record: BatchRecord) -> None:
        if record.open is not None and record.open.number > number:
            raise StaleEpochError(
                f"STALE producer {self._name!r}: batch {record.open.number} was begun, so batch {number} can't be sent:"
                " use a higher number"
            )

    def _replace(self, old: bytes | None, record: BatchRecord) -> Steps[None]:
        """Write the record. Raises ConflictError if another program has written it meanwhile."""
        key, new = record_key(self._fence), msgspec.json.encode(record)
        change = strings.set_absent(key, new) if old is None else strings.set_equal(key, new, old)
        (there,) = checked((yield [change]))
        if there not in (old, new):
            text = f"another program publishes to topic {self._topic.name!r} under this name"
            raise ConflictError(f"CONFLICT producer {self._name!r}: {text}")

    # -- records -----------------------------------------------------------------------------------------------
    def _divided(self, number: int, found: OpenBatch | None) -> _Gathered:
        """Collect the records, by the number of partitions with which the batch was begun."""
        sender = self._topic.sender()
        partitions = found.partitions if found is not None else len(sender.streams)
        if self._gathered is None or self._divided_as != (number, partitions):
            if self._gathered is not None:
                self._records = [record for window in self._gathered.windows for record in window.records]
            self._gathered = _gathered(sender.numbered(number, partitions), self._records)
            self._divided_as = number, partitions
        return self._gathered

    # -- partitions --------------------------------------------------------------------------------------------
    def _missing(self, gathered: _Gathered, number: int) -> Steps[list[int]]:
        """Return the partitions of which an earlier attempt has not published the records.

        The server compares number and check before it checks the stages, so a stage that does not exist is sufficient.
        """
        at = sorted(gathered.digests)
        replies = yield [self._publication(gathered, each, number, f"{self.fence(each)}:{uuid4().hex}") for each in at]
        checked([reply for reply in replies if not isinstance(reply, NoStageError)])
        return [each for each, reply in zip(at, replies, strict=True) if isinstance(reply, NoStageError)]

    def _publish(self, gathered: _Gathered, partitions: Sequence[int], number: int) -> Steps[bool]:
        """Stage the records of these partitions and publish them. Returns whether anything was published."""
        sender = gathered.sender
        yield from sender.room(partitions)
        stages = {at: f"{self.fence(at)}:{uuid4().hex}" for at in partitions}
        staged, rows = dict.fromkeys(partitions, 0), dict.fromkeys(partitions, 0)
        for window in gathered.windows:
            batches = [(at, batch) for at, batch in window.batches if at in stages]
            rows_of = [batch.stage(stages[at], STAGE_MS, sender.streams[at]) for at, batch in batches]
            replies = checked((yield rows_of)) if rows_of else []
            for (at, batch), reply in zip(batches, replies, strict=True):
                staged[at], rows[at] = reply, rows[at] + batch.number
        if staged != rows:
            raise AssertionError(f"stages of {self._fence} hold {staged} rows of {rows}")
        done = checked((yield [self._publication(gathered, at, number, stages[at]) for at in partitions]))
        return any(each.now for each in done)

    def _publication(self, gathered: _Gathered, partition: int, number: int, stage: str) -> Call[Published]:
        return calls.tpublish(self.fence(partition), number, stage, check=gathered.digests[partition])


def _gathered(sender: Sender, records: Iterable[Any]) -> _Gathered:
    """Collect all records in windows."""
    digests: dict[int, Any] = {}
    fields_of: dict[int, tuple[Any, ...]] = {}

    def digest(at: int, fields: tuple[Any, ...], packed: bytes) -> None:
        made = digests.get(at)
        if made is None:
            made = digests[at] = blake2b(digest_size=16)
        if fields_of.get(at) != fields:
            fields_of[at] = fields
            made.update(repr(fields).encode())
        made.update(packed)

    made: list[RecordWindow] = []
    left = iter(records)
    while (window := sender.gathered(left, digest)).rows:
        made.append(window)
    return _Gathered(sender, made, {at: each.hexdigest() for at, each in digests.items()})


def _hex(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()
