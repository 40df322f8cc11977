"""What is below a prefix: manifests, objects, files that wait for their deletion, and pins."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from xxhash import xxh3_64_hexdigest

from tidelog.client.entries import SEQ_MAX, StreamId
from tidelog.history import manifest
from tidelog.history.errors import HistoryError
from tidelog.history.files import OBJECTS, HistoryFiles
from tidelog.history.manifest import HistoryPart

STREAMS: Final = "streams"
DELETIONS: Final = "deletions"
PINS: Final = "pins"
OWNER: Final = "owner.json"
ALL: Final = StreamId(SEQ_MAX, SEQ_MAX)
_NUMBERED: Final = re.compile(r"\d{20}\.json")
_OBJECT: Final = re.compile(r"[0-9a-f]{16}-[0-9a-f]{32}\.tide")

#: Called with the numbers of streams that were read, and of all.
Report = Callable[[int, int], None]


@dataclass(slots=True)
class SurveyedStream:
    """The newest version of a manifest."""

    folder: str
    numbers: list[int]  # of all versions, ascending
    document: dict[str, Any] = field(default_factory=dict)  # {} if it can't be read
    objects: list[HistoryPart] = field(default_factory=list)
    problem: str = ""

    @property
    def name(self) -> bytes:
        """The name of the stream."""
        return unquote_to_bytes(self.document.get("stream", self.folder))

    @property
    def entries(self) -> int:
        return sum(part.entries for part in self.objects)

    @property
    def bytes(self) -> int:
        """Bytes of the sections of the stream."""
        return sum(part.stored for part in self.objects)


@dataclass(slots=True)
class Survey:
    """The files below a prefix."""

    files: HistoryFiles
    owner: str  # ID of the server or group
    streams: list[SurveyedStream]
    objects: set[str]  # names of the objects that exist
    waiting: list[dict[str, Any]]  # name, size, since, why
    deletions: dict[str, Any]  # the newest list; {} if there is none
    pins: dict[str, dict[str, Any]]  # by file; {} for one that can't be read

    @property
    def listed(self) -> dict[str, list[tuple[SurveyedStream, HistoryPart]]]:
        """The objects that manifests list, by name."""
        found: dict[str, list[tuple[SurveyedStream, HistoryPart]]] = {}
        for stream in self.streams:
            for part in stream.objects:
                found.setdefault(part.name, []).append((stream, part))
        return found

    @property
    def unlisted(self) -> list[str]:
        """The objects that no manifest lists, and that do not wait for their deletion."""
        waiting = {file["name"].removeprefix(f"{OBJECTS}/") for file in self.waiting}
        return sorted(self.objects - self.listed.keys() - waiting)


def signed(document: dict[str, Any]) -> bytes:
    """Return the bytes of a file with this document."""
    line = json.dumps(document, separators=(",", ":")).encode()
    return b"%b\n%b\n" % (line, xxh3_64_hexdigest(line).encode())


def read_signed(files: HistoryFiles, name: str, form: str) -> dict[str, Any]:
    """Return the document in a file. Raises HistoryError."""
    line, _, checksum = files.read(name).partition(b"\n")
    try:
        if checksum != xxh3_64_hexdigest(line).encode() + b"\n":
            raise ValueError("its checksum does not match")
        found: dict[str, Any] = json.loads(line)
        if found.get("format") != form or found.get("version") != 1:
            raise ValueError(f"it is no {form} of version 1")
    except (ValueError, AttributeError) as error:
        raise HistoryError(f"{files.url}/{name} is damaged: {error}") from None
    return found


def survey(files: HistoryFiles, report: Report) -> Survey:
    """Read all manifests. Raises HistoryError if there is no history, or the object store can't be read."""
    if OWNER not in files.names(""):
        raise HistoryError(
            f"{files.url} contains no history: it has no {OWNER}. Use the tier-url of the server, or restore the file"
        )
    owner = read_signed(files, OWNER, "tidelog history owner")["server"]
    folders = sorted(name for name in files.names(STREAMS) if not name.startswith("."))
    streams = []
    for at, folder in enumerate(folders):
        report(at, len(folders))
        streams.append(read_stream(files, folder))
    deletions, waiting = _deletions(files)
    pins = {}
    for name in files.names(PINS):
        if name.endswith(".json"):
            try:
                pins[name] = read_signed(files, f"{PINS}/{name}", "tidelog history pin")
            except HistoryError:
                pins[name] = {}
    objects = {name for name in files.names(OBJECTS) if _OBJECT.fullmatch(name)}
    streams = [one for one in streams if one.numbers or one.problem]
    return Survey(files, owner, streams, objects, waiting, deletions, pins)


def read_stream(files: HistoryFiles, folder: str) -> SurveyedStream:
    """Return the newest version of a manifest, with its objects. Its problem is noted."""
    place = f"{STREAMS}/{folder}"
    names = files.names(place)
    found = SurveyedStream(folder, sorted(int(name[:20]) for name in names if _NUMBERED.fullmatch(name)))
    if not found.numbers:
        if names:
            found.problem = f"{files.url}/{place} has no manifest"
        return found
    try:
        found.document = read_version(files, folder, found.numbers[-1])
        version = manifest.latest(files, place)
        if version is not None:
            found.objects = list(manifest.objects(files, place, version.parts, StreamId(0, 0), ALL))
    except HistoryError as error:
        found.problem = str(error)
    return found


def read_version(files: HistoryFiles, folder: str, number: int) -> dict[str, Any]:
    """Return a version of a manifest. Raises HistoryError."""
    return read_signed(files, f"{STREAMS}/{folder}/{number:020}.json", manifest.MANIFEST)


def _deletions(files: HistoryFiles) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    names = sorted(name for name in files.names(DELETIONS) if _NUMBERED.fullmatch(name))
    if not names:
        return {}, []
    found = read_signed(files, f"{DELETIONS}/{names[-1]}", "tidelog history deletions")
    keys = ("name", "size", "index_offset", "since", "holders", "why")
    return found, [dict(zip(keys, file, strict=True)) for file in found["files"]]
