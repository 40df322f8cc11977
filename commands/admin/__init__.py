"""Commands about connections, configuration, replication and the server itself, as Redis has them.

    client         CLIENT
    clientlist     a client as CLIENT LIST shows it
    config         CONFIG
    connection     HELLO, AUTH, PING, RESET, SELECT
    debug          DEBUG, off unless enabled
    introspection  COMMAND, which feeds redis-cli's hints
    memory         MEMORY
    observe        SLOWLOG, LATENCY
    pubsub         SUBSCRIBE, PUBLISH and their kin
    replication    REPLICAOF, ROLE, FAILOVER, WAIT, WAITAOF, and what replicas say
    server         INFO, TIME, FLUSHALL, saving, SHUTDOWN
"""
