"""The clients of a tidelog-server, and what other parts of ``tidelog`` build on.

In reading order:

    entries     what the clients return: IDs, entries, batches, descriptions of streams and groups
    calls       each command defined once: what is sent, how the reply is read
    packedrows  TMAPPEND and TSTAGE of rows that are packed already
    strings     SET, GET and the like for what programs agree by: leases, claims, documents
    address     parses URLs of servers
    access      where the servers are, and how to connect to them
    wire        one connection: pipelined commands, long ranges in pages of bounded size
    servers     finding the leader, and trying again when it does not answer
    pools       redis-py's connections, to one server or to the leader of several
    client      ``Client``, over redis-py
    aio         ``AsyncClient``, for asyncio
    steps       operations as generators of calls, so that they exist once for threads and for asyncio
    alone       an operation on a connection of its own
    hiding      URLs without their secrets, for logs, errors and status
    refusals    error replies: which are temporary, and which concern the user
    saying      texts of exceptions, even if their own code fails
    signals     signal handlers that are installed for a time and not inherited by child processes
    channel     one connection for asyncio: requests of many tasks, replies in order
    waker       which of many readers have news: one thread, a few connections
    publish     publishing rows exactly once: staged on the server, then published in one step
"""

from tidelog.client.access import DEFAULT_URL, Access
from tidelog.client.client import PAGE, Client, ConflictError, NoGroupError, NoStageError, StaleEpochError

__all__ = [
    "Access", "Client", "DEFAULT_URL", "PAGE", "NoGroupError", "NoStageError", "StaleEpochError", "ConflictError",
]  # fmt: skip
