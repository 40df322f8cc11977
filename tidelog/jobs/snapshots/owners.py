"""Whose generation a folder in the object store is: ``<url>/<job>/<generation>/owner.json``.

    {"topics": {"clicks": "5f0c...", "totals": "9a3e..."}}      the job's topics, by the IDs that the server gave them

Two servers may have jobs of one name, and engines one object store: a test system beside the one that counts. By the
IDs it can be told whose it is, before anything is removed (``clearing``).

Rule: it is written before anything else is, by whoever writes there, and removed last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from tidelog.jobs.snapshots.objects import MissingError, ObjectStore

NAME: Final = "owner.json"


class FolderOwner(msgspec.Struct, frozen=True):
    """The file's content."""

    topics: dict[str, str]


def name_of(job: str, generation: int) -> str:
    return f"{job}/{generation}/{NAME}"


def write(objects: ObjectStore, job: str, generation: int, topics: Mapping[str, str]) -> None:
    """Say whose it is. SnapshotError."""
    objects.write(name_of(job, generation), msgspec.json.encode(FolderOwner(dict(topics))))


def read(objects: ObjectStore, job: str, generation: int) -> Mapping[str, str]:
    """The topics of its job, with their IDs; {} if it does not say. SnapshotError."""
    try:
        return msgspec.json.decode(objects.read(name_of(job, generation)), type=FolderOwner).topics
    except (MissingError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}
