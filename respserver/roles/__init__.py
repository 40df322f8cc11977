"""Leader or replica, and what follows from it.

    failover  FAILOVER: handing over without losing anything
    link      a replica's link to its leader: what comes of what the leader sends
    replicas  the replicas of this server: who may go on, who gets a copy, what the journal keeps for them
    roles     which of the two this server is: REPLICAOF, FAILOVER, PSYNC
"""
