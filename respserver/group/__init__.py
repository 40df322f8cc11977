"""Server groups (``group``): leadership and the in-sync set of the members, with a coordinator.

    decisions    one decision of the member, from the current state at the coordinator
    document     the state of a group at the coordinator, and its changes; no I/O
    election     the decisions of the member while there is no leader
    handover     a planned failover
    identity     the member's name and IDs, in the data directory; the address at which others reach it
    insync       replica-acks insync: the members that replies wait for, and changes of the in-sync set
    joining      the member joins or creates its group
    membership   the member: its start and stop, its task, and the events that wake it
    parts        the parts of a member that its other parts use
    presence     the member's lease, and the data that it publishes
    services     external services of a member: the coordinator, and the renewal of its lease
    standing     the phase and the epoch of the member: follows, leads, resigns
    states       the keys of a group at the coordinator
    status       the status of the group as one JSON document
"""
