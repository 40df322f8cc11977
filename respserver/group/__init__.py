"""Server groups (``group``): leadership and the in-sync set of the members, with a coordinator.

    document     the state of a group at the coordinator, and its changes; no I/O
    identity     the member's name and IDs, in the data directory; the address at which others reach it
    insync       replica-acks insync: the members that replies wait for, and changes of the in-sync set
    membership   the member: joins, follows, campaigns, leads, hands over
    presence     the member's lease, and the data that it publishes
    services     external services of a member: the coordinator, and the renewal of its lease
    states       the keys of a group at the coordinator, and the compare-and-set loop
    status       the status of the group as one JSON document
"""
