"""The manifest of a backup: a JSON file that says which chunks it consists of, and what it is a backup of.

    {
      "format": "tidelog backup, format 1",
      "name": "20261121T080000.123Z-4711",
      "began": "2026-11-21T08:00:00.123Z", "ended": "...",
      "tool": "0.1.0",                              version of the package that made it
      "server": "localhost:6379", "version": "0.1.0", "role": "leader",
      "replid": "8d1c...", "store_offset": 4000,    the store as of that log offset,
      "log_offset": 4711,                           and the log from there up to this one
      "store_entries": 120,                         entries of the store (nodes, keys, groups, ...)
      "keys": 12, "entries": 100000,                as INFO said when it began
      "store": [["<sha256>", bytes], ...],          chunks: pieces of the store, see ``frames``
      "log": [["<sha256>", bytes], ...],            chunks: BATCH frames
      "history": "s3://bucket/tide", "pin": "..."   if it refers to history objects: their prefix, and the file that
                                                    protects them, see ``objectpins``
      "sha256": "..."                               of this object without this field, as JSON with sorted keys and
    }                                               without blanks
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from tidelog.backup.targets import BackupError, BackupTarget, target_at

FORMAT: Final = "tidelog backup, format 1"
ENDING: Final = ".json"
NAME: Final = re.compile(r"[0-9]{8}T[0-9]{6}\.[0-9]{3}Z-[0-9]+")
LONGEST: Final = 1 << 30  # bytes of a manifest with 10 million chunks
MOST: Final = (1 << 63) - 1  # maximum of each number, and of the sum of all sizes

Text = Annotated[str, Meta(pattern=r"\A[^\x00-\x1f\x7f-\x9f]{0,1000}\Z")]
Time = Annotated[str, Meta(pattern=r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?Z\Z")]
Number = Annotated[int, Meta(ge=0, le=MOST)]
#: SHA-256 of the content in hex, size in bytes.
Chunk = tuple[Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")], Annotated[int, Meta(gt=0, le=MOST)]]


@dataclass(frozen=True, slots=True)
class BackupManifest:
    """The content of a manifest. Times are ISO 8601 in UTC."""

    name: Annotated[str, Meta(pattern=rf"\A{NAME.pattern}\Z")]
    began: Time
    ended: Time
    tool: Text
    server: Text
    version: Text
    role: Text
    replid: Annotated[str, Meta(pattern=r"\A[0-9a-f]{40}\Z")]
    store_offset: Number
    log_offset: Number
    store_entries: Number
    keys: Number
    entries: Number
    store: tuple[Chunk, ...]
    log: tuple[Chunk, ...]
    history: Text = ""
    pin: Text = ""

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        return self.store + self.log

    @property
    def size(self) -> int:
        """The total size of the chunks in bytes."""
        return sum(size for _, size in self.chunks)

    def dumped(self) -> bytes:
        """Return the content of the file."""
        content = {"format": FORMAT, **asdict(self)}
        return json.dumps({**content, "sha256": _digest(content)}, indent=1).encode() + b"\n"

    @classmethod
    def loaded(cls, raw: bytes, shown: str) -> BackupManifest:
        """Parse the content of a file named ``shown``. Raises BackupError if it is damaged or has another format."""
        try:
            content = json.loads(raw)
            stated = content.pop("sha256")
            form = content["format"]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise BackupError(f"{shown} is damaged or incomplete: it is no manifest of a backup") from None
        if form != FORMAT and re.fullmatch(r"tidelog backup, format \d+", str(form)):
            raise BackupError(f"{shown} says '{form}', which this tidelog does not know: use the newer one")
        if form != FORMAT or stated != _digest(content):
            raise BackupError(f"{shown} is damaged: its own checksum is wrong")
        del content["format"]
        try:
            found = msgspec.convert(content, cls)  # other programs can write manifests
            if len(content) > len(fields(cls)) or found.size > MOST or found.log_offset < found.store_offset:
                raise msgspec.ValidationError
        except (msgspec.ValidationError, UnicodeError):
            raise BackupError(f"{shown} is damaged: it has other fields than a manifest") from None
        return found


def _digest(content: dict[str, Any]) -> str:
    return sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def chunk_file(digest: str) -> str:
    """Return the name of a chunk's file."""
    return f"chunks/{digest[:2]}/{digest}"


def backups(place: BackupTarget) -> list[str]:
    """Return the names of the complete backups at a target, oldest first. Raises BackupError if the target cannot be
    listed.
    """
    names = (file.removesuffix(ENDING) for file in place.names(below=False) if file.endswith(ENDING))
    return sorted(name for name in names if NAME.fullmatch(name))


def offset_of(name: str) -> int:
    """Return the log offset of the backup with this name."""
    return int(name.rpartition("-")[2])


def load(place: BackupTarget, name: str) -> BackupManifest:
    """Load the manifest of the backup with this name. Raises BackupError."""
    shown = f"{place.shown}/{name}{ENDING}"
    found = BackupManifest.loaded(place.read(name + ENDING, LONGEST), shown)
    if found.name != name:
        raise BackupError(f"{shown} is the manifest of {found.name}: it was renamed")
    return found


def find(backup: str) -> tuple[BackupTarget, BackupManifest]:
    """Find the backup that a user named: TARGET/NAME, with or without .json, or TARGET for the newest backup.

    Raises BackupError if there is no such backup, or if its manifest is damaged.
    """
    target, _, last = backup.rstrip("/").rpartition("/")
    name = last.removesuffix(ENDING)
    if NAME.fullmatch(name):
        place = target_at(target or ("/" if backup.startswith("/") else "."))
        return place, load(place, name)
    place = target_at(backup)
    names = backups(place)
    if not names:
        raise BackupError(f"there is no backup at {place.shown}")
    return place, load(place, names[-1])
