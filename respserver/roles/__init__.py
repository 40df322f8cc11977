"""The role of the server, leader or replica.

    acks      replica-acks with a number: what n replicas have on disk
    cluster   the servers that share the slots, for cluster clients
    failover  FAILOVER: a leader hands over to a replica without losing writes
    link      a replica's link to its leader, and the data that it receives
    nodes     entries that members copy from each other, because a store is damaged
    replicas  a server's own replicas: PSYNC, acknowledgements, the part of the journal that they need
    roles     changes of role: REPLICAOF, FAILOVER, PSYNC
"""
