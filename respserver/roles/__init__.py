"""Leader or replica, and what follows from it.

    failover  FAILOVER: handing over without losing anything
    replicas  the replicas of this server: who may go on, who gets a copy, what the journal keeps for them
    roles     leader or replica, and what follows from it
"""
