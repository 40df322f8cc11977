"""The lookup of a stream's group."""

from __future__ import annotations

from resp import errors
from storage.groups.group import Group
from storage.streams.stream import Stream


def group_of(stream: Stream | None, name: bytes) -> tuple[Stream, Group] | None:
    """Return the stream and its group of that name; None if either is missing."""
    group = stream.groups.get(name) if stream is not None else None
    return None if stream is None or group is None else (stream, group)


def need_group(stream: Stream | None, key: bytes, name: bytes) -> tuple[Stream, Group]:
    """Return group_of(). ``key``: that of the stream. Raises CommandError (NOGROUP) if either is missing."""
    found = group_of(stream, name)
    if found is None:
        raise errors.quoting(errors.NO_GROUP, key, name)
    return found
