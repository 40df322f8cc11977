"""The owner of a prefix: the file PREFIX/owner.json names the one server or server group that writes below the prefix.

    line 1   {"format": "tidelog history owner", "version": 1, "server": 40 hex digits}
    line 2   XXH3-64 of line 1 without its line feed, 16 hex digits
"""

from __future__ import annotations

from typing import Final

from resp.errors import CorruptError
from storage.history.signedjson import checked, signed

NAME: Final = "owner.json"
OWNER: Final = "tidelog history owner"
_REMEDY: Final = "restore it from a copy of the object store, or choose another prefix"


def encode(server: str) -> bytes:
    """Return the bytes of the file. ``server``: the ID of the owner, 40 hex digits."""
    return signed({"format": OWNER, "version": 1, "server": server})


def decode(content: bytes) -> str:
    """Return the ID of the owner. Raises CorruptError if the file is damaged."""
    found = checked(content, OWNER, _REMEDY)
    server = found.get("server")
    if not isinstance(server, str) or len(server) != 40:
        raise CorruptError(f"the file {NAME} of the history is invalid: {_REMEDY}")
    return server
