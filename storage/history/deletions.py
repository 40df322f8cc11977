"""The list of files that wait for their deletion. A version of it is never overwritten.

    PREFIX/deletions/NUMBER.json    line 1: a JSON object, see ``Deletions.encode``; line 2: XXH3-64 of line 1

A file is listed before the manifests no longer list it, and is deleted after ``tier-grace``. A reader that has read a
manifest can use its objects in between. The times are those of the server's clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from resp.errors import CorruptError
from storage.history.signedjson import VERSION, checked, signed

FOLDER: Final = "deletions"
DELETIONS: Final = "tidelog history deletions"
OBJECT: Final = re.compile(r"objects/([0-9a-f]{16})-[0-9a-f]{32}\.tide")
UNUSED: Final = "unused"  # a link for a move of slots that was never used, because its verification has failed
_FILE: Final = re.compile(r"objects/[0-9a-f]{16}-[0-9a-f]{32}\.tide|streams/[^/]+/[0-9a-f]{32}\.page\.json")
_REMEDY: Final = "restore it from a copy of the object store, or run tidelog history repair"


@dataclass(frozen=True, slots=True)
class WaitingFile:
    """A file that waits for its deletion."""

    name: str  # below the prefix
    size: int  # bytes
    index_offset: int  # of the index in an object; 0 for a page
    since: int  # ms since epoch: when manifests stopped to list it
    holders: tuple[tuple[int, int], ...] = ()  # sids and end ordinals: streams that may still have entries in it
    # "orphan": no manifest ever listed it; "differs": its entries are not those of the store; UNUSED
    why: str = "removed"

    @property
    def kept(self) -> bool:
        """Whether it is deleted only on request: it may be the only copy of entries that the store has lost."""
        return self.why == "differs"


@dataclass(frozen=True, slots=True)
class Deletions:
    """A version of the list. Each change returns a new version."""

    server: str  # the ID of the history's owner
    number: int = 0  # of this version, from 1; 0: there is none
    epoch: int = 0  # of the leader that wrote it
    floor: int = 0  # the highest version of a manifest that was deleted: new manifests begin with the next one
    grace: int = 0  # ms: tier-grace when it was written
    offset: int = 0  # the log offset of the leader's store at that time
    log: str = ""  # the replication ID of the log of the last leader that wrote the history; "": not known
    suspended: str = ""  # why no object may be deleted; "" if it may
    files: tuple[WaitingFile, ...] = ()

    def listed(self, more: Iterable[WaitingFile]) -> Deletions:
        """Return a version that lists more files. They replace those with the same names."""
        files = {file.name: file for file in self.files} | {file.name: file for file in more}
        return replace(self, files=tuple(files.values()))

    def without(self, names: set[str]) -> Deletions:
        """Return a version that does not list these files."""
        return replace(self, files=tuple(file for file in self.files if file.name not in names))

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        return signed({
            "format": DELETIONS, "version": VERSION, "server": self.server, "number": self.number,
            "epoch": self.epoch, "floor": self.floor, "grace": self.grace,
            "offset": self.offset, "log": self.log, "suspended": self.suspended,
            "files": [
                [file.name, file.size, file.index_offset, file.since, file.holders, file.why] for file in self.files
            ],
        })  # fmt: skip


def file_name(number: int) -> str:
    """Return the name of a version, below the prefix."""
    return f"{FOLDER}/{number:020}.json"


def decode(content: bytes) -> Deletions:
    """Return the version in a file. Raises CorruptError."""
    found = checked(content, DELETIONS, _REMEDY)
    try:
        files = tuple(_file(*file) for file in found["files"])
        made = Deletions(
            str(found["server"]), int(found["number"]), int(found["epoch"]), int(found["floor"]),
            int(found["grace"]), int(found["offset"]), str(found.get("log", "")),
            str(found["suspended"]), files,
        )  # fmt: skip
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptError(f"the list of deletions of history is invalid ({error!r}): {_REMEDY}") from error
    return made


def _file(name: Any, size: Any, index_offset: Any, since: Any, holders: Any, why: Any) -> WaitingFile:
    if not isinstance(name, str) or not _FILE.fullmatch(name) or "/../" in name or "/./" in name:
        raise ValueError(f"the name {name!r}")
    if why not in ("removed", "orphan", "differs", UNUSED):
        raise ValueError(f"the reason {why!r}")
    held = tuple((int(sid), int(end)) for sid, end in holders)
    return WaitingFile(name, int(size), int(index_offset), int(since), held, why)
