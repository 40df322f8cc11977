"""Removing an app from a server: what it has remembered there. Blocking; the program's command.

Removed: keys that begin with ``app:<name>:``, and the app's groups on the partitions of all topics. Topics, their
entries and dead letters stay.

Rule 1: not while a worker lives. All is one transaction that watches the counter of epochs, to which each worker that
        joins adds. Only the keys of ``deduplicate``, which may be many, are deleted behind it.
Rule 2: the counter itself stays. Whoever keeps epochs to refuse older ones goes on with an app of the same name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import redis

from tidelog.client import Client, calls
from tidelog.topics import TopicError, admin
from tidelog.workers import keys
from tidelog.workers.declare.processor import check_name
from tidelog.workers.operate.control import AliveError

PAGE: Final = 1000  # keys of one command


@dataclass(frozen=True)
class AppGroup:
    """A group of the app on one partition."""

    name: str
    topic: str
    partition: int
    pending: int  # messages that are delivered and not acknowledged


@dataclass(frozen=True)
class Found:
    """What an app has on a server."""

    alive: list[str]  # workers
    keys: list[str]
    seen: list[str]  # keys of ``deduplicate``
    groups: list[AppGroup]


def look(client: Client, app: str) -> Found:
    """What ``delete`` would remove. AppError for a name that no app can have."""
    check_name("an app", app)
    prefix, lease, seen = f"app:{app}:", keys.lease(app, ""), keys.seen(app, "")
    names = {
        key.decode("utf-8", "surrogateescape") if isinstance(key, bytes) else key
        for key in client.redis.scan_iter(match=f"{prefix}*", count=PAGE)
    } - {keys.epochs(app)}
    return Found(
        alive=sorted(name.removeprefix(lease) for name in names if name.startswith(lease)),
        keys=sorted(name for name in names if not name.startswith((lease, seen))),
        seen=sorted(name for name in names if name.startswith(seen)),
        groups=list(_groups(client, app)),
    )


def delete(client: Client, app: str) -> Found:
    """Remove the app; returns what was removed. AliveError while workers run it."""
    with client.redis.pipeline() as pipe:
        while True:
            pipe.watch(keys.epochs(app))
            found = look(client, app)
            if found.alive:
                raise AliveError(
                    f"app {app!r} is being run by {len(found.alive)} workers ({', '.join(found.alive[:5])}): stop them"
                    " first. One that was killed counts until its lease has ended"
                )
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
    return found


def _groups(client: Client, app: str) -> Iterator[AppGroup]:
    for topic in sorted(set(admin.names(client))):
        try:
            count = admin.facts_of(client, topic).partitions or 0
        except TopicError:  # the key holds something else
            continue
        listed = client.together(*[calls.tgroup_list(f"{topic}:{at}") for at in range(count)], raise_on_error=False)
        for at, groups in enumerate(listed):
            for group in [] if isinstance(groups, Exception) else groups:
                name = group.name.decode("utf-8", "surrogateescape")
                if name.startswith(f"{app}."):
                    yield AppGroup(name, topic, at, group.pending)


def _raw(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")
