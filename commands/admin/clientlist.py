"""The line of a client in CLIENT LIST and CLIENT INFO."""

from __future__ import annotations

from commands.session import LEADER, Session, TransportStats

# A rough estimate for an idle connection: the session, the connection, its decoder and its socket object.
IDLE_CLIENT_BYTES = 4096


def client_type(session: Session) -> bytes:
    """Return ``normal``, ``pubsub``, ``replica``, or ``master`` for this server's own link to its leader."""
    if session.replica is not None:
        return b"master" if session.replica == LEADER else b"replica"
    return b"pubsub" if session.subscribed else b"normal"


def client_flags(session: Session, stats: TransportStats) -> str:
    """Return the letters of the client's states, as in Redis; ``N`` if there are none."""
    kind, caching = client_type(session), session.caching
    states = (
        ("O", session.monitoring), ("S", kind == b"replica"), ("M", kind == b"master"),
        ("r", session.readonly), ("P", session.subscribed), ("x", session.multi),
        ("b", session.blocked or stats.paused),
        ("t", caching is not None), ("R", caching is not None and caching.broken),
        ("B", caching is not None and caching.bcast),
        ("d", session.dirty_cas), ("c", session.close_after_reply), ("U", session.unix), ("e", session.no_evict),
        ("T", session.no_touch),
    )  # fmt: skip
    return "".join([letter for letter, is_set in states if is_set]) or "N"


def transport_stats(session: Session) -> TransportStats:
    return session.transport.stats() if session.transport is not None else TransportStats()


def client_bytes(session: Session, stats: TransportStats) -> int:
    """Return an estimate of a client's memory in bytes, without the commands that wait for EXEC."""
    buffers = stats.query_buffered + stats.output_queued + stats.output_buffered + stats.wait
    return IDLE_CLIENT_BYTES + session.memory_bytes() + buffers


def queued_bytes(session: Session) -> int:
    """Return the size of the commands that wait for EXEC, in bytes."""
    return sum(sum(map(len, argv)) for argv in session.queued)


def client_line(session: Session, now: int, argv: list[bytes]) -> str:
    """Return the line without its line end. ``now``: ms since epoch. ``argv``: the running command, or [].

    Fields and order are those of Redis 8.8. ``qbuf`` counts bytes of incomplete commands, ``obl`` replies
    that wait for the end of the tick, and ``omem`` replies that wait for the socket. ``qbuf-free``, ``rbs`` and ``rbp``
    are 0, because no buffer has a fixed size. ``io-thread`` is 0, the main thread, and no reply is shared by clients.
    ``avg-pipeline-len-sum`` counts commands and ``avg-pipeline-len-cnt`` batches: the quotient is the average length of
    a pipeline. ``withheld`` is not a field of Redis: it is present only while
    replies wait for replicas, and is a part of ``obl``.
    """
    stats = transport_stats(session)
    argv_bytes = sum(map(len, argv))
    queued = queued_bytes(session)
    events = ("r" if stats.reading else "") + ("w" if stats.writing else "")
    fields: list[tuple[str, object]] = [
        ("id", session.id),
        ("addr", session.addr),
        ("laddr", session.laddr),
        ("fd", stats.fd),
        ("name", session.name.decode("latin-1")),
        ("age", max(0, now - session.created) // 1000),
        ("idle", max(0, now - session.last_active) // 1000),
        ("flags", client_flags(session, stats)),
        ("db", 0),
        ("sub", len(session.channels)),
        ("psub", len(session.patterns)),
        ("ssub", len(session.shards)),
        ("multi", len(session.queued) if session.multi else -1),
        ("watch", len(session.watching)),
        ("qbuf", stats.query_buffered),
        ("qbuf-free", 0),
        ("argv-mem", argv_bytes),
        ("multi-mem", queued),
        ("rbs", 0),
        ("rbp", 0),
        ("obl", stats.output_queued),
        ("oll", stats.output_pieces),
        ("omem", stats.output_buffered),
        ("omem-shared", 0),
        ("omem-unshared", stats.output_buffered),
        ("tot-mem", client_bytes(session, stats) + argv_bytes + queued),
        ("events", events),
        ("cmd", session.last_command),
        ("user", session.user.name.decode("latin-1")),
        ("redir", -1 if session.caching is None else session.caching.redirect),
        ("resp", session.proto),
        ("lib-name", session.lib_name.decode("latin-1")),
        ("lib-ver", session.lib_ver.decode("latin-1")),
        ("io-thread", 0),
        ("tot-net-in", session.total_in),
        ("tot-net-out", session.total_out),
        ("tot-cmds", session.total_commands),
        ("read-events", session.total_reads),
        ("avg-pipeline-len-sum", session.total_commands),
        ("avg-pipeline-len-cnt", session.total_batches),
    ]
    if stats.output_withheld:
        fields.append(("withheld", stats.output_withheld))
    return " ".join(f"{name}={value}" for name, value in fields)
