"""Pins: a backup that refers to history objects protects them from deletion (docs/history-format.md).

Rule 1: the pin is written before the manifest of the backup. Afterwards, the list of deletions is read: an object whose
        deletion is already due could be deleted at this moment, and the backup fails. At last, the objects are listed:
        the server deletes an object before it leaves the list of deletions, so one that was deleted is missing then.
Rule 2: the pin of a backup is removed after its manifest.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from hashlib import sha256
from typing import Any, Final

from xxhash import xxh3_64_hexdigest

from tidelog.backup.targets import BackupError, BackupTarget, target_at

OWNER: Final = "owner.json"
LONGEST: Final = 1 << 30  # bytes of a list of deletions
MARGIN: Final = 60_000  # ms
NEEDED: Final = (
    "the copy refers to {} in an object store, because tier-free is set, and the server, which is of an earlier"
    " version, can't copy their entries: upgrade it. Or add --reference-history URL, with the tier-url of the server:"
    " the backup then depends on these objects, and protects them"
)


def pin_name(place: BackupTarget, backup: str) -> str:
    """Return the name of the pin of a backup."""
    return f"pins/backup-{backup}-{sha256(place.shown.encode()).hexdigest()[:12]}.json"


def pin(url: str, name: str, owner: str, objects: Collection[str]) -> None:
    """Protect objects below the prefix ``url``. Raises BackupError if that fails, or if one of them does not exist."""
    history = target_at(url)
    if OWNER not in history.names(below=False):
        raise BackupError(f"{history.shown} contains no history: use the tier-url of the server")
    content = {
        "format": "tidelog history pin", "version": 1, "owner": owner, "made": int(time.time() * 1000), "expires": 0,
        "objects": sorted(objects),
    }  # fmt: skip
    line = json.dumps(content, separators=(",", ":")).encode()
    data = b"%b\n%b\n" % (line, xxh3_64_hexdigest(line).encode())
    history.write(name, data)
    history.settle()
    try:
        if history.read(name, len(data)) != data:
            raise BackupError(f"{history.shown}/{name}: what was read back is not what was written")
        _check_due(history, objects)
        missing = set(objects) - {each.rpartition("/")[2] for each in history.names("objects")}
        if missing:
            raise BackupError(
                f"the copy refers to objects that do not exist below {history.shown}, such as {min(missing)}: is this"
                " the tier-url of the server? If they were lost, run tidelog history verify"
            )
    except BaseException:
        history.remove(name)
        raise


def unpin(url: str, name: str) -> None:
    """Remove a pin. Raises BackupError."""
    target_at(url).remove(name)


def _check_due(history: BackupTarget, objects: Collection[str]) -> None:
    """Raise BackupError if some of the objects could be deleted at this moment."""
    names = history.names("deletions")
    if not names:
        return
    newest = max(names)
    line = history.read(newest, LONGEST).partition(b"\n")[0]
    try:
        found: dict[str, Any] = json.loads(line)
        due = time.time() * 1000 + MARGIN - found["grace"]
        gone = {file[0].removeprefix("objects/") for file in found["files"] if file[3] <= due}
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise BackupError(f"{history.shown}/{newest} is damaged: {error!r}") from error
    if not gone.isdisjoint(objects):
        raise BackupError(
            "objects to which the copy refers are being deleted, because their entries were removed: take the backup"
            " again. If this repeats, set a longer tier-grace"
        )
