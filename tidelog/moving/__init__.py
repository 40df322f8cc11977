"""Copies streams and strings between running servers: ``tidelog import`` and ``tidelog export``.

Both servers are accessed with Redis's own commands, so each of them can be a Redis server or a tidelog-server.

    errors     error types
    endpoints  one of the two servers: its identity and its replies
    descriptions  the description of a stream, its groups, consumers, and pending entries
    pages      reads entries in pages whose replies stay small
    inventory  lists the keys, and those that can be copied
    entries    copies the entries of a stream, and deletions
    groups     copies groups, their consumers, and pending entries
    merged     merges two ordered lists
    strings    copies strings with their expiry times
    delayed    copies the delayed entries of streams, from tidelog to tidelog
    streams    copies or updates one stream
    compared   compares the two servers
    following  repeated updates, until the writers have stopped
    outcome    the result, for people and programs
    move       the whole procedure

Rule 1: progress is read from the target and not remembered. An interrupted copy continues after the last ID at the
        target, and repeating a step changes nothing.
Rule 2: groups are read after entries, in one step with the last ID of the stream. The entries up to that ID are copied
        before a group is changed. A group at the target is therefore never ahead of the entries there.
Rule 3: the position of a group is read before its pending entries. Pending entries after that position are left for the
        next round. An entry can be delivered again, but is never lost.
Rule 4: memory does not grow with the data, except for the names of the keys: one page of each server is in memory.
"""
