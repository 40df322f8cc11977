"""Server groups (``group``): which member leads, and which members are in sync, with a coordinator.

    document     the state of a group at the coordinator, and its changes; no I/O
    identity     the member's name and IDs, in the data directory; the address at which others reach it
    insync       replica-acks insync: the members that replies wait for, and who joins or leaves the in-sync set
    membership   the member: joins, follows, campaigns, leads, hands over
    presence     the member's lease, and what it publishes with it
    services     what a member needs from outside: the coordinator, and what keeps its lease
    states       the keys of a group at the coordinator, and the compare-and-set loop
    status       the status of the group as one JSON document
"""
