"""Requests of ``tidelog history repair``: the server writes an object again, from the nodes in its store.

    PREFIX/repairs/OBJECT.json    line 1: a JSON object, see ``RewriteRequest.encode``; line 2: XXH3-64 of line 1

A request counts once. The server removes it, whether it was successful or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

from resp.errors import CorruptError
from storage.history.manifest import escaped
from storage.history.signedjson import VERSION, checked, signed

FOLDER: Final = "repairs"
REPAIR: Final = "tidelog history repair"
_REMEDY: Final = "run tidelog history repair again"


@dataclass(frozen=True, slots=True)
class RewrittenStream:
    """The part of an object that a manifest lists."""

    name: bytes
    sid: int
    first_ord: int
    end_ord: int


@dataclass(frozen=True, slots=True)
class RewriteRequest:
    """An object that is missing or damaged."""

    object: str  # its name without the directory
    streams: tuple[RewrittenStream, ...]

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        return signed({
            "format": REPAIR, "version": VERSION, "object": self.object,
            "streams": [[escaped(one.name), one.sid, one.first_ord, one.end_ord] for one in self.streams],
        })  # fmt: skip


def decode(content: bytes) -> RewriteRequest:
    """Return the request in a file. Raises CorruptError."""
    found = checked(content, REPAIR, _REMEDY)
    try:
        streams = tuple(
            RewrittenStream(unquote_to_bytes(name), int(sid), int(first), int(end))
            for name, sid, first, end in found["streams"]
        )
        return RewriteRequest(str(found["object"]), streams)
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptError(f"a request to repair history is invalid ({error!r}): {_REMEDY}") from error
