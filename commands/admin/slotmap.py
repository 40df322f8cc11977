"""TCLUSTER: the map of a cluster of several server groups, and the assignment and moves of slots."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

from commands.context import Await, Context, Reply
from commands.declare import arg, block, command, oneof, repeat, token
from commands.parse import integer, positive
from commands.serverparts import MapPart
from resp import errors, reply
from resp.errors import CommandError
from storage.model.timers import NEVER

_server = partial(command, group="cluster")
MOST_OBJECTS = 64  # in TCLUSTER IMPORT id LINK
LINKED = "LINKED"  # the first word of the reply to TCLUSTER IMPORT id LINK
NO_MAP = "ERR this server shares the slots with no other group: it has no coordinator (group, coordinator)"


def _map(ctx: Context) -> MapPart:
    """Return the map. Raises CommandError."""
    if not ctx.server.cluster.enabled:
        raise CommandError(errors.NO_CLUSTER)
    if ctx.server.slot_map is None:
        raise CommandError(NO_MAP)
    return ctx.server.slot_map


def _text(word: bytes) -> str:
    return word.decode("utf-8", "surrogateescape")


def _json(ctx: Context, found: dict[str, object]) -> bytes:
    text = json.dumps(found, ensure_ascii=False)
    return reply.verbatim(ctx.session.proto, "txt", text.encode("utf-8", "surrogateescape"))


def _outcome(ended: Callable[[], str | None]) -> Await:
    """Wait for the end of a change."""

    def result() -> bytes | None:
        line = ended()
        if line:
            return reply.simple(line.encode()) if line.startswith(f"{LINKED} ") else reply.error(line)
        return None if line is None else reply.OK

    return Await(NEVER, result, lambda: reply.OK, firm=True)


@_server("TCLUSTER|MAP", flags="loading stale", complexity="O(N): N groups and ranges of slots.")
def tcluster_map(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the map as one JSON document: the groups, their members, and the slots of each group."""
    found = _map(ctx).document()
    return reply.null(ctx.session.proto) if found is None else _json(ctx, found)


@_server(
    "TCLUSTER|STATUS", flags="loading stale", acl="admin dangerous", complexity="O(N): N groups and ranges of slots.",
)  # fmt: skip
def tcluster_status(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the map, and the view and the problems of this member, as one JSON document."""
    return _json(ctx, _map(ctx).status())


@_server(
    "TCLUSTER|ASSIGN", arg("range", multiple=True), arg("group", token="TO"), flags="admin noscript stale no_multi",
    complexity="O(N): N keys in all slots of this group.",
)  # fmt: skip
def tcluster_assign(ctx: Context, argv: list[bytes]) -> Reply:
    """Assign empty slots to a group. Sent to the leader of the group that owns them."""
    if argv[-2].upper() != b"TO" or len(argv) < 5:
        raise errors.syntax()
    return _outcome(_map(ctx).assignment([_text(word) for word in argv[2:-2]], _text(argv[-1])))


@_server(
    "TCLUSTER|UNASSIGN", arg("range", multiple=True), flags="admin noscript stale no_multi",
    complexity="O(N): N keys in all slots of this group.",
)  # fmt: skip
def tcluster_unassign(ctx: Context, argv: list[bytes]) -> Reply:
    """Assign empty slots to no group. Sent to the leader of the group that owns them."""
    return _outcome(_map(ctx).assignment([_text(word) for word in argv[2:]], ""))


@_server(
    "TCLUSTER|MOVE", arg("range", multiple=True), arg("group", token="TO"), flags="admin noscript stale no_multi",
    complexity="O(N): N keys in all slots of this group, and entries in the moved slots.",
)  # fmt: skip
def tcluster_move(ctx: Context, argv: list[bytes]) -> Reply:
    """Move slots with their keys to a group, while clients use them. Sent to the leader of the group that owns them."""
    if argv[-2].upper() != b"TO" or len(argv) < 5:
        raise errors.syntax()
    return _outcome(_map(ctx).movement([_text(word) for word in argv[2:-2]], _text(argv[-1])))


@_server("TCLUSTER|ABORT", flags="admin noscript stale no_multi")
def tcluster_abort(ctx: Context, argv: list[bytes]) -> Reply:
    """Abort the move of slots of this group. Sent to the leader of the group that owns them."""
    return _outcome(_map(ctx).end_of_move())


@_server(
    "TCLUSTER|IMPORT", arg("move"),
    oneof(
        "action", token("BEGIN"),
        block("links", arg("url", token="LINK"), repeat(block("object", arg("name"), arg("bytes", "integer")))),
        arg("part", token="PART"),
        block("data", arg("away", "integer", token="DATA"), arg("records")), token("END"),
    ),
    flags="write denyoom admin noscript no_multi", acl="admin dangerous",
    complexity="O(N): N records.",
)  # fmt: skip
def tcluster_import(ctx: Context, argv: list[bytes]) -> Reply:
    """Receive the keys of a move from the leader of another group. Only servers send it."""
    action, name = argv[3].upper(), _text(argv[2])
    if action == b"BEGIN" and len(argv) == 4:
        return _outcome(_map(ctx).import_begin(name))
    if action == b"LINK" and len(argv) > 6 and len(argv) % 2:
        objects = [(_text(argv[at]), positive(argv[at + 1])) for at in range(5, len(argv), 2)]
        if len(objects) > MOST_OBJECTS:
            raise CommandError(f"ERR a request has more than {MOST_OBJECTS} objects")
        return _outcome(_map(ctx).import_link(name, _text(argv[4]), objects))
    if action == b"PART" and len(argv) == 5:
        _map(ctx).import_part(name, argv[4])
        return reply.OK
    if action == b"DATA" and len(argv) == 6:
        _map(ctx).import_data(name, integer(argv[4]), argv[5])
        return reply.OK
    if action == b"END" and len(argv) == 4:
        _map(ctx).import_end(name)
        return reply.OK
    raise errors.syntax()


@_server("TCLUSTER|REMOVE", arg("group"), flags="admin noscript stale no_multi")
def tcluster_remove(ctx: Context, argv: list[bytes]) -> Reply:
    """Remove a group that is not running and owns no slots from the map."""
    return _outcome(_map(ctx).removal(_text(argv[2])))


@_server("TCLUSTER|RESTORE", flags="admin noscript stale no_multi")
def tcluster_restore(ctx: Context, argv: list[bytes]) -> Reply:
    """Write the map of this member to a coordinator that has lost it, or has an older version."""
    return _outcome(_map(ctx).restoration())
