"""The clients of a tidelog-server: ``Client`` for threads and ``AsyncClient`` for asyncio.

    entries       what the clients return: IDs, entries, batches, descriptions of streams and groups
    calls         each command defined once: what is sent, how the reply is read
    commands      the calls as methods of both clients
    tracecontext  the fields ``traceparent`` and ``tracestate`` of entries
    packedrows    TMAPPEND and TSTAGE for rows that the caller has already packed
    strings       calls for the strings with which programs coordinate: leases, claims, documents
    clusterlink   whether the servers are a cluster of several groups
    routedredis   ``client.redis``, which routes commands in such a cluster
    asyncroutedredis  the same for asyncio
    client        ``Client``, over redis-py
    asyncclient   ``AsyncClient``, for asyncio
    steps         operations as generators of calls, so that they exist once for threads and for asyncio
    alone         runs an operation on its own connection
    publish       publishing rows exactly once: staged on the server, then published in one step
    dividedcommit  the same, to streams of several groups of a cluster

The classes of error replies, such as ``NoGroupError``, are in ``tidelog.transport.errors``.
"""

from tidelog.client.client import PAGE, Client
from tidelog.transport.access import DEFAULT_URL, Access
from tidelog.transport.errors import ConflictError, CrossGroupError, NoGroupError, NoStageError, StaleEpochError

__all__ = [
    "Access", "Client", "DEFAULT_URL", "PAGE", "NoGroupError", "NoStageError", "StaleEpochError", "ConflictError",
    "CrossGroupError",
]  # fmt: skip
