"""Compares tidelog with redis-server on this machine, in one run. See ``scripts/bench --help``.

``scripts/bench`` runs the workloads that are declared in ``append``, ``polling``, ``ranges``, ``groups``, ``fanout``,
``space``, ``xstreams``, ``latency`` and ``cpu``. ``long``, ``replication``, ``spark``, ``report``, ``pending_memory``,
``turns``, ``acks``, ``clustermode``, ``clustersend``, ``clusterspark``, ``console``, ``continuousbackup``, ``delays``,
``failovers``, ``gateway``, ``retention``, ``slotmoves``, ``sql``, ``stalls``, ``tieredreads``,
``tieredspace``, ``tieredstart`` and ``workers`` are separate programs.

    acks            ``python -m benchmarks.acks``: what replies cost that wait for replicas
    append          appends: by clients, pipeline, payload and appendfsync; many in one command; the ceiling
    ceiling         a server on uvloop and hiredis that does nothing: the limit of any server in Python
    clustermode     ``python -m benchmarks.clustermode``: CPU time per command with ``cluster-enabled``
    clustersend     ``python -m benchmarks.clustersend``: ``send_many`` over two groups, relative to one
    clusterspark    ``python -m benchmarks.clusterspark``: the Spark source over two groups, relative to one
    console         ``python -m benchmarks.console``: pages of the console in a browser; turns of its event loop
    continuousbackup  ``python -m benchmarks.continuousbackup``: the cost of a continuous backup to the leader
    cpu             the server's CPU time per command, user and system
    cputime         the CPU time of a process
    delayedstore    an S3 server that answers after a delay
    delays          ``python -m benchmarks.delays``: memory of delayed entries; PINGs while they are delivered
    entries         three kinds of entries, and the commands that append them
    facts           the conditions of a measurement: the machine, and the servers with their origin
    failovers       ``python -m benchmarks.failovers``: pauses of a writer while the leader of a group changes
    fanout          many clients blocked on one stream
    flows/          ``python -m benchmarks.flows``: events per second through a flow
    gateway         ``python -m benchmarks.gateway``: event streams of the HTTP gateway: memory, and time of delivery
    groups          reads and acknowledgements of a group's messages; the memory of the messages
    history         Spark scans of history objects, compared with the server
    jetstream       starts nats-server and implements its protocol
    latency         p50, p99, p99.9 of requests at half of the highest rate
    load            redis-benchmark, and requests over a raw socket whose replies are counted
    long            ``scripts/bench --long``
    jobs/           ``python -m benchmarks.jobs``: jobs, compared with Spark's own methods
    measured        selects the tidelog to measure: an installed one, or the checkout
    openloop        requests that are sent when they are due, and their times
    peers           worker libraries for Redis, for comparison
    pending_memory  memory and time of pending messages, without a server
    plot            ``--plot``: ratios on a log axis
    polling         clients that poll; streams with a limited length
    publishing      ``cpu --nats``: messages by payload and window, compared with JetStream
    ranges          reads at random positions and of whole streams; short reads by length of the stream
    registry        declares workloads, and passes them their parameters
    replication     ``scripts/bench replication``: lag, throughput, copies, latency, failover
    retention       ``python -m benchmarks.retention``: the cost of retention policies per append
    report          ``--json`` files as a table in Markdown
    scale           the cases of ``long``: large numbers of entries, streams, groups and clients
    scaleload       the load of the cases of ``scale``
    servers         the servers as processes on free ports with empty directories
    slotmoves       ``python -m benchmarks.slotmoves``: a move of slots with keys under load
    sql             ``python -m benchmarks.sql``: a query over a stream, compared with pandas over a CSV file
    space           bytes per entry in memory and on disk; seconds until the first reply
    spark           ``python -m benchmarks.spark``: the Spark source and sink
    sparksources    other Spark sources, for comparison
    stalls          ``python -m benchmarks.stalls``: the longest PING during mixed load and background work
    table           rows of figures, printed and stored
    targets         the required ratio of each row: a floor and a goal
    tiered          servers whose entries are only in an object store
    tieredreads     ``python -m benchmarks.tieredreads``: short reads of such entries, and PINGs meanwhile
    tieredspace     ``python -m benchmarks.tieredspace``: bytes per entry in history objects and in the store
    tieredstart     ``python -m benchmarks.tieredstart``: starts and full copies of a server with such entries
    turns           ``python -m benchmarks.turns``: how long one command blocks the event loop
    varied          appends of varied JSON, from many connections
    xstreams        Redis's own stream commands: appends, ranges, groups, deletions
    workers/        ``python -m benchmarks.workers``: events per second of one worker
"""
