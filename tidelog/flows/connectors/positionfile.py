"""A file that stores the position of a source, as JSON. All calls block."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

import msgspec

P = TypeVar("P")


def load_position(path: Path, kind: type[P]) -> P | None:
    """Return the stored position; None: there is none. Raises ValueError if it is not valid."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(data, type=kind)
    except ValueError as error:
        raise ValueError(f"{path} is not a position: {error}; delete it to read from the beginning") from None


def save_position(path: Path, position: object) -> None:
    """Replace the whole file, so that a crash leaves either the old or the new position."""
    temporary = path.with_name(path.name + ".new")
    with temporary.open("wb") as file:
        file.write(msgspec.json.encode(position) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
