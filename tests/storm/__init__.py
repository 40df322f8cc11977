"""A storm: random faults in a server group of real processes, and a check of all replies that clients received.

    run        one storm: rounds of faults under load, recovery, checks
    faults     what happens to the members, the network and the coordinator
    preloaded  starts servers without their imports
    members    the server processes, and the coordinator: a directory, or a cluster of three etcd processes
    histories  the history of the groups of a cluster in an object store
    network    a proxy in front of each member and of each etcd process: links that are cut, silent, slow
    lossy      a file system that loses unsynced data at a power failure
    clients    connections, and the loop that runs a work
    works      what clients do, and the record of the replies (the checker is ``tests.simulation.checker``)

    .venv/bin/python -m tests.storm --seed 7 --coordinator etcd --faults 1000 --minutes 30
    .venv/bin/python -m tests.storm --groups 2,3 --coordinator etcd --history directory --minutes 15
    TIDELOG_LONG=60 scripts/test long tests/storm     # also TIDELOG_SEED=7, TIDELOG_FAULTS=1000

The seed determines which faults happen and roughly when; the processes do not run the same way twice.
"""
