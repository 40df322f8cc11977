"""The manifest of a stream: the objects that contain its history. It is read from the object store and verified."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from xxhash import xxh3_64_hexdigest, xxh3_128_hexdigest

from tidelog.client.entries import StreamId
from tidelog.history.errors import HistoryError
from tidelog.history.files import HistoryFiles

VERSION: Final = 1
MANIFEST: Final = "tidelog history manifest"
PAGE: Final = "tidelog history page"
_NUMBERED: Final = re.compile(r"\d{20}\.json")


@dataclass(frozen=True, slots=True)
class HistoryPart:
    """An object with entries of the stream, or a page that lists such parts."""

    name: str  # of the file
    level: int  # 0: an object; above: a page
    size: int  # bytes of the file
    index_offset: int  # of the index in the object
    first_ord: int  # the part covers the ordinals [first_ord, end_ord)
    end_ord: int
    first_id: StreamId
    last_id: StreamId
    entries: int  # of this stream
    stored: int  # bytes of the sections of this stream


@dataclass(frozen=True)
class HistoryManifest:
    """A version of the manifest of a stream."""

    folder: str
    server: str  # the ID of the owner, 40 hex digits
    sid: int  # of the stream
    number: int  # of this version
    first_ord: int
    parts: tuple[HistoryPart, ...]


def latest(files: HistoryFiles, folder: str) -> HistoryManifest | None:
    """Return the valid version of a manifest; None if there is none. Raises HistoryError."""
    names = [name for name in files.names(folder) if _NUMBERED.fullmatch(name)]
    if not names:
        return None
    name = f"{folder}/{max(names)}"
    found = _checked(files, name, files.read(name), MANIFEST)
    try:
        return HistoryManifest(
            folder, found["server"], found.get("sid", 0), found["number"], found["first_ord"], _parts(found["parts"])
        )
    except (KeyError, TypeError, ValueError) as error:
        raise HistoryError(f"{files.url}/{name} is invalid: {error!r}") from error


def objects(
    files: HistoryFiles, folder: str, parts: tuple[HistoryPart, ...], after: StreamId, end: StreamId
) -> Iterator[HistoryPart]:
    """Yield the objects with entries in (after, end], in order. Pages are read if they are needed.

    Raises HistoryError.
    """
    for part in parts:
        if part.last_id <= after or part.first_id > end:
            continue
        if part.level:
            name = f"{folder}/{part.name}"
            content = files.read(name)
            if len(content) != part.size or f"{xxh3_128_hexdigest(content)}.page.json" != part.name:
                raise HistoryError(f"{files.url}/{name} is damaged")
            try:
                below = _parts(_checked(files, name, content, PAGE)["parts"])
            except (KeyError, TypeError, ValueError) as error:
                raise HistoryError(f"{files.url}/{name} is invalid: {error!r}") from error
            if any(each.level >= part.level for each in below):
                raise HistoryError(f"{files.url}/{name} is invalid: it lists pages of its own level")
            yield from objects(files, folder, below, after, end)
        else:
            yield part


def _checked(files: HistoryFiles, name: str, content: bytes, form: str) -> dict[str, Any]:
    line, _, checksum = content.partition(b"\n")
    if checksum != xxh3_64_hexdigest(line).encode() + b"\n":
        raise HistoryError(f"{files.url}/{name} is damaged: its checksum does not match")
    found: dict[str, Any] = json.loads(line)
    if found.get("format") != form:
        raise HistoryError(f"{files.url}/{name} is no {form}")
    if found.get("version") != VERSION:
        raise HistoryError(
            f"{files.url}/{name} has format {found.get('version')}; this version of tidelog reads format {VERSION}:"
            " upgrade it"
        )
    return found


def _parts(listed: list[dict[str, Any]]) -> tuple[HistoryPart, ...]:
    """Return the parts of a manifest or page. Raises ValueError if they are not adjacent."""
    parts = tuple(
        HistoryPart(
            each["name"], each["level"], each["size"], each["index_offset"], each["first_ord"], each["end_ord"],
            StreamId.parse(each["first_id"]), StreamId.parse(each["last_id"]), each["entries"], each["stored"],
        )
        for each in listed
    )  # fmt: skip
    for one, other in pairwise(parts):
        if other.first_ord != one.end_ord or other.first_id <= one.last_id:
            raise ValueError(f"there is a gap between {one.name} and {other.name}")
    return parts
