"""Verifies a history: every manifest, and every byte of the objects that manifests list."""

from __future__ import annotations

from collections.abc import Callable

import zstandard
from xxhash import xxh3_128_hexdigest

from tidelog.history import index
from tidelog.history.errors import HistoryError
from tidelog.history.files import OBJECTS
from tidelog.history.manifest import HistoryPart
from tidelog.history.survey import Survey, SurveyedStream

#: Called with the bytes that were read, and with all bytes.
Report = Callable[[int, int], None]


def verify(found: Survey, report: Report) -> list[str]:
    """Read all objects, and return the problems. The name of an object contains the digest of its bytes."""
    problems = [stream.problem for stream in found.streams if stream.problem]
    if found.deletions.get("suspended"):
        problems.append(f"nothing is deleted, because {found.deletions['suspended']}")
    problems += [f"{found.files.url}/pins/{name} is damaged" for name, pin in found.pins.items() if not pin]
    return problems + [text for texts in damaged(found, report).values() for text in texts]


def damaged(found: Survey, report: Report) -> dict[str, list[str]]:
    """Read all objects that manifests list, and return the problems of those that are missing or damaged, by name."""
    listed = found.listed
    total, done = sum(its[0][1].size for its in listed.values()), 0
    problems: dict[str, list[str]] = {}
    for name, its in sorted(listed.items()):
        report(done, total)
        done += its[0][1].size
        texts = _problems(found, name, its)
        if texts:
            problems[name] = texts
    return problems


def _problems(found: Survey, name: str, listed: list[tuple[SurveyedStream, HistoryPart]]) -> list[str]:
    first = listed[0][1]
    try:
        content = found.files.read(f"{OBJECTS}/{name}")
        if len(content) != first.size or xxh3_128_hexdigest(content) != name[17:49]:
            raise HistoryError(f"{found.files.url}/{OBJECTS}/{name} is damaged: it has other bytes than were written")
        records = index.records(content[first.index_offset :], first)
    except HistoryError as error:
        return [f"{error} ({range_of(stream, part)})" for stream, part in listed]
    except (ValueError, zstandard.ZstdError) as error:
        return [f"{found.files.url}/{OBJECTS}/{name} is damaged: {error}"]
    problems = []
    for stream, part in listed:
        own = [record for of, record in records if of == stream.name]
        covered = (own[0][5], own[-1][6], sum(record[3] for record in own)) if own else (0, 0, 0)
        if covered != (part.first_ord, part.end_ord, part.entries):
            problems.append(f"{found.files.url}/{OBJECTS}/{name} differs from the manifest ({range_of(stream, part)})")
    return problems


def range_of(stream: SurveyedStream, part: HistoryPart) -> str:
    """Return a part for people."""
    name = stream.name.decode(errors="backslashreplace")
    return f"entries {part.first_id} to {part.last_id} of stream {name!r}"
