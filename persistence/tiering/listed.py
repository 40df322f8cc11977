"""What the manifests list, as this process knows it. Only one process writes manifests, so this stays valid.

An object is *listed* by a stream if the valid version of the stream's manifest has it. The end of a manifest is known
exactly; about the objects in pages, only the ordinals are known.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from storage.history.manifest import Manifest


@dataclass(slots=True)
class ListedStream:
    """The valid version of a manifest, and those before it that still exist."""

    number: int
    sid: int
    first_ord: int  # of the first part
    first_end: int  # the ordinal after the first object; 0: not known, the object is in a page
    end_ord: int
    has_parts: bool
    time: int  # ms since epoch: when the version was written; 0: not known
    offset: int  # log offset of the store at that time
    before: list[tuple[int, int]] = field(default_factory=list)  # numbers, and when the next version was written; 0: ?


class Listing:
    """The manifests that this process has read or written."""

    def __init__(self) -> None:
        self.streams: dict[bytes, ListedStream] = {}
        self.objects: set[str] = set()  # names of objects that a manifest lists; not complete
        self.unreadable: set[str] = set()  # folders of manifests that can't be read: they may list anything

    def found(self, version: Manifest, before: Iterable[int]) -> None:
        """Note the valid version of a manifest, and the numbers of those before it."""
        self.streams[version.stream] = _listed(version, [(number, 0) for number in sorted(before)])
        self._add(version)

    def written(self, version: Manifest) -> None:
        """Note a version that this process has written."""
        known = self.streams.get(version.stream)
        before = []
        if known is not None:
            before = [*known.before, (known.number, version.time)]
        self.streams[version.stream] = _listed(version, before)
        self._add(version)

    def _add(self, version: Manifest) -> None:
        self.objects.update(part.name for part in version.parts if not part.level)

    def may_list(self, stream: bytes, first_ord: int, end_ord: int) -> bool:
        """Return whether the manifest of a stream has parts with these ordinals."""
        known = self.streams.get(stream)
        return known is not None and known.has_parts and first_ord < known.end_ord and known.first_ord < end_ord


def _listed(version: Manifest, before: list[tuple[int, int]]) -> ListedStream:
    first = version.parts[0] if version.parts else None
    return ListedStream(
        version.number, version.sid, version.first_ord if first is None else first.first_ord,
        0 if first is None or first.level else first.end_ord, version.end_ord, first is not None, version.time,
        version.offset, before,
    )  # fmt: skip
