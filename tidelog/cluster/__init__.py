"""``tidelog cluster``: runs a cluster on one machine, and inspects and changes clusters. In reading order:

    errors         the error of all modules
    plan           groups, members, ports, and settings of a cluster on one machine
    settings       the directives that ``--set`` names
    ports          the ports and the address of the members
    memberprogram  runs a server as the only process of a member
    processes      processes that another process may have started
    folder         the directory of a cluster on one machine
    asking         requests to members
    slots          slots in texts, and their distribution over groups
    view           the map and the state of each group
    display        the status as text and as JSON
    checks         the problems of a cluster
    moving         moves of slots, with their keys or without
    membership     groups that join and leave
    member         starts, adopts, and restarts the process of a member
    supervisor     runs all members, and stops them in order
    operation      ``up`` and ``down``

Rule: everything that is about the map is decided by the servers. These commands read it, and request changes.
"""
