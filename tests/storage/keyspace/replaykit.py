"""Keyspaces without a server, for tests of records, replay and checkpoints."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from commands import registry  # noqa: F401  (fills the command table)
from commands.context import Block, Chunks, Context
from commands.declare import lookup
from commands.session import Session
from resp.errors import CommandError
from storage.keyspace.keyspace import Keyspace
from storage.keyspace.values import String
from storage.model import records
from storage.model.entries import entry_wire, id_bulk
from storage.nodes.cache import NodeCache
from storage.nodes.pool import NodePool, NodeStore
from storage.streams.stream import Stream
from tests.storage.nodes.nodestore import MemoryStore

NOW = 1_700_000_000_000
SERVER = SimpleNamespace(writes=SimpleNamespace(repeated=lambda session: None))  # what handlers of data use of a server
ALL = records.HAS_RETRY | records.HAS_MAX | records.HAS_DEADLETTER


def empty(store: NodeStore | None = None) -> Keyspace:
    nodes = NodePool(store or MemoryStore(), NodeCache(4096))
    nodes.max_entries = 3
    nodes.publish_written = 2
    return Keyspace(nodes)


def call(ks: Keyspace, now: int, *words: bytes | str | int) -> Any:
    """Run a command as a client's; its reply, or the error's text."""
    argv = [w if isinstance(w, bytes) else str(w).encode() for w in words]
    ctx = Context(ks, cast(Any, SERVER), Session(1, "", "", now), now)
    try:
        answer = lookup(argv).handler(ctx, argv)
    except CommandError as error:
        return error.text
    if isinstance(answer, Chunks):
        answer.close()
    return b"blocked" if isinstance(answer, Block) else answer


def counters(ks: Keyspace) -> dict[tuple[bytes, bytes], tuple[int, ...]]:
    """What digest() leaves out of groups."""
    return {
        (key, name): (group.redelivered, group.expired, group.deadlettered)
        for key, value in ks.keys.items()
        if isinstance(value, Stream)
        for name, group in value.groups.items()
    }


def as_string(value: object) -> String:
    assert isinstance(value, String)
    return value


def append_record(key: bytes, ms: int, seq: int, wire: bytes) -> bytes:
    """An APPEND record, as drawn in ``records``."""
    size = records.APPEND_HEAD.size - 5 + len(key) + len(wire)
    return records.APPEND_HEAD.pack(records.APPEND, size, len(key), ms, seq) + key + wire


def wire(ms: int, seq: int, value: bytes = b"v") -> bytes:
    return entry_wire(id_bulk(ms, seq), [b"f", value])
