"""The coordinator of server groups: a small consistent store with compare-and-set, leases and notifications.

The members of a group keep their epoch, leader and in-sync set in it. Data and writes of clients never pass through it.

    clock       the clock of leases, which continues while the machine is suspended, and the boot that it belongs to
    connect     a coordinator by its URL
    directory   the coordinator `file:`, for members on one machine
    etcd        the coordinator `etcd:`, by the JSON gateway of an etcd cluster
    filesystem  checks of the directory of `file:`: its file system, foreign files, permissions
    interface   what all coordinators have in common: the calls, their results and errors
    keeper      renews the lease of a leader in a thread, while the server's event loop advances
    renewals    decides when a lease is renewed, and until when it is valid; no I/O, no clock
    simulated   a coordinator in memory on the clock of an event loop, for simulations and tests
    slotmap     the map of a cluster: which group owns which hash slots; no I/O
    stored      one document at the coordinator, and the compare-and-set loop that changes it
    versions    a value in numbered files, the next of which only one process can create
"""
