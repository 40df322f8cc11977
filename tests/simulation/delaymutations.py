"""Rules of delayed entries that are broken on purpose."""

from __future__ import annotations

from array import array
from typing import Any

from respserver.roles.link import LeaderLink
from respserver.roles.roles import Roles
from respserver.runtime.deliveries import Deliveries
from respserver.runtime.ticks import Ticks
from storage.keyspace import delaymutators
from storage.keyspace.keyspace import Keyspace
from storage.model import records
from storage.streams.stream import Stream
from tests.simulation.world import Patch


def delivered_again() -> list[Patch]:
    """A promoted replica delivers again what its old leader delivered last."""
    join, lead = delaymutators.join, Roles.become_leader
    last: dict[int, tuple[Any, bytes, Any]] = {}  # by keyspace: it, the key, and the entries of the last delivery

    def joined(ks: Any, key: bytes, *rest: Any) -> None:
        join(ks, key, *rest)
        last[id(ks)] = ks, key, rest[-1]

    def leads(roles: Any, replid: str = "") -> None:
        lead(roles, replid)
        ks = roles._data.ks
        _, key, entries = last.pop(id(ks), (ks, b"", ()))
        stream = ks.keys.get(key)
        if isinstance(stream, Stream) and entries:
            ms, seq = ks.next_id(stream, roles._clock.now())
            wires = [each.wire(ms, seq + at) for at, each in enumerate(entries)]
            ks.append_packed(key, stream, ms, seq, array("I", map(len, wires)), b"".join(wires))
            roles._ticks.queue()

    return [(delaymutators, "join", joined), (Roles, "become_leader", leads)]


def cancellation_forgotten() -> list[Patch]:
    """A replica that gets a full copy ignores the cancellations that were logged meanwhile."""
    apply, cancel = LeaderLink.batch, delaymutators.cancel
    copying = False

    def batch(link: Any, offset: int, content: bytes) -> None:
        nonlocal copying
        copying = not link._data.disk.history.complete
        try:
            apply(link, offset, content)
        finally:
            copying = False

    def cancelled(ks: Any, key: bytes, delayed: Any, ordinal: int, wire: bytes, found: Any) -> None:
        if copying:
            ks.delayed_logged(key, delayed, records.cancel(key, ordinal, wire))
        else:
            cancel(ks, key, delayed, ordinal, wire, found)

    return [(LeaderLink, "batch", batch), (delaymutators, "cancel", cancelled)]


def delivery_shown_early() -> list[Patch]:
    """The replies of a tick in which a leader delivers entries are sent before the in-sync set has the delivery."""
    step, release = Deliveries._step, Ticks._release_confirmed

    def stepped(deliveries: Any) -> bool:
        more = step(deliveries)
        deliveries._data.delivered = bool(deliveries._data.ks.log)
        return more

    def released(ticks: Any, clients: list[Any]) -> None:
        if getattr(ticks._data, "delivered", False):
            ticks._data.delivered = False
            for client in clients:
                client.shows_data = False
        release(ticks, clients)

    return [(Deliveries, "_step", stepped), (Ticks, "_release_confirmed", released)]


def tokens_forgotten() -> list[Patch]:
    """A server does not load the tokens of delivered entries from its store."""
    restored = Keyspace.restored_delayed

    def forget(ks: Any) -> None:
        restored(ks)
        for stream in ks.keys.values():
            if isinstance(stream, Stream) and stream.producers is not None:
                stream.producers.by_name.pop(delaymutators.TOKENS, None)

    return [(Keyspace, "restored_delayed", forget)]
