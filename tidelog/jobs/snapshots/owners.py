"""Records the topics to which a generation's object store folder belongs: ``<url>/<job>/<generation>/owner.json``.

    {"topics": {"clicks": "5f0c...", "totals": "9a3e..."}}      the job's topics, with their IDs on the server

Two servers may have jobs with the same name, and engines with the same object store, for example a test system and a
production system. The IDs show to which server a folder belongs, before anything is removed (``cleanup``).

Rule: This file is written before any other file of the folder, and removed last.
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
    """Record the owner. Raises SnapshotError."""
    objects.write(name_of(job, generation), msgspec.json.encode(FolderOwner(dict(topics))))


def read(objects: ObjectStore, job: str, generation: int) -> Mapping[str, str]:
    """Return the topics of the job, with their IDs; {} if there is no valid file. Raises SnapshotError."""
    try:
        return msgspec.json.decode(objects.read(name_of(job, generation)), type=FolderOwner).topics
    except (MissingError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}
