"""Streams and strings from one running server to another: ``tidelog import`` and ``tidelog export``.

Both ends are asked with Redis's own commands, so each may be a Redis or a tidelog-server.

    errors     what is refused, and why
    ends       one of the two servers: who it is, what it answers
    facts      what a stream, its groups, consumers and pending messages are, as a server tells
    pages      entries in pages whose replies stay small
    inventory  which keys there are, and which of them can be moved
    entries    the entries of a stream, up to an ID, and what was deleted since
    groups     groups, their consumers and pending messages
    merged     two ordered lists, side by side
    strings    strings with their expiry
    streams    one stream: copied, or brought up to date
    compared   what differs between the two ends
    following  round after round, until the writers have changed over
    outcome    what was moved, for people and programs
    move       all of it, in order

Rule 1: whatever was done is found at the target, not remembered: a copy that was interrupted goes on after the last ID
that is there, and doing a step again changes nothing.
Rule 2: groups are read after entries, and in one step with the stream's last ID. What came up to that ID is copied
before a group is changed. So no group at the target is past an entry that is not there.
Rule 3: of a group, the offset is read before its pending messages, and what is pending behind that offset is left for
the next round. So a message is delivered again at worst, never lost.
Rule 4: memory does not grow with the data: one page of each side is held, and the names of streams.
"""
