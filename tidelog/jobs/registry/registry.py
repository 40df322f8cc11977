"""The registry: which jobs there are. A stream with all changes, ``jobs:registry``.

    kind        added | changed | paused | resumed | removed | reset | all
    name        of the job; empty for ``all``
    spec        the job as it is from then on, in JSON; of ``all``: every job
    by          who did it, for people

Rule 1: a change is appended under WATCH by somebody who has read everything before it. So changes come one after
        another, and each makes sense after the ones before it.
Rule 2: an entry says what the job is from then on, not what is different. ``all`` says it of every job: whoever reads
        one forgets what it knew. So a reader may begin anywhere before one, and may have missed any number of entries.
Rule 3: the writer that finds LONG entries appends ``all`` and evicts what is before it, in the step of its own change.
Rule 4: an entry is validated before it is used. Names become paths, targets are imported, terminals show both: a user
        with write permission for this stream must not gain more access to an engine's machine than the code on its
        path.
Rule 5: a generation of a job begins with ``added`` or ``reset``. Its number is never reused, not even after the
        job was removed. When it ends, its fence is closed in the same step: nothing of it can be published any more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

import msgspec

from tidelog.client import calls
from tidelog.client.entries import Entry, StreamId
from tidelog.client.steps import Steps, checked
from tidelog.jobs import keys
from tidelog.jobs.declare import NAME
from tidelog.jobs.errors import JobError
from tidelog.operating.errortexts import UnreadableDocuments, summary_of
from tidelog.topics.settings import check_name as check_topic
from tidelog.transport.call import Call

_unreadable: Final = UnreadableDocuments(logging.getLogger(__name__))
KINDS: Final = ("added", "changed", "paused", "resumed", "reset")  # of entries with the spec of a job that there is
LONG: Final = 1000  # entries of the registry
PAGE: Final = 500
CLOSED: Final = 2**63 - 1  # the epoch of a fence that is closed: there is none after it
CLOSING_MS: Final = 60_000  # of the stage that closes it


class JobSpec(msgspec.Struct, frozen=True):
    """A job as the registry knows it."""

    name: str
    target: str  # ``module:attribute`` of the Job
    kind: str = "batch"  # or frame
    version: str = ""  # hash of the function's source when it was added, for people
    generation: int = 1
    revision: int = 1  # counts changes; who runs another one begins again
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    partitions: int = 1
    state: str = ""  # the type of the values; empty: none
    start: str = ""  # where this generation begins; empty: as the job is declared
    store: str = ""  # URL of the object store; empty: the engine's
    paused: bool = False
    options: dict[str, str] = {}

    def differences(self, other: JobSpec) -> list[str]:
        """Why ``other`` can't go on with the state and the positions of this one."""
        return [
            f"{what} was {_shown(getattr(self, what))}, and is {_shown(getattr(other, what))}"
            for what in ("kind", "inputs", "partitions", "state")
            if getattr(self, what) != getattr(other, what)
        ]


class _All(msgspec.Struct, frozen=True):
    specs: dict[str, JobSpec]
    gone: dict[str, int]


@dataclass
class JobRegistry:
    """What the entries up to ``last`` amount to."""

    specs: dict[str, JobSpec] = field(default_factory=dict)
    gone: dict[str, int] = field(default_factory=dict)  # jobs that were removed, with their last generation
    last: StreamId = StreamId(0)  # noqa: RUF009 - it can't be changed
    length: int = 0  # entries since the last ``all``

    def apply(self, entry: Entry) -> None:
        """Take in the next entry. One that is none of a registry is reported and ignored."""
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
                    raise ValueError(f"{kind!r} is no kind of entry")
                _check(name, spec)
                self.specs[name] = spec
                self.gone.pop(name, None)
        except (KeyError, ValueError, RecursionError) as error:
            _unreadable.tell(f"{keys.REGISTRY} {entry.id}", summary_of(error))

    def find(self, name: str) -> JobSpec:
        """JobError if there is no such job."""
        if name not in self.specs:
            known = ", ".join(sorted(self.specs)) or "none"
            raise JobError(f"there is no job {name!r}; jobs: {known}. Add one: tidelog jobs add module:job")
        return self.specs[name]

    def everything(self) -> str:
        """All jobs, as the entry ``all`` has them."""
        return msgspec.json.encode(_All(self.specs, self.gone)).decode()


def _check(name: str, spec: JobSpec) -> None:
    """Raises ValueError if a job that is called ``name`` is not one that this program writes."""
    _check_name(spec.name)
    parts = spec.target.partition(":")
    if name != spec.name or spec.kind not in ("batch", "frame"):
        raise ValueError(f"it is a job of kind {spec.kind!r} that is called {spec.name!r} and {name!r}")
    if not all(part.replace("-", "_").isidentifier() for part in f"{parts[0]}.{parts[2]}".split(".")):
        raise ValueError(f"job {name!r}: the target {spec.target!r} is no module:attribute")
    if min(spec.generation, spec.revision, spec.partitions) < 1:
        raise ValueError(f"job {name!r}: generation, revision and partitions are numbers from 1")
    for topic in (*spec.inputs, *spec.outputs):
        check_topic(topic)
    for text in (spec.version, spec.state, spec.start, spec.store, *spec.options, *spec.options.values()):
        if not text.isprintable():
            raise ValueError(f"job {name!r}: {text!r} has characters that are not printable")


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a job")


@dataclass(frozen=True)
class RegistryChange:
    """An entry to append; ``closes``: the fence of a generation that ends, and the stream of the job's events."""

    kind: str
    spec: JobSpec
    closes: tuple[str, str] | None = None


Decide = Callable[[JobRegistry], RegistryChange | None]


# -- what changes ----------------------------------------------------------------------------------------------
def add(spec: JobSpec) -> Decide:
    """A new job, or new code for one. JobError where it can't go on with what the old one has."""

    def decide(registry: JobRegistry) -> RegistryChange | None:
        old = registry.specs.get(spec.name)
        if old is None:
            generation = registry.gone.get(spec.name, 0) + 1
            return RegistryChange("added", msgspec.structs.replace(spec, generation=generation))
        differences = old.differences(spec)
        if differences:
            raise JobError(
                f"there is a job {spec.name!r} already, which is another one: {'; '.join(differences)}. Take another"
                f" name, or begin again with empty state: tidelog jobs reset {spec.name} --from earliest"
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
        return RegistryChange("removed", old, _closing(old))

    return decide


def pause(name: str) -> Decide:
    def decide(registry: JobRegistry) -> RegistryChange | None:
        old = registry.find(name)
        return None if old.paused else RegistryChange("paused", _next(old, paused=True))

    return decide


def resume(name: str) -> Decide:
    """Also a job that isn't paused: one that has failed is tried again."""

    def decide(registry: JobRegistry) -> RegistryChange:
        return RegistryChange("resumed", _next(registry.find(name), paused=False))

    return decide


def reset(spec: JobSpec) -> Decide:
    """A new generation, as ``spec`` describes the job, from ``spec.start``."""

    def decide(registry: JobRegistry) -> RegistryChange:
        old = registry.find(spec.name)
        new = msgspec.structs.replace(
            spec, generation=old.generation + 1, revision=old.revision + 1, paused=old.paused,
            store=spec.store or old.store,
        )  # fmt: skip
        return RegistryChange("reset", new, _closing(old))

    return decide


def _next(spec: JobSpec, **fields: Any) -> JobSpec:
    return msgspec.structs.replace(spec, revision=spec.revision + 1, **fields)


def _closing(spec: JobSpec) -> tuple[str, str]:
    return keys.fence(spec.name, spec.generation), keys.events(spec.name)


# -- on the server ---------------------------------------------------------------------------------------------
def read(registry: JobRegistry | None = None) -> Steps[JobRegistry]:
    """What is there, in pages; or take in what is new since ``registry.last``."""
    found = JobRegistry() if registry is None else registry
    while True:
        after = f"({found.last}" if found.last > StreamId(0) else "-"
        (page,) = checked((yield [calls.trange(keys.REGISTRY, after, "+", PAGE)]))
        for entry in page:
            found.apply(entry)
        if len(page) < PAGE:
            return found


def removed(name: str) -> Steps[JobSpec | None]:
    """A job that was removed, as it was; None if it is there, never was, or that is too long ago."""
    found: JobSpec | None = None
    last = StreamId(0)
    while True:
        (page,) = checked((yield [calls.trange(keys.REGISTRY, f"({last}", "+", PAGE)]))
        for entry in page:
            last = entry.id
            try:
                facts = entry.text()
            except ValueError:
                continue  # as ``apply``
            if facts.get("name") == name:
                found = _removed(name, facts)
        if len(page) < PAGE:
            return found


def _removed(name: str, facts: dict[str, str]) -> JobSpec | None:
    if facts.get("kind") != "removed":
        return None
    try:
        spec = msgspec.json.decode(facts["spec"], type=JobSpec)
        _check(name, spec)
    except (KeyError, ValueError, RecursionError):
        return None  # who reads the registry reports it
    return spec


def change(decide: Decide, by: str = "", long: int = LONG) -> Steps[tuple[JobRegistry, RegistryChange | None]]:
    """Change the registry; returns it as it is then, and the change, None if there was nothing to do.

    To be driven on one connection, which is not made again. ``decide`` may be called several times.
    """
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
        queued = [*_closed(what), calls.tappend(keys.REGISTRY, fields)]
        if registry.length >= long:
            every = _fields("all", "", after.everything(), by)
            queued.append(calls.tappev(keys.REGISTRY, every, count=1))
        if (yield from _together(queued)):
            return after, what


def _fields(kind: str, name: str, spec: str, by: str) -> dict[str, str]:
    return {"kind": kind, "name": name, "spec": spec, "by": by}


def _closed(what: RegistryChange) -> list[Call[Any]]:
    """Calls that close the fence: an epoch that only says so in the job's events is published as its last one."""
    if what.closes is None:
        return []
    fence, events = what.closes
    stage = f"{fence}:closed:{uuid4().hex}"
    summary_of = {"kind": what.kind, "text": f"generation {what.spec.generation}" if what.kind == "reset" else ""}
    return [
        calls.tstage(stage, CLOSING_MS, events, list(summary_of), [list(summary_of.values())]),
        calls.tpublish(fence, CLOSED, stage, check="closed"),
    ]


def _together(queued: Sequence[Call[Any]]) -> Steps[bool]:
    """Carry calls out in one step; False if what is watched has changed."""
    plain = [Call(call.args, bool) for call in queued]
    replies = yield [Call(("MULTI",), bool), *plain, Call(("EXEC",), lambda reply: reply)]
    *_, done = checked(replies)
    for reply in done or []:
        if isinstance(reply, Exception):
            raise reply
    return done is not None


def _shown(value: object) -> str:
    return ", ".join(value) or "nothing" if isinstance(value, tuple) else str(value) or "nothing"
