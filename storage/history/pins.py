"""Pins: what must not be deleted, because a backup or another server needs it.

    PREFIX/pins/NAME.json    line 1: a JSON object, see ``Pin.encode``; line 2: XXH3-64 of line 1

A pin is created before what it protects: a backup first pins everything, then reads the data, and at last pins exactly
the objects that it needs. So an object that the backup needs is pinned at any moment. A pin counts until its file is
removed or, if it has an expiry, until then. A pin that can't be read counts as one of everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from resp.errors import CorruptError
from storage.history.signedjson import VERSION, checked, signed

FOLDER: Final = "pins"
PIN: Final = "tidelog history pin"
_REMEDY: Final = "remove the file if nothing needs it any more (tidelog history forget --pin)"


@dataclass(frozen=True, slots=True)
class Pin:
    """Objects that must not be deleted."""

    owner: str  # who needs them, for people
    made: int  # ms since epoch
    expires: int = 0  # ms since epoch; 0: never
    objects: frozenset[str] | None = None  # their names without the directory; None: all objects

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        names = None if self.objects is None else sorted(self.objects)
        return signed({
            "format": PIN, "version": VERSION, "owner": self.owner, "made": self.made, "expires": self.expires,
            "objects": names,
        })  # fmt: skip


def decode(content: bytes) -> Pin:
    """Return the pin in a file. Raises CorruptError."""
    found = checked(content, PIN, _REMEDY)
    try:
        names = found["objects"]
        objects = None if names is None else frozenset(map(str, names))
        return Pin(str(found["owner"]), int(found["made"]), int(found["expires"]), objects)
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptError(f"a pin of history is invalid ({error!r}): {_REMEDY}") from error
