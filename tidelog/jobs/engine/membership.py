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
from typing import Any, Final

import msgspec

from tidelog.client import strings
from tidelog.client.steps import Steps, checked
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

    def joined(self, name: str, engine: EngineMember) -> EngineMembers:
        known = self.engines.get(name)
        if known is not None and known.epoch == engine.epoch:
            return self
        return msgspec.structs.replace(self, engines={**self.engines, name: engine})

    def without(self, gone: Mapping[str, int]) -> EngineMembers:
        """Without engines, each under the epoch given."""
        left = {name: each for name, each in self.engines.items() if gone.get(name) != each.epoch}
        return self if len(left) == len(self.engines) else msgspec.structs.replace(self, engines=left)


def chosen(job: str, engines: Collection[str]) -> str | None:
    """The engine that should run a job; None without engines."""
    return max(engines, key=lambda engine: (_weight(engine, job), engine), default=None)


def read() -> Steps[EngineMembers]:
    (text,) = checked((yield [strings.get(keys.ENGINES)]))
    return decoded(text)


def change(how: Callable[[EngineMembers], EngineMembers]) -> Steps[EngineMembers]:
    """Change the document; returns it as it is then. ``how`` may be called several times."""
    while True:
        (text,) = checked((yield [strings.get(keys.ENGINES)]))
        before = decoded(text)
        after = how(before)
        if after is before:
            return before
        written = msgspec.json.encode(after)
        swap: Any = (
            strings.set_absent(keys.ENGINES, written)
            if text is None
            else strings.set_equal(keys.ENGINES, written, text)
        )
        (found,) = checked((yield [swap]))
        if found == text:
            return after


def decoded(text: bytes | None) -> EngineMembers:
    """The document from its JSON. An invalid one is reported, and counts as empty: the next change replaces it.

    Raises JobError if it has a newer version.
    """
    if text is None:
        return EngineMembers()
    try:
        found = msgspec.json.decode(text, type=EngineMembers)
        for name in found.engines:
            name.encode()
    except (ValueError, RecursionError) as error:
        _unreadable.tell(keys.ENGINES, error)
        return EngineMembers()
    if found.version != VERSION:
        raise JobError(f"{keys.ENGINES!r} is of version {found.version}, this program knows {VERSION}: it is too old")
    return found


def _weight(engine: str, job: str) -> bytes:
    return blake2b(f"{engine}|{job}".encode(), digest_size=8).digest()
