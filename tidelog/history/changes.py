"""Repairs a history, and forgets parts of it. The changes are new versions of manifests, and requests to the server to
write lost objects again; no object is deleted.

The server may run meanwhile: it notices that the manifests have new versions, and reads them. Objects that no manifest
lists any more are deleted by the server, after ``tier-grace``, and only if nothing needs them.

Rule 1: the list of deletions has an object, with its stream, before a manifest no longer lists it. So the server does
not delete it while the stream has entries in it: a replica can have references to the object, although the server has
copied the same entries again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import zstandard

from tidelog.client.entries import StreamId
from tidelog.history import index
from tidelog.history.checking import range_of
from tidelog.history.errors import HistoryError
from tidelog.history.files import OBJECTS, HistoryFiles
from tidelog.history.index import FOOTER
from tidelog.history.manifest import HistoryPart
from tidelog.history.survey import (
    DELETIONS,
    PINS,
    STREAMS,
    Survey,
    SurveyedStream,
    read_version,
    signed,
)

#: Returns the sid of a stream on the server; 0 if there is no such stream.
Sid = Callable[[bytes], int]
NONE: Final = StreamId(0, 0)
REPAIRS: Final = "repairs"
GRACE: Final = 86_400_000  # ms: in the first list of deletions, until the server writes its tier-grace


@dataclass(frozen=True)
class HistoryChange:
    """Something that a command does if the user agrees."""

    text: str  # what it does
    apply: Callable[[], None]


# -- repair --------------------------------------------------------------------------------------------------------
def repairs(
    found: Survey, sid_of: Sid | None, damaged: Collection[str] = ()
) -> tuple[list[HistoryChange], list[str]]:  # fmt: skip
    """Return what can be repaired, and the remedies of the problems that can't.

    ``sid_of``: None if no server was given. ``damaged``: names of objects that were found to be damaged. Raises
    HistoryError.
    """
    changes: list[HistoryChange] = []
    hopeless: list[str] = []
    for stream in found.streams:
        if stream.problem:
            try:
                changes.append(_rebuilt(found, stream, sid_of))
            except HistoryError as error:
                hopeless.append(str(error))
    for name, its in sorted(found.listed.items()):
        if name not in found.objects or name in damaged:
            ranges = ", ".join(range_of(stream, part) for stream, part in its)
            text = f"the object {name} is {'damaged' if name in found.objects else 'missing'} ({ranges})"
            if all(stream.document.get("sid") for stream, _ in its):
                changes.append(_rewritten(found, name, its, text))
            else:
                hopeless.append(f"{text}: {_lost(name)}")
    if found.deletions.get("suspended"):
        changes.append(_resumed(found))
    return changes, hopeless


def _lost(name: str) -> str:
    return f"restore it from a version of the bucket. If it is lost, run tidelog history forget --object {name}"


def _rewritten(
    found: Survey, name: str, its: Sequence[tuple[SurveyedStream, HistoryPart]], problem: str
) -> HistoryChange:  # fmt: skip
    """Return the request to the server to write an object again."""
    content = signed({
        "format": "tidelog history repair", "version": 1, "object": name,
        "streams": [
            [stream.document["stream"], stream.document["sid"], part.first_ord, part.end_ord] for stream, part in its
        ],
    })  # fmt: skip
    file = f"{name}.json"

    def apply() -> None:
        if file not in found.files.names(REPAIRS):
            found.files.create(f"{REPAIRS}/{file}", content)

    return HistoryChange(
        f"request that the server writes an object again: {problem}. Its next pass does so if its store still has all"
        f" nodes of the object, unchanged, and its log has the result. Otherwise, {_lost(name)}",
        apply,
    )


def _rebuilt(found: Survey, stream: SurveyedStream, sid_of: Sid | None) -> HistoryChange:
    """Return the repair of a manifest: the newest version that can be read, and the objects that follow it."""
    base = _readable(found, stream)
    name = SurveyedStream(stream.folder, [], base).name
    if not base:
        if "." in stream.folder:
            raise HistoryError(f"{stream.problem}, and the long name of its stream is unknown: restore the manifest")
        if sid_of is None:
            raise HistoryError(f"{stream.problem}: give the server of the history with --url, to find its stream")
        sid = sid_of(name)
        if not sid:
            raise HistoryError(
                f"{stream.problem}, and the server has no stream {name.decode(errors='backslashreplace')!r}: run"
                " tidelog history forget with its name"
            )
        base = {"format": "tidelog history manifest", "version": 1, "stream": stream.folder, "server": found.owner,
                "sid": sid, "number": 0, "epoch": 0, "time": 0, "offset": 0, "first_ord": 0, "parts": []}  # fmt: skip
    parts = list(base["parts"])
    count = len(parts)
    candidates = sorted(_parts_of(found, name), key=lambda part: (part.first_ord, -part.end_ord))
    for part in candidates:
        end = parts[-1]["end_ord"] if parts else base["first_ord"]
        if part.first_ord == end or (part.first_ord > end and not base["parts"]):
            if part.first_ord != end:
                parts = []  # a part before it is missing
            parts.append(_document(part))
    if not parts:
        raise HistoryError(f"{stream.problem}, and no object has entries of this stream: run tidelog history forget")
    if not base["parts"]:
        base["first_ord"] = parts[0]["first_ord"]
    listed = {part["name"] for part in parts}
    dropped = [part for part in candidates if part.name not in listed]
    text = (
        f"write a new version of the manifest of stream {name.decode(errors='backslashreplace')!r}, with"
        f" {len(parts)} parts, of which {len(parts) - min(count, len(parts))} were found in objects ({stream.problem})"
    )

    def apply() -> None:
        _drop(found, dropped, base.get("sid", 0))
        _write(found.files, stream, {**base, "parts": parts})

    return HistoryChange(text, apply)


def _readable(found: Survey, stream: SurveyedStream) -> dict[str, Any]:
    """Return the newest version of a manifest that can be read; {} if there is none."""
    for number in reversed(stream.numbers):
        with suppress(HistoryError):
            return read_version(found.files, stream.folder, number)
    return {}


def _parts_of(found: Survey, stream: bytes) -> Iterable[HistoryPart]:
    """Yield the objects with entries of a stream, except those that wait for their deletion."""
    waiting = {file["name"] for file in found.waiting}
    for name in sorted(found.objects):
        if f"{OBJECTS}/{name}" in waiting:
            continue
        try:
            size, offset, records = _index(found.files, f"{OBJECTS}/{name}")
        except (HistoryError, ValueError, zstandard.ZstdError):
            continue
        own = [(record, index.record_of(record)) for of, record in records if of == stream]
        if own:
            first, last = own[0][1], own[-1][1]
            yield HistoryPart(
                name, 0, size, offset, first.first_ord, last.end_ord, first.first_id, last.last_id,
                sum(one.entries for _, one in own), sum(one.size for _, one in own),
            )  # fmt: skip


def _index(files: HistoryFiles, name: str) -> tuple[int, int, list[tuple[bytes, tuple[int, ...]]]]:
    size = files.size(name)
    if size < FOOTER.size:
        raise ValueError("it is no history object")
    offset = int(FOOTER.unpack(files.read(name, size - FOOTER.size, size))[0])
    if not 0 < offset < size:
        raise ValueError("its footer is damaged")
    part = HistoryPart(name, 0, size, offset, 0, 0, NONE, NONE, 0, 0)
    return size, offset, index.records(files.read(name, offset, size), part)


def _document(part: HistoryPart) -> dict[str, Any]:
    return {
        "name": part.name, "level": part.level, "size": part.size, "index_offset": part.index_offset,
        "first_ord": part.first_ord, "end_ord": part.end_ord, "first_id": str(part.first_id),
        "last_id": str(part.last_id), "entries": part.entries, "stored": part.stored,
    }  # fmt: skip


def _resumed(found: Survey) -> HistoryChange:
    """Return the change that permits deletions again: the state of the server is the valid one."""
    def apply() -> None:
        for stream in found.streams:
            if stream.document.get("offset"):
                _write(found.files, stream, {**stream.document, "offset": 0})
        _write_deletions(found, {**found.deletions, "offset": 0, "log": "", "suspended": ""})

    return HistoryChange(
        "permit deletions again: what the server does not have any more is deleted after tier-grace. They stopped,"
        f" because {found.deletions['suspended']}",
        apply,
    )


# -- forget --------------------------------------------------------------------------------------------------------
def forget_stream(found: Survey, name: bytes) -> HistoryChange:
    """Return the change that drops the history of a stream. Raises HistoryError if it has none."""
    stream = next((one for one in found.streams if one.name == name), None)
    if stream is None:
        raise HistoryError(
            f"there is no history of a stream {name.decode(errors='backslashreplace')!r}: see tidelog history list"
        )
    document = stream.document or _readable(found, stream)
    if not document:
        document = {"format": "tidelog history manifest", "version": 1, "stream": stream.folder, "server": found.owner,
                    "sid": 0, "epoch": 0, "offset": 0}  # fmt: skip
        if "." in stream.folder:
            raise HistoryError(f"{stream.problem}, and the long name of its stream is unknown: restore the manifest")
    dropped = stream.objects if not stream.problem else list(_parts_of(found, name))

    def apply() -> None:
        _drop(found, dropped, document.get("sid", 0))
        _write(found.files, stream, {**document, "first_ord": 0, "parts": []})

    return HistoryChange(
        f"drop the history of stream {name.decode(errors='backslashreplace')!r} with {stream.entries:,} entries. The"
        " server copies the entries in its store again",
        apply,
    )


def forget_object(found: Survey, name: str) -> list[HistoryChange]:
    """Return the changes that drop an object, and those before it, from all manifests. Raises HistoryError."""
    listed = found.listed.get(name, [])
    if any((file["name"], file["why"]) == (f"{OBJECTS}/{name}", "differs") for file in found.waiting):
        return [_unkept(found, f"{OBJECTS}/{name}")]
    if not listed:
        raise HistoryError(f"no manifest lists an object {name}: see tidelog history verify")
    return [_forgotten(found, stream, part) for stream, part in listed]


def _forgotten(found: Survey, stream: SurveyedStream, part: HistoryPart) -> HistoryChange:
    """Return the change that drops an object, and those before it, from the manifest of a stream."""
    left = [_document(one) for one in stream.objects if one.first_ord >= part.end_ord]

    def apply() -> None:
        dropped = [one for one in stream.objects if one.first_ord < part.end_ord]
        _drop(found, dropped, stream.document.get("sid", 0))
        _write(found.files, stream, {**stream.document, "first_ord": part.end_ord, "parts": left})

    return HistoryChange(
        f"drop {range_of(stream, part)} and all entries before them from the manifest. The server still reads"
        " the earlier ones, but other programs read them only from the server",
        apply,
    )


def _unkept(found: Survey, file: str) -> HistoryChange:
    """Return the change that lets the server delete an object that differs from its store."""

    def apply() -> None:
        now = int(time.time() * 1000)
        files = [
            [name, size, offset, now, holders, "removed"] if name == file else [name, size, offset, since, holders, why]
            for name, size, offset, since, holders, why in found.deletions["files"]
        ]
        _write_deletions(found, {**found.deletions, "files": files})

    return HistoryChange(f"delete {file} after tier-grace. It has entries that the server has lost", apply)


def _drop(found: Survey, parts: Iterable[HistoryPart], sid: int) -> None:
    """List objects that the next manifest of a stream will not list (Rule 1).

    ``sid``: of the stream. 0: unknown. It is then unknown whether replicas need the objects, so they are only deleted
    if the user forgets each of them.
    """
    before = found.deletions or {
        "format": "tidelog history deletions", "version": 1, "server": found.owner, "number": 0, "epoch": 0, "floor": 0,
        "grace": GRACE, "offset": 0, "log": "", "suspended": "", "files": [],
    }  # fmt: skip
    now = int(time.time() * 1000)
    files = {file[0]: list(file) for file in before["files"]}
    for part in parts:
        if part.name not in found.objects:
            continue
        name = f"{OBJECTS}/{part.name}"
        holders = [[sid, part.end_ord]] if sid else []
        why = "removed" if sid else "differs"
        if name in files:
            holders += [one for one in files[name][4] if one not in holders]
            why = "differs" if files[name][5] == "differs" else why
        files[name] = [name, part.size, part.index_offset, now, holders, why]
    if list(files.values()) != before["files"]:
        _write_deletions(found, {**before, "files": list(files.values())})


def _write_deletions(found: Survey, document: dict[str, Any]) -> None:
    """Write the next version of the list of deletions, which is then the one of the survey. Raises HistoryError."""
    document = {**document, "number": document["number"] + 1}
    name = f"{DELETIONS}/{document['number']:020}.json"
    content = signed(document)
    found.files.create(name, content)
    if found.files.read(name) != content:
        raise HistoryError(f"{found.files.url}/{name} differs from what was written")
    found.deletions = document


def forget_pin(found: Survey, name: str) -> HistoryChange:
    """Return the change that removes a pin. Raises HistoryError if there is none."""
    file = name.removeprefix(f"{PINS}/").removesuffix(".json") + ".json"
    if file not in found.pins:
        raise HistoryError(f"there is no pin {name}: see tidelog history list")
    owner = found.pins[file].get("owner", "unknown, because the file is damaged")
    return HistoryChange(
        f"remove the pin {file}: the objects that only its owner needs can be deleted (owner: {owner})",
        lambda: found.files.remove(f"{PINS}/{file}"),
    )


def _write(files: HistoryFiles, stream: SurveyedStream, document: dict[str, Any]) -> None:
    """Write the next version of a manifest."""
    number = (stream.numbers[-1] if stream.numbers else 0) + 1
    content = signed({**document, "number": number, "time": int(time.time() * 1000)})
    name = f"{STREAMS}/{stream.folder}/{number:020}.json"
    files.create(name, content)
    if files.read(name) != content:
        raise HistoryError(f"{files.url}/{name} differs from what was written")
