"""Compares the two servers: the description of each stream, its entries, groups, consumers, and pending entries.

If the source has changed since the copy, only the copied part can be compared: the entries up to the last ID of the
copy. Groups are then compared only if they have not changed since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import hiredis
import xxhash

from tidelog.client.entries import StreamId
from tidelog.moving import descriptions, pages
from tidelog.moving.descriptions import GroupDescription, PendingDescription, StreamDescription, dashed, text
from tidelog.moving.endpoints import Endpoint
from tidelog.moving.merged import merged
from tidelog.moving.pages import Row, id_of
from tidelog.moving.streams import CopiedStream
from tidelog.operating.tables import counted

NAMED: Final = 3  # IDs that a difference names
PROGRESS_EVERY: Final = 1000  # entries between two reports

_pack: Callable[[tuple[Any, ...]], bytes] = hiredis.pack_command


@dataclass(slots=True)
class Compared:
    """The result for one stream."""

    differences: list[str] = field(default_factory=list)
    source_changes: list[str] = field(default_factory=list)  # changes of the source since the copy
    compared: int = 0  # number of entries
    digest: str = ""  # of the source's entries; equal to the target's digest if there are no differences


class _Few:
    """IDs, of which the first few are named."""

    def __init__(self) -> None:
        self.count = 0
        self._named: list[str] = []

    def add(self, at: StreamId) -> None:
        self.count += 1
        if len(self._named) < NAMED:
            self._named.append(dashed(at))

    def __str__(self) -> str:
        more = ", ..." if self.count > len(self._named) else ""
        return f"{self.count:,} ({', '.join(self._named)}{more})"


def compare(
    source: Endpoint, target: Endpoint, moved: CopiedStream, page: int, content: bool,
    progress: Callable[[int, int], None],
) -> Compared:  # fmt: skip
    """Compare a stream on both servers. ``moved.here`` is the description of the source at the time of the copy."""
    found = Compared()
    here, there = descriptions.stream(source, moved.key), descriptions.stream(target, moved.key)
    if here is None:
        found.source_changes.append("the stream was deleted at the source")
    elif there is None or moved.here is None:
        found.differences.append("the stream is not at the target")
    else:
        comparison = _Comparison(source, target, moved.key, here, there, moved.here, found)
        comparison.described()
        if content:
            comparison.entries(page, progress)
        comparison.groups()
    return found


def _same_entries(here: StreamDescription, then: StreamDescription, slack: int) -> bool:
    return (here.last, here.length, here.first, here.added, here.max_deleted) == (
        then.last, then.length, then.first, then.added, then.max_deleted,
    ) and _same_expiry(here, then, slack)  # fmt: skip


def _same_expiry(one: StreamDescription, other: StreamDescription, slack: int) -> bool:
    both = (one.expires == descriptions.NEVER) == (other.expires == descriptions.NEVER)
    return both and abs(one.expires - other.expires) <= slack


def _since(here: StreamDescription, then: StreamDescription) -> str:
    if here.added is not None and then.added is not None and here.added > then.added:
        return f"the source has added {counted(here.added - then.added, 'entry')} since"
    return "the stream was changed at the source since"


def _described(here: StreamDescription, there: StreamDescription, slack: int) -> Iterator[str]:
    rows: list[tuple[str, Any, Any]] = [
        ("length", here.length, there.length),
        ("first-entry", here.first, there.first),
        ("last-entry", here.newest, there.newest),
        ("last-generated-id", here.last, there.last),
    ]
    if here.added is not None:
        rows.append(("entries-added", here.added, there.added))
    if here.max_deleted is not None:
        rows.append(("max-deleted-entry-id", here.max_deleted, there.max_deleted))
    if not _same_expiry(here, there, slack):
        rows.append(("expiry", here.expires, there.expires))
    for name, mine, its in rows:
        if mine != its:
            yield f"{name} is {_shown(mine)}, at the target {_shown(its)}"


def _shown(value: Any) -> str:
    return dashed(value) if isinstance(value, StreamId) else "none" if value is None else str(value)


class _Entries:
    """Compares the entries of both streams in one pass, and computes a digest of each."""

    def __init__(self, begun: bool) -> None:
        self.compared = 0
        self.mine, self.its = xxhash.xxh3_128(), xxhash.xxh3_128()
        self.missing, self.surplus, self.different = _Few(), _Few(), _Few()
        # False: entries older than the oldest entry of the source were trimmed since, and are skipped
        self._begun = begun

    def add(self, one: Row | None, other: Row | None) -> None:
        if one is not None:
            self._begun = True
            self.compared += 1
        elif not self._begun:
            return
        packed = None if one is None else _hashed(self.mine, one)
        its = None if other is None else _hashed(self.its, other)
        if one is None:
            if other is not None:
                self.surplus.add(id_of(other))
        elif other is None:
            self.missing.add(id_of(one))
        elif packed != its:
            self.different.add(id_of(one))


def _hashed(digest: Any, row: Row) -> bytes:
    packed = _pack((row[0].replace(b".", b"-"), *row[1]))
    digest.update(packed)
    return packed


class _Messages:
    """Compares the pending entries of a group on both servers."""

    def __init__(self, source: Endpoint, key: bytes, here: StreamDescription) -> None:
        #: By consumer: the number at the source, without those that cannot be copied, and the number at the target.
        self.owned: dict[bytes, list[int]] = {}
        self._source = source
        self._key = key
        self._here = here
        self._missing, self._surplus, self._owner, self._count = _Few(), _Few(), _Few(), _Few()

    def add(self, one: PendingDescription | None, other: PendingDescription | None) -> None:
        if other is not None:
            self.owned.setdefault(other.consumer, [0, 0])[1] += 1
        if one is None:
            if other is not None:
                self._surplus.add(other.id)
            return
        owned = self.owned.setdefault(one.consumer, [0, 0])
        if other is None:
            if self._here.is_trimmed(one.id) or not self._source.ask("XRANGE", self._key, *[dashed(one.id)] * 2):
                return  # the entry does not exist, so it cannot be copied; the copy counts it
            self._missing.add(one.id)
        elif one.consumer != other.consumer:
            self._owner.add(one.id)
        elif one.count != other.count:
            self._count.add(one.id)
        owned[0] += 1

    def differences(self) -> Iterator[str]:
        for few, what in (
            (self._missing, "pending messages that are not at the target"),
            (self._surplus, "pending messages that are not at the source"),
            (self._owner, "pending messages of another consumer"),
            (self._count, "pending messages with another number of deliveries"),
        ):
            if few.count:
                yield f"{what}: {few}"


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Compares a stream that is on both servers."""

    source: Endpoint
    target: Endpoint
    key: bytes
    here: StreamDescription
    there: StreamDescription
    then: StreamDescription  # the source at the time of the copy
    found: Compared

    @property
    def still(self) -> bool:
        """Whether the source has the same entries as at the time of the copy."""
        return _same_entries(self.here, self.then, descriptions.expiry_slack(self.source))

    def described(self) -> None:
        if self.still:
            self.found.differences += _described(self.here, self.there, descriptions.expiry_slack(self.source))
        else:
            self.found.source_changes.append(_since(self.here, self.then))

    def entries(self, page: int, progress: Callable[[int, int], None]) -> None:
        then, found = self.then, self.found
        both = _Entries(self.still)
        part = self.key, descriptions.ZERO, then.last, page, then.largest
        left, right = pages.entries(self.source, *part), pages.entries(self.target, *part)
        for one, other in merged(left, right, id_of):
            both.add(one, other)
            if both.compared % PROGRESS_EVERY == 0:
                progress(both.compared, then.length)
        if both.missing.count:
            found.differences.append(f"entries that are not at the target: {both.missing}")
        if both.surplus.count:  # deleted since the copy, if the source has changed
            where = found.differences if self.still else found.source_changes
            where.append(f"entries that are not at the source: {both.surplus}")
        if both.different.count:
            found.differences.append(f"entries with other fields or values: {both.different}")
        found.compared = both.compared
        found.digest = both.mine.hexdigest()

    def groups(self) -> None:
        here, there, found = self.here.groups, self.there.groups, self.found
        for name in sorted(here.keys() | there.keys()):
            shown = f"group {text(name)}"
            if here.get(name) != self.then.groups.get(name):
                found.source_changes.append(f"{shown} was changed at the source since")
            elif name not in here:
                found.differences.append(f"{shown} is not at the source")
            elif name not in there:
                found.differences.append(f"{shown} is not at the target")
            else:
                found.differences += [f"{shown}: {each}" for each in self._group(here[name], there[name])]

    def _group(self, mine: GroupDescription, its: GroupDescription) -> Iterator[str]:
        if mine.last != its.last:
            yield f"last-delivered-id is {dashed(mine.last)}, at the target {dashed(its.last)}"
        if mine.read != its.read:
            yield f"entries-read is {_shown(mine.read)}, at the target {_shown(its.read)}"
        both = _Messages(self.source, self.key, self.here)
        left, right = (descriptions.pending(end, self.key, mine.name) for end in (self.source, self.target))
        for one, other in merged(left, right, lambda row: row.id):
            both.add(one, other)
        yield from both.differences()
        yield from self._consumers(mine.name, both.owned)

    def _consumers(self, group: bytes, owned: dict[bytes, list[int]]) -> Iterator[str]:
        mine, its = (descriptions.consumers(end, self.key, group) for end in (self.source, self.target))
        for name in sorted(mine.keys() | its.keys() | owned.keys()):
            if name in mine and name not in its:
                yield f"consumer {text(name)} is not at the target"
            elif name in its and name not in mine and name not in owned:
                yield f"consumer {text(name)} is not at the source"
            here, there = owned.get(name, (0, 0))
            if here != there:
                yield f"consumer {text(name)} has {here:,} pending messages, at the target {there:,}"
