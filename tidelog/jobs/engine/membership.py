"""The engines that take part, and which of them should run a job.

    jobs:engines = {"version": 1, "engines": {"e1": {"epoch": 17, "joined": 1700000000000, "host": "a"}, ...}}

Rule 1: the document changes by SET IFEQ on exactly the bytes that were read, so no change is lost.
Rule 2: every change may be made twice. Who lost a reply looks again, and makes it again if it is not there.
Rule 3: it says who may be asked to run something. What runs where, the claims say.
Rule 4: a job should run where its name and the engine's have the highest hash (rendezvous hashing). So an engine that
        joins takes what is its own and nothing else moves; one that leaves gives up what it had and nothing else moves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from hashlib import blake2b
from typing import Final

import msgspec

from tidelog.client import strings
from tidelog.client.steps import Steps, checked
from tidelog.coordination import documents
from tidelog.coordination.membership import check_names, with_member, without_members
from tidelog.jobs import keys
from tidelog.jobs.errors import JobError
from tidelog.operating.errortexts import UnreadableDocuments

VERSION: Final = 1
_unreadable: Final = UnreadableDocuments(logging.getLogger(__name__))


class EngineMember(msgspec.Struct, frozen=True):
    """An engine that takes part. It is alive while its lease has this epoch."""

    epoch: int
    joined: int = 0  # ms since 1970, on its own clock: for people
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
        """Without engines, each under the epoch given."""
        return self._changed(without_members(self.engines, gone))

    def _changed(self, engines: dict[str, EngineMember]) -> EngineMembers:
        return self if engines is self.engines else msgspec.structs.replace(self, engines=engines)


def chosen(job: str, engines: Collection[str]) -> str | None:
    """The engine that should run a job; None without engines."""
    return max(engines, key=lambda engine: (_weight(engine, job), engine), default=None)


def read() -> Steps[EngineMembers]:
    (text,) = checked((yield [strings.get(keys.ENGINES)]))
    return decoded(text)


def change(how: Callable[[EngineMembers], EngineMembers]) -> Steps[EngineMembers]:
    """Change the document; returns it as it is then. ``how`` may be called several times."""

    def edit(text: bytes | None) -> tuple[bytes | None, EngineMembers]:
        before = decoded(text)
        after = how(before)
        return (text if after is before else msgspec.json.encode(after)), after

    return documents.change(keys.ENGINES, edit)


def decoded(text: bytes | None) -> EngineMembers:
    """The document from its JSON; an empty one for None. See ``documents.decode`` for invalid ones."""
    if text is None:
        return EngineMembers()
    return documents.decode(keys.ENGINES, text, EngineMembers, VERSION, _unreadable, JobError) or EngineMembers()


def _weight(engine: str, job: str) -> bytes:
    return blake2b(f"{engine}|{job}".encode(), digest_size=8).digest()
