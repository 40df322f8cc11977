"""The declaration of an app on the server: its processors, timers and workers, for tools that do not have its code.

    app:shop:declaration = {"version": 1, "name": "shop", "processors": [...], "timers": [...], "workers": {"w1": ...}}

Rule 1: nothing that processes records depends on it. Each worker writes it when it starts, so with workers of several
        versions, it is that of the last start.
Rule 2: a worker adds its name, and removes it when it stops. A worker that starts removes those that have died.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

import msgspec

from tidelog.client import strings
from tidelog.client.steps import Steps, checked
from tidelog.coordination.documents import VersionedDocument
from tidelog.coordination.lease import read_leases
from tidelog.topics.failureactions import DeadLetter
from tidelog.workers import keys
from tidelog.workers.declare.app_protocol import AppProtocol
from tidelog.workers.declare.errors import AppError
from tidelog.workers.declare.processor import Processor
from tidelog.workers.declare.schedule import CronSchedule, IntervalSchedule, ScheduledFunction

WORKERS: Final = 1000  # names of workers, at most


class DeclaredProcessor(msgspec.Struct, frozen=True):
    """What tools know about a processor."""

    name: str
    topic: str
    group: str
    ordering: str
    kind: str = "each"
    dead_letters: str = ""  # its dead-letter queue; empty: none
    topic_key: bool = False  # its key is that of the topic, so a key has one partition

    def stream(self, partition: int) -> str:
        """Return the key of a partition's stream."""
        return f"{self.topic}:{partition}"


class DeclaredTimer(msgspec.Struct, frozen=True):
    """What tools know about a timer or a cron."""

    name: str
    interval: float = 0.0  # s; 0: it is a cron
    cron: str = ""
    timezone: str = "UTC"
    on_leader: bool = True
    catch_up: bool = False

    def schedule(self) -> IntervalSchedule | CronSchedule:
        """Return its times. Raises AppError if they are invalid, or if the parser of cron expressions is missing."""
        return IntervalSchedule(self.interval) if self.interval else CronSchedule(self.cron, self.timezone)


class AppDeclaration(msgspec.Struct, frozen=True):
    """An app, as its workers have declared it."""

    version: int = 1
    name: str = ""
    processors: tuple[DeclaredProcessor, ...] = ()
    timers: tuple[DeclaredTimer, ...] = ()
    workers: dict[str, int] = {}  # ms since 1970 of the start; some may have died

    def select(self, names: Iterable[str] | None = None) -> list[DeclaredProcessor]:
        """Return the processors with these names, or all of them. Raises AppError if a name is unknown."""
        if names is None:
            return list(self.processors)
        known = {each.name: each for each in self.processors}
        wanted = list(dict.fromkeys(names))
        for name in wanted:
            if name not in known:
                listed = ", ".join(known) or "none"
                raise AppError(f"app {self.name!r} has no processor {name!r}: it has {listed}")
        return [known[name] for name in wanted]


class DeclarationError(AppError):
    """The document has a newer version."""


_DOCUMENT: Final = VersionedDocument(AppDeclaration, 1, DeclarationError, logging.getLogger("tidelog.workers"))


def declaration_of(app: AppProtocol | AppDeclaration) -> AppDeclaration:
    """Return the declaration of an app, without workers if it is made from code."""
    if isinstance(app, AppDeclaration):
        return app
    processors = tuple(map(_processor, app.processors.values()))
    return AppDeclaration(1, app.name, processors, tuple(map(_timer, app.timers.values())))


def _processor(declared: Processor) -> DeclaredProcessor:
    final, topic = declared.policy.final, declared.topic
    letters = final.target(topic.name) if isinstance(final, DeadLetter) else ""
    return DeclaredProcessor(
        declared.name, topic.name, declared.group, declared.ordering, declared.kind, letters, declared.key == topic.key
    )


def _timer(timer: ScheduledFunction) -> DeclaredTimer:
    timing = timer.timing
    if isinstance(timing, IntervalSchedule):
        return DeclaredTimer(timer.name, float(timing.interval), on_leader=timer.on_leader, catch_up=timer.catch_up)
    return DeclaredTimer(timer.name, 0.0, timing.expression, timing.timezone, timer.on_leader, timer.catch_up)


def read(app: str) -> Steps[AppDeclaration | None]:
    """Read the declaration of an app; None if none of its workers has written one. Raises DeclarationError."""
    found = yield from _DOCUMENT.read(keys.declaration(app))
    return found if found.name == app else None


def write(app: AppProtocol, worker: str) -> Steps[None]:
    """Write the declaration, with this worker and those that live. Raises DeclarationError."""
    key, made = keys.declaration(app.name), declaration_of(app)
    there = yield from _DOCUMENT.read(key)
    dead = yield from _dead(app.name, there.workers)
    (now,) = checked((yield [strings.server_time()]))

    def written(before: AppDeclaration) -> AppDeclaration:
        living = {name: at for name, at in before.workers.items() if name not in dead}
        newest = sorted({**living, worker: now}.items(), key=lambda each: each[1])[-WORKERS:]
        return msgspec.structs.replace(made, workers=dict(newest))

    yield from _DOCUMENT.change(key, written)


def leave(app: str, worker: str) -> Steps[None]:
    """Remove a worker that stops. Raises DeclarationError."""

    def left(before: AppDeclaration) -> AppDeclaration:
        if worker not in before.workers:
            return before
        workers = {name: at for name, at in before.workers.items() if name != worker}
        return msgspec.structs.replace(before, workers=workers)

    yield from _DOCUMENT.change(keys.declaration(app), left)


def _dead(app: str, workers: Iterable[str]) -> Steps[set[str]]:
    names = list(workers)
    leases = yield from read_leases([keys.lease(app, name) for name in names])
    return {name for name, (value, _) in zip(names, leases, strict=True) if value is None}
