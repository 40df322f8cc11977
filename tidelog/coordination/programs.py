"""The names of the apps and of the flow processes that have run on a server: one document, ``tidelog:programs``.

    {"version": 1, "apps": {"shop": 1795754000000}, "flows": {"default": 1795754000000}}

A program adds its name when it starts. The time is that of its last start, in ms since 1970, at a precision of EVERY.
The console finds programs by this document, because a search for their keys would examine the whole keyspace.

Rule 1: nothing depends on it. A program that may not write it, or whose name was removed, runs as well.
Rule 2: it has at most MOST names of each kind; those that have started least recently are removed first.
"""

from __future__ import annotations

import logging
from typing import Final, Literal

import msgspec

from tidelog.client import strings
from tidelog.client.steps import Steps, checked
from tidelog.coordination.documents import VersionedDocument

KEY: Final = "tidelog:programs"
MOST: Final = 1000
EVERY: Final = 3_600_000  # ms

ProgramKind = Literal["apps", "flows"]


class ProgramNamesError(Exception):
    """The document has a newer version."""


class ProgramNames(msgspec.Struct, frozen=True):
    """The names, with the time of the last start."""

    version: int = 1
    apps: dict[str, int] = {}
    flows: dict[str, int] = {}


_DOCUMENT: Final = VersionedDocument(ProgramNames, 1, ProgramNamesError, logging.getLogger(__name__))


def read() -> Steps[ProgramNames]:
    """Read the document. Raises ProgramNamesError."""
    return (yield from _DOCUMENT.read(KEY))


def record(kind: ProgramKind, name: str) -> Steps[None]:
    """Record a start. Raises ProgramNamesError."""
    (now,) = checked((yield [strings.server_time()]))

    def recorded(names: ProgramNames) -> ProgramNames:
        found = getattr(names, kind)
        if now - found.get(name, 0) < EVERY:
            return names
        newest = sorted({**found, name: now}.items(), key=lambda each: each[1])[-MOST:]
        return msgspec.structs.replace(names, **{kind: dict(newest)})

    yield from _DOCUMENT.change(KEY, recorded)


def remove(kind: ProgramKind, name: str) -> Steps[None]:
    """Remove a name. Raises ProgramNamesError."""

    def removed(names: ProgramNames) -> ProgramNames:
        found = getattr(names, kind)
        left = {each: at for each, at in found.items() if each != name}
        return names if left == found else msgspec.structs.replace(names, **{kind: left})

    yield from _DOCUMENT.change(KEY, removed)
