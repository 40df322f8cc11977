"""The registry of jobs: a stream that contains all changes, ``jobs:registry``.

    kind        added | changed | paused | resumed | removed | reset | all
    name        of the job; empty for ``all``
    spec        the job after the change, in JSON; of ``all``: every job
    by          the user who made the change, informational

Rule 1: A change is appended under WATCH by a client that has read all earlier entries. Changes are therefore ordered,
        and each is valid after its predecessors.
Rule 2: An entry contains the complete job after the change, not the difference. ``all`` contains every job and replaces
        everything known before. A reader may start at any entry before an ``all``, and may have missed any number.
Rule 3: The writer that finds LONG entries appends ``all`` and evicts the entries before it, in the transaction of its
        own change.
Rule 4: An entry is validated before it is used. Names become paths, targets are imported, and terminals show both: a
        user with write permission for this stream must not gain more access to an engine's machine than the code on its
        path.
Rule 5: A generation of a job starts with ``added`` or ``reset``. Its number is never reused, not even after the job was
        removed. When it ends, its fence is closed in the same transaction, so nothing of it can be published any more.
        If another group of a cluster has the fence, it is closed right after the change, or else by the next
        generation (``commits``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

import msgspec
import redis

from tidelog.client import calls
from tidelog.client.entries import Entry, StreamId
from tidelog.client.steps import Steps, checked
from tidelog.jobs import commits, keys
from tidelog.jobs.declare import NAME
from tidelog.jobs.errors import JobError
from tidelog.operating.errortexts import UnreadableDocuments, summary_of
from tidelog.topics.settings import check_name as check_topic
from tidelog.transport.call import Call
from tidelog.transport.errors import ReplyError, message_of

_unreadable: Final = UnreadableDocuments(logging.getLogger(__name__))
KINDS: Final = ("added", "changed", "paused", "resumed", "reset")  # contain the spec of an existing job
LONG: Final = 1000  # entries of the registry
PAGE: Final = 500
CLOSING_MS: Final = 60_000  # lifetime of the stage with the last event of a generation


class JobSpec(msgspec.Struct, frozen=True):
    """A job as recorded in the registry."""

    name: str
    target: str  # ``module:attribute`` of the Job
    kind: str = "batch"  # or frame
    version: str = ""  # hash of the source when it was added, informational
    generation: int = 1
    revision: int = 1  # counts changes; an engine restarts a job with another revision
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    dead_letters: tuple[str, ...] = ()  # topics of its dead letters
    partitions: int = 1
    state: str = ""  # the type of the state's values; empty: no state
    start: str = ""  # where this generation starts; empty: as the job declares
    store: str = ""  # URL of the object store; empty: the engine's
    paused: bool = False
    options: dict[str, str] = {}

    def differences(self, other: JobSpec) -> list[str]:
        """Return why ``other`` cannot continue with the state and the positions of this job."""
        return [
            f"{what} was {_shown(getattr(self, what))} and is now {_shown(getattr(other, what))}"
            for what in ("kind", "inputs", "partitions", "state")
            if getattr(self, what) != getattr(other, what)
        ]


class _All(msgspec.Struct, frozen=True):
    specs: dict[str, JobSpec]
    gone: dict[str, int]


@dataclass
class JobRegistry:
    """The jobs after the entries up to ``last``."""

    specs: dict[str, JobSpec] = field(default_factory=dict)
    gone: dict[str, int] = field(default_factory=dict)  # removed jobs, with their last generation
    last: StreamId = StreamId(0)  # noqa: RUF009 - immutable
    length: int = 0  # entries since the last ``all``

    def apply(self, entry: Entry) -> None:
        """Apply the next entry. An invalid entry is logged and ignored."""
        self.last = entry.id
        self.length += 1
        try:
            facts = entry.text()
            kind, name = facts["kind"], facts["name"]
            if kind == "all":
                everything = msgspec.json.decode(facts["spec"], type=_All)
                for each, spec in everything.specs.items():
                    _check(each, spec)
                for each in everything.gone:
                    _check_name(each)
                self.specs, self.gone, self.length = everything.specs, everything.gone, 1
            elif kind == "removed":
                self.gone[name] = self.specs.pop(name).generation
            else:
                spec = msgspec.json.decode(facts["spec"], type=JobSpec)
                if kind not in KINDS:
                    raise ValueError(f"{kind!r} is not a kind of entry")
                _check(name, spec)
                self.specs[name] = spec
                self.gone.pop(name, None)
        except (KeyError, ValueError, RecursionError) as error:
            _unreadable.report(f"{keys.REGISTRY} {entry.id}", summary_of(error))

    def find(self, name: str) -> JobSpec:
        """Return the job's spec. Raises JobError if there is no such job."""
        if name not in self.specs:
            known = ", ".join(sorted(self.specs)) or "none"
            raise JobError(f"there is no job {name!r}; jobs: {known}. Add one: tidelog jobs add module:job")
        return self.specs[name]

    def everything(self) -> str:
        """Return all jobs, in the form that an ``all`` entry has."""
        return msgspec.json.encode(_All(self.specs, self.gone)).decode()


def _check(name: str, spec: JobSpec) -> None:
    """Raise ValueError unless ``spec`` is a valid job with this name."""
    _check_name(spec.name)
    parts = spec.target.partition(":")
    if name != spec.name or spec.kind not in ("batch", "frame"):
        raise ValueError(f"a job of kind {spec.kind!r} with the names {spec.name!r} and {name!r}")
    if not all(part.replace("-", "_").isidentifier() for part in f"{parts[0]}.{parts[2]}".split(".")):
        raise ValueError(f"job {name!r}: the target {spec.target!r} is not module:attribute")
    if min(spec.generation, spec.revision, spec.partitions) < 1:
        raise ValueError(f"job {name!r}: generation, revision and partitions must be at least 1")
    for topic in (*spec.inputs, *spec.outputs, *spec.dead_letters):
        check_topic(topic)
    for text in (spec.version, spec.state, spec.start, spec.store, *spec.options, *spec.options.values()):
        if not text.isprintable():
            raise ValueError(f"job {name!r}: {text!r} contains unprintable characters")


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a job")


@dataclass(frozen=True)
class RegistryChange:
    """An entry to append; ``closes``: the number of the generation that it ends."""

    kind: str
    spec: JobSpec
    closes: int | None = None


Decide = Callable[[JobRegistry], RegistryChange | None]


# -- what changes ----------------------------------------------------------------------------------------------
def add(spec: JobSpec) -> Decide:
    """Add a job, or new code for an existing one.

    Raises JobError if the new code is incompatible with the existing job's state and positions.
    """

    def decide(registry: JobRegistry) -> RegistryChange | None:
        old = registry.specs.get(spec.name)
        if old is None:
            generation = registry.gone.get(spec.name, 0) + 1
            return RegistryChange("added", msgspec.structs.replace(spec, generation=generation))
        differences = old.differences(spec)
        if differences:
            raise JobError(
                f"there is a different job {spec.name!r} already: {'; '.join(differences)}. Use another"
                f" name, or start again with empty state: tidelog jobs reset {spec.name} --to earliest"
                f" --target {spec.target}"
            )
        new = msgspec.structs.replace(
            spec, generation=old.generation, revision=old.revision, start=old.start, paused=old.paused
        )
        return None if new == old else RegistryChange("changed", _next(new))

    return decide


def remove(name: str) -> Decide:
    def decide(registry: JobRegistry) -> RegistryChange:
        old = registry.find(name)
        return RegistryChange("removed", old, old.generation)

    return decide


def pause(name: str) -> Decide:
    def decide(registry: JobRegistry) -> RegistryChange | None:
        old = registry.find(name)
        return None if old.paused else RegistryChange("paused", _next(old, paused=True))

    return decide


def resume(name: str) -> Decide:
    """Resume a job. Also accepts a job that isn't paused: one that has failed is retried."""

    def decide(registry: JobRegistry) -> RegistryChange:
        return RegistryChange("resumed", _next(registry.find(name), paused=False))

    return decide


def reset(spec: JobSpec) -> Decide:
    """Start a new generation of the job, as described by ``spec``, from ``spec.start``."""

    def decide(registry: JobRegistry) -> RegistryChange:
        old = registry.find(spec.name)
        new = msgspec.structs.replace(
            spec, generation=old.generation + 1, revision=old.revision + 1, paused=old.paused,
            store=spec.store or old.store,
        )  # fmt: skip
        return RegistryChange("reset", new, old.generation)

    return decide


def _next(spec: JobSpec, **fields: Any) -> JobSpec:
    return msgspec.structs.replace(spec, revision=spec.revision + 1, **fields)


# -- on the server ---------------------------------------------------------------------------------------------
def read(registry: JobRegistry | None = None) -> Steps[JobRegistry]:
    """Read the registry, or apply the changes after ``registry.last``."""
    found = JobRegistry() if registry is None else registry
    for entry in (yield from _entries(found.last)):
        found.apply(entry)
    return found


def removed(name: str) -> Steps[JobSpec | None]:
    """Return the last spec of a removed job; None if the job exists, never existed, or was removed too long ago."""
    found: JobSpec | None = None
    for entry in (yield from _entries(StreamId(0))):
        with suppress(ValueError):  # ``apply`` ignores such an entry as well
            facts = entry.text()
            if facts.get("name") == name:
                found = _removed(name, facts)
    return found


def _entries(after: StreamId) -> Steps[list[Entry]]:
    """Read the entries after an ID, in pages."""
    found: list[Entry] = []
    while True:
        (page,) = checked((yield [calls.trange(keys.REGISTRY, f"({after}", "+", PAGE)]))
        found += page
        if len(page) < PAGE:
            return found
        after = page[-1].id


def _removed(name: str, facts: dict[str, str]) -> JobSpec | None:
    if facts.get("kind") != "removed":
        return None
    try:
        spec = msgspec.json.decode(facts["spec"], type=JobSpec)
        _check(name, spec)
    except (KeyError, ValueError, RecursionError):
        return None  # readers of the registry log it
    return spec


def change(decide: Decide, by: str = "", long: int = LONG) -> Steps[tuple[JobRegistry, RegistryChange | None]]:
    """Change the registry; return the result, and the change or None if there was nothing to do.

    Must be driven on one connection that is not reconnected. ``decide`` may be called several times.
    """
    divided = False  # whether several groups of a cluster have the keys of the transaction
    while True:
        checked((yield [Call(("WATCH", keys.REGISTRY), bool)]))
        registry = yield from read()
        what = decide(registry)
        if what is None:
            checked((yield [Call(("UNWATCH",), bool)]))
            return registry, None
        after = JobRegistry(dict(registry.specs), dict(registry.gone))
        fields = _fields(what.kind, what.spec.name, msgspec.json.encode(what.spec).decode(), by)
        after.apply(Entry(registry.last, [word.encode() for pair in fields.items() for word in pair]))
        queued = [*([] if divided else _closed(what)), calls.tappend(keys.REGISTRY, fields)]
        if registry.length >= long:
            every = _fields("all", "", after.everything(), by)
            queued.append(calls.tappev(keys.REGISTRY, every, count=1))
        try:
            done = yield from _together(queued)
        except (ReplyError, redis.ResponseError) as error:
            if divided or not message_of(error).startswith("CROSSSLOT"):
                raise
            divided = True  # nothing was executed, but another connection may have watched the registry
            continue
        if done:
            if what.closes is not None:
                yield from commits.close(what.spec.name, what.closes)
                if divided:
                    checked((yield [calls.tappend(keys.events(what.spec.name), _last_event(what))]))
            return after, what


def _fields(kind: str, name: str, spec: str, by: str) -> dict[str, str]:
    return {"kind": kind, "name": name, "spec": spec, "by": by}


def _closed(what: RegistryChange) -> list[Call[Any]]:
    """Return the calls that close the fence. They publish the last epoch, which only appends the end to the events."""
    if what.closes is None:
        return []
    fence, event = keys.fence(what.spec.name, what.closes), _last_event(what)
    stage = f"{fence}:closed:{uuid4().hex}"
    return [
        calls.tstage(stage, CLOSING_MS, keys.events(what.spec.name), list(event), [list(event.values())]),
        calls.tpublish(fence, commits.CLOSED, stage, check=commits.CHECK),
    ]


def _last_event(what: RegistryChange) -> dict[str, str]:
    return {"kind": what.kind, "text": f"generation {what.spec.generation}" if what.kind == "reset" else ""}


def _together(queued: Sequence[Call[Any]]) -> Steps[bool]:
    """Execute calls in one transaction; return False if the watched key has changed."""
    plain = [Call(call.args, bool) for call in queued]
    replies = yield [Call(("MULTI",), bool), *plain, Call(("EXEC",), lambda reply: reply)]
    *_, done = checked(replies)
    for reply in done or []:
        if isinstance(reply, Exception):
            raise reply
    return done is not None


def _shown(value: object) -> str:
    return ", ".join(value) or "nothing" if isinstance(value, tuple) else str(value) or "nothing"
