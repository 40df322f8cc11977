"""Manifests: which objects contain the history of a stream. A version of a manifest is never overwritten.

    line 1   a JSON object, see ``Manifest.encode``
    line 2   XXH3-64 of line 1 without its line feed, 16 hex digits

The manifest lists the last PAGE to 2 PAGE objects. *Pages* list those before them. A page is a file of the same form.
It lists PAGE objects, or PAGE pages of the level below, and never changes. Entries are deleted at the beginning of a
stream, so the first page of each level is replaced by a shorter one. Its name contains its checksum. So the size
of a manifest grows with the logarithm of the history: with 1 TB in objects of 64 MB, it lists at most 400 parts.

Validity: the checksum, the format, and the stream match; the ordinals of the parts are adjacent, without a gap; their
IDs increase. A gap would be history that readers skip without an error, so a manifest with a gap is refused when it is
read.

    PREFIX/objects/EPOCH-DIGEST.tide          epoch of the leader, 16 hex digits; XXH3-128 of the object, 32 hex digits
    PREFIX/streams/STREAM/NUMBER.json         a version of a manifest; its number has 20 digits
    PREFIX/streams/STREAM/DIGEST.page.json    a page; XXH3-128 of its bytes

STREAM is the name of the stream with percent escapes, or its beginning and a digest if that is long (``directory_of``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote_from_bytes, unquote_to_bytes

from xxhash import xxh3_128_hexdigest

from resp.errors import CommandError, CorruptError
from storage.history.signedjson import VERSION, checked, signed
from storage.model.ids import MASK64, format_id, parse_id

MANIFEST: Final = "tidelog history manifest"
PAGE_OF: Final = "tidelog history page"
PAGE: Final = 100  # parts that a page lists
LONGEST_NAME: Final = 150  # characters of a directory's name
_REMEDY: Final = "verify the history, and restore the file from a copy of the object store"


@dataclass(frozen=True, slots=True)
class Part:
    """An object with a part of the stream's history, or a page that lists such parts. IDs are ms << 64 | seq."""

    name: str  # of the file, without its directory
    level: int  # 0: an object; 1: a page of objects; 2: a page of pages of level 1 ...
    size: int  # bytes of the file
    index_offset: int  # of the index in the object; 0 for a page
    first_ord: int  # the part covers the ordinals [first_ord, end_ord)
    end_ord: int
    first_id: int
    last_id: int
    entries: int  # of this stream in the object, or in all objects of the page
    stored: int  # bytes of the sections of this stream


@dataclass(frozen=True, slots=True)
class ManifestPage:
    """A page that must be written before the manifest that refers to it."""

    part: Part
    content: bytes


@dataclass(frozen=True, slots=True)
class Manifest:
    """A version of a stream's manifest. Each change returns a new version."""

    stream: bytes
    server: str  # the ID of the history's owner, 40 hex digits
    number: int  # of this version, from 1
    epoch: int  # of the leader that wrote it; 0: without a server group
    first_ord: int  # entries with lower ordinals were deleted, although objects may contain them
    parts: tuple[Part, ...] = ()  # pages of the highest level first, objects last
    sid: int = 0  # of the stream: another one after it was deleted and created again; 0: not known
    time: int = 0  # ms since epoch, by the clock of the leader: when it was written; 0: not known
    offset: int = 0  # the log offset of the leader's store at that time

    @property
    def end_ord(self) -> int:
        """The ordinal after the last one that the history covers."""
        return self.parts[-1].end_ord if self.parts else self.first_ord

    @property
    def stored(self) -> int:
        """The bytes of this stream in all objects. Each object counts once, as long as it has an entry that remains."""
        return sum(part.stored for part in self.parts)

    def extended(self, part: Part, epoch: int) -> tuple[Manifest, list[ManifestPage]]:
        """Return the next version, with one more object, and the pages to write first. Raises ValueError if the object
        does not follow the last one."""
        if part.level or (self.parts and not _follows(self.parts[-1], part)) or part.end_ord <= self.first_ord:
            raise ValueError(f"the object {part.name} does not continue the history at ordinal {self.end_ord}")
        parts, pages = _paged([*self.parts, part], self.stream)
        return replace(self, number=self.number + 1, epoch=epoch, parts=tuple(parts)), pages

    def trimmed(self, first_ord: int, epoch: int, page: ReadPage) -> TrimmedManifest:
        """Return the next version, without entries below an ordinal."""
        first = max(first_ord, self.first_ord)
        parts, pages, dropped = _trimmed(self.parts, first, page, self.stream)
        after = replace(self, number=self.number + 1, epoch=epoch, first_ord=first, parts=tuple(parts))
        return TrimmedManifest(after, pages, dropped)

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        return signed({
            "format": MANIFEST, "version": VERSION, "stream": escaped(self.stream), "server": self.server,
            "sid": self.sid, "number": self.number, "epoch": self.epoch, "time": self.time, "offset": self.offset,
            "first_ord": self.first_ord, "parts": _encoded(self.parts),
        })  # fmt: skip


@dataclass(frozen=True, slots=True)
class TrimmedManifest:
    """A version without some parts."""

    version: Manifest
    pages: list[ManifestPage]  # to write before the version
    dropped: list[Part]  # the objects and pages that only versions before it list


#: Returns the parts that a page lists.
ReadPage = Callable[[Part], Sequence[Part]]


def decode(content: bytes, stream: bytes | None) -> Manifest:
    """Return the manifest in a file. ``stream``: None if the caller does not know it.

    Raises CorruptError if it is damaged, has gaps, or is that of another stream.
    """
    found = checked(content, MANIFEST, _REMEDY)
    try:
        made = Manifest(
            unquote_to_bytes(found["stream"]), str(found["server"]), _number(found, "number"), _number(found, "epoch"),
            _number(found, "first_ord"), tuple(_decoded(found["parts"])),
            *(_number({name: 0} | found, name) for name in ("sid", "time", "offset")),
        )  # fmt: skip
    except (ValueError, TypeError, KeyError, AttributeError, CommandError) as error:
        raise CorruptError(f"a manifest of history is invalid ({error!r}): {_REMEDY}") from error
    if stream is not None and made.stream != stream:
        raise CorruptError(f"a manifest of history is that of the stream {escaped(made.stream)}: {_REMEDY}")
    _check(made.parts)
    return made


def decode_page(content: bytes, part: Part, stream: bytes) -> tuple[Part, ...]:
    """Return the parts that a page lists. ``part``: the page in the manifest or page that refers to it. Raises
    CorruptError."""
    if len(content) != part.size or _page_name(content) != part.name:
        raise CorruptError(f"the page {part.name} of history is damaged: {_REMEDY}")
    found = checked(content, PAGE_OF, _REMEDY)
    try:
        parts = tuple(_decoded(found["parts"]))
        same = unquote_to_bytes(found["stream"]) == stream
    except (ValueError, TypeError, KeyError, AttributeError, CommandError) as error:
        raise CorruptError(f"the page {part.name} of history is invalid ({error!r}): {_REMEDY}") from error
    _check(parts)
    if not same or not parts or _page(parts, part.name, len(content)) != part:
        raise CorruptError(f"the page {part.name} of history is not the one in the manifest: {_REMEDY}")
    return parts


def escaped(stream: bytes) -> str:
    """Return the name of a stream with percent escapes for all bytes but letters, digits, ``_``, ``-``, and ``~``."""
    return quote_from_bytes(stream, safe="").replace(".", "%2E")


def directory_of(stream: bytes) -> str:
    """Return the name of the directory of a stream: at most LONGEST_NAME characters, which are safe in any store."""
    name = escaped(stream)
    if 0 < len(name) <= LONGEST_NAME:
        return name
    digest = "." + xxh3_128_hexdigest(stream)  # no escaped name contains a dot
    return name[: LONGEST_NAME - len(digest)] + digest


def object_name(epoch: int, digest: str) -> str:
    """Return the name of an object. Two leaders never write the same name, nor one leader for different contents."""
    return f"{epoch:016x}-{digest}.tide"


def manifest_name(number: int) -> str:
    """Return the name of a version of a manifest. The names of later versions sort after those of earlier ones."""
    return f"{number:020}.json"


# -- parts ---------------------------------------------------------------------------------------------------------
def _paged(parts: list[Part], stream: bytes) -> tuple[list[Part], list[ManifestPage]]:
    """Move the first PAGE parts of each level that has 2 PAGE to a page. Return the parts, and the new pages."""
    pages: list[ManifestPage] = []
    level = 0
    while True:
        own = [at for at, part in enumerate(parts) if part.level == level]
        if not own:
            return parts, pages
        if len(own) >= 2 * PAGE:
            page = _new_page(parts[own[0] : own[0] + PAGE], stream)
            parts[own[0] : own[0] + PAGE] = [page.part]
            pages.append(page)
        level += 1


def _trimmed(
    parts: Sequence[Part], first: int, page: ReadPage, stream: bytes
) -> tuple[list[Part], list[ManifestPage], list[Part]]:  # fmt: skip
    """Return the parts with ordinals from ``first`` on, the pages to write, and the parts that are not listed then."""
    kept: list[Part] = []
    pages: list[ManifestPage] = []
    dropped: list[Part] = []
    for part in parts:
        if part.end_ord <= first:
            dropped += [*_below(part, page), part]
        elif part.level and part.first_ord < first:
            its, written, gone = _trimmed(page(part), first, page, stream)
            if gone:
                smaller = _new_page(its, stream)
                pages += [*written, smaller]
                dropped += [*gone, part]
                kept.append(smaller.part)
            else:
                kept.append(part)
        else:
            kept.append(part)
    return kept, pages, dropped


def _below(part: Part, page: ReadPage) -> Iterator[Part]:
    """Yield all objects and pages that a page lists."""
    if part.level:
        for its in page(part):
            yield from _below(its, page)
            yield its


def _new_page(parts: Sequence[Part], stream: bytes) -> ManifestPage:
    content = signed({"format": PAGE_OF, "version": VERSION, "stream": escaped(stream), "parts": _encoded(parts)})
    return ManifestPage(_page(parts, _page_name(content), len(content)), content)


def _page(parts: Sequence[Part], name: str, size: int) -> Part:
    first, last = parts[0], parts[-1]
    return Part(
        name, first.level + 1, size, 0, first.first_ord, last.end_ord, first.first_id, last.last_id,
        sum(part.entries for part in parts), sum(part.stored for part in parts),
    )  # fmt: skip


def _page_name(content: bytes) -> str:
    return f"{xxh3_128_hexdigest(content)}.page.json"


def _follows(before: Part, part: Part) -> bool:
    return part.first_ord == before.end_ord and part.first_id > before.last_id


def _check(parts: Sequence[Part]) -> None:
    """Raise CorruptError if the parts are not adjacent."""
    for at, part in enumerate(parts):
        if not 0 < part.entries <= part.end_ord - part.first_ord or part.last_id < part.first_id:
            raise CorruptError(f"the part {part.name} of history is invalid: {_REMEDY}")
        if at and (not _follows(parts[at - 1], part) or part.level > parts[at - 1].level):
            raise CorruptError(
                f"the manifest of history has a gap: {parts[at - 1].name} ends before ordinal {parts[at - 1].end_ord},"
                f" and {part.name} begins with {part.first_ord}: {_REMEDY}"
            )


# -- files ---------------------------------------------------------------------------------------------------------
def _encoded(parts: Sequence[Part]) -> list[dict[str, Any]]:
    return [
        {
            "name": part.name, "level": part.level, "size": part.size, "index_offset": part.index_offset,
            "first_ord": part.first_ord, "end_ord": part.end_ord, "first_id": format_id(part.first_id).decode(),
            "last_id": format_id(part.last_id).decode(), "entries": part.entries, "stored": part.stored,
        }
        for part in parts
    ]  # fmt: skip


def _decoded(parts: list[dict[str, Any]]) -> list[Part]:
    found = []
    for part in parts:
        name = part["name"]
        if not isinstance(name, str) or not name or "/" in name:
            raise ValueError(f"name is {name!r}")
        first_id, last_id = (parse_id(part[which].encode()) for which in ("first_id", "last_id"))
        level, size, index_offset, first_ord, end_ord, entries, stored = (
            _number(part, which)
            for which in ("level", "size", "index_offset", "first_ord", "end_ord", "entries", "stored")
        )
        found.append(Part(name, level, size, index_offset, first_ord, end_ord, first_id, last_id, entries, stored))
    return found


def _number(found: dict[str, Any], name: str) -> int:
    value = found[name]
    if type(value) is not int or not 0 <= value <= MASK64:  # exactly: JSON's true is no number
        raise ValueError(f"{name} is {value!r}")
    return value
