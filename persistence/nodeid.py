"""The ID of a server, by which other servers and clients distinguish it.

    node    a text file, replaced by rename: "tidelog node, format 1", then "id " with 40 hex digits

It exists only if the server has needed an ID. It is neither part of a copy nor of a backup. If the directory was copied
by hand, two servers have the same ID; the one that notices it takes a new one.
"""

from __future__ import annotations

import re
import secrets
from pathlib import Path

from persistence.directory import replace
from resp.errors import CorruptError

NAME = "node"
FORMAT = "tidelog node, format 1"
_TEXT = re.compile(rf"{FORMAT}\nid ([0-9a-f]{{40}})\n", re.ASCII)


def load(directory: Path) -> str:
    """Return the ID of the server that uses this directory; a new one if it has none. Raises CorruptError, OSError."""
    return known(directory) or renew(directory)


def known(directory: Path) -> str:
    """Return the ID of the server that uses this directory; "" if it has none. Raises CorruptError, OSError."""
    path = directory / NAME
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return ""
    found = _TEXT.fullmatch(raw.decode("utf-8", errors="replace"))
    if found is None:
        raise CorruptError(f"{path}: damaged: delete it; the server then takes a new node ID")
    return found[1]


def renew(directory: Path) -> str:
    """Save and return a new ID. Raises OSError."""
    made = secrets.token_hex(20)
    replace(directory / NAME, f"{FORMAT}\nid {made}\n")
    return made
