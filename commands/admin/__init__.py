"""Redis's commands for connections, configuration, replication and the server itself.

    acl            ACL
    client         CLIENT
    clientlist     the line of a client in CLIENT LIST
    cluster        CLUSTER, READONLY, READWRITE, ASKING
    config         CONFIG
    connection     HELLO, AUTH, PING, RESET, SELECT
    debug          DEBUG, disabled by default
    introspection  COMMAND, which redis-cli uses for hints
    members        TMEMBER, for server groups
    memory         MEMORY
    observe        SLOWLOG, LATENCY
    pubsub         SUBSCRIBE, SSUBSCRIBE, PUBLISH, PUBSUB and related commands
    replication    REPLICAOF, ROLE, FAILOVER, WAIT, WAITAOF; REPLCONF and PSYNC from replicas
    slotmap        TCLUSTER, for clusters of several server groups
    tracking       CLIENT TRACKING, CACHING, TRACKINGINFO, GETREDIR
    server         INFO, TIME, MONITOR, FLUSHALL, SAVE, SHUTDOWN and related commands
"""
