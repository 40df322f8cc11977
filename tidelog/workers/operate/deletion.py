"""Deletes an app's state from a server. Blocking; used by ``tidelog app delete``.

Deleted: keys that begin with ``app:<name>:``, and the app's groups on the partitions of all topics. Topics, their
entries and dead letters stay.

Rule 1: never while a worker is alive. Everything is deleted in one transaction that WATCHes the epoch counter, which
        every joining worker increments. Only the keys of ``deduplicate``, of which there may be many, are deleted
        afterwards. If several groups of a cluster have the keys, they are deleted one after the other.
Rule 2: the counter itself stays. Systems that fence by epoch keep working if an app of the same name is created later.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import redis

from tidelog.client import Client, calls
from tidelog.client.steps import run
from tidelog.coordination import programs
from tidelog.topics import TopicError, admin
from tidelog.transport.errors import ReplyError
from tidelog.workers import keys
from tidelog.workers.declare.processor import check_name
from tidelog.workers.operate.control import AliveError

PAGE: Final = 1000  # keys per command


@dataclass(frozen=True)
class AppGroup:
    """A group of the app on one partition."""

    name: str
    topic: str
    partition: int
    pending: int  # messages that were delivered and not acknowledged


@dataclass(frozen=True)
class AppState:
    """The state of an app on a server."""

    alive: list[str]  # names of live workers
    keys: list[str]
    seen: list[str]  # keys of ``deduplicate``
    groups: list[AppGroup]


def find_state(client: Client, app: str) -> AppState:
    """Return what ``delete`` would delete. Raises AppError if the name is not valid for an app."""
    check_name("an app", app)
    prefix, lease, seen = f"app:{app}:", keys.lease(app, ""), keys.seen(app, "")
    names = {
        key.decode("utf-8", "surrogateescape") if isinstance(key, bytes) else key
        for key in client.redis.scan_iter(match=f"{prefix}*", count=PAGE)
    } - {keys.epochs(app)}
    return AppState(
        alive=sorted({name.removeprefix(lease).partition(":")[0] for name in names if name.startswith(lease)}),
        keys=sorted(name for name in names if not name.startswith((lease, seen))),
        seen=sorted(name for name in names if name.startswith(seen)),
        groups=list(_groups(client, app)),
    )


def delete(client: Client, app: str) -> AppState:
    """Delete the state of the app; returns what was deleted. Raises AliveError while workers run the app."""
    if client.several_groups():
        return _delete_one_by_one(client, app)
    with client.redis.pipeline() as pipe:
        while True:
            pipe.watch(keys.epochs(app))
            found = _idle(client, app)
            pipe.multi()
            if found.keys:
                pipe.delete(*map(_raw, found.keys))
            for group in found.groups:
                pipe.execute_command("TGROUP", "DESTROY", f"{group.topic}:{group.partition}", group.name)
            try:
                pipe.execute()
            except redis.WatchError:
                continue  # a worker has joined
            break
    for at in range(0, len(found.seen), PAGE):
        client.redis.delete(*map(_raw, found.seen[at : at + PAGE]))
    with suppress(redis.ResponseError, ReplyError, programs.ProgramNamesError):  # such as no permission
        run(client, programs.remove("apps", app))
    return found


def _idle(client: Client, app: str) -> AppState:
    """Return the state of an app. Raises AliveError while workers run it."""
    found = find_state(client, app)
    if found.alive:
        raise AliveError(
            f"app {app!r} is running on workers {', '.join(found.alive[:5])}: stop them first. A"
            " worker that was killed counts until its lease has expired"
        )
    return found


def _delete_one_by_one(client: Client, app: str) -> AppState:
    """Delete the state of an app from several groups of a cluster. A worker that starts meanwhile creates new keys."""
    found = _idle(client, app)
    for group in found.groups:
        client.run(calls.tgroup_destroy(f"{group.topic}:{group.partition}", _raw(group.name)))
    for names in (found.keys, found.seen):
        for at in range(0, len(names), PAGE):
            client.redis.delete(*map(_raw, names[at : at + PAGE]))
    with suppress(redis.ResponseError, ReplyError, programs.ProgramNamesError):  # such as no permission
        run(client, programs.remove("apps", app))
    return found


def _groups(client: Client, app: str) -> Iterator[AppGroup]:
    for topic in sorted(set(admin.names(client))):
        try:
            count = admin.settings_of(client, topic).partitions or 0
        except TopicError:  # the key has another content
            continue
        listed = client.together(*[calls.tgroup_list(f"{topic}:{at}") for at in range(count)], raise_on_error=False)
        for at, groups in enumerate(listed):
            for group in [] if isinstance(groups, Exception) else groups:
                name = group.name.decode("utf-8", "surrogateescape")
                if name.startswith(f"{app}."):
                    yield AppGroup(name, topic, at, group.pending)


def _raw(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")
