"""The engines that are running, and the assignment of jobs to engines.

    jobs:engines = {"version": 1, "engines": {"e1": {"epoch": 17, "joined": 1700000000000, "host": "a"}, ...}}

Rule 1: The document is changed by compare-and-set (SET IFEQ) on the bytes that were read, so no change is lost.
Rule 2: Every change is idempotent. If a reply is lost, the document is read again and the change repeated if needed.
Rule 3: The document determines which engines are candidates. The claims determine which engine runs a job.
Rule 4: A job should run on the engine for which the hash of both names is highest (rendezvous hashing). An engine that
        joins takes over only jobs that are assigned to it, and the jobs of an engine that leaves are the only ones that
        move.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from hashlib import blake2b
from typing import Final

import msgspec

from tidelog.client.steps import Steps
from tidelog.coordination.documents import VersionedDocument
from tidelog.coordination.membership import check_names, with_member, without_members
from tidelog.jobs import keys
from tidelog.jobs.errors import JobError

VERSION: Final = 1


class EngineMember(msgspec.Struct, frozen=True):
    """A running engine. It is alive while its lease has this epoch."""

    epoch: int
    joined: int = 0  # ms since 1970, by its own clock; informational
    host: str = ""


class EngineMembers(msgspec.Struct, frozen=True):
    """The document."""

    version: int = VERSION
    engines: dict[str, EngineMember] = {}

    def __post_init__(self) -> None:
        check_names([*self.engines])

    def joined(self, name: str, engine: EngineMember) -> EngineMembers:
        return self._changed(with_member(self.engines, name, engine))

    def without(self, gone: Mapping[str, int]) -> EngineMembers:
        """Return the document without the engines that have the given epochs."""
        return self._changed(without_members(self.engines, gone))

    def _changed(self, engines: dict[str, EngineMember]) -> EngineMembers:
        return self if engines is self.engines else msgspec.structs.replace(self, engines=engines)


def chosen(job: str, engines: Collection[str]) -> str | None:
    """Return the engine that should run a job, or None if there are no engines."""
    return max(
        engines, key=lambda engine: (blake2b(f"{engine}|{job}".encode(), digest_size=8).digest(), engine), default=None
    )


_DOCUMENT: Final = VersionedDocument(EngineMembers, VERSION, JobError, logging.getLogger(__name__))


def read() -> Steps[EngineMembers]:
    return _DOCUMENT.read(keys.ENGINES)


def change(how: Callable[[EngineMembers], EngineMembers]) -> Steps[EngineMembers]:
    """Change the document and return the result. ``how`` may be called several times."""
    return _DOCUMENT.change(keys.ENGINES, how)


def decoded(text: bytes | None) -> EngineMembers:
    """Return the document from its JSON; an empty one for None."""
    return _DOCUMENT.decoded(keys.ENGINES, text)
