"""CLUSTER, READONLY, READWRITE, ASKING: what cluster clients use to find the leader.

Without a coordinator, there is one shard: the leader has all slots, and its replicas have copies. A cluster of several
server groups has one shard for each group. Without ``cluster-enabled yes``, these commands fail, as in Redis.

Decision: COUNTKEYSINSLOT and GETKEYSINSLOT search all keys, in slices of 1000, which take 0.3 ms. A million keys take
0.3 s, during which other clients are served. Only tools that move slots call these commands. An index by slot would
cost about 16 bytes per key, and time for each key that is created or deleted. A server that moves slots would search
all keys once for all slots that it moves, so it would not need this index either.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from commands.context import Chunks, Context, Reply, Slices
from commands.declare import arg, command, help_lines
from commands.parse import integer
from commands.slicing import AT_ONCE, long_array
from commands.slots import SLOTS, ClusterNode, ClusterShard, slot_of
from resp import errors, reply
from resp.errors import CommandError

_server = partial(command, group="cluster")
_NO_BUS = 0  # members do not gossip, so they have no bus port


def _check_enabled(ctx: Context) -> None:
    if not ctx.server.cluster.enabled:
        raise CommandError(errors.NO_CLUSTER)


def _shards(ctx: Context) -> list[ClusterShard]:
    """Return the shards, that of this server first. Raises CommandError if cluster-enabled is no."""
    _check_enabled(ctx)
    return ctx.server.cluster.shards(ctx.session)


def _text(ctx: Context, text: str) -> bytes:
    return reply.verbatim(ctx.session.proto, "txt", text.encode("utf-8", "surrogateescape"))


def _line(ctx: Context, node: ClusterNode, shard: ClusterShard) -> str:
    """Return the line of a node in CLUSTER NODES, without its end."""
    now, epoch, leader = ctx.now, shard.epoch, shard.nodes[0]
    flags = ("myself," if node.myself else "") + ("master" if node.leads else "slave")
    heard = 0 if node.myself else now
    link = "connected" if node.myself or node.online else "disconnected"
    slots = "".join([f" {first}-{last}" if first < last else f" {first}" for first, last in shard.slots])
    slots = slots if node.leads else ""
    above = "-" if node.leads or not leader.leads else leader.id
    address = f"{node.address}:{node.port}@{_NO_BUS}" + (f",{node.hostname}" if node.hostname else "")
    return f"{node.id} {address} {flags} {above} 0 {heard} {epoch} {link}{slots}"


def _encoded(host: str) -> bytes:
    return host.encode("utf-8", "surrogateescape")


def _other_names(node: ClusterNode) -> dict[bytes, bytes]:
    """Return the names of a node by which clients do not connect, as in CLUSTER SLOTS of Redis."""
    named = {b"ip": node.address, b"hostname": node.hostname}
    return {kind: _encoded(name) for kind, name in named.items() if name and name != node.endpoint}


# -- the members ---------------------------------------------------------------------------------------------------
@_server("CLUSTER|SLOTS", flags="loading stale", complexity="O(N): N members.")
def cluster_slots(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the ranges of slots, each with its leader and its replicas."""
    found = list[tuple[int, int, int, bytes]]()  # the map may have thousands of ranges: the members are encoded once
    for shard in _shards(ctx):
        if shard.nodes[0].leads:
            members = b"".join([
                reply.encode(
                    ctx.session.proto, [_encoded(node.endpoint), node.port, node.id.encode(), _other_names(node)]
                )
                for node in shard.nodes
            ])  # fmt: skip
            found += [(first, last, 2 + len(shard.nodes), members) for first, last in shard.slots]
    lines = [
        b"*%d\r\n:%d\r\n:%d\r\n%b" % (count, first, last, members) for first, last, count, members in sorted(found)
    ]
    return reply.array_header(len(lines)) + b"".join(lines)


@_server("CLUSTER|SHARDS", flags="loading stale", complexity="O(N): N members.")
def cluster_shards(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the shards: their slots and their members."""
    return reply.encode(ctx.session.proto, [_shard(ctx, shard) for shard in _shards(ctx)])


def _shard(ctx: Context, shard: ClusterShard) -> dict[bytes, object]:
    members = []
    for node in shard.nodes:
        hostname = {b"hostname": _encoded(node.hostname)} if node.hostname else {}
        port = {b"tls-port": node.port} if ctx.session.tls else {b"port": node.port}
        members.append({
            b"id": node.id.encode(), **port, b"ip": _encoded(node.address), b"endpoint": _encoded(node.endpoint),
            **hostname,
            b"role": b"master" if node.leads else b"replica", b"replication-offset": node.offset,
            b"health": b"online" if node.online else b"failed",
        })  # fmt: skip
    slots = [slot for ends in shard.slots for slot in ends] if shard.nodes[0].leads else []
    return {b"slots": slots, b"nodes": members}


@_server("CLUSTER|NODES", flags="stale", complexity="O(N): N members.")
def cluster_nodes(ctx: Context, argv: list[bytes]) -> Reply:
    """Return a line for each member."""
    return _text(ctx, "".join([_line(ctx, node, shard) + "\n" for shard in _shards(ctx) for node in shard.nodes]))


def _replicas(ctx: Context, argv: list[bytes]) -> Reply:
    shard, wanted = _known(ctx, argv[2])
    if not wanted.leads:
        raise CommandError("ERR The specified node is not a master")
    return reply.bulk_array([_line(ctx, node, shard).encode() for node in shard.nodes if not node.leads])


def _known(ctx: Context, name: bytes) -> tuple[ClusterShard, ClusterNode]:
    """Return the node with this ID, and its shard. Raises CommandError."""
    for shard in _shards(ctx):
        for node in shard.nodes:
            if node.id.encode() == name:
                return shard, node
    raise errors.quoting("ERR Unknown node {}", name)


@_server("CLUSTER|REPLICAS", arg("node-id"), flags="admin stale", complexity="O(N): N members.")
def cluster_replicas(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the lines of the replicas of a leader, as in CLUSTER NODES."""
    return _replicas(ctx, argv)


@_server("CLUSTER|SLAVES", arg("node-id"), flags="admin stale", complexity="O(N): N members.")
def cluster_slaves(ctx: Context, argv: list[bytes]) -> Reply:
    """Do the same as CLUSTER REPLICAS."""
    return _replicas(ctx, argv)


@_server("CLUSTER|INFO", flags="stale")
def cluster_info(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the state of the cluster as lines of names and values."""
    shards = _shards(ctx)
    led = [shard for shard in shards if shard.nodes[0].leads and shard.slots]
    state = "ok" if ctx.server.cluster.serves else "fail"
    assigned = sum([last - first + 1 for shard in led for first, last in shard.slots])
    fields = {
        "cluster_state": state, "cluster_slots_assigned": assigned, "cluster_slots_ok": assigned * (state == "ok"),
        "cluster_slots_pfail": 0, "cluster_slots_fail": assigned * (state != "ok"),
        "cluster_known_nodes": sum([len(shard.nodes) for shard in shards]), "cluster_size": len(led),
        "cluster_current_epoch": max([shard.epoch for shard in shards]),
        "cluster_my_epoch": ctx.server.cluster.epoch,
        "cluster_stats_messages_sent": 0, "cluster_stats_messages_received": 0,
        "total_cluster_links_buffer_limit_exceeded": 0,
    }  # fmt: skip
    return _text(ctx, "".join([f"{name}:{value}\r\n" for name, value in fields.items()]))


@_server("CLUSTER|MYID", flags="stale")
def cluster_myid(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the ID of this server. It is kept in the data directory."""
    _check_enabled(ctx)
    return reply.bulk(ctx.server.cluster.id.encode())


@_server("CLUSTER|MYSHARDID", flags="stale")
def cluster_myshardid(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the ID of the shard, which is the same on all its members."""
    _check_enabled(ctx)
    return reply.bulk(ctx.server.cluster.shard.encode())


@_server("CLUSTER|LINKS", flags="stale")
def cluster_links(ctx: Context, argv: list[bytes]) -> Reply:
    """Return an empty array: the members have no cluster bus."""
    _check_enabled(ctx)
    return reply.EMPTY_ARRAY


@_server("CLUSTER|COUNT-FAILURE-REPORTS", arg("node-id"), flags="admin stale", complexity="O(N): N members.")
def cluster_count_failure_reports(ctx: Context, argv: list[bytes]) -> Reply:
    """Return 0: the members do not report each other's failures."""
    _known(ctx, argv[2])
    return reply.integer(0)


# -- slots ---------------------------------------------------------------------------------------------------------
@_server("CLUSTER|KEYSLOT", arg("key"), flags="stale", complexity="O(N): N bytes of the key.")
def cluster_keyslot(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the slot of a key."""
    _check_enabled(ctx)
    return reply.integer(slot_of(argv[2]))


def _search(
    ctx: Context, slot: int, take: Callable[[list[bytes]], bool], finish: Callable[[], bytes | Chunks]
) -> bytes | Chunks | Slices:
    """Pass the keys of a slot to take() until it returns True, and return finish(). All keys may be searched."""
    cursor = 0

    def step(ctx: Context) -> bytes | Chunks | None:
        nonlocal cursor
        cursor, names = ctx.ks.index.page(cursor, AT_ONCE)
        hidden = ctx.ks.hidden
        enough = take([name for name in names if slot_of(name) == slot and not (hidden is not None and hidden(name))])
        return finish() if enough or not cursor else None

    return step(ctx) or Slices(step, False)


@_server("CLUSTER|COUNTKEYSINSLOT", arg("slot", "integer"), flags="stale", complexity="O(N): N keys in all slots.")
def cluster_countkeysinslot(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of keys in a slot."""
    _check_enabled(ctx)
    slot = integer(argv[2])
    if not 0 <= slot < SLOTS:
        raise CommandError("ERR Invalid slot")
    total = 0

    def take(some: list[bytes]) -> bool:
        nonlocal total
        total += len(some)
        return False

    return _search(ctx, slot, take, lambda: reply.integer(total))


@_server(
    "CLUSTER|GETKEYSINSLOT", arg("slot", "integer"), arg("count", "integer"), flags="stale",
    complexity="O(N): N keys in all slots.",
)  # fmt: skip
def cluster_getkeysinslot(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the names of at most ``count`` keys in a slot."""
    _check_enabled(ctx)
    slot, count = integer(argv[2]), integer(argv[3])
    if not 0 <= slot < SLOTS or count < 0:
        raise CommandError("ERR Invalid slot or number of keys")
    if not count:
        return reply.EMPTY_ARRAY
    found: dict[bytes, None] = {}  # after FLUSHALL, the search may return a key twice

    def take(some: list[bytes]) -> bool:
        found.update(dict.fromkeys(some))
        return len(found) >= count

    return _search(ctx, slot, take, lambda: long_array(list(found)[:count], b""))


@_server("CLUSTER|HELP", flags="loading stale")
def cluster_help(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the subcommands with their summaries."""
    _check_enabled(ctx)
    return reply.array([reply.simple(line.encode()) for line in help_lines("CLUSTER")])


# -- the connection ------------------------------------------------------------------------------------------------
@command("READONLY", flags="loading stale fast", group="cluster", acl="connection")
def readonly(ctx: Context, argv: list[bytes]) -> Reply:
    """Let this connection read from a replica, whose data may be older than the leader's."""
    _check_enabled(ctx)
    ctx.session.readonly = True
    return reply.OK


@command("READWRITE", flags="loading stale fast", group="cluster", acl="connection")
def readwrite(ctx: Context, argv: list[bytes]) -> Reply:
    """Undo READONLY."""
    _check_enabled(ctx)
    ctx.session.readonly = False
    return reply.OK


@command("ASKING", flags="fast", group="cluster", acl="connection")
def asking(ctx: Context, argv: list[bytes]) -> Reply:
    """Do nothing: the server never replies with ASK."""
    _check_enabled(ctx)
    return reply.OK
