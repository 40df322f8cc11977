"""Coordination of the workers of an app, through documents, leases and claims on the server.

    ownership         ``PartitionOwnership``: keeps a worker's share of a processor's partitions up to date
    lease_loop        the loop of ownership and leadership: turns while the lease is held
    membership        ``Membership``: one worker's membership in a processor, as operations without I/O
    member_document   the document that lists the members of a processor, changed by compare-and-set
    assignment        which member gets which partitions: sticky, by capacity
    messages          what workers tell each other in the control stream
    leadership        ``Leadership``: one worker of an app is the leader
    leader_tasks      ``LeaderTasks``: what a worker runs in addition to its processors
    timers            runs timers and crons, on the leader and in each worker
    declaration       the app's declaration on the server, for tools that do not have its code
    pauses            the parked keys and paused partitions, on the server
    connections       connections that are re-established after a loss
    clusterlines      the same in a cluster: to the leader of each call's keys, and to the leader of one group
    workergroups      the groups that a worker works with: the lease and the connections for each partition

Rule 1: messages and documents are hints and plans. Only a claim gives a worker the right to act.
"""
