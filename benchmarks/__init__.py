"""tidelog and redis-server side by side, on this machine, in one run. ``scripts/bench --help``.

``scripts/bench`` runs the workloads that are declared in ``append``, ``polling``, ``ranges``, ``groups``, ``fanout``,
``space``, ``xstreams`` and ``cpu``. ``long``, ``replication``, ``spark``, ``report``, ``pending_memory``, ``turns`` and
``workers`` are programs of their own.

    append          appends: by clients, pipeline, payload and appendfsync; many in one command; beside the ceiling
    ceiling         a server on uvloop and hiredis that does nothing: the limit of any server in Python
    cpu             the server's CPU a command, user and system
    cputime         what a process has taken of a core
    entries         what is written: three kinds of entries, and the commands that append them
    facts           on what the figures were taken: the machine, the servers, where they come from
    fanout          many clients blocked on one stream
    flows/          ``python -m benchmarks.flows``: events a second through a flow
    groups          messages read for a group and acknowledged; their memory
    jetstream       nats-server: how it is started, and its protocol
    load            redis-benchmark, and requests over a raw socket whose replies are counted
    long            ``scripts/bench --long``
    measured        which tidelog is measured: an installed one, or the checkout
    peers           worker libraries over Redis, measured beside ours
    pending_memory  memory and time of pending messages, without a server
    plot            ``--plot``: ratios on a log axis
    polling         clients that ask again and again; streams that are kept short
    publishing      ``cpu --nats``: messages by payload and window, beside JetStream
    ranges          reads at random places and of whole streams; short reads by length of history
    registry        how a workload is declared, and what it is given to measure with
    replication     ``scripts/bench replication``: lag, throughput, copies, latency, failover
    report          ``--json`` files as a table in Markdown
    scale           the cases of ``long``: much of everything
    scaleload       their load
    servers         the servers as processes on free ports with empty directories
    space           bytes an entry in memory and on disk; seconds until the first reply
    spark           ``python -m benchmarks.spark``: the Spark source and sink
    sparksources    what the Spark source is measured against
    table           rows of figures, printed and kept
    targets         the ratio that is asked of a row: a floor and a goal
    turns           ``python -m benchmarks.turns``: how long one command keeps the event loop from the others
    xstreams        Redis's own stream commands: appends, ranges, groups, deletions
    workers/        ``python -m benchmarks.workers``: events a second of one worker
"""
