"""Leader and replica ends of the replication channel: empty for now, the place is kept.

What will live here: a replica connects, sends ``REPLCONF`` and ``PSYNC <replication id> <offset>``; the offset is the
log's, so the journal is the backlog. A replica whose offset the journal still holds goes on from there; another one
gets the store (sealed nodes as they lie) and then the journal. Replicas acknowledge offsets, ``WAIT`` counts them.
Records arrive through the same ``Keyspace.apply`` that recovery uses.

Layer: below ``respserver``, above ``commands`` and ``persistence``.
"""
