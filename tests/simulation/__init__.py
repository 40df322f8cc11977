"""A simulation: the real code of three servers and their clients in one process, on one loop with a virtual clock.

    simloop    the event loop: processes, the virtual clock, the trace
    network    connections in memory: latency, partitions, windows, resets
    disk       the files of a member, what survives of them, and what replaces threads, time and random numbers
    members    the servers
    clients    clients: connections, and the loop that runs a workload
    workloads  what clients do
    delayed    what must be true of a stream with delayed entries; delays: the clients that add and cancel them
    faults     what happens to members and connections
    checker    what must be true, and the record of what clients were told
    world      a run of any case, and comparisons of members
    cases      what one seed simulates; a smaller case that fails as well
    mutations  rules that are broken on purpose, which the simulation must detect
    groups           a server group: members with a coordinator, clients that find the leader themselves
    groupmembers     its members, and the coordinator
    groupclients     its clients
    groupchecks      what must be true of members and coordinator at any time
    groupfaults      what happens to them
    groupmutations   the table of the rules of server groups that are broken on purpose
    replymutations   those of acknowledgements, replies, the in-sync set, the lease
    rejoinmutations  those of elections, handovers, rejoining
    delaymutations   those of delayed entries, with and without a group
    slots            a cluster: several groups share slots, which clients assign to other groups
    slotmembers      their members
    slotclients      the clients, which follow MOVED
    slotchecks       what must be true of slots and of the map at any time
    slotmutations    the rules of slots that are broken on purpose
    commits          the commit protocol over several groups, on handlers without servers
    commitmutations  its rules that are broken on purpose

One seed gives the same run on any machine: order of callbacks, times, faults, replication IDs. Replaced are only the
event loop, the sockets and, by name, the sources of time, threads and random numbers. So it needs interpreted code.

    .venv/bin/python -m tests.simulation SEED [KIND]            # one seed; --shrink looks for a smaller case
    TIDELOG_LONG=60 scripts/test long tests/simulation          # as many seeds as an hour allows

A seed that failed is kept in ``test_seeds.KEPT``, as the case that it gave. A new fault is a coroutine of ``Faults``,
named in ``cases.case``, or of ``GroupFaults``. A new rule of the servers gets a mutation. docs/simulation.md describes
the simulation of server groups.

Not simulated: TLS, several threads at once (work in a thread is one step, at a random time), and disks that fail.
"""
